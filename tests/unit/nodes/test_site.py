from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.node import NodeConfig, SiteCheck
from slurm_robust.config.reader import Layers
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import AnyCheck, CheckContext
from slurm_robust.nodes.site import checks
from slurm_robust.util.isolate import call
from tests.unit.nodes.host_files import only, view
from tests.users import as_root
from tests.waiting import wait_for

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN


def script(path: Path, text: str, mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


def site(*found: SiteCheck, folder: str = "", host: Host | None = None) -> tuple[AnyCheck, ...]:
    return checks(NodeConfig(site_checks=found, site_checks_dir=folder), host or Host())


def one(**settings: object) -> AnyCheck:
    return only(site(SiteCheck(name="it", **settings)))  # type: ignore[arg-type]


def result(check: AnyCheck, host: Host | None = None) -> Finding:
    facts = check.source.gather(host or Host(), NodeConfig())
    # As it comes out of the child in which it was gathered.
    facts = msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=check.source.facts)
    finding = only(check.judge(view(facts), NodeConfig()))
    assert isinstance(finding, Finding)
    return finding


@pytest.mark.parametrize(
    ("text", "outcome", "suggestion", "words", "value"),
    [
        ("echo 'OK - all well | load=1;2'; exit 0", PASS, Suggestion.NONE, "", "load=1;2"),
        ("echo 'OK - all well'", PASS, Suggestion.NONE, "", "OK - all well"),
        ("exit 0", PASS, Suggestion.NONE, "", ""),
        ("echo WARNING; echo more; exit 1", FAIL, Suggestion.MONITOR, "WARNING", "exit code 1"),
        ("echo 'disk  hot|t=90'; exit 2", FAIL, Suggestion.REPLACE, "disk hot", "t=90"),
        ("exit 2", FAIL, Suggestion.REPLACE, "exit code 2", "exit code 2"),
        ("echo 'no tool'; exit 3", UNKNOWN, Suggestion.NONE, "no tool", "exit code 3"),
        ("echo 'my text'; exit 127", UNKNOWN, Suggestion.NONE, "exit code 127", "exit code 127"),
        ("kill -9 $$", UNKNOWN, Suggestion.NONE, "ended by signal 9", "ended by signal 9"),
        (r"printf '\033[31mred\tand \303\n'; exit 2", FAIL, Suggestion.REPLACE, "red and �", "exit code 2"),
        ("printf '%0160d' 7; exit 2", FAIL, Suggestion.REPLACE, "0" * 159 + "7", "exit code 2"),
        ("printf '%0161d' 7; exit 2", FAIL, Suggestion.REPLACE, "0" * 159 + "…", "exit code 2"),
        ("echo oops >&2; exit 1", FAIL, Suggestion.MONITOR, "exit code 1", "exit code 1"),
        ("read line && exit 2; exit 0", PASS, Suggestion.NONE, "", ""),
    ],
)
def test_exit_codes_mean_what_nagios_says(
    text: str, outcome: Outcome, suggestion: Suggestion, words: str, value: str, tmp_path: Path
) -> None:
    found = result(one(command=(script(tmp_path / "x", text),), suggestion="replace"))
    assert (found.outcome, found.suggestion, found.text, found.value) == (outcome, suggestion, words, value)
    assert (found.check, found.subject) == ("site.it", "it")


def test_a_command_has_its_arguments_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    command = script(tmp_path / "x", 'echo "$1-$2-$SECRET-$PATH-$LC_ALL-$HOME"')
    found = result(one(command=(command, "a b", "c")))
    assert found.value == "a b-c--/usr/sbin:/usr/bin:/sbin:/bin-C-/"


def test_endless_output_is_cut_off(tmp_path: Path) -> None:
    begun = time.monotonic()
    found = result(one(command=(script(tmp_path / "x", "exec yes"),)))
    assert (found.outcome, found.text) == (UNKNOWN, "ended by signal 13")
    assert time.monotonic() - begun < 60


def refused(command: str, host: Host | None = None) -> str:
    with pytest.raises((RuntimeError, OSError)) as error:
        one(command=(command,)).source.gather(host or Host(), NodeConfig())
    return str(error.value)


def test_a_site_check_that_others_could_change_is_not_run(tmp_path: Path) -> None:
    assert refused("check.sh") == "check.sh is not run: no absolute path"
    assert "No such file" in refused(str(tmp_path / "none"))
    assert refused(str(tmp_path)).endswith("is not run: no file")
    assert "can be written by others" in refused(script(tmp_path / "a", "exit 0", 0o757))
    assert "Permission denied" in refused(script(tmp_path / "b", "exit 0", 0o644))
    folder = tmp_path / "open"
    inside = script(folder / "c", "exit 0")
    assert result(one(command=(inside,))).outcome is PASS
    folder.chmod(0o777)
    assert refused(inside) == f"{inside} is not run: {folder} can be written by others"
    folder.chmod(0o1777)
    assert result(one(command=(inside,))).outcome is PASS


