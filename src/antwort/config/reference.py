"""All settings on one page, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET
from msgspec.inspect import StructType

from antwort.config.descriptions import description
from antwort.config.flags import BY_PATH
from antwort.config.shape import Leaf, all_leaves, default_of, in_words, is_optional
from antwort.config.shown import written

_HEAD = "| setting | takes | default | variable and flag | |\n|---|---|---|---|---|"


def reference() -> str:
    """A section for each table of settings, in the order of the file, with a row for each setting."""
    sections: dict[str, list[Leaf]] = {}
    for leaf in all_leaves():
        sections.setdefault(leaf.path.rpartition(".")[0], []).append(leaf)
    return "\n\n".join(_section(name, leaves) for name, leaves in sections.items()) + "\n"


def _section(name: str, leaves: list[Leaf]) -> str:
    lines = [f"## `{name}`" if name else "## At the top", ""]
    if about := _about(leaves[0].owner):
        lines += [about, ""]
    return "\n".join([*lines, _HEAD, *(_row(leaf) for leaf in leaves)])


def _about(owner: type) -> str:
    return (owner.__doc__ or "").strip()


def _row(leaf: Leaf) -> str:
    cells = (f"`{leaf.path}`", _takes(leaf), _default(leaf), "<br>".join(_ways(leaf)), _text(leaf))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _text(leaf: Leaf) -> str:
    return " ".join(description(leaf.owner, leaf.field.name).split())


def _takes(leaf: Leaf) -> str:
    return in_words(leaf.field.type).replace("{", "`{", 1).replace("} or {", "}` or `{").replace("PATH}", "PATH}`")


def _default(leaf: Leaf) -> str:
    if leaf.field.required:
        return "required"
    value = default_of(leaf.field)
    if value is UNSET or (value is None and is_optional(leaf.field.type)):
        return "unset"
    assert not isinstance(leaf.field.type, StructType)
    return f"`{written(msgspec.to_builtins(value))}`"


def _ways(leaf: Leaf) -> Iterator[str]:
    """How it is set other than in the file. What stands in the entry of a list can only be set with the whole list."""
    if "[]" in leaf.path:
        return
    yield f"`{leaf.variable}`"
    if leaf.is_secret:
        yield f"`{leaf.variable}_FILE`"
    if flag := BY_PATH.get(leaf.path):
        yield f"`{flag}`"
