"""What was said before, and the calls in it that are still to be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalResponse,
    McpCall,
    Message,
    OpaqueItem,
)
from antwort.api.requests import CreateRequest
from antwort.api.wire import replace
from antwort.engine.context.compaction_item import Memories, MemoryLost, Said, since_compaction
from antwort.engine.history.client_results import repeated_results
from antwort.engine.history.credentials import Credentials
from antwort.engine.history.decisions import repeated_decisions
from antwort.engine.history.deduplication import referring
from antwort.engine.history.leftovers import Past, answered_by_client, find_leftovers
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.message_order import in_order
from antwort.engine.history.recent_responses import Records
from antwort.engine.plan import History
from antwort.engine.prompt.toolbox import Shelf
from antwort.errors import Conflict, ConversationNotFound, InvalidField, ResponseNotFound
from antwort.event_loop import Pace
from antwort.identity import Identity
from antwort.storage.base import Link, ResponseStore
from antwort.tools.routing import Toolbox


def is_all_new(request: CreateRequest) -> bool:
    """Whether nothing was said before, and nothing in the request stands for something else: then there is nothing to
    look up, and nothing left to run.
    """
    is_first = request.previous_response_id is None and request.conversation is None
    return is_first and _NEW.issuperset(map(type, request.input))


_NEW = frozenset({Message})


async def load_chain(
    request: CreateRequest, records: Records, store: ResponseStore, identity: Identity, reader: HistoryReader
) -> tuple[Link, ...]:
    """The earlier responses, oldest first."""
    parent = request.previous_response_id
    if parent is None:
        return ()
    chain = await reader.read(lambda bound: records.chain(identity, parent, bound), "previous_response_id")
    if not chain:
        raise ResponseNotFound(parent, param="previous_response_id")
    if chain[-1].response.status in ("queued", "in_progress"):
        problem = f"The response {parent!r} is still running."
        raise Conflict(problem, param="previous_response_id", code="response_in_progress")
    await _check_alone(chain[-1], store, identity)
    return chain


async def _check_alone(link: Link, store: ResponseStore, identity: Identity) -> None:
    """A turn of a conversation says less than the conversation does. Where that is gone, it is all there is."""
    turn_of = link.response.conversation
    if turn_of and await store.conversation(identity, turn_of.id) is not None:
        problem = f"the response is a turn of a conversation. Go on with 'conversation': {turn_of.id!r} instead."
        raise InvalidField("previous_response_id", problem)


async def load_said(
    request: CreateRequest, store: ResponseStore, identity: Identity, reader: HistoryReader
) -> tuple[InputItem, ...]:
    """The items of the conversation, oldest first."""
    conversation = request.conversation
    if conversation is None:
        return ()
    said = await reader.read(lambda bound: store.said(identity, conversation, bound), "conversation")
    if said is None:
        raise ConversationNotFound(conversation, param="conversation")
    return said


def without_repeats(
    request: CreateRequest,
    chain: Sequence[Link],
    said: tuple[InputItem, ...] = (),
    memories: Memories | None = None,
) -> CreateRequest:
    """Return the request with references in the place of results and decisions that were sent before.

    Raises `InvalidField` or `Conflict` for those that contradict what is there, or that answer no call.
    """
    if not any(isinstance(item, _PAIRED) for item in request.input):
        return request
    counted = _counted(_gathered(request, chain, said), memories, request)
    earlier = [item for stretch in counted.stretches[:-1] for item in stretch]
    repeated = repeated_results(request.input, earlier, counted.skipped)
    return referring(request, repeated | repeated_decisions(request.input, earlier, counted.skipped))


_PAIRED = (
    FunctionCall,
    FunctionCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    McpApprovalResponse,
    McpCall,
    OpaqueItem,
)
"""Calls and results: what may be sent again."""


async def assemble(
    request: CreateRequest,
    chain: Sequence[Link],
    toolbox: Toolbox,
    shelf: Shelf,
    credentials: Credentials,
    said: tuple[InputItem, ...] = (),
    memories: Memories | None = None,
    askers: Mapping[str, Link] | None = None,
) -> History:
    """All that was said before and the new input, and the calls in it that are ours to run first.

    What was `said` in a conversation counts as put together by clients: they may have changed it at will. Of what was
    compacted, what is sealed counts, and not what stands before it. `askers` are the responses under whose
    tools calls were made that wait for approval, by the ids of the requests, where the chain does not tell.
    """
    pace = Pace()
    history = _gathered(request, chain, said)
    counted = _counted(history, memories, request)
    ordered = in_order(counted.stretches, counted.inputs)
    await pace.pause()
    shown = [item for stretch in ordered for item in stretch]
    own = shown if counted.is_compacted else [item for stretch in ordered[-2 if said else -1 :] for item in stretch]
    past = Past(
        chain=chain,
        shown=shown,
        own=own,
        is_compacted=counted.is_compacted,
        memories=memories,
        askers=askers or {},
    )
    leftovers, fates = await find_leftovers(past, request, toolbox, shelf, credentials)
    await pace.pause()
    answered = answered_by_client(chain, request.input, shelf)
    return replace(history, leftovers=leftovers, answered=answered, fates=fates)


def _gathered(request: CreateRequest, chain: Sequence[Link], said: tuple[InputItem, ...]) -> History:
    stretches: list[tuple[InputItem, ...]] = []
    inputs: list[int] = []
    for link in chain:
        inputs.append(len(stretches))
        stretches += _stretches(link)
    kept = [len(stretches)] if said else []
    stretches += [said, request.input] if said else [request.input]
    inputs += [*kept, len(stretches) - 1]
    return History(tuple(stretches), (), frozenset(inputs), frozenset(kept))


def _counted(history: History, memories: Memories | None, request: CreateRequest) -> Said:
    try:
        return since_compaction(history.stretches, history.inputs, memories, history.kept)
    except MemoryLost as lost:
        place = "previous_response_id" if request.conversation is None else "conversation"
        if lost.stretch == len(history.stretches) - 1:
            place = f"input[{lost.place}].encrypted_content"
        raise InvalidField(place, _LOST, code="invalid_encrypted_content") from lost


_LOST = (
    "it was compacted, and what was kept of it cannot be opened: it was changed, is somebody else's, or the key that "
    "sealed it is gone."
)


def _stretches(link: Link) -> Iterable[tuple[InputItem, ...]]:
    """The input, then each turn's items; results stand at the head of the stretch that follows their turn."""
    yield link.input
    start = 0
    for end in (*link.turn_ends, len(link.output)):
        if said := link.said(start, end):
            yield said
        start = end
