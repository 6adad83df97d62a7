"""How an MCP server is reached, as it may be shown: addresses and command lines often hold what lets somebody in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from antwort.config.secrets import MASK

_HARMLESS = re.compile(r"(api|http|mcp|messages|rpc|sse|stream|tools|v\d{1,2})?")
"""Parts of a path that are no key: many a server gives out addresses with one in the middle."""
_PROGRAM = re.compile(r"[\w./-]+\.(js|mjs|py|sh|ts)|@[a-z0-9-]+/[a-z0-9-]+(@[\w.]{1,12})?")
"""What runs a program, such as `python` or `npx`, is told which: a file, or a package."""
_FLAG = re.compile(r"--?[A-Za-z][A-Za-z-]*")


def shown_address(url: str) -> str:
    """Scheme, host and port, and of the path what is no key by any means."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return MASK
    path = "/".join(part if _HARMLESS.fullmatch(part) else MASK for part in parts.path.split("/"))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"


def shown_command(words: Sequence[str]) -> list[str]:
    """The program, and its arguments masked but for the names of flags and of what is to be run."""
    return [word if at == 0 else _shown_word(word) for at, word in enumerate(words)]


def _shown_word(word: str) -> str:
    if _PROGRAM.fullmatch(word):
        return word
    name, equals, _ = word.partition("=")
    is_long = name.startswith("--")
    if not _FLAG.fullmatch(name) or not (is_long or len(name) == 2):  # `-pHUSH` holds its value in itself
        return MASK
    return f"{name}={MASK}" if equals else name
