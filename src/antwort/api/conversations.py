"""Conversations: items that stay together under one id, for any number of requests."""

from __future__ import annotations

from typing import Literal

import msgspec

from antwort.api.responses import Metadata
from antwort.api.wire import Wire


class Conversation(Wire, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: Metadata = msgspec.field(default_factory=dict)
