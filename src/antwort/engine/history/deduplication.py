"""Items that a request sends again: of its conversation or chain, and results that were sent before. Pure.

Many clients send the output of the last response back with the results of its calls, and name the conversation as well.
What is known already counts as a reference. Results come again after a retry, with the whole history, or twice in one
input: an equal result is ignored, a different one is an error.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from antwort.api.decoding import Steps, without_inner_nulls
from antwort.api.items import (
    TEXTS,
    Compaction,
    ContentPart,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    Reasoning,
    ResultPart,
)
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, UnsetType, encode, replace, to_plain
from antwort.engine.history.approvals import contradiction
from antwort.engine.history.calls import (
    ITEMS_PER_STEP,
    CallIndex,
    CallView,
    FunctionKind,
    calls_in,
    is_made_here,
    is_same,
    map_steps,
    result_of,
    value_key,
)
from antwort.errors import InvalidField
from antwort.tools.base import Output

Form: TypeAlias = tuple[object, ...]
"""What a message or a result says, in a form that can be compared, and be a key."""

WAITS = "a call that waits for approval cannot be changed. Send the request as it was made, or leave it away."
_CHANGED = (
    "a call cannot be changed, and the one of this 'call_id' has no result yet. Send the call as it was made, or leave "
    "it away; what is another call needs another 'call_id'."
)
_MODELS = (FunctionCall, CustomToolCall, McpCall, McpApprovalRequest, Reasoning, Compaction)
_MOST_REASONING = 16
"""Known reasoning under one id that an item is compared with: the latest."""
_LONGEST_ID = 100
"""Characters of a client's id that an error repeats."""


def referring(request: CreateRequest, known: frozenset[int]) -> CreateRequest:
    """Return the request with references in these places of its input."""
    if not known:
        return request
    items = (ItemReference(id=item.id) if at in known else item for at, item in enumerate(request.input))
    return replace(request, input=tuple(items))


# ---- items that stand in the history already ----


def known_steps(
    request: CreateRequest, earlier: Sequence[InputItem], answered: frozenset[str]
) -> Steps[frozenset[int]]:
    """Return the places of the items that are among the `earlier` ones already, in pieces. The calls of the ids
    `answered` have results there. Behind a new compaction, nothing is known.

    A message of the client is known where a known item of the model follows: then the client sends the history back.
    A message behind that is new, whatever its id: a client chooses the ids of its messages, and may use one again for
    the same words, and mean to say them twice. Most clients give none.

    Raises `InvalidField` for an open call that was changed.
    """
    items = request.input
    if not items or not earlier:
        return frozenset()
    index, found, last = _KnownItems(items, answered), set[int](), -1
    is_conversation = request.conversation is not None  # its items have ids that are not used again
    yield from map_steps(index.add, [item for item in earlier if is_conversation or not _is_from_client(item)])
    messages: dict[int, Message] = {}
    for place, item in enumerate(items):
        if place % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
            yield
        if (field := index.changed_field(item)) is not None:
            problem = WAITS if isinstance(item, McpApprovalRequest) else _CHANGED
            raise InvalidField(f"input[{place}].{field}", problem)
        if not _is_from_client(item) and index.has(item):
            found.add(place)
            last = place if index.is_models(item) else last
        elif isinstance(item, Compaction):
            break
        elif isinstance(item, Message):
            messages[place] = item
    if sent_back := {place: item for place, item in messages.items() if place < last}:
        known = set[tuple[str, Form]]()

        def add(item: InputItem) -> None:
            if isinstance(item, Message):
                form = _forms(item)[0]
                known.update(((item.id, form), ("", form)))

        yield from map_steps(add, earlier)
        for place, item in sent_back.items():
            item_id = item.id if _has_id(request.raw_input[place]) else ""
            if (item_id, _forms(item)[0]) in known:
                found.add(place)
    return frozenset(found)


class _Identified(msgspec.Struct):
    id: str | None = None


def _has_id(raw: bytes) -> bool:
    """Whether the client gave the item an id: a missing one is made when the item is read."""
    return bool(msgspec.json.decode(raw, type=_Identified).id)


