"""Items become chat messages, tools become chat tools. Derived anew for each inference; there is no second list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    Message,
    OpaqueItem,
    OutputItem,
    Reasoning,
)
from antwort.api.wire import UNSET, UnsetType, encode, replace
from antwort.engine.chosen import forced_names
from antwort.engine.declared import INPUT
from antwort.engine.deferred import in_prompt
from antwort.engine.draft import Run
from antwort.engine.foreign import foreign_call, foreign_result
from antwort.engine.memory import Said, since_compaction
from antwort.engine.naming import OWN, legal_name
from antwort.engine.pairs import as_call, call_id_of, is_bare, is_run, is_same, late_id, result_of
from antwort.engine.parts import chat_message, result_text, said_in
from antwort.engine.plan import Plan
from antwort.engine.recap import Recap, recalled, recap_of
from antwort.engine.results import Results, results_of
from antwort.engine.shortening import Pictures, noted
from antwort.engine.steps import choice_for, tokens_left
from antwort.engine.stops import closing, notice
from antwort.engine.toolbox import called_name, model_name
from antwort.engine.unwrapping import as_object
from antwort.errors import InvalidField
from antwort.providers.base import (
    Capabilities,
    ChatCall,
    ChatFunction,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
)
from antwort.tools.base import Output, ToolDefinition
from antwort.tools.routing import Toolbox
from antwort.tools.schemas.cleaning import clean

NO_RESULT = "No result was given for this call."


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


def _conversation(said: Said, plan: Plan) -> _Conversation:
    conversation = _Conversation(plan.capabilities, plan.toolbox, results_of(said.stretches, plan.history.fates))
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
    conversation: _Conversation
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
    """The turns so far, from the `first` on, and what came after the last. What a takeover closed as incomplete is said
    anew, so it is left out.
    """
    output = run.output
    ends = (*run.turn_ends[first:], len(output))
    starts = (run.turn_ends[first - 1] if first else 0, *ends[:-1])
    return [
        [item for item in output[start:end] if item.status != "incomplete"]
        for start, end in zip(starts, ends, strict=True)
    ]


class _Conversation:
    """Gathers what one turn of the model said into one assistant message, its results right behind it."""

    def __init__(self, capabilities: Capabilities, toolbox: Toolbox, results: Results) -> None:
        self.messages: list[ChatMessage] = []
        self.is_input = False
        """Whether a client put together what is added, which may be many turns."""
        self.recap = ""
        """What there is to say of all that was compacted, as long as it has not been said."""
        self._capabilities, self._toolbox, self._results = capabilities, toolbox, results
        self._seen: dict[str, McpCall] = {}
        self._begin()

    def _begin(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ChatCall] = []
        self._outputs: list[Output] = []
        self._has_results = False  # of the client's or this process's functions
        self._has_server_results = False
        self._has_open_calls = False  # to which a client's history has no result
        self._has_late_results = False  # of calls that the model hears of again

    def add(self, item: InputItem) -> None:
        match item:
            case Message(role="assistant"):
                self._next_turn()
                self._texts.append(said_in(item.content))
            case Message():
                self.flush()
                self._say(chat_message(item, self._capabilities))
            case Reasoning():
                self._next_turn()
                self._reasoning.append(_reasoning_of(item))
            case FunctionCall() if item.status != "incomplete":
                self._add_own(item.call_id, called_name(self._toolbox, item), item.arguments)
            case CustomToolCall() if item.status != "incomplete":
                arguments = encode({INPUT: item.input}).decode()
                self._add_own(item.call_id, called_name(self._toolbox, item), arguments)
            case McpCall() if item.status != "incomplete":
                self._add_server_call(item)
            case McpApprovalRequest() if item.status != "incomplete":
                self._add_request(item)
            case FunctionCallOutput() | CustomToolCallOutput():
                self._has_results = True
            case OpaqueItem():
                self._add_foreign(item)
            case _:
                pass  # lists of tools, decisions about calls and what this version does not know say nothing to a model

    def go_on(self, turns: Iterable[Sequence[InputItem]], results: Results) -> None:
        """What a response has said since."""
        self._results = results
        for turn in turns:
            for item in turn:
                self.add(item)
            self.flush()

    def flush(self) -> None:
        """The assistant message is whole: write it, and the results of its calls in the order of the calls."""
        if not (self._calls or self._texts or self._reasoning):
            self._has_results = self._has_server_results = self._has_open_calls = False
            return
        is_thought = self._capabilities.reasoning_field is not None and any(self._reasoning)
        if any(self._texts) or self._calls or is_thought:
            self._say_turn()
            images: list[dict[str, Any]] = []
            for call, output in zip(self._calls, self._outputs, strict=True):
                text, pictures = result_text(output, self._capabilities)
                images += pictures
                self.messages.append(ChatMessage(role="tool", tool_call_id=call.id, content=text))
            if images:
                self.messages.append(Pictures(role="user", content=images))
        self._begin()

    def _say_turn(self) -> None:
        """What the model hears of again goes to its last words, where it has said any since anybody else."""
        last = self.messages[-1] if self._has_late_results and self.messages else None
        if last is None or last.role != "assistant" or last.tool_calls is not UNSET or self._texts or self._reasoning:
            self._say(self._assistant())
        else:
            self.messages[-1] = replace(last, tool_calls=self._calls)

    def _say(self, message: ChatMessage) -> None:
        """What was compacted is recalled in the first message of the user: there are templates that take no two."""
        if self.recap and message.role not in ("system", "developer"):
            if message.role == "user":
                message = recalled(self.recap, message)
            else:
                self.messages.append(Recap(role="user", content=self.recap))
            self.recap = ""
        self.messages.append(message)

    def whole(self) -> list[ChatMessage]:
        return [*self.messages, Recap(role="user", content=self.recap)] if self.recap else self.messages

    def _next_turn(self) -> None:
        """What the model says after results belongs to another answer; so does what it says after calls that a client
        never answers, as it went on from them.
        """
        if self._has_results or self._has_server_results or self._has_open_calls or self._has_late_results:
            self.flush()

    def _leave_answered(self) -> None:
        """Servers' calls that are answered, and a call that was left to others after them, are of different turns."""
        if self._has_server_results and self.is_input:
            self.flush()

    def _add_own(self, call_id: str, name: str, arguments: str) -> None:
        self._leave_answered()
        self._add_call(call_id, name, arguments)

    def _add_server_call(self, item: McpCall) -> None:
        """A call that a later response ran shows twice; it was asked once."""
        call_id, result = call_id_of(item), result_of(item)
        if result is not None and self._results.is_late(item):
            self._add_late(item, call_id, result)
        elif self._is_another(call_id, item):
            self._seen[call_id] = item
            if result is None or any(call.id == call_id for call in self._calls):
                self._leave_answered()
            self._add_call(call_id, model_name(self._toolbox, item.server_label, item.name), item.arguments, result)
        # Servers' calls side by side stand one behind the other, each with its result. Where clients put it together,
        # words end the turn; of what is one turn for certain, they are a part, unless the call is of an earlier one.
        ends_turn = result is not None and (self.is_input or is_run(item))
        self._has_server_results = self._has_server_results or ends_turn

    def _add_request(self, item: McpApprovalRequest) -> None:
        asked = as_call(item)
        if call_id_of(asked) not in self._results.shown:
            self._add_server_call(asked)
            self._has_open_calls = self.is_input

    def _add_late(self, item: McpCall, call_id: str, result: Output) -> None:
        name = model_name(self._toolbox, item.server_label, item.name)
        self._add_call(late_id(call_id), name, item.arguments, result)
        self._has_late_results = True

    def _is_another(self, call_id: str, item: McpCall) -> bool:
        """Ids may repeat in a client's history: what asks something else, and has a result, is another call."""
        seen = self._seen.get(call_id)
        if seen is None:
            return True
        return self.is_input and not is_bare(seen) and not is_bare(item) and not is_same(seen, item)

    def _add_foreign(self, item: OpaqueItem) -> None:
        """A call of a kind that is not ours is shown with its result, or not at all."""
        call = foreign_call(item)
        if call is not None and self._results.found.get(call.call_id):
            self._add_own(call.call_id, call.name, call.arguments)
        self._has_results = self._has_results or foreign_result(item) is not None

    def _add_call(self, call_id: str, name: str, arguments: str, result: Output | None = None) -> None:
        if self._has_results:
            self.flush()
        if name not in self._toolbox.tools:
            name = legal_name(name)
        results = self._results.found.get(call_id)
        self._has_open_calls = self._has_open_calls or (self.is_input and not results)
        if result is None:
            result = results.popleft() if results else NO_RESULT
        self._outputs.append(result)
        self._calls.append(ChatCall(id=call_id, function=ChatFunction(name=name, arguments=as_object(arguments))))

    def _assistant(self) -> ChatMessage:
        text = "\n".join(filter(None, self._texts))
        reasoning = "".join(self._reasoning) or UNSET
        field = self._capabilities.reasoning_field
        return ChatMessage(
            role="assistant",
            content=text or (None if self._calls else ""),
            tool_calls=self._calls or UNSET,
            reasoning_content=reasoning if field == "reasoning_content" else UNSET,
            reasoning=reasoning if field == "reasoning" else UNSET,
        )


def _reasoning_of(item: Reasoning) -> str:
    """The raw text; a summary holds the same text where that is what the client asked for."""
    raw = "" if item.content is UNSET else "".join(part.text for part in item.content)
    return raw or "".join(part.text for part in item.summary)
