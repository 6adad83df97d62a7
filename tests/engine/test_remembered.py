"""What is remembered of a conversation, and for how long."""

from __future__ import annotations

import pytest

from antwort.engine import remembered as memory
from antwort.engine.remembered import LASTS, Remembered, Room, Talk
from antwort.providers.base import ChatMessage, ChatRequest
from fitting_kit import assistant, step, system, user


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def request_of(*messages: ChatMessage, model: str = "m") -> ChatRequest:
    return ChatRequest(model=model, messages=list(messages))


def known(*messages: ChatMessage) -> Remembered:
    made = Remembered()
    made.keep(request_of(*messages), "a", Talk(0, rate=0.5))
    return made


def test_a_conversation_is_found_by_its_longest_beginning() -> None:
    made = known(user("One."))
    made.keep(request_of(user("One."), assistant("1"), user("Two.")), "a", Talk(0, rate=0.7))
    going_on = [user("One."), assistant("1"), user("Two."), *step("c")]
    assert made.talk(request_of(*going_on), "a").rate == 0.7
    assert made.talk(request_of(*going_on[:2]), "a").rate == 0.5


def test_it_is_the_same_with_other_instructions() -> None:
    assert known(system("S."), user("One.")).talk(request_of(system("T."), user("One.")), "a").rate == 0.5


@pytest.mark.parametrize(
    ("request_", "who"),
    [
        (request_of(user("Two.")), "a"),
        (request_of(assistant("One.")), "a"),
        (request_of(user("One."), model="n"), "a"),
        (request_of(user("One.")), "b"),
    ],
)
def test_what_others_say_or_is_said_to_others_is_another(request_: ChatRequest, who: str) -> None:
    assert known(user("One.")).talk(request_, who).rate == 0


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_TALKS", 2)
    made = known(user("One."))
    for text in ("Two.", "Three."):
        made.keep(request_of(user(text)), "a", Talk(0, rate=0.6))
    rates = [made.talk(request_of(user(text)), "a").rate for text in ("One.", "Two.", "Three.")]
    assert rates == [0, 0.6, 0.6]


def test_how_much_went_through_is_forgotten_after_an_hour() -> None:
    clock = Clock()
    made, request = Remembered(clock), request_of(user("One."))
    made.keep_room(request, "a", 500, None)
    made.went_through("m", 800)
    clock.now += LASTS - 1
    made.keep(request, "a", made.talk(request, "a"))
    made.went_through("m", 300)
    room = made.talk(request, "a").room
    assert room is not None
    assert (room.fits, made.most("m")) == (500, 800)
    clock.now += 1
    assert (made.talk(request, "a").room, made.most("m")) == (None, 0)


def test_what_fits_is_looked_for_between_what_went_through_and_what_did_not() -> None:
    assert Room(400).next == 400
    assert Room(400, 1000).next == 700
    assert Room(800, 1000).next == 800
