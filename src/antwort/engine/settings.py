"""The settings of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antwort.api.decoding import Limits, convert
from antwort.api.wire import Wire
from antwort.errors import InvalidField
from antwort.tools.limits import ToolLimits

_Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86400)]
_OrNone: TypeAlias = Annotated[float, Meta(ge=0, le=86400)]


class HostedPolicy(Wire):
    """What happens to hosted tools of one type, which only OpenAI runs."""

    do: Literal["run", "drop", "refuse"] = "drop"
    """`run`: a toolset here takes their place. `drop`: the request goes on without them. `refuse`: it is a 400."""
    toolset: str | None = None
    """With `run`: the label of the toolset whose tools take their place."""
    tools: tuple[str, ...] | None = None
    """With `run`: which of its tools; unset, all."""


class LoopSettings(Wire):
    """The settings of the loop."""

    max_turns: Annotated[int, Meta(ge=1, le=10000)] = 10
    """Inferences of one response."""
    deadline: _Seconds = 600.0
    """Seconds that a response may take from its start to its end."""
    max_tool_calls: Annotated[int, Meta(ge=1)] = 256
    """Calls that are run for one response; a request may set a lower limit."""
    token_budget: Annotated[int, Meta(ge=1)] = 5_000_000
    """Input and output tokens of all inferences of one response; a request may set a lower limit."""
    stuck_after: Annotated[int, Meta(ge=2, le=1000)] | None = 3
    """After so many turns in a row with the same calls and the same results, or with nothing but errors, the model gets
    a notice that it is stuck. Null: never, and the response does not end for it either."""
    stuck_limit: Annotated[int, Meta(ge=0, le=10000)] = 10
    """After so many such turns in a row the response ends with the reason `stuck`, unless a turn limit comes first. 0:
    never."""
    final_answer: bool = False
    """When a limit is reached, ask the model once more, without tools, for a final answer; it takes the last permitted
    turn."""
    eager: bool = True
    """Start a call as soon as its arguments are complete, while the model goes on, if the client has no tools to run
    and no calls to approve."""
    mixed_turns: Literal["pause", "execute"] = "pause"
    """When one turn calls tools of the client and of the server: hand all to the client, or run the server's first."""
    requires_action: Literal["status", "event", "completed"] = "status"
    """How a response says that the client must act: status in `response.completed`, an event of its own, or not."""
    refused_calls: Literal["mcp_call", "function_call"] = "mcp_call"
    """How refused and unknown calls are shown."""
    unknown_tools: Literal["drop", "refuse"] = "drop"
    """What happens to tools of a type without a policy of its own."""
    strict: bool = False
    """Follow the standard's names and shapes where OpenAI's differ."""
    hold_back: _OrNone = 2.0
    """Seconds that `response.created` waits for the backend's headers, so that an early failure is an HTTP error."""
    keepalive: Literal["comment", "in_progress"] = "comment"
    """What is sent during silence: a comment, or the event `response.in_progress` again."""
    keepalive_interval: _Seconds = 15.0
    """Seconds of silence after which it is sent."""
    progress_interval: _Seconds | None = 20.0
    """While a tool runs: seconds without an event after which `response.in_progress` is sent again. Some clients give
    up on a stream without events, and comments are none. Null: never."""
    longest_silence: _Seconds | None = 60.0
    """Seconds without an event after which `response.in_progress` is sent again in any case. Null: never."""
    buffer_events: Annotated[int, Meta(ge=1)] = 1024
    """Events that are buffered for a slow reader before the run waits for it."""
    buffer_bytes: Annotated[int, Meta(ge=1)] = 2**16
    """Characters of text in the buffered events, approximately, before the run waits as well. A text counts in each
    event that repeats it."""
    truncation: Literal["disabled", "auto"] = "disabled"
    """The default of requests: `auto` leaves out the oldest turns when the context would overflow, `disabled` refuses
    the request."""
    reserve: Annotated[int, Meta(ge=0)] = 1024
    """Tokens of the context that truncation keeps free for the answer, where a request sets no `max_output_tokens`; a
    quarter of the context at most."""
    compaction_model: str | None = None
    """The model that summarizes conversations; unset, the one that the request names."""
    compaction_keep: Annotated[int, Meta(ge=0)] = 4096
    """Tokens of the latest turns that a compaction keeps word for word; a quarter of the context at most."""
    compaction_summary: Annotated[int, Meta(ge=64)] = 4096
    """The most tokens of a summary with its reasoning; a quarter of the context at most."""
    conversation_wait: _OrNone = 60.0
    """Seconds that a request waits for the lock of a conversation that another request adds to."""
    discovery: _Seconds = 10.0
    """Seconds that a tool server gets to list its tools."""
    tool_grace: _OrNone = 0.8
    """Seconds that tools get to end when the run stops."""


