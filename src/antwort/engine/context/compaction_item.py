"""Seal what a compaction stands for in its item, open it again, and find what still counts of the conversation."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import TypeAlias

import msgspec

from antwort.api.decoding import UNLIMITED
from antwort.api.item_parsing import read_item
from antwort.api.items import Compaction, InputItem, Message, OpaqueItem
from antwort.api.wire import encode
from antwort.crypto import CannotOpen, Vault
from antwort.errors import InvalidField
from antwort.notes import note

_log = logging.getLogger("antwort.engine")

Stretches: TypeAlias = Sequence[Sequence[InputItem]]

_PURPOSE = "compaction"
_VERSION = 1


class Memory(msgspec.Struct, frozen=True):
    """What is left of a compacted conversation."""

    instructions: tuple[InputItem, ...] = ()
    """The system and developer messages."""
    summary: str = ""
    recent: tuple[InputItem, ...] = ()
    """The latest turns word for word."""
    tools: tuple[InputItem, ...] = ()
    """The tools that items had declared, as one such item."""


def is_trigger(item: InputItem) -> bool:
    """Return whether the item asks for a compaction, as the last of an input."""
    return isinstance(item, OpaqueItem) and item.type == "compaction_trigger"


def is_instruction(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role in ("system", "developer")


class Memories(msgspec.Struct, eq=False):
    """Seal and open the compaction items of one tenant, for one request."""

    vault: Vault
    tenant: str
    known: dict[str, Memory] = {}
    """By what is sealed: each is needed at every inference."""

    def seal(self, memory: Memory) -> str:
        plain = {"version": _VERSION, **{name: getattr(memory, name) for name in memory.__struct_fields__}}
        sealed = self.vault.seal(_PURPOSE, self.tenant, encode(plain))
        self.known[sealed] = memory
        return sealed

    def opened(self, item: Compaction) -> Memory:
        """Raises `CannotOpen`, also for an unknown version: a newer server has sealed it."""
        memory = self.known.get(item.encrypted_content)
        if memory is None:
            data = self.vault.open(_PURPOSE, self.tenant, item.encrypted_content)
            memory = self.known[item.encrypted_content] = _parse(data)
        return memory


def _parse(data: bytes) -> Memory:
    try:
        plain = msgspec.json.decode(data)
        if plain["version"] != _VERSION:
            raise CannotOpen
        instructions, recent, tools = (
            tuple(read_item(entry, "", UNLIMITED) for entry in entries)
            for entries in (plain["instructions"], plain["recent"], plain.get("tools", ()))
        )
        return Memory(instructions, plain["summary"], recent, tools)
    except (msgspec.DecodeError, InvalidField, KeyError, TypeError) as exc:
        raise CannotOpen from exc


# ---- what still counts of a conversation ----


class EffectiveHistory(msgspec.Struct, frozen=True):
    """The part of a conversation that still counts: what the last compaction holds, and the items after it."""

    stretches: tuple[Sequence[InputItem], ...]
    inputs: frozenset[int]
    """The numbers of the stretches that clients have put together."""
    instructions: tuple[InputItem, ...] = ()
    """System and developer messages from before the compaction, each once."""
    summary: str = ""
    skipped: int = 0
    """How many items of the last stretch do not count any more."""
    is_compacted: bool = False


class MemoryLost(CannotOpen):
    """A compaction cannot be opened, and the items that it stands for are not stored."""

    def __init__(self, stretch: int, place: int) -> None:
        super().__init__()
        self.stretch, self.place = stretch, place


def since_compaction(
    stretches: Stretches, inputs: Collection[int], memories: Memories | None, kept: Collection[int] = ()
) -> EffectiveHistory:
    """Return what counts of the stretches. Raises `MemoryLost`.

    The items before a compaction of this server are stored: if its key is gone, they count instead. The same holds in
    the stretches that are `kept`, if any items stand before it. A client may send a compaction with nothing before it.
    """
    if memories is not None and Compaction in map(type, chain.from_iterable(stretches)):
        compactions = [
            (at, place, item)
            for at, items in enumerate(stretches)
            for place, item in enumerate(items)
            if isinstance(item, Compaction)
        ]
        for stretch, place, item in reversed(compactions):
            try:
                memory = memories.opened(item)
            except CannotOpen:
                before = (each for each in stretches[stretch][:place] if not isinstance(each, Compaction))
                is_stored = stretch in kept and not all(map(is_instruction, before))
                if stretch in inputs and not is_stored:
                    raise MemoryLost(stretch, place) from None
                note(_log, logging.WARNING, "went on without a compaction: its key is gone", item=item.id)
            else:
                return _since(stretches, inputs, memory, stretch, place)
    return EffectiveHistory(tuple(stretches), frozenset(inputs))


def _since(stretches: Stretches, inputs: Collection[int], memory: Memory, at: int, place: int) -> EffectiveHistory:
    before = [*chain.from_iterable(stretches[:at]), *stretches[at][:place]]
    instructions = in_force(memory.instructions, [*filter(is_instruction, before)])
    known = {_key(item): item for item in instructions}
    rest = [_without_repeats(known, stretch) for stretch in (stretches[at][place + 1 :], *stretches[at + 1 :])]
    kept: list[tuple[Sequence[InputItem], bool]] = [(memory.recent, True)] if memory.recent else []
    kept += [(stretch, number in inputs) for number, stretch in enumerate(rest, start=at)]
    return EffectiveHistory(
        stretches=tuple(stretch for stretch, _ in kept),
        inputs=frozenset(number for number, (_, is_input) in enumerate(kept) if is_input),
        instructions=instructions,
        summary=memory.summary,
        skipped=place + 1 if at == len(stretches) - 1 else 0,
        is_compacted=True,
    )


# ---- instructions ----


def in_force(sealed: Sequence[InputItem], sent: Sequence[InputItem]) -> tuple[InputItem, ...]:
    """Return the instructions that count after a compaction, of those sealed in it and those sent before it.

    A client may leave out what came before, so a missing instruction still counts. But some clients send all
    instructions anew each time, with a date or a directory in them. So new ones replace as many sealed ones as are
    missing in the same place, between others that are unchanged; and all of them, where none is unchanged.
    """
    sealed, sent = distinct(sealed), distinct(sent)
    places = {_key(item): place for place, item in enumerate(sealed)}
    sent_keys = {_key(item) for item in sent}
    if sent_keys and not sent_keys & places.keys():
        return sent
    found: list[InputItem] = []
    fresh: list[InputItem] = []
    after = 0
    for item in sent:
        place = places.get(_key(item))
        if place is None:
            fresh.append(item)
        elif place >= after:
            found += (*_replaced(sealed[after:place], fresh, sent_keys), item)
            fresh, after = [], place + 1
    return (*found, *_replaced(sealed[after:], fresh, sent_keys))


def _replaced(
    sealed: Sequence[InputItem], fresh: Sequence[InputItem], sent_keys: Collection[object]
) -> Iterator[InputItem]:
    """Yield the fresh ones, and the sealed ones except for as many that were not sent."""
    yield from fresh
    left = len(fresh)
    for item in sealed:
        if left and _key(item) not in sent_keys:
            left -= 1
        else:
            yield item


def distinct(instructions: Iterable[InputItem]) -> tuple[InputItem, ...]:
    """Return each instruction once, where it came last: some clients repeat theirs each turn, and some go back to an
    earlier one.
    """
    found: dict[object, InputItem] = {}
    for item in instructions:
        _put_last(found, item)
    return tuple(found.values())


def _put_last(known: dict[object, InputItem], item: InputItem) -> None:
    key = _key(item)
    known.pop(key, None)
    known[key] = item


def _key(item: InputItem) -> object:
    return (item.role, encode(item.content)) if isinstance(item, Message) else item.id


def _without_repeats(known: dict[object, InputItem], stretch: Sequence[InputItem]) -> Sequence[InputItem]:
    """Return the stretch without known instructions whose repetition changes nothing, and add its own to the known.

    Of instructions in a row the unknown ones stay, if the known ones among them are the latest, in their order; else
    all: an instruction that is repeated after another one takes precedence over it.
    """
    if not any(map(is_instruction, stretch)):
        return stretch
    found: list[InputItem] = []
    for are_instructions, row in groupby(stretch, is_instruction):
        if not are_instructions:
            found += row
            continue
        told = {_key(item): item for item in distinct(row)}
        again = [key for key in told if key in known]
        latest = [*islice(reversed(known), len(again))][::-1]
        is_same = [*told][: len(again)] == latest
        found += [item for key, item in told.items() if not (is_same and key in known)]
        for item in told.values():
            _put_last(known, item)
    return found
