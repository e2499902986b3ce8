"""What others build and read of this repository: workflows, the image, forms of issues and pull requests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_robust.cli.main import make_parser
from slurm_robust.home import HOME
from tests.pages import commands

CHECKOUT = Path(__file__).resolve().parents[2]
GITHUB = CHECKOUT / ".github"
WORKFLOWS = sorted(path.name for path in (GITHUB / "workflows").iterdir())
FORMS = ["bug.yml", "question.yml"]


def read(*names: str) -> Any:
    return yaml.safe_load(GITHUB.joinpath(*names).read_text())


def steps(workflow: str) -> Iterator[dict[str, Any]]:
    for job in read("workflows", workflow)["jobs"].values():
        yield from job["steps"]


# -- workflows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_script_of_a_workflow_can_be_run(workflow: str) -> None:
    code = "\n".join(step.get("run", "") for step in steps(workflow))
    scripts = re.findall(r"^(?:\.ci|tools|packaging)/\S+", code, re.MULTILINE)
    assert scripts
    assert [script for script in scripts if not os.access(CHECKOUT / script, os.X_OK)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_target_that_a_workflow_makes_is_in_the_makefile(workflow: str) -> None:
    code = "\n".join(step.get("run", "") for step in steps(workflow))
    made = set(re.findall(r"^make ([a-z-]+)", code, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    assert made
    assert made <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_has_triggers_limits_and_jobs_that_there_are(workflow: str) -> None:
    found = read("workflows", workflow)
    assert found["on"]  # without quotes, YAML reads it as true
    for job in found["jobs"].values():
        assert job["timeout-minutes"]
        assert {job.get("needs")} <= {None, *found["jobs"]}
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_ci_ends_later_than_the_limit_of_its_tests() -> None:
    limit = re.search(r"^readonly LIMIT_S=(\d+)$", (CHECKOUT / ".ci/run").read_text(), re.MULTILINE)
    assert limit is not None
    assert read("workflows", "ci.yml")["jobs"]["test"]["timeout-minutes"] * 60 > int(limit[1])


def test_ci_builds_packages_from_tags_alone() -> None:
    jobs = read("workflows", "ci.yml")["jobs"]
    assert jobs["release"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert jobs["pages"]["needs"] == "release"


# -- the image -----------------------------------------------------------------------------------------------

CONTAINERFILE = (CHECKOUT / "Containerfile").read_text()


def installed_by_setup() -> set[str]:
    """The packages of Debian that tools/setup.sh brings for the sandbox."""
    listed = re.search(
        r"<<'LIST'\n(.*?)^LIST$", (CHECKOUT / "tools/setup.sh").read_text(), re.DOTALL | re.MULTILINE
    )
    assert listed is not None
    return {line.split()[1] for line in listed[1].splitlines()}


def test_the_image_has_the_packages_of_the_sandbox_from_the_setup_script_alone() -> None:
    assert "tools/setup.sh" in CONTAINERFILE
    installed = re.findall(r"apt-get\b[^&]*? install ([^&]+)", CONTAINERFILE)
    named = {word for words in installed for word in words.replace("\\\n", " ").split() if word[0] != "-"}
    assert named
    assert "slurmctld" in installed_by_setup()
    assert named & installed_by_setup() == set()


def test_the_image_takes_nothing_of_the_checkout_that_git_ignores() -> None:
    left_out = (CHECKOUT / ".dockerignore").read_text().splitlines()
    ignored = (CHECKOUT / ".gitignore").read_text().split()
    assert {".git", *(f"**/{name}" for name in ignored)} <= set(left_out)


def test_the_image_and_ci_are_of_one_debian_and_one_build_of_pytorch() -> None:
    ci = read("workflows", "ci.yml")
    assert f"\nFROM docker.io/library/{ci['jobs']['test']['container']['image']}\n" in CONTAINERFILE
    assert f"PIP_EXTRA_INDEX_URL={ci['env']['PIP_EXTRA_INDEX_URL']}\n" in CONTAINERFILE


# -- issues and pull requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_form_has_the_keys_that_the_forge_wants(form: str) -> None:
    found = read("ISSUE_TEMPLATE", form)
    assert {"name", "description", "body"} <= set(found)
    fields = [field for field in found["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert len({field["attributes"]["label"] for field in fields}) == len(fields)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_asks_for_what_names_nobody_by_commands_that_there_are(form: str) -> None:
    text = " ".join(str(field["attributes"]) for field in read("ISSUE_TEMPLATE", form)["body"])
    given = [argv for code in re.findall(r"`(srobust [^`]+)`", text) for argv in commands(code, "srobust")]
    parser = make_parser()
    for _, *argv in given:
        # A number stands where the form has a word for one.
        numbers = [{"JOB": "4711", "N": "2"}.get(word, word) for word in argv]
        _, unknown = parser.parse_known_args(numbers)
        assert unknown == [], argv
    asked = [set(argv) for argv in given]
    assert any({"doctor", "--json", "--anonymous"} <= words for words in asked)
    assert any({"incident", "--bundle", "--anonymous"} <= words for words in asked)
    assert any({"version"} <= words for words in asked)
    assert "`sinfo --version`" in text


def test_links_of_the_forms_lead_to_pages_of_this_repository() -> None:
    text = "".join(path.read_text() for path in (GITHUB / "ISSUE_TEMPLATE").iterdir())
    linked = re.findall(r"https://[^\s)]+", text)
    assert f"{HOME}/blob/main/SECURITY.md" in linked
    for link in linked:
        base, _, page = link.partition("/blob/main/")
        assert base == HOME
        assert (CHECKOUT / page).is_file()


def test_the_template_of_a_pull_request_has_three_lines() -> None:
    text = (GITHUB / "pull_request_template.md").read_text()
    assert len(text.splitlines()) == 3
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert f"\n{target}:" in (CHECKOUT / "Makefile").read_text()
    assert [name for name in re.findall(r"`(\w+\.md)`", text) if not (CHECKOUT / name).is_file()] == []
