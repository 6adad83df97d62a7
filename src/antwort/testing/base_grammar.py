"""What the grammars of items have in common: `output_item.added`, `output_item.done`, and work that an item shows."""

from __future__ import annotations

from functools import singledispatchmethod
from typing import Generic, Literal, TypeVar, cast

from antwort.api.events import Event, ItemEvent
from antwort.api.items import OutputItem
from antwort.testing.rules import Broken, require, tag_of

ItemT = TypeVar("ItemT", bound=OutputItem)

_FIXED = ("id", "role", "call_id", "name", "namespace", "server_label")
"""What an item is known by: the same in `added` and in `done`."""

_GROWING = ("output", "input", "arguments", "tools")
"""What an item without inner events may be added without."""

_FINAL = ("completed", "incomplete", "failed")


class ItemGrammar(Generic[ItemT]):
    """What all items have in common; alone, the grammar of an item inside which nothing happens.

    Such an item may be added whole, and then does not change any more.
    """

    def __init__(self, item: ItemT) -> None:
        self.added = item
        self.done: ItemT | None = None

    @property
    def is_written(self) -> bool:
        """Whether the next item may be added."""
        return self.done is not None

    def feed(self, event: ItemEvent) -> None:
        require(event.item_id == self.added.id, f"item_id is {event.item_id}, but the item here is {self.added.id}")
        require(self.done is None, f"item {self.added.id} is done and not touched any more")
        self.inside(event)

    def close(self, item: OutputItem) -> None:
        require(self.done is None, f"item {self.added.id} is done already")
        require(type(item) is type(self.added), f"the item was added as {tag_of(self.added)}, not as {tag_of(item)}")
        for name in _FIXED:
            before, after = getattr(self.added, name, None), getattr(item, name, None)
            require(before == after, f"the item's {name} changed from {before} to {after}")
        require(item.status in _FINAL, f"an item is not done with status {item.status}")
        done = cast("ItemT", item)
        self._check_done(done)
        self.done = done

    @singledispatchmethod
    def inside(self, _event: Event) -> None:
        raise Broken(f"this does not happen inside an item of type {tag_of(self.added)}")

    def _is_open(self) -> None:
        status = self.added.status
        require(status == "in_progress", f"an item is added with status in_progress, not {status}")

    def _check_done(self, item: ItemT) -> None:
        if self.added.status != "in_progress":
            require(item == self.added, "an item that was added whole does not change")
        for name in _GROWING:
            before, after = getattr(self.added, name, ""), getattr(item, name, "")
            require(before in ("", (), after), f"the item's {name} changed")


class WorkGrammar:
    """Work of ours that an item shows: in progress once, then at most one outcome."""

    def __init__(self) -> None:
        self.is_begun = False
        self.outcome: Literal["completed", "failed"] | None = None

    def begin(self) -> None:
        require(not self.is_begun, "in_progress comes exactly once")
        self.is_begun = True

    def go_on(self) -> None:
        """As often as it takes, for those who watch."""
        require(self.is_begun and self.outcome is None, "in_progress and progress come again only while the tool works")

    def end(self, outcome: Literal["completed", "failed"]) -> None:
        require(self.is_begun, "the outcome comes after in_progress")
        require(self.outcome is None, "there is exactly one outcome")
        self.outcome = outcome
