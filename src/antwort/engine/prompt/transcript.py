"""What was said, item by item, becomes the messages that a model is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpCall,
    Message,
    OpaqueItem,
    Reasoning,
)
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.context.message_text import Pictures, Recap, recalled
from antwort.engine.history.calls import (
    answered_in,
    as_call,
    call_id_of,
    foreign_call,
    is_bare,
    is_run,
    is_same,
    late_id,
    result_of,
)
from antwort.engine.loop.custom_input import as_object
from antwort.engine.prompt.content_parts import chat_message, result_text, said_in
from antwort.engine.prompt.declared_tools import INPUT
from antwort.engine.prompt.result_texts import Results, results_of
from antwort.engine.prompt.tool_names import legal_name
from antwort.engine.prompt.toolbox import called_name, model_name
from antwort.providers.base import Capabilities, ChatCall, ChatFunction, ChatMessage
from antwort.tools.base import Output
from antwort.tools.routing import Toolbox

NO_RESULT = "No result was given for this call."


class _Turn(msgspec.Struct):
    """What one turn of the model has said so far."""

    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ChatCall] = []
    outputs: list[Output] = []
    call_ids: set[str] = set()
    has_results: bool = False
    """Of the client's or this process's functions."""
    has_server_results: bool = False
    has_open_calls: bool = False
    """To which a client's history has no result."""
    has_late_results: bool = False
    """Of calls that the model hears of again."""


