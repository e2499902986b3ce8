"""The agent's decisions: lists of stimuli in, lists of instructions out."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.agent.launcher import Gone, LauncherMessage, LoadOver
from slurm_robust.agent.state import LAUNCHER_PROVEN_S, LAUNCHER_STARTS, AgentState
from slurm_robust.agent.stimuli import (
    EndAgent,
    EndRehearsal,
    EndWorker,
    EpochSeen,
    ForgetRecords,
    GpusReported,
    Instruction,
    ReadTail,
    RehearsalOver,
    ReleaseTried,
    RenewPort,
    SendHeartbeat,
    StartLauncher,
    SweepGroups,
    TailRead,
    TermCame,
    Ticked,
    WatchGpus,
)
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.standby import Rehearsal, RehearsalState
from slurm_robust.policy.leaving import STAY_LEAST_S
from slurm_robust.wire.messages import (
    Launch,
    Load,
    Order,
    Phase,
    Rehearse,
    RequestCheckpoint,
    Save,
    Shutdown,
    Stay,
    Stop,
    Tried,
    TryRelease,
)
from slurm_robust.worker.spawning import Exited, Fatal, Ready, Spawned, SpawnFailed
from tests.builders import specs


class Machine:
    """A state machine with a clock that the test turns, and two ranks with pids 100 + rank."""

    def __init__(self, *, ready: bool = True, kill_wait_s: float = 5.0, gpus: bool = False) -> None:
        self.state = AgentState(kill_wait_s=kill_wait_s, waits_for_gpus=lambda: gpus)
        self.now = 1000.0
        if ready:
            self.say(Ready(import_s=1.0))

    def order(self, order: Order) -> list[Instruction]:
        return self.state.handle(order, self.now)

    def say(self, message: LauncherMessage) -> list[Instruction]:
        return self.state.handle(message, self.now)

    def gpus(self, held: str) -> list[Instruction]:
        return self.state.handle(GpusReported(held=held), self.now)

    def tick(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.state.handle(Ticked(), self.now)

    def spawned(self, rank: int, generation: int = 1) -> list[Instruction]:
        return self.say(Spawned(generation=generation, rank=rank, pid=pid_of(rank, generation)))

    def exited(
        self, rank: int, generation: int = 1, *, code: int | None = None, signal: int | None = None
    ) -> list[Instruction]:
        return self.say(
            Exited(
                generation=generation,
                rank=rank,
                pid=pid_of(rank, generation),
                ended=self.now,
                code=code,
                signal=signal,
            )
        )

    def run(self, generation: int = 1) -> None:
        """Bring the generation up."""
        self.order(launch(generation))
        self.spawned(0, generation)
        self.spawned(1, generation)
        assert self.state.phase is Phase.RUNNING


def running(*, kill_wait_s: float = 5.0, gpus: bool = False) -> Machine:
    """Return a machine whose first generation runs."""
    machine = Machine(kill_wait_s=kill_wait_s, gpus=gpus)
    machine.run()
    return machine


def pid_of(rank: int, generation: int = 1) -> int:
    return 100 * generation + rank


def launch(generation: int = 1, epoch: int = 1, slot: int = 0) -> Launch:
    return specs.launch(
        epoch=epoch,
        generation=generation,
        ranks=(0, 1),
        world_size=2,
        slot=slot,
        master_addr="n1",
        master_port=5,
    )


def stop(generation: int = 1, grace_s: float = 3.0, epoch: int = 1) -> Stop:
    return Stop(epoch=epoch, generation=generation, grace_s=grace_s)


BEAT = SendHeartbeat()


def test_a_launch_spawns_and_the_rendezvous_nodes_port_is_renewed() -> None:
    m = Machine()
    order = launch()
    assert m.order(order) == [ForgetRecords(), order, RenewPort(), BEAT]
    assert (m.state.phase, m.state.generation) == (Phase.STARTING, 1)
    assert m.spawned(0) == []
    m.now += 0.25
    assert m.spawned(1) == [BEAT]
    assert m.state.phase is Phase.RUNNING
    assert m.state.timings["launch"] == 0.25


def test_other_nodes_keep_their_port() -> None:
    assert RenewPort() not in Machine().order(launch(slot=1))


def test_a_launch_before_the_imports_are_done_waits_for_them() -> None:
    m = Machine(ready=False)
    order = launch()
    assert m.order(order) == [ForgetRecords(), BEAT]
    assert m.state.phase is Phase.STARTING
    assert order in m.say(Ready(import_s=1.0, notes=("n",)))
    assert m.state.new_notes == ["n"]


def test_a_stop_before_the_imports_are_done_takes_the_launch_back() -> None:
    m = Machine(ready=False)
    m.order(launch())
    assert m.order(stop()) == [BEAT]
    assert (m.state.phase, m.state.generation) == (Phase.IDLE, 1)
    assert m.say(Ready(import_s=1.0)) == [BEAT]


def test_the_same_launch_or_a_rehearsal_beside_workers_does_nothing() -> None:
    for order in (launch(), rehearse()):
        assert running().order(order) == []


def test_a_launch_of_a_stopped_generation_is_refused() -> None:
    """The order was overtaken by the stop."""
    m = Machine()
    m.order(stop(3))
    assert m.order(launch(3)) == []
    assert m.order(launch(2)) == []
    assert m.order(launch(4)) != []


def test_a_newer_launch_kills_older_workers_first() -> None:
    m = running()
    assert m.order(launch(2)) == [EndWorker(pid=100, kill=True), EndWorker(pid=101, kill=True), BEAT]
    assert (m.state.phase, m.state.generation) == (Phase.STOPPING, 1)
    m.exited(0, signal=9)
    done = m.exited(1, signal=9)
    assert done[:2] == [SweepGroups(), ForgetRecords()]
    assert launch(2) in done
    assert m.state.generation == 2
    assert m.state.workers.exits(m.now) == ()


def test_stop_asks_first_and_kills_when_the_grace_is_over() -> None:
    m = running()
    assert m.order(stop(grace_s=3.0)) == [EndWorker(pid=100), EndWorker(pid=101), BEAT]
    assert m.state.phase is Phase.STOPPING
    assert m.state.deadline == m.now + 3.0
    m.now += 1.0
    assert m.exited(0, signal=15) == [BEAT]
    assert m.tick(2.0) == [EndWorker(pid=101, kill=True)]
    m.now += 0.5
    assert m.exited(1, signal=9) == [SweepGroups(), BEAT]
    assert m.state.phase is Phase.ENDED
    assert m.state.deadline is None
    assert m.state.timings["stop"] == 3.5


def test_a_repeated_stop_changes_nothing_but_may_shorten_the_grace() -> None:
    m = running()
    m.order(stop(grace_s=30.0))
    assert m.order(stop(grace_s=30.0)) == []
    m.order(stop(grace_s=1.0))
    assert m.state.deadline == m.now + 1.0


def test_a_stop_while_the_forks_are_on_their_way_reaches_them() -> None:
    m = Machine()
    m.order(launch())
    m.order(stop())
    assert m.spawned(0) == [EndWorker(pid=100)]
    m.tick(3.0)
    assert m.spawned(1) == [EndWorker(pid=101, kill=True)]


def test_a_stop_of_a_generation_that_never_was_here_is_done_at_once() -> None:
    """A node that was lost and came back must be able to say that nothing runs."""
    m = Machine()
    assert BEAT in m.order(stop(7))
    assert (m.state.phase, m.state.generation) == (Phase.IDLE, 7)


def test_a_stop_of_an_older_generation_leaves_the_newer_alone() -> None:
    m = Machine()
    m.run(2)
    assert m.order(stop(1)) == []
    assert m.state.phase is Phase.RUNNING


def test_a_stop_of_ended_workers_sweeps_what_they_left() -> None:
    m = running()
    m.exited(0, code=0)
    m.exited(1, code=0)
    assert m.order(stop()) == [SweepGroups(), BEAT]
    assert len(m.state.workers.exits(m.now)) == 2


def test_what_survives_kill_is_reported() -> None:
    m = running()
    m.order(stop())
    m.tick(3.0)
    assert m.tick(5.0) == [BEAT]
    assert "unkillable: rank 0 (pid 100), rank 1 (pid 101)" in m.state.new_notes[-1]
    assert m.state.phase is Phase.STOPPING
    m.exited(0, signal=9)
    m.exited(1, signal=9)
    assert m.state.phase is Phase.ENDED


def test_an_exit_is_told_at_once_and_its_last_lines_follow() -> None:
    m = running()
    assert m.exited(1, signal=11) == [BEAT, ReadTail(generation=1, rank=1)]
    assert m.state.phase is Phase.RUNNING
    tail = TailRead(generation=1, rank=1, lines=("Segmentation fault",), quiet_s=8.0)
    assert m.state.handle(tail, m.now) == [BEAT]
    (exit,) = m.state.workers.exits(m.now + 2.0)
    assert (exit.rank, exit.signal, exit.age_s, exit.tail) == (1, 11, 2.0, ("Segmentation fault",))
    assert exit.quiet_s == 8.0


def test_memory_room_or_a_port_that_was_lacking_is_told_of_whom_we_did_not_end_ourselves() -> None:
    m = running()
    for rank in (0, 1):
        pid = pid_of(rank, 1)
        m.say(
            Exited(
                generation=1,
                rank=rank,
                pid=pid,
                ended=m.now,
                signal=9,
                oom="out of memory",
                taken="by somebody",
                full="/dev/shm",
            )
        )
        m.order(Stop(epoch=1, generation=1, grace_s=1.0))
    assert [exit.oom for exit in m.state.workers.exits(m.now)] == ["out of memory", ""]
    assert [exit.taken for exit in m.state.workers.exits(m.now)] == ["by somebody", ""]
    assert [exit.full for exit in m.state.workers.exits(m.now)] == ["/dev/shm", ""]


def test_a_tail_of_another_generation_is_dropped() -> None:
    m = running()
    m.exited(1, signal=11)
    assert m.state.handle(TailRead(generation=9, rank=1, lines=("x",)), m.now) == []


def test_when_all_ranks_end_by_themselves_the_generation_has_ended() -> None:
    m = running()
    assert m.exited(0, code=0) == [BEAT]
    assert m.exited(1, code=0) == [BEAT]
    assert m.state.phase is Phase.ENDED


def test_orders_of_a_lower_epoch_are_void() -> None:
    m = Machine()
    m.order(launch(1, epoch=3))
    assert m.order(launch(2, epoch=2)) == []
    assert m.order(stop(1, epoch=1)) == []
    m.state.handle(EpochSeen(epoch=5), m.now)
    assert m.order(stop(1, epoch=4)) == []
    assert m.order(stop(1, epoch=5)) != []


def test_a_checkpoint_is_asked_of_the_running_generation_only() -> None:
    m = running()
    asked = RequestCheckpoint(epoch=1, generation=1, step=7)
    assert m.order(asked) == [asked]
    assert m.order(RequestCheckpoint(epoch=1, generation=2, step=7)) == []
    m.order(stop())
    assert m.order(asked) == []


def test_a_fork_that_fails_is_an_exit_with_the_reason() -> None:
    m = Machine()
    m.order(launch())
    m.spawned(0)
    assert BEAT in m.say(SpawnFailed(generation=1, rank=1, reason="no memory", full="/dev/shm"))
    assert m.state.phase is Phase.RUNNING
    (exit,) = m.state.workers.exits(m.now)
    assert exit.failed
    assert exit.error is not None
    assert (exit.error.message, exit.error.full) == ("no memory", "/dev/shm")


def test_a_zygote_that_dies_takes_its_workers_and_is_started_again() -> None:
    m = Machine()
    m.order(launch())
    m.spawned(0)
    done = m.say(Gone(reason="the zygote ended"))
    assert done == [EndWorker(pid=100, kill=True), StartLauncher(), BEAT]
    assert m.state.phase is Phase.ENDED
    first, second = m.state.workers.exits(m.now)
    assert first.signal == 9
    assert second.error is not None
    assert second.error.message == "the zygote ended"
    assert not m.state.ready


def test_a_zygote_that_dies_again_and_again_is_given_up() -> None:
    m = Machine(ready=False)
    for _ in range(LAUNCHER_STARTS - 1):
        assert StartLauncher() in m.say(Gone(reason="the zygote ended by signal SIGSEGV"))
    assert m.say(Gone(reason="the zygote ended by signal SIGSEGV")) == [BEAT]
    assert "SIGSEGV, 3 times" in m.state.fatal
    assert m.order(launch()) == []


def test_a_zygote_that_lived_long_is_counted_anew() -> None:
    m = Machine()
    for _ in range(10):
        m.now += LAUNCHER_PROVEN_S + 1
        assert StartLauncher() in m.say(Gone(reason="gone"))
        m.say(Ready(import_s=1.0))


def test_what_cannot_be_prepared_is_not_tried_again() -> None:
    m = Machine(ready=False)
    assert m.say(Fatal(reason="no module named x")) == [BEAT]
    assert StartLauncher() not in m.say(Gone(reason="the zygote ended by exit code 0"))
    assert m.state.fatal == "no module named x"


def test_shutdown_stops_the_workers_and_ends() -> None:
    m = running()
    assert m.order(Shutdown(epoch=1, grace_s=2.0)) == [EndWorker(pid=100), EndWorker(pid=101), BEAT]
    m.exited(0, signal=15)
    assert m.exited(1, signal=15) == [SweepGroups(), BEAT, EndAgent(), BEAT]


def test_shutdown_without_workers_ends_at_once() -> None:
    assert Machine().order(Shutdown(epoch=1, grace_s=2.0)) == [BEAT, EndAgent()]


def test_copies_stay_unless_the_controller_says_that_the_job_is_over() -> None:
    assert Machine().order(Shutdown(epoch=1, grace_s=2.0, keep_copies=True)) == [
        BEAT,
        EndAgent(keep_copies=True),
    ]
    m = Machine()
    assert m.state.handle(TermCame(grace_s=1.0), m.now) == [BEAT, BEAT]
    assert m.tick(STAY_LEAST_S) == [BEAT, EndAgent(keep_copies=True)]
    m = running()
    m.state.handle(TermCame(grace_s=1.0), m.now)
    m.order(Shutdown(epoch=1, grace_s=1.0))
    m.exited(0, signal=15)
    assert EndAgent(keep_copies=False) in m.exited(1, signal=15)


def test_no_worker_is_started_after_a_shutdown() -> None:
    m = running()
    m.order(Shutdown(epoch=1, grace_s=2.0))
    assert m.order(launch(2)) == []


def test_shutdown_does_not_wait_for_the_unkillable() -> None:
    m = running()
    m.order(Shutdown(epoch=1, grace_s=2.0))
    m.tick(2.0)
    assert m.tick(5.0) == [BEAT, EndAgent()]


def test_term_of_slurm_is_passed_on_with_its_own_grace() -> None:
    m = running()
    done = m.state.handle(TermCame(grace_s=10.0), m.now)
    assert done == [EndWorker(pid=100), EndWorker(pid=101), BEAT, BEAT]
    assert m.state.termed
    assert m.tick(10.0) == [EndWorker(pid=100, kill=True), EndWorker(pid=101, kill=True)]


def test_an_agent_that_slurm_tells_to_end_stays_as_long_as_it_is_needed() -> None:
    m = running()
    m.state.handle(TermCame(grace_s=10.0), m.now)
    m.order(Stay(epoch=1, for_s=8.0))
    m.exited(0, signal=15)
    assert EndAgent(keep_copies=True) not in m.exited(1, signal=15)
    save = Save(epoch=1, checkpoint=CheckpointId(step=3, generation=1), ranks=(0, 1), world_size=2)
    assert m.order(save) == [save]
    m.order(Stay(epoch=1, for_s=8.0))
    assert m.tick(7.0) == []
    assert m.tick(1.5) == [BEAT, EndAgent(keep_copies=True)]


def test_copies_are_saved_while_workers_live() -> None:
    """Those of an earlier generation, of which workers refill no image that is being read."""
    m = running()
    save = Save(epoch=1, checkpoint=CheckpointId(step=3, generation=0), ranks=(0, 1), world_size=2)
    assert m.order(save) == [save]


def test_an_agent_that_is_shut_down_does_not_stay() -> None:
    m = Machine()
    m.order(Stay(epoch=1, for_s=8.0))
    m.state.handle(TermCame(grace_s=10.0), m.now)
    assert m.order(Shutdown(epoch=1, grace_s=2.0)) == [BEAT, EndAgent(keep_copies=False)]


def test_only_workers_that_got_kill_and_are_still_there_are_dying() -> None:
    m = running()
    assert m.state.killed == ()
    m.order(stop())
    assert m.state.killed == ()
    m.tick(3.0)
    assert m.state.killed == (100, 101)
    m.exited(0, signal=9)
    assert m.state.killed == (101,)
    m.exited(1, signal=9)
    assert m.state.killed == ()


def test_an_agent_that_ends_waits_shortly_for_what_it_has_killed_before() -> None:
    m = running(kill_wait_s=180.0)
    m.order(stop())
    m.tick(3.0)
    m.tick(20.0)
    m.order(Shutdown(epoch=1, grace_s=2.0))
    assert m.state.deadline == m.now + 5.0
    assert m.tick(5.0) == [BEAT, EndAgent()]


HELD = "gpu0 71000 MiB"


def ended() -> Machine:
    """Workers on a node with GPUs, which were killed and are gone."""
    m = running(gpus=True)
    m.order(stop(grace_s=0.0))
    m.exited(0, signal=9)
    assert WatchGpus(workers=(100, 101)) in m.exited(1, signal=9)
    assert m.state.phase is Phase.ENDED
    return m


def test_other_workers_start_when_the_gpus_are_free() -> None:
    m = ended()
    order = launch(2)
    assert order not in m.order(order)
    assert (m.state.phase, m.state.generation) == (Phase.FREEING, 2)
    m.now += 10.0
    assert m.gpus(HELD) == []
    m.now += 2.0
    assert order in m.gpus("")
    assert m.state.phase is Phase.STARTING
    assert m.state.timings["gpus"] == 12.0


def test_gpus_that_are_free_before_the_next_launch_hold_up_nobody() -> None:
    m = ended()
    assert m.gpus("") == []
    order = launch(2)
    assert order in m.order(order)


def test_gpus_that_are_never_free_are_waited_for_a_minute() -> None:
    m = ended()
    order = launch(2)
    m.order(order)
    m.gpus(HELD)
    assert m.state.deadline == m.now + 60.0
    assert m.tick(59.0) == []
    assert order in m.tick(1.0)
    assert m.state.new_notes == ["GPUs are not free 60 s after their workers ended: gpu0 71000 MiB"]


def test_a_launcher_that_is_not_ready_and_gpus_that_are_not_free_are_both_waited_for() -> None:
    m = ended()
    m.say(Gone(reason="x"))
    order = launch(2)
    m.order(order)
    assert order not in m.say(Ready(import_s=1.0))
    assert order in m.gpus("")


def test_a_launch_that_waits_for_gpus_can_be_stopped() -> None:
    m = ended()
    m.order(launch(2))
    assert BEAT in m.order(stop(2))
    assert m.state.phase is Phase.IDLE
    assert m.gpus("") == []


def test_without_gpus_nothing_is_waited_for() -> None:
    m = running()
    m.order(stop(grace_s=0.0))
    m.exited(0, signal=9)
    m.exited(1, signal=9)
    order = launch(2)
    assert order in m.order(order)
    assert "gpus" not in m.state.timings


# -- rehearsals -------------------------------------------------------------------------------------


def rehearse(number: int = 1) -> Rehearse:
    return Rehearse(epoch=1, number=number, slots=2, steps=2, limit_s=60.0)


def over(state: RehearsalState = RehearsalState.PASSED, number: int = 1) -> RehearsalOver:
    return RehearsalOver(rehearsal=Rehearsal(number=number, state=state, took_s=3.0), pid=77)


def test_a_rehearsal_begins_once_for_each_number() -> None:
    machine = Machine()
    assert machine.order(rehearse()) == [rehearse(), SendHeartbeat()]
    assert machine.order(rehearse()) == []
    assert machine.state.handle(over(), machine.now) == [SendHeartbeat()]
    assert machine.state.rehearsal == over().rehearsal
    assert machine.order(rehearse()) == []
    assert machine.order(rehearse(2))[0] == rehearse(2)


def test_a_launch_ends_the_rehearsal_first() -> None:
    machine = Machine()
    machine.order(rehearse())
    done = machine.order(launch(1))
    assert done[0] == EndRehearsal(watch_gpus=False)
    assert launch(1) in done
    assert machine.state.rehearsal == Rehearsal(number=1, state=RehearsalState.ENDED)
    assert machine.state.handle(over(), machine.now) == []  # it is too late


def test_workers_wait_until_the_gpus_of_the_rehearsal_are_free() -> None:
    machine = Machine(gpus=True)
    machine.order(rehearse())
    assert machine.order(launch(1))[0] == EndRehearsal(watch_gpus=True)
    assert machine.state.phase is Phase.FREEING
    assert launch(1) in machine.gpus("")


def test_gpus_of_a_rehearsal_that_ended_by_itself_are_waited_for_as_well() -> None:
    machine = Machine(gpus=True)
    machine.order(rehearse())
    assert WatchGpus(workers=(77,)) in machine.state.handle(over(), machine.now)


def test_the_end_of_the_agent_ends_the_rehearsal() -> None:
    machine = Machine(gpus=True)
    machine.order(rehearse())
    done = machine.order(Shutdown(epoch=1, grace_s=1.0))
    assert done[0] == EndRehearsal(watch_gpus=False)
    assert isinstance(done[-1], EndAgent)


def test_a_rehearsal_beside_workers_takes_no_gpu_and_ends_when_they_are_stopped() -> None:
    machine = running(gpus=True)
    beside = structs.replace(rehearse(), beside=True, release="3f2a91c04b7d")
    assert machine.order(beside) == [beside, SendHeartbeat()]
    assert machine.state.handle(over(), machine.now) == [SendHeartbeat()]
    assert machine.state.rehearsal == structs.replace(over().rehearsal, release="3f2a91c04b7d")
    machine.order(structs.replace(beside, number=2))
    assert machine.order(stop())[0] == EndRehearsal(watch_gpus=False)


# -- releases that are tried ------------------------------------------------------------------------


def test_a_release_is_tried_once_and_only_the_newest_answer_counts() -> None:
    machine = running()
    trial = TryRelease(epoch=1, number=2, release="3f2a91c04b7d", limit_s=60.0)
    assert machine.order(trial) == [trial]
    assert machine.order(trial) == machine.order(structs.replace(trial, number=1)) == []
    machine.state.handle(ReleaseTried(tried=Tried(number=1, ok=False)), machine.now)
    assert machine.state.tried is None
    assert machine.state.handle(ReleaseTried(tried=Tried(number=2, ok=True)), machine.now) == [BEAT]
    assert machine.state.tried == Tried(number=2, ok=True)


# -- modules to be imported before the next start ---------------------------------------------------


def test_modules_are_loaded_once_and_a_late_order_cannot_undo_a_newer_one() -> None:
    machine = Machine()
    newer = Load(epoch=1, number=2, modules=("a", "b"))
    assert machine.order(newer) == [newer]
    assert machine.order(newer) == []
    assert machine.order(Load(epoch=1, number=1, modules=("a",))) == []
    assert machine.state.loaded == 0
    assert machine.say(LoadOver(number=2, notes=("'b' is left out",))) == [SendHeartbeat()]
    assert machine.state.loaded == 2
    assert machine.state.new_notes == ["'b' is left out"]
    machine.say(LoadOver(number=1))
    assert machine.state.loaded == 2


def test_an_order_whose_zygote_has_ended_is_over_and_the_next_one_is_taken() -> None:
    """The controller waits for no answer that cannot come."""
    machine = Machine()
    machine.order(Load(epoch=1, number=1, modules=("a",)))
    machine.say(Gone(reason="the zygote ended by signal SIGSEGV"))
    assert machine.state.loaded == 1
    machine.say(Ready(import_s=1.0))
    again = Load(epoch=1, number=2, modules=("a", "b"))
    assert machine.order(again) == [again]


def test_modules_are_loaded_while_workers_live_but_not_before_the_zygote_is_ready_or_at_the_end() -> None:
    order = Load(epoch=1, number=1, modules=("a",))
    assert Machine(ready=False).order(order) == []
    assert running().order(order) == [order]
    ending = Machine()
    ending.order(Shutdown(epoch=1, grace_s=0.0))
    assert ending.order(order) == []


def test_a_controller_that_was_replaced_has_nothing_loaded() -> None:
    machine = Machine()
    machine.order(Stop(epoch=5, generation=1, grace_s=0.0))
    assert machine.order(Load(epoch=4, number=1, modules=("a",))) == []
