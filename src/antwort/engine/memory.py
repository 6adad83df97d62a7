"""What a compaction item stands for: all that was said before it. Given out sealed, and opened when it comes back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.api.inputs import Limits, read_item
from antwort.api.items import Compaction, InputItem, Message, OpaqueItem
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


def is_trigger(item: InputItem) -> bool:
    """Whether it asks for a compaction, as the last item of an input."""
    return isinstance(item, OpaqueItem) and item.type == "compaction_trigger"


def is_instruction(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role in ("system", "developer")


class Memories:
    """What one tenant is given sealed, and brings back."""

    def __init__(self, vault: Callable[[], Vault], tenant: str) -> None:
        """The vault is asked for when there is something to seal or to open."""
        self._vault, self._tenant = vault, tenant
        self._known: dict[str, Memory] = {}

    def seal(self, memory: Memory) -> str:
        data = encode(
            {
                "version": _VERSION,
                "instructions": memory.instructions,
                "summary": memory.summary,
                "recent": memory.recent,
            }
        )
        sealed = self._vault().seal(_PURPOSE, self._tenant, data)
        self._known[sealed] = memory
        return sealed

    def opened(self, item: Compaction) -> Memory:
        """Raises `CannotOpen`. It is opened once, and asked for at each inference."""
        memory = self._known.get(item.encrypted_content)
        if memory is None:
            data = self._vault().open(_PURPOSE, self._tenant, item.encrypted_content)
            memory = self._known[item.encrypted_content] = _read(data)
        return memory


def _read(data: bytes) -> Memory:
    """A version that is not known was sealed by a server that is newer."""
    try:
        plain = msgspec.json.decode(data)
        if plain["version"] != _VERSION:
            raise CannotOpen
        return Memory(_items(plain["instructions"]), plain["summary"], _items(plain["recent"]))
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
    if memories is not None:
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
    heard = {_words(item) for item in instructions}
    rest = [_without(heard, stretch) for stretch in (stretches[at][place + 1 :], *stretches[at + 1 :])]
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
    """The instructions that count after a compaction: those that are sealed in it, and behind them those that stand
    before it and are not among them. A client may leave away any of what came before, so what is missing is not gone.

    Only where some stand there, and none of them is among the sealed ones, they take their place: there are clients
    that put all their instructions in front anew, with a date in them, or a directory.
    """
    is_replaced = standing and not {_words(item) for item in sealed} & {_words(item) for item in standing}
    return distinct(standing if is_replaced else (*sealed, *standing))


def distinct(instructions: Iterable[InputItem]) -> tuple[InputItem, ...]:
    """Each of them once, where it came first: there are clients that send theirs anew with each turn."""
    found: dict[object, InputItem] = {}
    for item in instructions:
        found.setdefault(_words(item), item)
    return tuple(found.values())


def _words(item: InputItem) -> object:
    """What it says, and as whom."""
    return (item.role, encode(item.content)) if isinstance(item, Message) else item.id


def _without(heard: Collection[object], stretch: Sequence[InputItem]) -> Sequence[InputItem]:
    """The stretch without instructions that stand in front of all."""
    if any(is_instruction(item) and _words(item) in heard for item in stretch):
        return [item for item in stretch if not (is_instruction(item) and _words(item) in heard)]
    return stretch
