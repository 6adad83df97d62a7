"""The server's own description, to hold what it takes and writes against."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs

from antwort.api.wire import to_plain
from antwort.server.description import Offer
from antwort.server.openapi.document import document

Json = dict[str, Any]


@cache
def described() -> Json:
    """The document of a server that asks for no keys, with all routes there can be, as it reads off the wire."""
    plain: Json = to_plain(document(offer=Offer(credentials="none", metrics="open")))
    return plain


@cache
def schema_of(name: str) -> jsonschema_rs.Validator:
    """Validates what the document calls by this name."""
    return holding({"$ref": f"#/components/schemas/{name}"})


def holding(schema: Json) -> jsonschema_rs.Validator:
    """Validates against a schema that may refer to the document's."""
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return jsonschema_rs.validator_for({**whole, "components": described()["components"]})


def faults(name: str, value: object) -> list[str]:
    """What keeps the value from being what the document calls by this name."""
    return [
        f"{'/'.join(map(str, fault.instance_path))}: {fault.message}" for fault in schema_of(name).iter_errors(value)
    ]
