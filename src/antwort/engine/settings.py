"""What an operator can set about the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antwort.api.limits import Limits
from antwort.api.validation import convert
from antwort.api.wire import Wire
from antwort.errors import InvalidField
from antwort.tools.limits import ToolLimits

_Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86400)]
_OrNone: TypeAlias = Annotated[float, Meta(ge=0, le=86400)]


class HostedPolicy(Wire):
    """What happens to tools of a type that nobody but OpenAI runs."""

    do: Literal["run", "drop", "refuse"] = "drop"
    """`run`: a toolset here takes their place. `drop`: the request goes on without. `refuse`: it is a 400."""
    toolset: str | None = None
    """With `run`: the label of the toolset whose tools take their place."""
    tools: tuple[str, ...] | None = None
    """With `run`: which of its tools; unset, all."""


class LoopSettings(Wire):
    """How responses are made."""

    max_turns: Annotated[int, Meta(ge=1, le=10000)] = 10
    """How often the model is asked for one response."""
    deadline: _Seconds = 600.0
    """Seconds a response may take from its start to its end."""
    max_tool_calls: Annotated[int, Meta(ge=1)] = 256
    """How many calls are run for one response; a request may set a lower limit."""
    token_budget: Annotated[int, Meta(ge=1)] = 5_000_000
    """Tokens that all inferences of one response may take together, read and written; a request may set fewer."""
    stuck_after: Annotated[int, Meta(ge=2, le=1000)] | None = 3
    """After so many turns in a row with the same calls and the same results, or with nothing but errors, the model is
    told that it gets nowhere. Null: never, and the response does not end for it either."""
    stuck_limit: Annotated[int, Meta(ge=0, le=10000)] = 10
    """After so many such turns in a row the response ends with the reason `stuck`, unless a turn limit comes first. 0:
    never."""
    final_answer: bool = False
    """When a limit is reached, ask the model once more, without tools, for what it has; the last permitted turn is that
    one."""
    eager: bool = True
    """Start a call as soon as its arguments are complete, while the model goes on, where nothing of the request is the
    client's to run or to approve."""
    mixed_turns: Literal["pause", "execute"] = "pause"
    """When the client's and the server's tools are called in one turn: hand all to the client, or run ours first."""
    requires_action: Literal["status", "event", "completed"] = "status"
    """How a response says that the client must act: status in `response.completed`, an event of its own, or not."""
    refused_calls: Literal["mcp_call", "function_call"] = "mcp_call"
    """How refused and unknown calls show."""
    unknown_tools: Literal["drop", "refuse"] = "drop"
    """What happens to tools of a type that nobody here runs."""
    strict: bool = False
    """Write the standard's names and shapes to the letter, where OpenAI's differ."""
    hold_back: _OrNone = 2.0
    """Seconds that `response.created` waits for the backend's headers, so that an early failure is an HTTP error."""
    keepalive: Literal["comment", "in_progress"] = "comment"
    """What is sent while nothing happens: a comment, or the event `response.in_progress` once more."""
    keepalive_interval: _Seconds = 15.0
    """Seconds of silence after which it is sent."""
    progress_interval: _Seconds | None = 20.0
    """While a tool works here: seconds without an event after which `response.in_progress` is sent once more. Some
    clients give up on a stream that brings no events, and comments are none. Null: never."""
    longest_silence: _Seconds | None = 60.0
    """Seconds without an event after which `response.in_progress` is sent once more in any case, whatever `keepalive`
    says. Null: never."""
    buffer_events: Annotated[int, Meta(ge=1)] = 1024
    """Events kept for a slow reader before the run waits for it."""
    buffer_bytes: Annotated[int, Meta(ge=1)] = 2**16
    """Characters of text in those events, about, before the run waits for it as well. An event that repeats a text
    counts it again, as it is written again."""
    truncation: Literal["disabled", "auto"] = "disabled"
    """What holds for requests that do not say: `auto` leaves out the oldest turns when the context would overflow,
    `disabled` refuses the request."""
    reserve: Annotated[int, Meta(ge=0)] = 1024
    """Tokens of the context that truncation keeps free for the answer, where a request sets no `max_output_tokens`; a
    quarter of the context at most."""
    compaction_model: str | None = None
    """The model that sums up conversations; unset, the one that the request names."""
    compaction_keep: Annotated[int, Meta(ge=0)] = 4096
    """Tokens of the latest turns that a compaction keeps word for word; a quarter of the context at most."""
    compaction_summary: Annotated[int, Meta(ge=64)] = 4096
    """The most tokens that the model may take for a summary, with what it thinks before; a quarter of the context at
    most."""
    conversation_wait: _OrNone = 60.0
    """Seconds that a request waits for its turn in a conversation that another request is adding to."""
    discovery: _Seconds = 10.0
    """Seconds that a tool server gets to say what it offers."""
    tool_grace: _OrNone = 0.8
    """Seconds that tools get to end when the run is told to stop."""


