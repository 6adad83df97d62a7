"""What one process shows another when it passes a request on: who it is made for, and nothing that lets anybody in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from antwort.crypto import CannotOpen, Vault
from antwort.errors import NotAuthenticated
from antwort.identity import Identity

_ASKED, _ANSWERED = "relay", "relay answer"
_LIFE = 60.0
"""Seconds that it is good for, by clocks that need not agree to the second."""


class Passed(msgspec.Struct, frozen=True):
    """A request that is passed on."""

    identity: Identity
    target: str
    """Its path and query: it is good for nothing else."""
    nonce: str
    at: float


class Passes:
    """Made and checked by processes that seal with the same keys."""

    def __init__(self, vault: Vault, clock: Callable[[], float] = time.time) -> None:
        self._vault, self._clock = vault, clock

    def issue(self, identity: Identity, target: str) -> tuple[str, str]:
        """What is sent along, and the nonce that whoever can open it answers with."""
        passed = Passed(identity, target, secrets.token_hex(16), self._clock())
        return self._vault.seal(_ASKED, "", msgspec.json.encode(passed)), passed.nonce

    def opened(self, token: bytes, target: str) -> Passed:
        """Raises `NotAuthenticated`, the same whatever is wrong with it."""
        try:
            found = self._vault.open(_ASKED, "", token.decode("latin-1"))
            passed = msgspec.json.decode(found, type=Passed)
        except (CannotOpen, msgspec.MsgspecError) as exc:
            raise _refused() from exc
        if passed.target != target or abs(self._clock() - passed.at) > _LIFE:
            raise _refused()
        return passed

    def proof(self, passed: Passed) -> str:
        """Shows in the answer that the token was opened."""
        return self._vault.seal(_ANSWERED, "", passed.nonce.encode())

    def is_proof(self, token: str, nonce: str) -> bool:
        try:
            return self._vault.open(_ANSWERED, "", token) == nonce.encode()
        except CannotOpen:
            return False


def _refused() -> NotAuthenticated:
    return NotAuthenticated("The request says that it was passed on, and does not show by whom, or did so long ago.")
