"""Ranks and hosts that messages name: those that did not come, not those that print it."""

from __future__ import annotations

import pytest

from slurm_robust.analysis.logs import first_causes, of_all, read
from slurm_robust.analysis.logs.named import hosts_gone, hosts_in, own_host, ranks_in

WAIT = "[rank{}]: RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.7]:1089"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (
            "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([5])",
            (5,),
        ),
        ("CheckpointException ranks:dict_keys([0, 17])", (0, 17)),
        (
            "Timed out waiting on barrier on rank 0, for key prefix: /x (world_size=4, missing_ranks=[2])",
            (2,),
        ),
        ("Ranks 1, 2 failed to pass monitoredBarrier in 120000 ms", (1, 2)),
        ("[Rank 0]: Rank 7 failed to pass monitoredBarrier in 2000 ms", (7,)),
        ("Rank(s) 3, 7 did not reach the barrier", (3, 7)),
        ("barrier timed out waiting for ranks: 5", (5,)),
        ("timed out waiting for ranks 5 and 6", (5, 6)),
        ("   - [7] joined but didn't finish collective #12 (count from 1)", (7,)),
        ("     [1] finished collective #2, but didn't join collective #3 (count from 1)", (1,)),
        ("[5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d", (0,)),
        ("   /job:jax_worker/replica:0/task:3", (3,)),
        ("6: [allreduce.grad_0]", (6,)),
        ("grads/layer_3 [missing ranks: 2, 5]", (2, 5)),
        ("no heartbeat from rank 12", (12,)),
        ("rank 4 has died", (4,)),
        ("rank 4: step 7 loss 2", ()),
        ("[rank3]: CUDA out of memory", ()),
        ("", ()),
    ],
)
def test_ranks_that_a_message_names(text: str, ranks: tuple[int, ...]) -> None:
    assert ranks_in(text) == ranks


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node id: 6f and address: 10.0.4.9 and node name: 10.0.4.9 has been marked dead", ("10.0.4.9",)),
        ("Got completion from peer 10.0.4.31<51880> with status=12", ("10.0.4.31",)),
        ("Connection closed by remote peer node07.cluster<48122>", ("node07.cluster",)),
        ("Connection closed by peer [10.0.4.7]:51044", ("10.0.4.7",)),
        ("Connect to 10.1.0.9<4711> failed : Connection refused", ("10.1.0.9",)),
        ("CUDA out of memory", ()),
    ],
)
def test_hosts_that_a_message_names(text: str, hosts: tuple[str, ...]) -> None:
    assert hosts_in(text) == hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("srun: error: Node failure on gpu004", ("gpu004",)),
        ("srun: error: Node failure on gpu[004-005]", ("gpu004", "gpu005")),
        ("srun: error: Node failure on a1,b2", ("a1", "b2")),
        ("slurmctld: error: Nodes n[1-3] not responding, setting DOWN", ("n1", "n2", "n3")),
        ("slurmctld: error: Node n7 not responding", ("n7",)),
        ("slurmctld: Killing JobId=7 on failed node n3", ("n3",)),
        ("slurmctld: Killing JobId=7 on DOWN node n3.cluster", ("n3.cluster",)),
        ("slurmctld: Requeuing JobId=7 due to failure of node n3", ("n3",)),
        ("slurmctld: Node n9 unexpectedly rebooted boot_time=1", ("n9",)),
        (
            "The node with node id: 6f and address: 10.0.4.9 and node name: x has been marked dead",
            ("10.0.4.9",),
        ),
        ("STEP 7.0 ON gpu014 CANCELLED AT 2026-10-05T02:14:09 DUE TO NODE FAILURE", ()),
        ("Connection closed by remote peer node07.cluster<48122>", ()),
        ("the node is down", ()),
    ],
)
def test_hosts_that_have_failed(text: str, hosts: tuple[str, ...]) -> None:
    assert hosts_gone(text) == hosts


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("n1:771:900 [0] NCCL INFO Using network IB", "n1"),
        ("step 7\n[2026-11-09 02:10:29] g1.site:2210:3060 [7] transport/net.cc:1 NCCL WARN x", "g1.site"),
        ("step 7\n[rank0]: n1-a:771:900 [0] NCCL INFO x", "n1-a"),
        ("step 7\nn1:771:900 [0] NCCL INFO x", "n1"),
        ("slurmstepd-gpu014: error: *** JOB 7 ***", "gpu014"),
        ("srun: error: Node failure on n3", ""),
        ("step 7 loss 2.1", ""),
    ],
)
def test_the_host_that_wrote_a_log(text: str, host: str) -> None:
    assert own_host(text) == host


