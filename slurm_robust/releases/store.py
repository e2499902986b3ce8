"""The releases of a job in their place: ``releases/`` in the job directory."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.record import decoded
from slurm_robust.model.release import NAME_LETTERS, Release
from slurm_robust.releases.manifest import DamagedRelease
from slurm_robust.util.files import names_in, publish_once, sync, write_atomically
from slurm_robust.util.ours import NotOurs, check_own_folder, make_own_folder, read_ours
from slurm_robust.util.text import some_of

MIN_PREFIX = 4
"""The fewest digits by which a release can be named, if they are unique."""

ARCHIVE = "code.tar"

_KEY = ".key"
_NEW = ".new-"
_GONE = ".gone-"
_DEAD_S = 3600.0  # whoever makes a release, on whatever node, has ended after this time
_DIGITS = frozenset("0123456789abcdef")
_RELEASE = msgspec.json.Decoder(Release)
_ENV = msgspec.json.Decoder(dict[str, str])


class NoRelease(SrobustError):
    """No release of the job in the folder ``job``, or more than one, has this name."""

    def __init__(self, text: str, job: Path) -> None:
        super().__init__(text, fix=f"'srobust releases {shlex.quote(str(job))}' lists them")


class ReleaseStore:
    """The folder with a job's releases. Only what this user owns is read. Methods raise ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> tuple[str, ...]:
        """Return the names of all releases, sorted."""
        return tuple(sorted(name for name in names_in(self.folder) if _is_name(name)))

    def read(self, name: str) -> Release:
        """Return a release. Raises :class:`NoRelease`, ``DamagedRelease``, ``NotOurs``."""
        path = self._file(name, "release.json")
        try:
            check_own_folder(path.parent)
            data = read_ours(path)
        except FileNotFoundError:
            raise self._none(f"there is no release {name} in {self.folder}") from None
        release = decoded(_RELEASE, data, lambda why: DamagedRelease(f"{path} cannot be read: {why}"))
        if release.name != name:
            raise DamagedRelease(f"{path} is of release {release.name}")
        return release

    def all(self) -> tuple[Release, ...]:
        """Return all releases that can be read, in the order in which they were taken."""
        found = []
        for name in self.names():
            try:
                found.append(self.read(name))
            except (SrobustError, NotOurs, FileNotFoundError):
                continue  # damaged, another user's, or removed meanwhile
        return tuple(sorted(found, key=lambda release: (release.taken, release.name)))

    def resolve(self, prefix: str) -> Release:
        """Return the release whose name begins so. Raises :class:`NoRelease`, ``DamagedRelease``."""
        wanted = prefix.strip().lower()
        if len(wanted) < MIN_PREFIX:
            raise self._none(f"{prefix!r} is no name of a release: give {MIN_PREFIX} digits of it at least")
        found = [name for name in self.names() if name.startswith(wanted)]
        if not found:
            raise self._none(f"no release has a name that begins with {prefix!r}")
        if len(found) > 1:
            raise self._none(f"{prefix!r} is the beginning of several names: {some_of(found)}")
        return self.read(found[0])

    def archive(self, name: str) -> Path:
        """Return the place of the copy of the code; there is no file if the release has no copy."""
        return self._file(name, ARCHIVE)

    def env(self, name: str) -> dict[str, str]:
        """Return the variables that the release sets, with their values. Raises ``DamagedRelease``."""
        path = self._file(name, "env.json")
        try:
            data = read_ours(path)
        except FileNotFoundError:
            return {}
        return decoded(_ENV, data, lambda why: DamagedRelease(f"{path} cannot be read: {why}"))

    def config_text(self, name: str) -> str:
        """Return the configuration that the release brings, "" if it brings none."""
        try:
            return read_ours(self._file(name, "config.yaml")).decode()
        except FileNotFoundError:
            return ""

    def key(self) -> bytes:
        """Return the secret of the job by which values of variables are compared; it is made if need be."""
        path = self.folder / _KEY
        self._make()
        try:
            return read_ours(path)
        except FileNotFoundError:
            publish_once(path, secrets.token_bytes(32))
            return read_ours(path)

    def fingerprints(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return for each variable what tells its value from others without the value."""
        key = self.key()
        return {
            name: hashlib.blake2b(os.fsencode(f"{name}={value}"), key=key, digest_size=16).hexdigest()
            for name, value in sorted(env.items())
        }

    def begin(self) -> Path:
        """Make a folder in which a release is made, out of everybody's sight; see :meth:`publish`."""
        self._make()
        self._sweep()
        path = self.folder / f"{_NEW}{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        return path

    def publish(self, made: Path, release: Release, env: Mapping[str, str], config_text: str = "") -> Release:
        """Let the folder that :meth:`begin` made, with its archive, be the release.

        If a whole release of the name is there, it is the same: it stays, and is returned.
        """
        if env:
            write_atomically(made / "env.json", msgspec.json.encode(dict(env)), durable=True, mode=0o600)
        if config_text:
            write_atomically(made / "config.yaml", config_text.encode(), durable=True, mode=0o600)
        write_atomically(made / "release.json", msgspec.json.encode(release), durable=True, mode=0o600)
        place = self.folder / release.name
        while True:
            try:
                os.rename(made, place)  # takes the place of nothing, or of an empty folder
            except OSError:
                if not os.path.lexists(place):
                    raise
                if (there := self._whole(release.name)) is not None:
                    self._remove(made)
                    return there
                self._hide(place)
            else:
                sync(self.folder)
                return release

    def discard(self, made: Path) -> None:
        """Remove the folder that :meth:`begin` made. Raises nothing."""
        self._remove(made)

    def prune(self, keep: int, never: Collection[str] = ()) -> tuple[str, ...]:
        """Remove the oldest releases but the newest ``keep`` and those of ``never``; returns their names.

        What dead processes have left half made goes, too.
        """
        self._sweep()
        old = [release.name for release in self.all()]
        old = [name for name in old[: max(0, len(old) - keep)] if name not in never]
        for name in old:
            self._hide(self.folder / name)
        return tuple(old)

    def is_whole(self, release: Release) -> bool:
        """Return whether everything of the release lies there, as far as that shows without reading all."""
        return self._whole(release.name) is not None

    def _whole(self, name: str) -> Release | None:
        try:
            release = self.read(name)
            wanted = [(ARCHIVE, bool(release.code)), ("env.json", bool(release.env))]
            wanted.append(("config.yaml", release.has_config))
            for file, is_wanted in wanted:
                if is_wanted and not os.path.getsize(self._file(name, file)):
                    return None
        except (SrobustError, NotOurs, FileNotFoundError):
            return None
        return release

    def _none(self, text: str) -> NoRelease:
        return NoRelease(text, self.folder.parent)

    def _file(self, name: str, file: str) -> Path:
        if not _is_name(name):
            raise self._none(f"{name!r} is no name of a release")
        return self.folder / name / file

    def _make(self) -> None:
        make_own_folder(self.folder)

    def _hide(self, place: Path) -> None:
        hidden = self.folder / f"{_GONE}{place.name}-{secrets.token_hex(4)}"
        try:
            os.rename(place, hidden)
        except FileNotFoundError:
            return
        self._remove(hidden)

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self) -> None:
        for name in names_in(self.folder):
            if name.startswith(_GONE) or (name.startswith(_NEW) and self._is_old(name)):
                self._remove(self.folder / name)

    def _is_old(self, name: str) -> bool:
        try:
            return time.time() - os.lstat(self.folder / name).st_mtime > _DEAD_S
        except FileNotFoundError:
            return False


def _is_name(name: str) -> bool:
    return len(name) == NAME_LETTERS and set(name) <= _DIGITS
