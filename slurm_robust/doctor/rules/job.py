"""Hazards of the job: what it was, or will be, submitted with, and what Slurm's record of it says."""

from __future__ import annotations

from slurm_robust.doctor.facts import Facts, known
from slurm_robust.doctor.launchers import is_local
from slurm_robust.doctor.rule import bad, note
from slurm_robust.doctor.rules.site import leaving_s
from slurm_robust.slurm.options import OFF, Signal, meant, parse_signal
from slurm_robust.util.text import did_you_mean, some_of

_EARLY_S = 60
"""Slurm may send a signal this much earlier than asked."""


def _missing(facts: Facts, name: str) -> str:
    """Return what to say of an option that was not given."""
    if facts.option(name) is not None:
        return ""
    line = known(facts.options, "sbatch's options").off.get(name)
    return f"the job does not ask for --{name}" + (f" (line {line} is a comment)" if line else "")


def _requeue(facts: Facts) -> str:
    if not facts.config.slurm.requeue:
        return ""
    if facts.job is not None:
        return "" if facts.job.requeue else "Slurm may not requeue the job"
    given = facts.option("requeue")
    if given == OFF:
        return "the job asks for --no-requeue"
    if given is not None or facts.number("JobRequeue"):
        return ""
    return "the job does not ask for --requeue, and JobRequeue is 0"


def _expedite(facts: Facts) -> str:
    allowed = "enable_expedited_requeue" in facts.words("SlurmctldParameters")
    given = facts.option("requeue") or ""
    if not allowed or given.startswith("expedite") or given == OFF:
        return ""
    return "the site allows --requeue=expedite, and the job does not ask for it"


def _signal(facts: Facts) -> Signal:
    return known(parse_signal(known(facts.option("signal"), "--signal")), "a readable --signal")


def _signal_elsewhere(facts: Facts) -> str:
    signal = _signal(facts)
    if signal.to_batch and signal.name == "USR1":
        return ""
    return f"--signal={facts.option('signal')} sends no USR1 to the batch script"


def _signal_late(facts: Facts) -> str:
    timings = facts.config.timings
    have, need = _signal(facts).before_s, timings.checkpoint_s + leaving_s(timings)
    if have >= need:
        return ""
    return f"--signal comes {have} s before the time limit, and the job may need {need:.0f} s to leave"


def _limit_short(facts: Facts) -> str:
    limit = known(known(facts.job, "the job").time_limit_s, "the job's time limit")
    warned = limit - _signal(facts).before_s - _EARLY_S
    first = facts.config.detect.first_step_s
    if warned >= first:
        return ""
    return f"of the time limit of {limit:.0f} s, --signal may leave {max(0.0, warned):.0f} s for training"


def _nodes_pinned(facts: Facts) -> str:
    if facts.job is not None and facts.job.required_nodes:
        return f"the job asks for nodes by name ({len(facts.job.required_nodes)} of them)"
    return "the job asks for nodes by name (--nodelist)" if facts.option("nodelist") is not None else ""


def _memory_default(facts: Facts) -> str:
    asked = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if facts.option(name) is not None]
    if asked or not any("memory" in word for word in facts.words("SelectTypeParameters")):
        return ""
    return "the job does not ask for memory (--mem)"


def _code_in_place(facts: Facts) -> str:
    if not facts.config.code.releases:
        return "code.releases is false"
    why = known(facts.uncopied, "the code")
    return f"no copy of the code can be taken: {why}" if why else ""


def _likely(facts: Facts) -> list[tuple[str, list[str]]]:
    """Return words that are no option of sbatch, with the options that they may be misspelt for."""
    unknown = known(facts.options, "sbatch's options").unknown
    return [(word, likely) for word in unknown if (likely := meant(word))]


def _misspelt(facts: Facts) -> str:
    found = (f"unknown option {word}; {did_you_mean(likely)}" for word, likely in _likely(facts))
    return " ".join(found)


def _unknown(facts: Facts) -> str:
    unknown = [word for word in known(facts.options, "sbatch's options").unknown if not meant(word)]
    return f"sbatch itself has no option {', '.join(unknown)}" if unknown else ""


def _local_output(facts: Facts) -> str:
    found = (
        f"--{name}={facts.option(name)}" for name in ("output", "error") if is_local(facts.option(name) or "")
    )
    return next(found, "")


