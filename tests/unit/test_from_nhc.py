"""The page for those who come from NHC: every check of NHC is there, and what it names exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from slurm_robust.nodes.registry import CHECKS

CHECKS_PAGE = Path(__file__).parents[2] / "docs" / "node-checks.md"
PAGE = CHECKS_PAGE.read_text().partition("\n## Coming from NHC\n")[2]
# All functions of scripts/*.nhc in NHC's repository that nhc.conf can name.
NHC = [
    "check_cmd_dmesg",
    "check_cmd_output",
    "check_cmd_status",
    "check_dmi_data_match",
    "check_dmi_raw_data_match",
    "check_file_contents",
    "check_file_stat",
    "check_file_test",
    "check_fs_free",
    "check_fs_ifree",
    "check_fs_inodes",
    "check_fs_iused",
    "check_fs_mount",
    "check_fs_mount_ro",
    "check_fs_mount_rw",
    "check_fs_size",
    "check_fs_used",
    "check_hw_cpuinfo",
    "check_hw_eth",
    "check_hw_gm",
    "check_hw_ib",
    "check_hw_mcelog",
    "check_hw_mem",
    "check_hw_mem_free",
    "check_hw_physmem",
    "check_hw_physmem_free",
    "check_hw_swap",
    "check_hw_swap_free",
    "check_moab_rm",
    "check_moab_sched",
    "check_moab_torque",
    "check_net_ping",
    "check_net_socket",
    "check_nv_healthmon",
    "check_nvsmi_healthmon",
    "check_ps_blacklist",
    "check_ps_cpu",
    "check_ps_daemon",
    "check_ps_kswapd",
    "check_ps_loadavg",
    "check_ps_mem",
    "check_ps_physmem",
    "check_ps_service",
    "check_ps_time",
    "check_ps_unauth_users",
    "check_ps_userproc_lineage",
]
SCRIPTS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def test_every_check_of_nhc_has_its_row() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `check_")]
    named = [name for row in rows for name in re.findall(r"`(check_\w+)`", row.split("|")[1])]
    assert sorted(named) == NHC


def test_every_check_of_ours_that_it_names_exists() -> None:
    groups = {check.name.partition(".")[0] for check in CHECKS}
    named = {name for name in re.findall(r"`(\w+\.\w+)`", PAGE) if name.partition(".")[0] in groups}
    settings = {name for name in named if name.partition(".")[2].startswith(("m", "re"))}
    unknown = {name for name in named if name not in {check.name for check in CHECKS}}
    assert unknown <= settings
    assert len(named - settings) > 20


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_of_the_nhc_page_follow_the_convention(script: str) -> None:
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode in (0, 1, 2, 3)
    assert "Syntax" not in done.stderr
    assert bool(done.stdout) is bool(done.returncode)
