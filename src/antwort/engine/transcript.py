"""What was said, item by item, becomes the messages that a model is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
from antwort.engine.declared import INPUT
from antwort.engine.foreign import foreign_call, foreign_result
from antwort.engine.naming import legal_name
from antwort.engine.pairs import as_call, call_id_of, is_bare, is_run, is_same, late_id, result_of
from antwort.engine.parts import chat_message, result_text, said_in
from antwort.engine.recap import Recap, recalled
from antwort.engine.results import Results
from antwort.engine.shortening import Pictures
from antwort.engine.toolbox import called_name, model_name
from antwort.engine.unwrapping import as_object
from antwort.providers.base import Capabilities, ChatCall, ChatFunction, ChatMessage
from antwort.tools.base import Output
from antwort.tools.routing import Toolbox

NO_RESULT = "No result was given for this call."


class Transcript:
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
