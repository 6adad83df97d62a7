"""Approvals and conversations: what clients can list, retrieve and change beside responses."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from antwort.api.additional_tools import Declared, check_steps, declared_steps, entries_of, is_additional
from antwort.api.input_items import item_steps
from antwort.api.items import InputItem
from antwort.api.limits import Limits
from antwort.api.requests import ShortText, check_metadata
from antwort.api.responses import Metadata
from antwort.api.steps import Steps
from antwort.api.validation import convert
from antwort.api.wire import Wire

ApprovalStatus: TypeAlias = Literal["pending", "approved", "denied", "expired", "outdated"]
"""`outdated`: it was approved and not run, because the tool had changed since."""


class Approval(Wire, kw_only=True):
    """A stored call that runs only when the client approves it. An extension of ours."""

    id: str
    """The id of the `mcp_approval_request`, which an `mcp_approval_response` names."""
    object: Literal["approval"] = "approval"
    status: ApprovalStatus = "pending"
    created_at: int
    expires_at: int
    """When it can no longer be approved, only denied. All times are in seconds since 1970."""
    response_id: str
    """The response that asks for it."""
    server_label: str
    name: str
    arguments: str
    decided_by: str | None = None
    """The response that received the decision and acts on it."""
    tool_digest: str = ""
    """Digest of the tool at the time of the request; empty if it was not recorded."""
    replaces: str | None = None
    """The outdated approval that this one replaces."""


class Conversation(Wire, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: Metadata = msgspec.field(default_factory=dict)


def read_metadata(value: object, limits: Limits) -> Metadata:
    """Read metadata; null means none."""
    metadata: Metadata = {} if value is None else convert(value, dict[str, ShortText], "metadata")
    check_metadata(metadata, limits)
    return metadata


def added_steps(value: object, limits: Limits) -> Steps[tuple[tuple[InputItem, ...], tuple[bytes, ...]]]:
    """Read items to add to a conversation, in pieces. Return them, and the JSON of each as it was received."""
    items, raw = yield from item_steps(value, "items", limits, most=limits.conversation_items)
    declared = [Declared(entries_of(item), f"items[{i}].tools") for i, item in enumerate(items) if is_additional(item)]
    yield from check_steps((yield from declared_steps(declared, limits.tools)), limits)
    return items, raw
