"""No run begins at step 0 while a checkpoint is there, or was on storage; with the reason for each one."""

from __future__ import annotations

from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.policy.beginning import ANEW, Beginning, May, beginning
from tests.builders.checkpoints import ref


def layout(world: int, **sizes: int) -> ParallelLayout:
    return ParallelLayout.fit(world, 1, {"tp": 1, "cp": 1, "ep": 1, "pp": 1, **sizes}, "tp-cp-ep-dp-pp")


def found(
    sealed: dict[int, int],
    *,
    stored: CheckpointId | None = None,
    listed: tuple[CheckpointId, ...] = (),
    layouts: dict[int, str] | None = None,
    now: ParallelLayout | None = None,
) -> Beginning:
    return beginning(sealed, stored, listed, layouts or {}, now or layout(4), job_id=4711, place="/shared/c")


def test_without_any_checkpoint_a_training_begins() -> None:
    assert found({}) == Beginning(may=May.BEGIN)
    assert found({}, listed=(ref(1, 7),)).may is May.BEGIN, (
        "what no end of a generation has sealed does not count"
    )


def test_what_only_memory_had_is_gone_with_its_nodes() -> None:
    one = found({1: 24, 2: 30})
    assert one.may is May.BEGIN
    assert one.reasons == (
        "gen-0002/step-00000030 is in no memory of these nodes and not on storage",
        "gen-0001/step-00000024 is in no memory of these nodes and not on storage",
    )


def test_storage_that_lost_what_it_had_ends_the_run() -> None:
    for sealed in ({1: 24}, {}, {1: 20}):  # the end of the generation may not have been sealed any more
        one = found(sealed, stored=ref(1, 24))
        assert (one.may, one.code) == (May.UNUSABLE, ExitCode.CHECKPOINTS)
        assert "gen-0001/step-00000024 was on storage (/shared/c) and is not there any more" in one.reasons
        assert one.fix.startswith("bring the folder back (/shared/c), or name another one")
        assert "then requeue the job, or submit it again" in one.fix
        assert "--fresh" in one.fix
        assert "no checkpoint can be restored: gen-0001" in one.text


def test_a_run_that_waits_goes_on_by_itself() -> None:
    one = found({1: 24}, stored=ref(1, 24))
    assert one.waits.startswith(one.why)
    assert one.waits.endswith(
        "; bring the folder back (/shared/c): this run waits, asks storage every 30 s, and then goes on by "
        "itself"
    )


def test_a_step_that_is_there_but_cannot_be_used_is_named_with_its_fix() -> None:
    on_storage = found({1: 24}, stored=ref(1, 24), listed=(ref(1, 24),))
    assert on_storage.reasons == ("gen-0001/step-00000024 is on storage, but cannot be used",)
    assert "the folder" not in on_storage.fix
    assert "srobust checkpoint verify 4711" in on_storage.fix
    in_memory = beginning({1: 24}, None, (), {}, layout(4), job_id=4711, place="", in_memory=(ref(1, 24),))
    assert in_memory.may is May.UNUSABLE
    assert in_memory.fix.startswith("make storage writable; then requeue")


def test_sizes_that_do_not_fit_are_named() -> None:
    one = found({1: 24}, stored=ref(1, 24), listed=(ref(1, 24),), layouts={1: layout(4, tp=2).identity()})
    assert (one.may, one.code) == (May.REFUSE, ExitCode.CONFIG)
    assert one.reasons == (
        "gen-0001/step-00000024 is on storage, but it was taken with tp 2, and this run has tp 1",
    )
    assert one.fix == f"set parallel.tp: 2; {ANEW}"


def test_a_long_history_is_told_in_a_few_lines() -> None:
    one = found({generation: 10 * generation for generation in range(1, 40)})
    assert len(one.reasons) == 6
    assert one.reasons[-1] == "and 34 older ones"
