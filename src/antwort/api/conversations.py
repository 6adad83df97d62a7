"""Conversations: items that stay together under one id, for any number of requests."""

from __future__ import annotations

from typing import Literal

import msgspec

from antwort.api.additional import Declared, check_steps, declared_steps, entries_of, is_additional
from antwort.api.faults import convert
from antwort.api.inputs import item_steps
from antwort.api.items import InputItem
from antwort.api.limits import Limits
from antwort.api.requests import ShortText, check_metadata
from antwort.api.responses import Metadata
from antwort.api.steps import Steps
from antwort.api.wire import Wire


class Conversation(Wire, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: Metadata = msgspec.field(default_factory=dict)


def read_metadata(value: object, limits: Limits) -> Metadata:
    """Null stands for none."""
    metadata: Metadata = {} if value is None else convert(value, dict[str, ShortText], "metadata")
    check_metadata(metadata, limits)
    return metadata


def added_steps(value: object, limits: Limits) -> Steps[tuple[tuple[InputItem, ...], tuple[bytes, ...]]]:
    """Read the items that are to be added to a conversation; return them, and the JSON of each as it came."""
    items, raw = yield from item_steps(value, "items", limits, most=limits.conversation_items)
    declared = [Declared(entries_of(item), f"items[{i}].tools") for i, item in enumerate(items) if is_additional(item)]
    yield from check_steps((yield from declared_steps(declared, limits.tools)), limits)
    return items, raw
