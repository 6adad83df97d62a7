"""Where a request goes, below the place that the application is mounted at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote


def written_path(scope: Mapping[str, Any]) -> str:
    """The path as it was written: decoded, a slash that is part of an id could not be told from the others.

    `root_path` is where we are mounted. ASGI has `path` begin with it, older servers and frameworks took it off, and
    `raw_path`, being what the client wrote, has it in either case; all are understood.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path")
    written = raw.decode("latin-1") if raw else quote(path)
    if written == path and not root:  # as nearly all are
        return path
    if written != path and unquote(written) not in (path, root + path):
        written = quote(path)  # something on the way has changed the path, and that is what it wants answered
    return _below(written, root) if root else written


def _below(path: str, root: str) -> str:
    """The path without the root; as it is, if it does not begin with it."""
    end = 0
    for _ in range(root.count("/")):  # decoding adds slashes and takes none: no more of them than the root has
        end = path.find("/", end + 1)
        if end < 0:
            return "/" if unquote(path) == root else path
        if unquote(path[:end]) == root:
            return path[end:]
    return path
