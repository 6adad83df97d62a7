"""Policy against server-side request forgery (SSRF): which addresses may be requested for somebody who named them.

An address is checked twice: as it is written (`AddressPolicy.check`), and by all IP addresses of its name when a
connection is made (`AddressPolicy.resolver`). Connections are made to the checked IP addresses only, so neither a name
that changes its addresses nor a redirect evades the policy.

Parsing is strict and has one result, used both for the check and for the connection. Whether an IP address is public
is decided by tables of our own, after the IANA registries of special-purpose addresses: Python's `ipaddress` differs
between versions.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache, partial
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from antwort.net.dns import ALLOWED_LOOKUPS, UNTRUSTED_LOOKUPS, LookupQueueTimeout, Resolver, look_up
from antwort.net.response import HttpError

IpAddress: TypeAlias = IPv4Address | IPv6Address
IpNetwork: TypeAlias = IPv4Network | IPv6Network

MAX_URL_CHARACTERS = 2048
_FIRST_UNPRIVILEGED_PORT = 1024
_WEB_PORTS = frozenset({80, 443})
_INVALID_HOST = "names a host that cannot be one."
_UNKNOWN = "names a host that is not known, or that may not be named here."
"""The same text for both, so that it does not reveal which names the operator's network has."""
_LOOKUP_TIMEOUT = "names a host that could not be looked up in time."
_NOT_PUBLIC = "names an address that is not public; such may not be named here."
_NOT_ALLOWED = "names a host that may not be named here."
_NOT_SECURE = "must begin with https://."
_PRIVILEGED_PORT = "names a port that belongs to other services."


class AddressNotAllowed(HttpError):
    """The policy forbids an address. The text completes a sentence that begins with the name of the field, and reveals
    nothing about the operator's network.
    """


# ---- URLs ----

