"""The training of the tests: every rank hangs in a way of its own until its gate, a FIFO, is opened.

Ranks that skip the second collective hold up the others in it.
"""

import ctypes
import os
import signal
import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

GATE = os.environ["GATE"]


class Gated(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        pass_gate()
        return torch.zeros(1)


def pass_gate() -> None:
    os.close(os.open(GATE, os.O_RDONLY))


def in_collective() -> None:
    """Where those end that do nothing else before."""


def in_c() -> None:
    """No other thread of this process can run Python meanwhile."""
    ctypes.PyDLL(None).open(GATE.encode(), os.O_RDONLY)


def in_lock() -> None:
    lock = threading.Lock()
    lock.acquire()

    def release() -> None:
        pass_gate()
        lock.release()

    threading.Thread(target=release, name="releaser").start()
    lock.acquire()


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def in_loader() -> None:
    for _ in DataLoader(Gated(), num_workers=1):
        pass


if __name__ == "__main__":
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    globals()[os.environ["HANG"]]()
    dist.all_reduce(torch.ones(1))
    print("done", flush=True)
