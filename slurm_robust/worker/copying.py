"""Makes the copy of a release from which workers run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import Release
from slurm_robust.releases.manifest import CodeManifest
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.unpack import opened, read_manifest, unpack
from slurm_robust.util.files import write_atomically
from slurm_robust.worker import sitecustomize
from slurm_robust.worker.copied import CONTENT, CopiedCode, CopyContent, editable_links, editable_tables


def make_copy(store: ReleaseStore, release: Release, place: Path) -> CopiedCode:
    """Let ``place`` be the copy, whole. Raises ``DamagedRelease``, ``OSError``."""
    manifest = unpack(store.archive(release.name), release, place)
    copy = CopiedCode(
        release=release.name,
        place=str(place),
        roots=release.roots,
        entry=release.entry,
        workdir=release.workdir,
    )
    _link_editables(copy)
    if release.kind is CommandKind.EXEC:
        _link(copy, {os.path.basename(sitecustomize.__file__): sitecustomize.__file__})
    content = CopyContent(
        copy=copy,
        files={file.path: (file.nbytes, file.mtime) for file in manifest.files},
        links={link.path: link.target for link in manifest.links},
    )
    write_atomically(Path(f"{place}{CONTENT}"), msgspec.msgpack.encode(content), durable=False)
    return copy


def manifest_of(store: ReleaseStore, release: Release) -> CodeManifest:
    """Return what is in the copy. Raises as :func:`make_copy`."""
    archive = store.archive(release.name)
    with opened(archive) as tar:
        return read_manifest(tar, archive, release)


def cannot_run_in(base: Path, manifest: CodeManifest, release: Release) -> bool:
    """Return whether something in the copy is to be executed, which nothing in ``base`` may be."""
    executed = any(file.x or b".so" in os.path.basename(file.path) for file in manifest.files)
    if not executed and release.kind is not CommandKind.EXEC:
        return False
    try:
        return bool(os.statvfs(base).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def _link_editables(copy: CopiedCode) -> None:
    links = editable_links(copy, editable_tables(sys.modules))
    _link(copy, {name: os.path.relpath(target, copy.links) for name, target in links.items()})


def _link(copy: CopiedCode, links: dict[str, str]) -> None:
    if links:
        os.makedirs(copy.links, exist_ok=True)
    for name, target in links.items():
        place = os.path.join(copy.links, name)
        if not os.path.lexists(place):
            os.symlink(target, place)
