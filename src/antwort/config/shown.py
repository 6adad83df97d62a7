"""The settings as an operator is shown them: YAML with secrets masked, and where each value came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import UNSET, Struct

from antwort.config.addresses import without_query
from antwort.config.mcp import OAuthSettings
from antwort.config.mcp_shown import shown_address, shown_command
from antwort.config.nodes import NOTHING
from antwort.config.reading import Loaded
from antwort.config.secrets import MASK, Secret
from antwort.config.settings import BackendSettings, McpServerSettings
from antwort.config.typed import below

_PLAIN = re.compile(r"[A-Za-z/~.][\w ./@%+-]*(:[\w./@%+?=&-]+)*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", *NOTHING})
_WIDEST = 60


class Line(NamedTuple):
    text: str
    path: str = ""
    """Of the value that stands in it; empty for a heading."""


def plain(value: object) -> object:
    """Settings as plain values, fit to be shown."""
    match value:
        case Secret():
            return f"{MASK} (from {value.origin})" if _is_elsewhere(value) else MASK
        case BackendSettings():
            return {**_fields(value), "url": _address(value.url, without_query(value.url))}
        case McpServerSettings():
            url = None if value.url is None else _address(value.url, shown_address(value.url))
            return {**_fields(value), "url": url, "command": shown_command(value.command)}
        case OAuthSettings(token_url=str(url)):
            return {**_fields(value), "token_url": _address(url, shown_address(url))}
        case Struct():
            return _fields(value)
        case tuple():
            return [plain(entry) for entry in value]
        case Mapping():
            return {key: plain(entry) for key, entry in value.items()}
        case _:
            return value


def _fields(value: Struct) -> dict[str, object]:
    return {name: plain(given) for name in value.__struct_fields__ if (given := getattr(value, name)) is not UNSET}


def _address(url: str, shown: str) -> str:
    return f"{shown}?{MASK}" if "?" in url or "#" in url else shown


def _is_elsewhere(secret: Secret) -> bool:
    """Whether it came from a variable or a file of its own, which is worth naming."""
    return bool(secret.origin) and not re.search(r":\d+$", secret.origin)


def as_json(loaded: Loaded) -> str:
    """Everything in force, and the origins of what was given."""
    both = {"settings": plain(loaded.settings), "origins": loaded.origins}
    return json.dumps(both, indent=2, ensure_ascii=False)


def as_yaml(loaded: Loaded, *, everything: bool) -> str:
    """What was given, or everything, as lines of YAML with the origin of each value behind it."""
    shown = plain(loaded.settings)
    assert isinstance(shown, dict)
    if not everything:
        shown = _given(shown, "", loaded.origins)
    lines = list(_lines(shown, "", ""))
    width = min(max((len(line.text) for line in lines), default=0), _WIDEST)
    return "\n".join(f"{line.text:{width}}  # {loaded.origin(line.path)}" if line.path else line.text for line in lines)


def _given(table: Mapping[str, object], path: str, origins: Mapping[str, str]) -> dict[str, object]:
    """Of each table what was given; a list or a map is given as a whole."""
    kept: dict[str, object] = {}
    for key, value in table.items():
        at = f"{path}.{key}" if path else key
        if isinstance(value, list) and at in origins:
            kept[key] = [
                _given(entry, f"{at}[{place}]", origins) if isinstance(entry, dict) else entry
                for place, entry in enumerate(value)
            ]
        elif at in origins:
            kept[key] = value
        elif isinstance(value, dict) and (inner := _given(value, at, origins)):
            kept[key] = inner
    return kept


def _lines(table: Mapping[str, object], path: str, indent: str) -> Iterator[Line]:
    for key, value in table.items():
        at = below(path, key) if path else key
        head = f"{indent}{written(key)}:"
        if isinstance(value, dict) and value:
            yield Line(head)
            yield from _lines(value, at, f"{indent}  ")
        elif isinstance(value, list) and value:
            yield Line(head, at)
            for place, entry in enumerate(value):
                yield from _entry(entry, f"{at}[{place}]", f"{indent}  ")
        else:
            yield Line(f"{head} {written(value)}", at)


def _entry(entry: object, path: str, indent: str) -> Iterator[Line]:
    """An entry of a list."""
    if not isinstance(entry, dict) or not entry:
        yield Line(f"{indent}- {written(entry)}", path)
        return
    for at, line in enumerate(_lines(entry, path, f"{indent}  ")):
        yield line if at else line._replace(text=f"{indent}- {line.text.lstrip()}")


def written(value: object) -> str:
    """A single value as YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            is_plain = value.startswith(MASK) or (_PLAIN.fullmatch(value) and value.lower() not in _WORDS)
            return value if is_plain and value == value.strip() else json.dumps(value, ensure_ascii=False)
        case float():
            return str(value).removesuffix(".0")
        case list() | tuple():
            return f"[{', '.join(written(entry) for entry in value)}]"
        case Mapping():
            return f"{{{', '.join(f'{written(key)}: {written(entry)}' for key, entry in value.items())}}}"
        case _:
            return str(value)
