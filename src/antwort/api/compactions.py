"""Compacting a conversation: what is asked, and what comes of it."""

from __future__ import annotations

from typing import Literal

from antwort.api.bodies import body_steps, known_fields
from antwort.api.items import OutputItem
from antwort.api.limits import Limits
from antwort.api.requests import CreateRequest, read_steps
from antwort.api.responses import Usage
from antwort.api.steps import Steps, at_once
from antwort.api.wire import Wire
from antwort.errors import InvalidField

FIELDS = ("model", "input", "previous_response_id", "instructions", "prompt_cache_key")
"""The fields that count. Clients send others that they have at hand, such as tools: those are not looked at."""
_BODY = known_fields(*FIELDS)
_TAKEN = (*FIELDS, "additional", "raw_input", "raw")


class CompactRequest(CreateRequest):
    """Asks for a window on what was said, and not for an answer. Nothing of it is stored."""


class CompactedResponse(Wire, kw_only=True):
    """A conversation in less room: what goes on from it begins its input with the output."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: tuple[OutputItem, ...]
    """The latest turns word for word, and last the item that stands for all that was said, those turns too."""
    usage: Usage


def parse_compaction(body: bytes, limits: Limits) -> CompactRequest:
    """The request in `body`, or the first thing that is wrong with it."""
    return at_once(compaction_steps(body, limits))


def compaction_steps(body: bytes, limits: Limits) -> Steps[CompactRequest]:
    """The same in pieces."""
    plain, raw = yield from body_steps(body, _BODY, limits)
    known = {name: plain[name] for name in FIELDS if name in plain}
    return as_compaction((yield from read_steps(known, limits, raw=raw)))


def as_compaction(request: CreateRequest) -> CompactRequest:
    """What of a request counts when it asks for a compaction. The model must be named: which one sums up, and which
    one goes on, is not for a default to say.
    """
    if not request.model:
        raise InvalidField("model", "missing.", code="missing_required_parameter")
    return CompactRequest(store=False, **{name: getattr(request, name) for name in _TAKEN})
