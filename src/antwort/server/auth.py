"""Who a request is made for: by the API key that it brings, or, without keys, whether it may come in at all.

Without keys, a web page of a stranger could have its own name lead to this machine (DNS rebinding) and read our answers
as its own; but the name is in the request. And the server may be run on another address than the settings say.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from time import monotonic
from typing import TypeAlias

import msgspec

from antwort.errors import NotAuthenticated, NotPermitted
from antwort.identity import ANONYMOUS, Identity
from antwort.server.exchange import Scope
from antwort.server.quotas import Clock, KeyLimits, Quotas

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_KEY_HEADERS = (b"api-key", b"x-api-key")
"""Where some clients put a key instead, with nothing around it."""
_RESERVED_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa", ".lan", ".svc")
"""Endings that nobody can register: of this machine, of homes and offices, of clusters."""
_MAX_NAME = 100
_MAX_ADDRESS = 64
_MAX_ACCEPTED_NAMES = 256


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as the server knows it: by its digest alone, so that neither memory nor a dump of it holds one."""

    name: str
    digest: bytes
    """The SHA-256 of the key."""
    identity: Identity
    limits: KeyLimits = KeyLimits()
    may_read_metrics: bool = False


class Keyring:
    """All keys. Without any, nobody is let in."""

    def __init__(self, keys: Iterable[Key], *, clock: Clock = monotonic) -> None:
        self._keys = _by_digest(keys)
        self.quotas = Quotas({key.name: key.limits for key in self._keys.values()}, clock=clock)

    def change(self, keys: Iterable[Key]) -> None:
        """Let in these keys, and no others, from now on. Raises `ValueError`, and then nothing has changed."""
        self._keys = _by_digest(keys)
        self.quotas.change({key.name: key.limits for key in self._keys.values()})

    def identify(self, scope: Scope) -> Identity:
        """For `Transport(identify=…)`. Raises `NotAuthenticated`, which repeats nothing of what was sent."""
        return self._find(scope).identity

    def may_read_metrics(self, scope: Scope) -> bool:
        """Whether the request brings a key that is good for that, too."""
        try:
            return self._find(scope).may_read_metrics
        except NotAuthenticated:
            return False

    def _find(self, scope: Scope) -> Key:
        """Looked up by digest. How long that takes may say something of the digests that are stored; but to use it,
        one would have to send keys whose digests come nearer and nearer to a stored one, and nobody can choose those.
        """
        key = self._keys.get(sha256(_presented(scope["headers"])).digest())
        if key is None:
            raise NotAuthenticated("The API key is not valid.")
        return key


def _by_digest(keys: Iterable[Key]) -> dict[bytes, Key]:
    found: dict[bytes, Key] = {}
    for key in keys:
        if key.digest in found:
            raise ValueError("two keys are the same")
        found[key.digest] = key
    return found


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the key of a request: a bearer token, or else a plain one. A request that brings two is not interpreted.

    What is no bearer token beside a plain key is for somebody else, such as a proxy on the way.
    """
    malformed = "The Authorization header is not of the form 'Bearer YOUR_API_KEY'."
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"authorization" or name in _KEY_HEADERS:
            if name in given:
                raise NotAuthenticated(malformed)
            given[name] = value.strip()
    scheme, _, token = given.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and (bearer := token.strip()):
        return bearer
    plain = {given[name] for name in _KEY_HEADERS if given.get(name)}
    if len(plain) > 1:
        raise NotAuthenticated("The headers 'api-key' and 'x-api-key' bring two different keys. Send one.")
    if plain:
        return plain.pop()
    if given.get(b"authorization"):
        raise NotAuthenticated(malformed)
    raise NotAuthenticated("An API key is required. Send it as the header 'Authorization: Bearer YOUR_API_KEY'.")


class HostCheck:
    """Where no key is asked for, let in those who can be taken to belong here.

    `names`: under which requests may come, besides those that a stranger cannot choose; `*` for all. `only_near`: other
    machines may not come in, as nobody has said that they may.
    """

    def __init__(self, names: Iterable[str] = (), *, only_near: bool = True) -> None:
        self._names = frozenset(_plain(name) for name in names)
        self._only_near = only_near
        self._near: object = None
        """The address that the last request came in at: there are few."""
        self._accepted: set[bytes] = set()
        """Names as they came: every request brings the same few."""

    def identify(self, scope: Scope) -> Identity:
        """For `Transport(identify=...)`. Raises `NotPermitted` or `NotAuthenticated`."""
        if self._only_near and (server := scope.get("server")) != self._near:
            address = _address(server[0]) if isinstance(server, tuple | list) and server else None
            if address is not None and not address.is_loopback:  # a name says nothing of where it leads
                raise NotAuthenticated(
                    "API keys are required where other machines can reach the server: list some under auth.keys, "
                    "or let everybody in with auth.required: never."
                )
            self._near = server if isinstance(server, tuple) else None
        for name, value in scope["headers"]:
            if name == b"host" and value not in self._accepted:
                self._check_name(value)
        return ANONYMOUS

    def _check_name(self, value: bytes) -> None:
        host = _host(value.decode("latin-1"))
        # A name without a dot is one of the local network; all others can be registered by a stranger.
        can_be_registered = "." in host and not host.endswith(_RESERVED_SUFFIXES) and _address(host) is None
        if can_be_registered and "*" not in self._names and host not in self._names:
            problem = f"Without API keys, this server does not answer under the name {host[:_MAX_NAME]!r}"
            raise NotPermitted(f"{problem}: list it under server.hosts.", code="host_not_allowed")
        if len(value) <= _MAX_NAME and len(self._accepted) < _MAX_ACCEPTED_NAMES:
            self._accepted.add(value)


def is_near(value: str) -> bool:
    """Return whether a Host header names this machine itself."""
    host = _host(value)
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(host: object) -> Address | None:
    return _parsed(host) if isinstance(host, str) and len(host) <= _MAX_ADDRESS else None


@lru_cache(256)  # every request brings the same few
def _parsed(host: str) -> Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _host(value: str) -> str:
    """Return the name without its port."""
    host, _, port = value.strip().rpartition(":")
    return _plain(host if host and port.isdecimal() and (host.endswith("]") or ":" not in host) else value.strip())


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
