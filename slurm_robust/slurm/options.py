"""The options of ``sbatch`` that a job was, or will be, submitted with. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.records import Submission
from slurm_robust.util import shell
from slurm_robust.util.text import near

# The options of sbatch in any release from 22.05 to 26.05, by its own table (src/common/slurm_opt.c): letter,
# long name, "=" for one that takes a value, "[=]" for one that takes its value only behind "=".
_TABLE = """
A,account= acctg-freq= a,array= autocomplete= batch= bb= bbf= b,begin= D,chdir= cluster= cluster-constraint=
M,clusters= comment= consolidate-segments C,constraint= container= container-id= container-type= context=
contiguous S,core-spec= cores-per-socket= cpu-freq= cpus-per-gpu= c,cpus-per-task= deadline= delay-boot=
d,dependency= m,distribution= e,error= x,exclude= exclusive[=] export= export-file= external extra=
B,extra-node-info= get-user-env[=] gid= gpu-bind= gpu-freq= G,gpus= gpus-per-node= gpus-per-socket=
gpus-per-task= gres= gres-flags= h,help hint= H,hold ignore-pbs i,input= J,job-name= kill-on-invalid-dep=
L,licenses= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mem-update= mincpus=
network= nice[=] k,no-kill[=] no-requeue F,nodefile= w,nodelist= N,nodes= n,ntasks= ntasks-per-core=
ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= ntasks-per-tres= oom-kill-step[=] open-mode= o,output=
O,overcommit s,oversubscribe parsable p,partition= power= prefer= priority= profile= propagate[=] q,qos=
Q,quiet reboot requeue[=] reservation= resources= resv-ports[=] segment= signal= sockets-per-node=
spread-job spread-segments stepmgr switches= tasks-per-node= test-only thread-spec= threads-per-core=
t,time= time-min= tmp= tres-bind= tres-per-task= uid= usage use-min-nodes v,verbose V,version W,wait
wait-all-nodes= wckey= wrap=
"""
_NAMES = {word.rpartition(",")[2].rstrip("[=]"): word for word in _TABLE.split()}
_VALUED = frozenset(name for name, word in _NAMES.items() if word.endswith("="))
_ALONE = frozenset(name for name, word in _NAMES.items() if word.endswith(name))
_LETTERS = {word[0]: name for name, word in _NAMES.items() if word[1] == ","}
# Variables that sbatch reads, with the option that each stands for.
_VARIABLES = {
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_KILL": "no-kill",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
}
_ALIKE = 0.85
"""Options of which less is alike are not taken for each other: plugins (SPANK) have options of their own."""

OFF = "off"
"""The value of an option that was taken back (``--no-requeue``, ``--no-kill=off``)."""


class Options(Record):
    """Long names with their values, "" for an option that stands alone.

    ``complete``: an option that is not ``given`` was not given; else a part of them is not known.
    """

    given: dict[str, str] = {}
    complete: bool = True
    unknown: tuple[str, ...] = ()
    """Words of ``#SBATCH`` lines that are no option of sbatch, or may be one of several."""

    late: tuple[int, ...] = ()
    """The ``#SBATCH`` lines below the first command, which sbatch ignores."""

    near: tuple[int, ...] = ()
    """The lines with options that look like ``#SBATCH`` lines and are none (``#sbatch``, ``# SBATCH``)."""

    heterogeneous: bool = False
    """It asks for several components (``#SBATCH hetjob``); the options are those of the first."""

    off: dict[str, int] = {}
    """Options that only a comment asks for (``##SBATCH``), with the number of its line."""

    lines: dict[str, int] = {}
    """The numbers of the ``#SBATCH`` lines, by the long names of their options, and ``unknown`` words."""


class Signal(Record):
    """``--signal=[B:]NAME[@seconds]``."""

    name: str
    """Without ``SIG``; a number stays a number."""

    before_s: int = 60
    to_batch: bool = False


def of_script(script: str, environ: Mapping[str, str]) -> Options:
    """Return what ``sbatch`` would take from a batch script and from the environment, which overrides it."""
    lines = _lines(script)
    given, unknown = _of_words(lines.words, to_the_end=True)
    given = _merged(given, _of_environment(environ))
    off = {name: line for name, line in lines.off.items() if name not in given}
    return Options(
        given=given,
        unknown=unknown + lines.refused,
        late=lines.late,
        near=lines.near,
        heterogeneous=lines.heterogeneous,
        off=off,
        lines=lines.numbers,
    )


def of_submission(submission: Submission, environ: Mapping[str, str]) -> Options:
    """Return what a job was submitted with. ``environ``: the job's, which has what sbatch had, or empty.

    No word is ``unknown``: sbatch has taken them all.
    """
    lines = _lines(submission.script)
    script, _ = _of_words(lines.words, to_the_end=True)
    line, _ = _of_words(_split(submission.line)[1:])
    return Options(
        given=_merged(script, _of_environment(environ), line),
        complete=bool(submission.line and submission.script),
        late=lines.late,
        near=lines.near,
        heterogeneous=lines.heterogeneous,
    )


def meant(word: str) -> list[str]:
    """Return the long options that an unknown word may be misspelt for, the likelier first."""
    if not word.startswith("--"):
        return []
    return [f"--{name}" for name in near(word[2:], _NAMES, alike=_ALIKE)]


def parse_signal(text: str) -> Signal | None:
    """Return the value of ``--signal``; None for one that sbatch refuses."""
    match = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    flags, name, before = match.groups()
    return Signal(
        name={"10": "USR1"}.get(name, name.upper()),
        before_s=60 if before is None else int(before),
        to_batch="B" in (flags or "").upper(),
    )


