"""What the tests of approvals share: a server whose calls must be approved, and what a client answers to that."""

from __future__ import annotations

from typing import Any

from antwort import Response
from antwort.api.items import McpApprovalRequest
from antwort.api.wire import to_plain
from antwort.testing import ScriptedProvider, ToolServerFake
from engine_kit import only, replies, sent

GUARDED = {"type": "mcp", "server_label": "depot", "require_approval": "always"}
ONE_GUARDED = {**GUARDED, "require_approval": {"always": {"tool_names": ["ship"]}}}


def depot() -> ToolServerFake:
    """A server with one tool that looks, and one that acts."""
    return ToolServerFake("depot", ship=replies("shipped"), lookup=replies("found"))


def asked(response: Response) -> McpApprovalRequest:
    return only(response, McpApprovalRequest)


def decision(request: McpApprovalRequest | Response, *, approve: bool = True, **more: Any) -> dict[str, Any]:
    """What the client says to the call that waits."""
    meant = asked(request) if isinstance(request, Response) else request
    return {"type": "mcp_approval_response", "approval_request_id": meant.id, "approve": approve, **more}


def again(response: Response) -> list[Any]:
    """The output as a client sends it back."""
    return [to_plain(item) for item in response.output]


def told(provider: ScriptedProvider, at: int = -1) -> list[tuple[str, Any]]:
    """What the model was told, each call by its name."""
    return [_line(message) for message in sent(provider.requests[at])["messages"]]


def _line(message: dict[str, Any]) -> tuple[str, Any]:
    if calls := message.get("tool_calls"):
        return "assistant", [call["function"]["name"] for call in calls]
    return message["role"], message.get("content")


def check_pairs(provider: ScriptedProvider) -> None:
    """Each call of each message has one result, right behind it: no backend takes anything else."""
    for request in provider.requests:
        due: list[str] = []
        for message in sent(request)["messages"]:
            if message["role"] == "tool":
                due.remove(message["tool_call_id"])
            else:
                assert not due
                due = [call["id"] for call in message.get("tool_calls") or ()]
        assert not due
