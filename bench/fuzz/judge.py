"""Whether an answer is right: it has a status and a content that the server's own document says it can have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
from fuzz.asked import Asked
from fuzz.server import Reply

from antwort.testing import GrammarError, check_frames

BACKEND_FAILED = (502, 503, 504)
"""What a client may be told when the backend was told to misbehave."""

_EVENT = {"$ref": "#/components/schemas/StreamEvent"}
_ERROR = {"$ref": "#/components/schemas/ErrorBody"}


class Judge:
    """Holds answers against a document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._validators: dict[str, jsonschema_rs.Validator] = {}

    def faults(self, method: str, address: str, reply: Reply, *, may_fail: bool = False) -> Iterator[str]:
        """What is wrong with an answer; `may_fail`: the backend was told to misbehave."""
        if reply.status >= 500 and not (may_fail and reply.status in BACKEND_FAILED):
            yield f"status {reply.status}: {reply.body[:300]!r}"
        answers = self._document["paths"][address][method.lower()]["responses"]
        if str(reply.status) not in answers:
            yield f"status {reply.status} is not described: {reply.body[:300]!r}"
            return
        content = self._found(answers[str(reply.status)]).get("content", {})
        if reply.kind not in content and (content or reply.body):
            yield f"content type {reply.kind!r} is not described for status {reply.status}"
        elif reply.kind == "text/event-stream":
            yield from self._stream_faults(reply.body)
        elif reply.kind == "application/json":
            yield from self._json_faults(reply.body, content[reply.kind]["schema"])

    def all_faults(self, asked: Asked, reply: Reply, *, may_fail: bool = False) -> Iterator[str]:
        """What is wrong with the answer to a request for something that is described, or may not be there."""
        if asked.must and reply.status != asked.must:
            yield f"status {reply.status}, not {asked.must}: {reply.body[:300]!r}"
        if asked.address:
            yield from self.faults(asked.method, asked.address, reply, may_fail=may_fail)
        else:
            yield from self.stray_faults(reply)

    def stray_faults(self, reply: Reply) -> Iterator[str]:
        """What is wrong with the answer to a request for something that may not be there."""
        if reply.status >= 500:
            yield f"status {reply.status}: {reply.body[:300]!r}"
        elif reply.status >= 400 and reply.body:
            yield from self._json_faults(reply.body, _ERROR)

    def _found(self, entry: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in entry:
            return entry
        _, _, place, name = entry["$ref"].split("/")
        found: dict[str, Any] = self._document["components"][place][name]
        return found

    def _json_faults(self, body: bytes, schema: dict[str, Any]) -> Iterator[str]:
        try:
            value = json.loads(body)
        except ValueError as exc:
            yield f"no JSON: {exc}"
            return
        for fault in self._validator(schema).iter_errors(value):
            yield f"not as described at {'/'.join(map(str, fault.instance_path))}: {fault.message[:300]}"

    def _stream_faults(self, body: bytes) -> Iterator[str]:
        try:
            check_frames(body)
        except GrammarError as exc:
            yield f"the stream is not grammatical: {exc}"
        for line in body.split(b"\n"):
            if line.startswith(b"data: {"):
                yield from self._json_faults(line.removeprefix(b"data: "), _EVENT)

    def _validator(self, schema: dict[str, Any]) -> jsonschema_rs.Validator:
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
            made = jsonschema_rs.validator_for({**whole, "components": self._document["components"]})
            self._validators[key] = made
        return self._validators[key]
