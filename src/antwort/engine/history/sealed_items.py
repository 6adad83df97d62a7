"""Seal and open what clients are given and bring back, and what is stored with a request.

Reasoning and compactions are given out sealed. The ids of approval requests prove that this server asked for the
approval of that call. Credentials of tool servers are stored sealed with the request that brought them: a call that
waits for an approval, or for the results of the client, runs with them later. They open only for the identity and the
response that they came with, and no answer shows them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.api.decoding import UNLIMITED, KnownFields, Steps, body_steps
from antwort.api.items import Compaction, InputItem, OpaqueItem, Reasoning, ReasoningText
from antwort.api.requests import REQUEST_FIELDS, CreateRequest, read_steps
from antwort.api.tool_parsing import KEY, Declared, entries_of, may_hold_logins, take_logins
from antwort.api.tools import SECRET, McpTool, Tool, brought_by, has_credentials, same_place, shown_url
from antwort.api.wire import UNSET, Plain, decode_object, encode, replace
from antwort.crypto import CannotOpen, Vault
from antwort.engine.context.compaction_item import Memories
from antwort.engine.history.calls import REQUEST_ID, canonical_arguments, request_id
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.notes import note
from antwort.storage.base import Link

_log = logging.getLogger("antwort.engine")

Seal: TypeAlias = Callable[[str], str]
"""Seals a text for the client."""

_INCLUDE = "reasoning.encrypted_content"
"""The `include` entry that asks for sealed reasoning."""
_REASONING, _APPROVAL = "reasoning", "approval"
"""What a text is sealed, or an id signed, for: it counts for nothing else."""
_REQUEST, _ITEM = "credentials", "additional_tools"
"""What credentials are sealed for: those of a request, or of an item."""
_NONCE_BYTES = _MAC_BYTES = 8
_CANNOT_OPEN = (
    "it cannot be opened: it was changed since this server gave it out, or it is somebody else's. Send it as it was "
    "given out, or leave the item away."
)

_FIELDS = KnownFields(*REQUEST_FIELDS, KEY)
_REWRITTEN = tuple(name for name in REQUEST_FIELDS if name not in ("input", "metadata", "prompt"))
"""The fields that are read again from the JSON of a request; metadata is read from the response."""
_CREDENTIALS = (*SECRET, "server_url")
_read_credentials: msgspec.json.Decoder[dict[int, Plain]] = msgspec.json.Decoder(dict[int, dict[str, Any]])
"""By the places of the declarations."""


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
        self._texts: dict[str, str] = {}

    # ---- reasoning and compactions ----

    def seal_for(self, request: CreateRequest) -> Seal | None:
        """Return what seals the reasoning of the response; None if the request does not ask for it."""
        return self._seal if _INCLUDE in (request.include or ()) else None

    def _seal(self, text: str) -> str:
        return self._vault.seal(_REASONING, self._tenant, text.encode())

    def _open(self, item: InputItem) -> InputItem:
        """Return the item with the text that is sealed in it, whatever else it says. Raises `CannotOpen`."""
        if not isinstance(item, Reasoning) or item.encrypted_content is UNSET:
            return item
        if (text := self._texts.get(item.encrypted_content)) is None:
            text = self._vault.open(_REASONING, self._tenant, item.encrypted_content).decode()
            self._texts[item.encrypted_content] = text
        return replace(item, content=(ReasoningText(text=text),), encrypted_content=UNSET)

    def check_input(self, items: Sequence[InputItem], path: str = "input") -> None:
        """Raise `InvalidField` where an item that a client sends at `path` cannot be opened.

        Of compactions the last must open: it stands for those before it.
        """
        last = next((item for item in reversed(items) if isinstance(item, Compaction)), None)
        for i, item in enumerate(items):
            try:
                self._open(item)
                if isinstance(item, Compaction) and item is last:
                    self.memories.opened(item)
            except CannotOpen as exc:
                place = f"{path}[{i}].encrypted_content"
                raise InvalidField(place, _CANNOT_OPEN, code="invalid_encrypted_content") from exc

    def opened_chain(self, chain: Sequence[Link]) -> tuple[Link, ...]:
        """Return the earlier responses with opened inputs. Their outputs are stored with the text."""
        return tuple(replace(link, input=self.opened(link.input)) for link in chain)

    def opened(self, items: Iterable[InputItem]) -> tuple[InputItem, ...]:
        """Return stored items, opened. One that cannot be opened any more counts by its plain text, or is left out: the
        key is gone, and the conversation goes on.
        """
        found: list[InputItem] = []
        for item in items:
            try:
                found.append(self._open(item))
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
            at: {name: value for name in _CREDENTIALS if (value := getattr(tool, name)) is not UNSET}
            for at, tool in enumerate(request.tools)
            if isinstance(tool, McpTool) and has_credentials(tool)
        }
        if not credentials:
            return plain_request
        sealed = self._seal_credentials(credentials, _REQUEST, response_id)
        return encode({**decode_object(plain_request), KEY: sealed})

    def sealed_item(self, item: InputItem) -> InputItem:
        """Return an item with the credentials of the tools that it declares sealed."""
        if not isinstance(item, OpaqueItem) or not item.brought:
            return item
        sealed = self._seal_credentials(item.brought, _ITEM)
        return OpaqueItem(item.type, item.id, {**item.fields, KEY: sealed})

    def _seal_credentials(
        self, credentials: Mapping[int, Mapping[str, Any]], kind: str, response: str | None = None
    ) -> Plain:
        token = self._vault.seal(self._purpose(kind, response), self._tenant, encode(credentials))
        return {"tools": list(credentials), "sealed": token}

    def _open_credentials(
        self, sealed: Plain, kind: str, response: str | None = None, item: str | None = None
    ) -> Mapping[int, Plain] | None:
        """Return None if their key is gone."""
        try:
            opened = self._vault.open(self._purpose(kind, response), self._tenant, sealed["sealed"])
        except CannotOpen:
            text = "kept credentials cannot be opened: their key is gone"
            note(_log, logging.WARNING, text, response=response, item=item)
            return None
        return _read_credentials.decode(opened)

    def _purpose(self, kind: str, response: str | None) -> str:
        """Return what credentials are sealed for, as JSON: no two pairs of owner and response are the same."""
        return encode([kind, self._owner, *([] if response is None else [response])]).decode()

    def declared_in(self, item: OpaqueItem, path: str, *, is_inherited: bool = False) -> Declared:
        """Return the tools of an `additional_tools` item with their credentials, without those whose credentials cannot
        be opened any more.
        """
        entries = entries_of(item)
        if (kept := item.fields.get(KEY)) is None:
            return Declared(entries, path, is_inherited)
        credentials = self._open_credentials(kept, _ITEM, item=item.id)
        if credentials is None:
            lost = [entries[at] for at in kept["tools"]]
            rest = [entry for at, entry in enumerate(entries) if at not in kept["tools"]]
            return Declared(rest, path, is_inherited, frozenset(str(entry.get("server_label")) for entry in lost))
        return Declared(entries_of(OpaqueItem(item.type, item.id, item.fields, credentials)), path, is_inherited)

    def parent_steps(self, link: Link, now: CreateRequest) -> Steps[Parent]:
        """Return the request of an earlier response with its credentials, in pieces. Those of the request `now` for the
        same server come first: they are newer, and may be the only ones. A server that has none left is locked.
        """
        plain, _ = yield from body_steps(link.request, _FIELDS, UNLIMITED)
        kept = plain.pop(KEY, None)
        # Its metadata may have been accepted under other limits.
        request = yield from read_steps({**plain, "metadata": None}, UNLIMITED, raw=link.request)
        newer = [each.tool for each in now.declarations]
        opened: Mapping[int, Plain] | None = {}
        if kept is not None:
            opened = self._open_credentials(kept, _REQUEST, response=link.response.id)
        tools, locked = list[Tool](), set[str]()
        for at, tool in enumerate(request.tools):
            if not isinstance(tool, McpTool):
                tools.append(tool)
            elif opened is not None or at not in kept["tools"]:
                tools.append(with_newer_credentials(replace(tool, **(opened or {}).get(at, {})), newer))
            elif (other := _newer_for(tool, newer)) is not None:
                tools.append(_with_credentials(tool, other))
            else:
                locked.add(tool.server_label)
        # Additional tools are read from the items again.
        return Parent(replace(request, tools=tuple(tools), additional=()), frozenset(locked))


def rewritten(request: CreateRequest) -> CreateRequest:
    """Return the request with JSON that agrees with its fields: a program may have changed them after they were parsed,
    or never had any JSON. The input is stored as items.
    """
    fields = {name: value for name in _REWRITTEN if (value := getattr(request, name)) is not None}
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


def _newer_for(tool: McpTool, newer: Sequence[Tool]) -> McpTool | None:
    """Return the newer declaration of a server of whose address only the part that is shown is left."""
    other = _declared_in(newer, tool.server_label)
    shown = UNSET if other is None or other.server_url is UNSET else shown_url(other.server_url)
    return other if other is not None and shown == tool.server_url and has_credentials(other) else None


def _with_credentials(tool: McpTool, other: McpTool) -> McpTool:
    return replace(tool, **{name: getattr(other, name) for name in _CREDENTIALS})


def _declared_in(tools: Sequence[Tool], label: str) -> McpTool | None:
    return next((tool for tool in tools if isinstance(tool, McpTool) and tool.server_label == label), None)
