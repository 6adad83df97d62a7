"""What the tests of turns in conversations share: engines on either store, and what a conversation holds."""

from __future__ import annotations

from typing import Any

from antwort import Engine, Identity
from antwort.api.items import InputItem
from antwort.api.wire import to_plain
from antwort.identity import ANONYMOUS
from antwort.storage.base import Page, ResponseStore


async def begun(engine: Engine, *items: dict[str, Any], identity: Identity = ANONYMOUS) -> str:
    """The id of a new conversation with these items."""
    return (await engine.conversations.create([*items], identity=identity)).id


async def said(store: ResponseStore, conversation: str, identity: Identity = ANONYMOUS) -> tuple[InputItem, ...]:
    """All that a conversation holds, oldest first."""
    items = await store.said(identity, conversation)
    assert items is not None
    page = await store.conversation_items(identity, conversation, Page(limit=1000, order="asc"))
    assert page is not None
    assert page.items == items, "the list shows what the model is told"
    return items


def words(items: tuple[InputItem, ...]) -> list[str]:
    """Each item in short: what is said, and the type of what says nothing."""
    return [_words(to_plain(item)) for item in items]


def _words(item: dict[str, Any]) -> str:
    if item["type"] != "message":
        return str(item["type"])
    return f"{item['role']}: " + "".join(part["text"] for part in item["content"])


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}
