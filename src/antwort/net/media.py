"""Which addresses of pictures and videos a request may name: backends fetch them, from inside the operator's network.

Nothing is fetched or looked up here: an address is judged as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from antwort.net.addresses import is_public, translated
from antwort.net.places import OutOfReach, read_place
from antwort.net.reach import read_pattern

__all__ = ["MediaHosts", "OutOfReach"]

ANY = "*"
_ORIGIN = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_SCHEME = "must begin with data: or https:// (limits.media_hosts names hosts that may be asked otherwise)."
_CREDENTIALS = "must not hold credentials."
_OWN_NETWORK = "names an address that is not public; limits.media_hosts does not allow it."


class MediaHosts:
    """Those that may be named although they are not public, or over http. `*` stands for any address of any kind."""

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        """Raises `ValueError` for an entry that is not a host, a domain or a network."""
        self._takes_any = ANY in hosts
        self._allowed = tuple(read_pattern(host) for host in hosts if host != ANY)

    def judge(self, url: str) -> None:
        """Raises `OutOfReach`, whose text ends a sentence that begins with the field."""
        if self._takes_any or url[:5].lower() == "data:":
            return
        if (origin := _ORIGIN.match(url)) is None or "\\" in url:
            raise OutOfReach(_SCHEME)
        if "@" in origin[0]:
            raise OutOfReach(_CREDENTIALS)
        place = read_place(f"{origin[0]}/")
        if any(pattern.fits_name(place) for pattern in self._allowed):
            return
        if place.address is not None:
            ends = translated(place.address)
            if any(pattern.fits_any(ends, place.port) for pattern in self._allowed):
                return
        if not place.is_secure:
            raise OutOfReach(_SCHEME)
        is_here = place.host == "localhost" or place.host.endswith(".localhost")
        if is_here or (place.address is not None and not is_public(place.address)):
            raise OutOfReach(_OWN_NETWORK)
