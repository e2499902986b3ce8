from __future__ import annotations

import os
import select
import signal
import threading

from slurm_robust.util.wakeup import Inbox, WakeUp


def is_readable(source: WakeUp | Inbox[int]) -> bool:
    return bool(select.select([source], [], [], 0)[0])


def test_a_wake_up_stays_until_it_is_cleared() -> None:
    wakeup = WakeUp()
    assert not is_readable(wakeup)
    wakeup.wake()
    assert is_readable(wakeup)
    wakeup.clear()
    assert not is_readable(wakeup)
    wakeup.close()


def test_more_wake_ups_than_a_pipe_holds_block_nobody() -> None:
    wakeup = WakeUp()
    for _ in range(70_000):
        wakeup.wake()
    while wakeup.clear():
        pass
    wakeup.close()


def test_a_wake_up_after_the_end_reaches_nobody() -> None:
    wakeup = WakeUp()
    wakeup.close()
    reader, writer = os.pipe()  # takes the numbers that are free now
    os.set_blocking(reader, False)
    wakeup.wake()
    assert select.select([reader], [], [], 0)[0] == []
    os.close(reader)
    os.close(writer)


def test_signals_are_reported_by_their_numbers() -> None:
    wakeup = WakeUp()
    fd_before = wakeup.on_signals()
    handler_before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert is_readable(wakeup)
        assert wakeup.clear() == bytes([signal.SIGUSR1])
    finally:
        signal.set_wakeup_fd(fd_before)
        signal.signal(signal.SIGUSR1, handler_before)
        wakeup.close()


def test_an_inbox_gives_what_threads_put_each_thing_once() -> None:
    inbox: Inbox[int] = Inbox()
    threads = [threading.Thread(target=inbox.put, args=(n,)) for n in range(100)]
    for thread in threads:
        thread.start()
    found: list[int] = []
    while len(found) < 100:
        assert select.select([inbox], [], [], 10)[0]
        found += inbox.take()
    assert sorted(found) == list(range(100))
    assert not is_readable(inbox)
    inbox.close()
