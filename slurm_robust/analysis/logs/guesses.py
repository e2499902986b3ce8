"""What a message only guesses, which is no evidence: possible causes, examples and advice. Pure.

"Some common causes include: (1) the process was killed by the OOM killer" says of no process that it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_robust.analysis.logs.text import Line

_GUESS = re.compile(
    r"\b(?:common|possible|potential|likely|typical|probable|usual)(?: \w+)? (?:causes?|reasons?|culprits?)\b"
    r"|\b(?:can|may|might|could) (?:also |sometimes |often )?(?:happen|occur|arise)\b"
    r"|\b(?:can|may|might|could) (?:also )?(?:be|have been) "
    r"(?:caused|due|the result|triggered|a sign|related|because)"
    r"|\b(?:may|might|could) (?:also )?(?:indicate|mean|suggest|have (?!been )\w+ed)\b"
    r"|\b(?:most|very|quite|more) (?:likely|probably)\b|\bperhaps\b|\bit is possible that\b"
    r"|\b(?:usually|typically|often|normally|sometimes) "
    r"(?:means?|indicates?|happens?|occurs?|because|due|caused?)\b"
    r"|\be\. ?g\.|\bsuch as\b|\bfor (?:example|instance)\b"
    r"|\b(?:hint|tip|suggestion|remedy|troubleshooting): "
    r"|\bplease (?:try|check|make sure|consider|verify|ensure|see|refer|report)\b"
    r"|(?:^|[.!;,:(] ?)(?:try|consider) (?:to|setting|passing|using|increasing|reducing|decreasing|running"
    r"|adding"
    r"|lowering|raising|disabling|enabling|a|again)\b"
    r"|(?:^|[.!;(] ?)(?:if you (?:are|were|want|see|get|have|need|did|use|still)|in case (?:of|you)"
    r"|if (?:this|it|the) \w+(?: \w+)? (?:persists?|fails?|continues?|happens?|repeats?)"
    r"|(?:check|see|make sure|verify) (?:that|if|whether|the|for|your|you)\b)",
    re.IGNORECASE,
)

# Each guess has one of them; most lines have none, and a search takes far longer.
_HINTS = re.compile(
    "cause|reason|culprit|happen|occur|arise|may |might |could |likely|probably|perhaps|possible|usually"
    "|typical|often |normally|sometimes|e\\. ?g|such as|for (?:exa|ins)|hint: |tip: |sugg|remedy|troubl"
    "|please |try |consider |if (?:you|this|it|the) |in case |check |sure |verify |see "
)

# The entries of a list that stands in lines of its own below such words.
_ENTRY = re.compile(r"\s*(?:[\[(][^\])]{1,40}[\])]:? ?)?\s*(?:\(?\d{1,2}[.)]|[-*•])\s")

_LISTS = re.compile(r"\(1\)|\b1[.)] ")
_SENTENCE = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)[.;!] {1,4}(?=[A-Z(])|\)(?=[ .:,;]|$)")

_LIST = 8
"""The most lines of one list."""


def without_guess(text: str) -> str:
    """Return the text without guesses: up to the end of the sentence, of the line if a list follows."""
    found = _search(text)
    kept, begin = [], 0
    while found:
        kept.append(text[begin : found.start()])
        end = None if _LISTS.search(text, found.end()) else _SENTENCE.search(text, found.end())
        begin = end.end() if end else len(text)
        found = _GUESS.search(text, begin)
    return " ".join((*kept, text[begin:])) if kept else text


def _search(text: str) -> re.Match[str] | None:
    return _GUESS.search(text) if _HINTS.search(text.lower()) else None


def is_guess(lines: Sequence[Line], at: int) -> bool:
    """Return whether line ``at`` is an entry of a list that began with a guess."""
    if not _ENTRY.match(lines[at].text):
        return False
    above = range(at - 1, max(-1, at - _LIST), -1)
    head = next((lines[index].text for index in above if not _ENTRY.match(lines[index].text)), "")
    return _opens_list(head)


def _opens_list(text: str) -> bool:
    """Return whether a guess is left open at the end of the line: its list has begun, or is announced."""
    found = _search(text)
    if found is None:
        return False
    rest = text[found.start() :].rstrip()
    return rest.endswith((":", "(1)", " a", " when", " if")) or bool(_LISTS.search(rest))
