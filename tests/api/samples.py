"""JSON as the protocol has it: one full and one small sample of everything that travels."""

from __future__ import annotations

from typing import Any

from antwort.api.responses import Response
from antwort.api.wire import to_plain

Json = dict[str, Any]

CITATION: Json = {"type": "url_citation", "url": "https://example.org", "title": "t", "start_index": 0, "end_index": 1}
LOGPROB: Json = {
    "token": "a",
    "logprob": -0.5,
    "bytes": [97],
    "top_logprobs": [{"token": "b", "logprob": -1.5, "bytes": [98]}],
}

PARTS: list[Json] = [
    {"type": "input_text", "text": "hi"},
    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
    {"type": "input_image", "image_url": None, "file_id": "file_1", "detail": "auto"},
    {"type": "input_file", "filename": "a.pdf", "file_url": "https://example.org/a.pdf"},
    {"type": "input_file", "file_data": "AA=="},
    {"type": "input_file", "file_id": "file_1"},
    {"type": "input_video", "video_url": "https://example.org/a.mp4"},
    {"type": "output_text", "text": "hi", "annotations": [CITATION], "logprobs": [LOGPROB]},
    {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    {"type": "text", "text": "hi"},
    {"type": "summary_text", "text": "in short"},
    {"type": "reasoning_text", "text": "hm"},
    {"type": "refusal", "refusal": "no"},
]

ITEMS: list[Json] = [
    {"type": "message", "id": "msg_1", "role": "user", "content": PARTS, "status": "completed"},
    {"type": "message", "id": "msg_1", "role": "system", "content": [], "status": "incomplete"},
    {"type": "message", "id": "msg_1", "role": "developer", "content": [], "status": "completed"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
        "status": "in_progress",
        "phase": "final_answer",
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "add",
        "arguments": '{"a": 1 }',
        "status": "completed",
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "add",
        "arguments": "",
        "status": "in_progress",
        "namespace": "math",
    },
    {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "3", "status": "completed"},
    {
        "type": "function_call_output",
        "id": "fco_1",
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "3"},
            {"type": "input_image", "image_url": "data:,", "detail": "auto"},
        ],
        "status": "completed",
        "is_error": True,
    },
    {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "call_1",
        "name": "patch",
        "input": "*** Begin",
        "status": "completed",
    },
    {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "call_1", "output": "ok", "status": "completed"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed"},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "in short"}],
        "content": [{"type": "reasoning_text", "text": "hm"}],
        "encrypted_content": "gAAA",
        "status": "incomplete",
    },
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA", "status": "completed"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA", "created_by": "user_1", "status": "completed"},
    {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "depot",
        "tools": [
            {"name": "add", "input_schema": {"type": "object"}},
            {"name": "sub", "input_schema": {}, "description": "takes away", "annotations": {"readOnlyHint": True}},
        ],
        "status": "completed",
    },
    {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "depot",
        "tools": [],
        "error": "unreachable",
        "status": "completed",
    },
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "depot",
        "name": "add",
        "arguments": "{}",
        "status": "completed",
        "output": "3",
        "error": None,
        "approval_request_id": "mcpr_1",
        "call_id": "call_1",
    },
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "depot",
        "name": "add",
        "arguments": "{}",
        "status": "failed",
        "output": None,
        "error": "no",
    },
    {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "depot",
        "name": "add",
        "arguments": "{}",
        "status": "completed",
    },
    {
        "type": "mcp_approval_response",
        "id": "mcpa_1",
        "approval_request_id": "mcpr_1",
        "approve": False,
        "reason": "too dear",
        "status": "completed",
    },
    {"type": "item_reference", "id": "msg_1"},
]

FUNCTION: Json = {
    "type": "function",
    "name": "add",
    "description": "adds",
    "parameters": {"$schema": "x"},
    "strict": True,
}
SERVER: Json = {
    "type": "mcp",
    "server_label": "depot",
    "server_url": "https://example.org/mcp",
    "server_description": "tools",
    "authorization": "secret-token",
    "headers": {"X-Key": "secret-key"},
    "allowed_tools": ["add"],
    "require_approval": "never",
    "connector_id": "c",
}
TOOLS: list[Json] = [
    FUNCTION,
    {"type": "function", "name": "add", "description": None, "parameters": None, "strict": None},
    SERVER,
    {"type": "mcp", "server_label": "depot"},
    {
        "type": "mcp",
        "server_label": "depot",
        "allowed_tools": {"tool_names": ["add"]},
        "require_approval": {"always": {"tool_names": ["sub"]}},
    },
    {"type": "web_search", "external_web_access": False},
    {
        "type": "namespace",
        "name": "agents",
        "tools": [
            {"type": "function", "name": "spawn", "description": None, "parameters": {"$schema": "x"}, "strict": True},
            {"type": "custom", "name": "tell", "description": "Say it.", "format": {"type": "text"}},
        ],
        "description": "Agents.",
    },
    {"type": "custom", "name": "note", "description": None, "format": {"type": "text"}},
    {
        "type": "custom",
        "name": "patch",
        "description": "Change files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
    },
]

