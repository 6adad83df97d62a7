"""What a request brings to log in to tool servers, kept with it for those who go on from there: a call that waits for
an approval, or for the results of the client, is run with it.

It is kept sealed, and opens for the identity and the response that it came with alone. It is in no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.api.additional_tools import Declared, entries_of
from antwort.api.bodies import body_steps, known_fields
from antwort.api.credentials import KEY, may_hold_logins, take_logins
from antwort.api.items import InputItem, OpaqueItem
from antwort.api.limits import Limits
from antwort.api.requests import REQUEST_FIELDS, CreateRequest, read_request
from antwort.api.steps import at_once
from antwort.api.tools import McpTool, Tool, brought_by, has_credentials, same_place, shown_url
from antwort.api.wire import UNSET, Plain, UnsetType, decode_object, encode, replace
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Link
from antwort.vault import CannotOpen, Vault

_log = logging.getLogger("antwort.engine")

_KEPT = known_fields(*REQUEST_FIELDS, KEY)
_MANY = 2**31
_UNBOUNDED = Limits(
    input_items=_MANY,
    part_bytes=2**40,
    tools=_MANY,
    servers=_MANY,
    metadata_keys=_MANY,
    body_values=2**40,
    item_values=2**40,
)


class _Brought(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one declaration."""

    authorization: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    server_url: str | UnsetType = UNSET


_Opened: TypeAlias = Mapping[int, _Brought]
_read_brought = msgspec.json.Decoder(dict[int, _Brought])
_read_fields: msgspec.json.Decoder[dict[int, Plain]] = msgspec.json.Decoder(dict[int, dict[str, Any]])


class Parent(msgspec.Struct, frozen=True):
    """An earlier request, for its tools and its policy."""

    request: CreateRequest
    locked: frozenset[str] = frozenset()
    """Labels of servers that cannot be asked any more: what they were logged in to with cannot be opened."""


class Credentials:
    """Of one identity."""

    def __init__(self, vault: Vault, identity: Identity) -> None:
        self._vault, self._identity = vault, identity

    def kept(self, request: CreateRequest, response_id: str) -> bytes:
        """The request as it came, with what it brought sealed."""
        brought = {i: _brought(tool) for i, tool in enumerate(request.tools) if has_credentials(tool)}
        if not brought:
            return without_credentials(request)
        token = self._vault.seal(self._purpose(response_id), self._identity.tenant, encode(brought))
        plain: Plain = decode_object(without_credentials(request))
        return encode({**plain, KEY: {"tools": list(brought), "sealed": token}})

    def kept_item(self, item: InputItem) -> InputItem:
        """An item as it is kept, with what the tools that it declares bring sealed in it."""
        if not isinstance(item, OpaqueItem) or not item.brought:
            return item
        token = self._vault.seal(self._items_purpose, self._identity.tenant, encode(item.brought))
        return OpaqueItem(item.type, item.id, {**item.fields, KEY: {"tools": list(item.brought), "sealed": token}})

    def declared_in(self, item: OpaqueItem, path: str, *, is_inherited: bool = False) -> Declared:
        """The tools of an `additional_tools` item, with what they brought. Those whose credentials cannot be opened any
        more are left out.
        """
        entries = entries_of(item)
        if (kept := item.fields.get(KEY)) is None:
            return Declared(entries, path, is_inherited)
        try:
            sealed = self._vault.open(self._items_purpose, self._identity.tenant, kept["sealed"])
            brought = _read_fields.decode(sealed)
        except CannotOpen:
            note(_log, logging.WARNING, "kept credentials cannot be opened: their key is gone", item=item.id)
            lost = [entries[at] for at in kept["tools"]]
            rest = [entry for at, entry in enumerate(entries) if at not in kept["tools"]]
            return Declared(rest, path, is_inherited, frozenset(str(entry.get("server_label")) for entry in lost))
        return Declared(entries_of(OpaqueItem(item.type, item.id, item.fields, brought)), path, is_inherited)

    @property
    def _items_purpose(self) -> str:
        return encode(["additional_tools", self._identity.owner]).decode()

    def made_under(self, link: Link, now: CreateRequest) -> Parent:
        """The request of an earlier response, with what it brought. What `now` brings for the same server goes before
        it: that is newer, and may be all that there is.
        """
        plain, _ = at_once(body_steps(link.request, _KEPT, _UNBOUNDED))
        kept = plain.pop(KEY, None)
        # What it tells about itself may have been taken under other limits.
        request = read_request({**plain, "metadata": None}, _UNBOUNDED, raw=link.request)
        request = replace(request, additional=())  # what items declare is theirs to tell
        opened, newer = self._opened(kept, link.response.id), [each.tool for each in now.declarations]
        if opened is not None:
            tools = [brought_again(_with(tool, opened.get(i)), newer) for i, tool in enumerate(request.tools)]
            return Parent(replace(request, tools=tuple(tools)))
        found = [_unlocked(tool, newer) if i in kept["tools"] else tool for i, tool in enumerate(request.tools)]
        lost = [tool for tool, again in zip(request.tools, found, strict=True) if again is None]
        rest = tuple(tool for tool in found if tool is not None)
        labels = frozenset(tool.server_label for tool in lost if isinstance(tool, McpTool))
        return Parent(replace(request, tools=rest), labels)

    def _opened(self, kept: Plain | None, response_id: str) -> _Opened | None:
        """By the place of each declaration; None: they cannot be opened."""
        if kept is None:
            return {}
        try:
            sealed = self._vault.open(self._purpose(response_id), self._identity.tenant, kept["sealed"])
            return _read_brought.decode(sealed)
        except CannotOpen:
            note(_log, logging.WARNING, "kept credentials cannot be opened: their key is gone", response=response_id)
            return None

    def _purpose(self, response_id: str) -> str:
        """Written so that no owner and response pass for others."""
        return encode(["credentials", self._identity.owner, response_id]).decode()


