"""What a request sends again of what stands in its conversation, or its chain, already: it counts as a reference to
that, and is not said twice. Pure.

Many clients send the output of the last response back with the results of its calls, and name the conversation as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeGuard

import msgspec

from antwort.api.items import (
    Compaction,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputText,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OutputText,
    Reasoning,
    ResultPart,
    Text,
)
from antwort.api.requests import CreateRequest
from antwort.api.validation import without_inner_nulls
from antwort.api.wire import Plain, replace, to_plain
from antwort.engine.history.calls import call_id_of, is_bare, is_made_here, is_same, is_same_value, results_in
from antwort.errors import InvalidField
from antwort.storage.base import Link
from antwort.tools.base import Output

Call: TypeAlias = FunctionCall | CustomToolCall
Result: TypeAlias = FunctionCallOutput | CustomToolCallOutput
Form: TypeAlias = tuple[object, ...]
"""What a message or a result says, in a form that can be compared, and be a key."""


def held_in(chain: Sequence[Link]) -> Iterator[InputItem]:
    """What counts as known of a chain: all but the words of others. Their ids are the clients', who may use one again
    for the same words, and mean them.
    """
    for link in chain:
        yield from (item for item in link.input if not _is_of_others(item))
        yield from link.output


def known_places(
    items: Sequence[InputItem],
    held: Sequence[InputItem],
    messages: Sequence[Message] = (),
    raw: Sequence[bytes] = (),
) -> frozenset[int]:
    """Which of the items stand in what is `held` already. Behind a compaction that is new, everything is said anew.

    The words of users, and of who instructs, are known where something of the model's that is known follows: then the
    client sends back what was said. What stands behind that is what they say now, whatever id it goes by. So it is with
    any of the `messages` of the history, also without its id: most clients give none. `raw` are the items as they came.
    """
    if not items or not held:
        return frozenset()
    known, found, last = _Held(held), set[int](), -1
    unknown: dict[int, Message] = {}
    for place, item in enumerate(items):
        if (field := known.changed(item)) is not None:
            problem = WAITS if isinstance(item, McpApprovalRequest) else _CHANGED
            raise InvalidField(f"input[{place}].{field}", problem)
        if known.has(item):
            found.add(place)
            last = place if known.is_models(item) else last
        elif isinstance(item, Compaction):
            break
        elif isinstance(item, Message):
            unknown[place] = item
    if messages and (sent_back := {place: item for place, item in unknown.items() if place < last}):
        said = [(each.id, each.role, words_of(each.content)) for each in messages]
        heard = {*said, *(("", role, words) for _, role, words in said)}
        for place, item in sent_back.items():
            item_id = item.id if _has_id(raw[place]) else ""
            if (item_id, item.role, words_of(item.content)) in heard:
                found.add(place)
    return frozenset(place for place in found if place < last or not _is_of_others(items[place]))


class _Named(msgspec.Struct):
    id: str | None = None


def _has_id(raw: bytes) -> bool:
    """Whether the client gave the item an id: one that it leaves out is made when the item is read."""
    return bool(msgspec.json.decode(raw, type=_Named).id)


_CHANGED = (
    "a call cannot be changed, and the one of this 'call_id' has no result yet. Send the call as it was made, or leave "
    "it away; what is another call needs another 'call_id'."
)

WAITS = "a call that waits for approval cannot be changed. Send the request as it was made, or leave it away."


def referring(request: CreateRequest, known: frozenset[int]) -> CreateRequest:
    """The request with references in these places of its input."""
    if not known:
        return request
    items = (ItemReference(id=item.id) if at in known else item for at, item in enumerate(request.input))
    return replace(request, input=tuple(items))


class _Held:
    def __init__(self, items: Sequence[InputItem]) -> None:
        self._by_id: dict[str, list[InputItem]] = defaultdict(list)
        self._by_call: dict[str, list[InputItem]] = defaultdict(list)
        self._answered = results_in(items)
        self._decided = {(item.approval_request_id, item.approve) for item in items if _is_decision(item)}
        for item in items:
            self._by_id[item.id].append(item)
            if (call_id := _call_id(item)) is not None:
                self._by_call[call_id].append(item)

    def has(self, item: InputItem) -> bool:
        """Whether it is there: under its id, or, of a call and its result, under the id of the call."""
        if isinstance(item, ItemReference):
            return item.id in self._by_id
        if _is_decision(item):  # clients give it no id
            return (item.approval_request_id, item.approve) in self._decided
        return any(_is_same_item(item, each) for each in self._by_id.get(item.id, ())) or self._has_call(item)

    def changed(self, item: InputItem) -> str | None:
        """The field in which a call differs from the one under its id that waits for its result: that would be taken
        for what came of something else. So it is with one that waits for approval.
        """
        if isinstance(item, McpApprovalRequest):
            held = [each for each in self._by_id.get(item.id, ()) if isinstance(each, McpApprovalRequest)]
            return "arguments" if held and not any(is_same(item, each) for each in held) else None
        if isinstance(item, McpCall):
            return self._changed_answer(item)
        if not isinstance(item, Call) or item.status == "incomplete" or item.call_id in self._answered:
            return None
        calls = [each for each in self._by_call.get(item.call_id, ()) if isinstance(each, Call)]
        fields = [_difference(item, each) for each in calls if each.status != "incomplete"]
        return None if None in fields else next(iter(fields), None)

    def _changed_answer(self, item: McpCall) -> str | None:
        """A client may answer a server's open call by sending it back with an output: the call as it was made."""
        call_id = call_id_of(item)
        if is_bare(item) or not is_made_here(call_id) or call_id in self._answered:
            return None
        calls = [each for each in self._by_call.get(call_id, ()) if isinstance(each, McpCall)]
        return "arguments" if calls and not any(is_same(item, each) for each in calls) else None

    def is_models(self, item: InputItem) -> bool:
        """Whether the model has said it."""
        if isinstance(item, ItemReference):
            return any(map(_is_models, self._by_id.get(item.id, ())))
        return _is_models(item)

    def _has_call(self, item: InputItem) -> bool:
        """Clients leave ids of items away. Their own ids of calls may repeat: such a call is known while it is open."""
        match item:
            case FunctionCall() | CustomToolCall():
                is_meant = is_made_here(item.call_id) or item.call_id not in self._answered
                return is_meant and any(_is_same_item(item, each) for each in self._by_call.get(item.call_id, ()))
            case FunctionCallOutput() | CustomToolCallOutput() | McpCall():
                call_id = _call_id(item) or ""
                return is_made_here(call_id) and any(_is_same_item(item, each) for each in self._by_call[call_id])
            case _:
                return False


