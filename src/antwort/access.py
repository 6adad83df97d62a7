"""Who may come in, as the settings say: the keys, and the web pages. The settings have been checked."""

from __future__ import annotations

import socket
from hashlib import sha256
from urllib.parse import urlsplit

from msgspec.structs import replace

from antwort.config.addresses import is_loopback
from antwort.config.checks import keys_required
from antwort.config.settings import KeySettings, Settings
from antwort.identity import Identity
from antwort.server.auth import HostCheck, Key, Keyring
from antwort.server.cors import Cors
from antwort.server.quotas import KeyLimits


def hashed(settings: Settings) -> Settings:
    """The settings with the hashes of the API keys in place of the keys, for whoever keeps them."""
    keys = tuple(replace(key, key=None, sha256=_digest(key).hex()) for key in settings.auth.keys)
    return replace(settings, auth=replace(settings.auth, keys=keys))


def make_door(settings: Settings) -> Keyring | HostCheck:
    """The keys there are, or where none is asked for, what else keeps strangers out.

    Where keys are required and there are none, nobody is let in: an omission opens nothing.
    """
    if keys_required(settings):
        return Keyring([_key(key) for key in settings.auth.keys])
    is_said = settings.auth.required == "never" or not is_loopback(settings.server.host)
    peer = urlsplit(settings.server.peer_url or "").hostname
    names = (*settings.server.hosts, socket.gethostname(), *((peer,) if peer else ()))
    return HostCheck(names, only_near=not is_said)


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
            followers=limits.followers,
            tokens_per_minute=limits.tokens_per_minute,
        ),
        may_read_metrics=key.metrics,
    )


def _digest(key: KeySettings) -> bytes:
    """A key that has neither is no key: nothing has an empty digest."""
    return bytes.fromhex(key.sha256 or "") if key.key is None else sha256(key.key.reveal().encode()).digest()
