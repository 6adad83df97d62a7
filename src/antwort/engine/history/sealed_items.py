"""Seal and open what clients are given and bring back, and what is stored with a request.

Reasoning and compactions are given out sealed. The ids of approval requests prove that this server asked for the
approval of that call. Credentials of tool servers are stored sealed with the request that brought them: a call that
waits for an approval, or for the results of the client, runs with them later. They open only for the identity and the
response that they came with, and no answer shows them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.api.decoding import Limits, Steps, at_once, body_steps, known_fields
from antwort.api.items import Compaction, InputItem, OpaqueItem, Reasoning, ReasoningText
from antwort.api.requests import REQUEST_FIELDS, CreateRequest, read_steps
from antwort.api.tool_parsing import KEY, Declared, entries_of, may_hold_logins, take_logins
from antwort.api.tools import McpTool, Tool, brought_by, has_credentials, same_place, shown_url
from antwort.api.wire import UNSET, Plain, UnsetType, decode_object, encode, replace
from antwort.engine.context.compaction_item import Memories
from antwort.engine.history.calls import REQUEST_ID, canonical_arguments, request_id
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.notes import note
from antwort.storage.base import Link
from antwort.vault import CannotOpen, Vault

_log = logging.getLogger("antwort.engine")

Seal: TypeAlias = Callable[[str], str]
"""Seals a text for the client."""

_INCLUDE = "reasoning.encrypted_content"
"""The `include` entry that asks for sealed reasoning."""
_REASONING, _APPROVAL = "reasoning", "approval"
"""What a text is sealed, or an id signed, for: it counts for nothing else."""
_NONCE_BYTES = _MAC_BYTES = 8
_CANNOT_OPEN = (
    "it cannot be opened: it was changed since this server gave it out, or it is somebody else's. Send it as it was "
    "given out, or leave the item away."
)

_FIELDS = known_fields(*REQUEST_FIELDS, KEY)
_REWRITTEN = tuple(name for name in REQUEST_FIELDS if name not in ("input", "metadata", "prompt"))
"""The fields that are read again from the JSON of a request; metadata is read from the response."""
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
_read_raw_fields: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_read_fields: msgspec.json.Decoder[dict[int, Plain]] = msgspec.json.Decoder(dict[int, dict[str, Any]])


class Parent(msgspec.Struct, frozen=True):
    """An earlier request, with its tools and its policy."""

    request: CreateRequest
    locked: frozenset[str] = frozenset()
    """The labels of servers whose credentials cannot be opened any more."""


class SealedItems:
    """Seal and open for one identity."""

    def __init__(self, vault: Vault, identity: Identity) -> None:
        self._vault, self._tenant, self._owner = vault, identity.tenant, identity.owner
        self.memories = Memories(vault, identity.tenant)

    # ---- reasoning and compactions ----

    def seal_for(self, request: CreateRequest) -> Seal | None:
        """Return what seals the reasoning of the response; None if the request does not ask for it."""
        return self._seal if _INCLUDE in (request.include or ()) else None

    def _seal(self, text: str) -> str:
        return self._vault.seal(_REASONING, self._tenant, text.encode())

    def _opened(self, item: InputItem) -> InputItem:
        """Return the item with the text that is sealed in it, whatever else it says. Raises `CannotOpen`."""
        if not isinstance(item, Reasoning) or item.encrypted_content is UNSET:
            return item
        text = self._vault.open(_REASONING, self._tenant, item.encrypted_content).decode()
        return replace(item, content=(ReasoningText(text=text),), encrypted_content=UNSET)

    def opened_input(self, items: Sequence[InputItem], path: str = "input") -> tuple[InputItem, ...]:
        """Return the items that a client sends at `path`, opened. Raises `InvalidField`.

        Of compactions the last must open: it stands for those before it.
        """
        found: list[InputItem] = []
        last = next((item for item in reversed(items) if isinstance(item, Compaction)), None)
        for i, item in enumerate(items):
            try:
                found.append(self._opened(item))
                if isinstance(item, Compaction) and item is last:
                    self.memories.opened(item)
            except CannotOpen as exc:
                place = f"{path}[{i}].encrypted_content"
                raise InvalidField(place, _CANNOT_OPEN, code="invalid_encrypted_content") from exc
        return tuple(found)

    def opened_chain(self, chain: Sequence[Link]) -> tuple[Link, ...]:
        """Return the earlier responses with opened inputs. Their outputs are stored with the text."""
        return tuple(replace(link, input=self.opened_stored(link.input)) for link in chain)

    def opened_last(self, items: Sequence[InputItem], own: Sequence[InputItem]) -> tuple[InputItem, ...]:
        """Return the new input opened: `own` is what `opened_input` gave before its references were resolved."""
        pairs = zip(items, (*own, *items[len(own) :]), strict=True)  # runs of calls stand behind what was sent
        return self.opened_stored(given if isinstance(given, Reasoning) else item for item, given in pairs)

    def opened_stored(self, items: Iterable[InputItem]) -> tuple[InputItem, ...]:
        """Return stored items, opened. One that cannot be opened any more counts by its plain text, or is left out: the
        key is gone, and the conversation goes on.
        """
        found: list[InputItem] = []
        for item in items:
            try:
                found.append(self._opened(item))
            except CannotOpen:
                assert isinstance(item, Reasoning), "nothing else is opened"
                has_text = any(part.text for part in item.content or ()) or any(part.text for part in item.summary)
                if has_text:
                    found.append(item)
                else:
                    note(_log, logging.WARNING, "left out stored reasoning: its key is gone", item=item.id)
        return tuple(found)

    # ---- approval requests ----

    def new_request_id(self, server_label: str, name: str, arguments: str) -> str:
        """Return the id of a new approval request: `mcpr_` with a nonce, and a MAC over owner, nonce, server, tool and
        arguments, both in 16 hex digits.
        """
        nonce = secrets.token_hex(_NONCE_BYTES)
        signature = self._vault.sign(_APPROVAL, self._tenant, self._signed(nonce, server_label, name, arguments))
        return f"mcpr_{nonce}{signature[:_MAC_BYTES].hex()}"

    def is_own_request(self, request_id: str, server_label: str, name: str, arguments: str) -> bool:
        """Return whether the id was made here for this call, however a client has formatted the arguments since."""
        if (found := REQUEST_ID.fullmatch(request_id)) is None:
            return False
        nonce, signature = found[1][: 2 * _NONCE_BYTES], bytes.fromhex(found[1][2 * _NONCE_BYTES :])
        data = self._signed(nonce, server_label, name, arguments)
        return self._vault.is_signed(_APPROVAL, self._tenant, data, signature)

    def _signed(self, nonce: str, server_label: str, name: str, arguments: str) -> bytes:
        return encode([self._owner, nonce, server_label, name, canonical_arguments(arguments)])

    # ---- credentials ----

    def sealed_request(self, request: CreateRequest, response_id: str) -> bytes:
        """Return the request as JSON, with its credentials sealed."""
        plain_request = without_credentials(request)
        if not request.tools:
            return plain_request
        credentials = {
            i: _ServerCredentials(tool.authorization, tool.headers, tool.server_url)
            for i, tool in enumerate(request.tools)
            if isinstance(tool, McpTool) and has_credentials(tool)
        }
        if not credentials:
            return plain_request
        token = self._vault.seal(self._purpose("credentials", response_id), self._tenant, encode(credentials))
        plain: Plain = decode_object(plain_request)
        return encode({**plain, KEY: {"tools": list(credentials), "sealed": token}})

    def sealed_item(self, item: InputItem) -> InputItem:
        """Return an item with the credentials of the tools that it declares sealed."""
        if not isinstance(item, OpaqueItem) or not item.brought:
            return item
        token = self._vault.seal(self._purpose("additional_tools"), self._tenant, encode(item.brought))
        return OpaqueItem(item.type, item.id, {**item.fields, KEY: {"tools": list(item.brought), "sealed": token}})

    def _purpose(self, *words: str) -> str:
        """Return what credentials are sealed for, as JSON: no two pairs of owner and response are the same."""
        kind, *rest = words
        return encode([kind, self._owner, *rest]).decode()

    def declared_in(self, item: OpaqueItem, path: str, *, is_inherited: bool = False) -> Declared:
        """Return the tools of an `additional_tools` item with their credentials, without those whose credentials cannot
        be opened any more.
        """
        entries = entries_of(item)
        if (kept := item.fields.get(KEY)) is None:
            return Declared(entries, path, is_inherited)
        try:
            sealed = self._vault.open(self._purpose("additional_tools"), self._tenant, kept["sealed"])
            credentials = _read_fields.decode(sealed)
        except CannotOpen:
            note(_log, logging.WARNING, "kept credentials cannot be opened: their key is gone", item=item.id)
            lost = [entries[at] for at in kept["tools"]]
            rest = [entry for at, entry in enumerate(entries) if at not in kept["tools"]]
            return Declared(rest, path, is_inherited, frozenset(str(entry.get("server_label")) for entry in lost))
        return Declared(entries_of(OpaqueItem(item.type, item.id, item.fields, credentials)), path, is_inherited)

    def made_under(self, link: Link, now: CreateRequest) -> Parent:
        """Do what `parent_steps` does, at once."""
        return at_once(self.parent_steps(link, now))

    def parent_steps(self, link: Link, now: CreateRequest) -> Steps[Parent]:
        """Return the request of an earlier response with its credentials. Those of the request `now` for the same
        server come first: they are newer, and may be the only ones. In pieces.
        """
        plain, _ = yield from body_steps(link.request, _FIELDS, _UNBOUNDED)
        kept = plain.pop(KEY, None)
        # Its metadata may have been accepted under other limits.
        request = yield from read_steps({**plain, "metadata": None}, _UNBOUNDED, raw=link.request)
        request = replace(request, additional=())  # read from the items again
        newer = [each.tool for each in now.declarations]
        opened: dict[int, _ServerCredentials] = {}
        if kept is not None:
            try:
                purpose = self._purpose("credentials", link.response.id)
                opened = _read_credentials.decode(self._vault.open(purpose, self._tenant, kept["sealed"]))
            except CannotOpen:
                text = "kept credentials cannot be opened: their key is gone"
                note(_log, logging.WARNING, text, response=link.response.id)
                return _without_lost(request, kept["tools"], newer)
        own = [
            _with_credentials(tool, opened[i]) if i in opened and isinstance(tool, McpTool) else tool
            for i, tool in enumerate(request.tools)
        ]
        return Parent(replace(request, tools=tuple(with_newer_credentials(tool, newer) for tool in own)))


def rewritten_steps(request: CreateRequest) -> Steps[CreateRequest]:
    """Return the request with JSON that agrees with its fields, in pieces: a program may have changed them after they
    were parsed, or never had any JSON.
    """
    plain, _ = yield from body_steps(request.raw, _FIELDS, _UNBOUNDED)
    parsed = yield from read_steps({**plain, "metadata": None}, _UNBOUNDED, raw=request.raw)
    changed = [name for name in _REWRITTEN if getattr(request, name) != getattr(parsed, name)]
    has_other_input = "input" in plain and request.raw_input != parsed.raw_input
    if not changed and not has_other_input:
        return request
    fields = _read_raw_fields.decode(request.raw)
    if has_other_input:
        del fields["input"]  # it is stored as items
    fields |= {name: msgspec.Raw(encode(getattr(request, name))) for name in changed}
    return replace(request, raw=encode(fields))


def new_request_id(sealed: SealedItems | None, server_label: str, name: str, arguments: str) -> str:
    """Return the id of a new approval request; without `sealed`, one that proves nothing."""
    return request_id(new_id("call")) if sealed is None else sealed.new_request_id(server_label, name, arguments)


def without_credentials(request: CreateRequest) -> bytes:
    """Return the request as JSON, less its credentials."""
    if not may_hold_logins(request.raw) and KEY.encode() not in request.raw:
        return request.raw
    plain: Plain = decode_object(request.raw)
    plain.pop(KEY, None)
    take_logins(plain)
    return encode(plain)


def with_newer_credentials(tool: Tool, newer: Sequence[Tool]) -> Tool:
    """Return the declaration with the credentials of a newer one of the same server, if there are any."""
    if not isinstance(tool, McpTool) or (other := _declared_in(newer, tool.server_label)) is None:
        return tool
    if not brought_by(other) or not same_place(tool.server_url, other.server_url):
        return tool
    return _with_credentials(tool, other)


def _without_lost(request: CreateRequest, lost: Sequence[int], newer: Sequence[Tool]) -> Parent:
    """Return a request whose own credentials are lost, and with them the rest of the addresses, with newer ones, and
    without the servers that have none.
    """
    tools, locked = list[Tool](), set[str]()
    for at, tool in enumerate(request.tools):
        if at not in lost or not isinstance(tool, McpTool):
            tools.append(tool)
            continue
        other = _declared_in(newer, tool.server_label)
        shown = UNSET if other is None or other.server_url is UNSET else shown_url(other.server_url)
        if other is not None and shown == tool.server_url and has_credentials(other):
            tools.append(_with_credentials(tool, other))
        else:
            locked.add(tool.server_label)
    return Parent(replace(request, tools=tuple(tools)), frozenset(locked))


def _with_credentials(tool: McpTool, other: McpTool | _ServerCredentials) -> McpTool:
    return replace(tool, authorization=other.authorization, headers=other.headers, server_url=other.server_url)


def _declared_in(tools: Sequence[Tool], label: str) -> McpTool | None:
    return next((tool for tool in tools if isinstance(tool, McpTool) and tool.server_label == label), None)
