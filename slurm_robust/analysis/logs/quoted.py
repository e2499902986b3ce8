"""Lines with what a model or a data set says, which is no evidence: prompts, samples, answers. Pure."""

from __future__ import annotations

import re

_LABEL = re.compile(
    r"^(?:\[(?:rank ?|default)?\d{1,7}\]:? ?|\d{1,7}: |[\d:.,/T-]{5,32} ){0,4}"
    r"(?P<open>[\[<(*#]{0,3}) ?"
    r"(?:(?:sample|generated|model|example|reference|expected|predicted|eval) ?[_-]? ?)?"
    r"(?:prompt|response|sample|generation|generated|text|completion|answer|question|output|prediction"
    r"|ground[ _-]?truth|target|reply|instruction|assistant|user)s?(?: ?[_#]?\d{1,9})? ?"
    r"(?P<close>[\])>*]{0,3}) ?(?P<sign>[:=]?) {0,4}(?P<mark>[\"'`“‘«]?)",
    re.IGNORECASE,
)


def labelled(text: str) -> bool | None:
    """Return True if quotes or brackets mark the line as text; None if only its label does; else False."""
    found = _LABEL.match(text)
    if found is None or not (found["sign"] or found["close"]):
        return False
    return True if found["mark"] or (found["open"] and found["close"]) else None
