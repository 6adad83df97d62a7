"""Conversations: items that stay together under one id, for any number of requests."""

from __future__ import annotations

from typing import Literal

import msgspec

from antwort.api.additional import Declared, check_number, entries_of, is_additional, read_declared
from antwort.api.faults import convert
from antwort.api.inputs import read_items
from antwort.api.items import InputItem
from antwort.api.limits import Limits
from antwort.api.requests import ShortText, check_metadata
from antwort.api.responses import Metadata
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


def read_added(value: object, limits: Limits) -> tuple[tuple[InputItem, ...], tuple[bytes, ...]]:
    """The items that are to be added to a conversation, and the JSON of each as it came."""
    items, raw = read_items(value, "items", limits, most=limits.conversation_items)
    declared = [Declared(entries_of(item), f"items[{i}].tools") for i, item in enumerate(items) if is_additional(item)]
    check_number(read_declared(declared, limits.tools), limits.tools, limits.servers)
    return items, raw
