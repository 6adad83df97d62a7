"""Items become chat messages, tools become chat tools. Derived anew for each inference; there is no second list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpCall,
    McpListTools,
    Message,
    OutputItem,
    Reasoning,
)
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.engine.chosen import forced_names
from antwort.engine.deferred import in_prompt
from antwort.engine.draft import Run
from antwort.engine.memory import Said, since_compaction
from antwort.engine.naming import OWN
from antwort.engine.plan import Plan
from antwort.engine.recap import recap_of
from antwort.engine.results import results_of
from antwort.engine.shortening import noted
from antwort.engine.steps import choice_for, tokens_left
from antwort.engine.stops import closing, notice
from antwort.engine.transcript import Transcript
from antwort.errors import InvalidField
from antwort.providers.base import (
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
)
from antwort.tools.base import ToolDefinition
from antwort.tools.schemas.cleaning import clean


def chat_request(run: Run, plan: Plan) -> ChatRequest:
    """The next inference."""
    request = plan.request
    offered, tools = ([], []) if closing(run, plan) else _offered(run, plan)
    limit = _given(tokens_left(run, plan))
    is_whole = plan.capabilities.max_tokens_field == "max_completion_tokens"
    return replace(
        _always(plan),
        messages=messages(run, plan),
        tools=tools or UNSET,
        tool_choice=_chat_choice(run, plan, offered) if tools else UNSET,
        parallel_tool_calls=_given(request.parallel_tool_calls) if tools else UNSET,
        max_tokens=UNSET if is_whole else limit,
        max_completion_tokens=limit if is_whole else UNSET,
    )


def _always(plan: Plan) -> ChatRequest:
    """What is the same in each inference."""
    known: ChatRequest | None = plan.memo.get("request")
    if known is None:
        known = plan.memo["request"] = _parameters_of(plan)
    return known


def _parameters_of(plan: Plan) -> ChatRequest:
    request, capabilities = plan.request, plan.capabilities
    wants_logprobs = bool(request.top_logprobs) or "message.output_text.logprobs" in (request.include or ())
    return ChatRequest(
        model=plan.response.model,
        messages=[],
        stream=True if request.stream else UNSET,
        temperature=_given(request.temperature),
        top_p=_given(request.top_p),
        presence_penalty=_given(request.presence_penalty),
        frequency_penalty=_given(request.frequency_penalty),
        reasoning_effort=UNSET if request.reasoning is None else _given(request.reasoning.effort),
        response_format=_response_format(plan),
        logprobs=True if wants_logprobs else UNSET,
        top_logprobs=_given(request.top_logprobs) if wants_logprobs else UNSET,
        prompt_cache_key=_given(request.prompt_cache_key) if capabilities.prompt_cache_key else UNSET,
        verbosity=_given(request.text.verbosity) if request.text and capabilities.verbosity else UNSET,
        user=_given(request.user),
    )


def _given(value: Any) -> Any:
    """Unset parameters are not sent."""
    return UNSET if value is None else value


# ---- tools ----


def offered_tools(run: Run, plan: Plan) -> list[ToolDefinition]:
    """The tools that the next inference is told of: all, or what was found so far of those that are too many."""
    if not plan.toolbox.deferred:
        return [*plan.toolbox.tools.values()]
    return in_prompt(plan.toolbox, all_said(run, plan).stretches, plan.settings.max_in_prompt)


def _offered(run: Run, plan: Plan) -> tuple[list[ToolDefinition], list[ChatTool]]:
    """They are the same in each inference unless some have to be found first."""
    known: tuple[list[ToolDefinition], list[ChatTool]] | None = plan.memo.get("tools")
    if known is None or plan.toolbox.deferred:
        offered = offered_tools(run, plan)
        known = plan.memo["tools"] = offered, [_chat_tool(tool) for tool in offered]
    return known


def _chat_tool(tool: ToolDefinition) -> ChatTool:
    return ChatTool(
        function=ChatToolFunction(
            name=tool.name,
            description=_given(tool.description),
            parameters=_parameters(tool),
            strict=_given(tool.strict),
        )
    )


def _parameters(tool: ToolDefinition) -> dict[str, Any]:
    """Of the request's own tools as they are: a client knows its model. Servers write theirs for any."""
    if tool.parameters is None:
        return {"type": "object", "properties": {}}
    return tool.parameters if tool.kind in OWN else clean(tool.parameters)


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
        if not toolbox.deferred.isdisjoint(forced):  # what is meant may have to be found first
            meant = []
        choice = "required"
    if meant and plan.capabilities.allowed_tools and choice != "none":
        named = [_named(name) for name in meant]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": named}}
    return UNSET if choice == "auto" else choice  # a backend with tools takes auto by itself


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _response_format(plan: Plan) -> dict[str, Any] | UnsetType:
    text = plan.request.text
    if text is None or text.format.type == "text":
        return UNSET
    if text.format.type == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": text.format.name, "schema": text.format.schema}
    if text.format.description is not None:
        schema["description"] = text.format.description
    if text.format.strict is not None:
        schema["strict"] = text.format.strict
    return {"type": "json_schema", "json_schema": schema}


