"""Makes parts of tests bad for real: on PYTHONPATH, read by every Python before it begins.

``SROBUST_TEST_FAULTS`` is a folder with a file for each bad node. ``arithmetic``: the lowest bit of an
element of every product of matrices is flipped. ``stop``: the process stops itself and can only be killed.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path


def fault():
    words = sys.orig_argv
    if "slurm_robust.diagnostics" not in words:
        return ""
    node = words[words.index("--node") + 1] if "--node" in words else os.environ.get("SLURMD_NODENAME", "")
    file = Path(os.environ["SROBUST_TEST_FAULTS"]) / node
    return file.read_text().strip() if node and file.exists() else ""


def break_arithmetic(torch):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Flipped(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
                bits = result.detach().view(torch.int32 if result.element_size() == 4 else torch.int16)
                bits.view(-1)[0] ^= 1
            return result

    Flipped().__enter__()


class AfterTorch:
    """Lets torch be imported, then breaks it."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        load = spec.loader.exec_module

        def load_and_break(module):
            load(module)
            break_arithmetic(module)

        spec.loader.exec_module = load_and_break
        return spec


match fault():
    case "arithmetic":
        sys.meta_path.insert(0, AfterTorch())
    case "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
