"""Values that fit a JSON schema, always the same for the same schema. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]


def fitting(schema: Schema, root: Schema | None = None) -> Any:
    """The plainest value that fits; only as much of JSON Schema as clients write."""
    root = schema if root is None else root
    if "$ref" in schema:
        return fitting(_resolved(schema["$ref"], root), root)
    for fixed in ("const", "default"):
        if fixed in schema:
            return schema[fixed]
    if schema.get("enum"):
        return schema["enum"][0]
    for branches in ("anyOf", "oneOf", "allOf"):
        if schema.get(branches):
            return fitting(_first(schema[branches]), root)
    return _of_type(schema, root)


def _of_type(schema: Schema, root: Schema) -> Any:
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties: dict[str, Schema] = schema.get("properties", {})
            wanted: Iterable[str] = schema.get("required", properties)
            return {name: fitting(properties[name], root) for name in wanted}
        case "array":
            return [fitting(schema.get("items", {}), root)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "walrus"


def _first(branches: list[Schema]) -> Schema:
    return next((branch for branch in branches if branch.get("type") != "null"), branches[0])


def _resolved(reference: str, root: Schema) -> Schema:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    assert isinstance(found, dict)
    return found


def fitted(wanted: dict[str, Any], schema: Schema) -> Any:
    """What fits, with the fields of `wanted` that the schema has."""
    made = fitting(schema)
    if not isinstance(made, dict):
        return made
    return made | {name: value for name, value in wanted.items() if name in schema.get("properties", {})}
