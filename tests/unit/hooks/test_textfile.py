"""What hooks leave for node_exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.node import Drain, NodeConfig, NodeMetrics, Paths
from slurm_robust.hooks.record import DrainFile, OwnDrain
from slurm_robust.hooks.textfile import publish
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.verdict import Report, conclude

NOW = 1.7e9
REPORT = Report(
    node="n1",
    at=NOW,
    boot_id="b",
    context=CheckContext.PERIODIC,
    findings=(
        Finding(check="gpu.ecc", outcome=Outcome.PASS, subject="gpu0"),
        Finding(check="gpu.ecc", outcome=Outcome.FAIL, subject="gpu1", suggestion=Suggestion.REPLACE),
        Finding(check="clock.offset", outcome=Outcome.UNKNOWN),
    ),
    errors={"x": "KeyError"},
    wall_s=0.25,
)


class Folder:
    def __init__(self, folder: Path, mode: str = "act") -> None:
        self.files = folder / "textfile"
        self.files.mkdir(mode=0o755)
        self.config = NodeConfig(
            drain=Drain(mode="act"),
            metrics=NodeMetrics(textfile_dir=str(self.files)),
            paths=Paths(state=str(folder / "state")),
        )
        self.drain = DrainFile(folder / "state")

    def publish(self, hook: str = "periodic", code: int = 0, *, whole: bool = True) -> str:
        return publish(self.config, hook, conclude(REPORT, self.config, {}), code, whole=whole)

    def lines(self, name: str) -> list[str]:
        text = (self.files / name).read_text()
        return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_periodic_run_tells_the_outcome_of_each_check(folder: Folder) -> None:
    assert folder.publish() == ""
    assert folder.lines("srobust_periodic.prom") == [
        'srobust_node_fit{hook="periodic"} 0',
        f'srobust_node_last_run_timestamp_seconds{{hook="periodic"}} {NOW}',
        'srobust_node_run_duration_seconds{hook="periodic"} 0.25',
        'srobust_node_exit_code{hook="periodic"} 0',
        'srobust_node_check_errors{hook="periodic"} 1',
        'srobust_node_checks_left_out{hook="periodic"} 0',
        'srobust_node_check_findings{check="gpu.ecc",outcome="pass"} 1',
        'srobust_node_check_findings{check="gpu.ecc",outcome="fail"} 1',
        'srobust_node_check_findings{check="gpu.ecc",outcome="unknown"} 0',
        'srobust_node_check_findings{check="clock.offset",outcome="pass"} 0',
        'srobust_node_check_findings{check="clock.offset",outcome="fail"} 0',
        'srobust_node_check_findings{check="clock.offset",outcome="unknown"} 1',
    ]
    assert folder.lines("srobust_node.prom")[1:] == ["srobust_node_drained 0", "srobust_node_drains_1d 0"]
    assert {path.stat().st_mode & 0o777 for path in folder.files.iterdir()} == {0o644}


def test_no_two_files_have_the_same_series(folder: Folder) -> None:
    """The collector refuses all of them then."""
    for hook in ("prolog", "epilog", "periodic"):
        folder.publish(hook)
    files = sorted(path.name for path in folder.files.iterdir())
    assert files == [
        "srobust_epilog.prom",
        "srobust_node.prom",
        "srobust_periodic.prom",
        "srobust_prolog.prom",
    ]
    series = [line.rpartition(" ")[0] for name in files for line in folder.lines(name)]
    assert len(series) == len(set(series))


def test_a_part_of_the_checks_changes_only_what_is_said_of_the_drain(folder: Folder) -> None:
    folder.drain.path.parent.mkdir()
    folder.drain.save(OwnDrain(reason="srobust: gpu1", since=NOW - 60, drains=(NOW - 90_000, NOW - 60)))
    assert folder.publish(whole=False) == ""
    assert [path.name for path in folder.files.iterdir()] == ["srobust_node.prom"]
    assert folder.lines("srobust_node.prom")[1:] == [
        "srobust_node_drained 1",
        f"srobust_node_drain_start_timestamp_seconds {NOW - 60}",
        "srobust_node_drains_1d 1",
    ]


def test_root_writes_into_no_folder_that_others_may_change(folder: Folder) -> None:
    folder.files.chmod(0o777)
    assert folder.publish().startswith(f"{folder.files} can be written by others: give the folder and")
    assert list(folder.files.iterdir()) == []


def test_a_link_that_waits_in_the_folder_is_replaced_not_followed(folder: Folder, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder.files / "srobust_node.prom").symlink_to(victim)
    assert folder.publish() == ""
    assert victim.read_text() == "mine"
    assert not (folder.files / "srobust_node.prom").is_symlink()


def test_a_folder_that_is_missing_is_told(folder: Folder) -> None:
    folder.files.rmdir()
    assert folder.publish().startswith(f"{folder.files}: No such file or directory")
