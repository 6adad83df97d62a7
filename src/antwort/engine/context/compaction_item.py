"""What a compaction item stands for: all that was said before it. Given out sealed, and opened when it comes back."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any, TypeAlias

import msgspec

from antwort.api.input_items import read_item
from antwort.api.items import Compaction, InputItem, Message, OpaqueItem
from antwort.api.limits import Limits
from antwort.api.wire import encode
from antwort.errors import InvalidField
from antwort.notes import note
from antwort.vault import CannotOpen, Vault

_log = logging.getLogger("antwort.engine")

Stretches: TypeAlias = Sequence[Sequence[InputItem]]

_PURPOSE = "compaction"
_VERSION = 1
_UNBOUNDED = Limits(input_items=2**31, part_bytes=2**40)


class Memory(msgspec.Struct, frozen=True):
    """What survives a compaction."""

    instructions: tuple[InputItem, ...] = ()
    """The system and developer messages."""
    summary: str = ""
    recent: tuple[InputItem, ...] = ()
    """The latest turns word for word."""
    tools: tuple[InputItem, ...] = ()
    """The tools that items have declared before it, as one such item."""


def is_trigger(item: InputItem) -> bool:
    """Whether it asks for a compaction, as the last item of an input."""
    return isinstance(item, OpaqueItem) and item.type == "compaction_trigger"


def is_instruction(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role in ("system", "developer")


class Memories:
    """What one tenant is given sealed, and brings back."""

    def __init__(self, vault: Vault, tenant: str) -> None:
        self._vault, self._tenant = vault, tenant
        self._known: dict[str, Memory] = {}

    def seal(self, memory: Memory) -> str:
        data = encode(
            {
                "version": _VERSION,
                "instructions": memory.instructions,
                "summary": memory.summary,
                "recent": memory.recent,
                "tools": memory.tools,
            }
        )
        sealed = self._vault.seal(_PURPOSE, self._tenant, data)
        self._known[sealed] = memory
        return sealed

    def opened(self, item: Compaction) -> Memory:
        """Raises `CannotOpen`. It is opened once, and asked for at each inference."""
        memory = self._known.get(item.encrypted_content)
        if memory is None:
            data = self._vault.open(_PURPOSE, self._tenant, item.encrypted_content)
            memory = self._known[item.encrypted_content] = _read(data)
        return memory


def _read(data: bytes) -> Memory:
    """A version that is not known was sealed by a server that is newer."""
    try:
        plain = msgspec.json.decode(data)
        if plain["version"] != _VERSION:
            raise CannotOpen
        tools = _items(plain.get("tools", ()))
        return Memory(_items(plain["instructions"]), plain["summary"], _items(plain["recent"]), tools)
    except (msgspec.DecodeError, InvalidField, KeyError, TypeError) as exc:
        raise CannotOpen from exc


def _items(plain: Sequence[Any]) -> tuple[InputItem, ...]:
    return tuple(read_item(entry, "", _UNBOUNDED) for entry in plain)


# ---- what counts of a conversation ----


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of all that was said: what the last compaction holds, and what came after it."""

    stretches: tuple[Sequence[InputItem], ...]
    inputs: frozenset[int]
    """Which of the stretches clients have put together."""
    instructions: tuple[InputItem, ...] = ()
    """System and developer messages from before the compaction, each once."""
    summary: str = ""
    skipped: int = 0
    """How many items of the last stretch do not count any more."""
    is_compacted: bool = False


class MemoryLost(CannotOpen):
    """A compaction cannot be opened, and what it stands for is nowhere else."""

    def __init__(self, stretch: int, place: int) -> None:
        super().__init__()
        self.stretch, self.place = stretch, place


def since_compaction(
    stretches: Stretches, inputs: Collection[int], memories: Memories | None, kept: Collection[int] = ()
) -> Said:
    """What counts of the stretches. Raises `MemoryLost`.

    A compaction that was made here has all that it stands for before it, in the record: where its key is gone, that
    counts instead. So it is in the stretches that are `kept`, where there is anything before it. One that a client sent
    may have nothing before it.
    """
    if memories is not None and Compaction in map(type, chain.from_iterable(stretches)):
        for stretch, place, item in _compactions(stretches):
            try:
                memory = memories.opened(item)
            except CannotOpen:
                if stretch in inputs and not (stretch in kept and any(map(_is_told, stretches[stretch][:place]))):
                    raise MemoryLost(stretch, place) from None
                note(_log, logging.WARNING, "went on without a compaction: its key is gone", item=item.id)
            else:
                return _since(stretches, inputs, memory, stretch, place)
    return Said(stretches=tuple(stretches), inputs=frozenset(inputs))


