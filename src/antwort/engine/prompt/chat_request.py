"""Make the chat requests of a run: messages, tools and parameters of each inference. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

from antwort.api.decoding import Steps, at_once
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    McpListTools,
    Message,
    OutputItem,
    Reasoning,
)
from antwort.api.requests import TextFormat
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.engine.context.compaction_item import EffectiveHistory, since_compaction
from antwort.engine.context.message_text import TURNS_LEFT_OUT, noted, recap_of
from antwort.engine.history.calls import ITEMS_PER_STEP
from antwort.engine.history.turns import uninterrupted_steps
from antwort.engine.loop.fold import Run
from antwort.engine.loop.limits import closing, notice, tokens_left
from antwort.engine.loop.steps import choice_for
from antwort.engine.plan import History, Plan, given
from antwort.engine.prompt.deferred_tools import in_prompt
from antwort.engine.prompt.messages import Transcript
from antwort.engine.prompt.tool_choice import forced_names
from antwort.engine.prompt.tool_names import OWN
from antwort.errors import InvalidField
from antwort.providers.base import (
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
)
from antwort.schema.normalize import normalize
from antwort.tools.base import ToolDefinition


def chat_request(run: Run, plan: Plan) -> ChatRequest:
    """Return the next inference."""
    return at_once(Prompt(plan).request_steps(run))


class Prompt:
    """Make the chat requests of one run.

    The messages of an earlier inference are continued: turns that have ended do not change. Everything is translated
    again only if a new item may change the message of an earlier one; the result is the same.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._base: ChatRequest | None = None
        """What all inferences share."""
        self._transcript: Transcript | None = None
        """The messages up to the items of the ended turns."""
        self._turn_ends: tuple[int, ...] = ()
        self._items: tuple[OutputItem, ...] = ()

    def request_steps(self, run: Run) -> Steps[ChatRequest]:
        """Return the next inference, in pieces: the history may be long."""
        plan, toolbox = self._plan, self._plan.toolbox
        if self._base is None:
            self._base = _base_of(plan)
        changes: dict[str, Any] = {"messages": (yield from self.message_steps(run))}
        if plan.settings.final_answer and closing(run, plan) is not None:
            changes |= {"tools": UNSET, "parallel_tool_calls": UNSET}
        elif toolbox.tools:
            offered = [*toolbox.tools.values()]
            if toolbox.deferred:
                offered = in_prompt(toolbox, effective_history(run, plan).stretches, plan.settings.max_in_prompt)
                changes["tools"] = [*map(_chat_tool, offered)]
            if plan.request.tool_choice != "auto" or toolbox.allowed is not None or run.over_limit_turns:
                changes["tool_choice"] = _chat_choice(run, plan, offered)
        if (limit := tokens_left(run, plan)) is not None:
            is_whole = plan.capabilities.max_tokens_field == "max_completion_tokens"
            changes["max_completion_tokens" if is_whole else "max_tokens"] = limit
        return replace(self._base, **changes)

    def message_steps(self, run: Run) -> Steps[list[ChatMessage]]:
        """Return the instructions of the request and of its tool servers, then the conversation, oldest first."""
        plan = self._plan
        if self._transcript is None and not plan.history.leftovers:
            history = since_compaction(
                plan.history.stretches, plan.history.inputs, plan.sealed.memories, plan.history.kept
            )
            if not history.is_compacted:
                self._transcript = yield from conversation_steps(history, plan)
        if self._transcript is not None and self._can_continue(run):
            found = self._transcript.messages.copy()
        else:
            found = (yield from conversation_steps(effective_history(run, plan), plan)).whole()
        words = notice(run, plan)
        return found if words is None else noted(found, words)

    def _can_continue(self, run: Run) -> bool:
        """Add the turns since the last inference to the transcript. Return False if the run is another one, or has
        items that may change the messages of earlier ones.
        """
        assert self._transcript is not None
        output, ends, known = run.response.output, run.turn_ends, len(self._items)
        if not output and not known:
            return True
        turns = len(self._turn_ends)
        if output[:known] != self._items or ends[:turns] != self._turn_ends:
            return False
        if not _INDEPENDENT.issuperset(map(type, news := run.said(known) if run.abandoned else output[known:])):
            return False
        end = ends[-1] if ends else 0
        if (has_more := len(output) > end) and not _WITHOUT_MESSAGE.issuperset(map(type, run.said(end))):
            return False
        if (more := len(ends) - turns) > 0:
            is_one = more == 1 and not has_more
            said = (news,) if is_one else [run.said(*span) for span in pairwise((known, *ends[turns:]))]
            self._transcript.go_on(said, news)
            self._turn_ends, self._items = ends, output[:end] if has_more else output
        return True


_WITHOUT_MESSAGE = frozenset({McpListTools, FunctionCallOutput, CustomToolCallOutput})
"""Items that make no message by themselves."""
_INDEPENDENT = _WITHOUT_MESSAGE | {Message, Reasoning, FunctionCall, CustomToolCall, McpCall}
"""Items that change no message of earlier ones: compactions and requests for approval do."""


_SENT = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "user")
"""Parameters that are sent as the request has them."""
_sent_of = attrgetter(*_SENT)


