"""Read the query of a request: a page, filters, or where to begin in a stream. Unknown parameters are ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from antwort.api.status import ResponseStatus
from antwort.errors import InvalidField
from antwort.storage.base import Page, Wanted

_ORDERS: dict[str, Literal["asc", "desc"]] = {"asc": "asc", "desc": "desc"}
_STATUSES: dict[str, ResponseStatus] = {status: status for status in get_args(ResponseStatus)}
_BOOLEANS = {"": False, "0": False, "false": False, "1": True, "true": True}


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


def read_after(query: Mapping[str, str]) -> int | None:
    """Return the number of the event behind which to begin: -1 for all of them, None where no events are asked for.
    Raises `InvalidField`.
    """
    is_streamed = _BOOLEANS.get(query.get("stream", "").lower())
    if is_streamed is None:
        raise InvalidField("stream", "expected 'true' or 'false'.")
    after = query.get("starting_after")
    if after is None:
        return -1 if is_streamed else None
    if not is_streamed:
        raise InvalidField("starting_after", "it is there for streams alone; send 'stream=true' with it.")
    if not re.fullmatch("[0-9]{1,15}", after):
        raise InvalidField("starting_after", "expected the number of an event: a whole number from 0 on.")
    return int(after)
