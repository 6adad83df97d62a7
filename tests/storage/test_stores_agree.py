"""Whatever happens, in whatever order: both stores tell the same story."""

from __future__ import annotations

import asyncio
import itertools
from typing import Literal, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from antwort.api.status import IllegalTransition
from antwort.errors import ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import EVERYTHING, Page, ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.sql_store import SqlStore
from storage_cases import STOPPED, asked, ended, message

Act: TypeAlias = tuple[Literal["begin", "branch", "finish", "delete"], int]
ACTS = st.lists(
    st.tuples(st.sampled_from(["begin", "branch", "branch", "finish", "delete"]), st.integers(0, 40)), max_size=40
)
"""What is done, and to which of the responses so far."""
TENANTS = itertools.count()


class Teller:
    """Does the same to any store, under the same ids, and says what came of it."""

    def __init__(self, store: ResponseStore, identity: Identity) -> None:
        self.store, self.identity = store, identity
        self.count = 0

    async def act(self, act: Act) -> str:
        what, number = act
        target = f"resp_{number % max(self.count, 1)}"
        try:
            match what:
                case "begin" | "branch":
                    await self._begin(target if what == "branch" else None)
                case "finish":
                    await self._finish(target)
                case "delete":
                    return str(await self.store.delete(self.identity, target))
        except (ResponseNotFound, IllegalTransition) as exc:
            return type(exc).__name__
        return "done"

    async def _begin(self, after: str | None) -> None:
        name = f"resp_{self.count}"
        self.count += 1
        # An id of an item stands in every third response again.
        items = [{"role": "user", "content": name, "id": f"msg_{self.count % 3}"}]
        await self.store.begin(asked(items, after=after, response_id=name, identity=self.identity))

    async def _finish(self, name: str) -> None:
        response = ended(asked("", response_id=name), message(name, f"msg_{self.count % 3}"))
        await self.store.finish(self.identity, response, STOPPED)

    async def everything(self) -> list[object]:
        """All that can be found, for every response there ever was."""
        found: list[object] = [dict(await self.store.items(self.identity, ["msg_0", "msg_1", "msg_2"]))]
        found.append(await self.store.responses(self.identity, Page(limit=100), EVERYTHING))
        for number in range(self.count):
            name = f"resp_{number}"
            found.append(await self.store.get(self.identity, name))
            found.append(await self.store.chain(self.identity, name))
            found.append(await self.store.input_items(self.identity, name, Page()))
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
def test_postgresql_tells_the_same_story(acts: list[Act], on_postgres: SqlStore, runner: asyncio.Runner) -> None:
    runner.run(tell_both(on_postgres, acts))
