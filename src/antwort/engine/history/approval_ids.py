"""Ids of approval requests. Each proves that this server made the request: an invented one cannot be approved."""

from __future__ import annotations

import secrets

import msgspec

from antwort.api.wire import encode
from antwort.engine.history.calls import REQUEST_ID, is_heavy, request_id
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.vault import Vault

_PURPOSE = "approval"
_NONCE_BYTES = _MAC_BYTES = 8


class ApprovalIds:
    """Makes and recognises the ids of one owner's approval requests.

    An id is `mcpr_` with a nonce and a MAC over owner, nonce, server, tool and arguments, both in 16 hex digits.
    """

    def __init__(self, vault: Vault, identity: Identity) -> None:
        self._vault, self._tenant, self._owner = vault, identity.tenant, identity.owner

    def new(self, server_label: str, name: str, arguments: str) -> str:
        nonce = secrets.token_hex(_NONCE_BYTES)
        signature = self._vault.sign(_PURPOSE, self._tenant, self._signed(nonce, server_label, name, arguments))
        return f"mcpr_{nonce}{signature[:_MAC_BYTES].hex()}"

    def is_ours(self, request_id: str, server_label: str, name: str, arguments: str) -> bool:
        """Whether the id was made here for this call, however a client has formatted the arguments since."""
        if (found := REQUEST_ID.fullmatch(request_id)) is None:
            return False
        nonce, signature = found[1][: 2 * _NONCE_BYTES], bytes.fromhex(found[1][2 * _NONCE_BYTES :])
        data = self._signed(nonce, server_label, name, arguments)
        return self._vault.is_signed(_PURPOSE, self._tenant, data, signature)

    def _signed(self, nonce: str, server_label: str, name: str, arguments: str) -> bytes:
        return encode([self._owner, nonce, server_label, name, canonical_arguments(arguments)])


def new_request_id(ids: ApprovalIds | None, server_label: str, name: str, arguments: str) -> str:
    """Return the id of a new request; without `ids`, one that proves nothing."""
    return request_id(new_id("call")) if ids is None else ids.new(server_label, name, arguments)


def canonical_arguments(arguments: str) -> str:
    """Return the arguments in one form: keys sorted, the last of two with one name."""
    if is_heavy(arguments):
        return arguments
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}"), order="sorted").decode()
    except (ValueError, RecursionError):
        return arguments
