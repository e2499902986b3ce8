"""Facts of a site, a job and a node without any hazard, and for each rule those that it must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from slurm_robust.checkpoint.budget import NODE, Room
from slurm_robust.config.job import JobConfig
from slurm_robust.doctor.facts import Facts, NodeFacts, Software
from slurm_robust.doctor.launchers import RunLine
from slurm_robust.doctor.shape import ScriptLine, ScriptShape
from slurm_robust.hooks.times import HookTimes
from slurm_robust.model.job import CommandKind
from slurm_robust.slurm.options import OFF, Options
from slurm_robust.slurm.records import Terms
from tests.builders import records

GB = 10**9
SLURM = {
    "SLURM_VERSION": "26.05.5",
    "AuthInfo": "socket=/run/munge/munge.socket.2,cred_expire=120",
    "BatchStartTimeout": "10 sec",
    "CompleteWait": "0 sec",
    "Epilog": "/etc/slurm/epilog.sh",
    "EpilogMsgTime": "2000 usec",
    "GresTypes": "gpu",
    "HealthCheckInterval": "60 sec",
    "HealthCheckProgram": "/usr/sbin/nhc",
    "JobContainerType": "job_container/none",
    "JobFileAppend": "0",
    "JobRequeue": "1",
    "KillWait": "30 sec",
    "MaxBatchRequeue": "5",
    "MessageTimeout": "10 sec",
    "PreemptMode": "CANCEL",
    "PreemptType": "preempt/none",
    "Prolog": "/etc/slurm/prolog.sh",
    "PrologEpilogTimeout": "120",
    "PrologFlags": "Alloc,Contain",
    "RequeueExit": "1-9,75",
    "ReturnToService": "1",
    "SchedulerParameters": "bf_interval=5,nohold_on_prolog_fail,requeue_delay=0",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "SlurmctldParameters": "enable_expedited_requeue,cloud_dns",
    "SlurmdTimeout": "60 sec",
    "SuspendTime": "INFINITE",
    "UnkillableStepTimeout": "180 sec",
}
OPTIONS = {"no-kill": "", "requeue": "expedite", "signal": "B:USR1@120", "open-mode": "append", "mem": "0"}
JOB = records.job(requeue=True, num_nodes=4, time_limit_s=86400.0)
CONFIG = JobConfig(spares=1)


def hook_times(**usual: float) -> dict[str, HookTimes]:
    """Runs of hooks by the event log."""
    return {
        hook: HookTimes(runs=400, nodes=1, since=1_700_000_000.0, usual_s=usual_s, longest_s=2 * usual_s)
        for hook, usual_s in usual.items()
    }


GOOD = Facts(
    config=CONFIG,
    configured=CONFIG,
    refused="",
    hears=True,
    shape=ScriptShape(),
    run=RunLine(options=("--spares", "1"), kind=CommandKind.SCRIPT, command=("train.py",)),
    missing="",
    uncopied="",
    slurm=SLURM,
    hook_times=hook_times(prolog=0.4, epilog=1.5),
    clock_s=0.4,
    job=JOB,
    options=Options(given=OPTIONS),
    environ={"NCCL_SOCKET_IFNAME": "ib,eth", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_IB_TIMEOUT": "20"}
    | {"NCCL_IB_RESILIENCY_PORT_FAILOVER": "1", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480"},
    software=Software(torch=(2, 13, 0), nccl=(2, 30, 7), cuda=(13, 0), driver=(580, 65, 6)),
    node=NodeFacts(
        rooms=(
            Room(name="the file system of /dev/shm", total=900 * GB, free=900 * GB),
            Room(name=NODE, total=1800 * GB, free=1700 * GB),
            Room(name="the cgroup /job_7", total=1750 * GB, free=1700 * GB),
        ),
        gpu_memory=0,
        memory_mode="driver",
        addresses=("10.0.0.7",),
        speeds={"10.0.0.7": ("eth0", 12.5e9), "10.20.0.7": ("ib0", 25e9)},
        interfaces=("lo", "eth0", "ib0"),
        hcas=("mlx5_0", "mlx5_1"),
        memlock=None,
        synchronised=True,
    ),
    gpus=True,
    nodes=4,
    ranks=32,
    state_bytes=40 * GB,
)

Change = Callable[[Facts], Facts]


def fact(**changes: Any) -> Change:
    """Other facts."""
    return lambda facts: msgspec.structs.replace(facts, **changes)


def slurm(**changes: str) -> Change:
    """Other values of slurm.conf."""
    return lambda facts: msgspec.structs.replace(facts, slurm={**(facts.slurm or {}), **changes})


def options(**changes: str | None) -> Change:
    """Other options of sbatch, None for one that was not given; ``_`` stands for ``-``."""
    given = OPTIONS | {name.replace("_", "-"): value for name, value in changes.items()}
    kept = {name: value for name, value in given.items() if value is not None}
    return fact(options=Options(given=kept))


def environ(**changes: str) -> Change:
    """Variables."""
    return fact(environ=changes)


def software(**changes: tuple[int, ...]) -> Change:
    """Other releases."""
    return fact(software=msgspec.structs.replace(GOOD.software, **changes))


def node(**changes: Any) -> Change:
    """Another node."""
    return fact(node=msgspec.structs.replace(GOOD.node, **changes))


def config(section: str = "", **changes: Any) -> Change:
    """Other settings of the job."""
    inner = {section: msgspec.structs.replace(getattr(CONFIG, section), **changes)} if section else changes
    whole = msgspec.structs.replace(CONFIG, **inner)
    return fact(config=whole, configured=whole)


def rooms(**totals: int) -> Change:
    """Limits on memory, by name."""
    return node(rooms=tuple(Room(name=name, total=total, free=total) for name, total in totals.items()))


def runs(*command: str) -> Change:
    """Another command behind ``srobust run``."""
    return fact(run=RunLine(options=(), kind=CommandKind.EXEC, command=command))


def preempted(by: str = "preempt/qos", *, saved_s: float | None = None, **terms: Any) -> Change:
    """A site where jobs are preempted, by these terms."""
    return lambda facts: slurm(PreemptType=by, PreemptMode="REQUEUE")(
        fact(preemption=Terms(name="low", **terms), saved_s=saved_s)(facts)
    )


BAD: dict[str, tuple[Change, ...]] = {
    "job.unprotected": (
        fact(shape=ScriptShape(protected=False)),
        fact(shape=ScriptShape(protected=False, training=("torchrun", "t.py"), elsewhere="env.sh")),
    ),
    "job.launcher": (
        runs("torchrun", "--nproc_per_node", "8", "train.py"),
        runs("python3", "-m", "torch.distributed.run", "train.py"),
        runs("srun", "python", "train.py"),
    ),
    "job.script_missing": (fact(missing="/home/me/trian.py"),),
    "job.misspelt_option": (fact(options=Options(given=OPTIONS, unknown=("--partion",))),),
    "job.local_output": (options(output="/tmp/%j.out"), options(error="/dev/shm/x")),
    "job.working_folder": (fact(shape=ScriptShape(local=ScriptLine(number=5, text="cd /tmp"))),),
    "settings.local_folder": (config(job_dir="/tmp/jobs"), config("checkpoint", directory="/var/tmp/c")),
    "cuda.launch_blocking": (environ(CUDA_LAUNCH_BLOCKING="1"),),
    "slurm.release": (slurm(SLURM_VERSION="21.08.5"),),
    "job.code_in_place": (
        fact(uncopied="the folder /home/me is too large for code: it has more than 20000 files"),
        config("code", releases=False),
    ),
    "slurm.kill_wait": (slurm(KillWait="15 sec"), config("timings", stop_grace_s=20.0, shutdown_s=30.0)),
    "ends.saving": (slurm(KillWait="15 sec"),),
    "ends.grace": (
        preempted(grace_s=20, mode="CANCEL"),
        preempted("preempt/partition_prio", grace_s=60, mode="REQUEUE", saved_s=50.0),
        lambda facts: slurm(KillWait="15 sec")(preempted(mode="REQUEUE")(facts)),
    ),
    "slurm.unkillable_step_timeout": (slurm(UnkillableStepTimeout="60 sec"),),
    "slurm.unkillable_messages": (slurm(MessageTimeout="60 sec"),),
    "slurm.slurmd_never_down": (slurm(SlurmdTimeout="0 sec"),),
    "slurm.slurmd_timeout": (slurm(SlurmdTimeout="300 sec"),),
    "slurm.requeue_delay": (
        slurm(SchedulerParameters="", AuthInfo=""),
        slurm(SchedulerParameters="requeue_delay=60"),
        slurm(SLURM_VERSION="24.11.5", SchedulerParameters="requeue_delay=0"),
    ),
    "slurm.expedited_requeue": (slurm(SlurmctldParameters=""),),
    "slurm.max_batch_requeue": (slurm(MaxBatchRequeue="1"),),
    "slurm.job_requeue": (lambda facts: slurm(JobRequeue="0")(fact(job=None, options=None)(facts)),),
    "slurm.nohold_on_prolog_fail": (slurm(SchedulerParameters="bf_interval=5"),),
    "slurm.prolog_flags": (slurm(PrologFlags="Serial"),),
    "slurm.prolog_beside": (slurm(PrologFlags="NoHold"),),
    "slurm.prolog_timeout": (
        slurm(PrologEpilogTimeout="65534"),
        slurm(PrologEpilogTimeout="", PrologTimeout="60"),
        slurm(PrologEpilogTimeout="", EpilogTimeout="60", PrologTimeout="65534"),
    ),
    "slurm.prolog_near_timeout": (
        fact(hook_times=hook_times(prolog=100.0)),
        fact(hook_times=hook_times(prolog=0.4, epilog=100.0)),
        lambda facts: slurm(PrologTimeout="11")(fact(hook_times=hook_times(prolog=9.0))(facts)),
    ),
    "slurm.batch_start_timeout": (
        fact(hook_times=hook_times(prolog=9.0)),
        lambda facts: slurm(PrologFlags="DeferBatch,NoHold")(fact(hook_times=hook_times(prolog=9.0))(facts)),
    ),
    "slurm.return_to_service": (slurm(ReturnToService="0"),),
    "slurm.health_check": (slurm(HealthCheckProgram=""), slurm(HealthCheckInterval="0 sec")),
    "slurm.preemption": (slurm(PreemptType="preempt/qos"), preempted(mode="CANCEL")),
    "slurm.private_memory": (
        slurm(JobContainerType="job_container/tmpfs"),
        slurm(JobContainerType="", NamespaceType="namespace/linux"),
    ),
    "slurm.memory_polled": (slurm(JobAcctGatherParams="OverMemoryKill"),),
    "slurm.requeue_exit": (slurm(RequeueExit="1-93"), slurm(RequeueExitHold="93")),
    "slurm.epilog_messages": (lambda facts: slurm(EpilogMsgTime="20000 usec")(fact(nodes=1000)(facts)),),
    "slurm.complete_wait": (slurm(CompleteWait="32 sec"),),
    "slurm.power_saving": (slurm(SuspendProgram="/usr/sbin/off", SuspendTime="600 sec"),),
    "slurm.completing_for_ever": (
        slurm(SLURM_VERSION="25.11.5", PrologFlags="Alloc,RunInJob"),
        slurm(SLURM_VERSION="24.05.0", PrologFlags="RunInJob"),
    ),
    "slurm.epilog_twice": (slurm(SLURM_VERSION="25.11.6"), slurm(SLURM_VERSION="22.05.8")),
    "slurm.preempted_early": (preempted(mode="REQUEUE"),),
    "clock.offset": (fact(clock_s=3.0), fact(clock_s=-200.0)),
    "clock.credentials": (fact(clock_s=-200.0),),
    "job.unknown_option": (fact(options=Options(given=OPTIONS, unknown=("--foo", "bar"))),),
    "job.late_option": (fact(options=Options(given=OPTIONS, late=(12,))),),
    "job.near_option": (fact(options=Options(given=OPTIONS, near=(3,))),),
    "job.no_kill": (options(no_kill=None),),
    "job.requeue": (
        fact(job=msgspec.structs.replace(JOB, requeue=False)),
        lambda facts: options(requeue=OFF)(fact(job=None)(facts)),
        lambda facts: slurm(JobRequeue="0")(options(requeue=None)(fact(job=None)(facts))),
    ),
    "job.expedite": (options(requeue=""), options(requeue=None)),
    "job.signal": (options(signal=None),),
    "job.signal_target": (options(signal="USR1@120"), options(signal="B:TERM@120")),
    "job.signal_time": (options(signal="B:USR1@30"), config("timings", checkpoint_s=120.0)),
    "job.time_limit": (fact(job=msgspec.structs.replace(JOB, time_limit_s=1800.0)),),
    "job.nodelist": (
        fact(job=msgspec.structs.replace(JOB, required_nodes=("n1", "n2"))),
        options(nodelist="n[1-2]"),
    ),
    "job.open_mode": (options(open_mode=None), options(open_mode="truncate")),
    "job.mem_update": (options(mem_update="20@10"),),
    "job.mem": (options(mem=None),),
    "job.one_node": (options(nodes="4", ntasks="1"), options(nodes="4-8", ntasks="3")),
    "job.heterogeneous": (fact(options=Options(given=OPTIONS, heterogeneous=True)),),
    "job.too_few_nodes": (
        lambda facts: config(spares=2)(fact(nodes=2)(facts)),
        lambda facts: config(nodes=5, spares=1)(fact(nodes=4)(facts)),
    ),
    "job.segment": (options(nodes="18", segment="16"), options(nodes="5", segment="4")),
    "job.segment_spares": (lambda facts: config(spares=8)(options(nodes="72", segment="18")(facts)),),
    "job.gpu_options": (
        options(gres="gpu:8", gpus_per_node="8"),
        lambda facts: options(gpus_per_node="8")(fact(shape=ScriptShape(gres="srun --gres=gpu:8 x"))(facts)),
        fact(shape=ScriptShape(both="srun --gres=gpu:8 --gpus-per-node=8 x")),
        lambda facts: environ(SLURM_GPUS_PER_NODE="8")(
            fact(shape=ScriptShape(gres="srun --gres=gpu:8 x"))(facts)
        ),
    ),
    "job.gpus_in_all": (options(gpus="32"),),
    "job.outer_job": (environ(SLURM_NTASKS="1", SLURM_JOB_ID="7"),),
    "job.open_quote": (fact(shape=ScriptShape(open_quote=7)),),
    "job.exit_code": (fact(shape=ScriptShape(hides="'|| true' behind it", code=0)),),
    "job.exit_requeued": (
        fact(shape=ScriptShape(hides="exit 75", code=75)),
        lambda facts: slurm(RequeueExitHold="99")(fact(shape=ScriptShape(hides="exit 99", code=99))(facts)),
    ),
    "job.signal_unheard": (fact(shape=ScriptShape(protected=False)),),
    "job.trap_wait": (fact(shape=ScriptShape(waits_once="wait $pid")),),
    "job.restart_count": (fact(shape=ScriptShape(restarts="[ $SLURM_RESTART_COUNT -gt 0 ]")),),
    "timeouts.process_group": (config("detect", hang_floor_s=900.0),),
    "timeouts.nccl_heartbeat": (
        environ(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="20"),
        config("detect", hang_floor_s=500.0),
    ),
    "timeouts.node_dead": (config("timings", node_dead_s=2.0),),
    "job.exec": (fact(hears=False),),
    "settings.refused": (fact(refused="srobust run has no option --spare; fix: did you mean --spares?"),),
    "settings.spares": (config(spares=0), lambda facts: config(nodes=4, spares=1)(fact(nodes=4)(facts))),
    "settings.reservation": (
        lambda facts: config("companions", reservation="spare")(fact(reservations=("spares",))(facts)),
    ),
    "settings.imex_channels": (
        lambda facts: config("companions", reservation="spares")(
            slurm(SwitchType="switch/nvidia_imex")(fact(reservations=("spares",))(facts))
        ),
    ),
    "settings.memory": (config("checkpoint", memory=False),),
    "settings.peers": (config("checkpoint", peers=False),),
    "settings.hang": (config("detect", hang=False),),
    "settings.requeue": (config("slurm", requeue=False),),
    "settings.observe": (config(mode="observe"),),
    "torch.release": (software(torch=(2, 3, 1)),),
    "torch.driver": (software(driver=(570, 124, 6)), software(cuda=(12, 8, 90), driver=(470, 256, 2))),
    "nccl.large_scale": (software(nccl=(2, 28, 3)), software(nccl=(2, 28, 7))),
    "nccl.all_to_all": (lambda facts: software(nccl=(2, 27, 2))(fact(ranks=128)(facts)),),
    "nccl.corruption": (software(nccl=(2, 18, 1)),),
    "nccl.abort": (software(nccl=(2, 25, 1)),),
    "nccl.ras_crash": (software(nccl=(2, 26, 5)),),
    "nccl.shrink": (software(nccl=(2, 31, 2)),),
    "nccl.port_failover": (environ(), environ(NCCL_IB_RESILIENCY_PORT_FAILOVER="0")),
    "nccl.error_handling": (
        environ(TORCH_NCCL_ASYNC_ERROR_HANDLING="0"),
        environ(NCCL_ASYNC_ERROR_HANDLING="0"),
    ),
    "nccl.aborting": (environ(TORCH_NCCL_ASYNC_ERROR_HANDLING="1"),),
    "nccl.flight_recorder": (environ(TORCH_FR_BUFFER_SIZE="0"), environ(TORCH_NCCL_TRACE_BUFFER_SIZE="0")),
    "nccl.timing": (environ(TORCH_NCCL_ENABLE_TIMING="0"),),
    "nccl.unrecorded": (
        software(torch=(2, 4, 1)),
        lambda facts: environ(TORCH_DIST_USE_NCCL2="1")(software(torch=(2, 14, 1))(facts)),
    ),
    "nccl.unseen_gpus": (software(torch=(2, 15, 0)),),
    "nccl.ras": (environ(NCCL_RAS_ENABLE="0"),),
    "nccl.ib_timeout": (environ(NCCL_IB_TIMEOUT="14"), environ(NCCL_IB_TIMEOUT="18", NCCL_IB_RETRY_CNT="1")),
    "nccl.interfaces": (
        environ(NCCL_SOCKET_IFNAME="bond"),
        environ(NCCL_SOCKET_IFNAME="=eth"),
        environ(GLOO_SOCKET_IFNAME="eth"),
    ),
    "node.address": (node(addresses=()), node(addresses=("127.0.1.1", "::1"))),
    "node.slow_address": (
        node(speeds={"10.0.0.7": ("eth0", 125e6), "10.20.0.7": ("ib0", 50e9)}),
        node(
            speeds={"10.0.0.7": ("eno1", 1.25e9), "fd00::7": ("eno2", 125e6), "10.20.0.7": ("ens1", 12.5e9)}
        ),
        node(addresses=("fe80::1", "10.0.0.7"), speeds={"10.0.0.7": ("eth0", 125e6), "10.2.0.7": ("b", 1e9)}),
    ),
    "memory.shared_memory": (rooms(shm=64 << 20),),
    "memory.shared_memory_full": (node(rooms=(Room(name="shm", total=500 * GB, free=40 * GB),)),),
    "memory.limit": (
        rooms(shm=900 * GB, **{NODE: 1800 * GB, "cgroup": 100 * GB}),
        rooms(shm=490 * GB, **{f"{NODE} (but 754.0 GB …)": 980 * GB, "cgroup": 100 * GB}),
    ),
    "memory.no_snapshots": (rooms(shm=30 * GB),),
    "memory.snapshots": (rooms(shm=200 * GB), rooms(shm=900 * GB, **{NODE: 300 * GB})),
    "memory.of_gpus": (node(gpu_memory=754 * GB), node(gpu_memory=97 * GB, memory_mode="numa")),
    "memory.locked": (node(memlock=8 << 20),),
    "clock.sync": (node(synchronised=False),),
}
"""For each rule the changes of :data:`GOOD` of which each must make it fire."""
