from __future__ import annotations

from slurm_robust.sandbox import SandboxConfig
from slurm_robust.sandbox import etcfiles as conf


def settings(config: SandboxConfig) -> dict[str, str]:
    """The single-valued lines of slurm.conf; a key that is given twice fails."""
    found: dict[str, str] = {}
    for line in conf.slurm_conf(config).splitlines():
        key, _, value = line.partition("=")
        if key in ("NodeName", "PartitionName"):
            continue
        assert key not in found, f"{key} is given twice"
        found[key] = value
    return found


def test_the_default_configuration() -> None:
    found = settings(SandboxConfig())
    assert found["SlurmdTimeout"] == "300"
    assert found["ProctrackType"] == "proctrack/linuxproc"
    assert found["TaskPlugin"] == "task/none"
    assert found["AuthInfo"] == "socket=/run/munge/munge.socket.2"
    assert found["AccountingStorageType"] == "accounting_storage/slurmdbd"
    assert "GresTypes" not in found
    assert "TopologyPlugin" not in found


def test_without_accounting_nothing_names_slurmdbd() -> None:
    text = conf.slurm_conf(SandboxConfig(accounting=False, gpus_per_node=1))
    assert "AccountingStorageType=accounting_storage/none" in text
    assert "slurmdbd" not in text
    assert "AccountingStorageTRES" not in text


def test_gpus_are_fake_devices_in_the_state_folder() -> None:
    config = SandboxConfig(nodes=2, gpus_per_node=4)
    assert conf.gres_conf(config) == (
        "NodeName=n[1-2] Name=gpu Type=h200 File=/run/srobust-sandbox/dev/gpu[0-3]\n"
    )
    assert conf.gres_conf(SandboxConfig(nodes=1, gpus_per_node=1)).endswith("/dev/gpu0\n")
    assert conf.gres_conf(SandboxConfig()) == ""
    assert " Gres=gpu:h200:4 " in conf.slurm_conf(config)
    assert settings(config)["AccountingStorageTRES"] == "gres/gpu"


def test_a_node_claims_its_cpus_in_two_sockets_where_they_divide() -> None:
    even, odd = (conf.slurm_conf(SandboxConfig(nodes=1, cpus=n)) for n in (8, 3))
    assert "CPUs=8 Boards=1 SocketsPerBoard=2 CoresPerSocket=4" in even
    assert "CPUs=3 Boards=1 SocketsPerBoard=1 CoresPerSocket=3" in odd


def test_lines_of_the_user_replace_ours_whatever_their_case() -> None:
    found = settings(SandboxConfig(slurm_conf_lines=("returntoservice=2", "KillWait=5")))
    assert found["ReturnToService"] == "2"
    assert found["KillWait"] == "5"


def test_items_of_the_user_are_added_to_lists() -> None:
    lines = ("SchedulerParameters=bf_interval=30,permit_job_expansion", "AuthInfo=cred_expire=9")
    found = settings(SandboxConfig(slurm_conf_lines=lines, cred_expire_s=5))
    assert found["SchedulerParameters"] == (
        "batch_sched_delay=0,sched_interval=5,bf_interval=30,permit_job_expansion"
    )
    assert found["AuthInfo"] == "socket=/run/munge/munge.socket.2,cred_expire=9"


def test_objects_of_the_user_come_last() -> None:
    line = "PartitionName=debug Nodes=n1"
    assert conf.slurm_conf(SandboxConfig(slurm_conf_lines=(line,))).splitlines()[-1] == line


def test_leaf_switches_hold_all_nodes() -> None:
    config = SandboxConfig(nodes=5, leaf_size=2)
    assert conf.topology_conf(config) == (
        "SwitchName=leaf1 Nodes=n1,n2\n"
        "SwitchName=leaf2 Nodes=n3,n4\n"
        "SwitchName=leaf3 Nodes=n5\n"
        "SwitchName=spine Switches=leaf1,leaf2,leaf3\n"
    )
    assert settings(config)["TopologyPlugin"] == "topology/tree"


def test_blocks_hold_all_nodes() -> None:
    line = "TopologyPlugin=topology/block"
    config = SandboxConfig(nodes=4, leaf_size=2, slurm_conf_lines=(line,))
    expected = "BlockName=block1 Nodes=n1,n2\nBlockName=block2 Nodes=n3,n4\nBlockSizes=2\n"
    assert conf.topology_conf(config) == expected
    assert settings(config)["TopologyPlugin"] == "topology/block"


def test_newer_releases_do_without_a_cgroup_plugin() -> None:
    assert conf.cgroup_conf(SandboxConfig(), (22, 5)) == "CgroupPlugin=cgroup/v1\n"
    assert conf.cgroup_conf(SandboxConfig(), (24, 5)) == "CgroupPlugin=cgroup/v1\n"
    assert conf.cgroup_conf(SandboxConfig(), (24, 11)) == "CgroupPlugin=disabled\n"
    assert conf.cgroup_conf(SandboxConfig(), (25, 5)) == "CgroupPlugin=disabled\n"
    with_cgroups = SandboxConfig(cgroups=True)
    assert conf.cgroup_conf(with_cgroups, (26, 5)) == "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n"
    assert "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\n" in conf.slurm_conf(with_cgroups)


def test_users_of_the_machine_give_way() -> None:
    machine = "root:x:0:0::/root:/bin/sh\nalice:x:5:5::/x:/bin/sh\ncarol:x:10002:1::/y:/bin/sh\n"
    assert conf.passwd(SandboxConfig(nodes=2), machine) == (
        "root:x:0:0::/root:/bin/sh\n"
        "alice:*:10001:10001::/home/alice:/bin/bash\n"
        "bob:*:10002:10002::/home/bob:/bin/bash\n"
    )
    assert (
        conf.group(SandboxConfig(nodes=2), "root:x:0:\nbob:x:9:\n")
        == "root:x:0:\nalice:x:10001:\nbob:x:10002:\n"
    )


def test_only_the_sandbox_has_names() -> None:
    assert conf.hosts(SandboxConfig(nodes=2)).splitlines() == [
        "127.0.0.1 localhost",
        "10.77.0.1 head",
        "10.77.0.11 n1",
        "10.77.0.12 n2",
    ]
    assert "hosts: files\n" in conf.nsswitch()
