"""What a call says of its caller: rules on functions and files."""

from __future__ import annotations

import re
from enum import Enum


class Activity(str, Enum):
    """What a rank does, by what matters for the question which rank waits for which."""

    STOPPED = "is stopped"
    GONE = "is gone"
    KERNEL = "is in the kernel and cannot be interrupted"
    SILENT = "shows no stacks"
    PEERS = "waits for other ranks"
    DEVICE = "waits in backward or for its device"
    """It may also wait for other ranks."""

    DATA = "waits for data"
    CHECKPOINT = "writes or reads a checkpoint"
    IO = "reads or writes"
    HELPER = "waits for a thread of its own"
    COMPUTE = "computes"

    @property
    def waits(self) -> bool:
        """Whether a healthy rank does this until the others have come."""
        return self in (Activity.PEERS, Activity.DEVICE)


class Role(Enum):
    """What a call is for that means nothing by itself: its caller does."""

    NATIVE = "native"
    WAIT = "wait"


Meaning = Activity | Role

_COLLECTIVE = (
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier|broadcast|isend|irecv|send_recv|recv_send"
    r"|(send|recv)_(forward|backward)|batch_isend_irecv|wait_for_unshard|wait_for_peers"
)
# The first rule that fits counts; without one, Python code computes and native code means nothing.
_PYTHON: tuple[tuple[Meaning, str, str], ...] = (
    (
        Activity.CHECKPOINT,
        "",
        r"torch/distributed/checkpoint/|torch/serialization\.py|slurm_robust/checkpoint/",
    ),
    (Activity.CHECKPOINT, "", r"safetensors/|tensorstore/|zarr/|dist_checkpointing/"),
    # Scripts that evaluate or log ask these all the time; they wait for no other rank.
    (Activity.COMPUTE, r"^(get_|is_)|^_rank_not_in_group$", r"torch/distributed/distributed_c10d\.py"),
    (Activity.PEERS, "", r"torch/distributed/(?!elastic/)|torch/nn/parallel/distributed\.py"),
    (Activity.PEERS, "", r"deepspeed/comm/|pipe/p2p\.py|p2p_communication\.py|horovod/|mpi4py/"),
    (Activity.PEERS, rf"^_?({_COLLECTIVE})(_|$)", ""),
    (Activity.DATA, "", r"torch/utils/data/|torchdata/|webdataset/|nvidia/dali/|litdata/"),
    (Activity.DEVICE, "", r"torch/(cuda|xpu|accelerator|autograd)/|torch/_tensor\.py"),
    (Role.WAIT, "", r"(^|/)(threading|queue|selectors)\.py$|(^|/)(multiprocessing|concurrent|asyncio)/"),
    (Activity.IO, "", r"python3[.\d]*/(shutil|tempfile|gzip|zipfile|tarfile|bz2|lzma|pathlib|glob)\.py$"),
    (Activity.IO, "", r"python3[.\d]*/(socket|ssl|subprocess)\.py$|python3[.\d]*/(http|urllib)/"),
    (Activity.IO, "", r"(fsspec|s3fs|gcsfs|boto3?|botocore|urllib3|requests|aiohttp|h5py|pyarrow|PIL)/"),
)
_NATIVE: tuple[tuple[Meaning, str], ...] = (
    (Activity.PEERS, r"c10d::|gloo::|nccl[A-Z]|\bucc_|\bMPI_|nvshmem|\bibv_"),
    (
        Activity.DEVICE,
        r"\b(cuda|cu|hip)(?=[A-Z])\w*(Synchronize|Memcpy|LaunchKernel|EventQuery)|_local_scalar_dense",
    ),
    (Activity.COMPUTE, r"\bat::(native|_ops|cpu|cuda)::|\bmkl_|dnnl::|cublas|cudnn|gemm"),
    (
        Activity.IO,
        r"^_*(libc_)?(p?(read|write)v?|fsync|fdatasync|open(at)?|f?stat(at)?|lstat|statx|rename)(64)?$",
    ),
)
_POINT_TO_POINT = re.compile(r"(\b|_)(i?send|i?recv|p2p)(_|\b)")


def is_native(file: str) -> bool:
    """Return whether a call in ``file`` is C or C++: Python's files end in ``.py`` or are ``<string>``."""
    return not file.endswith((".py", ".pyx")) and not file.startswith("<") and file != ""


def meaning(function: str, file: str) -> Meaning:
    """Return what one call says by itself. ``function`` without the class before it."""
    if is_native(file):
        return next((found for found, name in _NATIVE if re.search(name, function)), Role.NATIVE)
    for found, name, path in _PYTHON:
        if (not name or re.search(name, function)) and (not path or re.search(path, file)):
            return found
    return Activity.COMPUTE


def is_point_to_point(form: str) -> bool:
    """Return whether the innermost call of a normalised stack sends to, or receives from, a single rank."""
    return bool(_POINT_TO_POINT.search(form.partition("\n")[0]))
