"""What the store is told of a response when it starts, when it ends, and when it never began."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from antwort.api.additional_tools import is_additional
from antwort.api.credentials import KEY
from antwort.api.events import ResponseCreated, ResponseQueued, RunEvent, Span, is_within
from antwort.api.items import InputItem, McpListTools
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.api.status import IllegalTransition, transition
from antwort.api.wire import encode, replace
from antwort.engine.context.compaction_item import is_trigger
from antwort.engine.history.credentials import without_credentials
from antwort.engine.plan import Plan
from antwort.errors import AntwortError
from antwort.storage.base import Claim, Entry, NewResponse, ResponseStore
from antwort.storage.run_log.base import NewRun


def new_row(plan: Plan, claim: Claim | None = None, worker: str | None = None) -> NewResponse:
    """What it continues and no store keeps becomes a part of its input. `worker` is who makes it, where others could
    not tell otherwise.
    """
    unkept = [item for link in plan.history.chain if not link.response.store for item in (*link.input, *link.output)]
    items, raw = kept_input(plan)
    return NewResponse(
        identity=plan.identity,
        response=_on_record(plan) if unkept else plan.response,
        request=kept_request(plan),
        input=(*unkept, *items),
        raw_input=(*(encode(item) for item in unkept), *raw),
        claim=claim,
        approvals=brought_approvals(plan),
        decisions=plan.history.decisions,
        worker=worker,
    )


def brought_approvals(plan: Plan) -> tuple[Approval, ...]:
    """The decided approvals that are not on record yet: they are kept as those of the response that decides."""
    return tuple(replace(each, response_id=plan.response.id) for each in plan.history.brought_approvals)


def new_run(plan: Plan, claim: Claim | None = None) -> NewRun:
    """The same for whoever makes it: it waits, and its log begins with that."""
    row = new_row(plan, claim)
    queued = replace(row.response, status="queued")
    events: list[RunEvent] = [ResponseCreated(response=queued), ResponseQueued(response=queued)]
    return NewRun(new=msgspec.structs.replace(row, response=queued), events=events)


def _on_record(plan: Plan) -> Response:
    """The response as one that continues the last of those that are stored."""
    stored = [link.response.id for link in plan.history.chain if link.response.store]
    return replace(plan.response, previous_response_id=stored[-1] if stored else None)


def kept_request(plan: Plan) -> bytes:
    """The request as it came. What it brought to log in somewhere is not kept in clear."""
    if plan.credentials is None:
        return without_credentials(plan.request)
    return plan.credentials.kept(plan.request, plan.response.id)


def kept_input(plan: Plan) -> tuple[tuple[InputItem, ...], tuple[bytes, ...]]:
    """The input, and its JSON, with what the tools in it bring to log in somewhere sealed."""
    request, credentials = plan.request, plan.credentials
    if credentials is None or not any(map(is_additional, request.input)):
        return request.input, request.raw_input
    items = tuple(map(credentials.kept_item, request.input))
    pairs = zip(items, request.raw_input, strict=True)
    return items, tuple(encode(item) if is_additional(item) and KEY in item.fields else raw for item, raw in pairs)


ADDING = ("completed", "requires_action", "incomplete")
"""How a response ends that adds to its conversation."""


def new_entries(plan: Plan, response: Response, abandoned: Sequence[Span] = ()) -> tuple[Entry, ...]:
    """What the response as it ended adds to its conversation: the input, then the output. One that has failed or was
    cancelled adds nothing, so that the same request once more asks nothing twice. A list of tools that is there already
    is not added again, and what only asks for a compaction, or was said anew, is not added at all.
    """
    request = plan.request
    if request.conversation is None or response.status not in ADDING:
        return ()
    sent = zip(*kept_input(plan), strict=True)
    given = (Entry(item=item, raw=raw) for item, raw in sent if not is_trigger(item))
    output = (item for at, item in enumerate(response.output) if not is_within(abandoned, at))
    said = (Entry(item=item, raw=encode(item), direction="output") for item in output)
    earlier = (item for stretch in plan.history.stretches[:-1] for item in stretch)
    return tuple(_without_known_lists((*given, *said), earlier))


def _without_known_lists(entries: Iterable[Entry], earlier: Iterable[InputItem]) -> Iterator[Entry]:
    known = [_listed(item) for item in earlier if isinstance(item, McpListTools)]
    for entry in entries:
        if isinstance(entry.item, McpListTools):
            if (listed := _listed(entry.item)) in known:
                continue
            known.append(listed)
        yield entry


def _listed(item: McpListTools) -> tuple[object, ...]:
    return item.server_label, item.tools, item.error


async def end_unborn(plan: Plan, store: ResponseStore) -> None:
    """End the row of a response whose run was never set going, if there is one."""
    cancelled = replace(plan.response, status=transition(plan.response.status, "cancelled"))
    with contextlib.suppress(AntwortError, IllegalTransition):  # no row: nothing to end
        await store.finish(plan.identity, cancelled, ())
