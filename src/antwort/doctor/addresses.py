"""Where a backend may be, by what somebody wrote. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

_ENDPOINTS = ("/chat/completions", "/completions", "/models", "/responses")
_VERSION = "/v1"


def candidates(written: str) -> list[str]:
    """The base addresses that may be meant, the likeliest first."""
    address = written.strip()
    if "://" not in address:
        address = f"http://{address}"
    parts = urlsplit(address)
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    return [urlunsplit((parts.scheme, parts.netloc, each, parts.query, "")) for each in _paths(path)]


def _paths(path: str) -> list[str]:
    if not path:
        return [_VERSION, ""]
    if path.endswith(_VERSION):
        return [path, path.removesuffix(_VERSION)]
    return [path, f"{path}{_VERSION}"]


def without_slash(base: str) -> str:
    """The address without a slash at the end of its path; a query behind that stays."""
    head, mark, query = base.partition("?")
    return f"{head.rstrip('/')}{mark}{query}"


def root_of(base: str) -> str:
    """Where an engine's own endpoints are: beside the versioned ones."""
    parts = urlsplit(base)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix(_VERSION), "", ""))
