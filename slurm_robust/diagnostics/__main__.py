"""``python -m slurm_robust.diagnostics gemm,memory``: this node's part of tests, one line for each.

Every test runs in a process of its own. One that hangs is killed and is a result like any other, so only a
node that cannot even say so is silent.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from slurm_robust.diagnostics.part import (
    Died,
    Measurement,
    NotHere,
    PartAnswer,
    TestPart,
    Wrong,
    died,
    failed,
    unknown,
    without_value,
)
from slurm_robust.diagnostics.plan import BY_NAME, Program
from slurm_robust.model.incident import TestResult
from slurm_robust.util import isolate
from slurm_robust.util.process import die_with_parent

_MIN_S = 2.0
_WITHOUT_TORCH = frozenset({"dcgm", "health", "memory", "storage"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests and print what they find; 0 whatever that is."""
    parser = argparse.ArgumentParser(prog="python -m slurm_robust.diagnostics", allow_abbrev=False)
    parser.add_argument("programs", help=f"names with commas between them, of: {', '.join(BY_NAME)}")
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    parser.add_argument("--groups", default="", help="'ADDRESS=NODE,NODE ...': nodes that run tests together")
    parser.add_argument("--port", type=int, default=0, help="where a group meets, on its first node")
    parser.add_argument("--nccl", type=int, default=0, help="GPUs that groups use on each node")
    parser.add_argument("--gpus", type=int, help="GPUs of this node (default: those of the Slurm step)")
    parser.add_argument("--storage", default="", help="folder to be tested")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for all, once they begin")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if unknown_names := sorted(set(args.programs.split(",")) - BY_NAME.keys()):
        parser.error(f"there is no test {', '.join(unknown_names)}")
    programs = [BY_NAME[name] for name in args.programs.split(",")]
    # As for workers: one thread until a program wants more, so that cores are not fought for.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if any(program.name not in _WITHOUT_TORCH for program in programs):
        try:
            importlib.import_module("torch")  # once, for all children
        except ImportError:
            pass  # said by each program that needs it
    for answer in answers(programs, _part(args), time.monotonic() + args.budget):
        line = msgspec.json.encode(answer) if args.json else _format(answer).encode()
        os.write(sys.stdout.fileno(), line + b"\n")  # immediately, so that srun does not mix it with others
    return 0


def answers(programs: Sequence[Program], part: TestPart, end: float) -> Iterator[PartAnswer]:
    """Run one after the other; each gets its share of the time that is left until ``end`` (monotonic)."""
    for index, program in enumerate(programs):
        left = end - time.monotonic()
        share = program.needs_s / sum(p.needs_s for p in programs[index:])
        yield answer(program, msgspec.structs.replace(part, limit_s=left * share))


def answer(program: Program, part: TestPart) -> PartAnswer:
    """Run one program in a child for ``part.limit_s`` seconds at most."""
    begun = time.monotonic()
    if part.limit_s < _MIN_S:
        return _answer(program, part, unknown("no time was left", measured=False), 0.0)
    task = partial(_child, program.name, part, os.getpid())
    limits = {program.name: part.limit_s}
    reply = isolate.call({program.name: task}, limits, part.limit_s + 1.0)[program.name]
    took_s = time.monotonic() - begun
    if reply.value is None:
        return _answer(program, part, without_value(reply, part.limit_s), took_s)
    found, left_out = msgspec.json.decode(reply.value, type=tuple[Measurement, bool])
    return _answer(program, part, found, took_s, left_out=left_out)


def _child(name: str, part: TestPart, parent: int) -> bytes:
    die_with_parent(parent)
    left_out = False
    try:
        found = importlib.import_module(f"slurm_robust.diagnostics.programs.{name}").run(part)
    except NotHere as reason:
        found, left_out = unknown(str(reason)), True
    except ImportError as error:
        found = unknown(str(error))
    except Wrong as reason:
        found = failed(str(reason))
    except Died as reason:
        found = died(str(reason))
    except Exception as error:  # noqa: BLE001 - whatever a driver or library raises is a result
        first = str(error).strip().partition("\n")[0]
        found = failed(f"{type(error).__name__}: {first}"[:300])
    return msgspec.json.encode((found, left_out))


def _answer(
    program: Program, part: TestPart, found: Measurement, took_s: float, *, left_out: bool = False
) -> PartAnswer:
    fields = msgspec.structs.asdict(found)
    measured = fields.pop("measured")
    # In tests of single nodes no other node takes part.
    peers = part.group if program.pairs else (part.node,)
    result = TestResult(test=program.name, node=part.node, peers=peers, took_s=round(took_s, 2), **fields)
    return PartAnswer(result=result, left_out=left_out, measured=measured)


def _part(args: argparse.Namespace) -> TestPart:
    groups = (text.partition("=") for text in args.groups.split())
    address, group = next(
        ((address, tuple(names.split(","))) for address, _, names in groups if args.node in names.split(",")),
        ("127.0.0.1", (args.node,)),
    )
    return TestPart(
        node=args.node,
        group=group,
        address=address,
        port=args.port,
        gpus=int(os.environ.get("SLURM_GPUS_ON_NODE") or 0) if args.gpus is None else args.gpus,
        gpus_together=args.nccl,
        storage=args.storage,
    )


def _format(answer: PartAnswer) -> str:
    found = answer.result
    status = "left out" if answer.left_out else found.outcome.value
    return f"{found.test} on {found.node}: {status} {found.text or found.value}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
