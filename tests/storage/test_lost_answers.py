"""Commits without an answer: what was to be written is there once, whether it was written then or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import psycopg
import pytest
from psycopg.rows import TupleRow

from antwort.api.resources import Approval
from antwort.storage.base import Decision, LogPiece
from antwort.storage.postgres import PostgresStore
from storage_cases import ME, STOPPED, asked, ended, entries, message, open_conversation, said_in, tell, texts


@pytest.fixture
async def store(migrated_database: str) -> AsyncGenerator[PostgresStore, None]:
    store = await PostgresStore.open(migrated_database)
    yield store
    await store.close()


@pytest.fixture(params=["it was written", "it was not"])
def lost_answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The answer to the next commit is lost for each entry."""
    lost: list[str] = []
    execute = psycopg.Connection.execute

    def lose(connection: psycopg.Connection[TupleRow], query: bytes) -> psycopg.Cursor[TupleRow]:
        if query != b"COMMIT" or not lost:
            return execute(connection, query)
        if request.param == "it was written":
            execute(connection, query)
        connection.close()
        raise psycopg.OperationalError(lost.pop())

    monkeypatch.setattr(psycopg.Connection, "execute", lose)
    return lost


async def test_a_beginning_whose_answer_is_lost_is_there_once(store: PostgresStore, lost_answers: list[str]) -> None:
    await store.check()
    lost_answers.append("gone")
    new = asked("hello", response_id="r")
    await store.begin(new)
    assert lost_answers == []
    found = await store.get(ME, "r")
    assert found is not None
    assert found.status == "in_progress"
    assert texts((await store.chain(ME, "r"))[0].input) == ["hello"]


async def test_an_end_whose_answer_is_lost_is_there_once(store: PostgresStore, lost_answers: list[str]) -> None:
    new = asked("hello")
    await store.begin(new)
    lost_answers.append("gone")
    response = ended(new, message("once"))
    await store.finish(ME, response, STOPPED, log=[LogPiece(first=0, next=1, data=b"log")])
    assert lost_answers == []
    assert await store.get(ME, response.id) == response


async def test_a_conversation_whose_answer_is_lost_is_there_once(store: PostgresStore, lost_answers: list[str]) -> None:
    lost_answers.append("gone")
    conversation = await open_conversation(store, "first")
    assert lost_answers == []
    assert await said_in(store, conversation.id) == ["first"]


async def test_what_is_added_to_a_conversation_is_there_once_when_the_answer_is_lost(
    store: PostgresStore, lost_answers: list[str]
) -> None:
    conversation = await open_conversation(store, "first")
    given = entries("second", {"id": "msg_own", "role": "user", "content": "third"})
    lost_answers.append("gone")
    added = await store.add_entries(ME, conversation.id, given)
    assert added is not None
    assert [item.id for item in added] == [entry.item.id for entry in given]
    assert await said_in(store, conversation.id) == ["first", "second", "third"]


async def test_entries_whose_id_is_taken_are_there_once_when_the_answer_is_lost(
    store: PostgresStore, lost_answers: list[str]
) -> None:
    own = {"id": "msg_own", "role": "user", "content": "again"}
    conversation = await open_conversation(store, own)
    lost_answers.append("gone")
    added = await store.add_entries(ME, conversation.id, entries(own))
    assert await store.said(ME, conversation.id) == (*entries_of(own), *(added or ()))


def entries_of(own: dict[str, str]) -> list[object]:
    return [entry.item for entry in entries(own)]


async def test_whoever_deletes_hears_of_it_when_the_answer_is_lost(
    store: PostgresStore, lost_answers: list[str]
) -> None:
    response = await tell(store, "hello")
    conversation = await open_conversation(store, {"id": "msg_own", "role": "user", "content": "hello"})
    lost_answers.append("gone")
    assert await store.delete_entry(ME, conversation.id, "msg_own")
    lost_answers.append("gone")
    assert await store.delete_conversation(ME, conversation.id)
    lost_answers.append("gone")
    assert await store.delete(ME, response.id)
    assert lost_answers == []
    assert not await store.delete(ME, response.id)
    assert await store.conversation(ME, conversation.id) is None


async def test_what_is_not_there_was_not_deleted_when_the_answer_is_lost(
    store: PostgresStore, lost_answers: list[str]
) -> None:
    lost_answers.append("gone")
    assert not await store.delete(ME, "resp_of_nobody")
    assert lost_answers == []


async def test_a_decision_whose_answer_is_lost_is_made_once(store: PostgresStore, lost_answers: list[str]) -> None:
    new = asked("hello")
    await store.begin(new)
    waiting = Approval(
        id="mcpr_1",
        response_id=new.response.id,
        created_at=1,
        expires_at=2,
        server_label="depot",
        name="order",
        arguments="{}",
    )
    await store.finish(ME, ended(new), STOPPED, (), [waiting])
    lost_answers.append("gone")
    await store.decide(ME, "resp_2", [Decision(id="mcpr_1", status="approved")])
    assert lost_answers == []
    assert (await store.find_approvals(ME, ["mcpr_1"]))["mcpr_1"].decided_by == "resp_2"
