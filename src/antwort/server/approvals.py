"""The endpoints under `/v1/approvals`. They are not in the standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from antwort.api.resources import Approval, ApprovalStatus
from antwort.api.wire import Wire
from antwort.engine.engine import Engine
from antwort.errors import ApprovalNotFound, InvalidField
from antwort.server.endpoints import LONGEST_ID, Offered, ends, is_id, readable
from antwort.server.exchange import Exchange
from antwort.server.query import read_page

_STATUSES: dict[str, ApprovalStatus] = {status: status for status in get_args(ApprovalStatus)}


class ApprovalList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Approval, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ApprovalRoutes:
    """What waits for the client's approval can be looked at here. It is decided by the request that goes on."""

    def __init__(self, engine: Engine, encode: Callable[[object], bytes]) -> None:
        self._engine, self._encode = engine, encode
        self._all, self._one = readable(self.list), readable(self.retrieve)

    def offered(self) -> dict[str, Offered]:
        return {"/v1/approvals": self._all, "/v1/approvals/{id}": self._one}

    def locate(self, names: Sequence[str]) -> tuple[Offered, str] | None:
        """Who answers for the names behind `/v1/approvals`, and for which id."""
        match names:
            case []:
                return self._all, ""
            case [subject] if subject:
                return self._one, subject
        return None

    async def list(self, exchange: Exchange, _: str) -> None:
        query = exchange.query()
        found = await self._engine.approvals(exchange.identity, read_page(query), _status(query.get("status")))
        first, last = ends(found.approvals)
        listed = ApprovalList(data=found.approvals, first_id=first, last_id=last, has_more=found.has_more)
        await exchange.answer(self._encode(listed))

    async def retrieve(self, exchange: Exchange, approval_id: str) -> None:
        if not is_id(approval_id):
            raise ApprovalNotFound(approval_id[:LONGEST_ID])
        await exchange.answer(self._encode(await self._engine.approval(approval_id, exchange.identity)))


def _status(word: str | None) -> ApprovalStatus | None:
    if not word:
        return None
    status = _STATUSES.get(word)
    if status is None:
        raise InvalidField("status", f"expected one of {', '.join(_STATUSES)}.")
    return status