OnDisconnect: TypeAlias = Literal["cancel", "continue"]
"""What happens to a stored response when its client disconnects."""


class BackgroundSettings(Wire):
    """Background responses, and the processes that run them."""

    enabled: bool = True
    """Whether requests may set `background: true`, or ask that their response outlives them; off, that is a 400."""
    at_once: Annotated[int, Meta(ge=0, le=100_000)] = 32
    """Background responses that this process runs at once; 0: none, others do."""
    queue: Annotated[int, Meta(ge=1)] = 1000
    """Background responses that may wait, over all processes; beyond, requests get a 429."""
    per_owner: Annotated[int, Meta(ge=1)] | None = None
    """Background responses of one owner that run at once, over all processes. Null: no limit. The owner with the fewest
    running comes first in any case."""
    attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    """Processes that may die during a run before it fails."""
    lease: Annotated[float, Meta(ge=1, le=3600)] = 20.0
    """Seconds without a heartbeat after which a process counts as dead, and others take over its runs. A single process
    with SQLite needs no lease."""
    keep_log: Annotated[float, Meta(ge=0, le=86400 * 365)] = 604800.0
    """Seconds that the events of an ended response can be replayed. The response itself stays."""
    on_disconnect: OnDisconnect = "cancel"
    """What happens to a stored response when its client disconnects: it is cancelled, or continues. A request chooses
    by the header `Antwort-On-Disconnect`. A response that is not stored is cancelled; a background one continues."""
    log_bytes: Annotated[int, Meta(ge=0, le=64 * 2**20)] = 4 * 2**20
    """Bytes of a foreground stream that stay in memory until its end, for replay; a longer stream cannot be
    replayed."""


class EngineSettings(LoopSettings):
    """All settings of an engine."""

    background: BackgroundSettings = BackgroundSettings()

    limits: Limits = Limits()
    tool_limits: ToolLimits = ToolLimits()
    default_model: str | None = None
    idempotency: Annotated[float, Meta(ge=0, le=604800)] = 86400.0
    """Seconds that an idempotency key is stored; 0: keys are ignored."""
    hosted: Mapping[str, HostedPolicy] = {}
    max_in_prompt: Annotated[int, Meta(ge=1)] = 64
    """Tools in one prompt; beyond, the model searches for those of servers."""
    approval_time: Annotated[float, Meta(gt=0, le=86400 * 365)] = 86400.0
    """Seconds that a call waits for the client's approval."""


def checked(settings: EngineSettings) -> EngineSettings:
    """Return the settings, validated. Raises `TypeError` or `ValueError` for the first fault."""
    if not isinstance(settings, EngineSettings):
        raise TypeError(f"The settings of an engine are EngineSettings, not {type(settings).__name__}.")
    try:
        valid: EngineSettings = convert(msgspec.to_builtins(settings), type(settings), "")
    except InvalidField as fault:
        raise ValueError(f"EngineSettings: {fault.message}") from fault
    if valid.strict and valid.requires_action == "event":
        raise ValueError("EngineSettings: requires_action cannot be `event` where strict is on: the standard has none.")
    if valid.background.on_disconnect == "continue" and not valid.background.enabled:
        raise ValueError("EngineSettings: on_disconnect cannot be `continue` where the background is off.")
    return valid