def _is_told(item: InputItem) -> bool:
    return not isinstance(item, Compaction) and not is_instruction(item)


def _compactions(stretches: Stretches) -> Iterator[tuple[int, int, Compaction]]:
    """The last one first."""
    for at in reversed(range(len(stretches))):
        for place in reversed(range(len(stretches[at]))):
            item = stretches[at][place]
            if isinstance(item, Compaction):
                yield at, place, item


def _since(stretches: Stretches, inputs: Collection[int], memory: Memory, at: int, place: int) -> Said:
    before = [item for stretch in stretches[:at] for item in stretch] + [*stretches[at][:place]]
    instructions = in_force(memory.instructions, [item for item in before if is_instruction(item)])
    heard = {_words(item): item for item in instructions}
    rest = [_news(heard, stretch) for stretch in (stretches[at][place + 1 :], *stretches[at + 1 :])]
    kept: list[tuple[Sequence[InputItem], bool]] = [(memory.recent, True)] if memory.recent else []
    kept += [(stretch, number in inputs) for number, stretch in enumerate(rest, start=at)]
    return Said(
        stretches=tuple(stretch for stretch, _ in kept),
        inputs=frozenset(number for number, (_, is_input) in enumerate(kept) if is_input),
        instructions=instructions,
        summary=memory.summary,
        skipped=place + 1 if at == len(stretches) - 1 else 0,
        is_compacted=True,
    )


# ---- instructions ----


def in_force(sealed: Sequence[InputItem], standing: Sequence[InputItem]) -> tuple[InputItem, ...]:
    """The instructions that count after a compaction: those that are sealed in it, and those that stand before it.

    A client may leave away any of what came before, so what is missing is not gone. But there are clients that put all
    their instructions in front anew, with a date in some of them, or a directory. So what is new among those that stand
    there takes the place of as many sealed ones as are missing just there, between others that are the same; and of
    all, where none is the same. What is sealed does not grow by it.
    """
    sealed, standing = distinct(sealed), distinct(standing)
    places = {_words(item): place for place, item in enumerate(sealed)}
    stand = {_words(item) for item in standing}
    if stand and not stand & places.keys():
        return standing
    found: list[InputItem] = []
    fresh: list[InputItem] = []
    after = 0
    for item in standing:
        place = places.get(_words(item))
        if place is None:
            fresh.append(item)
        elif place >= after:
            found += (*_renewed(sealed[after:place], fresh, stand), item)
            fresh, after = [], place + 1
    return (*found, *_renewed(sealed[after:], fresh, stand))


def _renewed(sealed: Sequence[InputItem], fresh: Sequence[InputItem], stand: Collection[object]) -> Iterator[InputItem]:
    """The fresh ones, and the sealed ones but for as many of those that do not stand anywhere."""
    yield from fresh
    left = len(fresh)
    for item in sealed:
        if left and _words(item) not in stand:
            left -= 1
        else:
            yield item


def distinct(instructions: Iterable[InputItem]) -> tuple[InputItem, ...]:
    """Each of them once, where it came last: there are clients that send theirs anew with each turn, and some that go
    back to an earlier one.
    """
    found: dict[object, InputItem] = {}
    for item in instructions:
        _hear(found, item)
    return tuple(found.values())


def _hear(heard: dict[object, InputItem], item: InputItem) -> None:
    words = _words(item)
    heard.pop(words, None)
    heard[words] = item


def _words(item: InputItem) -> object:
    """What it says, and as whom."""
    return (item.role, encode(item.content)) if isinstance(item, Message) else item.id


def _news(heard: dict[object, InputItem], stretch: Sequence[InputItem]) -> Sequence[InputItem]:
    """The stretch without instructions that were heard before it, as far as they change nothing. They are heard now."""
    if not any(map(is_instruction, stretch)):
        return stretch
    found: list[InputItem] = []
    for are_told, group in groupby(stretch, is_instruction):
        run = [*group]
        found += _news_of(heard, run) if are_told else run
    return found


def _news_of(heard: dict[object, InputItem], run: Sequence[InputItem]) -> Sequence[InputItem]:
    """Of instructions in a row, those that were not heard, where it is the same without the others; else all of them:
    what is told again after something else holds against that.
    """
    told = {_words(item): item for item in distinct(run)}
    again = [words for words in told if words in heard]
    latest = [*islice(reversed(heard), len(again))][::-1]
    is_same = [*told][: len(again)] == latest
    fresh = [item for words, item in told.items() if words not in heard]
    for item in told.values():
        _hear(heard, item)
    return fresh if is_same else [*told.values()]