# ---- messages ----


def messages(run: Run, plan: Plan) -> list[ChatMessage]:
    """The instructions of the request and of its tool servers, then all that was said, oldest first."""
    said = _told(run, plan)
    words = notice(run, plan)
    return said if words is None else noted(said, words)


def messages_of(said: Said, plan: Plan) -> list[ChatMessage]:
    return _conversation(said, plan).whole()


def _conversation(said: Said, plan: Plan) -> Transcript:
    conversation = Transcript(plan.capabilities, plan.toolbox, results_of(said.stretches, plan.history.fates))
    if told := "\n\n".join(filter(None, (plan.request.instructions, *plan.toolbox.instructions))):
        conversation.messages.append(ChatMessage(role="system", content=told))
    for item in said.instructions:
        conversation.add(item)
    conversation.recap = recap_of(said.summary) if said.summary else ""
    for at, stretch in enumerate(said.stretches):
        conversation.is_input = at in said.inputs
        for item in stretch:
            conversation.add(item)
        conversation.flush()
    conversation.is_input = False
    return conversation


# What was translated for an earlier inference is kept, and gone on from: turns that have ended do not change. It comes
# to the same as to translate all of it, and is left where what is new might say something about what is old.


class _Told(msgspec.Struct):
    conversation: Transcript
    ends: tuple[int, ...]
    """Of the turns of the response that are in it."""
    items: tuple[OutputItem, ...]
    """The output up to there."""


def _told(run: Run, plan: Plan) -> list[ChatMessage]:
    told = _told_before(run, plan)
    *turns, rest = _own_stretches(run, 0 if told is None else len(told.ends))
    if told is None or not (_OWN_NEWS.issuperset(map(type, chain(*turns))) and _SILENT.issuperset(map(type, rest))):
        return messages_of(all_said(run, plan), plan)
    if turns:
        told.conversation.go_on(turns, results_of((*turns, rest), {}))
        told.ends, told.items = run.turn_ends, run.output[: run.turn_ends[-1]]
    return [*told.conversation.messages]


def _told_before(run: Run, plan: Plan) -> _Told | None:
    """None where all of it has to be looked at anew, each time."""
    told: _Told | None = plan.memo.get("told")
    if told is None:
        history = since_compaction(plan.history.stretches, plan.history.inputs, plan.memories, plan.history.kept)
        if plan.history.leftovers or history.is_compacted:
            return None
        told = plan.memo["told"] = _Told(_conversation(history, plan), (), ())
    ends, items = told.ends, told.items
    return told if run.turn_ends[: len(ends)] == ends and run.output[: len(items)] == items else None


_SILENT = frozenset({McpListTools, FunctionCallOutput, CustomToolCallOutput})
"""What comes to no message by itself."""
_OWN_NEWS = _SILENT | {Message, Reasoning, FunctionCall, CustomToolCall, McpCall}
"""What speaks for itself alone: compactions and requests for approval do not."""


def all_said(run: Run, plan: Plan) -> Said:
    """What counts of the history and of the turns so far."""
    stretches = [*plan.history.stretches, *_own_stretches(run)]
    return since_compaction(stretches, plan.history.inputs, plan.memories, plan.history.kept)


def check_said(plan: Plan) -> None:
    """Refuse what comes to no message at all: backends answer that in words of their own, or with an invention."""
    said = (item for stretch in plan.history.stretches for item in stretch)
    if any(isinstance(item, Message) and item.role != "assistant" for item in said):
        return
    if not messages(Run(plan.response), plan):
        problem = "says nothing to the model, and there are no instructions and no earlier response."
        raise InvalidField("input", problem, code="missing_required_parameter")


def _own_stretches(run: Run, first: int = 0) -> list[Sequence[InputItem]]:
    """The turns so far, from the `first` on, and what came after the last. What was abandoned is said anew."""
    ends = (*run.turn_ends[first:], len(run.output))
    starts = (run.turn_ends[first - 1] if first else 0, *ends[:-1])
    return [run.said(start, end) for start, end in zip(starts, ends, strict=True)]
