"""The tools that `additional_tools` items declare, as far as a request goes on from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antwort.api.additional_tools import ADDITIONAL, Declaration, Declared, checked_item, declared_steps, is_additional
from antwort.api.credentials import bared
from antwort.api.input_items import new_item_id
from antwort.api.items import Compaction, InputItem, OpaqueItem
from antwort.api.wire import encode, to_plain
from antwort.engine.context.compaction_item import Memories
from antwort.engine.history.credentials import Credentials
from antwort.event_loop import in_turns
from antwort.vault import CannotOpen

UNBOUNDED = 2**31


def declared_before(
    items: Sequence[InputItem], credentials: Credentials, memories: Memories | None, path: str
) -> list[Declared]:
    """What the items of earlier responses or of a conversation declare, the oldest first; `path` is the field of the
    request that names those.
    """
    return [*_declared(items, credentials, memories, path, is_new=False)]


async def additional_tools(
    earlier: Sequence[InputItem],
    new: Sequence[InputItem],
    credentials: Credentials,
    memories: Memories | None,
    *,
    path: str,
    most: int,
) -> tuple[Declaration, ...]:
    """The tools that count in a request with this `new` input."""
    if not _SPEAKING.isdisjoint(map(type, earlier)) or not _SPEAKING.isdisjoint(map(type, new)):
        before = declared_before(earlier, credentials, memories, path)
        new_ones = _declared(new, credentials, memories, "input", is_new=True)
        return await in_turns(declared_steps([*before, *new_ones], most))
    return ()


_SPEAKING = frozenset({OpaqueItem, Compaction})


def _declared(
    items: Sequence[InputItem], credentials: Credentials, memories: Memories | None, path: str, *, is_new: bool
) -> Iterator[Declared]:
    """A compaction holds what was declared before it, where a client leaves that away."""
    last = next((item for item in reversed(items) if isinstance(item, Compaction)), None)
    for at, item in enumerate(items):
        if is_additional(item):
            yield credentials.declared_in(item, f"input[{at}].tools" if is_new else path, is_inherited=not is_new)
        elif last is not None and item is last and memories is not None:
            try:
                kept = memories.opened(last).tools
            except CannotOpen:  # whether that matters is for others to say
                continue
            yield from (credentials.declared_in(each, path, is_inherited=True) for each in kept if is_additional(each))


def as_item(additional: Sequence[Declaration], credentials: Credentials | None) -> tuple[InputItem, ...]:
    """One item that declares the same, as it is kept; nothing for none."""
    if not additional:
        return ()
    given = {"type": ADDITIONAL, "role": "developer", "tools": [to_plain(each.tool) for each in additional]}
    shown = bared(given, encode(given))
    item = checked_item(OpaqueItem(ADDITIONAL, new_item_id(ADDITIONAL), shown), given, "")
    return (item if credentials is None else credentials.kept_item(item),)
