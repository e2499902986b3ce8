"""Writes the live status to the job's folder, beside the loop: nothing waits for it or depends on it."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence

from slurm_robust.controller.journal import Journal
from slurm_robust.controller.live_status import LiveStatusMaker, Picture, Storage, picture
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.jobdir.place import check_in_place
from slurm_robust.ledger.summary import Summary, summary_of
from slurm_robust.model.events import AnyEvent
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveStatus, encode
from slurm_robust.util.files import names_in, write_atomically
from slurm_robust.util.output import say
from slurm_robust.util.threads import start_thread

SHARE = 100.0
"""The loop takes pictures, and the ledger is computed, for no more than this part of the time."""

LEDGER_S = 10.0
"""Seconds between two computations of ETTR; of a job of months they take seconds, and come less often."""

CLOSE_S = 2.0
"""Seconds to write the last live status."""


class LiveStatusFile:
    """``moment.json`` of one controller. If several pictures wait, only the newest counts.

    While storage hangs no picture is taken, so that the loop pays nothing either. What storage refuses is
    counted and not tried again: the next live status follows soon.
    """

    def __init__(
        self,
        directory: JobDirectory,
        journal: Journal,
        every_s: float,
        ledger: Callable[[Sequence[AnyEvent], float], Summary] = summary_of,
    ) -> None:
        """``every_s``: between two writes, 0 for none."""
        self._directory, self._journal = directory, journal
        self._every_s, self._ledger = every_s, ledger
        self._live_status = LiveStatusMaker()
        self._known = 0  # events of the journal that are in a picture
        self._due = 0.0
        self._ledger_due = 0.0  # the writing thread's, as are the next three
        self._missed = 0
        self._newest: LiveStatus | None = None
        self._is_first, self._told = True, False
        self._changed = threading.Condition()  # of what follows
        self._next: Picture | None = None
        self._busy = False
        self._closing: bool | None = None  # whether the last live status says that it is the last
        self._thread: threading.Thread | None = None

    @property
    def newest(self) -> LiveStatus | None:
        """The newest live status, even if storage refused it; None before the first. From any thread."""
        return self._newest

    @property
    def missed(self) -> int:
        """Moments that storage did not take."""
        return self._missed

    def step(self, core: Core, now: Now, turn_s: float | None = None) -> None:
        """Take a picture if one is due. ``turn_s``: the loop's longest turn lately. From its thread only."""
        begun = time.monotonic()
        if not self._every_s or begun < self._due:
            return
        with self._changed:
            if self._busy or self._next is not None:
                return  # storage is slow
        seen = self._take(core, now, turn_s)
        ended = time.monotonic()
        self._due = begun + max(self._every_s, SHARE * (ended - begun))
        with self._changed:
            self._next = seen
            self._changed.notify_all()
        if self._thread is None:
            self._thread = start_thread("live status", self._serve)

    def close(self, core: Core, now: Now, *, ours: bool) -> None:
        """Write the last one within :data:`CLOSE_S`. ``ours``: no other controller has the job."""
        if self._thread is None:
            return
        seen = self._take(core, now) if ours else None
        with self._changed:
            self._next, self._closing = seen, ours
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def settle(self, timeout_s: float) -> bool:
        """Wait until storage has taken or refused the newest live status."""
        with self._changed:
            return self._changed.wait_for(lambda: self._next is None and not self._busy, timeout_s)

    def _take(self, core: Core, now: Now, turn_s: float | None = None) -> Picture:
        journal = self._journal
        known = len(journal.events)
        news, self._known = journal.events[self._known : known], known
        storage = Storage(max(0, known - journal.written), journal.trouble)
        return picture(core, now, news, storage, turn_s)

    # -- the writing thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._closing is not None)
                seen, self._next = self._next, None
                closing = self._closing
                self._busy = seen is not None
            try:
                if seen is not None:
                    self._write(seen, final=closing is True)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
            if closing is not None:
                return

    def _write(self, seen: Picture, *, final: bool) -> None:
        try:
            if not final:
                self._compute_ledger(seen)
            self._newest = self._live_status.make(seen, self._missed, final=final)
            data = encode(self._newest)
            check_in_place(self._directory.path, seen.state.run_id)
            if self._is_first:
                # Remove what a controller that was killed while it wrote has left
                folder, name = self._directory.path, self._directory.live_status.name
                for each in names_in(folder):
                    if each.startswith(f".{name}."):
                        (folder / each).unlink(missing_ok=True)
                self._is_first = False
            write_atomically(self._directory.live_status, data, durable=False, mode=0o600)
        except OSError:
            self._missed += 1
        except Exception:  # noqa: BLE001 - whatever it is, the job goes on without this live status
            self._missed += 1
            if not self._told:
                self._told = True
                say(f"internal error: no moment is written\n{traceback.format_exc()}")

    def _compute_ledger(self, seen: Picture) -> None:
        begun = time.monotonic()
        if begun < self._ledger_due or not self._journal.events:
            return
        self._ledger_due = begun + LEDGER_S  # even if it fails
        found = self._ledger(list(self._journal.events), seen.now.wall)
        self._live_status.on_ledger(found, seen.now.mono)
        self._ledger_due = max(self._ledger_due, begun + SHARE * (time.monotonic() - begun))
