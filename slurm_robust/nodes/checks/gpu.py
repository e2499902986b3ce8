"""Checks of the GPUs: one question to the driver, and thirteen judgements of its answer."""

from __future__ import annotations

from slurm_robust.model.findings import Effect, Writer
from slurm_robust.nodes.check import EVERYWHERE, NOT_LIVE, AnyCheck, Check, CheckContext, Probe, Source
from slurm_robust.nodes.gpus import errors, leftovers, links, presence, speed
from slurm_robust.nodes.gpus.facts import GpuFacts, GpuUse
from slurm_robust.nodes.gpus.gather import gather_gpus, gather_use

# A driver that does not answer is a fact, which comes well before the time is over. No answer at all is a
# node that has no time for us.
GPUS = Source("gpu", GpuFacts, gather_gpus, timeout_s=5.0, history_s=3600.0)

# Never from the cache: what an earlier run saw was the job that is gone now. Only whether it becomes less.
GPU_USE = Source("gpu-use", GpuUse, gather_use, timeout_s=3.5, fresh_s=0.0, history_s=600.0)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        presence.LOST,
        GPUS,
        presence.judge_lost,
        "Every GPU that the driver lists answers, and the driver itself answers in time. A GPU that is lost "
        "has fallen off the bus: only a reboot or a power cycle brings it back, and one that is lost again "
        "is for the repair desk. A driver that hangs, or a GPU that answers with errors, needs a reboot "
        "too; both count when a second run, 10 s later or more, finds the same.",
        hangs=True,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        presence.COUNT,
        GPUS,
        presence.judge_count,
        "As many GPUs as gpu.count or the baseline says. Without either, every GPU on the PCI bus must be "
        "listed by the driver. See dmesg for why one did not start; reboot, then reseat the card.",
        written_by=Writer.DRIVER,
        contexts=NOT_LIVE,
        probe=Probe.GPU,
    ),
    Check(
        presence.IDENTITY,
        GPUS,
        presence.judge_identity,
        "The UUIDs are those of the baseline. Others mean that a card was exchanged: record the "
        "baseline again after a repair (srobust check --record-baseline).",
        written_by=Writer.DRIVER,
        contexts=NOT_LIVE,
        probe=Probe.GPU,
    ),
    Check(
        errors.ECC,
        GPUS,
        errors.judge_ecc,
        "Memory errors. A new uncorrected one asks for a reset of the GPU, which also puts spare rows in "
        "place of bad ones; more SRAM errors than the maker allows ask for a new GPU. Errors that the driver "
        "has contained before, those of a GPU's past and many corrected ones are only reported.",
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        errors.REMAP,
        GPUS,
        errors.judge_remap,
        "Bad memory rows that spare ones replace. A pending remapping takes effect at the next reset of the "
        "GPU, and jobs may run until then; a failed one means that no spare row is left: exchange the GPU.",
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        errors.RETIRED,
        GPUS,
        errors.judge_retired_pages,
        "Memory pages that older GPUs take out of use. Pending ones need a reset; a GPU with 60 of them "
        "should be replaced.",
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        errors.RECOVERY,
        GPUS,
        errors.judge_recovery,
        "The recovery that the driver itself asks for: a reset of the GPU, or a reboot of the node.",
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        links.NVLINK,
        GPUS,
        links.judge_nvlink,
        "As many NVLinks up as gpu.min_nvlinks, the baseline or an earlier run says, and an initialised "
        "fabric on systems with NVSwitches. Reset the GPUs, restart nvidia-fabricmanager, look at the trays.",
        effect=Effect.LINK_DOWN,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        links.FABRIC,
        GPUS,
        links.judge_fabric,
        "The NVLink clique of the node's GPUs: those of one clique reach each other over NVLink, also from "
        "node to node of a rack. GPUs of several cliques, or of another one than in the baseline, make jobs "
        "over NVLink slow or impossible: look at the fabric manager's partitions.",
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        links.PCIE,
        GPUS,
        links.judge_pcie,
        "Width and speed of the PCIe link. Fewer lanes than before mean a bad contact: reseat the card or "
        "its riser. A link may be slower while the GPU is idle, so speed alone drains nothing then.",
        effect=Effect.SLOW,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        speed.THROTTLE,
        GPUS,
        speed.judge_throttle,
        "The hardware slows the GPU down: heat, or a brake of the power supply. A single sample of a busy "
        "GPU is only reported; a second one, or one of an idle GPU, keeps jobs away.",
        effect=Effect.SLOW,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        speed.TEMPERATURE,
        GPUS,
        speed.judge_temperature,
        "Temperature of GPU and memory against gpu.max_temperature_c, else 2 C below where the hardware "
        "slows down. Check fans, airflow and coolant.",
        effect=Effect.SLOW,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        speed.CLOCKS,
        GPUS,
        speed.judge_clocks,
        "A GPU that works runs at half its maximal clock at least; with gpu.application_clocks, no "
        "application clocks are left below the maximum (nvidia-smi -rac).",
        effect=Effect.SLOW,
        written_by=Writer.OWNER,
        contexts=EVERYWHERE,
        probe=Probe.GPU,
    ),
    Check(
        speed.PERSISTENCE,
        GPUS,
        speed.judge_persistence,
        "Persistence mode, where gpu.persistence or the baseline wants it. Without it, every first use of a "
        "GPU waits for the driver, and checks of a sleeping driver may end as unknown.",
        written_by=Writer.ROOT,
        contexts=NOT_LIVE,
        probe=Probe.GPU,
    ),
    Check(
        leftovers.LEFTOVERS,
        GPU_USE,
        leftovers.judge_leftovers,
        "Where no job runs, no process holds a GPU and its memory is free. Kill the process that is named. "
        "Memory that no living process holds is being freed, for which the epilog waits up to 60 s; what has "
        "not become less by then needs a reset of the GPU.",
        written_by=Writer.OWNER,
        contexts=NOT_LIVE - {CheckContext.PERIODIC},
        probe=Probe.NODE,
        second="the driver lists the process, /proc has it alive, and Slurm's own daemons run no other job",
    ),
)
