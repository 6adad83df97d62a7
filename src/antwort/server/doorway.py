"""Who comes in where no key is asked for: those who can be taken to belong here. Decisions only; no I/O.

A web page of a stranger can have its own name lead to this machine (DNS rebinding) and then reads our answers as its
own; but the name stands in the request. And whoever runs us may listen on another address than the settings say.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from antwort.errors import NotAuthenticated, NotPermitted
from antwort.identity import ANONYMOUS, Identity
from antwort.server.exchange import Scope

_OURS = (".localhost", ".local", ".internal", ".home.arpa", ".lan", ".svc")
"""Endings that nobody can register: of this machine, of homes and offices, of clusters."""
_LONGEST = 100
_MOST_KNOWN = 256
_FAR = (
    "API keys are required where other machines can reach the server: list some under auth.keys, or let everybody in "
    "with auth.required: never."
)


class Doorway:
    """`names`: under which requests may come, besides those that a stranger cannot choose; `*` for all. `only_near`:
    nobody has said that other machines may come in.
    """

    def __init__(self, names: Iterable[str] = (), *, only_near: bool = True) -> None:
        self._names = frozenset(_plain(name) for name in names)
        self._only_near = only_near
        self._near: object = None
        """Where the last came in: all come in at the same few addresses."""
        self._known: set[bytes] = set()
        """Names as they came, and were let in by: every request brings the same few."""

    def identify(self, scope: Scope) -> Identity:
        """For `Transport(identify=…)`. Raises `NotPermitted` or `NotAuthenticated`."""
        if self._only_near and (server := scope.get("server")) != self._near:
            if _is_far(server):
                raise NotAuthenticated(_FAR)
            self._near = server if isinstance(server, tuple) else None
        headers = [*scope["headers"]]
        by_name = dict(headers)
        if by_name.get(b"host") in self._known and len(by_name) == len(headers):  # there is no second name
            return ANONYMOUS
        for name, value in headers:
            if name == b"host" and value not in self._known:
                self._check_name(value)
        return ANONYMOUS

    def _check_name(self, value: bytes) -> None:
        host = _host(value.decode("latin-1"))
        if not ("*" in self._names or host in self._names or not _can_be_chosen(host)):
            raise _unknown(host)
        if len(value) <= _LONGEST and len(self._known) < _MOST_KNOWN:
            self._known.add(value)


def _unknown(host: str) -> NotPermitted:
    problem = f"Without API keys, this server does not answer under the name {host[:_LONGEST]!r}"
    return NotPermitted(f"{problem}: list it under server.hosts.", code="host_not_allowed")


def _can_be_chosen(host: str) -> bool:
    """Whether a stranger could have registered the name. One without a dot is a name of the local network."""
    return "." in host and not host.endswith(_OURS) and _address(host) is None


def _is_far(server: object) -> bool:
    """Whether the connection came in at an address that is not this machine's own; a name says nothing of it."""
    address = _address(server[0]) if isinstance(server, tuple | list) and server else None
    return address is not None and not address.is_loopback


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_LONGEST_ADDRESS = 64


def _address(host: object) -> Address | None:
    return _parsed(host) if isinstance(host, str) and len(host) <= _LONGEST_ADDRESS else None


@lru_cache(256)  # every request brings the same few
def _parsed(host: str) -> Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _host(value: str) -> str:
    """The name without its port."""
    host, _, port = value.strip().rpartition(":")
    return _plain(host if host and port.isdecimal() and (host.endswith("]") or ":" not in host) else value.strip())


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
