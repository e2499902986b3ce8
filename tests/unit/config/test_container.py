"""Options that a job may give to its agents' srun, and the mounts that its container gets."""

from __future__ import annotations

import re

import pytest

from slurm_robust.config.container import BadOption, completed, parsed
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.job import AgentsConfig, JobConfig
from slurm_robust.config.jobfile import from_environment
from slurm_robust.config.reader import Layers

IMAGE = "--container-image=/shared/a.sqsh"
IDS = "--no-container-remap-root"
FOLDERS = ("/home/me/run/srobust-jobs",)
CWD = ("/home/me/run",)


def refused(*words: str) -> BadOption:
    with pytest.raises(BadOption) as caught:
        parsed(words)
    return caught.value


@pytest.mark.parametrize(
    "words",
    [
        (IMAGE, "--container-writable"),
        ("--container-image /shared/a.sqsh", "--container-writable"),
        ("--container-image", "/shared/a.sqsh", "--container-writable"),
    ],
)
def test_an_option_may_have_its_value_in_its_word_or_in_the_next(words: tuple[str, ...]) -> None:
    assert parsed(words) == (IMAGE, "--container-writable")


def test_a_path_may_have_blanks_and_dashes() -> None:
    word = "--container-image=/my images/a - b -- c-d -final.sqsh"
    assert parsed([word]) == (word,)


@pytest.mark.parametrize(
    "word", ["--network=no_vni", "--propagate", "--propagate=NOFILE", "--container-new=1"]
)
def test_a_job_may_set_what_changes_no_shape(word: str) -> None:
    assert parsed([word]) == (word,)


def test_a_list_may_go_on_in_the_next_words() -> None:
    # Commas separate the items of a list in an environment variable.
    text = {"SROBUST_CONFIG_AGENTS_SRUN_OPTIONS": f"{IMAGE},--container-mounts=/a:/a,/b:/b,--network=x"}
    config = from_environment(text).build()
    assert parsed(config.agents.srun_options) == (IMAGE, "--container-mounts=/a:/a,/b:/b", "--network=x")


@pytest.mark.parametrize(
    "word",
    [
        "--nodes=3",
        "-N3",
        "-n",
        "--ntasks-per-node=2",
        "--overlap",
        "--jobid=7",
        "--mem=1G",
        "--container=/oci",
        "--",
    ],
)
def test_what_would_change_the_step_is_refused_with_the_fix(word: str) -> None:
    error = refused(IMAGE, word)
    assert repr(word) in str(error)
    assert "#SBATCH" in error.fix


@pytest.mark.parametrize(
    ("words", "text", "fix"),
    [
        ((IMAGE, IMAGE), "has --container-image twice", "write it once"),
        (("--container-mounts=/a", IMAGE, "--container-mounts=/b"), "twice", "with commas"),
        ((IMAGE, "/b"), "has '/b', which belongs to no option", "--name=value"),
        (("x",), "has 'x', which belongs to no option", "--name=value"),
        (("--container-image",), "without a value", "--container-image=VALUE"),
        (("--network=",), "without a value", "--network=VALUE"),
        ((IMAGE, "--container-writable=yes"), "it takes none", "--container-writable alone"),
        (("--container-im=x",), "the abbreviation '--container-im'", "--container-image"),
        (("--container-mounts=/a",), "without an image", "--container-image"),
        (("--container-remap-root",), "uid", IDS),
        (("--container-unshare=net",), "network", "leave it out"),
        (("--container-save=/x",), "each node", "an srun of its own"),
        (("--container-name=a:create",), "a second time", "--container-name=a"),
        (("--container-image=~/a.sqsh",), "nothing expands '~'", "the whole path"),
        ((IMAGE, "--container-mounts=/a:/a,~/b:/b"), "nothing expands '~'", "the whole path"),
        (
            ("--container-image=/x --container-mounts=/tmp:/a",),
            "several options in one word",
            "[--container-image=/x, --container-mounts=/tmp:/a]",
        ),
        (
            ("--container-image", "/x --ntasks=3 -N2"),
            "several options in one word",
            "[--container-image=/x, --ntasks=3, -N2]",
        ),
        (
            (IMAGE, "--container-writable --container-mounts=/a"),
            "several options in one word",
            "[--container-writable, --container-mounts=/a]",
        ),
    ],
)
def test_a_mistake_is_named_with_its_fix(words: tuple[str, ...], text: str, fix: str) -> None:
    error = refused(*words)
    assert text in str(error)
    assert fix in error.fix


