"""Inferences from which something was left out are counted, each once."""

from __future__ import annotations

from serving import HELLO, RESPONSES, serving
from telemetry_kit import Wired, samples_of, value
from window_kit import SmallModel, words


async def test_only_truncated_inferences_are_counted() -> None:
    model = SmallModel(400, length=None)  # which refuses it at first; then that is known
    wired = Wired(model)
    async with serving(wired.engine, wired.app) as server:
        before = samples_of((await server.ask("GET", "/metrics")).body.decode())
        first = (await server.ask("POST", RESPONSES, {**HELLO, "input": words(200)})).json()
        second = {**HELLO, "input": words(250), "previous_response_id": first["id"], "truncation": "auto"}
        for body in (second, second):
            assert (await server.ask("POST", RESPONSES, body)).json()["status"] == "completed"
        assert (await server.ask("POST", f"{RESPONSES}/input_tokens", second)).status == 200
        after = samples_of((await server.ask("GET", "/metrics")).body.decode())
    assert value(before, "antwort_inferences_truncated_total") == 0
    assert value(after, "antwort_inferences_truncated_total") == 2
    assert len(model.refused) == 1
