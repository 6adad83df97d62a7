"""Schemas in HTML: what a value may be, in a few words and links. All text is escaped here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from antwort.api.wire import Plain

_CODE = re.compile("`([^`]+)`")


def prose(text: str) -> str:
    """Text with code in backticks, in one or several paragraphs."""
    return "".join(f"<p>{words(paragraph)}</p>" for paragraph in text.split("\n\n"))


def words(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def code(value: object) -> str:
    return f"<code>{escape(value if isinstance(value, str) else json.dumps(value))}</code>"


def link(name: str) -> str:
    return f'<a href="#{escape(anchor(name))}">{escape(name)}</a>'


def anchor(name: str) -> str:
    return f"schema-{name}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The cells are HTML."""
    head = "".join(f"<th>{escape(title)}</th>" for title in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def kind(schema: Plain) -> str:
    """What a value of this schema is."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    if "contentSchema" in schema:
        return f"the JSON of {kind(schema['contentSchema'])}"
    if "properties" in schema and schema.get("type") == "object":
        return _object(schema)
    for union in ("oneOf", "anyOf"):
        if union in schema:
            return " or ".join(kind(each) for each in schema[union])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    return _plain(schema)


def _plain(schema: Plain) -> str:
    match schema.get("type"):
        case "array":
            most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
            inner = kind(schema.get("items", {}))
            return f"list of {f'({inner})' if ' or ' in inner else inner}{most}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {kind(schema['additionalProperties'])}"
        case str(name):
            return f"{escape(name)}{_bounds(schema)}"
    return "anything"


def _object(schema: Plain) -> str:
    there = {name: field for name, field in schema["properties"].items() if field != {"not": {}}}
    fields = ", ".join(f"{code(name)}: {kind(field)}" for name, field in there.items())
    return f"object with {fields}"


def _bounds(schema: Plain) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    said: list[str] = []
    if low is not None or high is not None:
        said.append(f"from {low}" if high is None else f"{low} to {high}")
    if "maxLength" in schema:
        said.append(f"at most {schema['maxLength']} characters")
    if schema.get("minLength"):
        said.append("not empty")
    if "pattern" in schema:
        said.append(f"like {code(schema['pattern'])}")
    if isinstance(other := schema.get("not"), dict) and "enum" in other:
        said.append(f"none of {', '.join(map(code, other['enum']))}")
    return "".join(f", {each}" for each in said)


def schema_section(name: str, schema: Plain) -> str:
    about = prose(schema["description"]) if "description" in schema else ""
    shape = _fields(schema) if "properties" in schema else f"<p>{kind(schema)}</p>"
    return f'<section><h3 id="{escape(anchor(name))}">{escape(name)}</h3>{about}{shape}</section>'


def _fields(schema: Plain) -> str:
    required = schema.get("required", ())
    rows = [_field(name, field, is_required=name in required) for name, field in schema["properties"].items()]
    return table(("Field", "Value", ""), rows)


def _field(name: str, field: Plain, *, is_required: bool) -> tuple[str, str, str]:
    need = ' <span class="need">always</span>' if is_required else ""
    default: Any = field.get("default")
    by_default = f" Default: {code(json.dumps(default))}." if default is not None else ""
    return f"{code(name)}{need}", kind(field), f"{words(field.get('description', ''))}{by_default}"
