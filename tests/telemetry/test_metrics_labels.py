"""Labels are closed sets, and keep up with what the server has."""

from __future__ import annotations

import pytest

from antwort import errors
from antwort.engine.engine import Engine
from antwort.errors import NotFound
from antwort.server.http import Transport
from antwort.telemetry.labels import OTHER, ROUTES, Names, code_of, method_of, route_of
from antwort.testing import ScriptedProvider
from telemetry_kit import Wired


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/responses", "/v1/responses"),
        ("/v1/%72esponses", "/v1/responses"),
        ("/v1/responses/", OTHER),
        ("/v1/responses/resp_1", "/v1/responses/{id}"),
        ("/v1/responses/responses", "/v1/responses/{id}"),
        ("/v1/responses/%7Bid%7D/cancel", "/v1/responses/{id}/cancel"),
        ("/v1/responses/a/input_items", "/v1/responses/{id}/input_items"),
        ("/v1/responses/a/other", OTHER),
        ("/v1/responses//cancel", OTHER),
        ("/v1/models", "/v1/models"),
        ("/v1/models/", OTHER),
        ("/v1/models/org/model", "/v1/models/{id}"),
        ("/v1/conversations", "/v1/conversations"),
        ("/v1/conversations/conv_1", "/v1/conversations/{id}"),
        ("/v1/conversations/conv_1/items", "/v1/conversations/{id}/items"),
        ("/v1/conversations/conv_1/items/msg%2F1", "/v1/conversations/{id}/items/{id}"),
        ("/v1/approvals", "/v1/approvals"),
        ("/v1/approvals/mcpr_1", "/v1/approvals/{id}"),
        ("/v1/approvals/mcpr_1/x", OTHER),
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
        ("/metrics", "/metrics"),
        ("/docs/swagger-ui.css", "/docs"),
        ("/docs/", OTHER),
        ("/", OTHER),
        ("", OTHER),
        ("/other", OTHER),
        ("/v1/responses/{id}/x/y", OTHER),
        ("/" + "x/" * 10_000, OTHER),
    ],
)
def test_a_path_becomes_the_template_of_its_route(path: str, route: str) -> None:
    assert route_of(path) == route
    assert route in ROUTES


async def test_every_address_that_is_offered_has_a_route_and_no_other() -> None:
    """A route that is added there and not here would be counted as `other`."""
    wired = Wired(ScriptedProvider())
    routes = wired.app._routes
    places = {
        path.replace("{id}", "x").replace("{item_id}", "y").replace("{name}", "x") for _, path in routes.offered()
    }
    assert {route_of(place) for place in places} == ROUTES - {OTHER}
    nowhere = ("/v1/conversations/", "/v1/conversations/a/b", "/v1/conversations/a/items/", "/v1/conversations//items")
    for path in (
        "/v1/responses/",
        "/v1/models/",
        "/v1/responses/a/b",
        "/x",
        *nowhere,
        "/v1/conversations/a%2Fb/items/c",
    ):
        assert route_of(path) == OTHER
        with pytest.raises(NotFound):
            routes.find("GET", path)
    await wired.engine.close()


@pytest.mark.parametrize(("method", "label"), [("GET", "GET"), ("POST", "POST"), ("get", OTHER), ("PROPFIND", OTHER)])
def test_a_method_that_is_not_known_is_other(method: str, label: str) -> None:
    assert method_of(method) == label


@pytest.mark.parametrize("code", ["", "rate_limit", "InternalServerError", "x" * 100])
def test_a_code_that_is_not_ours_is_other(code: str) -> None:
    assert code_of(code) == OTHER


def test_an_error_class_of_another_module_does_not_open_the_set() -> None:
    class Foreign(errors.BackendError):
        code = "foreign"

    assert code_of(Foreign("x").code) == OTHER


def test_names_are_bounded_in_number_and_length() -> None:
    names = Names(["first"], most=3)
    names.learn(f"model-{number}" for number in range(10))
    names.learn(["late"])
    assert [names.of(name) for name in ("first", "model-0", "model-1", "model-2", "late")] == [
        *("first", "model-0", "model-1"),
        *(OTHER, OTHER),
    ]
    assert Names(["x" * 129, ""]).of("x" * 129) == OTHER


async def test_a_transport_that_nobody_measures_has_no_metrics_to_read() -> None:
    engine = Engine(ScriptedProvider())
    assert ("GET", "/metrics") not in Transport(engine)._routes.offered()
    await engine.close()