CHOICES: list[str | Json] = [
    "none",
    "auto",
    "required",
    {"type": "function", "name": "add"},
    {"type": "function", "name": "spawn", "namespace": "agents"},
    {"type": "custom", "name": "patch"},
    {"type": "custom", "name": "tell", "namespace": "agents"},
    {"type": "web_search_preview"},
    {"type": "mcp", "server_label": "depot"},
    {"type": "mcp", "server_label": "depot", "name": "add"},
    {"type": "allowed_tools", "tools": [{"type": "function", "name": "add"}], "mode": "required"},
    {"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "depot"}], "mode": "auto"},
    {
        "type": "allowed_tools",
        "tools": [{"type": "image_generation"}, {"type": "custom", "name": "tell", "namespace": "agents"}],
        "mode": "auto",
    },
]

RESPONSE: Json = to_plain(Response(id="resp_1", created_at=1700000000, status="in_progress", model="small"))
_AT: Json = {"item_id": "msg_1", "output_index": 0}
_PART: Json = {**_AT, "content_index": 0}
_SUMMARY: Json = {**_AT, "summary_index": 0}
_TEXT: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}

EVENTS: list[Json] = [
    {"type": "response.created", "response": RESPONSE},
    {"type": "response.queued", "response": {**RESPONSE, "status": "queued"}},
    {"type": "response.in_progress", "response": RESPONSE},
    {"type": "response.completed", "response": {**RESPONSE, "status": "completed", "completed_at": 1700000001}},
    {
        "type": "response.failed",
        "response": {**RESPONSE, "status": "failed", "error": {"code": "c", "message": "m", "type": "server_error"}},
    },
    {
        "type": "response.incomplete",
        "response": {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_turns"}},
    },
    {"type": "response.requires_action", "response": {**RESPONSE, "status": "requires_action"}},
    {
        "type": "error",
        "code": "c",
        "message": "m",
        "param": None,
        "error": {"type": "server_error", "code": "c", "message": "m", "param": None},
    },
    {"type": "response.output_item.added", "output_index": 0, "item": ITEMS[3]},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEMS[4]},
    {"type": "response.content_part.added", **_PART, "part": _TEXT},
    {"type": "response.content_part.done", **_PART, "part": {"type": "refusal", "refusal": "no"}},
    {"type": "response.output_text.delta", **_PART, "delta": "hi", "logprobs": []},
    {"type": "response.output_text.done", **_PART, "text": "hi", "logprobs": [LOGPROB]},
    {"type": "response.output_text.annotation.added", **_PART, "annotation_index": 0, "annotation": CITATION},
    {"type": "response.refusal.delta", **_PART, "delta": "no"},
    {"type": "response.refusal.done", **_PART, "refusal": "no"},
    {"type": "response.reasoning_text.delta", **_PART, "delta": "hm"},
    {"type": "response.reasoning_text.done", **_PART, "text": "hm"},
    {"type": "response.reasoning_summary_part.added", **_SUMMARY, "part": {"type": "summary_text", "text": ""}},
    {"type": "response.reasoning_summary_part.done", **_SUMMARY, "part": {"type": "summary_text", "text": "hm"}},
    {"type": "response.reasoning_summary_text.delta", **_SUMMARY, "delta": "hm"},
    {"type": "response.reasoning_summary_text.done", **_SUMMARY, "text": "hm"},
    {"type": "response.function_call_arguments.delta", **_AT, "delta": "{"},
    {"type": "response.function_call_arguments.done", **_AT, "name": "add", "arguments": "{}"},
    {"type": "response.custom_tool_call_input.delta", **_AT, "delta": "*** Begin"},
    {"type": "response.custom_tool_call_input.done", **_AT, "input": "*** Begin"},
    {"type": "response.mcp_call_arguments.delta", **_AT, "delta": "{"},
    {"type": "response.mcp_call_arguments.done", **_AT, "arguments": "{}"},
    {"type": "response.mcp_call.in_progress", **_AT},
    {"type": "response.mcp_call.progress", **_AT, "progress": 0.5, "total": 2.0, "message": "half way"},
    {"type": "response.mcp_call.completed", **_AT},
    {"type": "response.mcp_call.failed", **_AT},
    {"type": "response.mcp_list_tools.in_progress", **_AT},
    {"type": "response.mcp_list_tools.completed", **_AT},
    {"type": "response.mcp_list_tools.failed", **_AT},
]
"""Without their numbers, which the events do not know."""
