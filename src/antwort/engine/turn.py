"""A turn: a backend's deltas become items and events. No I/O, no decisions about what comes next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from antwort.api.events import Batch, OutputItemAdded, OutputItemDone, TurnEnded
from antwort.api.items import CustomToolCall, FunctionCall, McpApprovalRequest, McpCall
from antwort.api.responses import Usage
from antwort.api.wire import UNSET
from antwort.engine.held import HeldCall, Shown, settle, unless_refused
from antwort.engine.opened import OpenItem, OpenMessage, OpenReasoning, ReasoningStyle, Seal
from antwort.engine.opened_calls import ClosedAs, OpenCall, OpenCustomCall, ShownCall
from antwort.engine.pairs import request_id, shown_id
from antwort.ids import new_id
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.tools.base import HOUSE_LABEL

CUT = frozenset({"length", "content_filter"})
"""Finish reasons that say the answer was broken off: what was being written is incomplete."""


class Turn:
    """Feed it the deltas of one inference; `take` gives the events since the last `take`.

    `shown` says how a call to a name shows; it is asked once for each call, when its first delta comes. `seal` seals
    the reasoning, where it is to be given out so. Where it `is_eager`, it says which calls are complete as they come.
    """

    def __init__(
        self,
        first_index: int,
        shown: Callable[[str], Shown],
        reasoning: ReasoningStyle = "text",
        seal: Seal | None = None,
        *,
        is_eager: bool = False,
    ) -> None:
        self._is_eager = is_eager
        self._index = first_index
        self._shown = shown
        self._style, self._seal = reasoning, seal
        self._events: Batch = []
        self._message: OpenMessage | None = None
        self._reasoning: OpenReasoning | None = None
        self._calls: dict[int, ShownCall | HeldCall] = {}
        self._held: list[HeldCall] = []  # those of the calls that are shown at the end, as they were begun
        self._has_clients = False  # whether a call was shown that the client is to run
        self._counted = 0  # how many were shown of those that a response runs only so many of
        self._left: list[OpenItem] = []  # said in full, while a call before them may yet be cut
        self._early: dict[int, str] = {}  # arguments that came before their call's name
        self._whole: list[OpenCall] = []  # those that became complete since somebody asked
        self._written: OpenItem | HeldCall | None = None  # what the last delta went to
        self._finished: Finished | None = None

    def feed(self, delta: Delta) -> None:
        match delta:
            case TextDelta():
                self._feed_text(delta)
            case ReasoningDelta(text):
                self._feed_reasoning(text)
            case CallDelta():
                self._feed_call(delta)
            case RefusalDelta(text):
                self._feed_refusal(text)
            case Finished():
                self._finished = delta

    def feed_all(self, deltas: Sequence[Delta]) -> None:
        """Those of one read. Nothing begins early of what comes with the end."""
        if deltas and isinstance(deltas[-1], Finished):
            self._is_eager = False
        for delta in deltas:
            self.feed(delta)

    @property
    def is_finished(self) -> bool:
        return self._finished is not None

    @property
    def usage(self) -> Usage | None:
        """What the request has cost, where that is known: the inference has ended, and was asked for once."""
        return None if self._finished is None or self._finished.is_sum else self._finished.usage

    def take(self) -> Batch:
        events, self._events = self._events, []
        return events

    @property
    def is_cut(self) -> bool:
        return self._finished is not None and self._finished.finish in CUT

    @property
    def has_whole(self) -> bool:
        return bool(self._whole)

    def take_whole(self) -> list[OpenCall]:
        """The calls that have become complete since this was asked last, while the model goes on writing: each is a
        whole JSON object.
        """
        whole, self._whole = self._whole, []
        return [call for call in whole if call.is_whole]

    def calls(self) -> list[OpenCall]:
        """All calls that show so far, in order, those in a free-form tool's words apart."""
        calls = [call for call in self._calls.values() if isinstance(call, OpenCall)]
        return sorted(calls, key=lambda call: call.index)

    def finish(self, answered: Collection[str] = ()) -> None:
        """The backend has said all: close the items and mark the end of the inference.

        Where it was cut, the calls that are `answered`, by their ids, are complete all the same.
        """
        finished = self._finished
        assert finished is not None, "a provider ends with Finished or raises"
        if finished.finish in CUT:
            self._close_all("incomplete", answered)
        else:
            if self._early:
                self._show_nameless()
            self._close_all("completed")
        self._forget()
        usage = UNSET if finished.usage is None else finished.usage
        self._events.append(TurnEnded(finish=finished.finish, usage=usage))

    def abort(self, answered: Collection[str] = ()) -> None:
        """The inference broke off: what is open is closed as incomplete, and the turn has not ended. Calls that are
        `answered`, by their ids, are complete.

        A call that was held has not been shown, and never is.
        """
        for item in self._open_items():
            item.close("completed" if _is_among(item, answered) else "incomplete", self._events)
        self._forget()

    # ---- one kind of delta each ----

    def _feed_text(self, delta: TextDelta) -> None:
        if delta.text:  # an empty first chunk opens nothing
            self._open_message().feed_text(delta, self._events)

    def _feed_refusal(self, text: str) -> None:
        if text:
            self._open_message().feed_refusal(text, self._events)

    def _feed_reasoning(self, text: str) -> None:
        if not text:
            return
        self._close_message()
        if self._reasoning is None:
            self._reasoning = OpenReasoning(self._next_index(), self._style, new_id("rs"), self._seal)
            self._reasoning.announce(self._events)
        self._written = self._reasoning
        self._reasoning.feed(text, self._events)

    def _feed_call(self, delta: CallDelta) -> None:
        call = self._calls.get(delta.index)
        arguments = delta.arguments
        if call is None:
            arguments = self._early.pop(delta.index, "") + arguments
            if not delta.name:
                self._early[delta.index] = arguments
                return
            call = self._open_call(delta.index, delta.name)
        self._written = call
        if arguments:
            call.feed(arguments, self._events)
            if self._is_eager and isinstance(call, OpenCall) and call.is_complete_with(arguments):
                self._whole.append(call)

    def _show_nameless(self) -> None:
        """Arguments whose name never came are a call all the same: whoever made it must hear of it."""
        for index, arguments in self._early.items():
            if arguments:
                self._open_call(index, "").feed(arguments, self._events)

    # ---- opening and closing ----

    def _next_index(self) -> int:
        index = self._index
        self._index += 1
        return index

    def _open_message(self) -> OpenMessage:
        if self._message is None:
            self._close_reasoning()
            self._message = OpenMessage(self._next_index(), new_id("msg"))
            self._message.announce(self._events)
        self._written = self._message
        return self._message

    def _open_call(self, index: int, name: str) -> ShownCall | HeldCall:
        self._close_message()
        self._close_reasoning()
        call = self._calls[index] = self._begun(name, self._shown(name))
        return call

    def _begun(self, name: str, shown: Shown) -> ShownCall | HeldCall:
        """Clients run calls in the order they see them in: behind one that is held, all are."""
        if not shown.is_held and not self._held:
            call = self._announced(shown, name)
            if isinstance(call, OpenCall):
                call.before = self._counted
            self._has_clients |= shown.is_clients
            self._counted += shown.counts
            return call
        held = HeldCall(name, shown)
        self._held.append(held)
        return held

    def _announced(self, shown: Shown, called: str = "") -> ShownCall:
        item = _call_item(shown)
        index = self._next_index()
        call = OpenCustomCall(index, item) if isinstance(item, CustomToolCall) else OpenCall(index, item, called)
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
        item = McpApprovalRequest(
            id=request_id(new_id("call")),
            server_label=shown.server_label or HOUSE_LABEL,
            name=shown.name,
            arguments=arguments.strip() or "{}",
        )
        self._events += [
            OutputItemAdded(output_index=index, item=item),
            OutputItemDone(output_index=index, item=item),
        ]

    def _close_message(self) -> None:
        if self._message is not None:
            self._leave(self._message)
            self._message = None

    def _close_reasoning(self) -> None:
        if self._reasoning is not None:
            self._leave(self._reasoning)
            self._reasoning = None

    def _leave(self, item: OpenItem) -> None:
        if self._calls:
            self._left.append(item)
        else:
            item.close("completed", self._events)

    def _open_items(self) -> list[OpenItem]:
        singles = [item for item in (self._reasoning, self._message) if item is not None]
        calls = [call for call in self._calls.values() if not isinstance(call, HeldCall)]
        items = [*singles, *self._left, *calls]
        return items if len(items) < 2 else sorted(items, key=lambda item: item.index)

    def _close_all(self, last: ClosedAs, answered: Collection[str] = ()) -> None:
        """What was being written when the answer was cut is incomplete, and with it what stands behind it."""
        written = None if last == "completed" or isinstance(self._written, HeldCall) else self._written
        cut_from = self._index if written is None else written.index
        for item in self._open_items():
            is_cut = item.index >= cut_from and not _is_among(item, answered)
            item.close(last if is_cut else "completed", self._events)
        if not self._held:
            return
        if last == "completed":
            for shown, arguments in settle(self._held, has_clients=self._has_clients, counted=self._counted):
                self._show(shown, arguments, last)
        else:
            self._show_cut()

    def _show_cut(self) -> None:
        """The model is not asked again: nothing is checked."""
        whole = self._held.index(self._written) if isinstance(self._written, HeldCall) else 0
        for held in self._held[:whole]:
            self._show(unless_refused(held, self._counted), held.arguments, "completed")
            self._counted += held.shown.counts
        for held in self._held[whole:]:
            self._show(msgspec.structs.replace(held.shown, asks=None), held.arguments, "incomplete")

    def _forget(self) -> None:
        self._message, self._reasoning, self._written = None, None, None
        self._calls, self._held, self._left, self._whole = {}, [], [], []


def _is_among(item: OpenItem, answered: Collection[str]) -> bool:
    return bool(answered) and isinstance(item, OpenCall) and item.call_id in answered


def _call_item(shown: Shown) -> FunctionCall | CustomToolCall | McpCall:
    """Its id is ours: backends repeat theirs, or leave them out."""
    call_id = new_id("call")
    if shown.server_label is not None:
        return McpCall(
            id=shown_id(call_id),
            server_label=shown.server_label,
            name=shown.name,
            arguments="",
            status="in_progress",
            call_id=call_id,
        )
    namespace = UNSET if shown.namespace is None else shown.namespace
    if shown.is_custom:
        return CustomToolCall(
            id=new_id("ctc"), call_id=call_id, name=shown.name, input="", status="in_progress", namespace=namespace
        )
    return FunctionCall(
        id=new_id("fc"), call_id=call_id, name=shown.name, arguments="", status="in_progress", namespace=namespace
    )