def _base_of(plan: Plan) -> ChatRequest:
    """Return the request but for its messages, its choice, and the tools that must be found first."""
    request, capabilities, toolbox = plan.request, plan.capabilities, plan.toolbox
    wants_logprobs = bool(request.top_logprobs) or "message.output_text.logprobs" in (request.include or ())
    has_tools = bool(toolbox.tools)
    return ChatRequest(
        model=plan.response.model,
        messages=[],
        stream=True if request.stream else UNSET,
        reasoning_effort=UNSET if request.reasoning is None else _given(request.reasoning.effort),
        response_format=UNSET if request.text is None else _response_format(request.text.format),
        logprobs=True if wants_logprobs else UNSET,
        top_logprobs=_given(request.top_logprobs) if wants_logprobs else UNSET,
        prompt_cache_key=_given(request.prompt_cache_key) if capabilities.prompt_cache_key else UNSET,
        verbosity=_given(request.text.verbosity) if request.text and capabilities.verbosity else UNSET,
        tools=[*map(_chat_tool, toolbox.tools.values())] if has_tools and not toolbox.deferred else UNSET,
        parallel_tool_calls=_given(request.parallel_tool_calls) if has_tools else UNSET,
        **given(_SENT, _sent_of(request)),
    )


def _given(value: Any) -> Any:
    """Unset parameters are not sent."""
    return UNSET if value is None else value


# ---- tools ----


def _chat_tool(tool: ToolDefinition) -> ChatTool:
    """Return a tool: the request's own schemas unchanged, as a client knows its model, those of servers normalized."""
    parameters = {"type": "object", "properties": {}} if tool.parameters is None else tool.parameters
    return ChatTool(
        function=ChatToolFunction(
            name=tool.name,
            description=_given(tool.description),
            parameters=parameters if tool.kind in OWN or tool.parameters is None else normalize(parameters),
            strict=_given(tool.strict),
        )
    )


def _chat_choice(run: Run, plan: Plan, tools: Sequence[ToolDefinition]) -> str | dict[str, Any] | UnsetType:
    choice, toolbox = choice_for(run, plan), plan.toolbox
    if choice == "auto" and toolbox.allowed is None:
        return UNSET
    offered = frozenset(tool.name for tool in tools)
    meant = sorted((toolbox.allowed or frozenset()) & offered)
    if not isinstance(choice, str):
        forced = forced_names(choice, toolbox.tools, plan.settings)
        meant = [name for name in forced if name in offered and (toolbox.allowed is None or name in toolbox.allowed)]
        if len(meant) == 1 and toolbox.deferred.isdisjoint(forced):
            return _named(meant[0])
        if not toolbox.deferred.isdisjoint(forced):  # a forced tool may have to be found first
            meant = []
        choice = "required"
    if meant and plan.capabilities.allowed_tools and choice != "none":
        named = [_named(name) for name in meant]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": named}}
    return UNSET if choice == "auto" else choice  # a backend with tools takes auto by itself


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _response_format(form: TextFormat) -> dict[str, Any] | UnsetType:
    if form.type == "text":
        return UNSET
    if form.type == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": form.name, "schema": form.schema}
    if form.description is not None:
        schema["description"] = form.description
    if form.strict is not None:
        schema["strict"] = form.strict
    return {"type": "json_schema", "json_schema": schema}


# ---- messages ----


def messages(run: Run, plan: Plan) -> list[ChatMessage]:
    """Return the messages of the next inference."""
    return at_once(Prompt(plan).message_steps(run))


def conversation_steps(said: EffectiveHistory, plan: Plan) -> Steps[Transcript]:
    stretches = yield from uninterrupted_steps(said.stretches, said.inputs)
    conversation = Transcript(plan.capabilities, plan.toolbox, stretches, plan.history.placeholders)
    if sum(map(len, stretches)) > ITEMS_PER_STEP:
        yield from conversation.find_steps()
    if instructions := "\n\n".join(filter(None, (plan.request.instructions, *plan.toolbox.instructions))):
        conversation.messages.append(ChatMessage(role="system", content=instructions))
    if said.instructions:
        yield from conversation.add_steps(said.instructions, is_whole=False)
    if said.summary:
        conversation.recap = recap_of(said.summary)
    elif plan.history.is_cut and not said.is_compacted:
        conversation.recap = TURNS_LEFT_OUT
    for at, stretch in enumerate(stretches):
        conversation.is_input = at in said.inputs
        yield from conversation.add_steps(stretch)
    conversation.is_input = False
    return conversation


def effective_history(run: Run, plan: Plan) -> EffectiveHistory:
    """Return the history and the turns so far, from the last compaction on."""
    turns = [run.said(*span) for span in pairwise((0, *run.turn_ends, len(run.output)))]
    stretches = [*plan.history.stretches, *turns]
    return since_compaction(stretches, plan.history.inputs, plan.sealed.memories, plan.history.kept)


def is_certainly_heard(history: History) -> bool:
    """Return whether an item comes to a message for certain, whatever stands beside it."""
    for item in chain.from_iterable(history.stretches):
        if isinstance(item, Message) and item.role != "assistant":
            return True
        if isinstance(item, FunctionCall | CustomToolCall | McpCall) and item.status != "incomplete":
            return True
    return False


def emptiness_steps(plan: Plan) -> Steps[None]:
    """Raise `InvalidField` for an input that makes no message: backends answer it with an error or an invention."""
    if not (yield from Prompt(plan).message_steps(Run(plan.response))):
        problem = "says nothing to the model, and there are no instructions and no earlier response."
        raise InvalidField("input", problem, code="missing_required_parameter")
