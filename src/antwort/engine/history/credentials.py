"""Credentials of tool servers, stored sealed with the request that brought them.

A call that waits for an approval, or for the results of the client, runs with them later. They open only for the
identity and the response that they came with, and no answer shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antwort.api.decoding import Limits, at_once, body_steps, known_fields
from antwort.api.items import InputItem, OpaqueItem
from antwort.api.requests import REQUEST_FIELDS, CreateRequest, read_request
from antwort.api.tool_parsing import KEY, Declared, entries_of, may_hold_logins, take_logins
from antwort.api.tools import McpTool, Tool, brought_by, has_credentials, same_place, shown_url
from antwort.api.wire import UNSET, Plain, UnsetType, decode_object, encode, replace
from antwort.identity import Identity
from antwort.notes import note
from antwort.storage.base import Link
from antwort.vault import CannotOpen, Vault

_log = logging.getLogger("antwort.engine")

_FIELDS = known_fields(*REQUEST_FIELDS, KEY)
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


class _ServerCredentials(msgspec.Struct, frozen=True, omit_defaults=True):
    """The credentials in one declaration of a server."""

    authorization: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    server_url: str | UnsetType = UNSET


_read_credentials = msgspec.json.Decoder(dict[int, _ServerCredentials])
_read_fields: msgspec.json.Decoder[dict[int, Plain]] = msgspec.json.Decoder(dict[int, dict[str, Any]])


class Parent(msgspec.Struct, frozen=True):
    """An earlier request, with its tools and its policy."""

    request: CreateRequest
    locked: frozenset[str] = frozenset()
    """The labels of servers whose credentials cannot be opened any more."""


class Credentials:
    """Seals and opens the credentials of one identity."""

    def __init__(self, vault: Vault, identity: Identity) -> None:
        self._vault, self._identity = vault, identity

    def sealed_request(self, request: CreateRequest, response_id: str) -> bytes:
        """Return the request as JSON, with its credentials sealed."""
        brought = {
            i: _ServerCredentials(tool.authorization, tool.headers, tool.server_url)
            for i, tool in enumerate(request.tools)
            if isinstance(tool, McpTool) and has_credentials(tool)
        }
        if not brought:
            return without_credentials(request)
        token = self._vault.seal(self._purpose(response_id), self._identity.tenant, encode(brought))
        plain: Plain = decode_object(without_credentials(request))
        return encode({**plain, KEY: {"tools": list(brought), "sealed": token}})

    def sealed_item(self, item: InputItem) -> InputItem:
        """Return an item with the credentials of the tools that it declares sealed."""
        if not isinstance(item, OpaqueItem) or not item.brought:
            return item
        token = self._vault.seal(self._items_purpose, self._identity.tenant, encode(item.brought))
        return OpaqueItem(item.type, item.id, {**item.fields, KEY: {"tools": list(item.brought), "sealed": token}})

    def declared_in(self, item: OpaqueItem, path: str, *, is_inherited: bool = False) -> Declared:
        """Return the tools of an `additional_tools` item with their credentials, without those whose credentials cannot
        be opened any more.
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
        """Return the request of an earlier response with its credentials. Those of the request `now` for the same
        server come first: they are newer, and may be the only ones.
        """
        plain, _ = at_once(body_steps(link.request, _FIELDS, _UNBOUNDED))
        kept = plain.pop(KEY, None)
        # Its metadata may have been accepted under other limits.
        request = read_request({**plain, "metadata": None}, _UNBOUNDED, raw=link.request)
        request = replace(request, additional=())  # read from the items again
        opened, newer = self._opened(kept, link.response.id), [each.tool for each in now.declarations]
        if opened is not None:
            own = [
                _with_credentials(tool, opened[i]) if i in opened and isinstance(tool, McpTool) else tool
                for i, tool in enumerate(request.tools)
            ]
            return Parent(replace(request, tools=tuple(brought_again(tool, newer) for tool in own)))
        found = [_unlocked(tool, newer) if i in kept["tools"] else tool for i, tool in enumerate(request.tools)]
        lost = [tool for tool, again in zip(request.tools, found, strict=True) if again is None]
        rest = tuple(tool for tool in found if tool is not None)
        labels = frozenset(tool.server_label for tool in lost if isinstance(tool, McpTool))
        return Parent(replace(request, tools=rest), labels)

    def _opened(self, kept: Plain | None, response_id: str) -> Mapping[int, _ServerCredentials] | None:
        """Return the credentials by the place of each declaration; None if they cannot be opened."""
        if kept is None:
            return {}
        try:
            sealed = self._vault.open(self._purpose(response_id), self._identity.tenant, kept["sealed"])
            return _read_credentials.decode(sealed)
        except CannotOpen:
            note(_log, logging.WARNING, "kept credentials cannot be opened: their key is gone", response=response_id)
            return None

    def _purpose(self, response_id: str) -> str:
        """Encoded as JSON, so that no two pairs of owner and response are the same."""
        return encode(["credentials", self._identity.owner, response_id]).decode()


def without_credentials(request: CreateRequest) -> bytes:
    """Return the request as JSON, less its credentials."""
    if not may_hold_logins(request.raw) and KEY.encode() not in request.raw:
        return request.raw
    plain: Plain = decode_object(request.raw)
    plain.pop(KEY, None)
    take_logins(plain)
    return encode(plain)


def brought_again(tool: Tool, newer: Sequence[Tool]) -> Tool:
    """Return the declaration with the credentials of a newer one of the same server, if there are any."""
    if not isinstance(tool, McpTool) or (other := _declared_in(newer, tool.server_label)) is None:
        return tool
    if not brought_by(other) or not same_place(tool.server_url, other.server_url):
        return tool
    return _with_credentials(tool, other)


def _unlocked(tool: Tool, newer: Sequence[Tool]) -> Tool | None:
    """The same where the declaration's own credentials are lost, and with them the rest of its address. None: no newer
    declaration has credentials.
    """
    if not isinstance(tool, McpTool) or (other := _declared_in(newer, tool.server_label)) is None:
        return None
    shown = other.server_url if other.server_url is UNSET else shown_url(other.server_url)
    if shown != tool.server_url or not has_credentials(other):
        return None
    return _with_credentials(tool, other)


def _with_credentials(tool: McpTool, other: McpTool | _ServerCredentials) -> McpTool:
    return replace(tool, authorization=other.authorization, headers=other.headers, server_url=other.server_url)


def _declared_in(tools: Sequence[Tool], label: str) -> McpTool | None:
    return next((tool for tool in tools if isinstance(tool, McpTool) and tool.server_label == label), None)
