"""Show an answer while it grows: finished blocks are written once, and only what still changes is drawn again."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from antwort.chat.answer import CallPart, ChatAnswer, Part, ReasoningPart, TextPart
from antwort.chat.formatting import format_arguments, format_result, format_seconds, sanitize
from antwort.chat.markdown import Block, Markdown, split
from antwort.chat.screen import Screen

_INDENT = 2
_CODE = ("fence", "code_block")
_HEAD_LINES = {"fence": 1, "table": 2}
"""Lines at the beginning of a block without which the others mean nothing."""
_LONG_BLOCK = 8000
"""Characters. Of a longer block, only the end is shown until it is finished."""
_LONG_TABLE = 60
"""Lines. Tables take far longer to lay out than anything else."""


class AnswerView:
    """Show one answer."""

    def __init__(self, screen: Screen, answer: ChatAnswer) -> None:
        self._screen, self._answer = screen, answer
        self._written_parts = 0
        self._offset = 0
        """How much text of the current part is written, in finished blocks."""
        self._written_lines = 0
        """How many lines of the growing block are written."""
        self._before = ""
        """The kind of what was written last."""

    def draw(self, now: float) -> None:
        """Bring the screen up to date."""
        above, growing = self._update(now)
        seconds = now - self._answer.began
        clock = Text.assemble((self._spinner(now), "cyan"), (f" {format_seconds(seconds)}", "dim"))
        self._screen.paint(above, [*growing[-self._screen.height :], "", self._screen.lines(clock)[0]])

    def finish(self, now: float) -> None:
        """Write the rest, and the figures."""
        above, _ = self._update(now)
        self._screen.paint([*above, "", *self._screen.lines(self._summary())])

    # ---- parts ----

    def _update(self, now: float) -> tuple[list[str], list[str]]:
        """Return the lines that have become final since the last time, and those that may still change."""
        above: list[str] = []
        growing: list[str] = []
        before = self._before
        for part in self._answer.parts[self._written_parts :]:
            if not growing and isinstance(part, TextPart) and not part.is_done:
                done, growing = self._blocks(part, is_whole=False)
                above += done
                before = self._before
            elif growing or not part.is_done:
                kind, lines = self._part_lines(part, now)
                if lines:
                    growing += [*_gap(kind, before), *lines]
                    before = kind
            else:
                if isinstance(part, TextPart):
                    above += self._blocks(part, is_whole=True)[0]
                else:
                    kind, lines = self._part_lines(part, now)
                    if lines:
                        above += [*_gap(kind, self._before), *lines]
                        self._before = kind
                before = self._before
                self._written_parts, self._offset, self._written_lines = self._written_parts + 1, 0, 0
        return above, growing

    def _part_lines(self, part: Part, now: float) -> tuple[str, list[str]]:
        """Return the kind of a part and its lines; text that waits behind something else is shown without Markdown."""
        shown: RenderableType
        match part:
            case CallPart():
                kind, shown = "call", self._call(part, now)
            case ReasoningPart() | TextPart():
                is_cut = not part.is_done and len(part.text) > _LONG_BLOCK
                text = sanitize(_end(part.text) if is_cut else part.text)
                if isinstance(part, TextPart):
                    kind, shown = "text", Text(text)
                elif text.strip():
                    kind, shown = "reasoning", Text(text.strip(), style="dim italic")
                else:
                    return "reasoning", []
            case _:
                kind, shown = "problem", Text(f"{self._screen.glyphs.failed} {sanitize(part.text)}", style="red")
        return kind, self._screen.lines(shown, indent=_INDENT)

    def _call(self, call: CallPart, now: float) -> RenderableType:
        """Show `✓ demo.calculate(expression: "17 * 23")  3 ms`, and the result below it."""
        glyphs = self._screen.glyphs
        if not call.is_done:
            mark = (self._spinner(now), "cyan")
        elif call.approval:
            mark = ("?", "yellow")
        else:
            mark = (glyphs.failed, "red") if call.error else (glyphs.ran, "green")
        seconds = call.seconds(now)
        head = Text.assemble(
            mark,
            " ",
            (sanitize(call.title), "bold"),
            f"({format_arguments(call.arguments)})",
            ("" if seconds is None else f"  {format_seconds(seconds)}", "dim"),
        )
        if not call.is_done or call.approval:
            return head
        result, style = (call.error, "red") if call.error else (call.output, "dim")
        return Group(head, Padding(Text(format_result(result), style=style), (0, 0, 0, _INDENT)))

    # ---- text ----

    def _blocks(self, part: TextPart, *, is_whole: bool) -> tuple[list[str], list[str]]:
        """Return the new lines of finished blocks, and those of the one or two that still grow."""
        done: list[str] = []
        growing: list[str] = []
        before = ""
        for block in split(sanitize(part.text)[self._offset :], is_whole=is_whole):
            is_table = block.kind == "table"
            is_long = len(block.source) > _LONG_BLOCK or (is_table and block.source.count("\n") > _LONG_TABLE)
            if is_long and not block.is_finished:
                growing, before = [*growing, *self._end_lines(block)], block.kind
                continue
            lines = self._lines(block)
            if block.is_finished:
                done += self._rest(block, lines)
                self._offset, self._written_lines, self._before = self._offset + len(block.source), 0, block.kind
            elif before:
                growing += lines if block.joins(before) else ["", *lines]
            else:
                over = len(lines) - self._written_lines - self._screen.height
                if block.kind in _CODE and over > 0:  # more than can change at once: the lines of code are final
                    done += self._rest(block, lines[: self._written_lines + over])
                    self._written_lines += over
                growing, before = self._rest(block, lines), block.kind
        return done, growing

    def _rest(self, block: Block, lines: list[str]) -> list[str]:
        """Return the lines that are not written yet, with a blank line before the first one of a new block."""
        gap = [] if self._written_lines or block.joins(self._before) else [""]
        return [*gap, *lines[self._written_lines :]]

    def _lines(self, block: Block) -> list[str]:
        """Return the lines of a block without the blank ones around it, which only some kinds have."""
        lines = self._screen.lines(Markdown(block.source))
        if block.kind in _CODE:
            return lines
        filled = [at for at, line in enumerate(lines) if line]
        return lines[filled[0] : filled[-1] + 1] if filled else []

    def _end_lines(self, block: Block) -> list[str]:
        """Return the end of a long block, as much as fits."""
        head = "".join(block.source.splitlines(keepends=True)[: _HEAD_LINES.get(block.kind, 0)])
        end = "".join(_end(block.source).splitlines(keepends=True)[-self._screen.height :])
        return self._screen.lines(Markdown(head + end) if head else Text(end))

    # ---- the last line ----

    def _spinner(self, now: float) -> str:
        return self._screen.glyphs.frame(now - self._answer.began)

    def _summary(self) -> Text:
        answer, dot = self._answer, f" {self._screen.glyphs.dot} "
        figures = []
        if answer.usage.input_tokens or answer.usage.output_tokens:
            figures += [f"{answer.usage.input_tokens} tokens in", f"{answer.usage.output_tokens} out"]
        if answer.ended is not None:
            figures.append(format_seconds(answer.ended - answer.began))
        if (speed := answer.tokens_per_second()) is not None:
            figures.append(f"{speed:.0f} tokens/s")
        summary = Text(dot.join(figures), style="dim")
        if answer.status == "cancelled":
            return Text.assemble(("cancelled", "yellow"), (dot, "dim"), summary)
        if answer.problem:
            style = "red" if answer.status == "failed" else "yellow"
            return Text.assemble((f"{sanitize(answer.problem)}\n", style), summary)
        return summary


def _gap(kind: str, before: str) -> list[str]:
    """Return a blank line, except between calls."""
    return [] if kind == before == "call" else [""]


def _end(text: str) -> str:
    """Return the last lines of a long text, or the last words if its lines are long."""
    end = text[-_LONG_BLOCK // 2 :]
    for sign in ("\n", " "):
        if 0 <= (at := end.find(sign)) < len(end) // 2:
            return end[at + 1 :]
    return end
