"""What differs from one server to the next, for its own description. Decided where the server is put together."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from antwort.api.decoding import Limits
from antwort.engine.settings import EngineSettings

Credentials: TypeAlias = Literal["none", "key", "own"]
"""What a request must bring: nothing, an API key, or what the program wants that the server is a part of."""
Access: TypeAlias = Literal["open", "locked", "hidden"]
"""What a stranger finds: all of it, a question for a key, or nothing."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """By default, as much as there can be."""

    limits: Limits = Limits()
    credentials: Credentials = "key"
    metrics: Access = "locked"
    remembers_keys: bool = True
    """Whether an `Idempotency-Key` means anything."""
    tells_quotas: bool = True
    """Whether answers say how much of a minute's share is left."""
    requires_action: Literal["status", "event", "completed"] = "status"
    """How a response ends whose calls are the client's to run."""
    strict: bool = False
    """Whether it writes to the letter of the standard."""
    websocket: bool = True
    """Whether responses can be had over WebSocket."""
    background: bool = True
    """Whether they are made in the background, too."""


def offer_of(
    settings: EngineSettings, *, credentials: Credentials, metrics: Access, tells_quotas: bool, websocket: bool
) -> Offer:
    return Offer(
        limits=settings.limits,
        credentials=credentials,
        metrics=metrics,
        remembers_keys=settings.idempotency > 0,
        tells_quotas=tells_quotas,
        requires_action=settings.requires_action,
        strict=settings.strict,
        websocket=websocket,
        background=settings.background.enabled,
    )
