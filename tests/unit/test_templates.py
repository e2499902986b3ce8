"""What users and administrators copy: it must be right as it stands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from slurm_robust.cli.words import split_command
from slurm_robust.config.job import JobConfig
from slurm_robust.config.jobfile import environment_name
from slurm_robust.config.reader import Layers
from slurm_robust.doctor.rule import Level, apply
from slurm_robust.doctor.rules import RULES
from slurm_robust.doctor.script import run_of
from slurm_robust.doctor.shape import shape_of
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm.options import of_script
from slurm_robust.templates.fill import config_text
from tests.unit.doctor.samples import GOOD, fact, slurm

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / "sbatch_templates").glob("*.sbatch"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_survives_what_it_promises_to_survive(path: Path) -> None:
    lines = path.read_text().splitlines()
    subprocess.run(["bash", "-n", path], check=True)
    options = {line.split()[1] for line in lines if line.startswith("#SBATCH")}
    assert {"--no-kill", "--requeue", "--open-mode=append", "--signal=B:USR1@120", "--exclusive"} <= options
    assert lines[-1].startswith("exec srobust run ")
    own, _, _ = split_command(lines[-1].split()[3:])
    assert own[:2] in (["--spares", "1"], ["--spares", "0"])


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_the_doctor_has_nothing_to_say_of_a_template(path: Path) -> None:
    script = path.read_text()
    run = run_of(script)
    assert run is not None
    seen = fact(job=None, shape=shape_of(script), options=of_script(script, {}), hears=run.hears)
    facts = slurm(SlurmctldParameters="", RequeueExit="99")(seen(GOOD))
    found = {rule.name: apply(rule, facts) for rule in RULES if rule.name.startswith("job.")}
    assert {n: said.text for n, said in found.items() if said.level in (Level.BAD, Level.NOTE)} == {}


def test_templates_set_keys_that_there_are() -> None:
    keys = ("companions.reservation", "companions.partition", "agents.srun_options", "agents.wrapper")
    text = "\n".join(path.read_text() for path in TEMPLATES)
    assert set(re.findall(r"SROBUST_CONFIG_\w+", text)) == {environment_name(key) for key in keys}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_each_option_of_a_template_has_its_reason_beside_it(path: Path) -> None:
    options = [line for line in path.read_text().splitlines() if "SBATCH --" in line]
    assert len(options) > 12
    assert [line for line in options if not re.search(r"^##?SBATCH --\S+ +# \w", line)] == []


def test_the_configuration_template_has_the_defaults() -> None:
    """Each line without its '#' is a value that the reader takes, and it is the default."""
    text = (ROOT / "sbatch_templates" / "job.yaml").read_text()
    assert text == config_text(), "python -m tools.reference_pages"
    keys = [line[1:] for line in text.splitlines() if re.match(r"#( {2})?\w+:", line)]
    layers = Layers(JobConfig)
    layers.add_yaml("\n".join(keys).encode(), "job.yaml")
    assert layers.build() == JobConfig()


def table(page: str, columns: int) -> list[list[str]]:
    """Rows of all Markdown tables with so many columns, without the two header lines."""
    rows = [
        [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in (ROOT / page).read_text().splitlines()
        if line.startswith("|")
    ]
    return [row for row in rows if len(row) == columns and not set(row[0]) <= {"-", ":"}]


def test_the_page_on_configuration_explains_the_environment() -> None:
    assert environment_name("timings.node_dead_s") in (ROOT / "docs" / "configuration.md").read_text()


def test_every_exit_code_is_documented() -> None:
    documented = {int(row[0]) for row in table("docs/exit-codes.md", 3) if row[0].isdecimal()}
    assert documented == {int(code) for code in ExitCode}


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_in_pages_lead_to_files(page: str) -> None:
    source = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", source.read_text())
    assert [link for link in links if not (source.parent / link).exists()] == []
