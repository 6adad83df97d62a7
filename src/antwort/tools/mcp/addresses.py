"""One name for a server however its address is written. Pure.

It is compared, never asked: two addresses that most servers would not tell apart come to the same.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from antwort.net.ssrf import ParsedUrl, parse_url, unmap_ipv4

_USUAL_PORTS = (80, 443)
_MOST_DECODINGS = 5
"""How often a path may have been percent-encoded, one over the other."""


@lru_cache(maxsize=256)
def canonical_address(url: str) -> str:
    """Return host, port and path of an address in one spelling. Raises `AddressNotAllowed`.

    The scheme, the usual ports and the query are left out: they seldom lead to another server, and often to the same
    one. Of the path, percent-encoding, case, dots, empty segments, parameters and a slash at the end are evened out.
    """
    place = parse_url(url)
    port = "" if place.port in _USUAL_PORTS else f":{place.port}"
    return f"{_host(place)}{port}/{_path(place.target.partition('?')[0])}"


def _host(place: ParsedUrl) -> str:
    """All names and numbers of this machine are one."""
    if place.address is None:
        return "localhost" if place.is_localhost else place.host
    address = unmap_ipv4(place.address)
    return "localhost" if address.is_loopback or address.is_unspecified else str(address)


def _path(path: str) -> str:
    for _ in range(_MOST_DECODINGS):
        path = unquote(path)
    segments: list[str] = []
    for segment in path.replace("\\", "/").split("/"):
        name = segment.partition(";")[0]
        if name == "..":
            del segments[-1:]
        elif name not in ("", "."):
            segments.append(name.casefold())
    return "/".join(segments)
