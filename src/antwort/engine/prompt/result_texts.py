"""What the model is told that calls came to. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from antwort.api.items import (
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
)
from antwort.api.wire import UNSET
from antwort.engine.history.calls import call_id_of, is_bare, is_same, requested_call, result_of
from antwort.engine.history.decisions import NO_APPROVAL, decided, told_of
from antwort.engine.history.latest import Turns
from antwort.tools.base import Output


class Results(msgspec.Struct, frozen=True):
    """Of all calls, wherever the results stand."""

    found: Mapping[str, deque[Output]]
    """By the ids of the calls. Ids may repeat in a client's history; their order tells."""
    late: frozenset[str] = frozenset()
    """The calls that were decided about when the model had spoken since. It was told by then that nobody had decided:
    it hears of them again where they were run.
    """

    shown: frozenset[str] = frozenset()
    """The calls that were to be approved and show as they were run, under other ids."""

    def is_late(self, item: McpCall) -> bool:
        """Whether the item shows how such a call was run."""
        return bool(self.late) and item.approval_request_id is not UNSET and call_id_of(item) in self.late


def results_of(stretches: Sequence[Sequence[InputItem]], fates: Mapping[str, str]) -> Results:
    """`fates` are what is known of calls that nobody has decided about here."""
    found: dict[str, deque[Output]] = defaultdict(deque)
    requests: list[McpApprovalRequest] = []
    for stretch in stretches:
        for item in stretch:
            if isinstance(item, McpApprovalRequest):
                requests.append(item)
            elif (result := result_of(item)) is not None and (call_id := call_id_of(item)) is not None:
                found[call_id].append(result)
    return _with_decisions(found, requests, stretches, fates) if requests else Results(found)


def _with_decisions(
    found: dict[str, deque[Output]],
    requests: Sequence[McpApprovalRequest],
    stretches: Sequence[Sequence[InputItem]],
    fates: Mapping[str, str],
) -> Results:
    late = frozenset(call_id for call_id in _decided_late(stretches) if found.get(call_id))
    for call_id in late:
        found[call_id].appendleft(NO_APPROVAL)
    given = decided([item for stretch in stretches for item in stretch])
    shown = frozenset(_run_unnamed(requests, stretches, found, given))
    for call_id, reason in _unrun(requests, given, fates):
        if not found[call_id]:
            found[call_id].append(reason)
    return Results(found, late, shown)


def _decided_late(stretches: Iterable[Sequence[InputItem]]) -> Iterator[str]:
    """The ids of the calls between which and the decision about them the model has said something. What was decided
    elsewhere shows by its run alone.
    """
    turns = Turns()
    asked: dict[str, int] = {}
    for stretch in stretches:
        turns.part()
        for item in stretch:
            turns.add(item)
            if isinstance(item, McpApprovalRequest):
                asked.setdefault(item.id, turns.number)
            elif (meant := _decided_in(item)) is not None and asked.pop(meant, turns.number) < turns.number:
                yield requested_call(meant)


def _decided_in(item: InputItem) -> str | None:
    """The id of the request that it is a decision about, or shows one of."""
    if isinstance(item, McpApprovalResponse):
        return item.approval_request_id
    asked = item.approval_request_id if isinstance(item, McpCall) else UNSET
    return None if asked is UNSET else asked


def _run_unnamed(
    requests: Iterable[McpApprovalRequest],
    stretches: Iterable[Sequence[InputItem]],
    found: Mapping[str, deque[Output]],
    given: Mapping[str, McpApprovalResponse],
) -> Iterator[str]:
    """The ids of the calls whose runs show, and do not say that they were approved: some clients leave that out."""
    runs = [item for stretch in stretches for item in stretch if isinstance(item, McpCall)]
    runs = [item for item in runs if item.approval_request_id is UNSET and not is_bare(item)]
    for request in requests if runs else ():
        call_id, decision = requested_call(request.id), given.get(request.id)
        if decision is None or not decision.approve or found.get(call_id):
            continue
        if (run := next((each for each in runs if is_same(request, each)), None)) is not None:
            runs.remove(run)
            yield call_id


def _unrun(
    requests: Iterable[McpApprovalRequest], given: Mapping[str, McpApprovalResponse], fates: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What the model is told of the calls that were to be approved and that nobody ran, by their ids."""
    for request in requests:
        call_id, decision = requested_call(request.id), given.get(request.id)
        reason = fates.get(call_id) if decision is None else None
        if (reason := reason or told_of(decision)) is not None:
            yield call_id, reason
