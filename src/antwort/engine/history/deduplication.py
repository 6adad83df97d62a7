"""Items that a request sends again: of its conversation or chain, and results that were sent before. Pure.

Many clients send the output of the last response back with the results of its calls, and name the conversation as well.
What is known already counts as a reference. Results come again after a retry, with the whole history, or twice in one
input: an equal result is ignored, a different one is an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.decoding import Steps, without_inner_nulls
from antwort.api.items import (
    TEXTS,
    Compaction,
    ContentPart,
    CustomToolCall,
    FunctionCall,
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
from antwort.api.wire import UNSET, Plain, UnsetType, encode, replace, to_plain
from antwort.engine.history.approvals import contradiction
from antwort.engine.history.calls import (
    ITEMS_PER_STEP,
    CallIndex,
    CallView,
    FunctionKind,
    calls_in,
    is_function,
    is_made_here,
    is_same,
    is_same_value,
    result_of,
    value_key,
)
from antwort.errors import InvalidField
from antwort.storage.base import Link
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


def known_items(chain: Sequence[Link]) -> Iterator[InputItem]:
    """Return the items of a chain that a request may repeat: all but messages of the client.

    A client chooses the ids of its messages, and may use one again for the same words, and mean to say them twice.
    """
    for link in chain:
        yield from (item for item in link.input if not _is_from_client(item))
        yield from link.output


def known_steps(
    items: Sequence[InputItem],
    known: Sequence[InputItem],
    calls: CallIndex,
    messages: Sequence[Message] = (),
    raw: Sequence[bytes] = (),
) -> Steps[frozenset[int]]:
    """Return the places of the items that are `known` already, in pieces; `calls` are those among the known items.
    Behind a new compaction, nothing is known.

    A message of the client is known where a known item of the model follows: then the client sends the history back.
    A message behind that is new, whatever its id. The same holds for `messages` of the history that come without an
    id, as most clients give none; `raw` are the items as they came.

    Raises `InvalidField` for an open call that was changed.
    """
    if not items or not known:
        return frozenset()
    index, found, last = (yield from _KnownItems.steps(items, known, calls)), set[int](), -1
    unknown: dict[int, Message] = {}
    for place, item in enumerate(items):
        if place % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
            yield
        if (field := index.changed_field(item)) is not None:
            problem = WAITS if isinstance(item, McpApprovalRequest) else _CHANGED
            raise InvalidField(f"input[{place}].{field}", problem)
        if index.has(item):
            found.add(place)
            last = place if index.is_models(item) else last
        elif isinstance(item, Compaction):
            break
        elif isinstance(item, Message):
            unknown[place] = item
    if messages and (sent_back := {place: item for place, item in unknown.items() if place < last}):
        forms = set[tuple[str, str, Form]]()
        for at, message in enumerate(messages):
            if at % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
                yield
            words = words_of(message.content)
            forms |= {(message.id, message.role, words), ("", message.role, words)}
        for place, item in sent_back.items():
            item_id = item.id if _has_id(raw[place]) else ""
            if (item_id, item.role, words_of(item.content)) in forms:
                found.add(place)
    return frozenset(place for place in found if place < last or not _is_from_client(items[place]))


class _Identified(msgspec.Struct):
    id: str | None = None


def _has_id(raw: bytes) -> bool:
    """Whether the client gave the item an id: a missing one is made when the item is read."""
    return bool(msgspec.json.decode(raw, type=_Identified).id)


class _KnownItems:
    """The known items that an input may repeat, by their ids and by the ids of their calls, and by what they say.

    Ids may repeat, so an item is not compared with each known one of the same id.
    """

    def __init__(self, answered: frozenset[str]) -> None:
        self._ids: dict[str, bool] = {}
        """The ids of all known items; whether the model wrote one of them."""
        self._by_id: set[tuple[str, object]] = set()
        """Each known item by its id, with its type and with what it says."""
        self._by_call: set[tuple[str, object]] = set()
        """The same for calls and results, by the id of the call."""
        self._asked: dict[str, FunctionKind] = {}
        """By call id, the first function's call that was not cut off."""
        self._reasoning: dict[str, deque[Reasoning]] = {}
        self._decisions: set[tuple[str, bool]] = set()
        self._answered = answered

    @classmethod
    def steps(cls, items: Sequence[InputItem], known: Sequence[InputItem], calls: CallIndex) -> Steps[_KnownItems]:
        """Index what may be repeated in the `items`, in pieces."""
        index = cls(calls.answered)
        ids, call_ids = {item.id for item in items}, {view.call_id for view in calls_in(items)}
        for at, item in enumerate(known):
            if at % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
                yield
            if item.id in ids:
                index._add(item)
        for at, view in enumerate(calls.views):
            if at % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
                yield
            if view.call_id in call_ids:
                index._add_call(view)
        return index

    def _add(self, item: InputItem) -> None:
        self._ids[item.id] = self._ids.get(item.id, False) or _is_models(item)
        self._by_id.add((item.id, type(item)))
        if isinstance(item, Reasoning):
            self._reasoning.setdefault(item.id, deque(maxlen=_MOST_REASONING)).append(item)
        else:
            self._by_id.update((item.id, key) for key in _keys(item))

    def _add_call(self, view: CallView) -> None:
        item = view.item
        if isinstance(item, McpApprovalResponse):
            self._decisions.add((item.approval_request_id, item.approve))
        elif _has_call_id(view):
            self._by_call.add((view.call_id, type(item)))
            self._by_call.update((view.call_id, key) for key in _keys(item))
            if is_function(item) and not view.is_cut:
                self._by_call.add((view.call_id, _question(item)))
                self._asked.setdefault(view.call_id, item)

    def has(self, item: InputItem) -> bool:
        """Whether the item is known: by its id, or as a call or a result by the id of the call."""
        if isinstance(item, ItemReference):
            return item.id in self._ids
        if isinstance(item, McpApprovalResponse):  # clients give it no id
            return (item.approval_request_id, item.approve) in self._decisions
        if isinstance(item, Reasoning):
            return any(_is_same_reasoning(item, each) for each in self._reasoning.get(item.id, ()))
        view = CallView.of(item)
        may_be_call = view is not None and (view.call_id, type(item)) in self._by_call
        if not may_be_call and (item.id, type(item)) not in self._by_id:
            return False
        key = _keys(item)[-1]
        if (item.id, key) in self._by_id:
            return True
        # A client's own call ids may repeat: such a call is known while it is open.
        return (
            view is not None
            and _has_call_id(view)
            and (is_made_here(view.call_id) or (is_function(item) and view.call_id not in self._answered))
            and (view.call_id, key) in self._by_call
        )

    def changed_field(self, item: InputItem) -> str | None:
        """Return the field in which a call differs from the known one that waits for its result or its approval."""
        view = CallView.of(item)
        if view is None or view.owner == "foreign" or (view.is_cut and view.owner == "function"):
            return None
        if isinstance(item, McpApprovalRequest):
            is_changed = (item.id, type(item)) in self._by_id and (item.id, _keys(item)[0]) not in self._by_id
            return "arguments" if is_changed else None
        if view.part not in ("call", "run") or view.call_id in self._answered:
            return None
        call_id = view.call_id
        if view.owner == "server":  # a client may answer an open call by sending it back with an output
            if view.result is None or not is_made_here(call_id) or (call_id, type(item)) not in self._by_call:
                return None
            return None if (call_id, _keys(item)[0]) in self._by_call else "arguments"
        assert is_function(item), "nothing else is a function's call"
        known = self._asked.get(call_id)
        return None if known is None or (call_id, _question(item)) in self._by_call else _difference(item, known)

    def is_models(self, item: InputItem) -> bool:
        """Whether the model wrote the item, or the one that it refers to."""
        return self._ids.get(item.id, False) if isinstance(item, ItemReference) else _is_models(item)