_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?", re.IGNORECASE)
_PORT = re.compile("[0-9]{1,5}")
_LABEL = re.compile("[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile("0x[0-9a-f]*|[0-9]+")
_SAFE_IN_PATH = "/:@!$&'()*+,;=~%-._"
_SAFE_IN_QUERY = _SAFE_IN_PATH + "?"


class ParsedUrl(msgspec.Struct, frozen=True):
    """A URL in its normal form: the host is in lower case, in ASCII and without a dot at its end."""

    is_secure: bool
    host: str
    port: int
    target: str
    address: IpAddress | None = None
    """The IP address if the host is one, in whatever notation."""

    @property
    def origin(self) -> str:
        scheme, default_port = ("https", 443) if self.is_secure else ("http", 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}" + ("" if self.port == default_port else f":{self.port}")

    @property
    def url(self) -> str:
        return self.origin + self.target

    @property
    def is_localhost(self) -> bool:
        """Whether the host is the name `localhost` or below it."""
        return self.host == "localhost" or self.host.endswith(".localhost")


@lru_cache(maxsize=256)
def parse_url(url: str) -> ParsedUrl:
    """Parse an http or https URL without credentials or fragment. Raises `AddressNotAllowed`."""
    if len(url) > MAX_URL_CHARACTERS:
        raise AddressNotAllowed(f"longer than {MAX_URL_CHARACTERS} characters.")
    if not url.isprintable() or " " in url or "\\" in url:
        raise AddressNotAllowed("holds a space, a backslash or a character that cannot be printed.")
    if "#" in url:
        raise AddressNotAllowed("must not have a fragment.")
    if (parts := _URL.fullmatch(url)) is None:
        raise AddressNotAllowed("must be an address that begins with https://.")
    scheme, authority, path, query = parts.groups(default="")
    if "@" in authority:
        raise AddressNotAllowed("must not hold credentials; send them as 'authorization' or in 'headers'.")
    is_secure = scheme.lower() == "https"
    written_host, written_port = _split_authority(authority)
    host, address = _parse_host(written_host)
    if written_port is None:
        port = 443 if is_secure else 80
    elif not _PORT.fullmatch(written_port) or not 0 < (port := int(written_port)) < 2**16:
        raise AddressNotAllowed("names a port that cannot be one.")
    target = quote(path or "/", safe=_SAFE_IN_PATH) + quote(query, safe=_SAFE_IN_QUERY)
    return ParsedUrl(is_secure, host, port, target, address)


def _split_authority(authority: str) -> tuple[str, str | None]:
    """Return host and port. The port is empty after a colon without a number, and None without a colon."""
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise AddressNotAllowed(_INVALID_HOST)
        return host + bracket, rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _parse_host(written: str) -> tuple[str, IpAddress | None]:
    """Return a host in its normal form, and the IP address that it is, if any."""
    if written.startswith("["):
        try:
            address = IPv6Address(written[1:-1])
        except AddressValueError:
            raise AddressNotAllowed(_INVALID_HOST) from None
        if address.scope_id is not None:
            raise AddressNotAllowed("must not name a zone.")
        return str(address), address
    try:  # IDNA also turns full-width digits and dots of other scripts into plain ones
        ascii_host = written if written.isascii() else written.encode("idna").decode("ascii")
    except UnicodeError:
        raise AddressNotAllowed(_INVALID_HOST) from None
    host = ascii_host.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressNotAllowed(_INVALID_HOST)
    if not _NUMBER.fullmatch(labels[-1]):
        return host, None
    try:
        number = IPv4Address(socket.inet_aton(host))  # as the C library reads it: `127.1` and `0x7f000001`, too
    except OSError:
        raise AddressNotAllowed(_INVALID_HOST) from None
    return str(number), number


# ---- IP addresses ----

_NOT_PUBLIC_IPV4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by the customers of a provider
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # a cloud's own services, as its machines see them
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_NOT_PUBLIC_IPV6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, including Teredo and benchmarking
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which is obsolete and leads to an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_IPV4_COMPATIBLE = IPv6Network("::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP_MARKERS = (0x00005EFE, 0x02005EFE)


def unmap_ipv4(address: IpAddress) -> IpAddress:
    """Return the IPv4 address of an IPv4-mapped IPv6 address, and any other address unchanged."""
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(address: IpAddress) -> bool:
    return unmap_ipv4(address).is_loopback


def is_public(address: IpAddress) -> bool:
    """Return whether an address is globally reachable and leads to no address that is not."""
    address = unmap_ipv4(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_IPV4)
    if address in _NAT64:
        return is_public(_last_ipv4(address))
    if address not in _GLOBAL_IPV6 or any(address in network for network in _NOT_PUBLIC_IPV6):
        return False
    return (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP_MARKERS or is_public(_last_ipv4(address))


def nat64_addresses(address: IpAddress) -> tuple[IpAddress, ...]:
    """Return the address, and the IPv4 address that NAT64 makes of it, if any. Allow lists are matched with these."""
    address = unmap_ipv4(address)
    if isinstance(address, IPv6Address) and address in _NAT64:
        return address, _last_ipv4(address)
    return (address,)


def embedded_addresses(address: IpAddress) -> tuple[IpAddress, ...]:
    """Return the address and every IPv4 address embedded in it. Deny lists are matched with these: packets may end
    there, by whatever kind of tunnel.
    """
    address = unmap_ipv4(address)
    return (address,) if isinstance(address, IPv4Address) else (address, *_embedded_ipv4(address))


def _embedded_ipv4(address: IPv6Address) -> Iterator[IPv4Address]:
    number = int(address)
    if any(address in network for network in (_NAT64, _LOCAL_NAT64, _IPV4_COMPATIBLE)):
        yield _last_ipv4(address)
    if address in _SIX_TO_FOUR:
        yield IPv4Address(number >> 80 & 0xFFFFFFFF)
    if address in _TEREDO:
        yield IPv4Address(~number & 0xFFFFFFFF)
        yield IPv4Address(number >> 64 & 0xFFFFFFFF)
    if number >> 32 & 0xFFFFFFFF in _ISATAP_MARKERS:
        yield _last_ipv4(address)


def _last_ipv4(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)


# ---- allow and deny lists ----


class HostPattern(msgspec.Struct, frozen=True):
    """An entry of an allow or deny list: a host, the subdomains of a domain, or a network; with one port or any."""

    network: IpNetwork | None = None
    host: str = ""
    is_wildcard: bool = False
    port: int | None = None

    def matches_host(self, url: ParsedUrl) -> bool:
        if self.network is not None or self.port not in (None, url.port):
            return False
        return url.host.endswith(f".{self.host}") if self.is_wildcard else url.host == self.host

    def matches_address(self, addresses: Sequence[IpAddress], port: int) -> bool:
        """Return whether any of the addresses is in the network."""
        network = self.network
        return network is not None and self.port in (None, port) and any(address in network for address in addresses)


def parse_host_pattern(text: str) -> HostPattern:
    """Parse an entry of an allow or deny list. Raises `ValueError`."""
    if "://" in text:
        raise ValueError(f"{text!r} is not a host; write it without http:// or https://")
    if text.strip() == "*":
        raise ValueError("'*' is not a host; `mcp.declared: false` keeps requests from naming any server")
    host, port = _split_port(text.strip().lower())
    try:
        return HostPattern(network=_unmap_network(ip_network(host.strip("[]"), strict=False)), port=port)
    except ValueError:
        if "/" in host or "?" in host:
            raise ValueError(f"{text!r} is not a network") from None
    is_wildcard = host.startswith("*.")
    try:
        url = parse_url(f"https://{host[2:] if is_wildcard else host}/")
    except AddressNotAllowed:
        raise ValueError(f"{text!r} is not a host, such as tools.example.com, *.example.com or 10.1.0.0/16") from None
    if url.address is not None:
        problem = f"{text!r} is not a whole address: write one as 10.1.2.3, and a network as 10.1.0.0/16"
        raise ValueError(problem)
    return HostPattern(host=url.host, is_wildcard=is_wildcard, port=port)


def _split_port(text: str) -> tuple[str, int | None]:
    """Return host and port of an entry. An IPv6 address with a port stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not host.endswith("]")):
        return text, None
    if not 0 < int(port) < 2**16:
        raise ValueError(f"{text!r} names a port that cannot be one")
    return host, int(port)


def _unmap_network(network: IpNetwork) -> IpNetwork:
    """Return the IPv4 network of an IPv4-mapped IPv6 network: addresses are unmapped before they are matched."""
    if network.version == 4 or network.prefixlen < 96 or (ipv4 := network.network_address.ipv4_mapped) is None:
        return network
    return IPv4Network((ipv4, network.prefixlen - 96))


# ---- the policy ----


class AddressPolicy:
    """Decides which addresses may be requested.

    Public addresses may, over https and on web ports or unprivileged ones. `allow` lists exceptions: hosts, with
    whatever IP addresses they have, or networks. `deny` precedes everything. `only_allowed` forbids what is not in
    `allow`; `http` permits unencrypted requests; `loopback` permits addresses of this machine.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        only_allowed: bool = False,
        http: bool = False,
        loopback: bool = False,
        lookup: Resolver | None = None,
    ) -> None:
        """`lookup` replaces `dns.look_up`. Raises `ValueError` for an entry that is not a host, domain or network."""
        self._allow, self._deny = tuple(map(parse_host_pattern, allow)), tuple(map(parse_host_pattern, deny))
        self._only_allowed, self._http, self._loopback = only_allowed, http, loopback
        self._lookup = lookup

    def check(self, url: str) -> ParsedUrl:
        """Parse and check a URL without looking up its host. Raises `AddressNotAllowed`."""
        parsed = parse_url(url)
        if any(pattern.matches_host(parsed) for pattern in self._deny):
            raise AddressNotAllowed(_NOT_ALLOWED)
        if parsed.address is not None:
            self._check_address(parsed, parsed.address, _NOT_PUBLIC)
        elif not self._allows_host(parsed) and not any(pattern.network for pattern in self._allow):
            self._check_unlisted(parsed)  # with an allowed network, the IP addresses of the host decide later
        return parsed

    def check_addresses(self, url: ParsedUrl, addresses: Sequence[str]) -> tuple[str, ...]:
        """Return the IP addresses of a host if every one of them is allowed. Raises `AddressNotAllowed`."""
        found = [unmap_ipv4(ip_address(address)) for address in addresses]
        if not found:
            raise AddressNotAllowed(_UNKNOWN)
        for address in found:
            self._check_address(url, address, _UNKNOWN)
        return tuple(map(str, found))

    def resolver(self, url: ParsedUrl, owner: Hashable = None) -> Resolver:
        """Return a function that looks up and checks the IP addresses of `url` for each new connection of `owner`."""
        limiter = ALLOWED_LOOKUPS if self._allows_host(url) else UNTRUSTED_LOOKUPS
        lookup = self._lookup or partial(look_up, owner=owner, limiter=limiter)

        async def resolve(host: str, port: int) -> Sequence[str]:
            if url.address is not None:
                return self.check_addresses(url, (str(url.address),))
            try:
                return self.check_addresses(url, await lookup(host, port))
            except LookupQueueTimeout as exc:
                raise AddressNotAllowed(_LOOKUP_TIMEOUT) from exc
            except (OSError, ValueError) as exc:
                raise AddressNotAllowed(_UNKNOWN) from exc

        return resolve

    def _check_address(self, url: ParsedUrl, address: IpAddress, problem: str) -> None:
        address = unmap_ipv4(address)
        embedded = embedded_addresses(address)
        if any(pattern.matches_address(embedded, url.port) for pattern in self._deny):
            raise AddressNotAllowed(problem)
        reached = nat64_addresses(address)
        if self._allows_host(url) or any(pattern.matches_address(reached, url.port) for pattern in self._allow):
            return
        if not self._only_allowed and self._loopback and is_loopback(address) and _is_written_as_loopback(url):
            return
        self._check_unlisted(url)
        if not is_public(address):
            raise AddressNotAllowed(problem)

    def _check_unlisted(self, url: ParsedUrl) -> None:
        """Check a URL that `allow` does not list, as far as its text shows."""
        if self._only_allowed:
            raise AddressNotAllowed(_NOT_ALLOWED)
        if self._loopback and _is_written_as_loopback(url):
            return
        if url.is_localhost:
            raise AddressNotAllowed(_NOT_PUBLIC)
        if not url.is_secure and not self._http:
            raise AddressNotAllowed(_NOT_SECURE)
        if url.port < _FIRST_UNPRIVILEGED_PORT and url.port not in _WEB_PORTS:
            raise AddressNotAllowed(_PRIVILEGED_PORT)

    def _allows_host(self, url: ParsedUrl) -> bool:
        """Return whether `allow` lists the host by name: then its IP addresses do not matter."""
        return any(pattern.matches_host(url) for pattern in self._allow)


def _is_written_as_loopback(url: ParsedUrl) -> bool:
    """Return whether a URL names this machine openly. A public name with a loopback address is an attack."""
    return url.is_localhost if url.address is None else is_loopback(url.address)
