"""What pyproject.toml cannot say: a build has the version of its tag, and is the same to the last byte."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools_scm import ScmVersion

VERSION = Path("slurm_robust", "version.py")


def next_release() -> str:
    """The release that this tree leads to, of which a checkout says that it is."""
    found = re.search('^__version__ = "(.+)"$', VERSION.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def version_of(scm: ScmVersion) -> str:
    """The version of a tagged commit is its tag; others come before the next release, in their order."""
    return str(scm.tag) if scm.exact else scm.format_next_version(lambda _: next_release())


def readme() -> str:
    """README.md for a page that has no files beside it: links lead to the repository."""
    home = re.search('^Homepage = "(.+)"$', Path("pyproject.toml").read_text(), re.MULTILINE)
    assert home is not None
    text = Path("README.md").read_text()
    return re.sub(r"\]\((?!https?:|#)", f"]({home[1]}/blob/main/", text)


class BuildWithVersion(build_py):
    """Writes the version of the build into the package, where an import costs no hook any time."""

    def run(self) -> None:
        """Copy the modules, then write that line."""
        super().run()
        if not self.editable_mode:
            built = Path(self.build_lib) / VERSION
            line = f'__version__ = "{self.distribution.get_version()}"'
            built.write_text(re.sub("^__version__ = .*$", line, built.read_text(), flags=re.MULTILINE))
            for path in Path(self.build_lib).rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)


class SameEachTime(sdist):
    """Packs files in the order of their names, of nobody, with one time."""

    def make_distribution(self) -> None:
        """Pack as ever, then once more."""
        super().make_distribution()
        time = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
        for name in self.archive_files if time else ():
            same = io.BytesIO()
            with (
                tarfile.open(name) as found,
                gzip.GzipFile("", "wb", fileobj=same, mtime=time) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as out,
            ):
                for item in sorted(found.getmembers(), key=lambda item: item.name):
                    item.mtime, item.uid, item.gid, item.uname, item.gname = time, 0, 0, "", ""
                    item.mode = 0o755 if item.isdir() or item.mode & 0o100 else 0o644
                    item.pax_headers = {}
                    out.addfile(item, found.extractfile(item) if item.isfile() else None)
            Path(name).write_bytes(same.getvalue())


os.umask(0o022)  # else the modes in a build would be of whoever builds
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithVersion, "sdist": SameEachTime},
    use_scm_version={
        "version_scheme": version_of,
        # A tree without git, or of which git tells nothing, is no release.
        "fallback_version": f"{next_release()}.dev0",
        "tag_regex": "^v(?P<version>[0-9.]+)$",
    },
)
