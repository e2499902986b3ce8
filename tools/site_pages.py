"""The hook of mkdocs.yml: pages that lie beside ``docs/``, and links that lead out of it.

On the file system and in a repository's browser README.md, CHANGELOG.md and others lead to ``docs/`` and
back. The site has them as pages too, under names of its own, and a link to one of them leads to that page. A
link to a file that is no page (source code, the license) becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the checkout, and the page of the site that each is."""

_SOURCE = {page: file for file, page in BESIDE.items()}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def source_of(page: str) -> str:
    """The file in the checkout from which a page of the site is made."""
    return _SOURCE.get(page, f"docs/{page}")


def relinked(text: str, page: str) -> str:
    """The text of ``page``: a link to a file leads to that file's page, or is only its own text."""
    folder, start = posixpath.dirname(source_of(page)), posixpath.dirname(page)

    def link(found: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(folder, found["target"]))
        target = BESIDE.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else "")
        if not target:
            return found["text"]
        return f"[{found['text']}]({posixpath.relpath(target, start or '.')}{found['anchor'] or ''})"

    pieces, at = [], 0
    for fence in _FENCE.finditer(text):
        pieces += [_LINK.sub(link, text[at : fence.start()]), fence.group()]
        at = fence.end()
    return "".join([*pieces, _LINK.sub(link, text[at:])])


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that lie beside ``docs/``."""
    from mkdocs.structure.files import File

    for file, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Lead the page's links to pages of the site."""
    return relinked(markdown, page.file.src_uri)
