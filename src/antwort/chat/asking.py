"""How somebody is asked about a call that waits for approval: whoever says yes has seen what it will do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antwort.chat.answer import Called
from antwort.chat.calls import whole_arguments
from antwort.chat.scrub import in_one_line

_LONGEST_LINE, _LONGEST_SHOWN, _LONGEST_TITLE = 100, 4000, 120


@dataclass(frozen=True, slots=True)
class Question:
    """What stands above the question, the question, and all of what stands above where that is only its beginning."""

    above: str
    words: str
    whole: str | None = None


def questions(calls: Sequence[Called]) -> list[Question]:
    """One for each call, told apart by their numbers and by what the calls say."""
    return [_question(each, f", {at} of {len(calls)}" if len(calls) > 1 else "") for at, each in enumerate(calls, 1)]


def _question(called: Called, number: str) -> Question:
    title, lines = in_one_line(called.title, _LONGEST_TITLE), whole_arguments(called.arguments)
    inline = ", ".join(lines)
    if len(inline) <= _LONGEST_LINE and "\n" not in inline:
        return Question("", f"Run {title}({inline}){number}?")
    whole, words = "\n".join(lines), f"Run {title} with this{number}?"
    rest = len(whole) - _LONGEST_SHOWN
    if rest <= 0:
        return Question(whole, words)
    more = "character" if rest == 1 else "characters"
    return Question(f"{whole[:_LONGEST_SHOWN]}\n… {rest} more {more}, which `all` shows", words, whole)
