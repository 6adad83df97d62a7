"""The plan: the request with every question answered before the first inference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Any, Literal

import msgspec

from antwort.api.items import (
    InputItem,
    McpApprovalRequest,
    McpCall,
    McpListTools,
)
from antwort.api.requests import CreateRequest, ReasoningOptions, TextOptions
from antwort.api.resources import Approval
from antwort.api.responses import ConversationRef, ReasoningEcho, Response
from antwort.api.tools import AllowedTools, ToolChoice, echo_choice, echo_tool
from antwort.api.wire import UNSET, Plain
from antwort.engine.context.compaction_item import Memories
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.history.approvals import ApprovalIds, is_asked
from antwort.engine.history.call_records import CallRecords
from antwort.engine.history.calls import PendingCall
from antwort.engine.history.credentials import Credentials
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.loop.budgets import Budget, budget_of, most_calls
from antwort.engine.loop.call_display import Shown
from antwort.engine.loop.fold import Run
from antwort.engine.prompt.declared_tools import is_enforced
from antwort.engine.prompt.hosted_tools import in_force
from antwort.engine.prompt.tool_names import OWN
from antwort.engine.runs.conversation_lock import LockRequest
from antwort.engine.settings import EngineSettings
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.providers.base import Capabilities
from antwort.storage.base import CallClaim, Decision, Link
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.grammar import Checks, Grammar
from antwort.tools.routing import Route, Toolbox, route
from antwort.tools.search import is_search

OpenCall = PendingCall


class Leftover(msgspec.Struct, frozen=True):
    """A call of an earlier response that this one settles, with the tools and the policy it was made under."""

    call: OpenCall
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
    brought_approvals: tuple[Approval, ...] = ()
    """The decided approvals that no stored response has asked for, to be stored with the decisions."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A request with every question answered before the first inference."""

    request: CreateRequest
    identity: Identity
    settings: EngineSettings
    response: Response
    """The response as it starts: `in_progress`, with all settings in force."""
    toolbox: Toolbox
    capabilities: Capabilities = Capabilities()
    history: History = History()
    listings: tuple[McpListTools, ...] = ()
    """The tool lists of the servers that the request names, to be shown first."""
    checks: Checks = msgspec.field(default_factory=Checks)
    """Checks the inputs of free-form tools against their grammars."""
    meter: TokenEstimator | None = None
    """Counts the tokens of an inference."""
    sealed: SealedItems | None = None
    """Seals what is given out and stored; None: compactions are not opened, credentials not stored, and the ids of
    approval requests prove nothing."""
    compacts: bool = False
    """Whether the response is a summary of the history."""
    call_records: CallRecords | None = None
    """The record of the earlier calls that the response settles; None without any."""
    asked_elsewhere: frozenset[str] = frozenset()
    """Approval requests that another process has shown for this response: what their tools were is not known."""
    clock: Callable[[], float] = time.time
    deadline: float | None = None
    """When the response must have ended, by the clock of the event loop; None: its time begins with its run."""
    lock: LockRequest | None = None
    """The lock of its conversation, held until the end of the run is recorded."""
    reader: HistoryReader | None = None
    """Holds the memory of its history as long; None: it is small."""
    is_durable: bool = False
    """Whether another process continues the run when this one dies."""

    def release(self) -> None:
        """Release the lock of the conversation, and the memory of the history."""
        if self.lock is not None:
            self.lock.release()
        if self.reader is not None:
            self.reader.release()

    @property
    def seal(self) -> Callable[[str], str] | None:
        """What seals the reasoning, if the request asks for that."""
        return None if self.sealed is None else self.sealed.seal_for(self.request)

    @property
    def memories(self) -> Memories | None:
        return None if self.sealed is None else self.sealed.memories

    @property
    def credentials(self) -> Credentials | None:
        return None if self.sealed is None else self.sealed.credentials

    @property
    def approval_ids(self) -> ApprovalIds | None:
        return None if self.sealed is None else self.sealed.approval_ids

    @cached_property
    def begins_otherwise(self) -> bool:
        """Whether the run begins with something else than an inference."""
        return self.request.generate is False or self.compacts or bool(self.history.leftovers)

    @cached_property
    def compact_threshold(self) -> int | None:
        """The tokens of context from which on it is compacted before an inference; None: never. It is at most three
        quarters of the context: more would never be reached.
        """
        for entry in self.request.context_management or ():
            if entry.type == "compaction":
                context, asked = self.capabilities.context_length, entry.compact_threshold
                if context is None or (asked and self.capabilities.more_may_fit):
                    return asked or None
                return min(asked or context, context * 3 // 4)
        return None

    @cached_property
    def budget(self) -> Budget:
        """The limits of the response."""
        return budget_of(self.request, self.settings)

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        return self.history.leftovers

    @property
    def may_be_eager(self) -> bool:
        """Whether calls may begin before their turn has ended."""
        return self.settings.eager and self.toolbox.may_run

    @property
    def reasoning_style(self) -> Literal["text", "summary"]:
        options = self.request.reasoning
        if options is not None and (options.summary or options.generate_summary):
            return "summary"
        return "text"

    def shown(self, name: str, run: Run) -> Shown:
        """Return how a call to `name` is shown: never as a client's call if the client must not run it."""
        way = route(name, self.toolbox)
        is_refused, is_clients = way in (Route.REJECTED, Route.UNKNOWN), way is Route.CLIENT
        definition = self.toolbox.tools.get(name)
        if definition is not None and way is Route.SERVER and definition.needs_approval:
            asks = partial(is_asked, self.calls_left(run))
            return Shown(definition.own_name, definition.server_label or HOUSE_LABEL, counts=True, asks=asks)
        if definition is not None and definition.kind not in OWN:
            label, counts = definition.server_label or HOUSE_LABEL, way is Route.SERVER and not is_search(definition)
            return Shown(definition.own_name, label, counts=counts)
        if is_refused and self._refuses_as_server:
            return Shown(name, HOUSE_LABEL)
        if definition is None:
            return Shown(name, is_clients=is_clients)
        if is_refused or definition.kind is not ToolKind.CUSTOM:
            own, is_ours = definition.own_name, way is Route.SERVER
            return Shown(own, namespace=definition.namespace, is_clients=is_clients, counts=is_ours)
        fits = self._fits(definition, run)
        return Shown(
            definition.own_name, namespace=definition.namespace, is_custom=True, is_clients=is_clients, fits=fits
        )

    def refused(self, name: str) -> Shown:
        """Return how a call to `name` is shown that is refused in any case."""
        definition = self.toolbox.tools.get(name)
        if definition is not None and definition.kind not in OWN:
            return Shown(definition.own_name, definition.server_label or HOUSE_LABEL)
        if self._refuses_as_server or definition is None:
            return Shown(name, HOUSE_LABEL if self._refuses_as_server else None)
        return Shown(definition.own_name, namespace=definition.namespace)

    def calls_left(self, run: Run) -> int:
        """Return how many calls the run may still make. Calls that wait for approval count as made."""
        asked = [*map(type, run.response.output)].count(McpApprovalRequest)
        return max(0, self.budget.calls - run.calls_run - asked)

    @property
    def _refuses_as_server(self) -> bool:
        """Under the strict setting a refused call is a function call with output: the standard has no `mcp_call`."""
        return self.settings.refused_calls == "mcp_call" and not self.settings.strict

    def _fits(self, definition: ToolDefinition, run: Run) -> Callable[[str], bool] | None:
        """Return the check of a free-form tool's input, unless the backend makes it. A tool has one second try: then
        the client gets the input as it is.
        """
        grammar = definition.grammar
        if grammar is None or is_enforced(definition) or not self._refuses_as_server:
            return None
        may_ask_again = self.request.choice_mode != "none" and run.turns + 1 < self.budget.turns
        if not may_ask_again or _was_refused(definition, run):
            return None
        return partial(self._is_right, grammar)

    def _is_right(self, grammar: Grammar, text: str) -> bool:
        return self.checks.mismatch(grammar, text) is None


def _was_refused(definition: ToolDefinition, run: Run) -> bool:
    """Return whether an input of the tool was refused in this response already."""
    return any(
        isinstance(item, McpCall)
        and item.server_label == HOUSE_LABEL
        and item.name == definition.name
        and item.error is not None
        for item in run.output
    )


# ---- the response as it starts ----


def draft_response(request: CreateRequest, model: str, settings: EngineSettings) -> Response:
    """Return the response as it starts, with all settings in force. The others have the standard's defaults."""
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        status="in_progress",
        model=model,
        tools=tuple([echo_tool(tool) for tool in in_force(request.tools, settings)]),
        tool_choice=echo_choice(_in_force(request)),
        text={"format": {"type": "text"}} if request.text is None else _echo_text(request.text),
        reasoning=None if request.reasoning is None else _echo_reasoning(request.reasoning),
        store=request.is_stored,
        background=bool(request.background),
        truncation=request.truncation or settings.truncation,
        conversation=UNSET if request.conversation is None else ConversationRef(request.conversation),
        service_tier=request.service_tier if request.service_tier not in (None, "auto") else "default",
        max_tool_calls=None if request.max_tool_calls is None else most_calls(request, settings),
        **given(_ECHOED, _echoed_of(request)),
    )


_ECHOED = (
    "previous_response_id",
    "instructions",
    "parallel_tool_calls",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "max_output_tokens",
    "max_turns",
    "deadline",
    "token_budget",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "user",
)
_echoed_of = attrgetter(*_ECHOED)


def given(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return the values that are not None, by their names."""
    return dict(compress(zip(names, values, strict=True), map(is_not, values, repeat(None))))


def _in_force(request: CreateRequest) -> ToolChoice:
    """Return the choice with the allowed list, in whichever form that came."""
    choice = request.choice_mode
    if request.allowed_tools is None or not isinstance(choice, str):
        return choice
    return AllowedTools(tools=request.allowed_tools, mode=choice)


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