def _has_call_id(view: CallView) -> bool:
    """Whether the item carries the id of the call: clients may change that of the item."""
    return view.owner == "function" or view.is_mcp_call


def _is_from_client(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role != "assistant"


def _is_models(item: InputItem) -> bool:
    if isinstance(item, Message):
        return item.role == "assistant"
    return isinstance(item, _MODELS)


# ---- whether two items are the same ----


def _keys(item: InputItem) -> tuple[Form, ...]:
    """Return what the item says but for its ids, and what of it clients may leave out: it is known under all of these,
    and repeats what is known under the last one.
    """
    view = CallView.of(item)
    if is_function(item):
        # One that was cut off and comes back whole is new.
        cut, whole = ((type(item), item.call_id, item.name, is_whole) for is_whole in (False, True))
        return (cut,) if item.status == "incomplete" else (cut, whole)
    if isinstance(item, McpCall | McpApprovalRequest):
        asked = (type(item), item.server_label, item.name, value_key(item.arguments))
        if isinstance(item, McpApprovalRequest):
            return (asked,)
        answered = (*asked, item.output, item.error_text)
        return (answered, asked) if result_of(item) is None else (asked, answered)
    if view is not None and view.owner == "function":
        return ((type(item), view.call_id, *_forms(view)),)
    if isinstance(item, Message):
        return ((Message, item.role, words_of(item.content)),)
    return ((type(item), value_key(encode(_content(item)).decode())),)


def _is_same_reasoning(item: Reasoning, known: Reasoning) -> bool:
    """Whether two are the same but for what clients leave out."""
    fields = ("summary", "content", "encrypted_content")
    pairs = [(getattr(item, field), getattr(known, field)) for field in fields]
    return all(not own or not other or own == other for own, other in pairs)


def _question(item: FunctionKind) -> Form:
    """Return what a call asks of which tool."""
    asked = value_key(item.arguments) if isinstance(item, FunctionCall) else item.input
    return type(item), item.name, asked


def _difference(item: FunctionKind, known: FunctionKind) -> str | None:
    """Return the field in which two calls do not ask the same of the same tool."""
    if type(item) is not type(known):
        return "type"
    if item.name != known.name:
        return "name"
    field = "arguments" if isinstance(item, FunctionCall) else "input"
    own, other = getattr(item, field), getattr(known, field)
    is_equal = own == other if field == "input" else is_same_value(own, other)
    return None if is_equal else field


def form_of(output: Output) -> Form:
    """Return what a result says. A string says the same as one part with its text."""
    return (output,) if isinstance(output, str) else words_of(output)


def words_of(parts: Sequence[ContentPart] | Sequence[ResultPart]) -> Form:
    """Return what is said, without annotations."""
    return tuple(part.text if isinstance(part, TEXTS) else part for part in parts)


def _content(item: InputItem) -> Plain:
    plain: Plain = without_inner_nulls(to_plain(item))
    return {key: value for key, value in plain.items() if key not in ("id", "status")}


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
    for start in range(0, len(earlier), ITEMS_PER_STEP):
        for view in calls_in(earlier[start : start + ITEMS_PER_STEP]):
            calls.add(view)
        yield
    for place, new_view in enumerate(new, first):
        if place % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
            yield
        if new_view is not None and calls.repeats(new_view, f"input[{place}]"):
            found.add(place)
    return frozenset(found)


class _KnownCalls:
    """The calls so far, and the results of each."""

    def __init__(self, new: Sequence[CallView]) -> None:
        """`new` are all items of the input: a result may stand before its call."""
        self._open: Counter[str] = Counter()
        self._results: dict[str, set[Form]] = defaultdict(set)
        self._servers: dict[str, CallView] = {}
        self._requests: dict[str, str] = {}
        """The ids of approval requests, by the ids of their calls."""
        self._request_ids = {view.item.id for view in new if view.part == "request"}
        self._decisions: dict[str, bool] = {}
        self._given: dict[str, bool] = {}
        """The decisions of the input."""
        self._sent: dict[str, FunctionKind] = {}
        """The calls of the input whose ids were made here: each of those is one call."""
        self._later = Counter(view.call_id for view in new if view.part == "call" and view.owner != "server")
        self._early: Counter[str] = Counter()
        """How many results came before their calls."""
        self._later_servers = {view.call_id for view in new if view.is_mcp_call}

    def add(self, view: CallView) -> None:
        item = view.item
        if view.is_mcp_call:
            self._servers.setdefault(view.call_id, view)
            if view.result is not None:
                self._answer(view)
        elif isinstance(item, McpApprovalResponse):
            self._decisions.setdefault(item.approval_request_id, item.approve)
        elif view.part == "call":
            self._open[view.call_id] += 1
        elif view.part == "request":
            self._requests[view.call_id] = item.id
            self._request_ids.add(item.id)
        else:
            self._answer(view)

    def repeats(self, view: CallView, path: str) -> bool:
        """Whether an item of the input repeats a known call or result. It is added where it does not."""
        item, call_id = view.item, view.call_id
        if view.part == "result":
            return self._repeats_result(view, path)
        if isinstance(item, McpApprovalResponse):
            if self._repeats_decision(item, f"{path}.approval_request_id"):
                return True
        elif view.is_mcp_call:
            if view.result is not None and self._repeats_run(view, path):
                return True
        elif view.part == "call":
            self._later[call_id] -= 1
            if is_function(item) and is_made_here(call_id):
                sent = self._sent.get(call_id)
                # Both are whole, or both were cut off.
                is_alike = sent is not None and (item.status == "incomplete") is (sent.status == "incomplete")
                if sent is not None and is_alike and _difference(item, sent) is None:
                    return True
                self._sent[call_id] = item
            if self._early[call_id]:
                self._early[call_id] -= 1
                return False
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

    def _repeats_run(self, view: CallView, path: str) -> bool:
        call_id, known = view.call_id, self._servers.get(view.call_id)
        if known is not None and not is_same(view.item, known.item):
            return False  # ids may repeat in a client's history: this is another call
        if call_id in self._requests and view.part != "run":
            self._check_approved(call_id, f"{path}.id")
        if not self._results[call_id]:
            return False
        if not self._results[call_id].isdisjoint(_forms(view)):
            return True
        field = "error" if getattr(view.item, "error", None) is not None else "output"
        raise _duplicate(f"{path}.{field}", call_id)

    def _repeats_result(self, view: CallView, path: str) -> bool:
        call_id = view.call_id
        if view.owner == "foreign" and not (call_id in self._open or call_id in self._later):
            return False  # the result of an unknown call says nothing to the model
        if self._open[call_id] <= 0:
            if not self._results[call_id].isdisjoint(_forms(view)):
                return True
            if self._later[call_id] > self._early[call_id]:
                self._early[call_id] += 1
                self._results[call_id].update(_forms(view))
                return False
            if self._results[call_id]:
                raise _duplicate(f"{path}.call_id", call_id)
            if call_id not in self._servers and call_id not in self._later_servers:
                if call_id not in self._requests:
                    problem = f"no call with id {call_id[:_LONGEST_ID]!r} in this conversation."
                    raise InvalidField(f"{path}.call_id", problem, code="unknown_call_id")
                self._check_approved(call_id, f"{path}.call_id")
        self._answer(view)
        return False

    def _check_approved(self, call_id: str, place: str) -> None:
        """Refuse a client's own answer to a call before its approval is decided about."""
        request_id = self._requests[call_id]
        is_approved = self._decisions.get(request_id)
        if is_approved is None:
            problem = (
                f"the call waits for an approval. Send an 'mcp_approval_response' for {request_id[:_LONGEST_ID]!r}."
            )
            raise InvalidField(place, problem, code="not_a_client_call")
        if not is_approved and not self._results[call_id]:
            raise InvalidField(place, "the call was denied.", code="duplicate_output")

    def _answer(self, view: CallView) -> None:
        self._open[view.call_id] -= self._open[view.call_id] > 0
        self._results[view.call_id].update(_forms(view))


def _duplicate(place: str, call_id: str) -> InvalidField:
    problem = f"the call {call_id[:_LONGEST_ID]!r} has another result already."
    return InvalidField(place, problem, code="duplicate_output")


def _forms(view: CallView) -> list[Form]:
    """Return all forms of a result: of a server's call, clients leave out the error or the output."""
    item = view.item
    if not isinstance(item, McpCall):
        return [] if (result := view.result) is None else [form_of(result)]
    texts: list[Output | UnsetType | None] = [item.error_text, item.output, item.content]
    return [form_of(result) for result in texts if result is not None and result is not UNSET]
