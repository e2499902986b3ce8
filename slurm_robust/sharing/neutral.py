"""What of a job's evidence may leave the site: no secrets, and on request no names either. Pure.

Texts are rewritten as text, JSON too: neutral names need no escapes there, so a document stays one. The same
name gets the same neutral name in every text that one :class:`Neutral` rewrites.
"""

from __future__ import annotations

import os.path
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import expand_if_valid, fold

HIDDEN = "<hidden>"
"""Stands for a secret."""

MAX_ENDING = 6
"""The longest ending of a file's name that stays: ``.py``, ``.jsonl``."""

MIN_SECRET = 6
"""A shorter value of a variable is no secret, and would be found in every text."""

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|WEBHOOK|DSN|SESSION", re.IGNORECASE)
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:hf|gh[pousr]|glpat|github_pat|sk|pk|rk|xox[abprs]|AKIA|ASIA|AIza|ya29|eyJ)[-_.A-Za-z0-9]{12,}"
    r"|(?<=\bBearer )[^\s\"']+"
    r"|(?<=\bBasic )[A-Za-z0-9+/=]{8,}",
    re.DOTALL,
)
_GIVEN = re.compile(
    r"(?i)(\b[\w.-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credential)[\w.-]*\\?[\"']?\s*[=:]\s*\\?[\"']?)"
    r"([^\s\"'\\,;}]{4,})"
)
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^\s/@'\"\\]*@)?([^\s/?#'\"\\,]*)[^\s'\"\\,]*", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_PATH = re.compile(r"(?<![\w.:/~\]-])~?/[^\s'\"\\,;:()<>\[\]{}|=*?&]+")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{1,4}:){2,7}(?::?[0-9a-f]{1,4})(?![\w:])", re.IGNORECASE)
_IPV6_SHORT = re.compile(
    r"(?<![\w:])(?:[0-9a-f]{1,4}:){1,6}:(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?(?![\w:])", re.IGNORECASE
)
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_LOCAL = ("127.0.0.1", "::1")
_SYSTEM = ("/usr/", "/proc/", "/sys/", "/dev/", "/lib/", "/lib64/", "/bin/", "/sbin/")
_PACKAGES = re.compile(r"(.*/(?:site|dist)-packages)/(.+)")
_NEUTRAL_PATH = re.compile(r"(/path\d+)(?:/(.*))?")
_GENERIC = frozenset(
    [
        "root",
        "main",
        "train",
        "training",
        "trainer",
        "batch",
        "debug",
        "normal",
        "default",
        "gpu",
        "cpu",
        "node",
        "nodes",
        "job",
        "jobs",
        "run",
        "python",
        "python3",
        "bash",
        "sh",
        "srun",
        "sbatch",
        "salloc",
        "test",
        "slurm",
        "localhost",
        "config",
        "data",
        "step",
        "model",
        "user",
        "host",
        "script",
    ]
)
_WORD_BEGINS, _WORD_ENDS = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"


