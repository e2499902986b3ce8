"""The keys of the node's configuration with their defaults and meanings, read from the records themselves.

The commented file that an installation writes, the table of the documentation and the manual page all come
from here, so none of them can tell of a key that does not exist.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.config import node
from slurm_robust.config.settings import in_words
from slurm_robust.model.record import Record

PAGE_MARK = "<!-- written by: python -m slurm_robust.admin.keys docs/node-configuration.md -->\n"
_WIDTH = 100


class Key(Record):
    """One key. ``default`` is JSON, and so YAML; ``words`` its type; ``text`` its meaning, may be empty."""

    name: str
    default: str
    words: str
    text: str


class Section(Record):
    """A mapping of the file, or a single value at its top."""

    name: str
    text: str
    keys: tuple[Key, ...]


def sections() -> tuple[Section, ...]:
    """All of :class:`NodeConfig`, in its order."""
    texts = _docstrings()
    found = []
    for item in msgspec.structs.fields(node.NodeConfig):
        kind = item.type
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            keys = tuple(_key(inner, texts[kind.__name__]) for inner in msgspec.structs.fields(kind))
            found.append(Section(name=item.name, text=texts[kind.__name__][""], keys=keys))
        else:
            key = _key(item, texts["NodeConfig"])
            found.append(Section(name=item.name, text=key.text or _inner_text(kind, texts), keys=(key,)))
    return tuple(found)


def as_yaml(header: str) -> str:
    """A file in which every key is a comment with its default."""
    lines = [f"# {line}".rstrip() for line in header.strip().splitlines()]
    for section in sections():
        lines += ["", *(f"# {line}" for line in _wrapped(_plain(section.text)))]
        if _is_single(section):
            lines.append(f"#{section.name}: {section.keys[0].default}")
            continue
        lines.append(f"#{section.name}:")
        for key in section.keys:
            lines += [f"#  # {line}" for line in _wrapped(_plain(key.text))]
            lines.append(f"#  {key.name}: {key.default}")
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """One table for each section."""
    lines: list[str] = []
    for section in sections():
        lines += ["", f"### `{section.name}`", "", section.text.replace("``", "`")]
        if _is_single(section):
            lines += ["", f"Default: `{section.keys[0].default}`"]
            continue
        lines += ["", "| key | default | is | meaning |", "| --- | --- | --- | --- |"]
        for key in section.keys:
            text = key.text.replace("``", "`").replace("|", "\\|")
            lines.append(f"| `{key.name}` | `{key.default}` | {key.words} | {text} |")
    return "\n".join(lines).strip() + "\n"


def as_roff() -> str:
    """For the manual page: a subsection for each section."""
    lines: list[str] = []
    for section in sections():
        lines += [f'.SS "{section.name}"', _roff(section.text)]
        for key in () if _is_single(section) else section.keys:
            lines += [".TP", f'.BR {key.name} " ({key.words}; default \\fB{_roff(key.default)}\\fR)"']
            lines.append(_roff(key.text) or "\\&")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """A page of the documentation with the table of today."""
    return page[: page.index(PAGE_MARK) + len(PAGE_MARK)] + "\n" + as_markdown()


def _is_single(section: Section) -> bool:
    return len(section.keys) == 1 and section.keys[0].name == section.name


def _key(item: msgspec.structs.FieldInfo, texts: dict[str, str]) -> Key:
    default: Any = item.default
    if item.default_factory is not msgspec.NODEFAULT:
        default = item.default_factory()
    text = msgspec.json.encode(default).decode()
    return Key(
        name=item.name,
        default=re.sub(r"([,:])(?=\S)", r"\1 ", text) if text[0] in "[{" else text,
        words=in_words(item.type),
        text=texts.get(item.name, ""),
    )


def _inner_text(kind: Any, texts: dict[str, dict[str, str]]) -> str:
    """What the record says that a list or mapping holds."""
    inner = next(part for part in reversed(kind.__args__) if part is not Ellipsis)
    fields = ", ".join(f"``{item.name}``" for item in msgspec.structs.fields(inner))
    return f"{texts[inner.__name__]['']} Keys: {fields}."


def _docstrings() -> dict[str, dict[str, str]]:
    """Texts by record and field; that of the record itself under the empty name."""
    found: dict[str, dict[str, str]] = {}
    for definition in ast.parse(inspect.getsource(node)).body:
        if not isinstance(definition, ast.ClassDef):
            continue
        texts = found[definition.name] = {"": _joined(ast.get_docstring(definition) or "")}
        for before, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
                said = after.value if isinstance(after, ast.Expr) else None
                if isinstance(said, ast.Constant) and isinstance(said.value, str):
                    texts[before.target.id] = _joined(said.value)
    return found


def _joined(text: str) -> str:
    return " ".join(text.split())


def _plain(text: str) -> str:
    return text.replace("``", "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    text = re.sub(r"``(.*?)``", r"\\fB\1\\fR", text)
    return f"\\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(written(Path(name).read_text()))
