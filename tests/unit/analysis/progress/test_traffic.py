"""Silence of a network is only told when it is certain."""

from __future__ import annotations

from slurm_robust.analysis.progress.traffic import Traffic, is_silent


def samples(*totals: dict[str, int], every_s: float = 10.0) -> list[Traffic]:
    return [Traffic(at=100.0 + number * every_s, nbytes=nbytes) for number, nbytes in enumerate(totals)]


def test_no_traffic_within_the_window_is_silence() -> None:
    steady = samples(*[{"mlx5_0/1": 5 * 10**9}] * 61)
    assert is_silent(steady) is True
    assert is_silent(steady[:-1]) is None
    assert is_silent(steady[:10], window_s=60.0) is True
    assert is_silent([]) is None


def test_traffic_of_one_port_is_enough() -> None:
    moving = samples(*[{"mlx5_0/1": 7, "mlx5_1/1": number * 10**8} for number in range(10)])
    assert is_silent(moving, window_s=60.0) is False


def test_chatter_is_silence() -> None:
    chatting = samples(*[{"mlx5_0/1": number * 50_000} for number in range(10)])
    assert is_silent(chatting, window_s=60.0) is True
    assert is_silent(chatting, window_s=60.0, chatter_bytes_per_s=100.0) is False


def test_only_the_window_counts() -> None:
    stopped = samples(*[{"mlx5_0/1": min(number, 5) * 10**9} for number in range(20)])
    assert is_silent(stopped[:12], window_s=60.0) is True
    assert is_silent(stopped[:11], window_s=60.0) is False


def test_what_was_reset_came_or_went_says_nothing() -> None:
    reset = samples(*[{"a": 10**9}] * 3, {"a": 0}, *[{"a": 10}] * 5)
    assert is_silent(reset, window_s=60.0) is None
    came = samples(*[{"a": 1}] * 3, *[{"a": 1, "b": 1}] * 6)
    assert is_silent(came, window_s=60.0) is None
    assert is_silent(samples(*[{}] * 9), window_s=60.0) is None
