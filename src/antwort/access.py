"""Who may come in, as the settings say: the keys, and the web pages."""

from __future__ import annotations

import re
from hashlib import sha256
from ipaddress import ip_address

from antwort.config.problems import CannotStart
from antwort.config.settings import KeySettings, Settings
from antwort.identity import Identity
from antwort.transport.cors import Cors
from antwort.transport.keys import Key, Keyring
from antwort.transport.quotas import KeyLimits

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,*]+", re.IGNORECASE)


def make_keyring(settings: Settings) -> Keyring | None:
    """The keys there are; None when none is asked for. Raises `CannotStart`.

    Keys that are required and missing keep the server from starting: nobody is let in by an omission.
    """
    auth, host = settings.auth, settings.server.host
    if auth.required == "never":
        return None
    if not auth.keys and auth.required == "always":
        raise CannotStart("API keys are required, and there are none: add one under auth.keys.")
    if not auth.keys and is_loopback(host):
        return None
    if not auth.keys:
        raise CannotStart(
            f"Others can reach {host or 'all addresses'!r}, and there are no API keys: add one under auth.keys, listen "
            "on 127.0.0.1, or say that none are needed with auth.required: never."
        )
    _check_differ(auth.keys)
    return Keyring([_key(key) for key in auth.keys])


def make_cors(settings: Settings) -> Cors | None:
    """None when no web page may use the API. Raises `CannotStart`."""
    cors = settings.cors
    if not cors.origins:
        return None
    if cors.credentials and "*" in cors.origins:
        raise CannotStart("cors.credentials cannot be combined with the origin '*': name the origins.")
    for origin in cors.origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise CannotStart(
                f"cors.origins: {origin!r} is not an origin like https://app.example.com (without a path)."
            )
    return Cors(cors.origins, headers=cors.headers, credentials=cors.credentials, max_age=cors.max_age)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there. A name that is not known for sure is taken for public."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _key(key: KeySettings) -> Key:
    return Key(
        name=key.name,
        digest=_digest(key),
        identity=Identity(tenant=key.tenant, owner=_subject(key), models=key.models, key=key.name),
        limits=KeyLimits(
            requests_per_minute=key.limits.requests_per_minute,
            concurrent=key.limits.concurrent,
            tokens_per_minute=key.limits.tokens_per_minute,
        ),
        may_read_metrics=key.metrics,
    )


def _subject(key: KeySettings) -> str:
    """Never nobody: what an anonymous request has stored is no key's."""
    return key.subject or key.name


def _digest(key: KeySettings) -> bytes:
    if (key.key is None) == (key.sha256 is None):
        raise CannotStart(f"The API key {key.name!r} needs either 'key' or 'sha256'.")
    if key.sha256 is not None:
        return bytes.fromhex(key.sha256)
    assert key.key is not None
    value = key.key.reveal()
    if not re.fullmatch("[!-~]+", value):
        raise CannotStart(f"The API key {key.name!r} cannot be sent: it must be printable ASCII without spaces.")
    return sha256(value.encode()).digest()


def _check_differ(keys: tuple[KeySettings, ...]) -> None:
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for key in keys:
        if key.name in names:
            raise CannotStart(f"Two API keys are called {key.name!r}: a name is for one.")
        names.add(key.name)
        digest = _digest(key)
        if digest in digests:
            raise CannotStart(f"The API keys {digests[digest]!r} and {key.name!r} are the same key.")
        digests[digest] = key.name
