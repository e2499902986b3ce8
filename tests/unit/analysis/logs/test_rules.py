"""Rules are read from YAML; a site's own win; what is wrong is told with file, line and fix."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from slurm_robust.analysis.logs import classify, shipped, with_site_rules
from slurm_robust.analysis.logs.rule import Symptom
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.kernel.catalog import RULES, Topic
from slurm_robust.kernel.shapes import SHAPES
from slurm_robust.model.findings import Suggestion
from slurm_robust.model.incident import Cause, Remedy

RULE = "- name: ours\n  symptom: config_error\n  blame: user_config\n  action: reconfigure\n"
JOBS = {
    "out-of-memory",
    "corrected-events",
    "corrected-bank",
    "corrected-amd",
    "corrected-edac",
    "corrected-firmware",
}


def write(folder: Path, text: str) -> Path:
    path = folder / "site.yaml"
    path.write_text(text)
    return path


def test_a_sites_rule_wins_on_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, RULE + "  any: ['NVRM: Xid']\n")
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert classify(line, rules=with_site_rules([path])).rule == "ours"
    assert classify(line).rule != "ours"


def test_a_sites_rule_is_not_hidden_by_our_noise(tmp_path: Path) -> None:
    path = write(tmp_path, RULE + "  any: ['FutureWarning: broken here']\n")
    assert classify("FutureWarning: broken here", rules=with_site_rules([path])).rule == "ours"


def test_a_rule_of_the_same_name_replaces_ours(tmp_path: Path) -> None:
    path = write(tmp_path, RULE.replace("ours", "gpu-out-of-memory") + "  any: ['never said']\n")
    assert classify("MPS backend out of memory", rules=with_site_rules([path])).symptom != "gpu_oom"


def test_rules_of_all_files_of_a_folder_count(tmp_path: Path) -> None:
    write(tmp_path, RULE + "  any: ['site says no']\n")
    assert classify("the site says no", rules=with_site_rules([tmp_path])).rule == "ours"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("  any: ['first line']\n  all: ['second line']\n", True),
        ("  any: ['first line']\n  all: ['third line']\n", False),
        ("  any: ['first line']\n  without: ['second line']\n", False),
        ("  any: ['line']\n  unless: ['first', 'second']\n", False),
        ("  any: ['line']\n  times: 2\n", True),
        ("  any: ['line']\n  times: 3\n", False),
        ("  any: ['line']\n  streams: [kernel]\n", False),
        ("  any: ['LINE']\n", True),
    ],
)
def test_a_rule_matches_when_its_conditions_hold(lines: str, expected: bool, tmp_path: Path) -> None:
    rules = with_site_rules([write(tmp_path, RULE + lines)])
    assert (classify("first line\nsecond line", rules=rules).rule == "ours") is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b", "site.yaml, line 1: rules must be a list; begin each rule with '- name:'"),
        ("- [", "site.yaml, line 1, column 4: not valid YAML"),
        ("- name: x\n", "site.yaml, line 1: rules[0] needs the key symptom\n  fix: add symptom: one of gpu"),
        (RULE, "a rule needs any (patterns), xids, kinds, shapes or curve"),
        (RULE + "  pattern: ['abc']\n", "site.yaml, line 5: unknown key rules[0].pattern"),
        (RULE + "  anny: ['abc']\n", "did you mean rules[0].any?"),
        (
            RULE + "  any: ['(abc']\n",
            "site.yaml, line 5: rules[0].any[0]: '(abc' is not a regular expression",
        ),
        (RULE + "  any: ['(a+)+bcd']\n", "repeats a repetition"),
        (RULE + "  any: ['abc', '.*']\n", "'.*' has a match without 3 plain"),
        (
            RULE + "  any: abc\n",
            "site.yaml, line 5: rules[0].any must be a list of strings, got the string 'abc'",
        ),
        (RULE + "  any: ['abc']\n  unless: ['(']\n", "line 6: rules[0].unless[0]: '(' is not a regular"),
        (RULE + "  shapes: [square]\n", "line 5: rules[0].shapes[0]: 'square' is not a known shape"),
        (RULE + "  any: ['abc']\n  site: true\n", "line 6: unknown key rules[0].site"),
        (RULE + "  any: [7]\n", "rules[0].any[0] must be a string, got the number 7"),
        (RULE + "  any: ['abc']\n  streams: [dmesg]\n", "line 6: rules[0].streams[0] must be one of program"),
        (RULE + "  any: ['abc']\n  weight: high\n", "line 6: rules[0].weight must be an integer"),
        (
            RULE.replace("config_error", "oops") + "  any: ['abc']\n",
            "line 2: rules[0].symptom must be one of gpu_memory_error",
        ),
        (
            RULE.replace("user_config", "me") + "  any: ['abc']\n",
            "line 3: rules[0].blame must be one of infrastructure",
        ),
        ((RULE + "  any: ['abc']\n") * 2, "line 6: rules[1].name: ours is there twice"),
        ("- 7\n", "site.yaml, line 1: rules[0] must be a mapping"),
    ],
)
def test_a_bad_file_is_refused_with_its_place_and_the_fix(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as refused:
        with_site_rules([write(tmp_path, text)])
    assert message in str(refused.value)
    assert refused.value.fix


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"gone\.yaml: the rules cannot be read"):
        with_site_rules([tmp_path / "gone.yaml"])


def test_an_empty_file_has_no_rules(tmp_path: Path) -> None:
    assert with_site_rules([write(tmp_path, "# nothing yet\n")]).rules == shipped().rules


def test_the_manuals_example_is_a_rule_and_its_list_of_symptoms_whole(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[4] / "docs" / "log-rules.md").read_text()
    example = manual.partition("```yaml\n")[2].partition("```")[0]
    rules = with_site_rules([write(tmp_path, example)])
    assert classify("fabric-agent: leaf l7 restarts", rules=rules).rule == "leaf-restart"
    assert [name for name in get_args(Symptom) if f"`{name}`" not in manual] == []


def test_ours_would_pass_as_a_sites() -> None:
    folder = Path(__file__).parents[4] / "slurm_robust" / "analysis" / "logs" / "rules"
    assert len(with_site_rules(sorted(folder.glob("*.yaml"))).rules) == len(shipped().rules)


def test_each_xid_of_the_table_has_a_rule_that_agrees_with_it() -> None:
    """One truth per fact: what the node checks call the program's doing is the user's here as well."""
    for code, known in RULES.items():
        found = classify(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=7, name=python, text", "kernel")
        assert (found.blame is Cause.USER_CODE) is (known.topic is Topic.PROGRAM), code
        if known.suggestion in (Suggestion.REBOOT, Suggestion.REPLACE):
            assert found.action is Remedy.EVICT, code


def test_each_shape_of_the_kernel_has_a_rule() -> None:
    named = {name for rule in shipped().rules for name in rule.shapes}
    assert named | JOBS == set(SHAPES) | {"out-of-memory"}


def test_a_link_error_that_the_driver_calls_nonfatal_does_not_evict() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP {} XC0 i0 Link 02 (0x1, 0x2)"
    assert classify(line.format("Nonfatal")).action is Remedy.RESTART
    assert classify(line.format("Fatal")).action is Remedy.EVICT
