"""What the model said last, in items that a client has put together. Pure."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OpaqueItem,
    Reasoning,
)
from antwort.engine.history.calls import answered_in, call_id_of, called_in, requested_call


class Turns:
    """Counts the turns of the model in what it goes through."""

    def __init__(self) -> None:
        self.number = 0
        self._was_told = False
        self._known: set[str] = set()

    def part(self) -> None:
        """What follows is of another turn, whoever says it."""
        self._was_told = True

    def add(self, item: InputItem) -> bool:
        """Whether a turn begins with the item: the model says, or calls, it after something came from the client."""
        begins = False
        if _is_told(item):
            self._was_told = True
        elif self._was_told and _is_said(item, self._known):
            self.number, self._was_told, begins = self.number + 1, False, True
        if isinstance(item, McpCall):
            self._known.add(call_id_of(item))
        elif isinstance(item, McpApprovalRequest):
            self._known.add(requested_call(item.id))
        return begins


def turns_of(items: Sequence[InputItem]) -> list[Sequence[InputItem]]:
    """The items of each turn of the model, with what came from the client behind it."""
    turns = Turns()
    begins = [i for i, item in enumerate(items) if turns.add(item)]
    return [items[start:end] for start, end in pairwise([*begins, len(items)])]


def last_turn(items: Sequence[InputItem]) -> Sequence[InputItem]:
    """The items from the last on that the model said, or called, after something came from the client."""
    items = since_words(items)
    turns = Turns()
    begins = [i for i, item in enumerate(items) if turns.add(item)]
    return items[begins[-1] :] if begins else items


def _is_told(item: InputItem) -> bool:
    """Whether the model hears it from others."""
    if isinstance(item, Message):
        return item.role != "assistant"
    if isinstance(item, OpaqueItem):
        return answered_in(item) is not None
    return isinstance(item, FunctionCallOutput | CustomToolCallOutput | McpApprovalResponse)


def _is_said(item: InputItem, known: Container[str]) -> bool:
    """Whether it is the model's own. How a call was run that is known already is not."""
    match item:
        case Message() | Reasoning() | FunctionCall() | CustomToolCall() | McpApprovalRequest():
            return True
        case McpCall():
            return call_id_of(item) not in known
        case OpaqueItem():
            return called_in(item) is not None or item.type.endswith("_call")
        case _:
            return False


def since_words(items: Sequence[InputItem], ends: int = 1) -> Sequence[InputItem]:
    """The items after the last turn, or after so many, that ended in words: whatever was called before has had its
    result, even where the client does not send it.
    """
    for i in reversed(range(len(items))):
        item = items[i]
        follows = items[i + 1] if i + 1 < len(items) else None
        is_end = follows is None or (isinstance(follows, Message) and follows.role != "assistant")
        if is_end and isinstance(item, Message) and item.role == "assistant":
            ends -= 1
            if not ends:
                return items[i + 1 :]
    return items
