"""Load what a request continues, and put its history together with the calls in it that are still to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from antwort.api.decoding import Steps
from antwort.api.items import InputItem, Message
from antwort.api.requests import CreateRequest
from antwort.api.wire import replace
from antwort.engine.context.compaction_item import EffectiveHistory, Memories, MemoryLost, since_compaction
from antwort.engine.history.calls import CALL_TYPES, CallIndex
from antwort.engine.history.deduplication import referring, repeated_steps
from antwort.engine.history.earlier_calls import EarlierCalls, EarlierItems, answered_by_client
from antwort.engine.history.memory_limit import HistoryReader
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.history.turns import uninterrupted_steps
from antwort.engine.plan import History
from antwort.engine.prompt.discovery import Discovery
from antwort.errors import Conflict, ConversationNotFound, InvalidField, ResponseNotFound
from antwort.event_loop import in_turns
from antwort.identity import Identity
from antwort.storage.base import Link, ResponseStore
from antwort.tools.routing import Toolbox

_MESSAGE_ONLY = frozenset({Message})
_MEMORY_LOST = (
    "it was compacted, and what was kept of it cannot be opened: it was changed, is somebody else's, or the key that "
    "sealed it is gone."
)


def is_all_new(request: CreateRequest) -> bool:
    """Return whether the request continues nothing and refers to nothing: there is nothing to look up or to run."""
    is_first = request.previous_response_id is None and request.conversation is None
    return is_first and _MESSAGE_ONLY.issuperset(map(type, request.input))


# ---- loading ----


async def load_chain(
    request: CreateRequest, store: ResponseStore, identity: Identity, reader: HistoryReader
) -> tuple[Link, ...]:
    """Return the response that the request continues and its ancestors, oldest first."""
    parent = request.previous_response_id
    if parent is None:
        return ()
    chain = await reader.chain(parent)
    if not chain:
        raise ResponseNotFound(parent, param="previous_response_id")
    last = chain[-1].response
    if last.status in ("queued", "in_progress"):
        problem = f"The response {parent!r} is still running."
        raise Conflict(problem, param="previous_response_id", code="response_in_progress")
    # A turn of a conversation holds less than the conversation. Where that was deleted, the turn is all there is.
    if last.conversation and await store.conversation(identity, last.conversation.id) is not None:
        instead = f"Go on with 'conversation': {last.conversation.id!r} instead."
        raise InvalidField("previous_response_id", f"the response is a turn of a conversation. {instead}")
    return chain


async def load_conversation(
    request: CreateRequest, store: ResponseStore, identity: Identity, reader: HistoryReader
) -> tuple[InputItem, ...]:
    """Return the items of the conversation that the request continues, oldest first."""
    conversation = request.conversation
    if conversation is None:
        return ()
    items = await reader.read(lambda bound: store.said(identity, conversation, bound), "conversation")
    if items is None:
        raise ConversationNotFound(conversation, param="conversation")
    return items


# ---- putting it together ----


def unrepeated_steps(
    request: CreateRequest,
    chain: Sequence[Link],
    conversation: tuple[InputItem, ...],
    memories: Memories,
) -> Steps[CreateRequest]:
    """Return the request with references in the place of results and decisions that were sent before, in pieces.

    Raises `InvalidField` or `Conflict` for those that contradict what is there, or that answer no call.
    """
    if CALL_TYPES.isdisjoint(map(type, request.input)):
        return request
    counted = _since_compaction(_stretches(request, chain, conversation), memories, request)
    earlier = [item for stretch in counted.stretches[:-1] for item in stretch]
    return referring(request, (yield from repeated_steps(request.input, earlier, counted.skipped)))


async def assemble(
    request: CreateRequest,
    chain: Sequence[Link],
    toolbox: Toolbox,
    discovery: Discovery,
    sealed: SealedItems,
    conversation: tuple[InputItem, ...],
    askers: Mapping[str, Link],
) -> History:
    """Return the history with the new input, and the calls in it that are ours to run first.

    The items of a `conversation` count as put together by clients, who may change it at will. Of a compacted history,
    what is sealed counts, and not what stands before it. `askers` are the responses under whose tools calls were made
    that wait for approval, by the ids of the requests, where the chain does not tell.
    """
    history = _stretches(request, chain, conversation)
    history = replace(history, stretches=(*history.stretches[:-1], sealed.opened(request.input)))
    counted = _since_compaction(history, sealed.memories, request)
    ordered = await in_turns(uninterrupted_steps(counted.stretches, counted.inputs))
    items = [item for stretch in ordered for item in stretch]
    inputs = ordered[-2 if conversation else -1 :]
    own = items if counted.is_compacted else [item for stretch in inputs for item in stretch]
    chain_items = [item for link in chain for item in (*link.input, *link.output)]
    shown = await in_turns(CallIndex.steps([*chain_items, *own]))
    earlier = EarlierItems(
        chain=chain,
        items=items,
        own=own,
        answered=(await in_turns(CallIndex.steps(items))).answered,
        begun=frozenset(view.call_id for view in shown.views if view.part == "run"),
        is_compacted=counted.is_compacted,
        askers=askers,
    )
    leftovers, placeholders = await EarlierCalls(earlier, request, toolbox, discovery, sealed).find()
    answered = answered_by_client(chain, request.input, discovery)
    return replace(history, leftovers=leftovers, answered=answered, placeholders=placeholders)


def _stretches(request: CreateRequest, chain: Sequence[Link], conversation: tuple[InputItem, ...]) -> History:
    """Return each input, and each turn's items; results stand at the head of the stretch that follows their turn."""
    stretches: list[tuple[InputItem, ...]] = []
    inputs: list[int] = []
    for link in chain:
        inputs.append(len(stretches))
        stretches.append(link.input)
        ends = (0, *link.turn_ends, len(link.output))
        stretches += [items for span in pairwise(ends) if (items := link.said(*span))]
    kept = [len(stretches)] if conversation else []
    stretches += [conversation, request.input] if conversation else [request.input]
    inputs += [*kept, len(stretches) - 1]
    return History(tuple(stretches), (), frozenset(inputs), frozenset(kept))


def _since_compaction(history: History, memories: Memories, request: CreateRequest) -> EffectiveHistory:
    try:
        return since_compaction(history.stretches, history.inputs, memories, history.kept)
    except MemoryLost as lost:
        place = "previous_response_id" if request.conversation is None else "conversation"
        if lost.stretch == len(history.stretches) - 1:
            place = f"input[{lost.place}].encrypted_content"
        raise InvalidField(place, _MEMORY_LOST, code="invalid_encrypted_content") from lost