class _Lines(Record):
    """The options in a batch script: the words of lines that sbatch reads, and the lines that it does not."""

    words: tuple[str, ...]
    refused: tuple[str, ...]
    late: tuple[int, ...]
    near: tuple[int, ...]
    off: dict[str, int]
    numbers: dict[str, int]
    heterogeneous: bool


def _lines(script: str) -> _Lines:
    """Read lines as sbatch does, up to the first command; of a heterogeneous job only the first component."""
    words: list[str] = []
    refused: list[str] = []
    late: list[int] = []
    near: list[int] = []
    off: dict[str, int] = {}
    numbers: dict[str, int] = {}
    begun = apart = False
    comments = _comments(script)
    for number, line in enumerate(script.split("\n"), 1):
        found = _NEAR.match(line)
        if not line.startswith(("#SBATCH", "#SLURM")):
            begun = begun or line.strip()[:1] not in ("", "#")
            if found and number in comments and (named := _commented(found["mark"], line[found.end() :])):
                if found["twice"]:
                    off |= {name: off.get(name, number) for name in named}
                else:
                    near.append(number)
        elif begun:
            late += [number] if number in comments else []
        else:
            text = line.removeprefix("#SBATCH").removeprefix("#SLURM")
            apart = apart or bool(_COMPONENT.match(text))
            if not apart:
                found_words, wrong = _arguments(_COMPONENTS.split(text)[0])
                words += found_words
                refused += wrong
                named, unknown = _of_words(found_words, to_the_end=True)
                numbers |= dict.fromkeys((*named, *unknown, *wrong), number)
    return _Lines(
        words=tuple(words),
        refused=tuple(refused),
        late=tuple(late),
        near=tuple(near),
        off=off,
        numbers=numbers,
        heterogeneous=apart,
    )


_NEAR = re.compile(
    r"\s*#(?P<twice>\s*#[#\s]*)?\s*(?P<mark>SBATCH|sbatch|Sbatch|SBACTH|SBTACH|SABTCH|SBATH)\s+(?=-)"
)
_COMPONENT = re.compile(r"\s*(?:hetjob|packjob)(?:\s|$)", re.IGNORECASE)
_COMPONENTS = re.compile(r"(?<=\s)(?:hetjob|packjob)(?=\s|$)", re.IGNORECASE)


def _commented(mark: str, text: str) -> Iterable[str]:
    """Return the options in a comment; none in one that shows a command (``# sbatch --nodes=4
    train.sbatch``).
    """
    words, wrong = _arguments(text)
    given, unknown = _of_words(words, to_the_end=mark == "sbatch")
    return () if mark == "sbatch" and (wrong or unknown) else given


def _comments(script: str) -> frozenset[int]:
    """Return the numbers of the lines that a shell takes for comments; all if it is no shell script."""
    shebang, _, _ = script.partition("\n")
    if re.search(r"sh\b", shebang):
        return shell.parse(script).comments
    return frozenset(range(script.count("\n") + 2))


_ARGUMENT = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s\\"'#])+""")
_PART = re.compile(r""""((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|((?:\\.|[^\s\\"'#])+)""")


def _arguments(text: str) -> tuple[list[str], list[str]]:
    """Return the words of an option line as sbatch cuts it, and what it refuses.

    Quotes join and a backslash guards, also within quotes; a ``#`` that neither guards ends the line, also
    within a word. Source: Slurm's src/sbatch/opt.c, get_argument(), 22.05 to 26.05.
    """
    words: list[str] = []
    text = text.strip()
    while text and not text.startswith("#"):
        found = _ARGUMENT.match(text)
        if found is None or text.startswith(":") or text[found.end() : found.end() + 1] in ('"', "'", "\\"):
            return words, [text.split()[0]]
        parts = ("".join(part) for part in _PART.findall(found[0]))
        word = "".join(re.sub(r"\\(.)", r"\1", part) for part in parts)
        if not word:
            break
        words.append(word)
        text = text[found.end() :].lstrip()
    return words, []


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return _named((option, environ[name]) for name, option in _VARIABLES.items() if name in environ)


def _of_words(words: Sequence[str], *, to_the_end: bool = False) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the options, parsed as by getopt_long(3), and the words that are not options.

    Unless ``to_the_end``, up to the first such word: the batch script, whose own options follow.
    """
    found: list[tuple[str, str]] = []
    unknown: list[str] = []
    left = [*reversed(words)]
    while left:
        word = left.pop()
        if not word.startswith("-") or word in ("-", "--"):
            if not to_the_end:
                break
            unknown.append(word)
            continue
        if word.startswith("--"):
            written, equals, value = word.partition("=")
            name = _full_name(written[2:])
        else:
            written, value = word[:2], word[2:]
            name, equals = _LETTERS.get(word[1], ""), value
            if name in _ALONE and value:
                left.append(f"-{value}")
                value = ""
        if not name:
            unknown.append(written)
        if left and not equals and (name in _VALUED or (not name and not left[-1].startswith("-"))):
            value = left.pop()
        if name:
            found.append((name, value))
    return _named(found), tuple(unknown)


def _full_name(written: str) -> str:
    """Return the long option that is written so, or begins so if it is the only one; "" for none."""
    names = [name for name in _NAMES if name.startswith(written)]
    return written if written in names else names[0] if len(names) == 1 else ""


def _named(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Put opposites under one name; the last one counts."""
    given: dict[str, str] = {}
    for name, value in found:
        if name == "no-requeue":
            given["requeue"] = OFF
        else:
            given[name] = value
    return given


def _merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Let later ones override earlier ones; what was taken back stays visible for ``requeue`` only."""
    merged = {name: value for layer in layers for name, value in layer.items()}
    return {name: value for name, value in merged.items() if (name, value) != ("no-kill", OFF)}


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end: Slurm does not keep how words were quoted
        return text.split()