class _KnownItems:
    """The known items that an input may repeat, by their ids and by the ids of their calls, and by what they say.

    Ids may repeat, so an item is not compared with each known one of the same id.
    """

    def __init__(self, items: Sequence[InputItem], answered: frozenset[str]) -> None:
        """`items` are the input."""
        self._answered = answered
        self._wanted = {item.id for item in items}, {view.call_id for view in calls_in(items)}
        self._ids: dict[str, bool] = {}
        """The ids of all known items; whether the model wrote one of them."""
        self._said: set[tuple[str, object]] = set()
        """The types of the items of an id, and what they say. Calls and results are also known by the id of the call,
        and so are decisions: clients may change the ids of the items.
        """
        self._asked: dict[tuple[str, str], FunctionKind | McpCall] = {}
        """By owner and call id, the first call that was not cut off."""
        self._reasoning: dict[str, deque[Reasoning]] = {}

    def add(self, item: InputItem) -> None:
        ids, call_ids = self._wanted
        keys = [item.id] if item.id in ids else []
        if keys:
            self._ids[item.id] = self._ids.get(item.id, False) or _is_models(item)
        if isinstance(item, Reasoning):
            if keys:
                self._reasoning.setdefault(item.id, deque(maxlen=_MOST_REASONING)).append(item)
            return
        view = CallView.of(item)
        if view is not None and view.owner != "foreign" and view.call_id in call_ids:
            keys.append(view.call_id)
            if isinstance(item, FunctionKind | McpCall) and not (view.owner == "function" and view.is_cut):
                self._asked.setdefault((view.owner, view.call_id), item)
                self._said.add((view.call_id, _question(item)))
        if keys:
            said = [type(item), *_forms(item)]
            self._said.update((key, each) for key in keys for each in said)

    def has(self, item: InputItem) -> bool:
        """Whether the item is known: by its id, or as a call or a result by the id of the call."""
        if isinstance(item, ItemReference):
            return item.id in self._ids
        if isinstance(item, Reasoning):
            return any(_is_same_reasoning(item, each) for each in self._reasoning.get(item.id, ()))
        keys = [item.id]
        if (view := CallView.of(item)) is not None and self._is_known_by_call(view):
            keys.append(view.call_id)
        keys = [key for key in keys if (key, type(item)) in self._said]
        if not keys:
            return False
        form = _forms(item)[-1]
        return any((key, form) in self._said for key in keys)

    def _is_known_by_call(self, view: CallView) -> bool:
        """A client's own call ids may repeat: such a call is known while it is open."""
        if view.part == "decision" or is_made_here(view.call_id):
            return True
        return view.part == "call" and view.owner == "function" and view.call_id not in self._answered

    def changed_field(self, item: InputItem) -> str | None:
        """Return the field in which a call differs from the known one that waits for its result or its approval."""
        if isinstance(item, McpApprovalRequest):
            is_changed = (item.id, type(item)) in self._said and (item.id, _forms(item)[0]) not in self._said
            return "arguments" if is_changed else None
        if not isinstance(item, FunctionKind | McpCall):
            return None
        view = CallView.of(item)
        known = self._asked.get((view.owner, view.call_id))
        if known is None or view.call_id in self._answered or (view.call_id, _question(item)) in self._said:
            return None
        if isinstance(item, McpCall):  # a client may answer an open call by sending it back with an output
            return "arguments" if view.result is not None and is_made_here(view.call_id) else None
        return None if view.is_cut or isinstance(known, McpCall) else _difference(item, known)

    def is_models(self, item: InputItem) -> bool:
        """Whether the model wrote the item, or the one that it refers to."""
        return self._ids.get(item.id, False) if isinstance(item, ItemReference) else _is_models(item)


