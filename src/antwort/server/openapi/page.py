"""The document as one HTML page that needs nothing else: no script, no font, no picture."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator
from html import escape

from antwort.api.wire import Plain
from antwort.server.openapi.shown import anchor, code, kind, prose, schema_section, table, words
from antwort.server.openapi.style import STYLE

ADDRESS = "http://the.address.of.this.server.invalid"
"""Stands in the page for the address of the server, which a request brings along. It is put in as HTML."""

WHERE = "<!-- where -->"
"""Stands in the page for `where`, or for nothing."""
_digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: nothing but the page itself, and the style it carries."""


_LONG = 80
"""So many characters of JSON are easier to read in lines."""


def page(document: Plain) -> str:
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}: the API</title><style>{STYLE}</style></head>"
        f'<body><div class="page">{_contents(document)}<main>'
        f'<p class="soft">{escape(title)} · OpenAPI {escape(document["openapi"])} · <a href="openapi.json">openapi.json'
        f"</a></p><h1>The API of this server</h1>{prose(info['description'])}{_keys(document)}{WHERE}"
        f"{''.join(_tagged(document))}<h2>Schemas</h2>{''.join(_schemas(document))}</main></div></body></html>"
    )


def where(root: str) -> str:
    """For those who know another address than their request shows: the commands have a word in its place."""
    command = f"export ANTWORT=https://HOST{root}"
    return f"<p>In the commands, <code>$ANTWORT</code> is the address of this server:</p><pre>{escape(command)}</pre>"


def _keys(document: Plain) -> str:
    """How a key is sent, after the words on whether there is one."""
    if "key" not in document["components"].get("securitySchemes", {}):
        return ""
    return f"<p>{words('Send yours as `Authorization: Bearer YOUR_KEY`, or as `X-API-Key` or `Api-Key`.')}</p>"


def _operations(document: Plain, tag: str) -> Iterator[tuple[str, str, Plain]]:
    for address, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation.get("tags", ()):
                yield method, address, operation


def _contents(document: Plain) -> str:
    groups = "".join(_group(document, tag["name"]) for tag in document["tags"])
    schemas = "".join(f'<li><a href="#{anchor(name)}">{escape(name)}</a></li>' for name in _names(document))
    return f"<nav>{groups}<details><summary>Schemas</summary><ul>{schemas}</ul></details></nav>"


def _group(document: Plain, tag: str) -> str:
    entries = "".join(
        f'<li><a href="#{escape(operation["operationId"])}">{escape(operation["summary"])}</a></li>'
        for _, _, operation in _operations(document, tag)
    )
    return f"<b>{escape(tag)}</b><ul>{entries}</ul>"


def _tagged(document: Plain) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>{prose(tag['description'])}"
        for method, address, operation in _operations(document, tag["name"]):
            yield _operation(document, method, address, operation)


def _operation(document: Plain, method: str, address: str, operation: Plain) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    takes = f"<h4>Body</h4><p>{kind(body['schema'])}</p>" if body else ""
    return (
        f'<section><h3 id="{escape(operation["operationId"])}"><span class="method {escape(method)}">{method.upper()}'
        f"</span> <code>{escape(address)}</code></h3>"
        f"<p>{words(operation['summary'])}.</p>{prose(operation.get('description', ''))}"
        f"{''.join(_commands(method, address, operation, body))}{takes}"
        f"{_parameters(document, operation)}{_answers(document, operation)}</section>"
    )


def _found(document: Plain, entry: Plain) -> Plain:
    """What a reference to a component stands for."""
    if "$ref" not in entry:
        return entry
    _, _, place, name = entry["$ref"].split("/")
    found: Plain = document["components"][place][name]
    return found


def _parameters(document: Plain, operation: Plain) -> str:
    found = [_found(document, entry) for entry in operation["parameters"]]
    rows = [
        (
            code(each["name"]),
            f'{kind(each["schema"])} <span class="soft">in the {escape(each["in"])}</span>',
            words(each["description"]),
        )
        for each in found
    ]
    return f"<h4>Parameters</h4>{table(('Name', 'Value', ''), rows)}" if rows else ""


def _answers(document: Plain, operation: Plain) -> str:
    rows = []
    for status, entry in operation["responses"].items():
        answer = _found(document, entry)
        content = answer.get("content", {})
        shown = [
            f'{kind(medium.get("x-itemSchema", medium["schema"]))} <span class="soft">{escape(name)}</span>'
            for name, medium in content.items()
        ]
        rows.append((f"<b>{escape(status)}</b>", "<br>".join(shown), words(answer["description"])))
    return f"<h4>Answers</h4>{table(('Status', 'Content', ''), rows)}"


_SENT = {"key": "YOUR_KEY", "metrics": "METRICS_KEY"}


def _commands(method: str, address: str, operation: Plain, body: Plain) -> Iterator[str]:
    """For a shell: one for each example of a body."""
    begin = "curl" if method == "get" else f"curl -X {method.upper()}"
    url = ADDRESS + address.replace("{id}", "RESPONSE_ID").replace("{name}", "MODEL")
    asked = [_SENT[scheme] for each in operation.get("security", ()) for scheme in each]
    key = f" -H 'Authorization: Bearer {asked[0]}'" if asked else ""
    if not body:
        yield f"<pre>{escape(f'{begin} {url}{key}')}</pre>"
    for example in body.get("examples", {}).values():
        value = example["value"]
        line = json.dumps(value)
        given = shlex.quote(line if len(line) < _LONG else json.dumps(value, indent=2))
        option = " -N" if value.get("stream") else ""
        command = f"curl{option} {url}{key} \\\n  -H 'Content-Type: application/json' \\\n  -d {given}"
        yield f'<p class="soft">{words(example["summary"])}:</p><pre>{escape(command)}</pre>'


def _names(document: Plain) -> list[str]:
    return sorted(document["components"]["schemas"])


def _schemas(document: Plain) -> Iterator[str]:
    for name in _names(document):
        yield schema_section(name, document["components"]["schemas"][name])
