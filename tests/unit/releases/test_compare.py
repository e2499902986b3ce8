"""What differs between two releases, as people and the journal are told."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from slurm_robust.model.release import GitState, Release
from slurm_robust.releases.compare import ReleaseDiff, compare, summary
from slurm_robust.releases.contents import stored
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from tests.unit.releases.conftest import Write


def diff(store: ReleaseStore, old: Release, new: Release, most_lines: int = 100) -> ReleaseDiff:
    return compare(stored(store, old.name), stored(store, new.name), most_lines)


def test_files_are_named_and_their_lines_shown(
    store: ReleaseStore, wish: Taking, write: Write, code: Path
) -> None:
    write({"train.py": "import model\nlr = 1e-4\n", "model.py": "", "old.py": "x = 1\n"})
    old = take(store, wish)
    write({"train.py": "import model\nlr = 3e-4\n", "new.py": "y = 2\n"})
    (code / "old.py").unlink()
    found = diff(store, old, take(store, wish))
    assert (found.added, found.changed, found.removed) == (
        ("code/new.py",),
        ("code/train.py",),
        ("code/old.py",),
    )
    assert found.patch == (
        "--- /dev/null",
        "+++ b/code/new.py",
        "@@ -0,0 +1 @@",
        "+y = 2",
        "--- a/code/old.py",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-x = 1",
        "--- a/code/train.py",
        "+++ b/code/train.py",
        "@@ -1,2 +1,2 @@",
        " import model",
        "-lr = 1e-4",
        "+lr = 3e-4",
    )
    assert summary(found) == (
        "1 file changed: code/train.py",
        "1 file added: code/new.py",
        "1 file removed: code/old.py",
    )


def test_arguments_variables_configuration_and_image_are_told_without_a_value_of_a_variable(
    store: ReleaseStore, wish: Taking, write: Write
) -> None:
    write({"train.py": ""})
    old = take(
        store,
        replace(wish, command=("train.py", "--lr", "1e-4"), env={"KEEP": "k1", "TURN": "t1", "DROP": "d1"}),
    )
    new = take(
        store,
        replace(
            wish,
            command=("train.py", "--lr", "3e-4", "--fast"),
            env={"KEEP": "k1", "TURN": "t2", "ADD": "a1"},
            config_text="spares: 1\n",
            image="/i/new.sqsh",
        ),
    )
    found = diff(store, old, new)
    assert found.commands == ("train.py --lr 1e-4", "train.py --lr 3e-4 --fast")
    assert (found.env_set, found.env_unset, found.env_changed) == (("ADD",), ("DROP",), ("TURN",))
    assert (found.config, found.image, found.patch) == (("+spares: 1",), ("", "/i/new.sqsh"), ())
    assert not [value for value in ("k1", "t1", "t2", "d1", "a1") if f"'{value}'" in str(found)]
    assert summary(found) == (
        "old command: train.py --lr 1e-4",
        "new command: train.py --lr 3e-4 --fast",
        "environment set: ADD",
        "environment unset: DROP",
        "environment changed: TURN",
        "configuration: +spares: 1",
        "image: /i/new.sqsh",
    )


def test_equal_code_in_another_folder_is_no_difference(
    store: ReleaseStore, wish: Taking, write: Write, tmp_path: Path
) -> None:
    write({"train.py": "x", "lib/a.py": "y"})
    old = take(store, wish)
    other = tmp_path / "other"
    (other / "lib").mkdir(parents=True)
    (other / "train.py").write_text("x")
    (other / "lib/a.py").write_text("z")
    new = take(store, replace(wish, cwd=str(other), roots=(str(other),)))
    found = diff(store, old, new)
    assert (found.added, found.changed, found.removed) == ((), ("other/lib/a.py",), ())
    assert diff(store, old, old).is_empty


def test_what_is_no_text_or_too_much_is_said(
    store: ReleaseStore, wish: Taking, write: Write, code: Path
) -> None:
    write({"train.py": "".join(f"a{i}\n" for i in range(500))})
    (code / "native.so").write_bytes(b"\0\1")
    old = take(store, wish)
    write({"train.py": "".join(f"b{i}\n" for i in range(500))})
    (code / "native.so").write_bytes(b"\0\2")
    found = diff(store, old, take(store, wish), most_lines=5)
    assert found.patch[0] == "code/native.so is no text, or is too large to show"
    assert (len(found.patch), found.is_cut) == (5, True)


def test_what_differs_of_a_file_whose_lines_do_not_is_said(
    store: ReleaseStore, wish: Taking, write: Write, code: Path
) -> None:
    write({"train.py": "a\nb\n", "run.sh": "x\n"})
    old = take(store, wish)
    (code / "train.py").write_bytes(b"a\r\nb\r\n")
    (code / "run.sh").chmod(0o755)
    (code / "__init__.py").touch()
    assert diff(store, old, take(store, wish)).patch == (
        "code/__init__.py: it is empty, or has become another kind of file",
        "code/run.sh: it may be executed now",
        "code/train.py: only the ends of its lines differ",
    )


def test_names_that_are_no_text_are_made_visible(
    store: ReleaseStore, wish: Taking, write: Write, code: Path
) -> None:
    write({"train.py": ""})
    old = take(store, wish)
    Path(os.fsdecode(os.fsencode(code) + b"/a\xff\n\x1b[31m.py")).write_text("x\n")
    found = diff(store, old, take(store, wish))
    (name,) = found.added
    assert name.isprintable()
    assert all(line.isprintable() for line in (*found.patch, *summary(found)))
    str(found).encode()


def test_a_link_that_leads_elsewhere_is_a_change(
    store: ReleaseStore, wish: Taking, write: Write, code: Path
) -> None:
    write({"train.py": "", "a.yaml": "", "b.yaml": ""})
    (code / "now.yaml").symlink_to("a.yaml")
    old = take(store, wish)
    (code / "now.yaml").unlink()
    (code / "now.yaml").symlink_to(code / "b.yaml")
    found = diff(store, old, take(store, wish))
    assert found.patch[2:] == ("@@ -1 +1 @@", "--> a.yaml", "+-> b.yaml")


def test_commits_are_told(store: ReleaseStore, wish: Taking, write: Write) -> None:
    write({"train.py": ""})
    contents = stored(store, take(store, wish).name)
    git = GitState(commit="0123456789abcdef", dirty=True)
    found = compare(contents, contents._replace(release=replace(contents.release, git=git)))
    assert summary(found) == ("commit: none to 0123456789ab+",)
    assert found.is_empty
