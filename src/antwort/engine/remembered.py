"""What earlier inferences have told: of the conversation that goes on, and of how much its model takes.

The best estimate of a conversation is what the backend has said of its beginning. It is found by what was said in it,
whichever way a client continues it, for the client that said it and for nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from antwort.engine.sizes import Size, texts_of
from antwort.providers.base import ChatRequest

LASTS = 3600.0
"""Seconds for which it is remembered how much went through: backends are set up anew."""
_TALKS, _MODELS = 4096, 256
"""How many are remembered; the one that was heard of least lately is forgotten."""
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

    mark: int
    """All that was said in it, as a number that is the same for nothing else."""
    size: Size | None = None
    rate: float = 0.0
    """Tokens for each byte of its text, of this size; 0: unknown."""
    room: Room | None = None


class Remembered:
    """One for each engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._talks: dict[int, Talk] = {}
        self._most: dict[str, tuple[int, float]] = {}

    def talk(self, request: ChatRequest, who: str) -> Talk:
        """The conversation, or the longest beginning of it that is known; one that is not known is empty."""
        marks = list(_marks(request, who))
        known = next((mark for mark in reversed(marks) if mark in self._talks), None)
        if known is None:
            return Talk(marks[-1])
        found = self._talks[known]
        is_over = found.room is not None and self._clock() - found.room.at >= LASTS
        return replace(found, room=None) if is_over else found

    def keep(self, request: ChatRequest, who: str, talk: Talk) -> int:
        """What is known of it now, with all that the request says. Gives its mark."""
        *_, mark = _marks(request, who)
        self._talks.pop(mark, None)
        if len(self._talks) >= _TALKS:
            self._talks.pop(next(iter(self._talks)))
        self._talks[mark] = replace(talk, mark=mark)
        return mark

    def keep_room(self, request: ChatRequest, who: str, fits: int, refused: int | None) -> None:
        """So many tokens went through in it, and so many did not."""
        self.keep(request, who, replace(self.talk(request, who), room=Room(fits, refused, self._clock())))

    def went_through(self, model: str, tokens: int) -> None:
        """The model has answered an input of so many."""
        if tokens < self.most(model):
            return
        self._most.pop(model, None)
        if len(self._most) >= _MODELS:
            self._most.pop(next(iter(self._most)))
        self._most[model] = (tokens, self._clock())

    def most(self, model: str) -> int:
        """How many tokens of input the model has answered lately, whoever sent them."""
        most, at = self._most.get(model, (0, 0.0))
        return most if self._clock() - at < LASTS else 0


def _marks(request: ChatRequest, who: str) -> Iterator[int]:
    """What was said so far, after each message. Instructions are not counted: clients change them on the way."""
    mark = hash((who, request.model))
    yield mark
    for message in request.messages:
        if message.role not in _INSTRUCTIONS:
            mark = hash((mark, message.role, *texts_of(message)))
            yield mark
