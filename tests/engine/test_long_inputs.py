"""Inputs of many items are planned in pieces: nobody else waits for all of them."""

from __future__ import annotations

from antwort.api.items import McpCall
from antwort.engine.history.calls import ITEMS_PER_STEP, CallIndex
from antwort.engine.history.references import call_id_steps
from antwort.engine.prompt.content_checks import media_steps
from antwort.net.media import MediaHosts

CALLS = [
    McpCall(id=f"mcp_{n}", server_label="s", name="f", arguments="{}", status="completed", output="x")
    for n in range(10 * ITEMS_PER_STEP)
]


def test_the_results_of_many_calls_are_looked_at_in_pieces() -> None:
    assert len([*call_id_steps(CALLS, CallIndex())]) >= 9


def test_addresses_in_many_items_are_looked_for_in_pieces() -> None:
    assert len([*media_steps(CALLS, "input", MediaHosts(()))]) >= 9
