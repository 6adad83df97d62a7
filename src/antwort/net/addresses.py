"""Which addresses are for everybody, and which lead into somebody's own network. Pure.

By tables of our own, after the registries of special-purpose addresses: what Python's `ipaddress` takes for global
differs between its versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from antwort.net.places import Address

_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by the customers of a provider
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # a cloud's own services, as its machines see them
            "169.254.0.0/16",  # link-local, where clouds have their metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo and benchmarking among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: leads to an IPv4 address, by a way that nobody uses any more
            "3fff::/20",  # documentation
        ),
    )
)
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""NAT64: what a network without IPv4 is told in its place."""
_TRANSLATED_NEAR = IPv6Network("64:ff9b:1::/48")
"""The same within a network of somebody's own."""
_COMPATIBLE = IPv6Network("::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP = (0x00005EFE, 0x02005EFE)


def plain(address: Address) -> Address:
    """The address that is really connected to: an IPv4 address written as IPv6 is one."""
    return getattr(address, "ipv4_mapped", None) or address


def leads_to(address: Address) -> tuple[Address, ...]:
    """The address that is really connected to, and those that it holds in itself: by whichever way, that is where
    packets for it may end.
    """
    address = plain(address)
    return (address,) if isinstance(address, IPv4Address) else (address, *_held_in(address))


def translated(address: Address) -> tuple[Address, ...]:
    """The address, and the one that NAT64 makes of it."""
    address = plain(address)
    is_other = isinstance(address, IPv6Address) and address in _TRANSLATED
    return (address, _last(address)) if is_other and isinstance(address, IPv6Address) else (address,)


def _held_in(address: IPv6Address) -> Iterator[IPv4Address]:
    number = int(address)
    if any(address in network for network in (_TRANSLATED, _TRANSLATED_NEAR, _COMPATIBLE)):
        yield _last(address)
    if address in _SIX_TO_FOUR:
        yield IPv4Address(number >> 80 & 0xFFFFFFFF)
    if address in _TEREDO:
        yield IPv4Address(~number & 0xFFFFFFFF)
        yield IPv4Address(number >> 64 & 0xFFFFFFFF)
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        yield _last(address)


def is_loopback(address: Address) -> bool:
    return plain(address).is_loopback


def is_public(address: Address) -> bool:
    """Whether it is one for everybody, and leads to no other that is not."""
    address = plain(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address in _TRANSLATED:
        return is_public(_last(address))
    if address not in _PUBLIC_6 or any(address in network for network in _NOT_PUBLIC_6):
        return False
    return (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP or is_public(_last(address))


def _last(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
