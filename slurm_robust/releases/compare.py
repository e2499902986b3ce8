"""What differs between two releases. Pure; of secret values only whether they differ."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice

from slurm_robust.model.record import Record
from slurm_robust.model.release import GitState
from slurm_robust.releases.contents import ReleaseContents
from slurm_robust.util.text import count, one_line, some_of, visible

MOST_LINES = 2000
_MOST_BYTES = 500_000  # of a file whose lines are compared
_MOST_SUMMARY = 10
COMMANDS = ("old command", "new command")


class ReleaseDiff(Record):
    """From one release to another. Paths are those in the copy, made visible."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    commands: tuple[str, str] | None = None
    """The old and the new command, as a shell takes them."""
    env_set: tuple[str, ...] = ()
    env_unset: tuple[str, ...] = ()
    env_changed: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    """Lines of the configuration that differ, each with ``+`` or ``-`` before it."""
    image: tuple[str, str] | None = None
    """The old and the new one, "" for the job's own."""
    git: tuple[str, str] | None = None
    """Commits, "" for none; ``+`` at the end: with changes that are not committed, ``?``: maybe so."""
    patch: tuple[str, ...] = ()
    """Unified differences of the files that are text."""
    is_cut: bool = False
    """There are more."""

    @property
    def is_empty(self) -> bool:
        """Return whether the ranks run the same."""
        return self == ReleaseDiff(git=self.git)


def compare(old: ReleaseContents, new: ReleaseContents, most_lines: int = MOST_LINES) -> ReleaseDiff:
    """Return what differs; ``most_lines``: of ``patch``. Raises ``OSError`` of reading the files."""
    old = _as_in(old, new)
    before, after = _state(old), _state(new)
    changed = sorted(path for path in before.keys() & after.keys() if before[path] != after[path])
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    lines = _patch(old, new, sorted({*changed, *added, *removed}))
    patch = tuple(islice(lines, most_lines))
    images = (old.release.image, new.release.image)
    commands = (shlex.join(old.release.command), shlex.join(new.release.command))
    commits = (_commit(old.release.git), _commit(new.release.git))
    env, env_before = new.fingerprints, old.fingerprints
    return ReleaseDiff(
        added=tuple(map(_shown, added)),
        removed=tuple(map(_shown, removed)),
        changed=tuple(map(_shown, changed)),
        commands=commands if commands[0] != commands[1] else None,
        env_set=tuple(sorted(env.keys() - env_before.keys())),
        env_unset=tuple(sorted(env_before.keys() - env.keys())),
        env_changed=tuple(sorted(name for name in env if env[name] != env_before.get(name, env[name]))),
        config=_words(old.config_text.splitlines(), new.config_text.splitlines()),
        image=images if images[0] != images[1] else None,
        git=commits if commits[0] != commits[1] else None,
        patch=patch,
        is_cut=next(lines, None) is not None,
    )


def summary(diff: ReleaseDiff) -> tuple[str, ...]:
    """Return the difference in a few lines."""
    lines = []
    for what, paths in (("changed", diff.changed), ("added", diff.added), ("removed", diff.removed)):
        if paths:
            lines.append(f"{count(len(paths), 'file')} {what}: {some_of(paths)}")
    if diff.commands is not None:
        lines += [
            f"{when}: {one_line(line, None)}" for when, line in zip(COMMANDS, diff.commands, strict=True)
        ]
    variables = (("set", diff.env_set), ("unset", diff.env_unset), ("changed", diff.env_changed))
    lines += [f"environment {what}: {some_of(names)}" for what, names in variables if names]
    if diff.config:
        lines.append(f"configuration: {one_line(', '.join(line.strip() for line in diff.config))}")
    if diff.image is not None:
        lines.append(f"image: {one_line(diff.image[1]) or 'that of the job'}")
    if diff.git is not None:
        lines.append(f"commit: {_short(diff.git[0])} to {_short(diff.git[1])}")
    return tuple(lines[:_MOST_SUMMARY])


def _as_in(old: ReleaseContents, new: ReleaseContents) -> ReleaseContents:
    """Return ``old`` with the names that its folders have in ``new``: a folder may lie elsewhere now."""
    names = {
        before.folder: after.folder
        for before, after in zip(old.release.roots, new.release.roots, strict=False)
        if before.folder != after.folder
    }
    if not names:
        return old

    def place(path: str) -> str:
        folder, _, rest = path.partition("/")
        return f"{names.get(folder, folder)}/{rest}"

    places = {place(path): path for path in old.files}
    return old._replace(
        files={place(path): file for path, file in old.files.items()},
        links={place(path): target for path, target in old.links.items()},
        read=lambda path: old.read(places[path]),
    )


def _state(contents: ReleaseContents) -> Mapping[str, object]:
    """Return what of each path is compared."""
    files = {path: (file.digest, file.x) for path, file in contents.files.items()}
    return {**files, **contents.links}


def _patch(old: ReleaseContents, new: ReleaseContents, paths: list[str]) -> Iterator[str]:
    for path in paths:
        shown = _shown(path)
        before, after = _lines(old, path), _lines(new, path)
        if before is None or after is None:
            yield f"{shown} is no text, or is too large to show"
            continue
        if before == after:
            yield f"{shown}: {_unseen(old, new, path)}"
        names = f"a/{shown}" if before else "/dev/null", f"b/{shown}" if after else "/dev/null"
        for line in difflib.unified_diff(before, after, *names, lineterm=""):
            yield visible(line)


def _unseen(old: ReleaseContents, new: ReleaseContents, path: str) -> str:
    """Return what differs of a file whose lines do not."""
    before, after = old.files.get(path), new.files.get(path)
    if before is None or after is None or (path in old.links) != (path in new.links):
        return "it is empty, or has become another kind of file"
    if before.digest != after.digest:
        return "only the ends of its lines differ"
    return "it may be executed now" if after.x else "it may not be executed any more"


def _lines(contents: ReleaseContents, path: str) -> list[str] | None:
    """Return the lines of a file, none if it is not there; None if it is no text."""
    if (target := contents.links.get(path)) is not None:
        return [f"-> {target}"]
    file = contents.files.get(path)
    if file is None:
        return []
    if file.nbytes > _MOST_BYTES:
        return None
    data = contents.read(path)
    try:
        return None if b"\0" in data else data.decode().splitlines()
    except UnicodeDecodeError:
        return None


def _words(old: list[str], new: list[str]) -> tuple[str, ...]:
    """Return the words that differ, in their order."""
    found: list[str] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for _, start, stop, new_start, new_stop in matcher.get_opcodes():
        if old[start:stop] != new[new_start:new_stop]:
            found += [f"-{one_line(word)}" for word in old[start:stop]]
            found += [f"+{one_line(word)}" for word in new[new_start:new_stop]]
    return tuple(found)


# Behind a commit, by whether files differ from it.
_DIRTY = {True: "+", False: "", None: "?"}


def _commit(git: GitState | None) -> str:
    return git.commit + _DIRTY[git.dirty] if git is not None else ""


def _short(commit: str) -> str:
    return (commit[:12] + commit.lstrip("0123456789abcdef")) if commit else "none"


def _shown(path: str) -> str:
    return one_line(os.fsencode(path).decode(errors="backslashreplace"))
