"""A turn: a backend's deltas become items and events. No I/O, no decisions about what comes next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import msgspec

from antwort.api.events import Batch, OutputItemAdded, OutputItemDone, TurnEnded
from antwort.api.items import CustomToolCall, FunctionCall, McpApprovalRequest, McpCall
from antwort.api.responses import Usage
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.approval_ids import ApprovalIds
from antwort.engine.held import HeldCall, Shown, settle, unless_refused
from antwort.engine.opened import OpenItem, OpenMessage, OpenReasoning, ReasoningStyle, Seal
from antwort.engine.opened_calls import ClosedAs, OpenCall, OpenCustomCall, OpenServerCall, ShownCall
from antwort.engine.pairs import request_id, shown_id
from antwort.ids import new_id
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.tools.base import HOUSE_LABEL

CUT = frozenset({"length", "content_filter"})
"""Finish reasons that say the answer was broken off: what was being written is incomplete."""


class _Feeds(dict[type, Callable[["Turn", Any], None]]):
    """What takes a delta, by its kind. A provider may make kinds of its own of ours; others say nothing."""

    def __missing__(self, kind: type) -> Callable[[Turn, Any], None]:
        return next((feed for known, feed in self.items() if issubclass(kind, known)), lambda _turn, _delta: None)


class Turn:
    """Feed it the deltas of one inference; `take` gives the events since the last `take`.

    `shown` says how a call to a name shows; it is asked once for each call, when its first delta comes. `seal` seals
    the reasoning, where it is to be given out so. Where it `is_eager`, it says which calls are complete as they come.
    """

    is_finished = False
    is_cut = False
    usage: Usage | None = None
    """What the request has cost, where that is known: the inference has ended, and was asked for once."""

    _finished: Finished | None = None
    _speaking: OpenMessage | OpenReasoning | None = None  # the one that is being written
    _written: OpenItem | HeldCall | None = None  # what the last delta went to
    _held: tuple[HeldCall, ...] = ()  # those of the calls that are shown at the end, as they were begun
    _has_clients = False  # whether a call was shown that the client is to run
    _counted = 0  # how many were shown of those that a response runs only so many of
    _whole: tuple[OpenCall, ...] = ()  # those that became complete since somebody asked

    def __init__(
        self,
        first_index: int,
        shown: Callable[[str], Shown],
        reasoning: ReasoningStyle = "text",
        seal: Seal | None = None,
        *,
        is_eager: bool = False,
        approval_ids: ApprovalIds | None = None,
    ) -> None:
        self._approval_ids = approval_ids
        self._is_eager = is_eager
        self._index = first_index
        self._shown = shown
        self._style, self._seal = reasoning, seal
        self._events: Batch = []
        self._open: list[OpenItem] = []  # what shows and is not closed, in order
        self._calls: dict[int, ShownCall | HeldCall] = {}
        self._early: dict[int, str] = {}  # arguments that came before their call's name

    def feed(self, delta: Delta) -> None:
        self._FEEDS[type(delta)](self, delta)

    def feed_all(self, deltas: Sequence[Delta]) -> None:
        """Those of one read. Nothing begins early of what comes with the end."""
        if deltas and isinstance(deltas[-1], Finished):
            self._is_eager = False
        feeds = self._FEEDS
        for delta in deltas:
            feeds[type(delta)](self, delta)

    def take(self) -> Batch:
        events, self._events = self._events, []
        return events

    @property
    def has_whole(self) -> bool:
        return bool(self._whole)

    def take_whole(self) -> list[OpenCall]:
        """The calls that have become complete since this was asked last, while the model goes on writing: each is a
        whole JSON object.
        """
        whole, self._whole = self._whole, ()
        return [call for call in whole if call.is_whole]

    def calls(self) -> list[OpenCall]:
        """All calls that show so far, in order, those in a free-form tool's words apart."""
        return [item for item in self._open if isinstance(item, OpenCall)]

    def finish(self, answered: Collection[str] = ()) -> TurnEnded:
        """The backend has said all: close the items and mark the end of the inference. Gives the mark, which is
        the last of the events.

        Where it was cut, the calls that are `answered`, by their ids, are complete all the same.
        """
        finished = self._finished
        assert finished is not None, "a provider ends with Finished or raises"
        if self.is_cut:
            self._close_cut(answered)
        else:
            if self._early:
                self._show_nameless()
            for item in self._open:
                item.close("completed", self._events)
            if self._held:
                self._show_held()
        usage = UNSET if finished.usage is None else finished.usage
        self._events.append(ended := TurnEnded(finish=finished.finish, usage=usage))
        return ended

    def abort(self, answered: Collection[str] = ()) -> None:
        """The inference broke off: what is open is closed as incomplete, and the turn has not ended. Calls that are
        `answered`, by their ids, are complete.

        A call that was held has not been shown, and never is.
        """
        for item in self._open:
            item.close("completed" if _is_among(item, answered) else "incomplete", self._events)

    # ---- one kind of delta each ----

    def _feed_text(self, delta: TextDelta) -> None:
        if delta.text:  # an empty first chunk opens nothing
            self._open_message().feed_text(delta, self._events)

    def _feed_refusal(self, delta: RefusalDelta) -> None:
        if delta.text:
            self._open_message().feed_refusal(delta.text, self._events)

    def _feed_reasoning(self, delta: ReasoningDelta) -> None:
        if not delta.text:
            return
        speaking = self._speaking
        if not isinstance(speaking, OpenReasoning):
            self._end_saying()
            speaking = OpenReasoning(self._next_index(), self._style, new_id("rs"), self._seal)
            self._say(speaking)
        self._written = speaking
        speaking.feed(delta.text, self._events)

    def _feed_call(self, delta: CallDelta) -> None:
        call = self._calls.get(delta.index)
        arguments = delta.arguments
        if call is None:
            if self._early:
                arguments = self._early.pop(delta.index, "") + arguments
            if not delta.name:
                self._early[delta.index] = arguments
                return
            call = self._open_call(delta.index, delta.name)
        self._written = call
        if arguments:
            call.feed(arguments, self._events)
            if self._is_eager and isinstance(call, OpenCall) and call.is_complete_with(arguments):
                self._whole = (*self._whole, call)

    def _feed_end(self, delta: Finished) -> None:
        self._finished, self.is_finished, self.is_cut = delta, True, delta.finish in CUT
        if not delta.is_sum:
            self.usage = delta.usage

    def _show_nameless(self) -> None:
        """Arguments whose name never came are a call all the same: whoever made it must hear of it."""
        for index, arguments in self._early.items():
            if arguments:
                self._open_call(index, "").feed(arguments, self._events)

    # ---- opening and closing ----

    def _next_index(self) -> int:
        index = self._index
        self._index = index + 1
        return index

    def _open_message(self) -> OpenMessage:
        speaking = self._speaking
        if not isinstance(speaking, OpenMessage):
            self._end_saying()
            speaking = OpenMessage(self._next_index(), new_id("msg"))
            self._say(speaking)
        self._written = speaking
        return speaking

    def _say(self, item: OpenMessage | OpenReasoning) -> None:
        self._speaking = item
        self._open.append(item)
        item.announce(self._events)

    def _end_saying(self) -> None:
        """What was being said is over. Where a call stands before it that may yet be cut, it is closed with that."""
        item, self._speaking = self._speaking, None
        if item is not None and not self._calls:
            self._open.remove(item)
            item.close("completed", self._events)

    def _open_call(self, index: int, name: str) -> ShownCall | HeldCall:
        """Clients run calls in the order they see them in: behind one that is held, all are."""
        if self._speaking is not None:
            self._end_saying()
        shown = self._shown(name)
        if self._held or shown.is_held:
            held = self._calls[index] = HeldCall(name, shown)
            self._held = (*self._held, held)
            return held
        call = self._calls[index] = self._announced(shown, name)
        self._open.append(call)
        if shown.is_clients:
            self._has_clients = True
        if shown.counts:
            self._counted += 1
        return call

    def _announced(self, shown: Shown, called: str = "") -> ShownCall:
        """Its id is ours: backends repeat theirs, or leave them out."""
        index, call_id, name = self._index, new_id("call"), shown.name
        self._index = index + 1
        call: ShownCall
        if (label := shown.server_label) is not None:
            item_id = shown_id(call_id)
            server = McpCall(
                id=item_id, server_label=label, name=name, arguments="", status="in_progress", call_id=call_id
            )
            call = OpenServerCall(index, server, called, self._counted)
        elif shown.is_custom:
            custom = CustomToolCall(
                id=new_id("ctc"), call_id=call_id, name=name, input="", status="in_progress", namespace=_apart(shown)
            )
            call = OpenCustomCall(index, custom)
        else:
            function = FunctionCall(
                id=new_id("fc"), call_id=call_id, name=name, arguments="", status="in_progress", namespace=_apart(shown)
            )
            call = OpenCall(index, function, called, self._counted)
        call.announce(self._events)
        return call

    def _show(self, shown: Shown, arguments: str, status: ClosedAs) -> None:
        if shown.asks is not None:
            self._ask(shown, arguments)
            return
        call = self._announced(shown)
        if arguments:
            call.feed(arguments, self._events)
        call.close(status, self._events)

    def _ask(self, shown: Shown, arguments: str) -> None:
        """It comes whole: nothing is to be seen of it while it is written."""
        index = self._next_index()
        label, arguments = shown.server_label or HOUSE_LABEL, arguments.strip() or "{}"
        item = McpApprovalRequest(
            id=request_id(new_id("call"))
            if self._approval_ids is None
            else self._approval_ids.new(label, shown.name, arguments),
            server_label=label,
            name=shown.name,
            arguments=arguments,
        )
        self._events += [
            OutputItemAdded(output_index=index, item=item),
            OutputItemDone(output_index=index, item=item),
        ]

    def _show_held(self) -> None:
        for shown, arguments in settle(self._held, has_clients=self._has_clients, counted=self._counted):
            self._show(shown, arguments, "completed")

    def _close_cut(self, answered: Collection[str]) -> None:
        """What was being written when the answer was cut is incomplete, and with it what stands behind it."""
        written = self._written
        cut_from = self._index if written is None or isinstance(written, HeldCall) else written.index
        for item in self._open:
            is_cut = item.index >= cut_from and not _is_among(item, answered)
            item.close("incomplete" if is_cut else "completed", self._events)
        if self._held:
            self._show_cut()

    def _show_cut(self) -> None:
        """The model is not asked again: nothing is checked."""
        whole = self._held.index(self._written) if isinstance(self._written, HeldCall) else 0
        for held in self._held[:whole]:
            self._show(unless_refused(held, self._counted), held.arguments, "completed")
            self._counted += held.shown.counts
        for held in self._held[whole:]:
            self._show(msgspec.structs.replace(held.shown, asks=None), held.arguments, "incomplete")

    _FEEDS: ClassVar[_Feeds] = _Feeds(
        {
            TextDelta: _feed_text,
            ReasoningDelta: _feed_reasoning,
            CallDelta: _feed_call,
            RefusalDelta: _feed_refusal,
            Finished: _feed_end,
        }
    )


def _is_among(item: OpenItem, answered: Collection[str]) -> bool:
    return bool(answered) and isinstance(item, OpenCall) and item.call_id in answered


def _apart(shown: Shown) -> str | UnsetType:
    return UNSET if shown.namespace is None else shown.namespace
