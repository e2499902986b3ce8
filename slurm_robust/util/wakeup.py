"""What lets a loop that waits in ``poll`` hear of signals and of threads."""

from __future__ import annotations

import os
import queue
import signal
from typing import Generic, TypeVar

T = TypeVar("T")


class WakeUp:
    """A pipe that a poller watches and that threads and signals write to."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor, readable after a wake-up, until :meth:`clear`."""
        return self._read

    def wake(self) -> None:
        """Wake the poller, from any thread, also after :meth:`close`."""
        try:
            os.write(self._write, b"\0")
        except OSError:
            pass  # the pipe is full of wake-ups, or closed

    def on_signals(self) -> int:
        """Have every signal with a handler in Python wake the poller; the descriptor that was set before.

        Main thread only. :meth:`clear` tells which signals came.
        """
        return signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def clear(self) -> bytes:
        """Return the numbers of the signals since the last call; 0 for a :meth:`wake`. At most 4,096."""
        try:
            return os.read(self._read, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Close both ends. Unset a descriptor that signals write to before."""
        os.close(self._read)
        write, self._write = self._write, -1
        os.close(write)


class Inbox(Generic[T]):
    """What threads hand to a loop; ``fileno`` is readable when :meth:`take` has something."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._wakeup = WakeUp()

    def fileno(self) -> int:
        """Return descriptor for a poller."""
        return self._wakeup.fileno()

    def put(self, item: T) -> None:
        """Hand ``item`` over. Works from any thread."""
        self._items.put(item)
        self._wakeup.wake()

    def take(self) -> list[T]:
        """Take what was put since the last call, in that order. Call it from the loop's thread only."""
        self._wakeup.clear()
        found = []
        while not self._items.empty():
            found.append(self._items.get())
        return found

    def close(self) -> None:
        """Close the descriptors; what is put later is lost."""
        self._wakeup.close()