def _call_id(item: InputItem) -> str | None:
    if isinstance(item, McpCall):
        return call_id_of(item)
    return item.call_id if isinstance(item, Call | Result) else None


def _is_of_others(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role != "assistant"


def _is_decision(item: InputItem) -> TypeGuard[McpApprovalResponse]:
    return isinstance(item, McpApprovalResponse)


def _is_models(item: InputItem) -> bool:
    return isinstance(item, Call | McpCall | McpApprovalRequest | Reasoning | Compaction) or (
        isinstance(item, Message) and not _is_of_others(item)
    )


# ---- whether two are the same ----


def _is_same_item(item: InputItem, held: InputItem) -> bool:
    """But for their ids, and what clients leave out of what they were shown."""
    if type(item) is not type(held):
        return False
    if isinstance(item, Call) and isinstance(held, Call):
        return (item.call_id, item.name) == (held.call_id, held.name) and not _is_mended(item, held)
    if isinstance(item, Result) and isinstance(held, Result):
        return item.call_id == held.call_id and form_of(item.output) == form_of(held.output)
    if isinstance(item, McpCall) and isinstance(held, McpCall):
        is_less = is_bare(item) or (item.output, item.error_text) == (held.output, held.error_text)
        return is_less and is_same(item, held)
    if isinstance(item, McpApprovalRequest):
        return is_same(item, held)
    if isinstance(item, Message) and isinstance(held, Message):
        return item.role == held.role and words_of(item.content) == words_of(held.content)
    if isinstance(item, Reasoning) and isinstance(held, Reasoning):
        return all(not own or not other or own == other for own, other in _thoughts(item, held))
    return _content(item) == _content(held)


def is_same_call(item: Call, other: Call) -> bool:
    """Whether both ask the same of the same tool, and both are whole or both were cut off."""
    are_alike = (item.status == "incomplete") is (other.status == "incomplete")
    return are_alike and _difference(item, other) is None


def _is_mended(item: Call, held: Call) -> bool:
    """A call that was cut off is none for the model; one that comes back whole is another."""
    return held.status == "incomplete" != item.status


def _difference(item: Call, held: Call) -> str | None:
    """The field in which they do not ask the same of the same tool."""
    if type(item) is not type(held):
        return "type"
    if item.name != held.name:
        return "name"
    if isinstance(item, FunctionCall) and isinstance(held, FunctionCall):
        return None if is_same_value(item.arguments, held.arguments) else "arguments"
    if isinstance(item, CustomToolCall) and isinstance(held, CustomToolCall):
        return None if item.input == held.input else "input"
    return None


def form_of(output: Output) -> Form:
    """What a result says. A string says the same as one part with its text."""
    return (output,) if isinstance(output, str) else words_of(output)


def words_of(parts: Sequence[ContentPart] | Sequence[ResultPart]) -> Form:
    """What is said, without what is told about it."""
    return tuple(part.text if isinstance(part, InputText | OutputText | Text) else part for part in parts)


def _thoughts(item: Reasoning, held: Reasoning) -> Iterator[tuple[object, object]]:
    yield item.summary, held.summary
    yield item.content, held.content
    yield item.encrypted_content, held.encrypted_content


def _content(item: InputItem) -> Plain:
    """All that it says, but who it is and how it stands."""
    said: Plain = without_inner_nulls(to_plain(item))
    return {key: value for key, value in said.items() if key not in ("id", "status")}