def test_the_configuration_names_key_and_place_of_a_refused_option() -> None:
    layers = Layers(JobConfig)
    layers.add_yaml(b"agents: {srun_options: [--nodes=3]}", "job.yaml")
    with pytest.raises(InvalidSettings, match=r"job.yaml.*srun_options has '--nodes=3'"):
        layers.build()
    layers = Layers(JobConfig)
    layers.add_yaml(f"agents: {{srun_options: [{IMAGE}], wrapper: [apptainer]}}".encode(), "job.yaml")
    with pytest.raises(InvalidSettings, match="both start a container"):
        layers.build()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"agents: {{srun_options: [{IMAGE}, '--container-mounts=/other:/dev/shm']}}",
            "job.yaml, line 1: agents.srun_options mounts /other on /dev/shm",
        ),
        (
            f"agents: {{srun_options: [{IMAGE}, '--container-mounts=/dev/shm:/dev/shm:ro']}}",
            "agents.srun_options mounts /dev/shm read-only",
        ),
        (
            f"agents: {{srun_options: [{IMAGE}, '--container-mounts=/other:/home/me']}}\n"
            "job_dir: /home/me/jobs",
            "where the job needs /home/me/jobs as it is outside",
        ),
        (
            f"agents: {{srun_options: [{IMAGE}, '--container-mounts=/a:/scratch']}}\n"
            "checkpoint: {local_directory: /scratch/me}",
            "where the job needs /scratch/me as it is outside",
        ),
        ("agents: {python: ~/venv/bin/python}", "agents.python must be a program, without ~ and $"),
        ("agents: {python: python -O}", "agents.python is 'python -O': it must be a program without options"),
        ("agents: {wrapper: [apptainer, exec, ~/a.sif]}", "agents.wrapper[2] must be"),
        (
            "agents: {wrapper: [apptainer exec a.sif]}",
            "fix: write each word by itself: [apptainer, exec, a.sif]",
        ),
        (
            "agents: {wrapper: [apptainer exec, a.sif]}",
            "fix: write each word by itself: [apptainer, exec, a.sif]",
        ),
        (
            "agents: {wrapper: [/usr/bin/apptainer, exec, --pid, a.sif]}",
            "agents.wrapper has --pid: agents need your uid",
        ),
        ("checkpoint: {directory: ~/ckpt}", "checkpoint.directory must be the name of a folder, without ~"),
        ("job_dir: /scratch/$USER", "job_dir must be the name of a folder, without ~ and $"),
    ],
)
def test_what_cannot_start_is_refused_when_the_configuration_is_read(text: str, expected: str) -> None:
    layers = Layers(JobConfig)
    layers.add_yaml(text.encode(), "job.yaml")
    with pytest.raises(InvalidSettings) as caught:
        layers.build()
    assert expected in str(caught.value)
    assert len(caught.value.problems) == 1


def test_missing_mounts_come_first_and_ids_stay_those_outside() -> None:
    options = completed(parsed([IMAGE, "--container-mounts=/data:/home/me/run/data:ro"]), FOLDERS, CWD)
    mounts = "/dev/shm:/dev/shm,/home/me/run:/home/me/run,/data:/home/me/run/data:ro"
    assert options == (IMAGE, f"--container-mounts={mounts}", IDS)


def test_what_is_mounted_already_is_mounted_once() -> None:
    options = (IMAGE, "--container-mounts=/home,/dev/shm:/dev/shm", IDS)
    assert completed(options, FOLDERS, CWD) == (IMAGE, IDS, "--container-mounts=/home,/dev/shm:/dev/shm")


