"""Signs of trouble and of life in logs that no rule knows. Pure.

They say too little for a verdict, and enough to tell a log of a training that is well from one that nobody
understands.
"""

from __future__ import annotations

import re

TROUBLE = re.compile(
    r"(?<![\w-])(?:[\w.]*(?:error|exception)s?|traceback|fatal|fail(?:s|ed|ures?)?|abort(?:ed|ing)?|panic"
    r"|seg(?:mentation )?fault|core dumped|killed|crash(?:ed)?|died|lost|unreachable|denied|refused|rejected"
    r"|cannot|can't|could(?: not|n't)|unable to|no such|not found|timed out|timeout (?:after|expired)"
    r"|out of memory|corrupt(?:ed)?|illegal|invalid)(?![\w-])"
)
"""What lines that tell of a failure have in common. For lines in lower case, with 0 for each number."""

HARMLESS = re.compile(
    r"\b(?:no|0|without) (?:[a-z]+ )?(?:errors?|failures?|failed|exceptions?)\b|error[ _]rates?"
    r"|(?:errors?|fail\w*|exceptions?)['\"]?\W{1,3}(?:0(?:\.\d+)?|none|false)(?![\d.])",
    re.IGNORECASE,
)
"""What only counts or sets something. For lines as they are."""

LIFE = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|batch)s?\b\W{0,4}0|(?:loss|norm)\w*['\"]?\W{0,4}[-+]?0|\b0%\|"
    r"|0 ?(?:it|s|step|sample|token)s?/(?:s|sec|it)\b|\bsuccess(?:ful(?:ly)?)?\b|\bcompleted\b"
    r"|\b(?:training|run|job|epoch|worker group|validation|evaluation)\b.{0,40}"
    r"\b(?:finished|complete|done|ended)\b"
)
"""A training that goes on, or that has ended well. For lines in lower case, with 0 for each number."""
