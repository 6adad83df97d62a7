"""The plan: the request with every question answered before the first inference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    """A server's call that was left open, and the tools and the policy it was made under."""

    call: OpenCall
    toolbox: Toolbox
    is_parallel: bool = True
    refusal: str | None = None
    """Why it is answered with an error instead of being run."""
    silence: str | None = None
    """Why it was approved and cannot be run now, if nothing else keeps it from that."""
    asked_by: str | None = None
    """The stored response that asked for it."""
    is_declined: bool = False
    """Whether this request declines it for good: no other follow-up may run it."""
    asks_again: bool = False
    """Whether its approval is asked for once more, because the tool has changed since: then it is not run."""


class History(msgspec.Struct, frozen=True):
    """All that was said before. A stretch is what stands together: an input, or the items of one turn."""

    stretches: tuple[tuple[InputItem, ...], ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    inputs: frozenset[int] = frozenset()
    """Which of the stretches clients have put together; of the others each is one turn for certain."""
    kept: frozenset[int] = frozenset()
    """Which of those are a conversation: what was compacted in it stands there, too."""
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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    request: CreateRequest
    identity: Identity
    settings: EngineSettings
    response: Response
    """The response as it starts: `in_progress`, every setting echoed as in force."""
    toolbox: Toolbox
    capabilities: Capabilities = Capabilities()
    history: History = History()
    listings: tuple[McpListTools, ...] = ()
    """What the servers that the request names offer, to be shown first."""
    checks: Checks = msgspec.field(default_factory=Checks)
    """What the inputs of free-form tools are held against their grammars with."""
    meter: TokenEstimator | None = None
    """What tells how many tokens an inference has."""
    sealed: SealedItems | None = None
    """Seals what is given out and stored; None: compactions are not opened, credentials not stored, and the ids of
    approval requests prove nothing."""
    compacts: bool = False
    """Whether nothing is answered, and what was said is summed up instead."""
    call_records: CallRecords | None = None
    """The record of the leftovers' calls; None without leftovers."""
    asked_elsewhere: frozenset[str] = frozenset()
    """Approval requests that another process has shown for this response: how their tools looked then is not known."""
    clock: Callable[[], float] = time.time
    deadline: float | None = None
    """When the response has to be done, by the clock of the event loop; None: its time begins with its run."""
    lock: LockRequest | None = None
    """The lock of its conversation, held until the end of the run is on record."""
    reader: HistoryReader | None = None
    """What was admitted into memory for its history, as long; None: it is small."""
    is_durable: bool = False
    """Whether another process continues the run when this one dies."""

    def release(self) -> None:
        """Let the next request into the conversation, where there is one, and the next history into memory."""
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

    @property
    def begins_otherwise(self) -> bool:
        """Whether something else than an inference comes first, or in its place."""
        return self.request.generate is False or self.compacts or bool(self.history.leftovers)

    @property
    def compact_threshold(self) -> int | None:
        """Tokens of context from which on it is compacted before the model is asked; None: it is not. So many as the
        context does not have would never come together.
        """
        for entry in self.request.context_management or ():
            if entry.type == "compaction":
                context, asked = self.capabilities.context_length, entry.compact_threshold
                if context is None or (asked and self.capabilities.more_may_fit):
                    return asked or None
                return min(asked or context, context * 3 // 4)
        return None

    @property
    def budget(self) -> Budget:
        """What the response may take."""
        return budget_of(self.request, self.settings)

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        return self.history.leftovers

    @property
    def may_be_eager(self) -> bool:
        """Whether calls may begin while their turn is still being written."""
        return self.settings.eager and self.toolbox.may_run

    @property
    def reasoning_style(self) -> Literal["text", "summary"]:
        options = self.request.reasoning
        if options is not None and (options.summary or options.generate_summary):
            return "summary"
        return "text"

    def shown(self, name: str, run: Run) -> Shown:
        """How a call to `name` shows now: never as a client's call when the client must not run it."""
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
        """How a call to `name` shows that is refused whatever it is."""
        definition = self.toolbox.tools.get(name)
        if definition is not None and definition.kind not in OWN:
            return Shown(definition.own_name, definition.server_label or HOUSE_LABEL)
        if self._refuses_as_server or definition is None:
            return Shown(name, HOUSE_LABEL if self._refuses_as_server else None)
        return Shown(definition.own_name, namespace=definition.namespace)

    def calls_left(self, run: Run) -> int:
        """How many calls it may still run. Those that wait for the client's approval count."""
        asked = [*map(type, run.response.output)].count(McpApprovalRequest)
        return max(0, self.budget.calls - run.calls_run - asked)

    @property
    def _refuses_as_server(self) -> bool:
        """The standard knows no `mcp_call`: under the strict setting a refused call is a function call with output."""
        return self.settings.refused_calls == "mcp_call" and not self.settings.strict

    def _fits(self, definition: ToolDefinition, run: Run) -> Callable[[str], bool] | None:
        """What the input of a free-form tool is held against, where nobody else does: once, then the client has it."""
        grammar = definition.grammar
        if grammar is None or is_enforced(definition) or not self._refuses_as_server:
            return None
        may_ask_again = self.request.choice_mode != "none" and run.turns + 1 < self.budget.turns
        if not may_ask_again or _has_failed(definition, run):
            return None
        return partial(self._is_right, grammar)

    def _is_right(self, grammar: Grammar, text: str) -> bool:
        return self.checks.mismatch(grammar, text) is None


def _has_failed(definition: ToolDefinition, run: Run) -> bool:
    """Whether an input of the tool was refused in this response already."""
    return any(
        isinstance(item, McpCall)
        and item.server_label == HOUSE_LABEL
        and item.name == definition.name
        and item.error is not None
        for item in run.output
    )


# ---- the response as it starts ----


def draft_response(request: CreateRequest, model: str, settings: EngineSettings) -> Response:
    """Every setting echoed as in force; what was left open has the standard's default."""
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
    """Those that are not None, by their names."""
    return dict(compress(zip(names, values, strict=True), map(is_not, values, repeat(None))))


def _in_force(request: CreateRequest) -> ToolChoice:
    """The choice with the allowed list that holds, in whichever form it came."""
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
