"""How large a request may be, and the answer of a model."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from antwort.api.wire import Wire

_Count: TypeAlias = Annotated[int, Meta(ge=1)]


class Limits(Wire):
    """How large a request may be, and the answer of a model."""

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
    """How many of them a single item may hold, or all tools together wherever they are declared, or any other field."""
    output_bytes: _Count = 8 * 2**20
    """How much a model may write in one turn: text, reasoning and the arguments of calls together. A longer answer is
    cut there, and the response ends as `incomplete` (`max_output_bytes`)."""
    turn_calls: _Count = 1000
    """How many calls a model may make in one turn. With more, the turn is cut, and the response ends as `incomplete`
    (`max_turn_calls`)."""
    history_bytes: _Count = 64 * 2**20
    """How much of the conversation before a request is read: the JSON of its items and responses, and 512 bytes for
    each item. A longer one is a 400, or is read from its end backwards with `truncation: auto`."""
    history_memory: _Count = 192 * 2**20
    """How many bytes of such history all requests under way may hold at once, those of less than 1 MiB apart; the next
    ones wait for their turn, a minute at most. One tenant gets half of it."""
