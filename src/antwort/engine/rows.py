"""What the store is told of a response when it starts, and when it never did."""

from __future__ import annotations

import contextlib

from antwort.api.requests import CreateRequest
from antwort.api.status import IllegalTransition, transition
from antwort.api.tools import has_credentials
from antwort.api.wire import Plain, decode, encode, replace
from antwort.engine.plan import Plan
from antwort.errors import AntwortError
from antwort.storage.base import Claim, NewResponse, ResponseStore


def new_row(plan: Plan, claim: Claim | None = None) -> NewResponse:
    request = plan.request
    return NewResponse(
        identity=plan.identity,
        response=plan.response,
        request=_without_credentials(request),
        input=request.input,
        raw_input=request.raw_input,
        claim=claim,
    )


def _without_credentials(request: CreateRequest) -> bytes:
    """The request as it came, less what it brought to log in somewhere: that is not kept in clear."""
    if not any(has_credentials(tool) for tool in request.tools):
        return request.raw
    plain: Plain = decode(request.raw, dict)
    for tool in plain["tools"]:
        tool.pop("authorization", None)
        tool.pop("headers", None)
    return encode(plain)


async def end_unborn(plan: Plan, store: ResponseStore) -> None:
    """End the row of a response whose run was never set going, if there is one."""
    cancelled = replace(plan.response, status=transition(plan.response.status, "cancelled"))
    with contextlib.suppress(AntwortError, IllegalTransition):  # no row: nothing to end
        await store.finish(plan.identity, cancelled, ())
