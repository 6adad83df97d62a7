"""An answer on its way to the screen: what is finished is written once, and only the growing end is drawn again."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from antwort.chat.answer import Answer, Called, Part, Said, Thought
from antwort.chat.blocks import Block, split
from antwort.chat.calls import arguments_shown, result_shown, seconds_shown
from antwort.chat.markdown import rendered
from antwort.chat.screen import Screen
from antwort.chat.scrub import scrub

_INDENT = 2
_CODE = ("fence", "code_block")
_TURNS_PER_SECOND = 10
_LONG = 8000
"""Characters of a block that grows; of a longer one only the end is shown meanwhile, and all of it when it is whole."""
_LONG_TABLE = 60
"""Lines: what a table looks like takes far longer to find out than anything else."""


class Writing:
    """Follows one answer."""

    def __init__(self, screen: Screen, answer: Answer) -> None:
        self._screen, self._answer = screen, answer
        self._at = 0
        """How many parts are written."""
        self._offset = 0
        """How much of the text of the part that is being written has been, in whole blocks."""
        self._lines = 0
        """How many lines of the growing block have been."""
        self._before = ""
        """The kind of what was written last; empty before anything was."""

    def draw(self, now: float) -> None:
        """Bring the screen up to date."""
        above, growing = self._update(now)
        self._screen.paint(above, [*growing[-self._screen.room :], "", self._clock(now)])

    def finish(self, now: float) -> None:
        """Write the rest, and what it took."""
        above, _ = self._update(now)
        self._screen.paint([*above, "", *self._screen.lines(self._account())], [])

    # ---- parts ----

    def _update(self, now: float) -> tuple[list[str], list[str]]:
        """What is final since the last time, and what is not."""
        above: list[str] = []
        growing: list[str] = []
        before = self._before
        for part in self._answer.parts[self._at :]:
            if not growing and isinstance(part, Said) and not part.is_done:
                done, growing = self._blocks(scrub(part.text)[self._offset :], is_whole=False)
                above += done
                before = self._before
            elif growing or not part.is_done:
                lines, before = self._waiting(part, before, now)
                growing += lines
            else:
                above += self._rest(part, now)
                before = self._before
                self._at, self._offset, self._lines = self._at + 1, 0, 0
        return above, growing

    def _rest(self, part: Part, now: float) -> list[str]:
        """All of a finished part that has not been written."""
        if isinstance(part, Said):
            return self._blocks(scrub(part.text)[self._offset :], is_whole=True)[0]
        shown, kind = self._look(part, now)
        lines = self._screen.lines(shown, indent=_INDENT)[self._lines :] if shown else []
        return self._set_apart(lines, kind)

    def _waiting(self, part: Part, before: str, now: float) -> tuple[list[str], str]:
        """The lines of a part that is not finished, or stands behind one that is not."""
        shown, kind = self._look(part, now)
        lines = self._screen.lines(shown, indent=_INDENT) if shown else []
        gap = [] if not lines or kind == before == "call" else [""]
        return [*gap, *lines], kind if lines else before

    def _set_apart(self, lines: list[str], kind: str) -> list[str]:
        """With a blank line before it, unless it continues what is there."""
        if not lines:
            return []
        gap = [] if self._lines or kind == self._before == "call" else [""]
        self._before = kind
        return [*gap, *lines]

    def _look(self, part: Part, now: float) -> tuple[RenderableType | None, str]:
        match part:
            case Called():
                return _call_look(part, self._mark(part, now), now), "call"
            case Thought():
                text = scrub(_shown_of(part)).strip()
                return (Text(text, style="dim italic") if text else None), "thought"
            case Said():
                return Text(scrub(_shown_of(part))), "text"
            case _:
                return Text(f"{self._screen.glyphs.failed} {scrub(part.text)}", style="red"), "problem"

    def _mark(self, called: Called, now: float) -> tuple[str, str]:
        glyphs = self._screen.glyphs
        if not called.is_done:
            return self._spinner(now), "cyan"
        if called.approval:
            return "?", "yellow"
        return (glyphs.failed, "red") if called.error else (glyphs.ran, "green")

    # ---- text ----

    def _blocks(self, text: str, *, is_whole: bool) -> tuple[list[str], list[str]]:
        """The lines of the blocks that are finished, and those of the ones that are not: mostly one, and two where the
        second has just begun."""
        done: list[str] = []
        growing: list[str] = []
        before = ""
        for block in split(text, is_whole=is_whole):
            is_long = not block.is_finished and _is_long(block)
            lines = self._end_of(block) if is_long else self._lines_of(block)
            if is_long:
                growing, before = [*growing, *lines], block.kind
            elif block.is_finished:
                done += self._set_block_apart(block, lines)
                self._offset, self._lines, self._before = self._offset + len(block.source), 0, block.kind
            elif before:
                growing += lines if block.joins(before) else ["", *lines]
            else:
                growing, before = self._grow(block, lines, done), block.kind
        return done, growing

    def _lines_of(self, block: Block) -> list[str]:
        """Without the blank lines that some kinds have around them: those between blocks are set here."""
        lines = self._screen.lines(rendered(block.source))
        if block.kind in _CODE:
            return lines
        filled = [at for at, line in enumerate(lines) if line]
        return lines[filled[0] : filled[-1] + 1] if filled else []

    def _end_of(self, block: Block) -> list[str]:
        """The end of a long block as it may look, as far as there is room for it."""
        head = "".join(block.source.splitlines(keepends=True)[: _HEADS.get(block.kind, 0)])
        end = "".join(_end(block.source).splitlines(keepends=True)[-self._screen.room :])
        return self._screen.lines(rendered(head + end) if head else Text(end))

    def _grow(self, block: Block, lines: list[str], done: list[str]) -> list[str]:
        """Code is written line by line when it is longer than what may change: its lines stay as they are."""
        over = len(lines) - self._lines - self._screen.room
        if block.kind in _CODE and over > 0:
            done += self._set_block_apart(block, lines[: self._lines + over])
            self._lines += over
        return self._set_block_apart(block, lines)

    def _set_block_apart(self, block: Block, lines: list[str]) -> list[str]:
        gap = [] if self._lines or block.joins(self._before) else [""]
        return [*gap, *lines[self._lines :]]

    # ---- the last line ----

    def _clock(self, now: float) -> str:
        took = seconds_shown(now - self._answer.began)
        line = Text.assemble((self._spinner(now), "cyan"), (f" {took}", "dim"))
        return self._screen.lines(line)[0]

    def _spinner(self, now: float) -> str:
        frames = self._screen.glyphs.spinner
        return frames[int((now - self._answer.began) * _TURNS_PER_SECOND) % len(frames)]

    def _account(self) -> Text:
        answer, dot = self._answer, f" {self._screen.glyphs.dot} "
        account = Text(dot.join(_figures(answer)), style="dim")
        if answer.status == "cancelled":
            return Text.assemble(("cancelled", "yellow"), (dot, "dim"), account)
        if answer.problem:
            style = "red" if answer.status == "failed" else "yellow"
            return Text.assemble((f"{scrub(answer.problem)}\n", style), account)
        return account


_HEADS = {"fence": 1, "table": 2}
"""Lines without which the others mean nothing."""


def _is_long(block: Block) -> bool:
    return len(block.source) > _LONG or (block.kind == "table" and block.source.count("\n") > _LONG_TABLE)


def _end(text: str) -> str:
    """The last lines of a long text; the last words where its lines are long, too."""
    end = text[-_LONG // 2 :]
    for sign in ("\n", " "):
        if 0 <= (at := end.find(sign)) < len(end) // 2:
            return end[at + 1 :]
    return end


def _shown_of(part: Said | Thought) -> str:
    return part.text if part.is_done or len(part.text) <= _LONG else _end(part.text)


def _figures(answer: Answer) -> list[str]:
    figures = []
    if answer.usage.input_tokens or answer.usage.output_tokens:
        figures += [f"{answer.usage.input_tokens} tokens in", f"{answer.usage.output_tokens} out"]
    if answer.ended is not None:
        figures.append(seconds_shown(answer.ended - answer.began))
    if (speed := answer.tokens_per_second()) is not None:
        figures.append(f"{speed:.0f} tokens/s")
    return figures


def _call_look(called: Called, mark: tuple[str, str], now: float) -> RenderableType:
    """`✓ demo.calculate(expression: "17 * 23")  3 ms`, and below it what came of it."""
    seconds = called.seconds(now)
    head = Text.assemble(
        mark,
        " ",
        (scrub(called.title), "bold"),
        f"({arguments_shown(called.arguments)})",
        ("" if seconds is None else f"  {seconds_shown(seconds)}", "dim"),
    )
    if not called.is_done or called.approval:
        return head
    said, style = (called.error, "red") if called.error else (called.output, "dim")
    return Group(head, Padding(Text(result_shown(said), style=style), (0, 0, 0, _INDENT)))
