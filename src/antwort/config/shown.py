"""Show the settings: YAML or JSON with secrets masked, and where each value came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from msgspec import UNSET, Struct

from antwort.config.checks import without_query
from antwort.config.conversion import below
from antwort.config.secrets import MASK, Secret
from antwort.config.settings import BackendSettings, McpServerSettings, OAuthSettings

if TYPE_CHECKING:
    from antwort.config.loading import Loaded

_MAX_WIDTH = 60


def as_json(loaded: Loaded) -> str:
    """Return all settings in force, and the origins of those that were given."""
    both = {"settings": plain(loaded.settings), "origins": loaded.origins}
    return json.dumps(both, indent=2, ensure_ascii=False)


def as_yaml(loaded: Loaded, *, everything: bool) -> str:
    """Return the settings that were given, or all, each with its origin in a comment."""
    shown = plain(loaded.settings)
    assert isinstance(shown, dict)
    lines = list(_lines(shown if everything else _given(shown, "", loaded.origins), "", ""))
    width = min(max((len(line.text) for line in lines), default=0), _MAX_WIDTH)
    return "\n".join(f"{line.text:{width}}  # {loaded.origin(line.path)}" if line.path else line.text for line in lines)


# ---- masking ----


def plain(value: object) -> object:
    """Return settings as dicts and lists, without secrets."""
    match value:
        case Secret():
            is_elsewhere = value.origin and not re.search(r":\d+$", value.origin)  # a variable, or a file of its own
            return f"{MASK} (from {value.origin})" if is_elsewhere else MASK
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


_PUBLIC_PART = re.compile(r"(api|http|mcp|messages|rpc|sse|stream|tools|v\d{1,2})?")
"""Parts of a path that are no key: many servers give out addresses with one."""
_PROGRAM = re.compile(r"[\w./-]+\.(js|mjs|py|sh|ts)|@[a-z0-9-]+/[a-z0-9-]+(@[\w.]{1,12})?")
"""What `python` or `npx` is told to run: a file, or a package."""
_RUNNERS, _RUNNER_SWITCHES = frozenset({"bunx", "npx", "pipx", "uvx"}), frozenset({"-q", "-y", "--yes", "run"})
_PACKAGE = re.compile(r"[a-z0-9][\w.-]*((@|==)[\w.]{1,12})?")
"""The first argument of a runner of packages."""
_FLAG = re.compile(r"(--[A-Za-z][A-Za-z-]*|-[A-Za-z])(=.*)?", re.DOTALL)
"""`-pSECRET` is none: it holds its value in itself."""
_PUBLIC_FLAGS = frozenset(
    [
        *("dir", "directory", "encoding", "folder", "format", "host", "lang", "language", "level", "locale", "mode"),
        *("port", "region", "root", "timeout", "timezone", "transport", "tz", "workspace", "zone"),
    ]
)
"""Last words of the names of flags whose values are no secrets."""
_PUBLIC_VALUE = re.compile(r"[\w+./~-]{1,100}")


def shown_address(url: str) -> str:
    """Return scheme, host and port of an MCP server's address, and the parts of the path that cannot be a key."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return MASK
    path = "/".join(part if _PUBLIC_PART.fullmatch(part) else MASK for part in parts.path.split("/"))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"


def shown_command(words: Sequence[str]) -> list[str]:
    """Return the command of an MCP server, with its arguments masked: all but the names of flags, the program to run,
    and values of flags that hold no secrets, such as `--local-timezone Europe/Berlin`.
    """
    shown = [*words[:1]]
    is_public, is_package = False, bool(words) and PurePath(words[0]).name in _RUNNERS
    for word in words[1:]:
        flag = _FLAG.fullmatch(word)
        if is_package and word not in _RUNNER_SWITCHES:
            is_package = False
            if _PACKAGE.fullmatch(word):
                shown.append(word)
                continue
        if flag is None:
            is_shown = _PROGRAM.fullmatch(word) or (is_public and _PUBLIC_VALUE.fullmatch(word))
            shown.append(word if is_shown else MASK)
            is_public = False
            continue
        name, value = flag[1], flag[2]
        is_public = name.lower().rpartition("-")[2] in _PUBLIC_FLAGS
        if value:
            value = value if is_public and _PUBLIC_VALUE.fullmatch(value[1:]) else f"={MASK}"
            is_public = False
        shown.append(f"{name}{value or ''}")
    return shown


# ---- YAML ----


class _YamlLine(NamedTuple):
    text: str
    path: str = ""
    """Of the value in it; empty for a heading."""


def _given(table: Mapping[str, object], path: str, origins: Mapping[str, str]) -> dict[str, object]:
    """Return what was given of each table; a list or a map is given as a whole."""
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


def _lines(table: Mapping[str, object], path: str, indent: str) -> Iterator[_YamlLine]:
    for key, value in table.items():
        at = below(path, key) if path else key
        head = f"{indent}{written(key)}:"
        if isinstance(value, dict) and value:
            yield _YamlLine(head)
            yield from _lines(value, at, f"{indent}  ")
        elif isinstance(value, list) and value:
            yield _YamlLine(head, at)
            for place, entry in enumerate(value):
                yield from _entry(entry, f"{at}[{place}]", f"{indent}  ")
        else:
            yield _YamlLine(f"{head} {written(value)}", at)


def _entry(entry: object, path: str, indent: str) -> Iterator[_YamlLine]:
    """Yield the lines of an entry of a list."""
    if not isinstance(entry, dict) or not entry:
        yield _YamlLine(f"{indent}- {written(entry)}", path)
        return
    for at, line in enumerate(_lines(entry, path, f"{indent}  ")):
        yield line if at else line._replace(text=f"{indent}- {line.text.lstrip()}")


_PLAIN = re.compile(r"[A-Za-z/~.][\w ./@%+-]*(:[\w./@%+?=&-]+)*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "~", "null"})


def written(value: object) -> str:
    """Return a single value as YAML."""
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
