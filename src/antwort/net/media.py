"""Which addresses of images and videos a request may name. Backends fetch them from inside the operator's network.

Nothing is fetched or looked up here: an address is checked as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from antwort.net.ssrf import AddressNotAllowed, is_public, nat64_addresses, parse_host_pattern, parse_url

__all__ = ["AddressNotAllowed", "MediaHosts"]

ANY_HOST = "*"
_ORIGIN = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_INVALID_SCHEME = "must begin with data: or https:// (limits.media_hosts names hosts that may be asked otherwise)."
_CREDENTIALS = "must not hold credentials."
_NOT_PUBLIC = "names an address that is not public; limits.media_hosts does not allow it."


class MediaHosts:
    """Hosts that may be named although they are not public or not https. `*` allows every address of every scheme."""

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        """Raises `ValueError` for an entry that is not a host, a domain or a network."""
        self._allows_any = ANY_HOST in hosts
        self._allowed = tuple(parse_host_pattern(host) for host in hosts if host != ANY_HOST)

    def check(self, url: str) -> None:
        """Raises `AddressNotAllowed`, whose text completes a sentence that begins with the name of the field."""
        if self._allows_any or url[:5].lower() == "data:":
            return
        if (origin := _ORIGIN.match(url)) is None or "\\" in url:
            raise AddressNotAllowed(_INVALID_SCHEME)
        if "@" in origin[0]:
            raise AddressNotAllowed(_CREDENTIALS)
        parsed = parse_url(f"{origin[0]}/")
        if any(pattern.matches_host(parsed) for pattern in self._allowed):
            return
        if parsed.address is not None:
            reached = nat64_addresses(parsed.address)
            if any(pattern.matches_address(reached, parsed.port) for pattern in self._allowed):
                return
        if not parsed.is_secure:
            raise AddressNotAllowed(_INVALID_SCHEME)
        if parsed.is_localhost or (parsed.address is not None and not is_public(parsed.address)):
            raise AddressNotAllowed(_NOT_PUBLIC)
