"""Why agents did not start, or Slurm ended them: from what srun and slurmstepd write into a step's output.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from slurm_robust.home import page
from slurm_robust.model.exits import OUT_OF_MEMORY, Outlook, StepEnd
from slurm_robust.util.hostlist import expand_if_valid
from slurm_robust.util.text import one_line
from slurm_robust.version import __version__

_MAX_LINES = 4
_MAX_SAID = 3
_MAX_TEXT = 600
_SLURMS = re.compile(r"(srun|slurmstepd[\w.-]*|slurmd[\w.-]*): ")
# Messages of srun that report no error, or follow one.
_HARMLESS = (
    "lacks support for cpu binding",
    "job step aborted",
    "force terminated",
    "check slurm_job_id",
    "printing enroot log file",
    "[info]",
    "failed to invoke spank plugin stack",
)
# srun says so before it, or Slurm at a user's order (scancel JOB.STEP), ends all tasks of a step.
_ABORTS = "srun: job step aborted"
_TASKS = re.compile(r"srun: error: (?P<nodes>\S+): tasks? [\d,\-\[\]]+: (?P<how>.+)")
_EXIT_CODE = re.compile(r"exit code (\d+)")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")  # an exception, by its name
# What Python, or env, says instead of a traceback.
_NOT_FOUND = re.compile(
    r"\S*python[\d.]*: (No module named|Error while finding module specification for) .*"
    r"|\S*env: .*: No such file or directory$"
)
_NAMED = (
    re.compile(r"task launch for \S+ failed on node (?P<node>[\w.-]+): ", re.IGNORECASE),
    re.compile(r"node failure on (?P<node>[\w.-]+)", re.IGNORECASE),
)

# Lower case. All releases print these, with more or less around them.
_PASSES = (
    "unable to contact slurm controller",
    "socket timed out",
    "resource temporarily unavailable",
    "connection refused",
    "zero bytes were transmitted",
    "step creation temporarily",
    "requested nodes are busy",
    "prolog is still running",
    "slurm backup controller in standby mode",
)
_ACCOUNT = "give the job an account, partition and QOS that may run together (sacctmgr show assoc user=$USER)"
_LIMITS = "ask for less, or have the limit raised (sacctmgr show qos, sacctmgr show assoc user=$USER)"
_OPTIONS = "correct the #SBATCH options; SLURM_* and SRUN_* variables that the batch script sets count too"
_IMAGE = "the image, and all that is mounted, must be there on each node; options: agents.srun_options"
_CONTAINERS = page("containers.md")
# What keeps a task from its beginning; the first that is found.
_NOT_BEGUN = (
    (
        # The agent imports slurm_robust and what that needs.
        re.compile(r"no module named|module specification for|\bimporterror: "),
        f"install slurm_robust {__version__} with PyTorch where agents run, in the image if there is one, or "
        f"name a Python that has it: agents.python ({_CONTAINERS})",
    ),
    (
        re.compile(r"env: \S*python\S*: no such file|execve\(\): \S+: no such file"),
        "have that program on each node, in the image if there is one; agents.python and agents.wrapper name "
        f"it ({_CONTAINERS})",
    ),
    (re.compile(r"error: pyxis: "), f"{_IMAGE} ({_CONTAINERS})"),
)
_STAYS = (
    (
        "unrecognized option '--container",
        "take the options out of agents.srun_options, or have the administrator install pyxis; Apptainer "
        f"needs agents.wrapper instead ({_CONTAINERS})",
    ),
    ("hetjob", "submit one plain job, without '#SBATCH hetjob'"),
    ("heterogeneous", "submit one plain job, without '#SBATCH hetjob'"),
    ("invalid account", _ACCOUNT),
    ("invalid qos", _ACCOUNT),
    ("invalid partition", _ACCOUNT),
    ("accounting/qos policy", _LIMITS),
    ("step limit", _LIMITS),
    ("limit reached", _LIMITS),
    ("requested node configuration is not available", _OPTIONS),
    ("more processors requested than permitted", _OPTIONS),
    ("required by task is not available", _OPTIONS),
    ("only allocated", _OPTIONS),
    ("generic resource", _OPTIONS),
    ("unrecognized option", _OPTIONS),
    ("invalid option", _OPTIONS),
    ("plugin", "see which plug-ins Slurm has on this node (scontrol show config), and ask the administrator"),
    ("permission denied", "see that the job's owner runs srobust, and that the job still runs (squeue)"),
)


PREEMPTION = "PREEMPTION"
"""Why slurmstepd ends a step that makes room for another job."""

NODE_FAILURE = "NODE FAILURE"
"""Why slurmstepd ends a step of a job that has lost a node."""

_ENDED = re.compile(
    r"\*\*\* (?:JOB|STEP) (?P<job>\d+)(?:\.\S+)? ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>.+))? \*\*\*"
)


def why_ended(lines: Iterable[str], job_id: int) -> str | None:
    """Return why Slurm has ended steps of ``job_id``, in slurmstepd's words.

    :data:`PREEMPTION`, :data:`NODE_FAILURE`, ``JOB REQUEUE``, ``TIME LIMIT``; "": a user or an operator has
    cancelled it; None: slurmstepd says nothing.
    """
    ends = (match for line in lines if (match := _ENDED.search(line)) is not None)
    found = [match["why"] or "" for match in ends if int(match["job"]) == job_id]
    for why in (PREEMPTION, NODE_FAILURE):
        if any(each.startswith(why) for each in found):
            return why
    return found[-1] if found else None


def step_end(nodes: tuple[str, ...], code: int, lines: Sequence[str]) -> StepEnd:
    """Return the end of an srun for ``nodes``, from all lines of its output."""
    messages = [line.strip() for line in lines if _SLURMS.match(line) and not _is_harmless(line)]
    # A wrapper of srun, or srun itself before it has a name, prints no prefix.
    messages = messages or [line.strip() for line in lines if line.strip() and not _is_harmless(line)]
    text = "\n".join(messages).lower()
    outlook, fix = _outlook(text)
    named = {
        match["node"]: line
        for line in messages
        for pattern in _NAMED
        if (match := pattern.search(line)) is not None and match["node"] in nodes
    }
    if named:  # how the tasks on the other nodes ended then says nothing
        alone = {line.strip() for line in before_abort(lines)}
        messages = [line for line in messages if line in alone] or messages
    killed = tuple(node for end in task_ends(nodes, lines, ()) for node in end.nodes)
    return StepEnd(
        nodes=nodes,
        code=code,
        message=_joined(messages),
        outlook=outlook,
        fix=fix,
        named=named,
        killed=killed,
    )


def task_ends(nodes: tuple[str, ...], lines: Iterable[str], output: Sequence[str]) -> Iterator[StepEnd]:
    """Yield tasks that ended badly according to srun in ``lines``, while it goes on for the others.

    ``output`` has all lines of the step: slurmstepd's message about a task comes before or after, and so does
    the traceback of one that ended by itself, or what the program said that should have started it.
    """
    raised, said = last_raised(output), _last_said(output)
    for line in lines:
        if (match := _TASKS.match(line.strip())) is None:
            continue
        code = _EXIT_CODE.search(match["how"])
        for node in expand_if_valid(match["nodes"]):
            if node in nodes:
                of_stepd = tuple(_of_stepd(node, output))
                own = (raised or (() if of_stepd else said)) if code else ()
                message = _joined([line.strip(), *of_stepd, *own])
                yield StepEnd(
                    nodes=(node,),
                    code=int(code[1]) if code else -1,
                    message=message,
                    fix=_not_begun(message),
                    named={node: message},
                    is_task=True,
                )


def last_raised(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the last line of the last Python traceback in ``lines``, or what Python says in place of one;
    srun does not say whose it is.
    """
    found, is_inside = "", False
    for line in lines:
        if _NOT_FOUND.match(line):
            found, is_inside = line.strip(), False
        elif line.startswith(_TRACEBACK):
            is_inside = True
        elif is_inside and _RAISED.match(line) and not _SLURMS.match(line):
            found, is_inside = line.strip(), False
    return (found,) if found else ()