class Transcript:
    """Gathers what one turn of the model said into one assistant message, its results right behind it."""

    def __init__(
        self,
        capabilities: Capabilities,
        toolbox: Toolbox,
        stretches: Sequence[Sequence[InputItem]],
        fates: Mapping[str, str],
    ) -> None:
        """The `stretches` are all that is going to be added: the results of calls may stand anywhere in them."""
        self.messages: list[ChatMessage] = []
        self.is_input = False
        """Whether a client put together what is added, which may be many turns."""
        self.recap = ""
        """What there is to say of all that was compacted, as long as it has not been said."""
        self._capabilities, self._toolbox, self._stretches, self._fates = capabilities, toolbox, stretches, fates
        self._found: Results | None = None
        self._seen: dict[str, McpCall] = {}
        self._turn = _Turn()

    @property
    def _results(self) -> Results:
        """Looked for when they are needed: what servers run has its result with it."""
        if self._found is None:
            self._found = results_of(self._stretches, self._fates)
        return self._found

    def add(self, item: InputItem) -> None:
        if (add := self._HOW.get(type(item))) is not None:
            add(self, item)

    def add_stretch(self, items: Iterable[InputItem]) -> None:
        """What stands together: no turn goes on behind it."""
        for item in items:
            if (add := self._HOW.get(type(item))) is not None:
                add(self, item)
        self.flush()

    def go_on(self, turns: Iterable[Sequence[InputItem]], news: Sequence[InputItem]) -> None:
        """What a response has said since, turn by turn. The results are in all the `news` of it."""
        self._stretches, self._fates, self._found = (news,), {}, None
        for turn in turns:
            self.add_stretch(turn)

    def flush(self) -> None:
        """The assistant message is whole: write it, and the results of its calls in the order of the calls."""
        turn = self._turn
        if not (turn.calls or turn.texts or turn.reasoning):
            turn.has_results = turn.has_server_results = turn.has_open_calls = False
            return
        if turn.calls or any(turn.texts) or (any(turn.reasoning) and self._capabilities.reasoning_field is not None):
            if turn.has_late_results:
                self._say_late(turn)
            else:
                self._say(self._assistant(turn))
            images: list[dict[str, Any]] = []
            for call, output in zip(turn.calls, turn.outputs, strict=True):
                if isinstance(output, str):
                    text = output
                else:
                    text, pictures = result_text(output, self._capabilities)
                    images += pictures
                self.messages.append(ChatMessage(role="tool", tool_call_id=call.id, content=text))
            if images:
                self.messages.append(Pictures(role="user", content=images))
        self._turn = _Turn()

    def _say_late(self, turn: _Turn) -> None:
        """What the model hears of again goes to its last words, where it has said any since anybody else."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or last.tool_calls is not UNSET or turn.texts or turn.reasoning:
            self._say(self._assistant(turn))
        else:
            self.messages[-1] = replace(last, tool_calls=turn.calls)

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
        turn = self._turn
        if turn.has_results or turn.has_server_results or turn.has_open_calls or turn.has_late_results:
            self.flush()

    def _add_message(self, item: Message) -> None:
        if item.role == "assistant":
            self._next_turn()
            self._turn.texts.append(said_in(item.content))
        else:
            self.flush()
            self._say(chat_message(item, self._capabilities))

    def _add_reasoning(self, item: Reasoning) -> None:
        self._next_turn()
        self._turn.reasoning.append(_reasoning_of(item))

    def _add_function_call(self, item: FunctionCall) -> None:
        if item.status != "incomplete":
            self._add_own(item.call_id, called_name(self._toolbox, item), item.arguments)

    def _add_custom_call(self, item: CustomToolCall) -> None:
        if item.status != "incomplete":
            arguments = encode({INPUT: item.input}).decode()
            self._add_own(item.call_id, called_name(self._toolbox, item), arguments)

    def _add_result(self, _: FunctionCallOutput | CustomToolCallOutput) -> None:
        self._turn.has_results = True

    def _leave_answered(self) -> None:
        """Servers' calls that are answered, and a call that was left to others after them, are of different turns."""
        if self._turn.has_server_results and self.is_input:
            self.flush()

    def _add_own(self, call_id: str, name: str, arguments: str) -> None:
        self._leave_answered()
        self._add_call(call_id, name, arguments)

    def _add_server_call(self, item: McpCall) -> None:
        """A call that a later response ran shows twice; it was asked once."""
        if item.status == "incomplete":
            return
        call_id, result = call_id_of(item), result_of(item)
        if result is not None and item.approval_request_id is not UNSET and self._results.is_late(item):
            self._add_late(item, call_id, result)
        elif call_id not in self._seen or self._is_another(self._seen[call_id], item):
            self._seen[call_id] = item
            if result is None or call_id in self._turn.call_ids:
                self._leave_answered()
            self._add_call(call_id, model_name(self._toolbox, item.server_label, item.name), item.arguments, result)
        # Servers' calls side by side stand one behind the other, each with its result. Where clients put it together,
        # words end the turn; of what is one turn for certain, they are a part, unless the call is of an earlier one.
        if result is not None and (self.is_input or (item.call_id is UNSET and is_run(item))):
            self._turn.has_server_results = True

    def _add_request(self, item: McpApprovalRequest) -> None:
        if item.status == "incomplete":
            return
        asked = as_call(item)
        if call_id_of(asked) not in self._results.shown:
            self._add_server_call(asked)
            self._turn.has_open_calls = self.is_input

    def _add_late(self, item: McpCall, call_id: str, result: Output) -> None:
        name = model_name(self._toolbox, item.server_label, item.name)
        self._add_call(late_id(call_id), name, item.arguments, result)
        self._turn.has_late_results = True

    def _is_another(self, seen: McpCall, item: McpCall) -> bool:
        """Ids may repeat in a client's history: what asks something else, and has a result, is another call."""
        return self.is_input and not is_bare(seen) and not is_bare(item) and not is_same(seen, item)

    def _add_foreign(self, item: OpaqueItem) -> None:
        """A call of a kind that is not ours is shown with its result, or not at all."""
        call = foreign_call(item)
        if call is not None and self._results.found.get(call.call_id):
            self._add_own(call.call_id, call.name, call.arguments)
        if answered_in(item) is not None:
            self._turn.has_results = True

    def _add_call(self, call_id: str, name: str, arguments: str, result: Output | None = None) -> None:
        if (turn := self._turn).has_results:
            self.flush()
            turn = self._turn
        if name not in self._toolbox.tools:
            name = legal_name(name)
        if result is None or self.is_input:
            results = self._results.found.get(call_id)
            turn.has_open_calls = turn.has_open_calls or (self.is_input and not results)
            if result is None:
                result = results.popleft() if results else self._fates.get(call_id, NO_RESULT)
        turn.outputs.append(result)
        turn.call_ids.add(call_id)
        turn.calls.append(ChatCall(id=call_id, function=ChatFunction(name=name, arguments=as_object(arguments))))

    def _assistant(self, turn: _Turn) -> ChatMessage:
        text = "\n".join(filter(None, turn.texts)) if turn.texts else ""
        calls = turn.calls
        message = ChatMessage(role="assistant", content=text or (None if calls else ""), tool_calls=calls or UNSET)
        if not turn.reasoning:
            return message
        reasoning, field = "".join(turn.reasoning), self._capabilities.reasoning_field
        return message if field is None or not reasoning else replace(message, **{field: reasoning})

    _HOW: ClassVar[Mapping[type, Callable[[Transcript, Any], None]]] = {
        Message: _add_message,
        Reasoning: _add_reasoning,
        FunctionCall: _add_function_call,
        CustomToolCall: _add_custom_call,
        McpCall: _add_server_call,
        McpApprovalRequest: _add_request,
        FunctionCallOutput: _add_result,
        CustomToolCallOutput: _add_result,
        OpaqueItem: _add_foreign,
    }
    """Lists of tools, decisions about calls and what this version does not know say nothing to a model."""


def _reasoning_of(item: Reasoning) -> str:
    """The raw text; a summary holds the same text where that is what the client asked for."""
    raw = "" if item.content is UNSET else "".join(part.text for part in item.content)
    return raw or "".join(part.text for part in item.summary)
