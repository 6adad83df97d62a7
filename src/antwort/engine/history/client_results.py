"""Match the results in a request's input with their calls, and find those that were sent before. Pure.

Clients send results again: after a retry, with the whole history, or twice in one input. An equal result is ignored, a
different one is an error. Only the history that the request continues and its own input count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    OpaqueItem,
)
from antwort.api.requests import CreateRequest
from antwort.api.wire import UNSET, encode, replace
from antwort.engine.history.calls import (
    call_id_of,
    call_shown_by,
    called_in,
    is_bare,
    is_function,
    is_made_here,
    is_run,
    is_same,
    requested_call,
    result_of,
    results_in,
)
from antwort.engine.history.deduplication import Call, Form, form_of, is_same_call, words_of
from antwort.errors import InvalidField
from antwort.ids import new_id

_OUTPUTS = (FunctionCallOutput, CustomToolCallOutput)
_ANSWERS = frozenset({*_OUTPUTS, McpCall})
_CALLS = (FunctionCall, CustomToolCall)


# ---- results for the calls of servers ----


def results_by_call_id(request: CreateRequest, earlier: Sequence[InputItem]) -> CreateRequest:
    """Return the request with its input as `with_call_ids` gives it."""
    items = with_call_ids(request.input, earlier)
    sent = [*zip(items, request.input, request.raw_input, strict=True)]
    if all(item is given for item, given, _ in sent):
        return request
    raw = tuple(raw if item is given else encode(item) for item, given, raw in sent)
    return replace(request, input=items, raw_input=raw)


def with_call_ids(items: Sequence[InputItem], earlier: Sequence[InputItem] = ()) -> tuple[InputItem, ...]:
    """Return the items with each client's result for a server's call as an output that carries the `call_id`.

    A client may name such a call by its `call_id` or by the `id` of the `mcp_call` item, or send that item back with an
    output. Everything behind this point sees one form.
    """
    if _ANSWERS.isdisjoint(map(type, items)):
        return tuple(items)
    names = _names((*earlier, *items))
    asked = {call_id_of(item): item for item in earlier if isinstance(item, McpCall) and is_bare(item)}
    answered = {*results_in(earlier)}
    found: list[InputItem] = []
    for item in items:
        result: InputItem = item
        if isinstance(item, _OUTPUTS):
            if item.call_id in names:
                result = replace(item, call_id=names[item.call_id])
            answered.add(names.get(item.call_id, item.call_id))
        elif isinstance(item, McpCall):
            call_id = call_id_of(item)
            if is_bare(item):
                asked.setdefault(call_id, item)
            else:
                is_open = call_id in asked and call_id not in answered and not is_run(item)
                if is_open and is_same(item, asked[call_id]):
                    result = _as_output(item, call_id)
                answered.add(call_id)
        found.append(result)
    return tuple(found)


def _names(items: Iterable[InputItem]) -> dict[str, str]:
    """Return the call ids of servers' calls by the ids of the items that show them."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for item in items:
        if isinstance(item, McpCall):
            found[item.id] = call_id_of(item)
        elif isinstance(item, McpApprovalRequest):
            found[item.id] = requested_call(item.id)
        elif isinstance(item, ItemReference) and (call_id := call_shown_by(item.id)) is not None:
            found[item.id] = call_id
        elif isinstance(item, _CALLS):
            taken.add(item.call_id)
    return {item_id: call_id for item_id, call_id in found.items() if item_id not in taken}


def _as_output(item: McpCall, call_id: str) -> FunctionCallOutput:
    result = result_of(item)
    assert result is not None, "a bare call is not an answer"
    is_error = UNSET if item.error is None else True
    return FunctionCallOutput(id=new_id("fco"), call_id=call_id, output=result, is_error=is_error)


# ---- results that were sent before ----


def repeated_results(items: Sequence[InputItem], earlier: Iterable[InputItem], first: int = 0) -> frozenset[int]:
    """Return the places of the items that repeat a result, or a call, that is there already. Of the items, those from
    the `first` on count.

    Raises `InvalidField` for a result that differs from the one there, or answers no call, or a call that waits for an
    approval.
    """
    new = items[first:]
    if (_ANSWERS | {*_CALLS, OpaqueItem}).isdisjoint(map(type, new)):
        return frozenset()
    calls = _Calls(new)
    for item in earlier:
        calls.add(item)
    return frozenset(place for place, item in enumerate(new, first) if calls.repeats(item, f"input[{place}]"))


