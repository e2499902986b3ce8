from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_robust.wire.epochs import EpochRecord, newest_epoch, take_epoch


def take(folder: Path, port: int = 5000) -> EpochRecord:
    return take_epoch(folder, host="h1", addresses=("10.0.0.1",), port=port, pid=7, run_id="r")


def test_there_is_no_epoch_before_the_first_controller(tmp_path: Path) -> None:
    assert newest_epoch(tmp_path / "epochs") is None


def test_epochs_count_upward_and_the_newest_is_read_back(tmp_path: Path) -> None:
    assert [take(tmp_path).epoch, take(tmp_path).epoch] == [1, 2]
    assert newest_epoch(tmp_path) == EpochRecord(
        epoch=2, host="h1", addresses=("10.0.0.1",), port=5000, pid=7, run_id="r"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001.json", "000002.json"]


def test_no_two_controllers_get_the_same_epoch(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        epochs = [r.epoch for r in pool.map(lambda i: take(tmp_path, i), range(40))]
    assert sorted(epochs) == list(range(1, 41))


def test_torn_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    take(tmp_path)
    (tmp_path / "000002.json").write_bytes(b'{"epoch": 2, "ho')
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "7.json").write_text("{}")
    (tmp_path / "000009.json").mkdir()
    newest = newest_epoch(tmp_path)
    assert newest is not None
    assert newest.epoch == 1
    assert take(tmp_path).epoch == 10


def test_endpoints_name_each_address_once() -> None:
    record = EpochRecord(
        epoch=1, host="10.0.0.1", addresses=("10.0.0.1", "fd00::1"), port=5, pid=1, run_id="r"
    )
    assert record.endpoints == ("tcp://10.0.0.1:5", "tcp://[fd00::1]:5")
