"""Whether the Python files of a release compile."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Collection

from slurm_robust.model.record import Record
from slurm_robust.releases.contents import ReleaseContents
from slurm_robust.releases.imports import entries, imported

_MOST_BYTES = 5_000_000  # of one file
_MOST_TEXT = 2000


class DoesNotCompile(Record):
    """A file that is no Python, at least not for the Python that runs this."""

    path: str
    """In its place, not in the copy."""
    line: int
    text: str
    """As Python shows it, with the line."""


class Compiled(Record):
    """What does not compile."""

    errors: tuple[DoesNotCompile, ...] = ()
    """Of the files that the job executes in any case."""
    warnings: tuple[DoesNotCompile, ...] = ()
    """Of all others."""


def compiled(contents: ReleaseContents, cwd: str) -> Compiled:
    """Compile all Python files; ``cwd``: the job's working directory. Raises ``OSError``."""
    needed = {*entries(contents, cwd), *imported(contents, cwd).files}
    return Compiled(
        errors=_wrong(contents, needed),
        warnings=_wrong(contents, {path for path in contents.files if path.endswith(".py")} - needed),
    )


def _wrong(contents: ReleaseContents, paths: Collection[str]) -> tuple[DoesNotCompile, ...]:
    found = (_compile(contents, path) for path in sorted(paths))
    return tuple(one for one in found if one is not None)


def _compile(contents: ReleaseContents, path: str) -> DoesNotCompile | None:
    if contents.files[path].nbytes > _MOST_BYTES:
        return None
    place = _in_place(contents, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(contents.read(path), place, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        text = "".join(traceback.format_exception_only(error)).strip()
        return DoesNotCompile(path=place, line=line or 0, text=text[:_MOST_TEXT])
    except (RecursionError, MemoryError):
        return None  # it says nothing of the file
    return None


def _in_place(contents: ReleaseContents, path: str) -> str:
    folder, _, rest = path.partition("/")
    for root in contents.release.roots:
        if root.folder == folder:
            return os.path.join(root.source, rest)
    return path
