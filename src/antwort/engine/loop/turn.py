"""Turn the deltas of one inference into items and events. Pure: no I/O, no decisions about what comes next."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import msgspec

from antwort.api.events import Batch, OutputItemAdded, OutputItemDone, TurnEnded
from antwort.api.items import CustomToolCall, FunctionCall, McpApprovalRequest, McpCall
from antwort.api.responses import Usage
from antwort.api.wire import UNSET, replace
from antwort.engine.history.calls import shown_id
from antwort.engine.history.sealed_items import Seal, SealedItems, new_request_id
from antwort.engine.loop.call_display import HeldCall, Shown, settle, unless_refused
from antwort.engine.loop.item_builders import (
    ClosedAs,
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenServerCall,
    ReasoningStyle,
)
from antwort.errors import BackendError
from antwort.ids import new_id
from antwort.providers.base import (
    CUT,
    MAX_TURN_CALLS,
    CallDelta,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antwort.tools.base import HOUSE_LABEL, given_arguments

_Words: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta
_TOO_MANY = Finished(MAX_TURN_CALLS)


class Turn:
    """Turn the deltas that are fed into items and events; `take` returns the events since the last `take`.

    Items never interleave: one is written at a time, and it is closed before the next is added. A call is closed when
    the backend begins the next item and the arguments of the call are a whole JSON object. Until then, whatever the
    backend begins behind the call is held back. Of a server's call only the arguments are closed: the item stays open
    for its result.

    `shown` returns how a call to a name is shown; it is asked once for each call, when its first delta comes. `seal`
    encrypts the reasoning, where the client gets it encrypted. A turn that `is_eager` reports calls as soon as they are
    complete.
    If it `may_be_resumed`, a function's call is not closed before the turn has ended: a process that picks the run up
    makes the inference anew, and a client would run a call that was done as well as the one that comes in its place.
    """

    is_finished = False
    is_cut = False
    has_too_many_calls = False
    """Whether the model called more than it may: the turn was ended, and nothing more of it is read."""
    usage: Usage | None = None
    """The usage of the inference, where it has ended and was made once."""
    complete_calls: tuple[OpenCall, ...] = ()
    """The calls that have become complete since the last `take_complete_calls`."""

    _finished: Finished | None = None
    _writing: OpenItem | None = None  # the one item that is being written
    _last_held: HeldCall | None = None  # the call that the last delta belongs to, if that call is not shown
    _held: tuple[HeldCall, ...] = ()  # calls that are shown at the end of the turn, in order
    _has_clients = False  # whether a call was shown that the client is to run
    _counted = 0  # shown calls that count towards the limits of the response
    _is_over = False  # whether nothing more is held back

    def __init__(
        self,
        first_index: int,
        shown: Callable[[str], Shown],
        reasoning: ReasoningStyle = "text",
        seal: Seal | None = None,
        *,
        is_eager: bool = False,
        sealed: SealedItems | None = None,
        most_calls: int = sys.maxsize,
        may_be_resumed: bool = False,
    ) -> None:
        self._sealed = sealed
        self._most_calls = most_calls
        self._is_eager = is_eager
        self._may_be_resumed = may_be_resumed
        self._index = first_index
        self._shown = shown
        self._style, self._seal = reasoning, seal
        self._events: Batch = []
        self._calls: dict[int, OpenCall | HeldCall] = {}
        self._waiting: list[HeldCall | list[_Words]] = []  # items behind a call that is not complete
        self._early: dict[int, str] = {}  # arguments that came before their call's name

    def feed(self, delta: Delta) -> None:
        """Raises `BackendError` for a piece of a call that is closed."""
        self.feed_all((delta,))

    def feed_all(self, deltas: Sequence[Delta]) -> None:
        """Feed the deltas of one read. Calls that come with the end of the turn do not begin early."""
        if deltas and isinstance(deltas[-1], Finished):
            self._is_eager = False
        finished: Finished | None = None
        for delta in deltas:
            match delta:
                case TextDelta() | ReasoningDelta() | RefusalDelta():
                    if delta.text:  # an empty first chunk opens nothing
                        self._feed_words(delta)
                case CallDelta():
                    self._feed_call(delta)
                    if self.has_too_many_calls:
                        last = deltas[-1]
                        finished = replace(last, finish=MAX_TURN_CALLS) if isinstance(last, Finished) else _TOO_MANY
                        break
                case Finished():
                    finished = delta
        if finished is not None:
            self._finished, self.is_finished, self.is_cut = finished, True, finished.finish in CUT
            self.usage = None if finished.is_sum else finished.usage

    def take(self) -> Batch:
        events, self._events = self._events, []
        return events

    def take_complete_calls(self) -> list[OpenCall]:
        """Return the calls that have become complete since the last time, while the model goes on writing. The
        arguments of each are a whole JSON object.
        """
        complete, self.complete_calls = self.complete_calls, ()
        return [call for call in complete if call.is_whole]

    def calls(self) -> list[OpenCall]:
        """Return all calls that show so far, in order."""
        return [call for call in self._calls.values() if isinstance(call, OpenCall)]

    def finish(self, answered: Collection[str] = ()) -> TurnEnded:
        """Close the items and mark the end of the inference. Return the mark, which is the last of the events.

        Where the inference was cut, the calls that are `answered`, by their ids, are complete all the same.
        """
        finished = self._finished
        assert finished is not None, "a provider ends with Finished or raises"
        if self.is_cut:
            self._close_cut(answered)
        else:
            self._is_over = True
            if self._waiting:
                self._show_waiting()
            for number, arguments in self._early.items():
                if arguments:  # a call whose name never came is a call all the same: it gets an answer
                    self._begin_call(number, "").feed(arguments, self._events)
            self._close("completed")
            if self._held:
                for shown, arguments in settle(self._held, has_clients=self._has_clients, counted=self._counted):
                    self._show(shown, arguments, "completed")
        usage = UNSET if finished.usage is None else finished.usage
        self._events.append(ended := TurnEnded(finish=finished.finish, usage=usage))
        return ended

    def abort(self, answered: Collection[str] = ()) -> None:
        """Close what is open as incomplete, because the inference broke off: the turn has not ended. Calls that are
        `answered`, by their ids, are complete. What was held back is never shown.
        """
        for call in self.calls():
            is_open = isinstance(call, OpenServerCall) and call is not self._writing
            if is_open and not _is_among(call, answered):
                call.close("incomplete", self._events)
        self._close("completed" if _is_among(self._writing, answered) else "incomplete")

    # ---- deltas ----

    def _feed_words(self, delta: _Words) -> None:
        self._last_held = None
        writing, events = self._writing, self._events
        if isinstance(delta, ReasoningDelta):
            if not isinstance(writing, OpenReasoning):
                if self._must_wait():
                    self._hold_back(delta)
                    return
                index = self._next_index()
                writing = self._writing = OpenReasoning(index, self._style, new_id("rs"), events, self._seal)
            writing.feed(delta, events)
        else:
            if not isinstance(writing, OpenMessage):
                if self._must_wait():
                    self._hold_back(delta)
                    return
                writing = self._writing = OpenMessage(self._next_index(), new_id("msg"), events)
            writing.feed(delta, events)

    def _hold_back(self, delta: _Words) -> None:
        """Keep a delta for later. Deltas of one message, or of one reasoning item, stay together."""
        last = self._waiting[-1] if self._waiting else None
        is_reasoning = isinstance(delta, ReasoningDelta)
        if isinstance(last, list) and isinstance(last[0], ReasoningDelta) == is_reasoning:
            last.append(delta)
        else:
            self._waiting.append([delta])

    def _feed_call(self, delta: CallDelta) -> None:
        call = self._calls.get(delta.index)
        arguments = delta.arguments
        if call is None:
            if len(self._calls) + len(self._early) >= self._most_calls and delta.index not in self._early:
                self.has_too_many_calls = True
                return
            if self._early:
                arguments = self._early.pop(delta.index, "") + arguments
            if not delta.name:
                self._early[delta.index] = arguments
                return
            call = self._begin_call(delta.index, delta.name)
        if isinstance(call, HeldCall):
            self._last_held = call
            call.feed(arguments, self._events)
        elif call is self._writing:
            self._last_held = None
            if arguments:
                self._feed_writing(call, arguments)
        elif arguments.strip():  # there are backends that send an empty piece behind the last one
            raise BackendError("The backend sent more of a call after it had gone on to the next item.")

    def _feed_writing(self, call: OpenCall, arguments: str) -> None:
        call.feed(arguments, self._events)
        if (self._is_eager or self._waiting) and call.completes():
            if self._is_eager and not isinstance(call, OpenCustomCall):
                self.complete_calls = (*self.complete_calls, call)
            self._show_waiting()

    # ---- one item at a time ----

    def _must_wait(self) -> bool:
        """Return whether what the backend begins now is held back: the call that is being written is not complete."""
        if self._writing is None or self._waiting:
            return bool(self._waiting)
        return not (self._is_over or self._is_complete())

    def _is_complete(self) -> bool:
        """Return whether nothing more can come of what is being written. Arguments that are no JSON object, such as the
        plain text of a free-form tool, may go on until the turn ends.
        """
        writing = self._writing
        if not isinstance(writing, OpenCall):
            return True
        if not (self.is_finished or isinstance(writing, OpenServerCall)) and self._may_be_resumed:
            return False
        return writing.completes() or writing.is_whole

    def _next_index(self) -> int:
        """Close what is being written, and return the place of the next item."""
        if self._writing is not None:
            self._close("completed")
        index = self._index
        self._index = index + 1
        return index

    def _close(self, status: ClosedAs) -> None:
        if self._writing is not None:
            self._writing.close(status, self._events)
            self._writing = None

    def _show_waiting(self) -> None:
        """Show what was held back, up to a call that is not complete."""
        waiting, self._waiting, shown = self._waiting, [], 0
        while shown < len(waiting) and (self._is_over or self._is_complete()):
            self._show_item(waiting[shown])
            shown += 1
        self._waiting = waiting[shown:]

    def _show_item(self, item: HeldCall | list[_Words]) -> None:
        if isinstance(item, HeldCall):
            call = self._open_call(item.shown, item.name, item.number)
            if item.arguments:
                self._feed_writing(call, item.arguments)
        else:
            for delta in item:
                self._feed_words(delta)

    # ---- calls ----

    def _begin_call(self, number: int, name: str) -> OpenCall | HeldCall:
        """Clients run calls in the order they see them in: behind one that is held, all are."""
        shown, must_wait = self._shown(name), self._must_wait()
        is_held = bool(self._held) or shown.fits is not None or shown.asks is not None
        if not (is_held or must_wait):
            return self._open_call(shown, name, number)
        held = self._calls[number] = HeldCall(name, shown, number)
        if not is_held:
            self._waiting.append(held)
            return held
        self._held = (*self._held, held)
        if not must_wait:
            self._close("completed")
        return held

    def _open_call(self, shown: Shown, name: str = "", number: int | None = None) -> OpenCall:
        """Announce a call and return it. Its id is ours: backends repeat theirs, or leave them out. With a `number`,
        more of it may come; else it was held, and comes whole.
        """
        index, call_id, events = self._next_index(), new_id("call"), self._events
        namespace = UNSET if shown.namespace is None else shown.namespace
        call: OpenCall
        if shown.server_label is not None:
            server = McpCall(
                id=shown_id(call_id),
                server_label=shown.server_label,
                name=shown.name,
                arguments="",
                status="in_progress",
                call_id=call_id,
            )
            call = OpenServerCall(index, server, events, name, self._counted)
        elif shown.is_custom:
            custom = CustomToolCall(
                id=new_id("ctc"),
                call_id=call_id,
                name=shown.name,
                input="",
                status="in_progress",
                namespace=namespace,
            )
            call = OpenCustomCall(index, custom, events)
        else:
            function = FunctionCall(
                id=new_id("fc"),
                call_id=call_id,
                name=shown.name,
                arguments="",
                status="in_progress",
                namespace=namespace,
            )
            call = OpenCall(index, function, events, name, self._counted)
        if number is not None:
            self._calls[number] = call
            self._has_clients = self._has_clients or shown.is_clients
            self._counted += shown.counts
        self._writing = call
        return call

    # ---- the end ----

    def _close_cut(self, answered: Collection[str]) -> None:
        """Close what was being written when the answer was cut as incomplete, and what stands behind it. So is a call
        that may have been cut while another was written beside it.
        """
        held = self._last_held if self._last_held in self._held else None
        self._show_waiting()
        is_answered, is_whole = _is_among(self._writing, answered), held is not None and self._is_complete()
        is_cut = not (self._writing is None or is_answered or is_whole)
        self._close("incomplete" if is_cut else "completed")
        self._is_over = True
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            self._show_item(item)
            self._close("incomplete")
        if self._held:
            self._show_cut(0 if is_cut or held is None else self._held.index(held))

    def _show_cut(self, whole: int) -> None:
        """Show the held calls, of which the first ones are whole. Nothing is checked: the model is not asked again."""
        for held in self._held[:whole]:
            self._show(unless_refused(held, self._counted), held.arguments, "completed")
            self._counted += held.shown.counts
        for held in self._held[whole:]:
            self._show(msgspec.structs.replace(held.shown, asks=None), held.arguments, "incomplete")

    def _show(self, shown: Shown, arguments: str, status: ClosedAs) -> None:
        if shown.asks is not None:
            self._ask(shown, arguments)
            return
        call = self._open_call(shown)
        if arguments:
            call.feed(arguments, self._events)
        self._close(status)

    def _ask(self, shown: Shown, arguments: str) -> None:
        """Ask for the approval of a call. It comes whole: nothing shows of it while it is written."""
        index = self._next_index()
        label, arguments = shown.server_label or HOUSE_LABEL, given_arguments(arguments.strip())
        item = McpApprovalRequest(
            id=new_request_id(self._sealed, label, shown.name, arguments),
            server_label=label,
            name=shown.name,
            arguments=arguments,
        )
        self._events += [
            OutputItemAdded(output_index=index, item=item),
            OutputItemDone(output_index=index, item=item),
        ]


def _is_among(item: OpenItem | None, answered: Collection[str]) -> bool:
    return bool(answered) and isinstance(item, OpenCall) and item.call_id in answered
