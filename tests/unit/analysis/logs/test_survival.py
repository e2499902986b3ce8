"""Failures that the same log takes back: recovery, steps that go on, reports, an orderly end."""

from __future__ import annotations

from typing import Final

import pytest

from slurm_robust.analysis.logs import classify, read
from slurm_robust.model.incident import Remedy

PORT = "n1:1:2 [0] transport/net_ib/common.cc:9 (f) NCCL WARN NET/IB : {}:1 async fatal event: port error"
RETRY = (
    "n1:1:2 [4] transport/net_ib/p2p.cc:688 (f) NCCL WARN NET/IB: Got completion from peer 10.0.4.7<4> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  hca mlx5_3"
)
RESET = "[rank0]:[E1102 socket.cpp:1028] [c10d] The client socket has timed out after 900000ms"
WANDB = "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.wandb.ai', port=443): Read timed out."
HBM = "[rank0]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
LUSTRE = "LustreError: 11-0: {}: operation ost_statfs to node 10.4.0.3@o2ib failed: rc = -107"
KILLED = "E1102 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 0"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\n'
STEPS: Final = "step 110 | loss 1.92\nstep 120 | loss 1.91"
RESTORED = "n1:1:2 [4] NCCL INFO NET/IB: f: Restored QP 0 on device 1 (comm=0x7f, devIndex=1, qp_num=4711)"


@pytest.mark.parametrize(
    "failure", [PORT.format("mlx5_3"), RETRY, RESET, WANDB, OOM, LUSTRE.format("s-OST0001")]
)
@pytest.mark.parametrize(
    "steps",
    [
        STEPS,
        "Epoch 3 | iter 110 | loss 1\nEpoch 3 | iter 111 | loss 1",
        " 45%|####5     | 723/1602 [2:12:45<2:59:53]\n 45%|####5     | 724/1602 [2:12:46<2:59:53]",
        " iteration     9026/  159576 | lm loss: 7.0\n iteration     9027/  159576 | lm loss: 7.0",
        "[rank0] step 110 | loss 1\n[rank1] step 110 | loss 1\n[rank0] step 111 | loss 1",
    ],
    ids=["step", "epoch", "bar", "iteration", "ranks"],
)
def test_steps_that_go_on_take_back_what_a_training_can_survive(failure: str, steps: str) -> None:
    assert classify(failure).action is not Remedy.NONE
    assert classify(f"{failure}\n{steps}").action is Remedy.NONE
    assert classify(f"{steps}\n{failure}").action is not Remedy.NONE


@pytest.mark.parametrize(
    "log",
    [
        f"{HBM}\n{STEPS}",
        f"{KILLED}\n{STEPS}",
        f"Memory cgroup out of memory: Killed process 3 (python)\n{STEPS}",
        f"{TRACEBACK}{OOM}\n{STEPS}",  # what a process had printed before, written at its end
        f"{RETRY}\nstep 100 | loss 1",
        f"{RETRY}\nstep 100 | loss 1\nstep 100 | loss 1",
        f"step 200 | loss 1\n{RETRY}\nstep 110 | loss 1\nstep 120 | loss 1",  # begun again
        f"{RETRY}\n{KILLED}\n{STEPS}",
        f"{STEPS}\n{RETRY}",
        f"loss is nan at step 7\n{STEPS}",
    ],
    ids=[
        "memory",
        "killed",
        "oom killer",
        "flushed",
        "one",
        "same",
        "again",
        "after the end",
        "before",
        "nan",
    ],
)
def test_what_steps_do_not_take_back(log: str) -> None:
    assert classify(log).action is not Remedy.NONE


def test_a_failure_after_the_recovery_stands() -> None:
    assert classify(f"{RETRY}\n{RESTORED}").action is Remedy.NONE
    assert classify(f"{RETRY}\n{RESTORED}\n{RETRY}").symptom == "infiniband_error"
    assert classify(f"{RETRY}\n{STEPS}\nValueError: bad").symptom == "code_error"


@pytest.mark.parametrize(
    ("failure", "recovery", "taken_back"),
    [
        (
            PORT.format("mlx5_3"),
            "NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port active(9)",
            True,
        ),
        (
            PORT.format("mlx5_3"),
            "NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)",
            False,
        ),
        (PORT.format("mlx5_3"), RESTORED.replace("Restored QP", "failed to restore QP"), False),
        (LUSTRE.format("s-OST0001"), "Lustre: s-OST0001: Connection restored to 10.4.0.3@o2ib", True),
        (LUSTRE.format("s-OST0001"), "Lustre: s-OST0002: Connection restored to 10.4.0.9@o2ib", False),
        (HBM, "Connection restored", False),
        (OOM, "batch size reduced to 4, continuing", True),
        (OOM, RESTORED, False),
        (WANDB, "wandb: Network connection restored", True),
    ],
)
def test_a_recovery_takes_back_what_it_speaks_of(failure: str, recovery: str, taken_back: bool) -> None:
    assert (classify(f"{failure}\n{recovery}").action is Remedy.NONE) is taken_back
    assert classify(f"{recovery}\n{failure}").action is not Remedy.NONE


