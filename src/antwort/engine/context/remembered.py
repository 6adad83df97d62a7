"""What earlier inferences have told: of the conversation that goes on, and of how much its model takes.

The best estimate of a conversation is what the backend has said of its beginning. It is found by what was said in it,
whichever way a client continues it, for the client that said it and for nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container

import msgspec
from msgspec.structs import replace

from antwort.engine.context.text_sizes import Size, plain_text, texts_of
from antwort.providers.base import ChatRequest

LASTS = 3600.0
"""Seconds for which it is remembered how much went through: backends are set up anew."""
_TALKS, _MODELS = 4096, 256
"""How many are remembered; of models, the one that was heard of least lately is forgotten."""
_CLOSE = 0.75
"""From this share of what was refused on, there is no looking for more that goes through."""
_INSTRUCTIONS = frozenset({"system", "developer"})


class Room(msgspec.Struct, frozen=True, gc=False):
    """How many tokens went through, and how many did not, where nobody knows the length of the context."""

    fits: int
    refused: int | None = None
    """None: the backend has said that so many fit."""
    at: float = 0.0

    @property
    def next(self) -> int:
        """What to try next: half way between the two, until they are close."""
        if self.refused is None or self.fits >= self.refused * _CLOSE:
            return self.fits
        return (self.fits + self.refused) // 2


class Talk(msgspec.Struct, frozen=True):
    """What is known of a conversation as it stood at one inference."""

    size: Size | None = None
    rate: float = 0.0
    """Tokens for each byte of its text, of this size; 0: unknown."""
    room: Room | None = None
    before: int | None = None
    """The mark under which it was known before it went on: it is still found when its last turn is said otherwise."""


class Remembered:
    """One for each engine."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, max_talks: int = _TALKS, max_models: int = _MODELS
    ) -> None:
        self._clock, self._max_talks, self._max_models = clock, max_talks, max_models
        self._talks: dict[str, dict[int, Talk]] = {}
        """By who had them, and by their marks."""
        self._count = 0
        self._most: dict[str, tuple[int, float]] = {}

    def talk(self, request: ChatRequest, who: str) -> Talk:
        """The conversation, or the longest beginning of it that is known; one that is not known is empty."""
        known = self._talks.get(who)
        if not known:
            return _UNKNOWN
        mark = _latest(marks_of(request, who), known)
        return _UNKNOWN if mark is None else self._as_it_holds(known[mark])

    def keep(self, request: ChatRequest, who: str, size: Size, rate: float) -> None:
        """So many tokens it had for each byte, with all that the request says."""
        self._keep(request, who, size=size, rate=rate)

    def keep_room(self, request: ChatRequest, who: str, fits: int, refused: int | None) -> None:
        """So many tokens went through in it, and so many did not."""
        self._keep(request, who, room=Room(fits, refused, self._clock()))

    def _keep(self, request: ChatRequest, who: str, **told: object) -> None:
        """Beside what was known of it. What holds no words of a conversation is none."""
        marks = marks_of(request, who)
        if not marks:
            return
        known = self._talks.setdefault(who, {})
        talk = self._as_it_holds(known.get(_latest(marks, known) or 0, _UNKNOWN))
        had, before = len(known), _latest(marks[:-1], known)
        if before is not None:
            known.pop(known[before].before or 0, None)
        known.pop(marks[-1], None)
        known[marks[-1]] = replace(talk, before=before, **told)
        self._count += len(known) - had
        if self._count > self._max_talks:
            self._forget()

    def _forget(self) -> None:
        """The one that whoever has most has not gone on with for longest: nobody pushes out those of others."""
        who = max(self._talks, key=lambda each: len(self._talks[each]))
        known = self._talks[who]
        del known[next(iter(known))]
        self._count -= 1
        if not known:
            del self._talks[who]

    def _as_it_holds(self, talk: Talk) -> Talk:
        is_over = talk.room is not None and self._clock() - talk.room.at >= LASTS
        return replace(talk, room=None) if is_over else talk

    def went_through(self, model: str, tokens: int) -> None:
        """The model has answered an input of so many."""
        heard, now = self._most, self._clock()
        known = heard.get(model)
        if known is not None:
            if tokens < known[0] and now - known[1] < LASTS:
                return
            del heard[model]
        elif len(heard) >= self._max_models:
            del heard[next(iter(heard))]
        heard[model] = (tokens, now)

    def most(self, model: str) -> int:
        """How many tokens of input the model has answered lately, whoever sent them."""
        most, at = self._most.get(model, (0, 0.0))
        return most if self._clock() - at < LASTS else 0


def marks_of(request: ChatRequest, who: str, most: int | None = None) -> list[int]:
    """What was said so far, after each message, as numbers that are the same for nothing else; of no more than `most`
    messages. Instructions are not counted: clients change them on the way.
    """
    mark, marks = hash((who, request.model)), list[int]()
    for message in request.messages:
        if message.role not in _INSTRUCTIONS:
            said = plain_text(message)
            mark = hash((mark, message.role, *texts_of(message)) if said is None else (mark, message.role, said))
            marks.append(mark)
            if len(marks) == most:
                break
    return marks


def _latest(marks: list[int], known: Container[int]) -> int | None:
    return next((mark for mark in reversed(marks) if mark in known), None)


_UNKNOWN = Talk()
