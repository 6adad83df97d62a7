"""Whatever is done to conversations, in whatever order: both stores tell the same story."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Literal, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api.items import InputItem
from antwort.api.resources import Conversation
from antwort.api.responses import ConversationRef
from antwort.api.wire import encode, replace
from antwort.identity import Identity
from antwort.storage.base import Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sql_store import SqlStore
from storage_cases import STOPPED, answer, asked, ended, entries, message

What: TypeAlias = Literal["begin", "describe", "add", "turn", "delete", "delete_entry"]
Act: TypeAlias = tuple[What, int, int]
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "describe", "add", "add", "turn", "turn", "delete", "delete_entry"]),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=30,
)
"""What is done, to which conversation, and with which item. Few of each: so ids are taken, freed and used again."""
TENANTS = itertools.count()
NAMES = [f"conv_{number}" for number in range(4)]
ITEMS = [f"msg_{number}" for number in range(6)]
MADE = re.compile(r"msg_[0-9a-f]{32}")


def shown(items: tuple[InputItem, ...] | None) -> object:
    """Items without the ids that were made for them, which differ."""
    return None if items is None else [MADE.sub("made", encode(item).decode()) for item in items]


class Teller:
    """Does the same to any store, under the same ids, and says what came of it."""

    def __init__(self, store: ResponseStore, identity: Identity) -> None:
        self.store, self.identity = store, identity
        self.count = 0
        self.begun: set[str] = set()

    async def act(self, act: Act) -> object:
        what, number, item = act
        name, item_id = NAMES[number], ITEMS[item]
        self.count += 1
        match what:
            case "begin":
                await self._begin(name, item_id)
            case "describe":
                return await self.store.describe_conversation(self.identity, name, {"count": str(self.count)})
            case "add":
                said = {"role": "user", "content": f"{self.count}", "id": item_id}
                return shown(await self.store.add_entries(self.identity, name, entries(said, said)))
            case "turn":
                await self._turn(name, item_id)
            case "delete":
                self.begun.discard(name)
                return await self.store.delete_conversation(self.identity, name)
            case "delete_entry":
                return await self.store.delete_entry(self.identity, name, item_id)
        return None

    async def _begin(self, name: str, item_id: str) -> None:
        if name not in self.begun:
            self.begun.add(name)
            said = entries({"role": "user", "content": "first", "id": item_id})
            await self.store.begin_conversation(self.identity, Conversation(id=name, created_at=1), said)

    async def _turn(self, name: str, item_id: str) -> None:
        new = asked(str(self.count), response_id=f"resp_{self.count}", identity=self.identity)
        new = replace(new, response=replace(new.response, conversation=ConversationRef(id=name)))
        said = [*entries({"role": "user", "content": "?", "id": item_id}), *answer(message("!", item_id))]
        await self.store.begin(new)
        await self.store.finish(self.identity, ended(new), STOPPED, said)

    async def everything(self) -> list[object]:
        found: list[object] = [shown(tuple((await self.store.items(self.identity, ITEMS)).values()))]
        for name in NAMES:
            found.append(await self.store.conversation(self.identity, name))
            found.append(shown(await self.store.said(self.identity, name)))
            page = await self.store.conversation_items(self.identity, name, Page(limit=3))
            found.append(None if page is None else (shown(page.items), page.has_more))
            found += [await self.store.conversation_item(self.identity, name, item_id) for item_id in ITEMS]
        return found


async def tell_both(on_postgres: SqlStore, acts: list[Act]) -> None:
    identity = Identity(f"tenant-{next(TENANTS)}", "ann")
    tellers = [Teller(MemoryStore(), identity), Teller(on_postgres, identity)]
    for act in acts:
        first, second = [await teller.act(act) for teller in tellers]
        assert first == second, act
    first_all, second_all = [await teller.everything() for teller in tellers]
    assert first_all == second_all


@settings(max_examples=40, deadline=None)
@given(acts=ACTS)
def test_postgresql_tells_the_same_of_conversations(
    acts: list[Act], on_postgres: SqlStore, runner: asyncio.Runner
) -> None:
    runner.run(tell_both(on_postgres, acts))
