"""Products of matrices that must be right to the last bit, on every core and GPU, and the memory of GPUs.

Two oracles. Products of small whole numbers, of which every partial sum can be represented, are exact in
every order of summation and on any hardware: their sum is written down here. And a product of random
numbers made again from the same operands on the same device is the same.
"""

from __future__ import annotations

import hashlib
import time
from functools import partial

import msgspec
import torch

from slurm_robust.diagnostics.devices import each_core, gpus_of, one_thread
from slurm_robust.diagnostics.part import Measurement, NotHere, TestPart, failed, in_children, worst

_SIDE = 256
# The largest whole number among the operands, and SHA-256 of the product in float32. 256 products of numbers
# up to 255 stay below 2^24, which float32 and TF32 hold; 256 of up to 1 below 2^8, which bfloat16 holds.
_EXACT = {
    torch.float32: (255, "35a0bf7eaa03791904d91f4065b34fad12ffe17b822d4c9b7b928d87a2e50b4d"),
    torch.bfloat16: (1, "cf54233da48d90c04d9df5f7d77623ecbbcdc460a09471dc8a522f0466fb89ae"),
}
_CORES_S = 5.0
_GPU_S = 3.0
_FOR_GPUS = 0.7  # of the time; the cores have their turn before
_GPU_TILES = 32  # 8192 x 8192: work for every multiprocessor
_GPU_RANDOM = 4096
_MAX_OF_FREE = 0.8
_CHUNK = 1 << 28  # bytes
_TEMPORARY = 4  # chunks that comparing takes
_PATTERNS = (0x5555555555555555, -0x5555555555555556)


def run(part: TestPart) -> Measurement:
    """See the module. Raises ``Wrong``."""
    cores, wrong = _cores(time.monotonic() + min(_CORES_S, part.limit_s / 4))
    if wrong:
        return failed(wrong)
    try:
        gpus = gpus_of(part)
    except NotHere as reason:
        return Measurement(value=f"{cores} cores; {reason}")
    if not gpus:
        return Measurement(value=f"{cores} cores")
    bodies = {f"gpu{device.index}": partial(_gpu, device) for device in gpus}
    found = worst(list(in_children(bodies, part.limit_s * _FOR_GPUS).values()))
    return msgspec.structs.replace(found, value=f"{cores} cores, {len(gpus)} GPUs")


def _gpu(device: torch.device) -> Measurement:
    until = time.monotonic() + _GPU_S
    wrong = _products(device, _GPU_TILES, _GPU_RANDOM, until) or memory_of_gpu(device, _MAX_OF_FREE)
    return failed(f"gpu{device.index}: {wrong}") if wrong else Measurement()


def _cores(until: float) -> tuple[int, str]:
    """Return how many cores were tested, and what is wrong with the last of them."""
    count = 0
    with one_thread():
        for core in each_core(until):
            count += 1
            if wrong := _products(torch.device("cpu"), 2, _SIDE, time.monotonic()):
                return count, f"core {core}: {wrong}"
    return count, ""


def _products(device: torch.device, tiles: int, side: int, until: float) -> str:
    """Return what is wrong with products on ``device``, "" for nothing; made again until the time is over."""
    for dtype in _EXACT:
        if wrong := exact_product(device, dtype, tiles):
            return wrong
    for dtype in _EXACT if device.type == "cuda" else (torch.float32,):
        if wrong := repeated_product(device, dtype, side, until):
            return wrong
    return ""


def exact_product(device: torch.device, dtype: torch.dtype, tiles: int) -> str:
    """Compare a product of whole numbers, made ``tiles`` x ``tiles`` times in one, with what is known."""
    most, digest = _EXACT[dtype]
    left, right = (operand.to(dtype).to(device) for operand in _whole_numbers(most))
    product = torch.mm(left.repeat(tiles, 1), right.repeat(1, tiles))
    blocks = product.view(tiles, _SIDE, tiles, _SIDE).transpose(1, 2)
    unlike = int((blocks != blocks[0, 0]).sum())
    name = str(dtype).removeprefix("torch.")
    if unlike:
        return f"{unlike} of {product.numel()} values of one {name} product are unlike"
    first = blocks[0, 0].to(torch.float32).contiguous().cpu()
    if hashlib.sha256(first.numpy().tobytes()).hexdigest() != digest:
        return f"a {name} product of whole numbers is wrong"
    return ""


def repeated_product(device: torch.device, dtype: torch.dtype, side: int, until: float) -> str:
    """Make the same product again and again, at least once, and compare bit by bit."""
    generator = torch.Generator().manual_seed(7)
    left, right = (torch.randn(side, side, generator=generator).to(dtype).to(device) for _ in range(2))
    first = torch.mm(left, right)
    again = torch.empty_like(first)
    count = 0
    while True:
        count += 1
        torch.mm(left, right, out=again)
        # As whole numbers, because a NaN differs from itself and zeros of both signs are equal.
        bits = torch.int32 if dtype is torch.float32 else torch.int16
        unlike = int((first.view(bits) != again.view(bits)).sum())
        if unlike:
            name = str(dtype).removeprefix("torch.")
            return f"{unlike} of {first.numel()} values of a {name} product changed at repetition {count}"
        if time.monotonic() >= until:
            return ""


def memory_of_gpu(device: torch.device, share: float) -> str:
    """Fill ``share`` of the device's free memory with patterns and read it back; what is wrong, or ""."""
    free, _ = torch.cuda.mem_get_info(device)
    return walk(device, max(0, int(free * share) // _CHUNK - _TEMPORARY), _CHUNK // 8)


def walk(device: torch.device, chunks: int, words: int) -> str:
    """Fill ``chunks`` of ``words`` of 64 bits each, all before the first is read."""
    index = torch.arange(words, dtype=torch.int64, device=device)
    held = [torch.empty_like(index) for _ in range(chunks)]
    for pattern in _PATTERNS:
        for number, chunk in enumerate(held):
            torch.bitwise_xor(index + number * words, pattern, out=chunk)
        for number, chunk in enumerate(held):
            unlike = int((chunk != ((index + number * words) ^ pattern)).sum())
            if unlike:
                return f"{unlike} words of memory changed within {words * 8 >> 20} MiB"
    return ""


def _whole_numbers(most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two matrices of whole numbers from -most to most, by arithmetic that no release can change."""
    row, column = torch.arange(_SIDE)[:, None], torch.arange(_SIDE)[None, :]
    left = row * row * 31 + column * 17 + row * column * 7
    right = row * 13 + column * column * 29 + row * column * 11 + 5
    return left % (2 * most + 1) - most, right % (2 * most + 1) - most
