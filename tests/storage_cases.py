"""Small conversations to keep in a store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antwort import Identity, Response
from antwort.api.decoding import Limits
from antwort.api.events import Mark, TurnEnded
from antwort.api.item_parsing import read_input
from antwort.api.items import InputItem, Message, OutputItem, OutputText
from antwort.api.resources import Conversation
from antwort.api.responses import Usage
from antwort.api.status import ResponseStatus
from antwort.api.wire import Plain, encode, replace
from antwort.ids import new_id
from antwort.storage.base import Entry, Link, NewResponse, ResponseStore

ME = Identity("acme", "ann")
COLLEAGUE = Identity("acme", "bob")
STRANGER = Identity("other", "ann")
STOPPED: tuple[tuple[int, Mark], ...] = ((1, TurnEnded(finish="stop", usage=Usage(input_tokens=3, total_tokens=3))),)


def asked(
    value: str | list[Plain],
    *,
    after: str | None = None,
    identity: Identity = ME,
    response_id: str | None = None,
    status: ResponseStatus = "in_progress",
) -> NewResponse:
    """What stands before the first inference, for `value` as the input of a request."""
    items, raw = read_input(value, Limits())
    response = Response(
        id=response_id or new_id("resp"),
        created_at=1_700_000_000,
        status=status,
        model="test-model",
        previous_response_id=after,
        metadata={"topic": "weather"},
        tools=({"type": "function", "name": "look", "parameters": {"type": "object"}},),
    )
    request = msgspec.json.encode({"model": "test-model", "input": value, "x_unknown": [1, None, 2.5]})
    return NewResponse(identity=identity, response=response, request=request, input=items, raw_input=raw)


def message(text: str, item_id: str | None = None) -> Message:
    return Message(id=item_id or new_id("msg"), role="assistant", content=(OutputText(text=text),))


def ended(new: NewResponse, *output: OutputItem, status: ResponseStatus = "completed") -> Response:
    at = 1_700_000_005 if status == "completed" else None
    return replace(new.response, status=status, completed_at=at, output=output, usage=Usage(input_tokens=3))


async def tell(
    store: ResponseStore,
    value: str | list[Plain],
    *output: OutputItem,
    after: str | None = None,
    identity: Identity = ME,
    response_id: str | None = None,
    status: ResponseStatus = "completed",
) -> Response:
    """A whole response, begun and finished."""
    new = asked(value, after=after, identity=identity, response_id=response_id)
    response = ended(new, *output, status=status)
    await store.begin(new)
    await store.finish(identity, response, STOPPED)
    return response


async def tell_chain(store: ResponseStore, *names: str, after: str | None = None) -> None:
    """Responses that follow one another, each with its name as id, question and answer."""
    for name in names:
        await tell(store, f"{name}?", message(f"{name}!"), after=after, response_id=name)
        after = name


async def chain_of(store: ResponseStore, response_id: str) -> list[str]:
    return [link.response.id for link in await store.chain(ME, response_id)]


def texts(items: Sequence[InputItem]) -> list[str]:
    """What is said in the messages of `items`."""
    return [part.text for item in items if isinstance(item, Message) for part in item.content if hasattr(part, "text")]


def said(links: Sequence[Link]) -> list[str]:
    """The conversation, in its order."""
    return [text for link in links for text in (*texts(link.input), *texts(link.output))]


# ---- conversations ----


def entries(*values: str | Plain) -> list[Entry]:
    """What is added for these items of a client; a text is what a user says."""
    plain = [{"role": "user", "content": value} if isinstance(value, str) else value for value in values]
    items, raw = read_input(plain, Limits())
    return [Entry(item=item, raw=of_item) for item, of_item in zip(items, raw, strict=True)]


def answer(*output: OutputItem) -> list[Entry]:
    """What is added for these items of a response."""
    return [Entry(item=item, raw=encode(item), direction="output") for item in output]


async def open_conversation(
    store: ResponseStore, *values: str | Plain, identity: Identity = ME, conversation_id: str | None = None
) -> Conversation:
    conversation = Conversation(
        id=conversation_id or new_id("conv"), created_at=1_700_000_000, metadata={"topic": "weather"}
    )
    await store.begin_conversation(identity, conversation, entries(*values))
    return conversation


async def said_in(store: ResponseStore, conversation_id: str, identity: Identity = ME) -> list[str]:
    """The texts of a conversation, oldest first."""
    items = await store.said(identity, conversation_id)
    assert items is not None, "no such conversation"
    return texts(items)
