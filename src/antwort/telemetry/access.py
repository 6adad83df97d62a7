"""Who may read the metrics."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from typing import Literal, TypeAlias

from antwort.errors import NotAuthenticated, NotFound
from antwort.transport.exchange import Exchange, Scope

Verdict: TypeAlias = Literal["open", "locked", "hidden"]

_LOCKED = "The metrics need a key. Send it as the header 'Authorization: Bearer KEY'."


def verdict(*, is_public: bool, has_key: bool, is_key: bool, has_readers: bool, is_reader: bool) -> Verdict:
    """`has_key`: the metrics have a key of their own, `is_key`: the request brings it; `has_readers`: some API keys
    may read them, `is_reader`: the request brings one of those.

    A key that is set is always asked for. Where nothing could open them to the public, they are not there.
    """
    if is_key or is_reader or not (is_public or has_key):
        return "open"
    return "locked" if has_key or has_readers else "hidden"


class Guard:
    """Lets those in who may read the metrics."""

    def __init__(
        self,
        *,
        is_public: bool,
        key: str | None = None,
        readers: Callable[[Scope], bool] | None = None,
        doorway: Callable[[Scope], None] | None = None,
    ) -> None:
        """`is_public`: others than those on this machine can come here, and the place was not made for metrics alone.
        `readers` says whether a request brings an API key that may read them; None when there are no such keys.
        `doorway` raises for those who may not come in without a key.
        """
        self._is_public, self._readers, self._doorway = is_public, readers, doorway
        self._digest = None if key is None else sha256(key.encode()).digest()

    def check(self, exchange: Exchange) -> None:
        """Raises `NotAuthenticated`, `NotPermitted` or `NotFound`."""
        if self._doorway is not None and self._digest is None:
            self._doorway(exchange.scope)
        found = verdict(
            is_public=self._is_public,
            has_key=self._digest is not None,
            is_key=self._is_key(exchange.header(b"authorization")),
            has_readers=self._readers is not None,
            is_reader=self._readers is not None and self._readers(exchange.scope),
        )
        if found == "locked":
            raise NotAuthenticated(_LOCKED)
        if found == "hidden":
            raise NotFound("There is nothing at '/metrics'.", code="unknown_url")

    def _is_key(self, header: bytes | None) -> bool:
        scheme, _, given = (header or b"").partition(b" ")
        if self._digest is None or scheme.lower() != b"bearer":
            return False
        return compare_digest(sha256(given.strip()).digest(), self._digest)
