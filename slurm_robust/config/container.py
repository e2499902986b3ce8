"""The options of srun that a job may give its agents, and what their container has to mount. Pure.

What pyxis and enroot do is read in their sources: pyxis 0.24 (``args.c``, ``pyxis_slurmstepd.c``), enroot's
``conf/mounts`` and ``conf/hooks``.
"""

from __future__ import annotations

import hashlib
import os.path
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath, PurePosixPath

from slurm_robust.model.nodefolders import SHARED_MEMORY

IMAGE, NAME, MOUNTS = "--container-image", "--container-name", "--container-mounts"
_WORKDIR = "--container-workdir"
_AS_OUTSIDE = "--no-container-remap-root"
_LISTS = (MOUNTS, "--container-env")
_VALUED = (IMAGE, NAME, *_LISTS, _WORKDIR, "--network")
_FLAGS = (
    "--container-mount-home",
    "--no-container-mount-home",
    "--container-entrypoint",
    "--no-container-entrypoint",
    "--container-entrypoint-log",
    "--container-writable",
    "--container-readonly",
    _AS_OUTSIDE,
)
_OTHERS = ("--propagate",)
# What begins another option in the value of one; a path may have blanks, too.
_NEXT = re.compile(r"(?:^|\s+)(?=--[a-z]|-[A-Za-z](?:\s|\d|$))")
_HOME = re.compile(r"(^|[,:])~")
_FAMILIES = ("--container-", "--no-container-")
_REFUSED = {
    "--container-remap-root": (
        "snapshots in /dev/shm are found by the uid in their names, which must be yours",
        f"leave it out, or write {_AS_OUTSIDE}",
    ),
    "--container-unshare": (
        "agents need the network, the name and the /dev/shm of their node",
        "leave it out",
    ),
    "--container-save": (
        "each node would write that file when its agent ends, and some are killed",
        "save the image before, with an srun of its own",
    ),
}


