from __future__ import annotations

import pytest

from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import SandboxConfig
from slurm_robust.sandbox.config import check_name
from slurm_robust.sandbox.errors import InvalidSandbox
from slurm_robust.sandbox.folder import StateFolder, state_root


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 0}, "nodes: 0 is out of range\n  fix: give a number from 1 to 512"),
        ({"cpus": -1}, "cpus: -1"),
        ({"slurmd_timeout_s": 1}, "slurmd_timeout_s: 1"),
        ({"cred_expire_s": 2}, "cred_expire_s: 2"),
        ({"nodes": 2, "leaf_size": 3}, "leaf_size: 3"),
        ({"users": ()}, "users: none is named\n  fix: name at least one"),
        ({"users": ("root",)}, "users: 'root'"),
        ({"users": ("../x",)}, "users: '../x'"),
        ({"users": ("a", "a")}, "given twice"),
        ({"slurm_conf_lines": ("no equals sign",)}, "not of the form Key=value"),
        ({"slurm_conf_lines": ("A=1\nB=2",)}, "not of the form Key=value"),
        ({"binds": ("relative",)}, "not an absolute path"),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSandbox) as refused:
        SandboxConfig(**settings)  # type: ignore[arg-type]
    assert message in str(refused.value)
    assert refused.value.exit_code == ExitCode.USAGE


def test_a_configuration_survives_the_state_folder() -> None:
    config = SandboxConfig(nodes=3, users=("carol",), slurm_conf_lines=("A=1",), cred_expire_s=7, leaf_size=2)
    assert SandboxConfig.from_json(config.to_json()) == config


def test_every_node_has_an_address_of_its_own() -> None:
    config = SandboxConfig(nodes=512)
    addresses = {config.address(name) for name in config.all_names}
    assert len(addresses) == 513
    assert config.address("head") == "10.77.0.1"
    assert config.address("n1") == "10.77.0.11"
    assert config.address("n246") == "10.77.1.0"


def test_uids_follow_the_order_of_the_users() -> None:
    config = SandboxConfig(users=("alice", "bob"))
    assert [config.uid(user) for user in ("root", "alice", "bob")] == [0, 10001, 10002]
    with pytest.raises(InvalidSandbox, match="no user 'eve' here\n  fix: name one of root, alice, bob"):
        config.uid("eve")


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-x", "x" * 33])
def test_a_name_can_only_be_a_plain_folder(name: str) -> None:
    with pytest.raises(InvalidSandbox, match="cannot name a sandbox"):
        check_name(name)


def test_the_environment_moves_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SROBUST_SANDBOX_DIR", "/somewhere/else")
    assert str(StateFolder("x").path) == "/somewhere/else/x"
    monkeypatch.delenv("SROBUST_SANDBOX_DIR")
    assert str(state_root()) == "/var/lib/srobust-sandbox"
