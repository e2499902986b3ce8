"""The content of a release, as those read it who compare, compile or look through it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_robust.model.release import Release
from slurm_robust.releases.manifest import CodeFile, CodeManifest, DamagedRelease
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.unpack import opened, read_manifest
from slurm_robust.util.ours import open_ours


class ReleaseContents(NamedTuple):
    """A release with its files. Paths are those in the copy, ``<folder>/<relative path>``."""

    release: Release
    files: Mapping[str, CodeFile]
    read: Callable[[str], bytes]
    """Reads one of ``files``. Raises ``OSError``."""
    links: Mapping[str, str] = {}
    """Targets of the links that are part of the code."""
    fingerprints: Mapping[str, str] = {}
    """For each variable what tells its value from others."""
    config_text: str = ""


def stored(store: ReleaseStore, name: str) -> ReleaseContents:
    """Return a release of the store. Raises ``NoRelease``, ``DamagedRelease``, ``OSError``."""
    release = store.read(name)
    archive = store.archive(name)
    places: dict[str, tuple[int, int]] = {}
    manifest = CodeManifest(files=(), links=())
    if release.code:
        with opened(archive) as tar:
            manifest = read_manifest(tar, archive, release)
            places = {member.name: (member.offset_data, member.size) for member in tar if member.isreg()}

    def read(path: str) -> bytes:
        at, size = places[path]
        with os.fdopen(open_ours(archive), "rb") as file:
            file.seek(at)
            return file.read(size)

    contents = _contents(release, manifest, read)
    if lacking := contents.files.keys() - places.keys():
        raise DamagedRelease(f"{archive} lacks {min(lacking)!r}")
    return contents._replace(
        fingerprints=store.fingerprints(store.env(name)), config_text=store.config_text(name)
    )


def unpacked(archive: Path, release: Release, place: Path) -> ReleaseContents:
    """Return the release that was unpacked to ``place``, without what is not in the archive.

    Raises ``DamagedRelease``, ``OSError``.
    """
    with opened(archive) as tar:
        manifest = read_manifest(tar, archive, release)
    return _contents(release, manifest, lambda path: (place / path).read_bytes())


def _contents(release: Release, manifest: CodeManifest, read: Callable[[str], bytes]) -> ReleaseContents:
    return ReleaseContents(
        release=release,
        files={os.fsdecode(file.path): file for file in manifest.files},
        read=read,
        links={os.fsdecode(one.path): os.fsdecode(one.target) for one in manifest.links if not one.left_out},
    )