class _Calls:
    """The calls so far, and the results of each."""

    def __init__(self, items: Sequence[InputItem]) -> None:
        """The `items` are those that are asked about later: a result may stand before its call."""
        self._open: Counter[str] = Counter()
        self._results: dict[str, set[Form]] = defaultdict(set)
        self._servers: dict[str, McpCall] = {}
        self._requests: dict[str, str] = {}
        """The ids of approval requests, by the ids of their calls."""
        self._decisions: dict[str, bool] = {}
        self._sent: dict[str, Call] = {}
        """The calls of the input whose ids were made here: each of those is one call."""
        self._later = Counter(call_id for item in items if (call_id := _asked(item)) is not None)
        self._early: Counter[str] = Counter()
        """How many results came before their calls."""
        self._later_servers = {call_id_of(item) for item in items if isinstance(item, McpCall)}

    def add(self, item: InputItem) -> None:
        """Take note of an item of the history."""
        if (call_id := _asked(item)) is not None:
            self._open[call_id] += 1
        elif isinstance(item, McpCall):
            self._servers.setdefault(call_id_of(item), item)
            if not is_bare(item):
                self._answer(call_id_of(item), _forms(item))
        elif isinstance(item, McpApprovalRequest):
            self._requests[requested_call(item.id)] = item.id
        elif isinstance(item, McpApprovalResponse):
            self._decisions.setdefault(item.approval_request_id, item.approve)
        elif (answer := _answer_in(item)) is not None:
            self._answer(*answer)

    def repeats(self, item: InputItem, path: str) -> bool:
        """Whether an item of the input repeats what is there. It is taken note of where it does not."""
        if isinstance(item, McpCall) and not is_bare(item):
            if self._repeats_run(item, path):
                return True
        elif (answer := _answer_in(item)) is not None:
            return self._repeats_answer(item, *answer, path)
        elif (call_id := _asked(item)) is not None:
            self._later[call_id] -= 1
            if isinstance(item, _CALLS) and is_made_here(call_id):
                if call_id in self._sent and is_same_call(item, self._sent[call_id]):
                    return True
                self._sent[call_id] = item
            if self._early[call_id]:
                self._early[call_id] -= 1
                return False
        self.add(item)
        return False

    def _repeats_run(self, item: McpCall, path: str) -> bool:
        call_id, known = call_id_of(item), self._servers.get(call_id_of(item))
        if known is not None and not is_same(item, known):
            return False  # ids may repeat in a client's history: this is another call
        if call_id in self._requests and not is_run(item):
            self._check_approved(call_id, f"{path}.id")
        if not self._results[call_id]:
            return False
        if self._is_equal(call_id, _forms(item)):
            return True
        field = "output" if item.error is None else "error"
        raise _duplicate(f"{path}.{field}", call_id)

    def _repeats_answer(self, item: InputItem, call_id: str, forms: Sequence[Form], path: str) -> bool:
        if isinstance(item, OpaqueItem) and not (call_id in self._open or call_id in self._later):
            return False  # the result of nothing that is known here says nothing to the model
        if self._open[call_id] <= 0:
            if self._is_equal(call_id, forms):
                return True
            if self._later[call_id] > self._early[call_id]:
                self._early[call_id] += 1
                self._results[call_id].update(forms)
                return False
            if self._results[call_id]:
                raise _duplicate(f"{path}.call_id", call_id)
            if call_id not in self._servers and call_id not in self._later_servers:
                if call_id not in self._requests:
                    problem = f"no call with id {call_id[:_LONGEST]!r} in this conversation."
                    raise InvalidField(f"{path}.call_id", problem, code="unknown_call_id")
                self._check_approved(call_id, f"{path}.call_id")
        self._answer(call_id, forms)
        return False

    def _check_approved(self, call_id: str, place: str) -> None:
        """A call that waits for an approval is decided about; only then may the client answer it itself."""
        request_id = self._requests[call_id]
        verdict = self._decisions.get(request_id)
        if verdict is None:
            problem = f"the call waits for an approval. Send an 'mcp_approval_response' for {request_id[:_LONGEST]!r}."
            raise InvalidField(place, problem, code="not_a_client_call")
        if not verdict and not self._results[call_id]:
            raise InvalidField(place, "the call was denied.", code="duplicate_output")

    def _answer(self, call_id: str, forms: Sequence[Form]) -> None:
        self._open[call_id] -= self._open[call_id] > 0
        self._results[call_id].update(forms)

    def _is_equal(self, call_id: str, forms: Sequence[Form]) -> bool:
        return not self._results[call_id].isdisjoint(forms)


_LONGEST = 100
"""Characters of a client's id that an error repeats."""


def _duplicate(place: str, call_id: str) -> InvalidField:
    problem = f"the call {call_id[:_LONGEST]!r} has another result already."
    return InvalidField(place, problem, code="duplicate_output")


def _asked(item: InputItem) -> str | None:
    """Return the id of the call that the item is. Servers' calls go by rules of their own."""
    return item.call_id if is_function(item) else called_in(item) if isinstance(item, OpaqueItem) else None


def _answer_in(item: InputItem) -> tuple[str, list[Form]] | None:
    """Return the id of the call that the item is a result of, and what it says."""
    if not isinstance(item, (*_OUTPUTS, OpaqueItem)) or (result := result_of(item)) is None:
        return None
    return call_id_of(item) or "", [form_of(result)]


def _forms(item: McpCall) -> list[Form]:
    """Return all that a server's call says of its result: clients leave out one or the other."""
    forms: list[Form] = [(text,) for text in (item.error_text, item.output) if text is not None]
    return forms if item.content is UNSET else [*forms, words_of(item.content)]