OnDisconnect: TypeAlias = Literal["cancel", "continue"]
"""What becomes of a stored response when its client leaves."""


class BackgroundSettings(Wire):
    """Responses that outlive their request, and the processes that make them."""

    enabled: bool = True
    """Whether requests may say `background: true`, or ask that their response goes on without them; off, that is a
    400."""
    at_once: Annotated[int, Meta(ge=0, le=100_000)] = 32
    """How many this process makes at once; 0: none, others do."""
    queue: Annotated[int, Meta(ge=1)] = 1000
    """How many may wait, over all processes; who comes then is told to come again later (429)."""
    per_owner: Annotated[int, Meta(ge=1)] | None = None
    """How many of one owner are made at once, over all processes; the others of that owner wait. Null: as many as there
    is room for; whoever has the fewest under way comes first in any case."""
    attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    """How many processes may be lost over a run before it has failed."""
    lease: Annotated[float, Meta(ge=1, le=3600)] = 20.0
    """Seconds without a sign of life after which a process counts as lost, and others take its runs over. One process
    alone, with SQLite, needs none."""
    keep_log: Annotated[float, Meta(ge=0, le=86400 * 365)] = 604800.0
    """Seconds that the events of a response that has ended can be read again with their numbers. The response itself
    stays."""
    on_disconnect: OnDisconnect = "cancel"
    """What becomes of a stored response when the client leaves its stream: it ends, or is made to its end. A request
    can ask for either by the header `Antwort-On-Disconnect`. What is not stored ends; what is in the background goes
    on."""
    log_bytes: Annotated[int, Meta(ge=0, le=64 * 2**20)] = 4 * 2**20
    """How much of what a foreground stream has sent is kept in memory until its end, for those who come back to it; of
    a longer one nothing can be read again."""


class EngineSettings(LoopSettings):
    """All that the engine is told."""

    background: BackgroundSettings = BackgroundSettings()

    limits: Limits = Limits()
    tool_limits: ToolLimits = ToolLimits()
    default_model: str | None = None
    idempotency: Annotated[float, Meta(ge=0, le=604800)] = 86400.0
    """Seconds that an idempotency key is remembered; 0: none is."""
    hosted: Mapping[str, HostedPolicy] = {}
    max_in_prompt: Annotated[int, Meta(ge=1)] = 64
    """How many tools the model is told of at once; beyond, it looks for those of servers."""
    approval_time: Annotated[float, Meta(gt=0, le=86400 * 365)] = 86400.0
    """Seconds that a call waits for the client's approval."""


def checked(settings: EngineSettings) -> EngineSettings:
    """The settings, held against their types and bounds. Raises `TypeError` or `ValueError`, naming what is wrong."""
    if not isinstance(settings, EngineSettings):
        raise TypeError(f"The settings of an engine are EngineSettings, not {type(settings).__name__}.")
    try:
        held: EngineSettings = convert(msgspec.to_builtins(settings), type(settings), "")
    except InvalidField as fault:
        raise ValueError(f"EngineSettings: {fault.message}") from fault
    if held.strict and held.requires_action == "event":
        raise ValueError("EngineSettings: requires_action cannot be `event` where strict is on: the standard has none.")
    if held.background.on_disconnect == "continue" and not held.background.enabled:
        raise ValueError("EngineSettings: on_disconnect cannot be `continue` where the background is off.")
    return held
