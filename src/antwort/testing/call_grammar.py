"""The grammar of calls: their arguments or their input, and of those that are run here, the outcome."""

from __future__ import annotations

from functools import singledispatchmethod

from antwort.api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    Event,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpCallProgress,
)
from antwort.api.items import CustomToolCall, FunctionCall, McpCall
from antwort.testing.base_grammar import ItemGrammar, WorkGrammar
from antwort.testing.part_grammar import ArgumentsGrammar
from antwort.testing.rules import require


class FunctionCallGrammar(ItemGrammar[FunctionCall]):
    def __init__(self, item: FunctionCall) -> None:
        super().__init__(item)
        self._is_open()
        require(item.arguments == "", "a call is added with empty arguments")
        self._arguments = ArgumentsGrammar()

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _feed_arguments(self, event: ArgumentsDelta) -> None:
        self._arguments.delta(event.delta)

    @inside.register
    def _say_arguments(self, event: ArgumentsDone) -> None:
        require(event.name == self.added.name, f"the call is to {self.added.name}, not to {event.name}")
        self._arguments.say(event.arguments)

    def _check_done(self, item: FunctionCall) -> None:
        self._arguments.close(item.arguments, item.status)


class CustomCallGrammar(ItemGrammar[CustomToolCall]):
    """The input in pieces, then whole: text, not JSON."""

    def __init__(self, item: CustomToolCall) -> None:
        super().__init__(item)
        self._is_open()
        require(item.input == "", "a call of a free-form tool is added with an empty input")
        self._input = ArgumentsGrammar("input")

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _feed_input(self, event: CustomInputDelta) -> None:
        self._input.delta(event.delta)

    @inside.register
    def _say_input(self, event: CustomInputDone) -> None:
        self._input.say(event.input)

    def _check_done(self, item: CustomToolCall) -> None:
        self._input.close(item.input, item.status)


class McpCallGrammar(ItemGrammar[McpCall]):
    """In progress, the arguments, in progress again and how far it is while the tool works, the outcome.

    Without an outcome it is a paused call (completed, with neither output nor error) or one closed as incomplete.
    """

    def __init__(self, item: McpCall) -> None:
        super().__init__(item)
        self._is_open()
        require(item.arguments == "", "a call is added with empty arguments")
        require(item.output is None and item.error is None, "a call is added without output and error")
        self._arguments = ArgumentsGrammar()
        self._work = WorkGrammar()

    @property
    def is_written(self) -> bool:
        """Once its arguments are whole, it is open for its result alone, and others may be added meanwhile."""
        return self._arguments.is_said or super().is_written

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _begin(self, _event: McpCallInProgress) -> None:
        if self._arguments.is_said:
            self._work.go_on()
        else:
            self._work.begin()

    @inside.register
    def _feed_arguments(self, event: McpArgumentsDelta) -> None:
        require(self._work.is_begun, "arguments come after in_progress")
        self._arguments.delta(event.delta)

    @inside.register
    def _say_arguments(self, event: McpArgumentsDone) -> None:
        require(self._work.is_begun, "arguments come after in_progress")
        self._arguments.say(event.arguments)

    @inside.register
    def _tell(self, _event: McpCallProgress) -> None:
        require(self._arguments.is_said, "progress comes after the whole arguments")
        self._work.go_on()

    @inside.register
    def _end(self, event: McpCallCompleted | McpCallFailed) -> None:
        require(self._arguments.is_said, "the outcome comes after the whole arguments")
        self._work.end("completed" if isinstance(event, McpCallCompleted) else "failed")

    def _check_done(self, item: McpCall) -> None:
        self._arguments.close(item.arguments, item.status)
        has_output, has_error = item.output is not None, item.error is not None
        if self._work.outcome == "completed":
            is_right = item.status == "completed" and has_output and not has_error
            require(is_right, "after mcp_call.completed the item is completed, with an output and no error")
        elif self._work.outcome == "failed":
            require(item.status == "failed" and has_error, "after mcp_call.failed the item is failed, with an error")
        else:
            require(item.status != "failed", "an mcp_call is done as failed only after mcp_call.failed")
            require(not has_output and not has_error, "an mcp_call has an output or error only after its outcome")
