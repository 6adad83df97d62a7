"""Seal small texts that clients hold and send back: they can neither read nor change them.

A token holds the id of its key, so that keys can be rotated: the first key seals, and all of them open. A token is
bound to its purpose and its tenant, and cannot be opened for others.
"""

from __future__ import annotations

import hmac
import os
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SHORTEST_SECRET = 16
"""Minimum number of characters of a secret."""
LARGEST = 64 * 2**20
"""Bytes that are decompressed at most. Larger data is sealed uncompressed."""

_VERSION = "av1."
_ALPHABET = re.compile("[A-Za-z0-9_-]+")
_ID, _SALT, _NONCE, _TAG = 4, 16, 12, 16
_PLAIN, _DEFLATED = b"\0", b"\1"
_COMPRESSED_FROM = 128
"""Bytes from which on compression may pay."""


class CannotOpen(Exception):
    """The token was changed, or was not sealed with a known key for this purpose and tenant. The error does not say
    which of these it is.
    """

    def __init__(self) -> None:
        super().__init__("The sealed text cannot be opened.")


class Vault:
    """Seal and sign data with secret keys, each bound to a purpose and a tenant."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """Derive the keys. The first secret seals, all of them open. Raises `ValueError` for one that is too short."""
        if not secrets:
            raise ValueError("A vault needs a secret.")
        if any(len(secret) < SHORTEST_SECRET for secret in secrets):
            raise ValueError(f"A secret of a vault has at least {SHORTEST_SECRET} characters.")
        self._keys = [_Key(secret.encode()) for secret in secrets]

    @classmethod
    def ephemeral(cls) -> Self:
        """Return a vault with a random key that exists only in this process."""
        return cls([os.urandom(32).hex()])

    def seal(self, purpose: str, tenant: str, data: bytes) -> str:
        """Return a token that `open` turns back into `data`. It is safe in URLs."""
        key = self._keys[0]
        salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
        sealed = key.cipher(salt).encrypt(nonce, _compressed(data), _associated_data(purpose, tenant))
        return _VERSION + _encode(key.id + salt + nonce + sealed)

    def open(self, purpose: str, tenant: str, token: str) -> bytes:
        """Return the data of a token that was sealed for this purpose and tenant. Raises `CannotOpen`."""
        raw = _decode(token)
        salt, nonce, sealed = raw[_ID : _ID + _SALT], raw[_ID + _SALT :][:_NONCE], raw[_ID + _SALT + _NONCE :]
        for key in self._keys:
            if key.id == raw[:_ID]:
                with suppress(CannotOpen):  # two keys may have the same id
                    return _decompressed(key.decrypt(salt, nonce, sealed, _associated_data(purpose, tenant)))
        raise CannotOpen

    def sign(self, purpose: str, tenant: str, data: bytes) -> bytes:
        """Return a signature of 32 bytes for `data`, this purpose and this tenant."""
        return self._keys[0].mac(_associated_data(purpose, tenant), data)

    def is_signed(self, purpose: str, tenant: str, data: bytes, signature: bytes) -> bool:
        """Return whether `signature` is the beginning of the signature that any of the keys makes."""
        bound, size = _associated_data(purpose, tenant), len(signature)
        return any(hmac.compare_digest(key.mac(bound, data)[:size], signature) for key in self._keys)

    def is_newest(self, token: str) -> bool:
        """Return whether a token was sealed with the first key."""
        return _decode(token)[:_ID] == self._keys[0].id


class _Key:
    """The keys that are derived from a secret of any length, and an id that tells nothing about it."""

    __slots__ = ("_key", "_mac_key", "id")

    def __init__(self, secret: bytes) -> None:
        self._key = stretched(secret, b"antwort vault key")
        self._mac_key = stretched(secret, b"antwort vault mac")
        self.id = stretched(secret, b"antwort vault id")[:_ID]

    def mac(self, bound: bytes, data: bytes) -> bytes:
        return hmac.digest(self._mac_key, len(bound).to_bytes(4) + bound + data, "sha256")

    def cipher(self, salt: bytes) -> AESGCM:
        """Return the cipher of one token. Each token has its own key, so that no nonce is used twice with one."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(hmac.digest(self._key, salt, "sha256"))

    def decrypt(self, salt: bytes, nonce: bytes, sealed: bytes, bound: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self.cipher(salt).decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise CannotOpen from None


def stretched(secret: bytes, info: bytes) -> bytes:
    """Derive 32 bytes from `secret` by HKDF-SHA256 (RFC 5869) without a salt: one block is enough."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\1", "sha256")


def _associated_data(purpose: str, tenant: str) -> bytes:
    """Return the associated data. The length of the purpose separates it from the tenant."""
    what = purpose.encode()
    return _VERSION.encode() + len(what).to_bytes(4) + what + tenant.encode()


def _compressed(data: bytes) -> bytes:
    if _COMPRESSED_FROM <= len(data) <= LARGEST:
        deflated = zlib.compress(data)
        if len(deflated) < len(data):
            return _DEFLATED + deflated
    return _PLAIN + data


def _decompressed(packed: bytes) -> bytes:
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


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(token: str) -> bytes:
    """Decode a token. Only the canonical encoding of its bytes is accepted."""
    text = token.removeprefix(_VERSION)
    if not token.startswith(_VERSION) or len(text) % 4 == 1 or not _ALPHABET.fullmatch(text):
        raise CannotOpen
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) < _ID + _SALT + _NONCE + _TAG or _encode(raw) != text:
        raise CannotOpen
    return raw


# ---- the key file ----


def create_key_file(file: Path) -> None:
    """Create a file with a new key, unless it exists: no process reads half of a key, or replaces one."""
    key, draft = token_urlsafe(32), file.with_name(f"{file.name}.{token_hex(8)}")
    with suppress(FileExistsError):  # another process was faster: its key counts
        try:
            _write_key(draft, key)
            os.link(draft, file)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links, or one that cannot be written
            _write_key(file, key)
        finally:
            draft.unlink(missing_ok=True)


def _write_key(file: Path, key: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(f"{key}\n")
        opened.flush()
        os.fsync(opened.fileno())
