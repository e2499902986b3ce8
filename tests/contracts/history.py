"""The contract of SlurmClient about the past and about jobs that are waited for.

Beside :mod:`tests.contracts.slurm`.
"""

from __future__ import annotations

from slurm_robust.slurm.requests import SubmitRequest
from tests.contracts.slurm import World, gone, running_job

HOUR_S = 3600.0


class HistoryContract:
    """The tests. Each docstring is the promise."""

    def test_a_drain_is_an_event_until_the_node_is_resumed(self, world: World) -> None:
        """With its words, whatever characters they hold; open while it stands."""
        if not world.has_accounting:
            return
        name = world.client.nodes()[-1].name
        reason = f"contract: a|b {world.clock.monotonic()}"

        def own() -> list[float | None]:
            events = world.operator.node_events(HOUR_S)
            return [e.end_time for e in events if (e.node, e.reason) == (name, reason)]

        world.operator.drain([name], reason)
        world.wait(lambda: own() == [None], "slurmdbd has the beginning of the drain")
        world.operator.resume([name])
        world.wait(lambda: bool(own()) and None not in own(), "slurmdbd has the end of the drain")
        found = [e for e in world.operator.node_events(HOUR_S) if e.reason == reason]
        assert {e.state for e in found} <= {"DRAIN", "DRAIN+IDLE", "IDLE"}
        assert all(e.user and e.start_time is not None for e in found)
        world.wait(lambda: world.client.nodes([name])[0].usable, "the node is usable again")

    def test_a_job_that_is_waited_for(self, world: World) -> None:
        """It has ended when its exit code is told, and its node is free for the next one."""
        name = world.client.nodes()[0].name
        request = SubmitRequest(command=("true",), nodes=1, required_nodes=(name,), time_limit_s=60.0)
        for _ in range(2):
            assert world.operator.run(request, 60.0).exit_code == 0
        world.wait(lambda: "IDLE" in world.client.nodes([name])[0].states, "the node is idle")

    def test_a_run_is_in_the_list_of_all_runs(self, world: World) -> None:
        """With its state and nodes, once it has ended."""
        if not world.has_accounting:
            return
        with running_job(world, 2) as job:
            world.client.cancel(job.job_id)
            world.wait(lambda: gone(world, job.job_id), "the job has gone")
            mine = (job.job_id, "CANCELLED", job.nodes)
            world.wait(
                lambda: mine in [(r.job_id, r.state, r.nodes) for r in world.operator.runs(HOUR_S)],
                "slurmdbd has the run",
            )
