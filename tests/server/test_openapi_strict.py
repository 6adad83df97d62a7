"""The description of a server that writes to the letter of the standard: its answers fit it, and no other's do."""

from __future__ import annotations

import json
from functools import cache

import jsonschema_rs
import pytest

from antwort.api.wire import to_plain
from antwort.server.description import Offer
from antwort.server.openapi.document import document
from openapi_kit import Json
from scenes import SCENES, STREAMED, WHOLE, Scene, play

every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)


@cache
def schema_of(name: str) -> jsonschema_rs.Validator:
    plain: Json = to_plain(document(offer=Offer(credentials="none", metrics="open", strict=True)))
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": f"#/components/schemas/{name}"}
    return jsonschema_rs.validator_for({**whole, "components": plain["components"]})


@every_scene
async def test_what_is_written_fits_the_description(scene: Scene) -> None:
    played = await play(scene, streamed=STREAMED, strict=True)
    for event in played.events:
        schema_of("StreamEvent").validate(event)
    schema_of("Response").validate(played.stored)


async def test_what_is_written_without_the_setting_does_not() -> None:
    scene = next(scene for scene in SCENES if scene.name == "tools of a server")
    played = await play(scene, streamed=WHOLE)
    assert not schema_of("Response").is_valid(played.response)


async def test_the_types_that_events_are_told_apart_by_are_those_that_are_written() -> None:
    plain = document(offer=Offer(strict=True))["components"]["schemas"]
    for told in (plain["StreamEvent"]["discriminator"], plain["OutputItem"]["discriminator"]):
        for tag, place in told["mapping"].items():
            assert plain[place.rpartition("/")[2]]["properties"]["type"] == {"enum": [tag]}
    assert "antwort:response.mcp_call.failed" in plain["StreamEvent"]["discriminator"]["mapping"]


def test_the_event_that_this_setting_never_writes_is_not_described() -> None:
    assert "ResponseRequiresAction" not in json.dumps(document(offer=Offer(strict=True)))
    assert "ResponseRequiresAction" in json.dumps(document())


def test_the_statuses_are_those_that_the_standard_has_for_failures() -> None:
    described = document(offer=Offer(strict=True))["paths"]["/v1/responses"]["post"]["responses"]
    assert "500" in described
    assert not {"502", "503", "504"} & set(described)
    assert {"502", "503", "504"} <= set(document()["paths"]["/v1/responses"]["post"]["responses"])
