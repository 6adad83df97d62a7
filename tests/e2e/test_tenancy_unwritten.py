"""An outcome that could not be written yet is its owner's, too: nobody else learns of it, or loses it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antwort.api.events import Mark
from antwort.api.resources import Approval
from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.errors import StoreFault
from antwort.identity import Identity
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.storage.base import Entry, PackedLog
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from key_kit import a_key, bearing
from serving import HELLO, RESPONSES, serving

ANN, BOB = bearing("sk-ann"), bearing("sk-bob")


class FullDisk(MemoryStore):
    """Takes no outcomes as long as it is full."""

    is_full = True

    async def finish(
        self,
        identity: Identity,
        response: Response,
        marks: Sequence[tuple[int, Mark]],
        entries: Sequence[Entry] = (),
        approvals: Sequence[Approval] = (),
        log: PackedLog | None = None,
    ) -> None:
        if self.is_full:
            raise StoreFault("The disk is full.")
        await super().finish(identity, response, marks, entries, approvals, log)


@pytest.mark.proves("RULING-6")
async def test_an_outcome_that_waits_to_be_written_is_hidden_from_others_and_survives_them() -> None:
    store, ring = FullDisk(), Keyring([a_key("sk-ann", "ann"), a_key("sk-bob", "bob")])
    engine = Engine(ScriptedProvider(answer(say("Hello"))), store=store)
    async with serving(engine, Transport(engine, identify=ring.identify)) as server:
        await server.ask("POST", RESPONSES, HELLO, ANN)
        [response_id] = engine.live_runs.unrecorded
        place = f"{RESPONSES}/{response_id}"
        for method, path in (("GET", place), ("DELETE", place), ("POST", f"{place}/cancel")):
            assert (await server.ask(method, path, None, BOB)).status == 404
        follow = {**HELLO, "previous_response_id": response_id}
        assert (await server.ask("POST", RESPONSES, follow, BOB)).status == 404
        assert (await server.ask("GET", RESPONSES, None, BOB)).status == 200
        assert (await server.ask("GET", RESPONSES, None, ANN)).status == 500
        store.is_full = False
        found = (await server.ask("GET", place, None, ANN)).json()
        assert (found["status"], found["error"]["message"]) == ("failed", "The disk is full.")


async def test_an_outcome_that_waits_to_be_written_goes_with_its_response() -> None:
    store, ring = FullDisk(), Keyring([a_key("sk-ann", "ann")])
    engine = Engine(ScriptedProvider(answer(say("Hello"))), store=store)
    async with serving(engine, Transport(engine, identify=ring.identify)) as server:
        await server.ask("POST", RESPONSES, HELLO, ANN)
        [response_id] = engine.live_runs.unrecorded
        assert (await server.ask("DELETE", f"{RESPONSES}/{response_id}", None, ANN)).status == 200
        assert engine.live_runs.unrecorded == {}
