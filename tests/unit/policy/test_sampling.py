"""When a rank for which the others wait is given time, on paper: its stacks and its processor time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import Collective, Localisation, RankStacks
from slurm_robust.policy.sampling import HANG_EVERY_S, HANG_SAMPLES, PATIENCE_EVERY_S, Sampling
from slurm_robust.testing.sim.training import doing, waiting

LAYOUT = ParallelLayout(nproc_per_node=1, sizes=(("dp", 2),))
TOOK_S = 0.1
COMPUTES, SLEEPS = "compute@train.py", "sleep@train.py"
WAITS = "all_reduce@torch/distributed/distributed_c10d.py"
Moment = tuple[float, str, float]
"""When a sample is taken, where rank 1 is, and the processor time that it has used."""


def own(place: str, cpu_s: float) -> RankStacks:
    """What rank 1 does while rank 0 waits for it."""
    stacks = doing(1, "n2", place, "main@train.py")
    (worker,) = stacks.processes
    return structs.replace(stacks, processes=(structs.replace(worker, cpu_s=cpu_s),))


def sampled(moments: Sequence[Moment], phase_s: float = 1800.0) -> Iterator[Localisation | float]:
    """What follows each sample of a hang; times are seconds since it was noticed."""
    sampling = Sampling(Fault(symptom=Symptom.HANG, detail="no step for 16 s", detect_s=16.0), -16.0, phase_s)
    for at, place, cpu_s in moments:
        stacks = (waiting(0, "n1"), own(place, cpu_s))
        yield sampling.add(stacks, (), LAYOUT, begun=at, now=at + TOOK_S)


def last(moments: Sequence[Moment], phase_s: float = 1800.0) -> Localisation | float:
    """What follows the last sample, if all before it asked for another."""
    *before, found = sampled(moments, phase_s)
    assert all(isinstance(answer, float) for answer in before), before
    return found


def test_a_rank_that_has_computed_until_the_last_sample_but_one_may_pause() -> None:
    """Steps have become five times as long: 20 s of computing, then 5 s of waiting for something."""
    moments = ((0.0, COMPUTES, 16.0), (2.1, COMPUTES, 18.1), (4.2, COMPUTES, 20.1), (6.4, SLEEPS, 20.2))
    assert last(moments) == 6.4 + TOOK_S + PATIENCE_EVERY_S


def test_a_rank_that_computed_and_then_does_nothing_for_ten_seconds_hangs() -> None:
    computed = ((0.0, COMPUTES, 16.0), (2.1, COMPUTES, 18.1), (4.2, SLEEPS, 18.2))
    evaluated = ((0.0, COMPUTES, 16.0), (2.1, "layer1@model.py", 18.1), (12.2, COMPUTES, 26.0))
    for moments in (computed, evaluated):
        at, _, cpu_s = moments[-1]
        assert last(moments) == at + TOOK_S + PATIENCE_EVERY_S
        found = last((*moments, (at + TOOK_S + PATIENCE_EVERY_S, SLEEPS, cpu_s)))
        assert isinstance(found, Localisation)
        assert found.ranks == (1,)


def test_a_rank_that_does_nothing_hangs_by_the_second_sample() -> None:
    for places in ((SLEEPS, SLEEPS), (COMPUTES, SLEEPS)):
        found = last([(2.1 * number, place, 16.0) for number, place in enumerate(places)])
        assert isinstance(found, Localisation), places
        assert found.ranks == (1,)


def test_a_rank_that_spins_at_one_place_hangs_by_the_last_sample() -> None:
    moments = [(2.1 * number, COMPUTES, 16.0 + 2.1 * number) for number in range(HANG_SAMPLES)]
    answers = list(sampled(moments))
    assert answers[:-1] == [at + TOOK_S + HANG_EVERY_S for at, _, _ in moments[:-1]]
    assert isinstance(answers[-1], Localisation)
    assert answers[-1].ranks == (1,)


def test_a_rank_that_computes_at_one_place_after_another_has_time_until_the_phase_ends() -> None:
    moments = [(10.0 * number, f"layer{number}@model.py", 8.0 * number) for number in range(9)]
    answers = list(sampled(moments, phase_s=100.0))
    assert all(isinstance(answer, float) for answer in answers)
    late = (90.0, "layer9@model.py", 72.0)
    assert isinstance(last((*moments, late), phase_s=100.0), Localisation)


def test_a_computation_that_is_over_is_followed_by_a_step_that_has_as_long_as_any() -> None:
    computes = [(10.0 * number, f"layer{number}@model.py", 8.0 * number) for number in range(5)]
    waits = [(50.0 + 2.1 * number, WAITS, 33.0) for number in range(9)]
    found = last([*computes, *waits])
    assert isinstance(found, Localisation)
    assert found.ranks == ()
    late = 40.0 + TOOK_S + PATIENCE_EVERY_S + 16.0
    asks = list(sampled([*computes, *waits[:-1]]))[len(computes) :]
    assert asks[0] == 50.0 + TOOK_S + PATIENCE_EVERY_S, "it may last long, and samples cost something"
    assert (asks[4], asks[-1]) == (late, waits[-2][0] + TOOK_S + HANG_EVERY_S)


def test_the_few_that_answer_and_have_nothing_open_are_asked_for_their_calls_in_libraries() -> None:
    """Two nodes whose hosts all seem to compute; their groups are too large to be blamed, rank 5 is not."""
    layout = ParallelLayout(nproc_per_node=8, sizes=(("dp", 16),))
    waits = Collective(
        group="0", sequence=9, operation="nccl2:all_reduce", state="scheduled", ranks=tuple(range(16))
    )

    def sample(native: bool) -> list[RankStacks]:
        found = [structs.replace(doing(n, f"n{n // 8}", COMPUTES), collectives=(waits,)) for n in range(16)]
        gemm = ("at::native::mm@libtorch_cuda.so",) if native else ()
        found[5] = structs.replace(
            doing(5, "n0", *gemm, COMPUTES, state="R"), idle=("nccl2:0",), native=native
        )
        return found

    sampling = Sampling(Fault(symptom=Symptom.HANG, detail="no step", detect_s=16.0), -16.0, 1800.0)
    answers = []
    for number in range(3):
        at = number * 2.0
        answers.append(sampling.add(sample(bool(sampling.native)), (), layout, begun=at, now=at))
        assert sampling.native == (5,)
    assert isinstance(answers[-1], Localisation)
    assert (answers[-1].ranks, answers[-1].exact) == ((5,), True)
    assert isinstance(answers[1], float), "one sample is none"
