"""API keys: who a request is made for, by the key that it brings."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from time import monotonic

import msgspec

from antwort.errors import NotAuthenticated
from antwort.identity import Identity
from antwort.server.exchange import Scope
from antwort.server.quotas import Clock, KeyLimits, Quotas

_MISSING = "An API key is required. Send it as the header 'Authorization: Bearer YOUR_API_KEY'."
_MALFORMED = "The Authorization header is not of the form 'Bearer YOUR_API_KEY'."
_TWO = "The headers 'api-key' and 'x-api-key' bring two different keys. Send one."
_WRONG = "The API key is not valid."
_PLAIN_HEADERS = (b"api-key", b"x-api-key")
"""Where some clients put a key instead, with nothing around it."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as the server knows it: by its digest alone, so that neither memory nor a dump of it holds one."""

    name: str
    digest: bytes
    """The SHA-256 of the key."""
    identity: Identity
    limits: KeyLimits = KeyLimits()
    may_read_metrics: bool = False


class Keyring:
    """All keys there are. A ring without keys lets nobody in."""

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
            raise NotAuthenticated(_WRONG)
        return key


def _by_digest(keys: Iterable[Key]) -> dict[bytes, Key]:
    found: dict[bytes, Key] = {}
    for key in keys:
        if key.digest in found:
            raise ValueError("two keys are the same")
        found[key.digest] = key
    return found


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key that a request brings: as a bearer token, or else plain. One that says two things is not interpreted.

    What is no bearer token beside a plain key is for somebody else, such as a proxy on the way.
    """
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"authorization" or name in _PLAIN_HEADERS:
            if name in given:
                raise NotAuthenticated(_MALFORMED)
            given[name] = value.strip()
    plain = {given[name] for name in _PLAIN_HEADERS if given.get(name)}
    if bearer := _bearer(given.get(b"authorization", b"")):
        return bearer
    if len(plain) > 1:
        raise NotAuthenticated(_TWO)
    if plain:
        return plain.pop()
    raise NotAuthenticated(_MALFORMED if given.get(b"authorization") else _MISSING)


def _bearer(header: bytes) -> bytes:
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