def without_secrets(text: str, environ: Mapping[str, str], known: Collection[str] = ()) -> str:
    """Return ``text`` without values of variables that are secret by their names, ``known`` ones, and what
    looks like a token, a password or a private key. URLs end after their host.
    """
    values = {value for name, value in environ.items() if _SECRET_NAME.search(name)} | set(known)
    for value in sorted((v for v in values if len(v) >= MIN_SECRET), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _SECRETS.sub(HIDDEN, text)
    text = _URL.sub(r"\1\2/…", text)
    return _GIVEN.sub(rf"\1{HIDDEN}", text)


class Names(Record):
    """What names a site, its people and their work."""

    nodes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Other machines, and domains."""
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Ids."""
    works: tuple[str, ...] = ()
    """Names of jobs and trainings, of scripts, and what they are given."""
    folders: tuple[str, ...] = ()
    """Paths, also such with blanks."""


class Neutral:
    """Replaces names by neutral ones: ``n1``, ``user1``, ``/path1/file1.py``."""

    def __init__(self, names: Names) -> None:
        """Take the names that are known; paths, addresses and further nodes of that form are found."""
        self._given: dict[tuple[str, str], str] = {}
        self._count: defaultdict[str, int] = defaultdict(int)
        self._kinds: dict[str, str] = {}
        for kind, every in (
            ("work", names.works),
            ("account", names.accounts),
            ("host", names.hosts),
            ("user", names.users),
            ("n", names.nodes),
        ):
            for name in every:
                if name.lower() not in _GENERIC and not name.isdecimal() and len(name) > 1:
                    self._kinds[name] = kind
        self._kinds |= {job: "job" for job in names.jobs if len(job) > 3}
        self._short_jobs = tuple(job for job in names.jobs if 0 < len(job) <= 3)
        folders = {os.path.normpath(folder) for folder in names.folders if folder.startswith("/")}
        self._folders = sorted(folders - {"/"}, key=len, reverse=True)
        self._pattern = self._words(names.nodes)

    def text(self, text: str) -> str:
        """Return ``text`` with neutral names."""
        text = _URL.sub(lambda m: f"{m[1]}{self._of('url', m[0])}", text)
        text = _MAIL.sub(lambda m: self._of("mail", m[0]), text)
        for folder in self._folders:
            text = re.sub(
                rf"(?<![\w/]){re.escape(folder)}(?![\w.-])", lambda m: self._of("/path", m[0]), text
            )
        text = _PATH.sub(self._path, text)
        for pattern in (_IPV4, _IPV6, _IPV6_SHORT):
            text = pattern.sub(self._address, text)
        text = self._pattern.sub(self._word, text)
        for job in self._short_jobs:
            text = re.sub(
                rf"(?i)(\bjob[-_ ]?(?:id)?\"?[-_=: ]{{1,2}}\"?|srobust-jobs/|\"run_id\":\"){job}{_WORD_ENDS}",
                lambda m: m[1] + self._of("job", m[0][len(m[1]) :]),
                text,
            )
        return text

    # -- one by one --------------------------------------------------------------------------------

    def _of(self, kind: str, name: str) -> str:
        key = (kind, name)
        if key not in self._given:
            self._count[kind] += 1
            number = self._count[kind]
            # A number, so that it stays one in JSON.
            self._given[key] = str(1_000_000 + number) if kind == "job" else f"{kind}{number}"
        return self._given[key]

    def _words(self, nodes: Iterable[str]) -> re.Pattern[str]:
        """Return one pattern for all names: what is replaced must not be replaced once more."""
        forms: defaultdict[str, set[int]] = defaultdict(set)
        for node in nodes:
            if found := re.fullmatch(r"(.*?[A-Za-z._-])(\d+)", node):
                forms[found[1]].add(len(found[2]))
        begins = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        names = "|".join(re.escape(name) for name in sorted(self._kinds, key=len, reverse=True))
        alike = "|".join(
            rf"{re.escape(form)}\d{{{min(sizes)},{max(sizes)}}}" for form, sizes in sorted(forms.items())
        )
        parts = [rf"(?P<list>(?:{begins})\[[0-9,-]+\])"] if begins else []
        parts += [rf"(?P<name>{names}){_WORD_ENDS}"] if names else []
        parts += [rf"(?P<alike>{alike}){_WORD_ENDS}"] if alike else []
        return re.compile(_WORD_BEGINS + f"(?:{'|'.join(parts)})") if parts else re.compile(r"(?!)")

    def _word(self, match: re.Match[str]) -> str:
        found = match.groupdict()
        if found.get("list"):
            return fold(self._of("n", node) for node in expand_if_valid(match[0])) or "n"
        return self._of(self._kinds.get(match[0], "n"), match[0])

    def _path(self, match: re.Match[str]) -> str:
        path = match[0].rstrip(".")
        rest = match[0][len(path) :]
        if path.startswith(_SYSTEM):
            return match[0]
        if known := _NEUTRAL_PATH.fullmatch(path):
            folder, below = known[1], known[2]
        elif packages := _PACKAGES.fullmatch(path):
            return f"{self._of('/path', packages[1])}/{packages[2]}{rest}"
        else:
            above, below = os.path.split(path)
            if above in ("/", "~"):
                return self._of("/path", path) + rest
            folder = self._of("/path", above)
        if below and not _OURS.fullmatch(below):
            stem, ending = os.path.splitext(below)
            below = self._of("file", stem) + (ending if len(ending) <= MAX_ENDING else "")
        return f"{folder}/{below}{rest}" if below else f"{folder}{rest}"

    def _address(self, match: re.Match[str]) -> str:
        if match[0] in _LOCAL or _CLOCK.fullmatch(match[0]):
            return match[0]
        return self._of("ip", match[0])


_OURS = re.compile(
    r"(?:(?:incidents|logs|checkpoints|releases|epochs|keys|suspects)(?:/[0-9a-f]+|/gen-\d+|/step-\d+|/rank-[\d-]+|/\d+)*"
    r"(?:/rank-\d+\.(?:err|out))?|journal\.jsonl|moment\.json|job\.json|plan\.json|metrics\.json)"
)
"""Names of our own below the folder of a job, which tell nothing."""
