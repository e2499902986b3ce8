"""A process that imports as a zygote does, forks, and says whether the child can use the GPU."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from slurm_robust.util.process import die_with_parent
from slurm_robust.worker import zygote

_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED


def _modules(*names: str) -> Callable[[], None]:
    def load() -> None:
        for name in names:
            importlib.import_module(name)

    return load


def _zygotes() -> None:
    for name in ("torch", *zygote._TORCH_MODULES, "slurm_robust.worker.api"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # as there


def _is_available() -> None:
    import torch

    torch.cuda.is_available()


def _nvml() -> None:
    import pynvml

    pynvml.nvmlInit()
    pynvml.nvmlDeviceGetCount()


def _cu_init() -> None:
    ctypes.CDLL("libcuda.so.1").cuInit(0)


CASES: dict[str, Callable[[], None]] = {
    "torch alone": _modules("torch"),
    "all that the zygote imports": _zygotes,
    "torch.cuda.is_available()": _is_available,
    "torch._inductor.compile_fx": _modules("torch._inductor.compile_fx"),
    "transformers": _modules("transformers", "transformers.trainer"),
    "lightning": _modules("lightning"),
    "nvmlInit()": _nvml,
    "cuInit() by another library": _cu_init,
}


def main() -> None:
    """Do what ``--case`` says, fork, and print what is found as a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=list(CASES), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    options = parser.parse_args()
    die_with_parent(os.getppid())
    begun = time.monotonic()
    try:
        with zygote.asking_nvml(os.environ):
            CASES[options.case]()
            import torch
    except ImportError as error:
        print(json.dumps({"import_error": str(error)}))
        return
    found: dict[str, object] = {"import_s": time.monotonic() - begun, **state()}
    begun = time.monotonic()
    receive, send = os.pipe()
    if (pid := os.fork()) == 0:
        child = {"fork_s": time.monotonic() - begun, **use(torch.device(options.device))}
        os.write(send, json.dumps(child).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        found |= json.loads(pipe.read() or b'{"child": "died"}')
    os.waitpid(pid, 0)
    found["judged"] = _judged(refuses=bool(found["refuses"]), works=found["child"] == "works")
    print(json.dumps(found))


def state() -> dict[str, object]:
    """What an import has left that may hurt a fork, and what the zygote makes of it."""
    refuses = zygote.has_started_driver()  # first: it asks only a library that is loaded
    try:
        count = ctypes.c_int()
        driver_is_up = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED
    except OSError:
        driver_is_up = False
    return {
        "driver_is_up": driver_is_up,
        "devices": sorted(
            {name for name in map(_target, Path("/proc/self/fd").iterdir()) if "nvidia" in name}
        ),
        "threads": len(os.listdir("/proc/self/task")),
        "refuses": refuses,
    }


def use(device: object) -> dict[str, object]:
    """In the child: a context, and some work."""
    import torch

    assert isinstance(device, torch.device)
    begun = time.monotonic()
    try:
        x = torch.ones(1024, 1024, device=device)
        context_s = time.monotonic() - begun
        works = float((x @ x)[0, 0]) == 1024.0
        first_s = time.monotonic() - begun
    except Exception as error:  # noqa: BLE001 - it is the result
        return {"child": f"{type(error).__name__}: {error}".partition("\n")[0][:160]}
    return {
        "child": "works" if works else "computes wrongly",
        "context_s": context_s,
        "first_product_s": first_s,
    }


def _judged(*, refuses: bool, works: bool) -> str:
    if works:
        return "needless: it refuses, and a fork works" if refuses else "right"
    return "right" if refuses else "gap: it does not refuse, and a fork cannot use the GPU"


def _target(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except OSError:
        return ""  # that of the folder itself


if __name__ == "__main__":
    main()
