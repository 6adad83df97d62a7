"""`GET /openapi.json`: what is offered is described, and what is described is offered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31

from antwort.api.decoding import Limits
from antwort.api.events import StreamEvent
from antwort.api.items import KnownItem, OutputItem
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.server.auth import Keyring
from antwort.server.exchange import Exchange
from antwort.server.http import Transport
from antwort.server.offer import Offer
from antwort.server.openapi import OPERATIONS, document
from antwort.server.openapi_schemas import members, tag_of
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider
from key_kit import a_key, bearing
from openapi_kit import described
from serving import serving

METHODS = {"get", "post", "delete"}


def make_engine(**settings: Any) -> Engine:
    return Engine(ScriptedProvider(), store=MemoryStore(), settings=EngineSettings(**settings))


async def extra(exchange: Exchange, _: str) -> None:
    await exchange.answer(b"{}")


def keyed(engine: Engine, ring: Keyring) -> Transport:
    return Transport(engine, identify=ring.identify, quotas=ring.quotas, credentials="key")


def operations(plain: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), address) for address, methods in plain["paths"].items() for method in METHODS & {*methods}}


async def test_every_route_is_described_and_nothing_else_is() -> None:
    app = Transport(make_engine(), extra={"/metrics": extra})
    async with serving(app._engine, app) as server:
        plain = (await server.ask("GET", "/openapi.json")).json()
    offered = app._routes.offered().keys()
    assert operations(plain) == {(method, address) for method, address in offered if method != "HEAD"}
    assert {address for method, address in offered if method == "HEAD"} == {
        address for method, address in offered if method == "GET"
    }


async def test_a_server_without_metrics_describes_none_and_an_added_route_is_described_by_its_address() -> None:
    app = Transport(make_engine(), extra={"/ours/v2.json": extra})
    async with serving(app._engine, app) as server:
        plain = (await server.ask("GET", "/openapi.json")).json()
    assert "/metrics" not in plain["paths"]
    assert plain["paths"]["/ours/v2.json"]["get"]["operationId"] == "getOursV2Json"


def test_every_row_is_of_a_route_that_there_is() -> None:
    routes = Transport(make_engine(), extra={"/metrics": extra})._routes
    assert OPERATIONS.keys() == {place for place in routes.offered() if place[0] != "HEAD"}


def test_the_document_is_valid_openapi_and_each_schema_is_a_valid_schema() -> None:
    plain = described()
    assert [fault.message for fault in jsonschema_rs.validator_for(OPENAPI_31).iter_errors(plain)] == []
    for schema in plain["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(entry, str) and (key == "$ref" or entry.startswith("#/")):
                yield entry
            yield from references(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from references(entry)


def test_every_reference_leads_somewhere_and_every_component_is_referred_to() -> None:
    plain = described()
    there = {f"#/components/{kind}/{name}" for kind, found in plain["components"].items() for name in found}
    assert set(references(plain)) - there == set()
    assert there - set(references(plain)) == set()


def test_operations_have_names_of_their_own() -> None:
    names = [
        row["operationId"] for methods in described()["paths"].values() for row in methods.values() if "tags" in row
    ]
    assert len(names) == len(set(names))


def test_every_event_and_every_item_is_described() -> None:
    schemas = described()["components"]["schemas"]
    assert schemas["StreamEvent"]["discriminator"]["mapping"].keys() == {tag_of(each) for each in members(StreamEvent)}
    assert schemas["OutputItem"]["discriminator"]["mapping"].keys() == {tag_of(each) for each in members(OutputItem)}
    taken = {entry["$ref"].rpartition("/")[2] for entry in schemas["InputItemParam"]["anyOf"]}
    assert taken == {f"{each.__name__}Param" for each in members(KnownItem)} | {"OtherItemParam"}


def test_the_document_is_the_same_each_time() -> None:
    assert json.dumps(document()) == json.dumps(document())


def test_the_limits_in_force_are_told() -> None:
    made = document(offer=Offer(limits=Limits(input_items=7, tools=8, metadata_keys=9)))
    fields = made["components"]["schemas"]["CreateResponse"]["properties"]
    assert fields["input"]["anyOf"][1]["maxItems"] == 7
    assert fields["tools"]["anyOf"][0]["maxItems"] == 8
    assert fields["metadata"]["anyOf"][0]["maxProperties"] == 9


async def test_the_limits_of_the_engine_are_those_in_the_document() -> None:
    engine = make_engine(limits=Limits(input_items=7))
    async with serving(engine) as server:
        plain = (await server.ask("GET", "/openapi.json")).json()
    assert plain["components"]["schemas"]["CreateResponse"]["properties"]["input"]["anyOf"][1]["maxItems"] == 7


@pytest.mark.parametrize("is_keyed", [True, False])
async def test_a_key_is_asked_for_only_where_the_server_asks_for_one(is_keyed: bool) -> None:
    ring = Keyring([a_key("sk-ann", "ann")])
    engine = make_engine()
    app = keyed(engine, ring) if is_keyed else Transport(engine)
    async with serving(engine, app) as server:
        plain = (await server.ask("GET", "/openapi.json")).json()
        assert (await server.ask("GET", "/openapi.json", None, bearing("sk-ann"))).json() == plain
    locked = {place for place in operations(plain) if "security" in plain["paths"][place[1]][place[0].lower()]}
    assert locked == ({place for place in operations(plain) if place[1].startswith("/v1/")} if is_keyed else set())
    assert ("securitySchemes" in plain["components"]) is is_keyed
    assert ("asks for API keys" in plain["info"]["description"]) is is_keyed


async def test_what_a_client_has_already_is_not_sent_again() -> None:
    async with serving(make_engine()) as server:
        for path in ("/openapi.json", "/docs", "/docs/swagger-ui.css"):
            first = await server.ask("GET", path)
            again = await server.ask("GET", path, None, {"if-none-match": f'"x", W/{first.headers["etag"]}'})
            other = await server.ask("GET", path, None, {"if-none-match": '"x"'})
            head = await server.ask("HEAD", path)
            assert (first.status, other.status, head.status) == (200, 200, 200)
            assert first.body == other.body
            assert head.headers["content-length"] == str(len(first.body))
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])


def test_the_errors_of_an_operation_are_those_it_can_end_in() -> None:
    paths = described()["paths"]
    assert list(paths["/v1/responses"]["post"]["responses"]) == (
        ["200", "400", "401", "403", "404", "408", "409", "413", "415", "429", "431", "500", "501", "502", "503", "504"]
    )
    assert list(paths["/healthz"]["get"]["responses"]) == ["200", "400", "408", "431", "500", "501", "503"]


def test_the_headers_of_a_retry_with_a_key_are_described() -> None:
    plain = described()
    created = plain["paths"]["/v1/responses"]["post"]["responses"]
    assert "Idempotent-Replayed" in created["200"]["headers"]
    conflict = plain["components"]["responses"]["Conflict"]
    assert {"Retry-After", "X-Should-Retry"} <= conflict["headers"].keys()
