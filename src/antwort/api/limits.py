"""How large a request may be."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from antwort.api.wire import Wire

_Count: TypeAlias = Annotated[int, Meta(ge=1)]


class Limits(Wire):
    """How large a request may be."""

    input_items: _Count = 10_000
    """How many items the input may have."""
    part_bytes: _Count = 10 * 2**20
    """How large a text, an image or a file of an item may be, and, as JSON, any other field of a body."""
    tools: _Count = 128
    """How many tools a request may name."""
    servers: _Count = 16
    """How many MCP servers a request may name by address."""
    metadata_keys: _Count = 16
    """How many entries its metadata may have."""
    conversation_items: _Count = 20
    """How many items may be added to a conversation at once."""
    media_hosts: tuple[str, ...] = ()
    """Hosts whose images and videos requests may name by any address: over http, and although they are not public.
    `media.example.com`, `*.example.com`, `10.1.0.0/16`; each with `:port` where only that is meant. `*` allows every
    address. Otherwise an address is a `data:` URL, or a public one that begins with `https://`.
    """
    body_values: _Count = 300_000
    """How many JSON values a body may hold: objects, lists, texts, numbers, booleans and nulls. The names of fields do
    not count.
    """
    item_values: _Count = 100_000
    """How many of them a single item may hold, or all tools together, or any other field."""
