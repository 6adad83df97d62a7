"""What a run of the clients leaves behind: one line of JSON for each case, and which cases there are.

    {"client": "openai-node", "version": "7.53.0", "case": "plain", "streamed": true, "outcome": "ok", "detail": ""}

`outcome` is `ok`, `failed` (then `detail` says how) or `n/a` (then `detail` says why no such thing can be tried with
that client; it becomes a footnote of the table).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

Outcome: TypeAlias = Literal["ok", "failed", "n/a"]

CLIENTS = (
    "openai-python",
    "openai-node",
    "openai-agents",
    "langchain-openai",
    "pydantic-ai",
    "@ai-sdk/openai",
    "@ai-sdk/open-responses",
    "codex",
)
"""The columns of the table."""

AS_IS = "as-is"
CASES = {
    "plain": "a question and its answer",
    "function": "a function of the client's, called and answered",
    "parallel": "two calls at once",
    "structured": "an answer that fits a JSON schema",
    "reasoning": "reasoning that the client shows",
    "image": "an image",
    "by-id": "a conversation continued by `previous_response_id`",
    "by-history": "a conversation continued by sending it again",
    "tool-error": "a tool that fails",
    "unknown-model": "error: a model that is not there",
    "bad-request": "error: a request that is refused",
    "backend-429": "error: the backend answers 429",
    "backend-500": "error: the backend answers 500",
    "cut-stream": "error: the backend breaks off",
}
"""What every client is taken through, streamed and not."""

EXTRAS = {
    "handoff": "an agent of several steps that hands over to another",
    "toolset": "a toolset of the server's, and its calls replayed as input",
    "approval": "a toolset's call that the client approves, and one that it denies",
    "session": "a session that the client keeps",
    "sealed-reasoning": "reasoning brought back encrypted, nothing stored",
    "item-reference": "a conversation continued by `item_reference`",
    "slow-tool": "a tool that works longer than the client's idle timer",
    "custom-tool": "a free-form tool with a grammar",
    "namespace": "tools in a namespace",
    "additional-tools": "tools that an item of the input declares (`additional_tools`)",
    "apply-patch": "a file edited through `apply_patch`",
    "shell": "a command run in a real folder",
    "resume": "a background response, left and picked up",
    "raw-events": "the plain events, without the client's own bookkeeping",
    "tool-image": "an image that a tool gives back",
    "retries": "no useless retries",
    "websocket": "turns over one WebSocket, with nothing stored",
    "websocket-off": "a server without WebSocket: back to HTTP",
    "conversation": "a conversation that the server keeps (`/v1/conversations`)",
    "compaction": "a history compacted when the client says so, and on from there",
    "auto-compaction": "a history compacted by the server (`context_management`)",
    "input-tokens": "tokens counted before they are sent",
    "truncation": "`truncation: auto` beyond the model's context, and an error without",
    AS_IS: "all cases of the first table but the errors, at a server with default settings",
}
"""What some clients are taken through besides."""

_SERVER_TOOLS = ("toolset", "approval", "sealed-reasoning", "slow-tool")
_LONG = ("websocket", "conversation", "compaction", "auto-compaction", "input-tokens", "truncation")
EXTRAS_OF: dict[str, tuple[str, ...]] = {
    "openai-python": (
        *("toolset", "approval", "sealed-reasoning", "item-reference", "slow-tool", "custom-tool"),
        *("namespace", "tool-image", "retries", *_LONG, AS_IS),
    ),
    "openai-node": (
        *("toolset", "approval", "sealed-reasoning", "item-reference", "slow-tool", "custom-tool"),
        *("namespace", "tool-image", "retries", *_LONG, AS_IS),
    ),
    "openai-agents": ("handoff", "toolset", "approval", "session", "sealed-reasoning", "slow-tool", *_LONG, AS_IS),
    "langchain-openai": (*_SERVER_TOOLS, *_LONG, AS_IS),
    "pydantic-ai": (*_SERVER_TOOLS, *_LONG, AS_IS),
    "@ai-sdk/openai": (*_SERVER_TOOLS, "item-reference", "custom-tool", "tool-image", *_LONG, AS_IS),
    "@ai-sdk/open-responses": ("tool-image", AS_IS),
    "codex": (
        *("shell", "apply-patch", "custom-tool", "namespace", "additional-tools", "tool-image"),
        *("sealed-reasoning", "slow-tool", "websocket-off", *_LONG, AS_IS),
    ),
}
"""Which of them, by client."""


def cases_of(client: str) -> tuple[str, ...]:
    """All that a client is taken through."""
    return (*CASES, *EXTRAS_OF[client])


class Line(NamedTuple):
    client: str
    version: str
    case: str
    streamed: bool
    outcome: Outcome
    detail: str = ""

    def written(self) -> str:
        return json.dumps(self._asdict(), ensure_ascii=False)


def read_line(text: str) -> Line:
    """The line that a runner printed. Raises `ValueError`, naming what is wrong."""
    line = Line(**json.loads(text))
    if line.client not in CLIENTS:
        raise ValueError(f"no such client: {line.client!r}")
    if line.case not in CASES and line.case not in EXTRAS:
        raise ValueError(f"no such case: {line.case!r}")
    if line.outcome not in get_args(Outcome) or not isinstance(line.streamed, bool):
        raise ValueError(f"not an outcome: {text}")
    if line.outcome != "ok" and not line.detail:
        raise ValueError(f"what is not ok says why: {text}")
    return line


class Record(NamedTuple):
    """What a file of lines holds: the first says of which version of the server they are."""

    antwort: str
    lines: tuple[Line, ...]


def read_record(file: Path) -> Record:
    first, *others = file.read_text(encoding="utf-8").splitlines()
    return Record(json.loads(first)["antwort"], tuple(read_line(text) for text in others))


def write_record(record: Record, file: Path) -> None:
    """In the order of clients and cases, whatever order they ran in."""
    known = [*CASES, *EXTRAS]
    ordered = sorted(record.lines, key=lambda line: (CLIENTS.index(line.client), known.index(line.case), line.streamed))
    written = [json.dumps({"antwort": record.antwort}), *[line.written() for line in ordered]]
    file.write_text("".join(f"{text}\n" for text in written), encoding="utf-8")


def missing(lines: Iterable[Line], clients: Iterable[str] = CLIENTS) -> Iterator[tuple[str, str, bool]]:
    """The client, case and mode of which there is no line."""
    there = {(line.client, line.case, line.streamed) for line in lines}
    for client in clients:
        for case in cases_of(client):
            for streamed in (False, True):
                if (client, case, streamed) not in there:
                    yield client, case, streamed
