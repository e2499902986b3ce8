"""What the packages bring with them and under which licences: Debian's copyright file, and rpm's License tag.

    copyright.py text LIB        the copyright file (DEP-5), with the whole text of every licence
    copyright.py expression      the SPDX expression of everything together

LIB is the folder of modules that packaging/build.sh has filled. What somebody adds there, and what changes
its licence, stops the build here until this table says it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from fnmatch import fnmatchcase
from pathlib import Path

HERE = Path(__file__).parent
INSTALLED = "usr/lib/slurm-robust/"
# Where DEP-5 has another short name than SPDX.
DEBIAN = {
    "AND": "and",
    "BSD-2-Clause": "BSD-2-clause",
    "BSD-3-Clause": "BSD-3-clause",
    "LGPL-2.1-or-later": "LGPL-2.1+",
    "MIT": "Expat",
}


class Incomplete(Exception):
    """The table below does not say all of what is there."""


@dataclass(frozen=True)
class Work:
    """Files of one origin. ``files`` and ``texts`` are patterns below LIB; ``../`` is this folder."""

    files: tuple[str, ...]
    license: str  # SPDX
    holders: tuple[str, ...]
    texts: tuple[str, ...]
    source: str
    comment: str = ""


# What the metadata of each distribution says of its licence, word by word, so that a change is noticed.
SAID = {
    "markdown-it-py": "License :: OSI Approved :: MIT License",
    "mdurl": "License :: OSI Approved :: MIT License",
    "msgspec": "BSD-3-Clause",
    "nvidia-ml-py": "BSD",
    "pathspec": "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)",
    "psutil": "BSD-3-Clause",
    "pygments": "BSD-2-Clause",
    "pyyaml": "MIT",
    "pyzmq": "BSD-3-Clause",
    "rich": "MIT",
    "slurm-robust": "Apache-2.0",
    "xxhash": "BSD-2-Clause",
}

# The last one that matches a file counts.
WORKS = (
    Work(
        ("python", "slurm_robust/*", "slurm_robust-*.dist-info/*"),
        "Apache-2.0",
        ("the authors of slurm_robust",),
        ("../../LICENSE",),
        "the repository of slurm_robust",
    ),
    Work(
        ("slurm_robust/simulator/data/*",),
        "Apache-2.0",
        ("the authors of InfiniteHBD-Trace (StepFun)",),
        ("../../LICENSE",),
        "https://github.com/stepfun-ai/InfiniteHBD-Trace",
        "Changed from fault_trace.json: see README.md beside it.",
    ),
    Work(
        ("markdown_it/*", "markdown_it_py-*.dist-info/*"),
        "MIT",
        ("2020 ExecutableBookProject", "2014 Vitaly Puzrin, Alex Kocharin"),
        (
            "markdown_it_py-*.dist-info/licenses/LICENSE",
            "markdown_it_py-*.dist-info/licenses/LICENSE.markdown-it",
        ),
        "https://github.com/executablebooks/markdown-it-py",
    ),
    Work(
        ("mdurl/*", "mdurl-*.dist-info/*"),
        "MIT",
        (
            "2015 Vitaly Puzrin, Alex Kocharin",
            "2021 Taneli Hukkinen",
            "Joyent, Inc. and other Node contributors",
        ),
        ("mdurl-*.dist-info/LICENSE",),
        "https://github.com/executablebooks/mdurl",
    ),
    Work(
        ("msgspec/*", "msgspec-*.dist-info/*"),
        "BSD-3-Clause",
        ("2021 Jim Crist-Harif",),
        ("msgspec-*.dist-info/licenses/LICENSE",),
        "https://github.com/msgspec/msgspec",
    ),
    Work(
        ("msgspec/_core.*.so",),
        "BSD-3-Clause AND Apache-2.0 AND MIT",
        (
            "2021 Jim Crist-Harif",
            "2018 Ulf Adams",
            "2020 The Wuffs Authors",
            "2020 YaoYuan <ibireme@gmail.com>",
        ),
        ("msgspec-*.dist-info/licenses/LICENSE", "../../LICENSE", "../licenses/yyjson"),
        "https://github.com/msgspec/msgspec",
        "Compiled in: parts of Ryu and Wuffs (Apache-2.0), and of yyjson (MIT).",
    ),
    Work(
        ("pynvml.py", "nvidia_ml_py-*.dist-info/*"),
        "BSD-3-Clause",
        ("2011-2025 NVIDIA Corporation",),
        ("pynvml.py",),
        "https://pypi.org/project/nvidia-ml-py",
    ),
    Work(
        ("pathspec/*", "pathspec-*.dist-info/*"),
        "MPL-2.0",
        ("2013-2026 Caleb P. Burns and contributors",),
        ("pathspec-*.dist-info/licenses/LICENSE",),
        "https://github.com/cpburnz/python-pathspec",
    ),
    Work(
        ("psutil/*", "psutil-*.dist-info/*"),
        "BSD-3-Clause",
        ("2009 Jay Loden, Dave Daeschler, Giampaolo Rodola",),
        ("psutil-*.dist-info/LICENSE",),
        "https://github.com/giampaolo/psutil",
    ),
    Work(
        ("pygments/*", "pygments-*.dist-info/*"),
        "BSD-2-Clause",
        ("2006-2022 the authors of Pygments, see pygments-*.dist-info/licenses/AUTHORS",),
        ("pygments-*.dist-info/licenses/LICENSE",),
        "https://github.com/pygments/pygments",
    ),
    Work(
        ("yaml/*", "_yaml/*", "pyyaml-*.dist-info/*"),
        "MIT",
        ("2017-2021 Ingy döt Net", "2006-2016 Kirill Simonov"),
        ("pyyaml-*.dist-info/licenses/LICENSE",),
        "https://github.com/yaml/pyyaml, https://github.com/yaml/libyaml",
        "Compiled in: libyaml, by the same authors and under the same licence.",
    ),
    Work(
        ("zmq/*", "pyzmq-*.dist-info/*"),
        "BSD-3-Clause",
        ("2009-2012 Brian Granger, Min Ragan-Kelley", "the developers of PyZMQ"),
        ("pyzmq-*.dist-info/licenses/LICENSE.md",),
        "https://github.com/zeromq/pyzmq",
    ),
    Work(
        ("zmq/eventloop/zmqstream.py",),
        "Apache-2.0",
        ("2009 Facebook", "the developers of PyZMQ"),
        ("pyzmq-*.dist-info/licenses/licenses/LICENSE.tornado.txt",),
        "https://github.com/zeromq/pyzmq",
    ),
    Work(
        ("zmq/ssh/forward.py",),
        "LGPL-2.1-or-later",
        ("2003-2007 Robey Pointer <robeypointer@gmail.com>", "2010 The IPython Team"),
        ("../licenses/LGPL-2.1",),
        "https://github.com/zeromq/pyzmq",
    ),
    Work(
        ("pyzmq.libs/libzmq-*.so*",),
        "MPL-2.0",
        ("2007-2026 the contributors of libzmq",),
        ("pyzmq-*.dist-info/licenses/licenses/LICENSE.zeromq.txt",),
        "https://github.com/zeromq/libzmq",
    ),
    Work(
        ("pyzmq.libs/libsodium-*.so*",),
        "ISC",
        ("2013-2026 Frank Denis",),
        ("pyzmq-*.dist-info/licenses/licenses/LICENSE.libsodium.txt",),
        "https://github.com/jedisct1/libsodium",
    ),
    Work(
        ("rich/*", "rich-*.dist-info/*"),
        "MIT",
        ("2020 Will McGugan",),
        ("rich-*.dist-info/licenses/LICENSE",),
        "https://github.com/Textualize/rich",
    ),
    Work(
        ("xxhash/*", "xxhash-*.dist-info/*"),
        "BSD-2-Clause",
        ("2014-2026 Yue Du", "2012-2021 Yann Collet"),
        ("xxhash-*.dist-info/licenses/LICENSE", "../licenses/xxHash"),
        "https://github.com/ifduyue/python-xxhash",
        "Compiled in: xxHash by Yann Collet.",
    ),
)


def expression() -> str:
    """SPDX expression of all works together."""
    return " AND ".join(sorted({name for work in WORKS for name in work.license.split(" AND ")}))


def check(lib: Path) -> None:
    """Raises :class:`Incomplete` unless the tables say of all in ``lib`` what it is, and of nothing else."""
    said = dict(_said(lib))
    wrong = [
        f"{name}: its metadata says {said.get(name, 'nothing, it is not there')!r}, "
        f"SAID {SAID.get(name, 'nothing')!r}"
        for name in sorted(said.keys() | SAID.keys())
        if said.get(name) != SAID.get(name)
    ]
    files = sorted(path.relative_to(lib).as_posix() for path in lib.rglob("*") if path.is_file())
    for name in files:
        if "__pycache__" not in name and not any(_covers(work, name) for work in WORKS):
            wrong.append(f"{name}: of no work")
    for work in WORKS:
        for pattern in work.files:
            if not any(fnmatchcase(name, pattern) for name in files):
                wrong.append(f"{pattern}: no such file")
    if wrong:
        raise Incomplete("\n".join([f"{Path(__file__).name} and {lib} differ:", *wrong]))


def text(lib: Path) -> str:
    """The copyright file for what lies in ``lib``. Raises :class:`Incomplete` as :func:`check`."""
    check(lib)
    header = {
        "Format": "https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name": "slurm_robust",
        "Comment": "The modules below are from their wheels on https://pypi.org, without files for "
        "compiling;\nwhat is there is unmodified. Source says where their source is.",
    }
    stanzas = [header, *(_stanza(work, lib) for work in WORKS)]
    return "\n".join("".join(f"{key}: {_folded(value)}\n" for key, value in it.items()) for it in stanzas)


def _stanza(work: Work, lib: Path) -> dict[str, str]:
    ours = work is WORKS[0]
    return {
        "Files": "*" if ours else "\n".join(INSTALLED + pattern for pattern in work.files),
        "Copyright": "\n".join(work.holders),
        "Comment": "\n".join(line for line in (f"Source: {work.source}", work.comment) if line),
        "License": "\n".join(
            [
                " ".join(DEBIAN.get(word, word) for word in work.license.split()),
                *(_license(pattern, lib) for pattern in work.texts),
            ]
        ),
    }


def _license(pattern: str, lib: Path) -> str:
    """The text of a licence: a file of its own, or the comment at the head of a module."""
    if pattern.startswith("../"):
        found = [(HERE / pattern.removeprefix("../")).resolve()]
    else:
        found = list(lib.glob(pattern))
    if len(found) != 1 or not found[0].is_file():
        raise Incomplete(f"{pattern}: {len(found)} files in {lib}, where one is to have a licence's text")
    lines = found[0].read_text(encoding="utf-8").splitlines()
    if found[0].suffix == ".py":
        code = next(number for number, line in enumerate(lines) if not line.startswith("#"))
        lines = [line.lstrip("#").removeprefix(" ") for line in lines[:code]]
    return "\n".join(lines).strip("\n")


def _folded(value: str) -> str:
    """A value of several lines as control files have it: further ones are indented, empty ones have a dot."""
    first, *others = value.splitlines()
    return "\n".join([first, *(f" {line.rstrip()}" if line.strip() else " ." for line in others)])


def _covers(work: Work, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in work.files)


def _said(lib: Path) -> Iterator[tuple[str, str]]:
    for path in lib.glob("*.dist-info/METADATA"):
        metadata = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
        classifiers = metadata.get_all("Classifier", [])
        name = str(metadata["Name"]).lower().replace("_", "-")
        stated = metadata["License-Expression"] or metadata["License"]
        yield name, stated or "; ".join(_of_license(classifiers)) or "nothing"


def _of_license(classifiers: Iterable[str]) -> Iterator[str]:
    return (it for it in classifiers if it.startswith("License ::"))


def main(arguments: list[str]) -> int:
    """The program; 1 if a table is incomplete."""
    try:
        if arguments == ["expression"]:
            print(expression())
        elif len(arguments) == 2 and arguments[0] == "text":
            sys.stdout.write(text(Path(arguments[1])))
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except Incomplete as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