def test_without_a_container_nothing_is_mounted() -> None:
    assert completed(("--network=x",), FOLDERS, CWD) == ("--network=x",)


@pytest.mark.parametrize(
    ("mounts", "text"),
    [
        ("/other:/home/me", "mounts /other on /home/me"),
        ("/home/me:/home", "mounts /home/me on /home"),
        ("tmpfs:/dev/shm", "mounts tmpfs on /dev/shm"),
        ("/home:/home:ro", "read-only, and the job writes to /home/me/run/srobust-jobs"),
        ("/dev/shm:/dev/shm:rprivate+ro", "read-only, and the job writes to /dev/shm"),
        ("/home,/other:/home/me/run", "mounts /other on /home/me/run"),
    ],
)
def test_a_mount_in_the_place_of_the_jobs_folders_is_refused(mounts: str, text: str) -> None:
    with pytest.raises(BadOption, match=text) as caught:
        completed((IMAGE, f"--container-mounts={mounts}"), FOLDERS, CWD)
    assert "mount" in caught.value.fix


def test_the_root_of_the_image_stays() -> None:
    assert completed((IMAGE,), (), ("/",)) == (IMAGE, "--container-mounts=/dev/shm:/dev/shm", IDS)


def test_the_nearest_mount_counts() -> None:
    mounts = "--container-mounts=/home:/home:ro,/home/me/run/srobust-jobs:/home/me/run/srobust-jobs,/dev/shm"
    assert mounts in completed((IMAGE, mounts), FOLDERS, CWD)


def test_a_folder_that_pyxis_cannot_name_is_refused() -> None:
    with pytest.raises(BadOption, match="cannot mount /a:b"):
        completed((IMAGE,), ("/a:b",), ())


def test_the_python_inside_is_that_of_the_image() -> None:
    command = ("/venv/bin/python", "-m", "x")
    assert AgentsConfig().container().inside(command) == command
    assert AgentsConfig(srun_options=(IMAGE,)).container().inside(command) == (
        "/usr/bin/env",
        "python3",
        "-m",
        "x",
    )
    assert AgentsConfig(python="/p").container().inside(command) == ("/p", "-m", "x")
    wrapped = AgentsConfig(wrapper=("apptainer", "exec", "a.sif"), python="/p").container()
    assert wrapped.inside(command) == ("apptainer", "exec", "a.sif", "/p", "-m", "x")
    assert wrapped.srun_options == ()


# -- another image ----------------------------------------------------------------------------------------


def test_another_image_takes_the_place_of_the_first_and_containers_of_its_name_are_others() -> None:
    options = ("--container-name=train", "--container-image", "/a.sqsh", "--network=x")
    config = AgentsConfig(srun_options=options)
    found = config.in_image("/shared/b, c.sqsh").srun_options
    assert found[1:] == ("--container-image=/shared/b, c.sqsh", "--network=x")
    assert re.fullmatch("--container-name=train-[0-9a-f]{8}", found[0])
    assert config.in_image("/d.sqsh").srun_options[0] != found[0]


@pytest.mark.parametrize(
    "wrapper",
    [
        ("apptainer", "exec", "--nv", "/a.sif"),
        ("/opt/bin/singularity", "exec", "/a.sif"),
        ("/usr/bin/env", "podman", "run", "--rm", "a:1"),
    ],
)
def test_the_last_word_of_a_known_wrapper_is_its_image(wrapper: tuple[str, ...]) -> None:
    assert AgentsConfig(wrapper=wrapper).in_image("/b.sif").wrapper == (*wrapper[:-1], "/b.sif")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (AgentsConfig(wrapper=("./in-container.sh", "/a.sif")), "nothing says which of its words"),
        (AgentsConfig(wrapper=("apptainer",)), "nothing says which of its words"),
        (AgentsConfig(srun_options=("--container-name=train",)), "names no image"),
        (AgentsConfig(), "names no image"),
    ],
)
def test_an_image_whose_place_is_not_known_is_refused(config: AgentsConfig, text: str) -> None:
    with pytest.raises(BadOption, match=text) as caught:
        config.in_image("/b.sif")
    assert caught.value.fix
