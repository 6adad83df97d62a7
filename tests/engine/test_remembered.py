"""What is remembered of a conversation, and for how long."""

from __future__ import annotations

import pytest

from antwort.engine.context.remembered import LASTS, Remembered, Room
from antwort.engine.context.text_sizes import Size
from antwort.providers.base import ChatMessage, ChatRequest
from fitting_kit import assistant, step, system, user


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def request_of(*messages: ChatMessage, model: str = "m") -> ChatRequest:
    return ChatRequest(model=model, messages=list(messages))


def keep(made: Remembered, rate: float, *messages: ChatMessage, who: str = "a") -> None:
    made.keep(request_of(*messages), who, Size(100), rate)


def rates(made: Remembered, *texts: str, who: str = "a") -> list[float]:
    return [made.talk(request_of(user(text)), who).rate for text in texts]


def known(*messages: ChatMessage, max_talks: int = 4096) -> Remembered:
    made = Remembered(max_talks=max_talks)
    keep(made, 0.5, *messages)
    return made


def test_a_conversation_is_found_by_its_longest_beginning() -> None:
    made = known(user("One."))
    keep(made, 0.7, user("One."), assistant("1"), user("Two."))
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


def test_only_so_many_are_remembered() -> None:
    made = known(user("One."), max_talks=2)
    for text in ("Two.", "Three."):
        keep(made, 0.6, user(text))
    assert rates(made, "One.", "Two.", "Three.") == [0, 0.6, 0.6]


def test_nobody_pushes_out_the_conversations_of_others() -> None:
    made = known(user("One."), max_talks=4)
    for number in range(20):
        keep(made, 0.6, user(f"Short {number}."), who="b")
    assert rates(made, "One.") == [0.5]
    assert rates(made, "Short 16.", "Short 17.", "Short 18.", "Short 19.", who="b") == [0, 0.6, 0.6, 0.6]


def test_of_many_clients_with_one_each_the_first_is_forgotten() -> None:
    made = Remembered(max_talks=2)
    for who in "abc":
        keep(made, 0.5, user("One."), who=who)
    assert [rates(made, "One.", who=who) for who in "abc"] == [[0], [0.5], [0.5]]


def test_one_conversation_does_not_push_out_others_by_going_on() -> None:
    """It is known as it stands, and as it stood before the last turn."""
    made, messages = known(user("Another."), max_talks=4), [user("One.")]
    for number in range(20):
        keep(made, 0.6, *messages)
        messages += [assistant(f"{number}"), user("Go on.")]
    assert rates(made, "Another.", "One.") == [0.5, 0]
    assert [made.talk(request_of(*messages[:size]), "a").rate for size in (39, 37, 35)] == [0.6, 0.6, 0]


def test_instructions_alone_are_no_conversation() -> None:
    made = known(system("7391" * 1000))
    made.keep_room(request_of(system("S.")), "a", 500, None)
    assert rates(made, "One.") == [0]
    assert made.talk(request_of(system("7391" * 1000)), "a").rate == 0
    assert made.talk(request_of(user("One.")), "a").room is None


def test_how_much_went_through_is_forgotten_after_an_hour() -> None:
    clock = Clock()
    made, request = Remembered(clock), request_of(user("One."))
    made.keep_room(request, "a", 500, None)
    made.went_through("m", 800)
    clock.now += LASTS - 1
    keep(made, 0.5, user("One."))
    made.went_through("m", 300)
    room = made.talk(request, "a").room
    assert room is not None
    assert (room.fits, made.most("m")) == (500, 800)
    clock.now += 1
    assert (made.talk(request, "a").room, made.most("m")) == (None, 0)


def test_of_models_the_one_that_was_heard_of_least_lately_is_forgotten() -> None:
    made = Remembered(Clock(), max_models=3)
    for model, tokens in (("a", 100), ("b", 100), ("c", 100), ("a", 100), ("b", 50), ("d", 100)):
        made.went_through(model, tokens)
    assert [made.most(model) for model in "abcd"] == [100, 0, 100, 100], "less than the most tells nothing"


def test_what_fits_is_looked_for_between_what_went_through_and_what_did_not() -> None:
    assert Room(400).next == 400
    assert Room(400, 1000).next == 700
    assert Room(800, 1000).next == 800
