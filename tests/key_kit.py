"""API keys as tests need them."""

from __future__ import annotations

from hashlib import sha256

from antwort import Identity
from antwort.server.auth import Key
from antwort.server.quotas import KeyLimits

SECRET = "sk-test-0123456789"


def a_key(
    secret: str = SECRET,
    name: str = "ann",
    limits: KeyLimits | None = None,
    *,
    identity: Identity | None = None,
    metrics: bool = False,
) -> Key:
    return Key(
        name=name,
        digest=sha256(secret.encode()).digest(),
        identity=identity or Identity("acme", name, key=name),
        limits=limits or KeyLimits(),
        may_read_metrics=metrics,
    )


def bearing(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}
