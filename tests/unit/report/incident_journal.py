"""A made-up job with six kinds of incidents, and what was saved about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_robust.controller.journal import Journal
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.findings import Alert, Outcome, Party, Suggestion
from slurm_robust.model.incident import TestResult
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.stacks import (
    Collective,
    Frame,
    Localisation,
    ProcessKind,
    ProcessStacks,
    RankStacks,
    ThreadStack,
)
from tests.builders import incidents
from tests.builders.events import allocation_taken, run_started

BEGIN = 1767261600.0  # 2026-01-01 10:00:00 UTC
JOB = 4711
NPROC = 2


def write(directory: JobDirectory, events: list[ev.AnyEvent]) -> None:
    directory.path.mkdir(parents=True, exist_ok=True)
    journal = Journal(directory.journal)
    for event in events:
        journal.append(event)
    journal.close()


def opened(t: float, number: int, symptom: inc.Symptom, detail: str, detect_s: float) -> ev.IncidentOpened:
    return incidents.opened(
        t=BEGIN + t,
        incident=number,
        generation=number,
        symptom=symptom,
        detail=detail,
        detect_s=detect_s,
        best_step=100 * number,
    )


def ended(t: float, generation: int, *exits: inc.NodeExit) -> ev.GenerationEnded:
    return ev.GenerationEnded(
        t=BEGIN + t, generation=generation, reason="", exits=exits,
        sealed_step=100 * generation - 1,
    )  # fmt: skip


def decided(
    t: float, number: int, verdict: inc.Verdict, how: str, *actions: inc.Action, localise_s: float = 0.4
) -> ev.Decided:
    return ev.Decided(
        t=BEGIN + t, incident=number, actions=actions, reason=f"{verdict.reason}: {how}",
        verdict=verdict, localise_s=localise_s,
    )  # fmt: skip


def goes_on(t: float, number: int, slots: tuple[str, ...]) -> Iterator[ev.AnyEvent]:
    """The next generation begins two steps back, and gets further a second later."""
    yield ev.GenerationLaunched(
        t=BEGIN + t, generation=number + 1, slots=slots, master="n1:29500",
        restore=CheckpointId(generation=number, step=100 * number - 2), tiers={"memory": 6, "peer": 2},
    )  # fmt: skip
    yield ev.FirstStep(t=BEGIN + t + 0.8, generation=number + 1, step=100 * number - 1, reported=True)
    yield ev.ProgressMade(t=BEGIN + t + 1.8, generation=number + 1, step=100 * number + 1, reported=True)
    yield ev.IncidentClosed(
        t=BEGIN + t + 1.8, incident=number, generation=number + 1, step=100 * number + 1, recover_s=2.5
    )
    yield progress(t + 900, number + 1)


def progress(t: float, generation: int) -> ev.ProgressMade:
    return ev.ProgressMade(t=BEGIN + t, generation=generation, step=100 * generation, reported=True, loss=2.5)


def node(signature: str, rung: int, confidence: float, reason: str) -> inc.Verdict:
    return incidents.verdict(
        rung=rung,
        blame=inc.Blame.NODE,
        signature=inc.Signature.of_nodes(inc.FaultKind.NODE, (signature,)),
        reason=reason,
        suspects=(signature,),
        confidence=confidence,
    )


def swap(bad: str, standby: str) -> tuple[inc.Action, ...]:
    return inc.Evict(node=bad), inc.Replace(node=bad, standby=standby), inc.Restart()


def start() -> list[ev.AnyEvent]:
    slots, spares = ("n1", "n2", "n3", "n4"), ("n5", "n6", "n7")
    return [
        run_started(
            t=BEGIN, job_id=JOB, cwd="/home/alice", slots=4, spares=3, nproc_per_node=NPROC, version="0.1.0"
        ),
        ev.ControllerStarted(t=BEGIN, epoch=1, host="n1", pid=7, port=4000),
        allocation_taken(slots, spares, t=BEGIN),
        ev.GenerationLaunched(t=BEGIN + 2, generation=1, slots=slots, master="n1:29500"),
        ev.FirstStep(t=BEGIN + 9, generation=1, step=0, reported=True),
        progress(900, 1),
    ]


def rank_killed(t: float = 1000) -> list[ev.AnyEvent]:
    verdict = incidents.verdict(
        rung=6,
        blame=inc.Blame.NOBODY,
        signature=inc.Signature(kind=inc.FaultKind.EXIT, key="SIGKILL"),
        confidence=0.5,
        reason="rank 3: SIGKILL on n2, the cause is unknown",
    )
    killed = WorkerExit(rank=3, signal=9, age_s=0.3, tail=("step 99 loss 2.51", "step 100 loss 2.50"))
    told = WorkerError(type="RuntimeError", message="Connection closed by peer [10.0.0.2]:4", file="train.py")
    lonely = WorkerExit(rank=0, code=1, age_s=0.1, error=told)
    text = "drill: kill-rank on rank 3 (n2, generation 1)"
    return [
        ev.Noted(t=BEGIN + t - 1, text=text, node="n2"),
        opened(t, 1, inc.Symptom.WORKER_EXIT, "rank 3 on n2: SIGKILL", 0.1),
        ended(t + 0.3, 1, inc.NodeExit(node="n2", exit=killed), inc.NodeExit(node="n1", exit=lonely)),
        decided(t + 0.4, 1, verdict, "restart in place", inc.Restart()),
        *goes_on(t + 0.6, 1, ("n1", "n2", "n3", "n4")),
    ]


def node_lost(t: float = 2000) -> list[ev.AnyEvent]:
    verdict = node("n2", 1, 1.0, "n2 does not respond")
    return [
        opened(t, 2, inc.Symptom.NODE_LOST, "n2 silent for 4.2 s", 4.2),
        ended(t + 0.3, 2),
        decided(t + 0.4, 2, verdict, "n5 takes the slot of n2", *swap("n2", "n5")),
        ev.NodeEvicted(t=BEGIN + t + 0.4, node="n2", reason="n2 does not respond", incident=2),
        *goes_on(t + 0.6, 2, ("n1", "n5", "n3", "n4")),
        ev.NodeReturned(t=BEGIN + t + 600, node="n2"),
    ]


def hang(t: float = 3000) -> list[ev.AnyEvent]:
    verdict = node("n3", 4, 0.9, f"no step for 15.3 s (3 x 5.1 s); {PLACED.reason}")
    return [
        opened(t, 3, inc.Symptom.HANG, "no step for 15.3 s (3 x 5.1 s)", 15.3),
        ev.Unanswered(
            t=BEGIN + t + 2.0, incident=3, asked="stacks", nodes=("n4",), why="no answer within 6 s"
        ),
        ended(t + 2.1, 3),
        decided(t + 2.2, 3, verdict, "n6 takes the slot of n3", *swap("n3", "n6"), localise_s=2.2),
        *goes_on(t + 3, 3, ("n1", "n5", "n6", "n4")),
    ]


def not_a_number(t: float = 4000) -> list[ev.AnyEvent]:
    symptom = inc.Symptom.NON_FINITE
    unknown = incidents.verdict(
        rung=5,
        blame=inc.Blame.NOBODY,
        signature=inc.Signature(kind=inc.FaultKind.SYMPTOM, key=symptom.value),
        confidence=0.3,
        reason="loss is nan at step 400",
    )
    found = node("n4", 5, 0.9, "loss is nan at step 400; tests: n4 computes other bits than 3 others")
    results = [TestResult(test="gpu", node=n, outcome=Outcome.PASS, took_s=8.1) for n in NOW]
    results += [
        TestResult(
            test="bitwise", node=n, outcome=Outcome.FAIL if n == "n4" else Outcome.PASS,
            text="other bits than 3 nodes" if n == "n4" else "", value=digest, limit="5e1c", took_s=21.5,
        )
        for n, digest in zip(NOW, ("5e1c", "5e1c", "5e1c", "07aa"), strict=True)
    ]  # fmt: skip
    tested = ev.NodesTested(
        t=BEGIN + t + 31, incident=4, results=tuple(results), suspects=("n4",),
        reason="n4 computes other bits than 3 others", left_out={"intra": "one GPU a node"}, took_s=30.1,
    )  # fmt: skip
    return [
        opened(t, 4, symptom, "loss is nan at step 400", 0.9),
        ended(t + 0.5, 4),
        decided(t + 0.6, 4, unknown, "test the nodes", inc.Diagnose(reason="x", bitwise=True)),
        tested,
        decided(t + 31.1, 4, found, "n7 takes the slot of n4", *swap("n4", "n7"), localise_s=31.1),
        *goes_on(t + 32, 4, ("n1", "n5", "n6", "n7")),
    ]


NOW = ("n1", "n5", "n6", "n4")


def network_alert(t: float = 5000) -> list[ev.AnyEvent]:
    verdict = node("n6", 2, 1.0, "n6: 2 network alerts within 300 s: mlx5_0/1 link down")
    evict = inc.Evict(node="n6")
    requeue = inc.Requeue(exclude=("n2", "n3", "n4", "n6"), reason="1 node to replace, 0 standbys left")
    slots = ("n1", "n5", "n7", "n8")
    return [
        opened(t, 5, inc.Symptom.NETWORK, "n6: 2 network alerts within 300 s: mlx5_0/1 link down", 10.4),
        ended(t + 0.4, 5),
        decided(t + 0.5, 5, verdict, "requeue without n2,n3,n4,n6", evict, requeue),
        ev.RequeueStarted(t=BEGIN + t + 0.6, exclude=requeue.exclude, reason=requeue.reason, failure=True),
        ev.StageDone(t=BEGIN + t + 1.2, what="exclude", ok=True, detail="n[2-4,6] will not be used"),
        ev.ControllerStarted(t=BEGIN + t + 20, epoch=2, host="n1", pid=9, port=4000),
        allocation_taken(slots, t=BEGIN + t + 20, restart_count=1),
        *goes_on(t + 24, 5, slots),
    ]


def gave_up(t: float = 6000) -> list[ev.AnyEvent]:
    place = "ValueError at train.py:88"
    verdict = incidents.verdict(
        rung=3,
        blame=inc.Blame.CODE,
        signature=inc.Signature(kind=inc.FaultKind.EXCEPTION, key=place),
        confidence=0.8,
        reason=f"rank 0 raised {place}: token 50257 is not in the vocabulary",
    )
    error = WorkerError(
        type="ValueError", message="token 50257 is not in the vocabulary", file="train.py", line=88,
        traceback='Traceback (most recent call last):\n  File "train.py", line 88, in batch\n'
        "\x1b[31mValueError: token 50257 is not in the vocabulary\x1b[0m\x1b]0;owned\x07\n",
    )  # fmt: skip
    again = WorkerExit(rank=0, code=1, error=error)
    first = inc.NodeExit(node="n1", exit=again)
    stop = (
        f"{verdict.reason}; '{place}' came 2 times without a new completed step in between (limit: 1 restart)"
    )
    end = inc.GiveUp(code=93, reason=stop)
    return [
        opened(t, 6, inc.Symptom.USER_EXCEPTION, f"rank 0 on n1: {place}", 0.2),
        ended(t + 0.3, 6, first),
        decided(t + 0.4, 6, verdict, "restart in place", inc.Restart()),
        next(goes_on(t + 0.6, 6, ("n1", "n5", "n7", "n8"))),
        ev.SymptomAdded(
            t=BEGIN + t + 2, incident=6, symptom=inc.Symptom.USER_EXCEPTION, detail=f"rank 0 on n1: {place}"
        ),
        ev.GenerationEnded(
            t=BEGIN + t + 2.2, generation=7, reason="", exits=(inc.NodeExit(node="n1", exit=again),)
        ),
        ev.Decided(t=BEGIN + t + 2.3, incident=6, actions=(end,), reason=stop, verdict=verdict),
        ev.StorageWritten(t=BEGIN + t + 4, generation=6, step=599, seconds=1.6),
        ev.RunEnded(t=BEGIN + t + 4.1, code=93, reason=stop),
    ]  # fmt: skip


def whole() -> list[ev.AnyEvent]:
    return [
        *start(), *rank_killed(), *node_lost(), *hang(), *not_a_number(), *network_alert(), *gave_up()
    ]  # fmt: skip


PLACED = Localisation(
    outliers=(4,), ranks=(4, 5), group="tp 4-5", healthy=6, confidence=0.9,
    reason="rank 4 on n3 is in the kernel (D) while 7 ranks wait in all_reduce",
)  # fmt: skip


def stack_of(rank: int, stuck: bool = False) -> RankStacks:
    torch = "/opt/venv/lib/python3.11/site-packages/torch"
    waits = (
        Frame(function="wait", file="/usr/lib/python3.11/threading.py", line=320),
        Frame(function="all_reduce", file=f"{torch}/distributed/distributed_c10d.py", line=2501),
        Frame(function="train_step", file="/home/alice/train.py", line=90),
    )
    computes = (
        Frame(function="ioctl", file="/usr/lib/libc.so.6"),
        Frame(function="linear", file=f"{torch}/nn/modules/linear.py", line=125),
        Frame(function="train_step", file="/home/alice/train.py", line=88),
    )
    frames = computes if stuck else waits
    loader = Frame(function="_worker_loop", file=f"{torch}/utils/data/_utils/worker.py", line=275)
    return RankStacks(
        rank=rank, node=f"n{rank // NPROC + 1}", source="py-spy", took_s=0.4,
        processes=(
            ProcessStacks(
                pid=1000 + rank, kind=ProcessKind.WORKER, state="D" if stuck else "S",
                threads=(ThreadStack(frames=frames, name="MainThread", is_main=True),),
            ),
            ProcessStacks(
                pid=2000 + rank, kind=ProcessKind.LOADER, state="S",
                threads=(ThreadStack(frames=(loader,), name="MainThread", is_main=True),),
            ),
        ),
        collectives=(
            Collective(
                group="dp_0", sequence=411 if stuck else 412, operation="all_reduce",
                state="completed" if stuck else "started", ranks=tuple(range(8)),
            ),
        ),
    )  # fmt: skip


STACKS = [stack_of(rank, stuck=rank == 4) for rank in range(8)]
ALERTS = {
    "n6": [
        Alert(
            number=number, check="net.link", subject="mlx5_0/1", text="link down", blame=Party.FABRIC,
            suggestion=Suggestion.RESET, age_s=age_s, ended_s=ended_s,
        )
        for number, age_s, ended_s in ((1, 212.0, 208.5), (2, 10.4, None))
    ]
}  # fmt: skip


def write_logs(directory: JobDirectory, generation: int, ranks: range, text: str = "") -> None:
    directory.logs(generation).mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        log = directory.worker_log(generation, rank, "err")
        log.write_text(text or f"rank {rank} of generation {generation}: all is well\n")


def bundle_of_all(path: Path) -> JobDirectory:
    """The journal and all folders, as the controller leaves them."""
    from slurm_robust.evidence import bundle

    directory, events = JobDirectory(path), whole()
    write(directory, events)
    for generation in range(1, 8):
        write_logs(directory, generation, range(8))
    bundle.save_stacks(directory, 3, STACKS, PLACED)
    bundle.save_alerts(directory, 5, ALERTS, BEGIN + 5000)
    for number in range(1, 7):
        bundle.save(directory, number, events)
    return directory
