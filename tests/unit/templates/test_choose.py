"""What of a site goes into a batch script, and why."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.slurm.records import Gres, Terms
from slurm_robust.slurm.values import parse_time_limit, time_limit_text
from slurm_robust.templates.choose import CannotChoose, Choice, Wish, choose
from slurm_robust.templates.offer import Offer, Partition, look
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm

CPU = Partition(name="cpu", is_default=True, nodes=40, cpus=64)
GPU = Partition(name="gpu", nodes=12, cpus=96, gpus=8, max_time_s=2 * 86400.0)
SITE = Offer(partitions=(CPU, GPU), accounts=("llm", "vision"))


def chosen(wish: Wish, offer: Offer = SITE, spares: int = 1) -> dict[str, Choice]:
    return {choice.name: choice for choice in choose(wish, offer, spares)}


def test_slurm_tells_what_nodes_in_service_have_and_which_accounts_are_the_users() -> None:
    cluster = FakeCluster(nodes=("n1", "n2", "n3", "n4"), gpus=8)
    cluster.partitions = (
        Terms(name="main", is_default=True, max_time_s=3600.0),
        Terms(name="low", is_up=False),
    )
    cluster.nodes["n3"] = structs.replace(cluster.nodes["n3"], states=frozenset({"IDLE", "DRAIN"}))
    odd = structs.replace(cluster.nodes["n4"], gres=(Gres(name="gpu", type="h200", count=4),))
    cluster.nodes["n4"] = structs.replace(odd, partitions=("low",))
    offer = look(FakeSlurm(cluster), "alice")
    cpus = cluster.nodes["n1"].cpus
    assert offer.partitions == (
        Partition(name="main", is_default=True, max_time_s=3600.0, nodes=2, gpus=8, cpus=cpus),
        Partition(name="low", is_up=False, nodes=1, gpus=4, cpus=cpus),
    )
    assert (offer.accounts, offer.silence) == (("users",), "")


def test_a_slurm_that_does_not_answer_is_told_and_leaves_all_to_the_user() -> None:
    cluster = FakeCluster()
    cluster.unreachable = True
    offer = look(FakeSlurm(cluster), "alice")
    assert offer.silence
    assert {name: choice.value for name, choice in chosen(Wish(), offer).items()} == {
        "nodes": "5", "spares": "1", "partition": "", "account": "", "time": "", "gpus-per-node": "",
    }  # fmt: skip


def test_a_partition_with_gpus_comes_before_a_default_without() -> None:
    found = chosen(Wish())
    assert found["partition"].value == "gpu"
    assert found["partition"].why == (
        "it has GPUs, the default (cpu) has none: 12 nodes in service, each with 96 CPUs and 8 GPUs"
    )
    assert (found["gpus-per-node"].value, found["time"].value) == ("8", "2-00:00:00")
    assert found["account"].why.endswith(": llm or vision")


def test_the_default_partition_is_taken_where_no_node_has_gpus() -> None:
    found = chosen(Wish(), Offer(partitions=(structs.replace(GPU, gpus=0), CPU)))
    assert (found["partition"].value, found["gpus-per-node"].value) == ("cpu", "")
    assert found["time"].value == "7-00:00:00"


def test_a_partition_that_is_down_is_not_chosen() -> None:
    found = chosen(Wish(), Offer(partitions=(CPU, structs.replace(GPU, is_up=False))))
    assert found["partition"].value == "cpu"


def test_a_job_asks_for_no_more_nodes_than_the_partition_has() -> None:
    found = chosen(Wish(), Offer(partitions=(structs.replace(GPU, nodes=3),)))
    assert (found["nodes"].value, found["nodes"].why) == ("3", "all of gpu: 2 train, 1 stands by")


def test_what_a_person_said_is_taken() -> None:
    wish = Wish(nodes=6, spares=2, gpus_per_node=4, partition="gpu", account="llm", time="1-00:00:00")
    found = chosen(wish)
    values = ("6", "2", "4", "gpu", "llm", "1-00:00:00")
    names = ("nodes", "spares", "gpus-per-node", "partition", "account", "time")
    assert tuple(found[name].value for name in names) == values
    assert found["nodes"].why == "as you said: 4 train, 2 stand by"


@pytest.mark.parametrize(
    ("wish", "fix"),
    [
        (Wish(partition="gpuu"), "--partition gpu"),
        (Wish(nodes=2, spares=2), "--nodes counts both: --nodes 3 or more, or fewer --spares"),
        (Wish(time="a week"), "write it as sbatch takes it: --time 7-00:00:00"),
        (Wish(time="UNLIMITED"), "--time 2-00:00:00: the job requeues itself then, and trains on"),
        (Wish(partition="cpu", gpus_per_node=8), "--gpus-per-node 0, or another --partition"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(wish: Wish, fix: str) -> None:
    with pytest.raises(CannotChoose) as refused:
        choose(wish, SITE, 1)
    assert refused.value.fix == fix


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400.0), ("1:30", 90.0), ("04:00:00", 14400.0), ("7-00:00:00", 604800.0), ("1-12", 129600.0),
     ("2-01:30", 178200.0), ("UNLIMITED", None)],
)  # fmt: skip
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: float | None) -> None:
    assert parse_time_limit(text) == seconds
    assert seconds is None or parse_time_limit(time_limit_text(seconds)) == seconds