def without_credentials(request: CreateRequest) -> bytes:
    """The request as it came, less what it brought to log in somewhere."""
    if not may_hold_logins(request.raw) and KEY.encode() not in request.raw:
        return request.raw
    plain: Plain = decode_object(request.raw)
    plain.pop(KEY, None)
    take_logins(plain)
    return encode(plain)


def _brought(tool: Tool) -> _Brought:
    assert isinstance(tool, McpTool), "nothing else has credentials"
    return _Brought(tool.authorization, tool.headers, tool.server_url)


def _with(tool: Tool, brought: _Brought | None) -> Tool:
    if brought is None or not isinstance(tool, McpTool):
        return tool
    return replace(tool, authorization=brought.authorization, headers=brought.headers, server_url=brought.server_url)


def brought_again(tool: Tool, tools: Sequence[Tool]) -> Tool:
    """The declaration with what another one of the same server brings to log in, if one does."""
    if not isinstance(tool, McpTool) or (other := _declared_in(tools, tool.server_label)) is None:
        return tool
    if not brought_by(other) or not same_place(tool.server_url, other.server_url):
        return tool
    return replace(tool, authorization=other.authorization, headers=other.headers, server_url=other.server_url)


def _unlocked(tool: Tool, tools: Sequence[Tool]) -> Tool | None:
    """The same where what the declaration itself brought is lost, the rest of its address among it; None: nobody brings
    anything in its place.
    """
    if not isinstance(tool, McpTool) or (other := _declared_in(tools, tool.server_label)) is None:
        return None
    shown = other.server_url if other.server_url is UNSET else shown_url(other.server_url)
    if shown != tool.server_url or not has_credentials(other):
        return None
    return replace(tool, authorization=other.authorization, headers=other.headers, server_url=other.server_url)


def _declared_in(tools: Sequence[Tool], label: str) -> McpTool | None:
    return next((tool for tool in tools if isinstance(tool, McpTool) and tool.server_label == label), None)
