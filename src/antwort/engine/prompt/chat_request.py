"""Make the chat requests of a run: messages, tools and parameters of each inference. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

from antwort.api.decoding import Steps, at_once
from antwort.api.events import Span
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
)
from antwort.api.requests import TextFormat
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.engine.context.compaction_item import EffectiveHistory, since_compaction
from antwort.engine.context.message_text import TURNS_LEFT_OUT, insert_recap, noted, recap_of
from antwort.engine.history.calls import CALL_TYPES
from antwort.engine.history.turns import uninterrupted_steps
from antwort.engine.loop.fold import Run
from antwort.engine.loop.limits import closing, notice, tokens_left
from antwort.engine.loop.steps import choice_for
from antwort.engine.plan import History, Plan
from antwort.engine.prompt.messages import Results, Transcript, result_steps
from antwort.engine.prompt.tool_choice import forced_names
from antwort.engine.prompt.tool_names import OWN
from antwort.engine.prompt.toolbox import in_prompt
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

    The history, and the turns that have ended, are translated once. Everything is translated again only where a new
    item may change the message of an earlier one; the result is the same.
    """

    def __init__(self, plan: Plan) -> None:
        request, capabilities, tools = plan.request, plan.capabilities, plan.toolbox.tools
        wants_logprobs = bool(request.top_logprobs) or "message.output_text.logprobs" in (request.include or ())
        self._plan = plan
        self._base = ChatRequest(
            model=plan.response.model,
            messages=[],
            stream=True if request.stream else UNSET,
            reasoning_effort=UNSET if request.reasoning is None else _given(request.reasoning.effort),
            response_format=UNSET if request.text is None else _response_format(request.text.format),
            logprobs=True if wants_logprobs else UNSET,
            top_logprobs=_given(request.top_logprobs) if wants_logprobs else UNSET,
            prompt_cache_key=_given(request.prompt_cache_key) if capabilities.prompt_cache_key else UNSET,
            verbosity=_given(request.text.verbosity) if request.text and capabilities.verbosity else UNSET,
            tools=[*map(_chat_tool, tools.values())] if tools and not plan.toolbox.deferred else UNSET,
            parallel_tool_calls=_given(request.parallel_tool_calls) if tools else UNSET,
            temperature=_given(request.temperature),
            top_p=_given(request.top_p),
            presence_penalty=_given(request.presence_penalty),
            frequency_penalty=_given(request.frequency_penalty),
            user=_given(request.user),
        )
        """What all inferences share."""
        self._transcript: Transcript | None = None
        self._turns = 0
        """How many turns of the run are in the transcript."""
        self._abandoned: tuple[Span, ...] = ()
        """The items that were left out of them."""

    def request_steps(self, run: Run) -> Steps[ChatRequest]:
        """Return the next inference, in pieces: the history may be long."""
        plan, toolbox, history = self._plan, self._plan.toolbox, self._plan.history
        if self._transcript is None and not history.leftovers:
            said = since_compaction(history.stretches, history.inputs, plan.sealed.memories, history.kept)
            self._transcript = yield from conversation_steps(said, plan)
        if self._transcript is None or (run.output and not (yield from self._turn_steps(run, self._transcript))):
            found = (yield from conversation_steps(effective_history(run, plan), plan)).messages
        else:
            found = self._transcript.messages.copy()
        words = notice(run, plan)
        changes: dict[str, Any] = {"messages": found if words is None else noted(found, words)}
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

    def _turn_steps(self, run: Run, transcript: Transcript) -> Steps[bool]:
        """Add the turns that have ended since the last inference. Return False if items may change the messages of
        earlier ones.
        """
        ends, known = run.turn_ends, self._turns
        start, end = ends[known - 1] if known else 0, ends[-1] if ends else 0
        if not known:
            self._abandoned = run.abandoned
        news = run.said(start)
        if run.abandoned != self._abandoned or not _INDEPENDENT.issuperset(map(type, news)):
            return False
        if not _WITHOUT_MESSAGE.issuperset(map(type, run.said(end))):
            return False
        if not _ANSWERED_APART.isdisjoint(map(type, news)):
            transcript.results = yield from result_steps((news,), {})
        for first, last in pairwise((start, *ends[known:])):
            yield from transcript.add_steps(run.said(first, last))
        self._turns = len(ends)
        return True


_ANSWERED_APART = frozenset({FunctionCall, CustomToolCall})
"""Calls whose results are other items."""
_WITHOUT_MESSAGE = frozenset({McpListTools, FunctionCallOutput, CustomToolCallOutput})
"""Items that make no message by themselves."""
_INDEPENDENT = _WITHOUT_MESSAGE | _ANSWERED_APART | {Message, Reasoning, McpCall}
"""Items that change no message of earlier ones: compactions and requests for approval do."""


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
            description=UNSET if tool.description is None else tool.description,
            parameters=parameters if tool.kind in OWN or tool.parameters is None else normalize(parameters),
            strict=UNSET if tool.strict is None else tool.strict,
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


def conversation_steps(said: EffectiveHistory, plan: Plan) -> Steps[Transcript]:
    """Return the instructions of the request and of its tool servers, then the conversation, oldest first."""
    stretches, results, placeholders = said.stretches, Results(), plan.history.placeholders
    if not CALL_TYPES.isdisjoint(map(type, chain.from_iterable(stretches))):
        stretches = yield from uninterrupted_steps(stretches, said.inputs)
        results = yield from result_steps(stretches, placeholders)
    found = Transcript(capabilities=plan.capabilities, toolbox=plan.toolbox, results=results, placeholders=placeholders)
    if instructions := "\n\n".join(filter(None, (plan.request.instructions, *plan.toolbox.instructions))):
        found.messages.append(ChatMessage(role="system", content=instructions))
    if said.instructions:
        yield from found.add_steps(said.instructions)
    for at, stretch in enumerate(stretches):
        yield from found.add_steps(stretch, is_input=at in said.inputs)
    if said.summary:
        insert_recap(found.messages, recap_of(said.summary))
    elif plan.history.is_cut and not said.is_compacted:
        insert_recap(found.messages, TURNS_LEFT_OUT)
    return found


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
    if not (yield from Prompt(plan).request_steps(Run(plan.response))).messages:
        if not (plan.request.input or plan.request.previous_response_id or plan.request.conversation):
            raise plan.request.missing("input", "Send text or items, or continue with 'previous_response_id'.")
        problem = "says nothing to the model, and there are no instructions and no earlier response."
        raise InvalidField("input", problem, code="missing_required_parameter")
