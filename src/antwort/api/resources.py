"""Approvals and conversations, which clients can retrieve and change beside responses."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from antwort.api.responses import Metadata
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
