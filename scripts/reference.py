"""Write what follows from the code into the pages of docs/reference. With --check: say where it does not stand yet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from antwort import errors
from antwort.api import events
from antwort.cli.commands import COMMANDS, Command
from antwort.config.schema import reference
from antwort.telemetry.families import FAMILIES

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"
_MADE = re.compile(r"(<!-- made by scripts/reference.py -->).*?(<!-- end -->)", re.DOTALL)

# ---- events ----

WHEN = {
    "response.created": "first of all; held back until the backend has answered",
    "response.queued": "a background response waits for its turn, right after `response.created`",
    "response.in_progress": (
        "right after; again, with `output: []`, when no event came for `loop.progress_interval` (20 s) while a tool "
        "works here, or for `loop.longest_silence` (60 s) otherwise; and under `loop.keepalive: in_progress`"
    ),
    "response.completed": "the end: `completed`, or `requires_action` when the client has calls to run",
    "response.failed": "the end: something failed after the first event had gone out",
    "response.incomplete": "the end: a limit, a deadline or a cancellation; `incomplete_details.reason` says which",
    "response.requires_action": "the end, instead of `response.completed`, under `loop.requires_action: event`",
    "error": "not sent by this version: a failure before the first event is an HTTP error",
    "response.output_item.added": "an item begins",
    "response.output_item.done": "the item is finished and never changes again",
    "response.content_part.added": "a part of a message or of reasoning begins",
    "response.content_part.done": "the part is finished",
    "response.output_text.delta": "a piece of text",
    "response.output_text.done": "the text, whole",
    "response.output_text.annotation.added": "an annotation of a text (not sent by this version)",
    "response.refusal.delta": "a piece of a refusal",
    "response.refusal.done": "the refusal, whole",
    "response.reasoning_text.delta": "a piece of reasoning; under `loop.strict` it is `response.reasoning.delta`",
    "response.reasoning_text.done": "the reasoning, whole; under `loop.strict` it is `response.reasoning.done`",
    "response.reasoning_summary_part.added": "with `reasoning.summary`: a part of the summary begins",
    "response.reasoning_summary_part.done": "with `reasoning.summary`: the part is finished",
    "response.reasoning_summary_text.delta": "with `reasoning.summary`: a piece of it",
    "response.reasoning_summary_text.done": "with `reasoning.summary`: its text, whole",
    "response.function_call_arguments.delta": "a piece of a call's arguments, as the model writes them",
    "response.function_call_arguments.done": "the arguments, whole",
    "response.custom_tool_call_input.delta": "a piece of the input of a free-form tool: text, not JSON",
    "response.custom_tool_call_input.done": "the input, whole",
    "response.mcp_call_arguments.delta": "a piece of the arguments of a call that the server runs",
    "response.mcp_call_arguments.done": "the arguments, whole",
    "response.mcp_call.in_progress": "the server runs the call; again when the tool reports progress",
    "response.mcp_call.progress": 'with `include: ["mcp_call.progress"]`, an extension: how far the tool says it is',
    "response.mcp_call.completed": "the call has its output",
    "response.mcp_call.failed": "the call ended in an error, which the model is told",
    "response.mcp_list_tools.in_progress": "a tool server that the request names is listed",
    "response.mcp_list_tools.completed": "its tools are in the item",
    "response.mcp_list_tools.failed": "it could not be asked; the response goes on without its tools",
}


def event_table() -> str:
    rows = [f"| `{tag}` | {_fields(event)} | {WHEN[tag]} |" for tag, event in _events()]
    return "\n".join(["| event | carries | when |", "|---|---|---|", *rows])


def _events() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for event in typing.get_args(events.StreamEvent):
        tag = event.__struct_config__.tag
        assert isinstance(tag, str)
        yield tag, event


def _fields(event: type[msgspec.Struct]) -> str:
    return ", ".join(f"`{name}`" for name in event.__struct_fields__)


# ---- errors ----

MEANING: dict[str, tuple[type[errors.AntwortError], str]] = {
    "approval_decided": (errors.Conflict, "the call was approved or denied before, and this says the opposite"),
    "approval_expired": (
        errors.InvalidField,
        "the call waited longer than `tools.approval_time`; it can only be denied",
    ),
    "tool_changed": (
        errors.Conflict,
        "the tool has changed since the call was asked about; another response asks again",
    ),
    "approval_in_use": (errors.ApprovalInUse, "another request acts on the same approval; its result is there soon"),
    "approval_not_found": (errors.ApprovalNotFound, "no such approval of yours"),
    "context_length_exceeded": (
        errors.ContextTooLong,
        "more than the model can read, or than `limits.history_bytes` of history",
    ),
    "conversation_locked": (
        errors.ConversationLocked,
        "others are answered in this conversation; the request waited `conversation_wait` or its `deadline` in vain",
    ),
    "conversation_not_found": (errors.ConversationNotFound, "no such conversation of yours"),
    "duplicate_approval": (errors.InvalidField, "a call that waits for approval is decided in two ways in one input"),
    "duplicate_output": (errors.InvalidField, "the call has another result already"),
    "duplicate_tool": (errors.InvalidField, "two tools of the request have the same name"),
    "invalid_encrypted_content": (
        errors.InvalidField,
        "a compaction or sealed reasoning that cannot be opened: it was changed, is another's, or its key is gone",
    ),
    "idempotency_key_in_use": (
        errors.KeyInUse,
        "the first request with this `Idempotency-Key` is still being answered, by another process",
    ),
    "idempotency_key_reused": (
        errors.KeyReused,
        "this `Idempotency-Key` came before, with another body; `x-should-retry` is `false`",
    ),
    "attempts_exhausted": (
        errors.AttemptsExhausted,
        "only in a response that has failed: whoever made it was lost or could not go on, `background.attempts` times",
    ),
    "queue_full": (
        errors.QueueFull,
        "as many background responses wait as may (`background.queue`); `Retry-After` says when to come again",
    ),
    "invalid_http": (errors.RequestError, "what came is not HTTP"),
    "invalid_idempotency_key": (
        errors.RequestError,
        "an `Idempotency-Key` is 1 to 255 visible ASCII characters",
    ),
    "invalid_json": (errors.InvalidField, "the body is not JSON, not an object, or nested too deeply"),
    "invalid_prompt": (
        errors.BackendRefused,
        "the backend found fault with the request; its words are passed on, shortened",
    ),
    "invalid_value": (errors.InvalidField, "a field has a value that cannot be; `param` is its path"),
    "missing_required_parameter": (errors.InvalidField, "a field is missing; `param` is its path"),
    "mutually_exclusive_parameters": (errors.InvalidField, "two fields of which only one can be given"),
    "not_a_client_call": (errors.InvalidField, "an output for a call that waits for an approval"),
    "reserved_label": (errors.InvalidField, "the label of a tool server is one of our own"),
    "string_above_max_length": (errors.InvalidField, "a text is longer than `limits.part_bytes`"),
    "too_many_items": (errors.InvalidField, "more input items than `limits.input_items`"),
    "too_many_keys": (errors.InvalidField, "more keys in `metadata` than `limits.metadata_keys`"),
    "too_many_tools": (
        errors.InvalidField,
        "more tools than `limits.tools`, or servers by address than `limits.servers`",
    ),
    "unexpected_parameter": (errors.InvalidField, "a field that does not go with this tool server"),
    "unknown_approval": (errors.InvalidField, "a decision about a call that does not wait for one in the conversation"),
    "unknown_call_id": (errors.InvalidField, "an output for a call that the conversation does not know"),
    "unknown_tool": (
        errors.InvalidField,
        "`tool_choice` names a tool that the request does not have, or a call is required and no tool is allowed",
    ),
    "unknown_tool_server": (errors.InvalidField, "no tool server has that label"),
    "unsupported_parameter": (errors.UnsupportedFeature, "understood, but not offered here"),
    "unsupported_tool": (errors.InvalidField, "nobody here runs tools of that type"),
    "invalid_api_key": (errors.NotAuthenticated, "no API key, or one that is not known"),
    "host_not_allowed": (
        errors.NotPermitted,
        "without API keys, a name that a stranger could have chosen is not answered under; see `server.hosts`",
    ),
    "model_not_allowed": (errors.NotPermitted, "the key may not use that model"),
    "permission_denied": (errors.NotPermitted, "a program that mounts the server says so by its `identify`"),
    "item_not_found": (errors.ItemNotFound, "an `item_reference` to an item that is not there, or not yours"),
    "model_not_found": (errors.ModelNotFound, "no backend has that model"),
    "not_found": (errors.NotFound, "the backend does not offer what was asked of it"),
    "previous_response_not_found": (errors.ResponseNotFound, "no such response of yours to continue"),
    "response_not_found": (errors.ResponseNotFound, "no such response of yours"),
    "unknown_url": (errors.NotFound, "there is nothing at this address"),
    "method_not_allowed": (
        errors.MethodNotAllowed,
        "the address is right, the method is not; `Allow` lists those that are",
    ),
    "request_timeout": (errors.RequestTooSlow, "the request took too long to come in"),
    "response_in_progress": (errors.Conflict, "the response to continue has not ended yet"),
    "origin_not_allowed": (
        errors.NotPermitted,
        "a web page of another origin wants to open a WebSocket: list the origin under `cors.origins`",
    ),
    "websocket_connection_limit_reached": (
        errors.ConnectionTooOld,
        "a WebSocket has been open for `server.websocket.lifetime`; open a new one",
    ),
    "invalid_upgrade": (
        errors.BadUpgrade,
        "a WebSocket is asked for in a way that RFC 6455 does not know, or with a key as its only protocol",
    ),
    "websocket_version_not_supported": (
        errors.WrongSocketVersion,
        "a WebSocket is asked for in a version other than 13; `Sec-WebSocket-Version` says so",
    ),
    "websocket_not_offered": (errors.SocketsOff, "`server.websocket.enabled` is off; use HTTP"),
    "too_many_followers": (
        errors.TooManyFollowers,
        "as many streams are read again (`GET /v1/responses/{id}?stream=true`) as `server.followers` allows",
    ),
    "too_many_websockets": (
        errors.TooManySockets,
        "as many WebSockets are open as `server.websocket.connections` allows",
    ),
    "body_too_large": (errors.BodyTooLarge, "the body is larger than `server.body_limit`"),
    "too_many_values": (errors.TooManyValues, "the body holds more JSON values than `limits.body_values`"),
    "unsupported_media_type": (errors.WrongMediaType, "the body is not `application/json`"),
    "rate_limit_exceeded": (
        errors.RateLimited,
        "a limit of the key, or of the backend; `Retry-After` says when to come back, where that is known",
    ),
    "insufficient_quota": (errors.QuotaUsedUp, "what the backend grants this server is used up; waiting does not help"),
    "request_head_too_large": (
        errors.HeadTooLarge,
        "the address and headers are larger than `server.head_limit`, or the chunk extensions and trailers are",
    ),
    "transfer_coding_not_supported": (
        errors.UnknownTransferCoding,
        "the body is sent in a transfer coding other than `chunked`, such as `gzip, chunked`",
    ),
    "server_error": (errors.ServerFault, "something of ours went wrong"),
    "server_not_allowed": (errors.InvalidField, "the address of an MCP server is one that may not be named here"),
    "server_not_started": (errors.ServerFault, "a mounted server could not be started; its log says why"),
    "storage_error": (
        errors.StoreFault,
        "the record could not be read or written: it is damaged, or the fault is ours",
    ),
    "storage_unavailable": (
        errors.StoreUnavailable,
        "the database cannot be reached, or is locked, full or read-only; `Retry-After` says when to come again",
    ),
    "history_memory_full": (
        errors.HistoryMemoryFull,
        "the histories of other requests take all of `limits.history_memory`; the request waited a minute in vain",
    ),
    "deadline_too_short": (
        errors.DeadlineTooShort,
        "the `deadline` of the request was over before its response could be begun",
    ),
    "backend_error": (errors.BackendError, "an inference failed"),
    "backend_unauthorized": (
        errors.BackendError,
        "the backend does not accept this server's key (401 or 403 there): the operator has to mend it",
    ),
    "backend_stream_cut": (errors.BackendCut, "the backend's answer broke off"),
    "backend_circuit_open": (
        errors.BackendUnavailable,
        "the backend cannot be reached, and its circuit breaker is open; `Retry-After` says for how long",
    ),
    "backend_closed": (errors.BackendUnavailable, "the backend closed the connection without an answer"),
    "tool_server_unavailable": (
        errors.ToolServerUnavailable,
        "a call was approved whose tool server cannot be asked now; nothing was begun or decided",
    ),
    "backend_unavailable": (errors.BackendUnavailable, "the backend cannot be reached, or is not ready"),
    "server_is_overloaded": (errors.BackendOverloaded, "the backend says that it has too much to do"),
    "request_cancelled": (
        errors.RequestCancelled,
        "the program that a server is mounted in broke the request off: it took too long, or the program is stopping",
    ),
    "maker_unreachable": (
        errors.MakerAway,
        "another process makes the response, only that one can tell what it says so far, and it cannot be reached",
    ),
    "server_shutting_down": (errors.ShuttingDown, "the server is about to stop; come back in a moment"),
    "backend_connect_timeout": (errors.BackendTimeout, "connecting to the backend took too long"),
    "backend_timeout": (errors.BackendTimeout, "the backend took too long"),
}
"""Every code that is sent: the error it goes with, and what it means. A test holds it against the source."""


def error_table() -> str:
    found = sorted(MEANING.items(), key=lambda row: (row[1][0].status, row[0]))
    rows = [f"| {kind.status} | `{kind.type}` | `{code}` | {meaning} |" for code, (kind, meaning) in found]
    return "\n".join(["| status | type | code | it means |", "|---|---|---|---|", *rows])


# ---- metrics ----


def metric_tables() -> str:
    """One row a metric, and the buckets of the histograms."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels) or 'none'} | {each.help} |"
        for each in FAMILIES
    ]
    bounds = [f"| `{each.name}` | {', '.join(map(_bound, each.bounds))} |" for each in FAMILIES if each.bounds]
    table = ["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows]
    return "\n".join([*table, "", "## Buckets", "", "| histogram | upper bounds |", "|---|---|", *bounds])


def _bound(bound: float) -> str:
    return f"{bound:g}" if bound < 1e6 else str(int(bound))


# ---- the command line ----


def command_lines() -> str:
    """The help of every command, as it is printed on a terminal of a hundred columns."""
    return "\n\n".join(
        f"## {words}\n\n```text\n{_help(words)}\n```" for words in ("antwort", *_commands("antwort", COMMANDS))
    )


def _commands(prog: str, choice: Sequence[Command]) -> Iterator[str]:
    for command in choice:
        yield f"{prog} {command.name}"
        yield from _commands(f"{prog} {command.name}", command.commands)


def _help(words: str) -> str:
    arguments = [sys.executable, "-m", *words.split(), "--help"]
    done = subprocess.run(arguments, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# ---- all pages ----


def parts() -> dict[str, Callable[[], str]]:
    """What follows from the code, by the page that it stands in."""
    return {
        "events.md": event_table,
        "errors.md": error_table,
        "configuration.md": lambda: reference().strip(),
        "metrics.md": metric_tables,
        "command-line.md": command_lines,
    }


def _put(text: str, found: re.Match[str]) -> str:
    return f"{found[1]}\n\n{text}\n\n{found[2]}"


def main(arguments: list[str]) -> int:
    is_check = "--check" in arguments
    stale = []
    for name, part in parts().items():
        file = PAGES / name
        before = file.read_text(encoding="utf-8")
        after = _MADE.sub(partial(_put, part()), before)
        if after != before:
            stale.append(name)
            if not is_check:
                file.write_text(after, encoding="utf-8")
    print(f"{'not as the code says' if is_check else 'written'}: {', '.join(stale) or 'none'}")
    return 1 if stale and is_check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
