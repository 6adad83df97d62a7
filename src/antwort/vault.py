"""Small texts that are given out sealed and come back: nobody can read or change them on the way.

A token holds the id of the key that sealed it, so that keys can be changed: the first seals, all of them open. What it
was sealed for, and for which tenant, is bound into it: it opens for nothing and nobody else.
"""

from __future__ import annotations

import hmac
import os
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SHORTEST_SECRET = 16
"""Characters that a secret has at least."""
LARGEST = 64 * 2**20
"""Bytes that are ever inflated. What is larger is sealed as it is."""

_VERSION = "av1."
_ALPHABET = re.compile("[A-Za-z0-9_-]+")
_ID, _SALT, _NONCE, _TAG = 4, 16, 12, 16
_PLAIN, _DEFLATED = b"\0", b"\1"
_WORTH_IT = 128
"""Bytes from which on packing may pay."""


class CannotOpen(Exception):
    """It was not sealed here, for this, for this tenant, or by a key that is still known; or it was changed. Which of
    these it is, is not said.
    """

    def __init__(self) -> None:
        super().__init__("The sealed text cannot be opened.")


class Vault:
    """Seals and opens."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """The first secret seals, all of them open; none is kept. Raises `ValueError` for one that is too short."""
        if not secrets:
            raise ValueError("A vault needs a secret.")
        if any(len(secret) < SHORTEST_SECRET for secret in secrets):
            raise ValueError(f"A secret of a vault has at least {SHORTEST_SECRET} characters.")
        self._keys = [_Key(secret.encode()) for secret in secrets]

    @classmethod
    def ephemeral(cls) -> Self:
        """One whose key ends with it."""
        return cls([os.urandom(32).hex()])

    def seal(self, purpose: str, tenant: str, data: bytes) -> str:
        """A text that `open` makes `data` of again; it can stand in an address as it is."""
        key = self._keys[0]
        salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
        sealed = key.cipher(salt).encrypt(nonce, _packed(data), _bound(purpose, tenant))
        return _VERSION + _written(key.id + salt + nonce + sealed)

    def open(self, purpose: str, tenant: str, token: str) -> bytes:
        """What was sealed for this purpose and this tenant. Raises `CannotOpen`, the same whatever is wrong."""
        raw = _read(token)
        salt, nonce, sealed = raw[_ID : _ID + _SALT], raw[_ID + _SALT :][:_NONCE], raw[_ID + _SALT + _NONCE :]
        for key in self._keys:
            if key.id == raw[:_ID]:
                with suppress(CannotOpen):  # two keys may go by the same id
                    return _unpacked(key.decrypt(salt, nonce, sealed, _bound(purpose, tenant)))
        raise CannotOpen

    def sign(self, purpose: str, tenant: str, data: bytes) -> bytes:
        """32 bytes that prove that `data` was signed here, for this purpose and this tenant."""
        return self._keys[0].mac(_bound(purpose, tenant), data)

    def is_signed(self, purpose: str, tenant: str, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is the beginning of what `sign` gives, with any of the keys."""
        bound, size = _bound(purpose, tenant), len(signature)
        return any(hmac.compare_digest(key.mac(bound, data)[:size], signature) for key in self._keys)

    def is_newest(self, token: str) -> bool:
        """Whether it was sealed with the key that seals now."""
        return _read(token)[:_ID] == self._keys[0].id


class _Key:
    """A secret of any length, stretched; with another info, a name for it that tells nothing about it."""

    __slots__ = ("_key", "_mac_key", "id")

    def __init__(self, secret: bytes) -> None:
        self._key = stretched(secret, b"antwort vault key")
        self._mac_key = stretched(secret, b"antwort vault mac")
        self.id = stretched(secret, b"antwort vault id")[:_ID]

    def mac(self, bound: bytes, data: bytes) -> bytes:
        return hmac.digest(self._mac_key, len(bound).to_bytes(4) + bound + data, "sha256")

    def cipher(self, salt: bytes) -> AESGCM:
        """Of each token its own: so many can be sealed with one key, and no nonce be used twice with it."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest(self._key, salt, "sha256"))

    def decrypt(self, salt: bytes, nonce: bytes, sealed: bytes, bound: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self.cipher(salt).decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise CannotOpen from None


def stretched(secret: bytes, info: bytes) -> bytes:
    """32 bytes of `secret`, by HKDF-SHA256 (RFC 5869) without a salt: one block is all that is needed."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\1", "sha256")


def _bound(purpose: str, tenant: str) -> bytes:
    """With its length before it, no purpose can pass for another one and the beginning of a tenant."""
    what = purpose.encode()
    return _VERSION.encode() + len(what).to_bytes(4) + what + tenant.encode()


def _packed(data: bytes) -> bytes:
    if _WORTH_IT <= len(data) <= LARGEST:
        deflated = zlib.compress(data)
        if len(deflated) < len(data):
            return _DEFLATED + deflated
    return _PLAIN + data


def _unpacked(packed: bytes) -> bytes:
    form, data = packed[:1], packed[1:]
    if form == _PLAIN:
        return data
    inflating = zlib.decompressobj()
    try:
        inflated = inflating.decompress(data, LARGEST)
    except zlib.error:
        raise CannotOpen from None
    if form != _DEFLATED or not inflating.eof:
        raise CannotOpen
    return inflated


def _written(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read(token: str) -> bytes:
    """Letter for letter what was written: other ways to write the same bytes do not count."""
    text = token.removeprefix(_VERSION)
    if not token.startswith(_VERSION) or len(text) % 4 == 1 or not _ALPHABET.fullmatch(text):
        raise CannotOpen
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) < _ID + _SALT + _NONCE + _TAG or _written(raw) != text:
        raise CannotOpen
    return raw
