"""A client chooses paths, methods, models, names and headers, but no label, and not how many series there are."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest

from antwort.errors import BackendError, RateLimited
from antwort.identity import Identity
from antwort.providers.base import CallDelta, ChatRequest
from antwort.server.exchange import Scope
from antwort.telemetry.labels import CODES, METHODS, OTHER, REASONS, ROUTES, STATUSES
from antwort.telemetry.metrics import Metrics
from antwort.testing import ScriptedProvider, answer, say
from antwort.testing.scripted import Piece
from engine_kit import WEATHER, weather_tool
from raw_http import Reply, connected
from serving import RESPONSES, Serving, serving
from telemetry_kit import Samples, Wired

SEED = 34
TRIES = 120
LETTERS = string.ascii_letters + string.digits + "%/.{}\"'=,~!$&()*+;:@-_"

CLOSED: dict[str, frozenset[str]] = {
    "http_request_method": METHODS | {OTHER},
    "http_route": ROUTES,
    "code": CODES | {OTHER},
    "error_type": CODES | {OTHER, "", "cancelled", "error", "timeout", "arguments", "handed"},
    "status": frozenset(STATUSES),
    "reason": REASONS | {OTHER},
    "backend": frozenset({"b0"}),
    "gen_ai_provider_name": frozenset({"b0"}),
    "gen_ai_operation_name": frozenset({"chat"}),
    "gen_ai_request_model": frozenset({"scripted", OTHER}),
    "gen_ai_token_type": frozenset({"input", "output"}),
    "tool": frozenset({"weather", OTHER}),
    "gen_ai_tool_name": frozenset({"weather", OTHER}),
    "server_label": frozenset({"", "antwort", OTHER}),
    "key": frozenset({"known", OTHER}),
}


class Parrot(ScriptedProvider):
    """A backend whose errors and calls say what the client wants them to."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def infer(self, request: ChatRequest) -> Any:
        self._answers = [self._next()]
        return super().infer(request)

    def _next(self) -> list[Piece]:
        word = noise(self._dice)
        match self._dice.randrange(5):
            case 0:
                return answer(BackendError("It broke.", code=word))
            case 1:
                return answer(RateLimited("Later.", code=word))
            case 2:
                return answer([CallDelta(0, word, "{}"), CallDelta(1, "weather", '{"city": "x"}')])
            case 3:
                return answer(say("Hm."), finish=word)
            case _:
                return answer(say("Hello."))


def noise(dice: random.Random) -> str:
    return "".join(dice.choices(LETTERS, k=dice.randint(1, 40)))


def body(dice: random.Random) -> dict[str, Any]:
    name = "".join(dice.choices(string.ascii_letters, k=12))
    return {
        "model": dice.choice(["scripted", noise(dice)]),
        "input": "Hello",
        "stream": dice.random() < 0.5,
        "tools": [WEATHER, {"type": "function", "name": name}, {"type": "mcp", "server_label": name}][
            : dice.randint(0, 3)
        ],
        "metadata": {name: name},
        "user": noise(dice),
        noise(dice): 1,
    }


async def annoy(server: Serving, dice: random.Random) -> Reply | None:
    """One request of a client that wants to be remembered."""
    method = dice.choice(["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "PURGE", "MKCOL"])
    places = [f"/{noise(dice)}", f"{RESPONSES}/{noise(dice)}", f"{RESPONSES}/{noise(dice)}/cancel", "/v1/models/x/y"]
    path = dice.choice([*places, RESPONSES, RESPONSES, f"{RESPONSES}?{noise(dice)}", "/v1/%72esponses"])
    if path.startswith(RESPONSES) and dice.random() < 0.6:
        method, path = "POST", RESPONSES
    headers = {"x-request-id": noise(dice), "user-agent": noise(dice), "openai-project": noise(dice)}
    async with connected(server.port) as wire:
        wire.send(method, path, body(dice) if method == "POST" else None, headers)
        try:
            return await wire.reply()
        except (ConnectionError, EOFError):
            return None


def check_closed(samples: Samples) -> None:
    for name, labels in samples:
        if name.startswith(("antwort_", "gen_ai_", "http_")):
            for label, text in labels:
                assert label not in CLOSED or text in CLOSED[label], (name, label, text)


@pytest.mark.proves("MISTAKE-34")
async def test_no_client_can_choose_a_label_or_how_many_series_there_are() -> None:
    dice = random.Random(SEED)

    def anybody(_: Scope) -> Identity:
        return Identity(key=dice.choice(["known", noise(dice)]))

    metrics = Metrics(models=["scripted"], keys=["known"])
    wired = Wired(Parrot(dice), weather_tool(), metrics=metrics, identify=anybody)
    statuses: set[int] = set()
    async with serving(wired.engine, wired.app) as server:
        for _ in range(TRIES):
            if (reply := await annoy(server, dice)) is not None:
                statuses.add(reply.status)
        half = wired.samples()
        for _ in range(TRIES):
            await annoy(server, dice)
        whole = wired.samples()
    check_closed(whole)
    assert {200, 400, 404, 405} <= statuses  # the noise has come far enough in
    seen = {text for (_, labels) in whole for _, text in labels}
    assert {"weather", "refused", OTHER, "scripted"} <= seen
    requests = [labels for name, labels in whole if name == "http_server_request_duration_seconds_count"]
    assert len(requests) <= 60
    assert len(whole) < len(half) * 1.2 + 100  # twice the noise, hardly a new series
