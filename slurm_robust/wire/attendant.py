"""A thread beside the controller's socket, which must not die before that does."""

from __future__ import annotations

import threading

import zmq


class Attendant(threading.Thread):
    """Calls :meth:`attend` again and again until the context of ``source`` ends; ``source`` is its alone."""

    def __init__(self, name: str, source: zmq.Socket[bytes]) -> None:
        super().__init__(name=name, daemon=True)
        self.source = source
        self._died: BaseException | None = None

    def attend(self) -> None:
        """Wait for the next thing that ``source`` tells, and answer it."""
        raise NotImplementedError

    def run(self) -> None:
        """Until the context ends."""
        try:
            while True:
                self.attend()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:  # noqa: BLE001 - check() raises it, in the thread that can end all
            self._died = error
        finally:
            self.source.close(linger=0)

    def check(self) -> None:
        """Raise ``RuntimeError`` if this thread has died."""
        if self._died is not None:
            raise RuntimeError(f"the thread {self.name} has died") from self._died