UNCORRECTED = "{2}[Hardware Error]:  Error 0, type: fatal"
REPORT = [
    "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
    "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
    "{1}[Hardware Error]:   section_type: memory error",
]


def test_all_lines_of_one_report_belong_together() -> None:
    for shift in range(3):
        text = "\n".join((*REPORT[shift:], *REPORT[:shift]))
        assert classify(text, "kernel").action is Remedy.NONE
    assert classify("\n".join((*REPORT, UNCORRECTED)), "kernel").action is Remedy.EVICT
    assert classify("\n".join((UNCORRECTED, *REPORT)), "kernel").action is Remedy.EVICT


@pytest.mark.parametrize(
    "end", ["Training completed after 20000 steps", "`Trainer.fit` stopped: `max_steps=200` reached."]
)
def test_what_the_end_of_processes_causes_is_nothing_after_an_orderly_end(end: str) -> None:
    alarm = "terminate called without an active exception\nFatal Python error: Aborted"
    assert classify(alarm).action is not Remedy.NONE
    assert classify(f"{end}\n{alarm}").action is Remedy.NONE
    assert classify(f"{alarm}\n{end}").action is not Remedy.NONE
    assert classify(f"{end}\n{HBM}\n{alarm}").symptom == "gpu_memory_error"
    assert classify(f"Training not completed: it failed\n{alarm}").action is not Remedy.NONE


def test_what_was_survived_stays_visible() -> None:
    found = read(f"{RETRY}\n{RESTORED}\n{STEPS}")
    assert [line for _, line in found.context] == [RETRY]
    assert found.advice.startswith("survived")


def needs(to: str, *, gpu: str = "1b", before: str = "[ 17.5] ") -> str:
    changed = "GPU recovery action changed from 0x9 (Other) to"
    return f"{before}NVRM: Xid (PCI:0000:{gpu}:00): 154, {changed} {to}"


RESET_NEEDED, NOTHING = "0x1 (GPU Reset Required)", "0x0 (None)"


@pytest.mark.parametrize(
    ("lines", "stands"),
    [
        ([needs(RESET_NEEDED), needs(NOTHING)], False),
        ([needs(RESET_NEEDED), needs("0x2 (Node Reboot Required)"), needs(NOTHING)], False),
        ([needs(RESET_NEEDED, before="[  1.25] "), needs(NOTHING, before="[123456.5] ")], False),
        (
            [
                needs(RESET_NEEDED, before="Nov 29 07:00:01 n1 kernel: "),
                needs(NOTHING, before="Nov 29 08:00:01 n1 kernel: "),
            ],
            False,
        ),
        ([needs(NOTHING), needs(RESET_NEEDED)], True),
        ([needs(RESET_NEEDED), needs(NOTHING), needs(RESET_NEEDED)], True),
        ([needs(RESET_NEEDED), needs(NOTHING, gpu="3b")], True),
        ([needs(RESET_NEEDED), needs(NOTHING)[:-9]], True),
        ([needs(RESET_NEEDED), needs(NOTHING)[:-11]], True),
        (
            [
                needs(RESET_NEEDED, before="Nov 29 07:00:01 n1 kernel: "),
                needs(NOTHING, before="Nov 29 07:00:01 n2 kernel: "),
            ],
            True,
        ),
    ],
    ids=[
        "none after", "two before", "seconds", "dates", "order", "again", "another GPU",
        "cut before the number", "cut before the action", "another host",
    ],
)  # fmt: skip
def test_a_gpu_that_needs_nothing_any_more_takes_back_what_it_needed(lines: list[str], stands: bool) -> None:
    found = classify("\n".join(lines), "kernel")
    assert (found.action is Remedy.EVICT) is stands
    assert (found.symptom == "healthy_noise") is not stands


def test_a_gpu_that_needs_nothing_any_more_takes_back_no_other_error() -> None:
    gsp = (
        "NVRM: Xid (PCI:0000:1b:00): 119, pid=77, Timeout after 6s of waiting for RPC response from GPU0 GSP!"
    )
    found = classify("\n".join([gsp, needs(RESET_NEEDED), needs(NOTHING)]), "kernel")
    assert found == classify("\n".join([gsp, needs(NOTHING)]), "kernel")
    assert found.symptom == "driver_error"
