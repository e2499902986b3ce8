"""The options of ``sbatch`` that a job was, or will be, submitted with. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from slurm_robust.model.record import Record
from slurm_robust.slurm.records import Submission

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
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_KILL": "no-kill",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
}
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


class Signal(Record):
    """``--signal=[B:]NAME[@seconds]``."""

    name: str
    """Without ``SIG``; a number stays a number."""

    before_s: int = 60
    to_batch: bool = False


def of_script(script: str, environ: Mapping[str, str]) -> Options:
    """What ``sbatch`` would take from a batch script and from the environment, which overrides it."""
    words, late = _lines(script)
    given, unknown = _of_words(words, to_the_end=True)
    return Options(given=_merged(given, _of_environment(environ)), unknown=unknown, late=late)


def of_submission(submission: Submission, environ: Mapping[str, str]) -> Options:
    """What a job was submitted with. ``environ``: of the job, which has what sbatch had, or of nobody.

    No word is ``unknown``: sbatch has taken them all.
    """
    words, late = _lines(submission.script)
    script, _ = _of_words(words, to_the_end=True)
    line, _ = _of_words(_split(submission.line)[1:])
    return Options(
        given=_merged(script, _of_environment(environ), line),
        complete=bool(submission.line and submission.script),
        late=late,
    )


def parse_signal(text: str) -> Signal | None:
    """The value of ``--signal``; None for one that sbatch refuses."""
    match = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    flags, name, before = match.groups()
    return Signal(
        name={"10": "USR1"}.get(name, name.upper()),
        before_s=60 if before is None else int(before),
        to_batch="B" in (flags or "").upper(),
    )


def _lines(script: str) -> tuple[list[str], tuple[int, ...]]:
    """The words of ``#SBATCH`` lines above the first command, and the numbers of those below it.

    Of a heterogeneous job those of the first component.
    """
    words: list[str] = []
    late: list[int] = []
    begun = False
    for number, line in enumerate(script.splitlines(), 1):
        if not line.startswith("#SBATCH"):
            begun = begun or line.strip()[:1] not in ("", "#")
        elif begun:
            late.append(number)
        else:
            words += _split(line.removeprefix("#SBATCH"), comments=True)
    return list(takewhile(lambda word: word not in ("hetjob", "packjob"), words)), tuple(late)


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return _named((option, environ[name]) for name, option in _VARIABLES.items() if name in environ)


def _of_words(words: Sequence[str], *, to_the_end: bool = False) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options, parsed as by getopt_long(3), and the words that are not options.

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
    """The long option that is written so, or begins so if it is the only one; "" for none."""
    names = [name for name in _NAMES if name.startswith(written)]
    return written if written in names else names[0] if len(names) == 1 else ""


def _named(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Opposites under one name; the last one counts."""
    given: dict[str, str] = {}
    for name, value in found:
        if name == "no-requeue":
            given["requeue"] = OFF
        else:
            given[name] = value
    return given


def _merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Later ones override earlier ones; what was taken back stays visible for ``requeue`` only."""
    merged = {name: value for layer in layers for name, value in layer.items()}
    return {name: value for name, value in merged.items() if (name, value) != ("no-kill", OFF)}


def _split(text: str, *, comments: bool = False) -> list[str]:
    try:
        return shlex.split(text, comments=comments)
    except ValueError:  # a quote that does not end: Slurm does not keep how words were quoted
        return text.split()