def _is_from_client(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role != "assistant"


def _is_models(item: InputItem) -> bool:
    if isinstance(item, Message):
        return item.role == "assistant"
    return isinstance(item, _MODELS)


# ---- whether two items are the same ----


def _forms(item: InputItem) -> tuple[Form, ...]:
    """Return what the item says but for its ids, and what of it clients may leave out: it is known under all of these,
    and repeats what is known under the last one.
    """
    match item:
        case FunctionCall() | CustomToolCall():
            # One that was cut off and comes back whole is new.
            cut, whole = ((type(item), item.call_id, item.name, is_whole) for is_whole in (False, True))
            return (cut,) if item.status == "incomplete" else (cut, whole)
        case McpApprovalRequest():
            return (_question(item),)
        case McpCall():
            asked, answered = _question(item), (*_question(item), item.output, item.error_text)
            return (answered, asked) if result_of(item) is None else (asked, answered)
        case FunctionCallOutput() | CustomToolCallOutput():
            return ((type(item), item.call_id, form_of(item.output)),)
        case McpApprovalResponse():
            return ((McpApprovalResponse, item.approval_request_id, item.approve),)
        case Message():
            return ((Message, item.role, words_of(item.content)),)
        case _:
            plain = without_inner_nulls(to_plain(item))
            content = {key: value for key, value in plain.items() if key not in ("id", "status")}
            return ((type(item), value_key(encode(content).decode())),)


def _is_same_reasoning(item: Reasoning, known: Reasoning) -> bool:
    """Whether two are the same but for what clients leave out."""
    fields = ("summary", "content", "encrypted_content")
    pairs = [(getattr(item, field), getattr(known, field)) for field in fields]
    return all(not own or not other or own == other for own, other in pairs)


def _question(item: FunctionKind | McpCall | McpApprovalRequest) -> Form:
    """Return what a call asks of which tool."""
    asked = item.input if isinstance(item, CustomToolCall) else value_key(item.arguments)
    return type(item), getattr(item, "server_label", None), item.name, asked


def _difference(item: FunctionKind, known: FunctionKind) -> str | None:
    """Return the field in which two calls do not ask the same of the same tool."""
    if type(item) is not type(known):
        return "type"
    if item.name != known.name:
        return "name"
    if _question(item) == _question(known):
        return None
    return "arguments" if isinstance(item, FunctionCall) else "input"


def form_of(output: Output) -> Form:
    """Return what a result says. A string says the same as one part with its text."""
    return (output,) if isinstance(output, str) else words_of(output)


def words_of(parts: Sequence[ContentPart] | Sequence[ResultPart]) -> Form:
    """Return what is said, without annotations."""
    return tuple(part.text if isinstance(part, TEXTS) else part for part in parts)


# ---- results and decisions that were sent before ----


def repeated_steps(items: Sequence[InputItem], earlier: Sequence[InputItem], first: int = 0) -> Steps[frozenset[int]]:
    """Return the places of the items, from the `first` on, that repeat a result, a call or a decision, in pieces.

    Only the `earlier` items and the input itself count. Raises `InvalidField` for a result that differs from the known
    one, or answers no call, or a call that waits for an approval, and for a decision about an unknown request, or two
    of one input that differ; `Conflict` for a decision that contradicts an earlier one.
    """
    new = [CallView.of(item) for item in items[first:]]
    if not any(view is not None and view.part != "request" for view in new):
        return frozenset()
    calls, found = _KnownCalls([view for view in new if view is not None]), set[int]()
    yield from map_steps(calls.add, (yield from CallIndex.steps(earlier)).views)
    for place, new_view in enumerate(new, first):
        if place % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
            yield
        if new_view is not None and calls.repeats(new_view, f"input[{place}]"):
            found.add(place)
    return frozenset(found)


class _CallState(msgspec.Struct):
    """What is known so far of the calls of one id. A client may use an id again."""

    open: int = 0
    """How many calls have no result, where that is another item. Less than 0: results came before their calls."""
    later: int = 0
    """How many of those calls are behind this point of the input."""
    is_called: bool = False
    results: set[Form] = msgspec.field(default_factory=set)
    server_call: CallView | None = None
    is_server_call_sent: bool = False
    request_id: str | None = None
    """Of the request for its approval."""
    sent: FunctionKind | None = None
    """The call in the input, if its id was made here: then it is one call."""

    def answer(self, view: CallView) -> None:
        self.open -= self.open > 0
        self.results.update(_results_of(view))


class _KnownCalls:
    """The calls so far, their results and the decisions about them."""

    def __init__(self, new: Sequence[CallView]) -> None:
        """`new` are all items of the input: a result may stand before its call."""
        self._calls: defaultdict[str, _CallState] = defaultdict(_CallState)
        self._request_ids = {view.item.id for view in new if view.part == "request"}
        self._decisions: dict[str, bool] = {}
        self._given: dict[str, bool] = {}
        """The decisions of the input."""
        for view in new:
            call = self._calls[view.call_id]
            if view.is_mcp_call:
                call.is_server_call_sent = True
            elif view.part == "call":
                call.is_called = True
                call.later += 1

    def add(self, view: CallView) -> None:
        item, call = view.item, self._calls[view.call_id]
        if isinstance(item, McpApprovalResponse):
            self._decisions.setdefault(item.approval_request_id, item.approve)
        elif view.part == "request":
            call.request_id = item.id
            self._request_ids.add(item.id)
        elif view.is_mcp_call:
            call.server_call = call.server_call or view
            if view.result is not None:
                call.answer(view)
        elif view.part == "call":
            call.is_called = True
            call.open += 1
        else:
            call.answer(view)

    def repeats(self, view: CallView, path: str) -> bool:
        """Whether an item of the input repeats a known call or result. It is added where it does not."""
        item, call = view.item, self._calls[view.call_id]
        if view.part == "result":
            return self._repeats_result(view, call, path)
        if isinstance(item, McpApprovalResponse):
            if self._repeats_decision(item, f"{path}.approval_request_id"):
                return True
        elif view.is_mcp_call:
            if view.result is not None and self._repeats_run(view, call, path):
                return True
        elif view.part == "call":
            call.later -= 1
            if isinstance(item, FunctionKind) and is_made_here(view.call_id):
                sent, call.sent = call.sent, item
                if sent is not None and view.is_cut is (sent.status == "incomplete") and not _difference(item, sent):
                    return True
        self.add(view)
        return False

    def _repeats_decision(self, item: McpApprovalResponse, place: str) -> bool:
        request_id, is_approved = item.approval_request_id, item.approve
        if request_id not in self._request_ids:
            problem = f"no call waits for approval under the id {request_id[:_LONGEST_ID]!r} in this conversation."
            raise InvalidField(place, problem, code="unknown_approval")
        if (given := self._given.get(request_id)) is not None:
            if given is not is_approved:
                raise InvalidField(place, "it is decided otherwise in this input.", code="duplicate_approval")
            return True
        if self._decisions.get(request_id, is_approved) is not is_approved:
            raise contradiction(place, is_approved=not is_approved)
        self._given[request_id] = is_approved
        return False

    def _repeats_run(self, view: CallView, call: _CallState, path: str) -> bool:
        if call.server_call is not None and not is_same(view.item, call.server_call.item):
            return False  # ids may repeat in a client's history: this is another call
        if view.part != "run":
            self._check_approved(call, f"{path}.id")
        if not call.results:
            return False
        if not call.results.isdisjoint(_results_of(view)):
            return True
        field = "error" if getattr(view.item, "error", None) is not None else "output"
        raise _duplicate(f"{path}.{field}", view.call_id)

    def _repeats_result(self, view: CallView, call: _CallState, path: str) -> bool:
        if view.owner == "foreign" and not call.is_called:
            return False  # the result of an unknown call says nothing to the model
        if call.open <= 0:
            if not call.results.isdisjoint(_results_of(view)):
                return True
            if call.later + call.open > 0:
                call.open -= 1
            elif call.results:
                raise _duplicate(f"{path}.call_id", view.call_id)
            elif call.server_call is None and not call.is_server_call_sent:
                if call.request_id is None:
                    problem = f"no call with id {view.call_id[:_LONGEST_ID]!r} in this conversation."
                    raise InvalidField(f"{path}.call_id", problem, code="unknown_call_id")
                self._check_approved(call, f"{path}.call_id")
        call.answer(view)
        return False

    def _check_approved(self, call: _CallState, place: str) -> None:
        """Refuse a client's own answer to a call before its approval is decided about."""
        if call.request_id is None:
            return
        is_approved = self._decisions.get(call.request_id)
        if is_approved is None:
            send = f"Send an 'mcp_approval_response' for {call.request_id[:_LONGEST_ID]!r}."
            raise InvalidField(place, f"the call waits for an approval. {send}", code="not_a_client_call")
        if not is_approved and not call.results:
            raise InvalidField(place, "the call was denied.", code="duplicate_output")


def _duplicate(place: str, call_id: str) -> InvalidField:
    problem = f"the call {call_id[:_LONGEST_ID]!r} has another result already."
    return InvalidField(place, problem, code="duplicate_output")


def _results_of(view: CallView) -> list[Form]:
    """Return all forms of a result: of a server's call, clients leave out the error or the output."""
    item = view.item
    if not isinstance(item, McpCall):
        return [] if (result := view.result) is None else [form_of(result)]
    texts: list[Output | UnsetType | None] = [item.error_text, item.output, item.content]
    return [form_of(result) for result in texts if result is not None and result is not UNSET]