@as_root
def test_what_belongs_to_others_is_not_run_and_no_link_of_theirs_is_followed(tmp_path: Path) -> None:
    mine = script(tmp_path / "mine", "exit 0")
    other = script(tmp_path / "other", "exit 0")
    os.chown(other, 1234, 0)
    assert refused(other) == f"{other} is not run: {other} does not belong to root, but to uid 1234"
    folder = tmp_path / "theirs"
    folder.mkdir()
    link = folder / "link"
    link.symlink_to(mine)
    assert result(one(command=(str(link),))).outcome is PASS
    os.chown(link, 1234, 1234, follow_symlinks=False)
    assert "does not belong to root" in refused(str(link))
    os.chown(link, 0, 0, follow_symlinks=False)
    os.chown(folder, 1234, 1234)
    assert "does not belong to root" in refused(str(link))
    by_group = script(tmp_path / "group", "exit 0", 0o775)
    assert result(one(command=(by_group,))).outcome is PASS
    os.chown(by_group, 0, 1234)
    assert "can be written by group gid 1234" in refused(by_group)


def test_a_check_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    check = one(command=(script(tmp_path / "x", f"sleep 600 & echo $! > {note}; wait"),), timeout_s=0.5)
    source = check.source
    assert source.timeout_s == 0.5
    task = {"it": lambda: msgspec.msgpack.encode(source.gather(Host(), NodeConfig()))}
    answer = call(task, {"it": source.timeout_s}, 5.0)["it"]
    assert answer.hung
    assert (source.hang.outcome, source.hang.text) == (UNKNOWN, "no answer in 0.5 s")
    pid = note.read_text().strip()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_executables_of_the_folder_are_checks_by_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "etc/checks.d"
    for name in ("10-scratch.sh", "old.rpmsave", ".hidden", "edit~", "named", "odd name"):
        script(folder / name, "echo ${0##*/}; exit 1")
    script(folder / "README", "", 0o644)
    (folder / "sub").mkdir()
    (folder / "dead").symlink_to("/none")
    host = Host(tmp_path)
    named = SiteCheck(name="named", python="os:getcwd", contexts=("deep",))
    found = {check.name: check for check in site(named, folder="/etc/checks.d/", host=host)}
    assert sorted(found) == ["site.10-scratch.sh", "site.named", "site.odd_name"]
    assert found["site.named"].contexts == {CheckContext.DEEP}
    finding = result(found["site.10-scratch.sh"], host)
    assert (finding.outcome, finding.text) == (FAIL, "10-scratch.sh")
    assert CheckContext.PROLOG in found["site.10-scratch.sh"].contexts
    assert site(folder="/none") == site(folder="") == ()


def all_well(host: Host) -> Finding:
    return Finding(check="whatever", outcome=PASS, value=str(host.root))


def two_faults(host: Host) -> Iterator[Finding]:
    yield Finding(check="x", outcome=FAIL, subject="a\nb", text="\x1b[1m" + "y" * 500)
    yield Finding(check="x", outcome=FAIL, suggestion=Suggestion.MONITOR, source="mine")


def nonsense(host: Host) -> list[str]:
    return ["fine"]


def broken(host: Host) -> Finding:
    raise KeyError("x")


def test_functions_return_findings_under_the_name_of_the_check(tmp_path: Path) -> None:
    found = result(one(python=f"{__name__}:all_well"), Host(tmp_path))
    assert (found.check, found.outcome, found.value) == ("site.it", PASS, str(tmp_path))
    check = one(python=f"{__name__}:two_faults", suggestion="reset")
    first, second = check.judge(view(check.source.gather(Host(), NodeConfig())), NodeConfig())
    assert (first.subject, len(first.text), first.suggestion) == ("a b", 160, Suggestion.RESET)
    assert first.text.startswith("y")
    assert (second.suggestion, second.source, second.subject) == (Suggestion.MONITOR, "mine", "it")
    assert first.source == f"{__name__}:two_faults"


@pytest.mark.parametrize("name", ["nonsense", "broken", "absent"])
def test_a_function_that_fails_tells_nothing_of_the_node(name: str) -> None:
    with pytest.raises((RuntimeError, KeyError, AttributeError)):
        one(python=f"{__name__}:{name}").source.gather(Host(), NodeConfig())
    with pytest.raises(ImportError):
        one(python="no_such_module:f").source.gather(Host(), NodeConfig())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "a b", "command": ["/x"]}, "use letters"),
        ({"name": "", "command": ["/x"]}, "use letters"),
        ({"name": "a"}, "neither command nor python"),
        ({"name": "a", "command": ["/x"], "python": "m:f"}, "both command and python"),
        ({"name": "a", "command": ["/x"], "timeout_s": 0}, "above 0"),
        ({"name": "a", "command": ["/x"], "contexts": ["boot"]}, "boot"),
        ({"name": "a", "comand": ["/x"]}, "comand"),
    ],
)
def test_a_check_that_cannot_work_is_refused_with_the_reason(settings: dict[str, object], words: str) -> None:
    layers = Layers(NodeConfig)
    layers.add_yaml(msgspec.json.encode({"site_checks": [settings]}), "config.yaml")
    with pytest.raises(InvalidSettings, match=words):
        layers.build()