GONE = "srun: error: Node failure on n3"
ON = "{}:771:900 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer n3<41120>"
STALE = "OSError: [Errno 116] Stale file handle: '/ckpt/__2_0.distcp'"
TOLD = "CheckpointException ranks:dict_keys([2])"


@pytest.mark.parametrize(
    ("texts", "roots"),
    [
        ({0: GONE, 1: WAIT, 2: "step 7 loss 2.1"}, (2,)),  # who says nothing, never who prints it
        ({0: f"{GONE}\n{ON.format('n1')}", 1: ON.format("n2"), 2: ON.format("n3")}, (2,)),
        ({0: f"{ON.format('n3')}\n{GONE}", 1: ON.format("n2")}, (0,)),  # on that node itself
        ({"n1": GONE, "n3": "STEP 7.0 ON n3 CANCELLED AT 2026-10-05T02:14:09"}, ("n3",)),
        ({0: GONE, 1: ON.format("n2")}, ()),
        ({0: GONE, 1: "torch.OutOfMemoryError: CUDA out of memory"}, (1,)),
        ({0: "[rank2]: ValueError: shapes differ", 1: WAIT, 2: "ValueError: shapes differ"}, (2,)),
        ({0: "[rank0]: ValueError: shapes differ", 1: WAIT, 2: WAIT}, (0,)),
        ({8: "[default0]: ValueError: shapes differ", 0: WAIT}, (8,)),  # its rank on the node
        ({0: f"{TOLD}\n{STALE}", 1: TOLD, 2: STALE}, (2,)),
        ({0: f"{TOLD}\nTraceback (most recent call last): (RANK 2)\n{STALE}", 1: WAIT, 2: WAIT}, (2,)),
        ({0: f"[rank0]: {TOLD}\n[rank0]: {STALE}", 1: f"[rank1]: {TOLD}", 2: f"[rank2]: {STALE}"}, (2,)),
        ({0: f"Traceback of rank 2\n{STALE}", 1: WAIT, 2: "step 7"}, (2,)),
        ({0: f"{STALE}\n{TOLD}", 1: WAIT, 2: WAIT}, (0,)),  # its own comes first
        ({"slurm-7.err": "[rank6]: ValueError: shapes differ"}, ("slurm-7.err",)),
        ({0: "[rank8]: ValueError: shapes differ", 1: WAIT}, (0,)),  # the log of a node, not of a rank
    ],
)
def test_who_tells_of_another_is_not_the_root(texts: dict[object, str], roots: tuple[object, ...]) -> None:
    assert first_causes({rank: read(text) for rank, text in texts.items()}) == roots


@pytest.mark.parametrize(
    ("texts", "roots"),
    [
        ({0: WAIT, 1: WAIT, 2: "step 7 loss 2.1"}, (2,)),  # the one that says nothing
        ({0: WAIT, 1: WAIT, 2: ""}, (2,)),
        ({0: WAIT, 1: WAIT, 2: "step 7", 3: "step 7"}, (2, 3)),
        ({0: WAIT, 1: "step 7", 2: "step 7"}, (0,)),  # who of the many is it?
        ({0: WAIT, 1: WAIT, 2: WAIT}, ()),  # all alike
        ({0: WAIT, 1: WAIT, 2: "CUDA out of memory", 3: "step 7"}, (2,)),  # a cause of its own
        ({0: "Rank 2 failed to pass monitoredBarrier in 9 ms", 1: "step 7", 2: "step 7"}, (2,)),
        (
            {0: "CheckpointException ranks:dict_keys([0, 1])\ntimeout", 1: WAIT},
            (0,),
        ),  # all are named: that tells nothing
        ({0: "CUDA out of memory", 1: "CUDA error: uncorrectable ECC error"}, (1,)),  # devices first
    ],
)
def test_who_is_named_or_silent_is_the_root(texts: dict[int, str], roots: tuple[int, ...]) -> None:
    readings = {rank: read(text) for rank, text in texts.items()}
    assert first_causes(readings) == roots
    assert of_all(readings, roots).tier is not None  # of a silent root those that wait for it speak
