"""The plan: the request with every question answered before the first inference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from antwort.api.items import InputItem, McpListTools
from antwort.api.requests import CreateRequest, ReasoningOptions, TextOptions
from antwort.api.resources import Approval
from antwort.api.responses import ConversationRef, ReasoningEcho, Response
from antwort.api.tools import AllowedTools, echo_choice, echo_tool
from antwort.api.wire import UNSET, Plain
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.history.call_records import CallRecords
from antwort.engine.history.calls import PendingCall
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.prompt.declared_tools import in_force
from antwort.engine.runs.conversation_lock import LockRequest
from antwort.engine.settings import EngineSettings
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.providers.base import Capabilities
from antwort.storage.base import CallClaim, Decision, Link
from antwort.tools.routing import Toolbox


class Leftover(msgspec.Struct, frozen=True):
    """A call of an earlier response that this one settles, with the tools and the policy it was made under."""

    call: PendingCall
    toolbox: Toolbox
    is_parallel: bool = True
    refusal: str | None = None
    """Why it is answered with an error instead of being run."""
    silence: str | None = None
    """Why an approved call cannot be run now: its server does not answer."""
    asked_by: str | None = None
    """The stored response that asked for it."""
    is_declined: bool = False
    """Whether this request declines it for good: no other follow-up may run it."""
    asks_again: bool = False
    """Whether its approval is asked for once more, because the tool has changed since: then it is not run."""


class History(msgspec.Struct, frozen=True):
    """The items before a response, and its input. A stretch holds items that belong together: an input, or one turn."""

    stretches: tuple[tuple[InputItem, ...], ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    inputs: frozenset[int] = frozenset()
    """The stretches that clients have put together. Each of the others is one turn for certain."""
    kept: frozenset[int] = frozenset()
    """Those of them that are a conversation: it still holds the items before a compaction."""
    answered: tuple[CallClaim, ...] = ()
    """Claims on open calls of stored responses that the client has answered itself, with its results."""
    placeholders: Mapping[str, str] = {}
    """What the model reads in place of the results of calls that this response does not settle, by their ids."""
    is_cut: bool = False
    """Whether its beginning is missing, because it is too large."""
    chain: tuple[Link, ...] = ()
    """The earlier responses that the request continues, oldest first, as they are stored."""
    decisions: tuple[Decision, ...] = ()
    """The decisions of the request about calls that wait for approval, to be stored when the run begins."""
    unstored_approvals: tuple[Approval, ...] = ()
    """The decided approvals that no stored response has asked for, to be stored with the decisions."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much a response may take: what the operator allows, or what the request asks for where that is less."""

    turns: int
    calls: int
    """Calls that are run here."""
    tokens: int
    """Tokens read and written by all inferences."""
    seconds: float


def budget_of(request: CreateRequest, settings: EngineSettings) -> Budget:
    """Return the limits of a response. To allow more calls than the operator is no error: `max_tool_calls` is a field
    of the standard, and clients set it without knowing the server.
    """
    return Budget(
        turns=request.max_turns or settings.max_turns,
        calls=min(request.max_tool_calls or settings.max_tool_calls, settings.max_tool_calls),
        tokens=request.token_budget or settings.token_budget,
        seconds=request.deadline or settings.deadline,
    )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request with every question answered before the first inference."""

    request: CreateRequest
    identity: Identity
    settings: EngineSettings
    response: Response
    """The response as it starts: `in_progress`, with all settings in force."""
    budget: Budget
    toolbox: Toolbox
    sealed: SealedItems
    """Seals what is given out and stored."""
    estimator: TokenEstimator
    """Counts the tokens of an inference."""
    capabilities: Capabilities = Capabilities()
    history: History = History()
    listings: tuple[McpListTools, ...] = ()
    """The tool lists of the servers that the request names, to be shown first."""
    compacts: bool = False
    """Whether the response is a summary of the history."""
    compact_threshold: int | None = None
    """The tokens of context from which on it is compacted before an inference; None: never."""
    call_records: CallRecords | None = None
    """The record of the earlier calls that the response settles; None without any."""
    asked_elsewhere: frozenset[str] = frozenset()
    """Approval requests that another process has shown for this response: what their tools were is not known."""
    clock: Callable[[], float] = time.time
    deadline: float
    """When the response must have ended, by the clock of the event loop."""
    lock: LockRequest | None = None
    """The lock of its conversation, held until the end of the run is recorded."""
    reader: HistoryReader | None = None
    """Holds the memory of its history as long; None: it is small."""
    is_durable: bool = False
    """Whether another process continues the run when this one dies."""
    has_key: bool = False
    """Whether the run has an idempotency key: it may be read by several clients, and none of them holds it back."""

    def release(self) -> None:
        """Release the lock of the conversation, and the memory of the history."""
        if self.lock is not None:
            self.lock.release()
        if self.reader is not None:
            self.reader.release()


def compact_threshold(request: CreateRequest, capabilities: Capabilities) -> int | None:
    """Return the tokens of context from which on it is compacted. They are at most three quarters of the context: more
    would never be reached.
    """
    for entry in request.context_management or ():
        if entry.type == "compaction":
            context, asked = capabilities.context_length, entry.compact_threshold
            if context is None or (asked and capabilities.more_may_fit):
                return asked or None
            return min(asked or context, context * 3 // 4)
    return None


# ---- the response as it starts ----


def draft_response(request: CreateRequest, model: str, settings: EngineSettings) -> Response:
    """Return the response as it starts, with all settings in force. The others have the standard's defaults."""
    choice, calls = request.tool_choice, request.max_tool_calls
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        status="in_progress",
        model=model,
        tools=tuple(map(echo_tool, in_force(request.tools, settings))) if request.tools else (),
        tool_choice=choice if isinstance(choice, str) and request.allowed_tools is None else _echo_choice(request),
        text={"format": {"type": "text"}} if request.text is None else _echo_text(request.text),
        reasoning=None if request.reasoning is None else _echo_reasoning(request.reasoning),
        store=request.store is not False,
        background=bool(request.background),
        truncation=request.truncation or settings.truncation,
        conversation=UNSET if request.conversation is None else ConversationRef(request.conversation),
        service_tier=request.service_tier if request.service_tier not in (None, "auto") else "default",
        max_tool_calls=None if calls is None else min(calls, settings.max_tool_calls),
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        metadata={} if request.metadata is None else request.metadata,
        top_p=1.0 if request.top_p is None else request.top_p,
        temperature=1.0 if request.temperature is None else request.temperature,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        top_logprobs=request.top_logprobs or 0,
        user=UNSET if request.user is None else request.user,
        max_turns=request.max_turns or UNSET,
        deadline=request.deadline or UNSET,
        token_budget=request.token_budget or UNSET,
    )


def _echo_choice(request: CreateRequest) -> str | Plain:
    """Return the choice with the allowed list, in whichever form that came."""
    choice = request.choice_mode
    if request.allowed_tools is not None and isinstance(choice, str):
        return echo_choice(AllowedTools(tools=request.allowed_tools, mode=choice))
    return echo_choice(choice)


def _echo_text(text: TextOptions) -> Plain:
    form: dict[str, Any] = {"type": text.format.type}
    if text.format.type == "json_schema":
        form |= {
            "name": text.format.name,
            "description": text.format.description,
            "schema": text.format.schema,
            "strict": bool(text.format.strict),
        }
    return {"format": form} if text.verbosity is None else {"format": form, "verbosity": text.verbosity}


def _echo_reasoning(options: ReasoningOptions) -> ReasoningEcho:
    return ReasoningEcho(effort=options.effort, summary=options.summary or options.generate_summary)
