"""Which addresses may be asked on behalf of somebody who only named them.

An address is judged twice: as it is written (`judge`), and by all that its name stands for at the moment of connecting
(`resolver`), which connects to nothing but what was judged. So a name that changes what it stands for, and a server
that sends elsewhere, come to the same judge.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec

from antwort.net.addresses import is_loopback, is_public, leads_to, plain, translated
from antwort.net.http import Resolve
from antwort.net.lookup import LISTED, STRANGERS, Crowded, look_up
from antwort.net.places import Address, OutOfReach, Place, read_place

__all__ = ["OutOfReach", "Place", "Reach", "Resolve"]

_USUAL = frozenset({80, 443})
_FREE = 1024
"""Ports from here on are anybody's; those below belong to other services."""

_UNKNOWN = "names a host that is not known, or that may not be named here."
"""The same for both: what a name of somebody's own network stands for is not told."""
_CROWDED = "names a host that could not be looked up in time."
_OWN_NETWORK = "names an address that is not public; such may not be named here."
_NOT_LISTED = "names a host that may not be named here."
_PLAIN = "must begin with https://."
_ODD_PORT = "names a port that belongs to other services."


class Pattern(msgspec.Struct, frozen=True):
    """A host, all below a domain, or a network; at one port or at any."""

    network: IPv4Network | IPv6Network | None = None
    host: str = ""
    below: bool = False
    port: int | None = None

    def fits_name(self, place: Place) -> bool:
        if self.network is not None or not self._fits_port(place.port):
            return False
        return place.host.endswith(f".{self.host}") if self.below else place.host == self.host

    def fits_any(self, addresses: Sequence[Address], port: int) -> bool:
        network = self.network
        return network is not None and self._fits_port(port) and any(address in network for address in addresses)

    def _fits_port(self, port: int) -> bool:
        return self.port in (None, port)


class Reach:
    """The policy. `loopback`: whether this machine's own addresses may be named."""

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        only_allowed: bool = False,
        http: bool = False,
        loopback: bool = False,
        lookup: Resolve | None = None,
    ) -> None:
        """`lookup` takes the place of our own. Raises `ValueError` for an entry of a list that is not a host, a domain
        or a network.
        """
        self._allow, self._deny = tuple(map(read_pattern, allow)), tuple(map(read_pattern, deny))
        self._only_allowed, self._http, self._loopback = only_allowed, http, loopback
        self._lookup = lookup

    def judge(self, url: str) -> Place:
        """Where the address leads, as far as it shows without looking anything up. Raises `OutOfReach`."""
        place = read_place(url)
        if _names_any(self._deny, place):
            raise OutOfReach(_NOT_LISTED)
        if place.address is not None:
            self._judge_address(place, place.address, _OWN_NETWORK)
        elif not self._is_settled(place) and not any(pattern.network for pattern in self._allow):
            self._judge_unlisted(place)  # else what it stands for may be listed
        return place

    def admit(self, place: Place, addresses: Sequence[str]) -> tuple[str, ...]:
        """The addresses, each as it is written, when every one of them may be asked; one that may not spoils all.
        Raises `OutOfReach`.
        """
        found = [plain(ip_address(address)) for address in addresses]
        if not found:
            raise OutOfReach(_UNKNOWN)
        for address in found:
            self._judge_address(place, address, _UNKNOWN)
        return tuple(map(str, found))

    def resolver(self, place: Place, who: Hashable = None) -> Resolve:
        """What a client that connects to `place` for `who` asks for addresses."""
        places = LISTED if self._is_settled(place) else STRANGERS
        look = self._lookup or partial(look_up, who=who, places=places)

        async def resolve(host: str, port: int) -> Sequence[str]:
            if place.address is not None:
                return self.admit(place, (str(place.address),))
            try:
                return self.admit(place, await look(host, port))
            except Crowded as exc:
                raise OutOfReach(_CROWDED) from exc
            except (OSError, ValueError) as exc:
                raise OutOfReach(_UNKNOWN) from exc

        return resolve

    # within

    def _judge_address(self, place: Place, address: Address, words: str) -> None:
        address = plain(address)
        ends = leads_to(address)
        if any(pattern.fits_any(ends, place.port) for pattern in self._deny):
            raise OutOfReach(words)
        ends = translated(address)
        if self._is_settled(place) or any(pattern.fits_any(ends, place.port) for pattern in self._allow):
            return
        if not self._only_allowed and self._loopback and is_loopback(address) and _is_here(place):
            return
        self._judge_unlisted(place)
        if not is_public(address):
            raise OutOfReach(words)

    def _judge_unlisted(self, place: Place) -> None:
        if self._only_allowed:
            raise OutOfReach(_NOT_LISTED)
        if self._loopback and _is_here(place):
            return
        if place.host == "localhost" or place.host.endswith(".localhost"):
            raise OutOfReach(_OWN_NETWORK)
        if not place.is_secure and not self._http:
            raise OutOfReach(_PLAIN)
        if place.port < _FREE and place.port not in _USUAL:
            raise OutOfReach(_ODD_PORT)

    def _is_settled(self, place: Place) -> bool:
        """Whether its name is listed: then what it stands for does not matter."""
        return _names_any(self._allow, place)


def _names_any(patterns: Sequence[Pattern], place: Place) -> bool:
    return any(pattern.fits_name(place) for pattern in patterns)


def _is_here(place: Place) -> bool:
    """Whether it is written as this machine: a name from elsewhere that stands for it was made to deceive."""
    if place.address is not None:
        return is_loopback(place.address)
    return place.host == "localhost" or place.host.endswith(".localhost")


def read_pattern(text: str) -> Pattern:
    """An entry of a list. Raises `ValueError`."""
    if "://" in text:
        raise ValueError(f"{text!r} is not a host; write it without http:// or https://")
    if text.strip() == "*":
        raise ValueError("'*' is not a host; `mcp.declared: false` keeps requests from naming any server")
    network, port = _split_port(text.strip().lower())
    try:
        return Pattern(network=_plain_network(ip_network(network.strip("[]"), strict=False)), port=port)
    except ValueError:
        if "/" in network or "?" in network:
            raise ValueError(f"{text!r} is not a network") from None
    below = network.startswith("*.")
    try:
        place = read_place(f"https://{network[2:] if below else network}/")
    except OutOfReach:
        raise ValueError(f"{text!r} is not a host, such as tools.example.com, *.example.com or 10.1.0.0/16") from None
    if place.address is not None:
        problem = f"{text!r} is not a whole address: write one as 10.1.2.3, and a network as 10.1.0.0/16"
        raise ValueError(problem)
    return Pattern(host=place.host, below=below, port=port)


def _plain_network(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """IPv4 written as IPv6 is held against as what it is: so is every address."""
    if network.version == 4 or network.prefixlen < 96 or (four := network.network_address.ipv4_mapped) is None:
        return network
    return IPv4Network((four, network.prefixlen - 96))


def _split_port(text: str) -> tuple[str, int | None]:
    """An IPv6 address has colons of its own: with a port it stands in brackets."""
    head, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or (":" in head and not head.endswith("]")):
        return text, None
    if not 0 < int(port) < 2**16:
        raise ValueError(f"{text!r} names a port that cannot be one")
    return head, int(port)