RULES = (
    bad(
        name="job.misspelt_option",
        needs=("options",),
        why="sbatch refuses the script",
        fix="correct it",
        source="sbatch(1); Slurm's src/common/slurm_opt.c, 22.05 to 26.05",
        judge=_misspelt,
        exactly=lambda facts: f"write {', '.join(likely for _, (likely, *_) in _likely(facts))}",
    ),
    note(
        name="job.local_output",
        needs=("options",),
        why="each node has this folder for itself: the log stays on the first node, and a requeued job "
        "begins another one elsewhere",
        fix="name a file on shared storage",
        source="sbatch(1) --output",
        judge=_local_output,
    ),
    note(
        name="job.code_in_place",
        why="ranks read the code in its place: a restart runs what is there by then, even if it is half "
        "edited, and srobust update cannot change it",
        fix="move the code to a folder of its own, name its folders in code.paths, or exclude what is no "
        "code with a .srobustignore; and leave code.releases on",
        source="docs/updates.md, Releases",
        judge=_code_in_place,
    ),
    note(
        name="job.unknown_option",
        needs=("options",),
        why="sbatch refuses the script, unless the option is one of a SPANK plugin or of a Slurm after 26.05",
        fix="correct it, unless sbatch --help names it on this site",
        source="sbatch(1); Slurm's src/common/slurm_opt.c, 22.05 to 26.05",
        judge=_unknown,
    ),
    note(
        name="job.late_option",
        needs=("options",),
        why="sbatch ignores it: the job does not get what it asks for",
        fix="move it above the first command",
        source="sbatch(1), DESCRIPTION",
        judge=lambda facts: (
            f"#SBATCH below the first command: line {some_of([*map(str, late)])}"
            if (late := known(facts.options, "sbatch's options").late)
            else ""
        ),
    ),
    note(
        name="job.near_option",
        needs=("options",),
        why="sbatch reads only lines that begin with #SBATCH, in capitals and without a blank: the job does "
        "not get what it asks for",
        fix="write #SBATCH, or ##SBATCH for an option that is not wanted",
        source="sbatch(1), DESCRIPTION; Slurm's src/sbatch/opt.c",
        judge=lambda facts: (
            f"looks like #SBATCH and is a comment: line {some_of([*map(str, near)])}"
            if (near := known(facts.options, "sbatch's options").near)
            else ""
        ),
    ),
    bad(
        name="job.no_kill",
        needs=("options",),
        why="the loss of one node ends all of the job: no spare can take over, and a requeue follows after "
        "SlurmdTimeout",
        fix="submit with --no-kill",
        sbatch="--no-kill",
        source="sbatch(1) --no-kill; measured on Slurm 22.05",
        judge=lambda facts: _missing(facts, "no-kill"),
    ),
    bad(
        name="job.requeue",
        why="the job ends when its allocation cannot be saved or its time is up",
        fix="submit with --requeue",
        sbatch="--requeue",
        source="sbatch(1) --requeue; slurm.conf(5) JobRequeue",
        judge=_requeue,
    ),
    note(
        name="job.expedite",
        needs=("options", "slurm"),
        why="a requeue takes seconds longer, and minutes after the loss of a node",
        fix="submit with --requeue=expedite",
        sbatch="--requeue=expedite",
        source="sbatch(1) --requeue; measured on Slurm 26.05: 0.2 to 0.7 s instead of 6, or 121",
        judge=_expedite,
    ),
    bad(
        name="job.signal",
        needs=("options",),
        why="at its time limit the job ends for good, without a checkpoint of its last steps",
        fix="submit with --signal=B:USR1@120",
        sbatch="--signal=B:USR1@120",
        source="sbatch(1) --signal",
        judge=lambda facts: _missing(facts, "signal"),
    ),
    bad(
        name="job.exec",
        needs=("hears",),
        why="Slurm signals the shell of the batch script, which ends by USR1 and passes nothing on: near its "
        "time limit the job ends without a checkpoint of its last steps, and is not requeued",
        fix="write exec directly before srobust run, without pipe, & or another program in between",
        source="sbatch(1) --signal; measured on Slurm 22.05",
        judge=lambda facts: (
            ""
            if facts.hears
            else "srobust run does not take the place of the script's shell, and no trap passes USR1 on to it"
        ),
    ),
    bad(
        name="job.signal_target",
        needs=("options",),
        why="srobust run is the batch script, listens for USR1, and hears nothing before its time limit",
        fix="submit with --signal=B:USR1@120",
        sbatch="--signal=B:USR1@120",
        source="sbatch(1) --signal; measured on Slurm 22.05",
        judge=_signal_elsewhere,
    ),
    bad(
        name="job.signal_time",
        needs=("options",),
        why="Slurm ends the job while its newest checkpoint is being written to storage",
        fix="submit with --signal=B:USR1@120, or lower timings.checkpoint_s",
        source="sbatch(1) --signal; docs/configuration.md, timings",
        judge=_signal_late,
    ),
    note(
        name="job.time_limit",
        needs=("job", "options"),
        why="a run with a slow first step (detect.first_step_s) ends without a new step; three such runs end "
        "the job",
        fix="submit with a longer --time, or a shorter time in --signal",
        source="sbatch(1) --signal (up to 60 s early); docs/configuration.md, detect.first_step_s",
        judge=_limit_short,
    ),
    bad(
        name="job.nodelist",
        why="after the loss of one of them the requeued job waits for ever (ReqNodeNotAvail)",
        fix="submit without --nodelist; --constraint or --partition choose a kind of node",
        source="measured on Slurm 22.05",
        judge=_nodes_pinned,
    ),
    note(
        name="job.open_mode",
        needs=("options",),
        why="each requeue empties the job's log, and with it the report of what led to it",
        fix="submit with --open-mode=append",
        sbatch="--open-mode=append",
        source="sbatch(1) --open-mode; slurm.conf(5) JobFileAppend",
        judge=lambda facts: (
            "the job does not ask for --open-mode=append"
            if not (facts.option("open-mode") or "").startswith("a") and not facts.number("JobFileAppend")
            else ""
        ),
    ),
    bad(
        name="job.mem_update",
        needs=("options",),
        why="Slurm lowers the limit to what is used after a while, when not all snapshots may be there yet, "
        "and the kernel then kills ranks",
        fix="submit without --mem-update",
        source="sbatch(1) --mem-update (from 26.05 on)",
        judge=lambda facts: "the job asks for --mem-update" if facts.option("mem-update") is not None else "",
    ),
    note(
        name="job.mem",
        needs=("options",),
        why="the job gets the site's default, which may leave no room for snapshots in memory",
        fix="submit with --mem=0, for all memory of each node",
        sbatch="--mem=0",
        source="sbatch(1) --mem; slurm.conf(5) DefMemPerNode, SelectTypeParameters",
        judge=_memory_default,
    ),
)