class BadOption(ValueError):
    """An option that a job may not set, or that cannot work."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(text)
        self.fix = fix


def parsed(words: Sequence[str]) -> tuple[str, ...]:
    """Return the options, each as ``--name`` or ``--name=value``. Raises :class:`BadOption`.

    ``words`` may have a value in the same word (``--name=value``, ``--name value``) or in the next. In a list
    of several items each may be a word, as commas separate words in environment variables.
    """
    found: dict[str, str | None] = {}
    last = ""
    for word in words:
        if word.startswith("-"):
            last, value = _split(word)
            _check_name(last, word)
            if last in found:
                fix = "write it once, with commas between the items" if last in _LISTS else "write it once"
                raise BadOption(f"has {last} twice", fix)
            found[last] = value
        elif last and found[last] is None:
            found[last] = word
        elif last in _LISTS:
            found[last] = f"{found[last]},{word}"
        else:
            raise BadOption(f"has {word!r}, which belongs to no option", "write options as --name=value")
    for name, value in found.items():
        _check_value(name, value)
    if MOUNTS in found and not is_contained(found):
        raise BadOption(f"has {MOUNTS} without an image, so that pyxis ignores it", f"add {IMAGE}=…")
    return tuple(name if value is None else f"{name}={value}" for name, value in found.items())


def _split(word: str) -> tuple[str, str | None]:
    for at, letter in enumerate(word):
        if letter == "=" or letter.isspace():
            return word[:at], word[at + 1 :].strip()
    return word, None


def _check_name(name: str, word: str) -> None:
    if name in _REFUSED:
        why, fix = _REFUSED[name]
        raise BadOption(f"has {name}: {why}", fix)
    known = (*_VALUED, *_FLAGS, *_OTHERS, *_REFUSED)
    if name in known:
        return
    if not name.startswith(_FAMILIES):
        raise BadOption(
            f"has {word!r}; a job may set --container-*, --no-container-*, --network and --propagate",
            "leave it out: srobust run starts one agent on each node, with all that the job has there; what "
            "the job asks for belongs in #SBATCH lines",
        )
    if longer := [option for option in known if option.startswith(name)]:
        raise BadOption(f"has the abbreviation {name!r}", f"write {' or '.join(longer)}")


def _check_value(name: str, value: str | None) -> None:
    if value is not None and _NEXT.search(value):
        words = [word for word in _NEXT.split(f"{name}={value}".replace("=-", " -", 1)) if word]
        raise BadOption(
            f"has several options in one word: {' '.join(words)!r}",
            f"write each by itself: [{', '.join(words)}]",
        )
    if name in _VALUED and not value:
        raise BadOption(f"has {name} without a value", f"write {name}=VALUE")
    if name in _FLAGS and value is not None:
        raise BadOption(f"has {name} with the value {value!r}, and it takes none", f"write {name} alone")
    if name in (IMAGE, MOUNTS, _WORKDIR) and value is not None and _HOME.search(value):
        raise BadOption(f"has {name}={value}, in which nothing expands '~'", "write the whole path")
    if name == NAME and value is not None and value.endswith(":create"):
        raise BadOption(
            f"has {NAME}={value}, with which no agent could be started a second time on its node",
            f"write {NAME}={value.removesuffix(':create')}",
        )


def is_contained(words: Iterable[str]) -> bool:
    """Return whether these options, as written or as :func:`parsed` returns them, make a container."""
    return any(_split(word)[0] in (IMAGE, NAME) for word in words)


def in_image(options: Sequence[str], image: str) -> tuple[str, ...]:
    """Return ``options``, as :func:`parsed` returns them, with another image. Raises :class:`BadOption`."""
    if not any(word.startswith(f"{IMAGE}=") for word in options):
        raise BadOption("names no image", f"submit a new job with {IMAGE}=…")
    return tuple(_with_image(word, image) for word in options)


def _with_image(word: str, image: str) -> str:
    name, _, value = word.partition("=")
    if name == IMAGE:
        return f"{IMAGE}={image}"
    if name == NAME:  # a container of that name, which has the other image, may be there
        return f"{NAME}={value}-{hashlib.sha256(image.encode()).hexdigest()[:8]}"
    return word


_IMAGE_LAST = frozenset({"apptainer", "singularity", "docker", "podman"})
"""Programs whose command to run follows right behind the image."""


def wrapped_in_image(wrapper: Sequence[str], image: str) -> tuple[str, ...]:
    """Return a wrapper with another image. Raises :class:`BadOption` if nothing says which word that is."""
    if not any(PurePath(word).name in _IMAGE_LAST for word in wrapper[:-1]):
        raise BadOption(
            f"begins with {wrapper[0]}, and nothing says which of its words is the image",
            f"use a wrapper of {' or '.join(sorted(_IMAGE_LAST))} whose last word is the image",
        )
    return (*wrapper[:-1], image)


def completed(options: Sequence[str], writable: Sequence[str], readable: Sequence[str]) -> tuple[str, ...]:
    """Return ``options``, as :func:`parsed` returns them, with the mounts that the job needs.

    Those are ``/dev/shm``, where snapshots lie, and the absolute paths of folders that processes of the job
    write to or only read. Each is the same inside as outside, since processes of both pass their names to
    each other. What the options mount already stays as it is. Raises :class:`BadOption` if they mount
    something else in its place, or so that it cannot be written to.
    """
    if not is_contained(options):
        return tuple(options)
    given = next((word.partition("=")[2] for word in options if word.startswith(f"{MOUNTS}=")), "")
    mounts = list(_mounts(given))
    missing = []
    for folder in dict.fromkeys((str(SHARED_MEMORY), *writable, *readable)):
        path = os.path.normpath(folder)
        if path == "/":
            continue  # a job that was submitted there finds the root of the image
        if "," in path or ":" in path:
            raise BadOption(f"cannot mount {path}: {MOUNTS} takes no ',' and ':' in paths", "rename it")
        if not _is_mounted(path, mounts, to_write=folder in writable or path == str(SHARED_MEMORY)):
            missing.append(path)
    own = [p for p in sorted(missing) if not any(p != q and _is_below(p, q) for q in missing)]
    # First, so that what the job mounts below these folders is not hidden by them.
    mounted = ",".join(filter(None, (*(f"{path}:{path}" for path in own), given)))
    others = [word for word in options if not word.startswith(f"{MOUNTS}=")]
    # A site may make users root inside by default (ENROOT_REMAP_ROOT).
    ids = () if _AS_OUTSIDE in others else (_AS_OUTSIDE,)
    return (*others, f"{MOUNTS}={mounted}", *ids)


_Mount = tuple[str, str, frozenset[str]]


def _mounts(text: str) -> Iterator[_Mount]:
    """Yield source, target and flags of each ``SRC[:DST[:FLAG+FLAG]]``."""
    for item in filter(None, text.split(",")):
        source, _, rest = item.partition(":")
        target, _, flags = rest.partition(":")
        yield source, os.path.normpath(target or source), frozenset(flags.split("+"))


def _is_mounted(path: str, mounts: Sequence[_Mount], *, to_write: bool) -> bool:
    around = [mount for mount in mounts if _is_below(path, mount[1])]
    if not around:
        return False
    source, target, flags = max(reversed(around), key=lambda mount: len(mount[1]))
    if os.path.normpath(os.path.join(source, os.path.relpath(path, target))) != path:
        raise BadOption(
            f"mounts {source} on {target}, where the job needs {path} as it is outside",
            f"mount {source} somewhere else, or {path}:{path} after it",
        )
    if to_write and "ro" in flags:
        raise BadOption(
            f"mounts {target} read-only, and the job writes to {path}", f"mount {path}:{path} after it"
        )
    return True


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)
