"""Which part of a list, and which of its entries, a query asks for. Parameters that nobody knows are ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

from antwort.api.status import ResponseStatus
from antwort.errors import InvalidField
from antwort.storage.base import Page, Wanted

_ORDERS: dict[str, Literal["asc", "desc"]] = {"asc": "asc", "desc": "desc"}
_STATUSES: dict[str, ResponseStatus] = {status: status for status in get_args(ResponseStatus)}


def read_page(query: dict[str, str]) -> Page:
    """Raises `InvalidField` naming the parameter."""
    limit = query.get("limit", "20")
    if not re.fullmatch("[0-9]{1,3}", limit) or not 1 <= int(limit) <= 100:
        raise InvalidField("limit", "expected a whole number from 1 to 100.")
    order = _ORDERS.get(query.get("order", "desc"))
    if order is None:
        raise InvalidField("order", "expected 'asc' or 'desc'.")
    return Page(limit=int(limit), order=order, after=query.get("after") or None, before=query.get("before") or None)


def read_wanted(query: Iterable[tuple[str, str]]) -> Wanted:
    """Several statuses are separated by commas, or come as so many parameters, with brackets or without: clients
    differ in how they write a list. Raises `InvalidField`.
    """
    model: str | None = None
    statuses: list[ResponseStatus] = []
    for name, value in query:
        if name == "model":
            model = value or None
        elif name in ("status", "status[]"):
            statuses += [_status(word) for word in value.split(",") if value]
    return Wanted(model=model, statuses=tuple(dict.fromkeys(statuses)))


def _status(word: str) -> ResponseStatus:
    status = _STATUSES.get(word.strip())
    if status is None:
        raise InvalidField("status", f"expected one or several of {', '.join(_STATUSES)}.")
    return status
