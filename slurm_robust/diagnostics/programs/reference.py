"""A training step of a tiny GPT with fixed weights and data, of which every bit is compared.

Loss, gradients and updated weights of a step are the same on all processors of one model under one release
of PyTorch. Made on every GPU, or without any on every core; on one node all must agree, and what they agree
on is compared among the nodes.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from slurm_robust.diagnostics.devices import each_core, gpus_of, name_of, one_thread
from slurm_robust.diagnostics.part import Measurement, TestPart, failed, in_children, worst
from slurm_robust.model.findings import Outcome

_VOCABULARY = 128
_WIDTH = 64
_HEADS = 4
_LAYERS = 2
_LENGTH = 32
_BATCH = 4
_CORES_S = 10.0
_MAX_OF_TIME = 0.9


class Block(nn.Module):
    """Attention and a multilayer perceptron, written out so that no release chooses another kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.down = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply one layer."""
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        scores = query @ key.transpose(-2, -1) / (_WIDTH // _HEADS) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        seen = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, _WIDTH))
        hidden: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + hidden


class TinyGpt(nn.Module):
    """A decoder of the usual kind."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.places = nn.Embedding(_LENGTH, _WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(_LAYERS)))
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of the next tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.head(self.blocks(self.tokens(tokens) + self.places(places)))
        return logits


def run(part: TestPart) -> Measurement:
    """See the module. Raises ``NotHere``, ``Wrong``."""
    # Read by cuBLAS when it is first used.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    gpus = gpus_of(part)
    if gpus:
        bodies = {f"gpu{device.index}": partial(_on_gpu, device) for device in gpus}
        found = in_children(bodies, part.limit_s * _MAX_OF_TIME)
        if any(one.outcome is not Outcome.PASS for one in found.values()):
            return worst(list(found.values()))
        return agreed({name: one.digest for name, one in found.items()}, found["gpu0"].kind)
    cpu = torch.device("cpu")
    with one_thread():
        cores = each_core(time.monotonic() + min(_CORES_S, part.limit_s / 3))
        return agreed({f"core {core}": step_digest(cpu) for core in cores}, name_of(cpu))


def _on_gpu(device: torch.device) -> Measurement:
    return Measurement(digest=step_digest(device), kind=name_of(device))


def agreed(digests: dict[str, str], kind: str) -> Measurement:
    """Return the digest that all of a node's processors found, or which of them are alone with theirs."""
    (most, count), *others = Counter(digests.values()).most_common()
    if not others:
        return Measurement(digest=most, kind=kind, value=f"{most[:12]} on {len(digests)}")
    if 2 * count <= len(digests):
        return failed(f"{len(digests)} processors of the node found {1 + len(others)} results")
    odd = [name for name, digest in digests.items() if digest != most]
    return failed(f"{', '.join(odd)} found another result than {count} others of the node")


def step_digest(device: torch.device) -> str:
    """Return SHA-256 over loss, gradients and updated weights, in float32 and on GPUs also in bfloat16."""
    total = hashlib.sha256()
    for dtype in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
        torch.manual_seed(2509_16293)
        model = TinyGpt().to(device)  # weights are drawn on the CPU, the same for every device
        tokens = torch.randint(_VOCABULARY, (_BATCH, _LENGTH + 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        for tensor in (loss, *gradients, *model.parameters()):
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()
