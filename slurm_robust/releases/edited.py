"""Which code has been edited in its place since a release was taken of it."""

from __future__ import annotations

import os

from msgspec.structs import replace

from slurm_robust.model.release import Release
from slurm_robust.releases.contents import stored
from slurm_robust.releases.manifest import CodeFile
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, in_place


def edited(store: ReleaseStore, release: Release, wish: Taking) -> tuple[str, ...]:
    """Return the files that differ from those of the release, relative to their folders.

    ``wish``: as for taking it, its folders are those of the release. A file that was added is code only if
    Python could import it: outputs are added all the time. Raises ``CannotTakeCode``, ``NoRelease``,
    ``DamagedRelease``, ``OSError``.
    """
    folders = tuple(root.source for root in release.roots)
    instead = {root.taken_from: root.path for root in release.roots if root.taken_from}
    copy = in_place(replace(wish, roots=folders, packages=(), stands_for=instead))
    if copy.code == release.code:
        return ()
    before = stored(store, release.name)
    now = {os.fsdecode(file.path): file for file in copy.manifest.files}
    found = {
        path
        for path in before.files.keys() | now.keys()
        if (path in before.files or path.endswith(".py"))
        and _state(before.files.get(path)) != _state(now.get(path))
    }
    links = {
        os.fsdecode(one.path): os.fsdecode(one.target) for one in copy.manifest.links if not one.left_out
    }
    found |= {
        path for path in before.links.keys() | links.keys() if before.links.get(path) != links.get(path)
    }
    return tuple(sorted(path.partition("/")[2] for path in found))


def _state(file: CodeFile | None) -> tuple[bytes, bool] | None:
    return (file.digest, file.x) if file is not None else None
