"""Who may come in, as the settings say: the keys, and the web pages. The settings have been checked."""

from __future__ import annotations

import re
from hashlib import sha256

from antwort.config.checks import keys_required
from antwort.config.problems import CannotStart
from antwort.config.settings import KeySettings, Settings
from antwort.identity import Identity
from antwort.transport.cors import Cors
from antwort.transport.keys import Key, Keyring
from antwort.transport.quotas import KeyLimits


def make_keyring(settings: Settings) -> Keyring | None:
    """The keys there are; None when none is asked for. Raises `CannotStart`.

    Where keys are required and there are none, nobody is let in: an omission opens nothing.
    """
    return Keyring([_key(key) for key in settings.auth.keys]) if keys_required(settings) else None


def make_cors(settings: Settings) -> Cors | None:
    """None when no web page may use the API."""
    cors = settings.cors
    if not cors.origins:
        return None
    return Cors(cors.origins, headers=cors.headers, credentials=cors.credentials, max_age=cors.max_age)


def _key(key: KeySettings) -> Key:
    limits = key.limits
    return Key(
        name=key.name,
        digest=_digest(key),
        # Never nobody's: what an anonymous request has stored is no key's.
        identity=Identity(tenant=key.tenant, owner=key.subject or key.name, models=key.models, key=key.name),
        limits=KeyLimits(
            requests_per_minute=limits.requests_per_minute,
            concurrent=limits.concurrent,
            tokens_per_minute=limits.tokens_per_minute,
        ),
        may_read_metrics=key.metrics,
    )


def _digest(key: KeySettings) -> bytes:
    """A key that has neither is no key: nothing has an empty digest."""
    if key.key is None:
        return bytes.fromhex(key.sha256 or "")
    value = key.key.reveal()
    if not re.fullmatch("[!-~]+", value):
        raise CannotStart(f"The API key {key.name!r} cannot be sent: it must be printable ASCII without spaces.")
    return sha256(value.encode()).digest()