def _last_said(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the last lines that are not Slurm's; srun does not say whose they are.

    None if an agent says by itself why it cannot begin.
    """
    said = [one_line(line) for line in lines if not (_SLURMS.match(line) or _is_harmless(line))]
    if any("srobust_agent_error" in line for line in said):
        return ()
    # Who ran out of memory, Slurm says.
    return tuple(dict.fromkeys(line for line in said if line and not OUT_OF_MEMORY.search(line)))[-_MAX_SAID:]


def before_abort(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines before srun says that the whole step ends; all if it does not."""
    at = next((n for n, line in enumerate(lines) if line.lower().startswith(_ABORTS)), len(lines))
    return lines[:at]


def _outlook(text: str) -> tuple[Outlook, str]:
    if any(part in text for part in _PASSES):
        return Outlook.PASSES, "see 'scontrol ping'"
    for part, fix in _STAYS:
        if part in text:
            return Outlook.STAYS, fix
    return Outlook.UNKNOWN, _not_begun(text)


def _not_begun(text: str) -> str:
    """Return what to do about a task that has not begun; "" if nothing says why."""
    return next((fix for pattern, fix in _NOT_BEGUN if pattern.search(text.lower())), "")


def _of_stepd(node: str, lines: Iterable[str]) -> Iterator[str]:
    own = ("slurmstepd: ", f"slurmstepd-{node}: ")
    return (line.strip() for line in lines if line.startswith(own) and not _is_harmless(line))


def _is_harmless(line: str) -> bool:
    return any(part in line.lower() for part in _HARMLESS)


def _joined(lines: Iterable[str]) -> str:
    return " | ".join(list(dict.fromkeys(lines))[-_MAX_LINES:])[:_MAX_TEXT]
