"""What is left out of a conversation that is too long, in which order, and what stands in its place."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from antwort.api.decoding import at_once
from antwort.engine.context.message_text import Pictures, Recap, recalled, recap_of
from antwort.engine.context.truncation import truncation_steps
from antwort.providers.base import ChatMessage
from fitting_kit import CUT, GONE, PICTURE, answer, assistant, size, step, system, text_of, total, user

LONG = "".join(f"line {n}\n" for n in range(1000))


def exchanges(count: int) -> list[ChatMessage]:
    return [each for n in range(count) for each in (user(f"question {n} " + "q" * 80), assistant(f"answer {n}"))]


def fitted(messages: list[ChatMessage], budget: int) -> list[ChatMessage]:
    found = at_once(truncation_steps(messages, budget, size))
    assert found.size == total(found.messages) <= budget
    return found.messages


def test_what_fits_is_left_alone() -> None:
    messages = [system("Be brief."), *exchanges(5), user("And now?")]
    found = at_once(truncation_steps(messages, total(messages), size))
    assert found.messages == messages
    assert (found.left_out, found.shortened) == (0, 0)


def test_the_oldest_exchanges_go_and_the_first_message_that_is_left_says_so() -> None:
    messages = [system("Be brief."), *exchanges(20), user("And now?")]
    found = fitted(messages, 1500)
    gone = len(messages) - len(found)
    assert found[0] == messages[0]
    assert text_of(found[1]) == f"{GONE} {gone} earlier messages]\n\n{text_of(messages[gone + 1])}"
    assert found[2:] == messages[gone + 2 :]


def test_system_messages_in_the_middle_stay_where_they_are() -> None:
    messages = [*exchanges(10), ChatMessage(role="developer", content="Now in French."), *exchanges(10), user("So?")]
    found = fitted(messages, 1000)
    assert found[0] == messages[20]
    assert text_of(found[1]).startswith(GONE)


def test_old_results_are_shortened_before_anything_is_left_out() -> None:
    messages = [user("Go."), *step("a", LONG), *step("b", LONG), *step("c", "short"), assistant("Done."), user("More.")]
    found = at_once(truncation_steps(messages, 12_000, size))
    first, second = found.messages[2], found.messages[4]
    assert found.left_out == 0
    assert (found.shortened, second) == (1, messages[4])
    assert text_of(first).startswith("line 0\nline 1\n")
    assert text_of(first).endswith("line 998\nline 999\n")
    missing = CUT.search(text_of(first))
    assert missing is not None
    kept = text_of(first).replace(f"\n{missing[0]}\n", "")
    assert int(missing[1].replace(",", "")) == len(LONG) - len(kept)


def test_the_parts_of_a_result_are_shortened_and_its_pictures_are_not() -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": LONG}, PICTURE]
    [asked, result] = step("a")
    messages = [user("Go."), asked, ChatMessage(role="tool", tool_call_id="a", content=parts), *step("b"), user("On.")]
    found = fitted(messages, 3000)[2]
    assert isinstance(found.content, list)
    assert result.tool_call_id == found.tool_call_id
    assert CUT.search(found.content[0]["text"])
    assert found.content[1] == PICTURE


def test_a_new_result_that_is_larger_than_all_there_is_room_for_does_not_push_out_what_was_said() -> None:
    messages = [system("S."), *exchanges(10), user("Read it."), *step("a", LONG * 3)]
    found = fitted(messages, 6000)
    assert found[:-1] == messages[:-1]
    assert CUT.search(text_of(found[-1]))


def test_in_a_long_loop_the_task_stays_and_the_oldest_steps_go() -> None:
    steps = [step(f"call_{n}", f"result {n} " + "r" * 100) for n in range(40)]
    messages = [system("S."), *exchanges(3), user("The task."), *(each for each_step in steps for each in each_step)]
    found = fitted(messages, 2000)
    assert (found[0], found[1].role) == (messages[0], "user")
    head, task, gone = text_of(found[1]).split("\n\n")
    assert (head, task) == (f"{GONE} 6 earlier messages]", "The task.")
    assert gone == f"{GONE} {len(messages) - len(found) - 6} earlier messages]"
    assert found[2:] == messages[-len(found) + 2 :]
    assert found[2].tool_calls


def test_calls_side_by_side_go_with_all_their_results_and_pictures() -> None:
    many = [*answer({"a": "one", "b": "two"}), Pictures(role="user", content=[PICTURE])]
    messages = [user("Look."), *many * 10, *answer({"a": "x" * 200}), user("Well?")]
    roles = [message.role for message in fitted(messages, 1500)]
    assert roles[0] == "user"
    middle, end = roles[1:-3], roles[-3:]
    assert middle
    assert middle == ["assistant", "tool", "tool", "user"] * (len(middle) // 4)
    assert end == ["assistant", "tool", "user"]


def test_where_the_user_has_said_nothing_the_words_are_a_message_of_the_user() -> None:
    messages = [each for n in range(20) for each in step(f"c{n}", "r" * 100)]
    found = fitted(messages, 1200)
    assert (found[0].role, text_of(found[0]).startswith(GONE)) == ("user", True)
    assert found[1].role == "assistant"


def test_of_messages_that_the_user_sends_in_a_row_the_oldest_go_one_by_one() -> None:
    messages = [user(f"note {n} " + "n" * 80) for n in range(40)]
    found = fitted(messages, 3000)
    assert total(found) > 3000 * 0.75
    assert text_of(found[0]).endswith(text_of(messages[-len(found)]))
    assert found[1:] == messages[-len(found) + 1 :]


def test_what_the_user_sends_in_a_row_before_a_loop_stays_with_the_task_where_it_is_short() -> None:
    steps = [each for n in range(40) for each in step(f"c{n}", "r" * 100)]
    short = [*exchanges(20), user("Here is what I have."), user("Do it."), *steps]
    found = fitted(short, 1500)
    assert text_of(found[0]).endswith("Here is what I have.")
    assert text_of(found[1]).startswith("Do it.")
    notes = [user(f"note {n} " + "n" * 80) for n in range(20)]
    found = fitted([*notes, user("Do it."), *steps], 1500)
    assert [message.role for message in found[:3]] == ["user", "user", "assistant"]
    assert text_of(found[1]).startswith("Do it.")


OVER = 1.02
"""Just too long."""


@pytest.mark.parametrize("budget", [4000, 4100, 30_000, 131_000])
@pytest.mark.parametrize("others", [{}, {"b": "short", "c": "x" * 300}])
@pytest.mark.parametrize("times", [OVER, 3, 40])
def test_the_last_results_get_what_room_there_is(budget: int, others: dict[str, str], times: float) -> None:
    """An agent that reads one long file sees as much of it as fits."""
    messages = [system("S."), *exchanges(5), user("Read it."), *answer({"a": "x" * int(budget * times), **others})]
    found = fitted(messages, budget)
    assert total(found) >= budget * 0.95
    assert len(found) == len(messages)
    assert found[-len(others) :] == messages[-len(others) :] or not others


@pytest.mark.parametrize("budget", [4000, 4100, 30_000, 131_000])
@pytest.mark.parametrize("behind", [step("b"), [assistant("I have read it."), user("So?")]])
def test_an_old_result_that_is_just_too_long_loses_little(budget: int, behind: list[ChatMessage]) -> None:
    messages = [user("Read it."), *step("a", "x" * int(budget * OVER)), *behind]
    found = fitted(messages, budget)
    assert total(found) >= budget * 0.7
    assert len(found) == len(messages)


def test_the_last_results_fill_what_the_oldest_turns_have_left_free() -> None:
    messages = [*exchanges(100), user("Read it."), *step("a", "x" * 9000)]
    found = fitted(messages, 6000)
    assert total(found) >= 6000 * 0.95
    assert len(text_of(found[-1])) >= 6000 / 4
    assert len(found) > 3, "what was said before is not all pushed out"


@pytest.mark.parametrize("budget", [3000, 2000, 1000])
def test_the_last_results_are_shortened_ever_more_when_nothing_else_is_left_to_go(budget: int) -> None:
    messages = [system("S."), *exchanges(3), user("Task."), *answer(dict.fromkeys("abcd", LONG))]
    found = fitted(messages, budget)
    assert [message.role for message in found] == ["system", "user", "assistant", *["tool"] * 4]
    assert all(CUT.search(text_of(message)) for message in found[3:])


def test_at_the_very_last_thoughts_and_pictures_go_and_all_but_the_last_that_the_user_said() -> None:
    thinking = answer({"a": "ok"}, thought="hm " * 300)
    pictures = Pictures(role="user", content=[PICTURE] * 20)
    messages = [user("x" * 1000), user("Task."), *thinking, pictures]
    found = at_once(truncation_steps(messages, 500, size))
    asked, called, result, shown = found.messages
    assert text_of(asked) == f"{GONE} 1 earlier message]\n\nTask."
    assert (called.tool_calls, called.reasoning_content) == (thinking[0].tool_calls, thinking[0].reasoning)
    assert result == thinking[1]
    assert text_of(shown) == "[20 of the results' pictures or files left out]"
    assert found.size <= 500


def test_the_least_that_makes_sense_is_given_where_even_that_does_not_fit() -> None:
    messages = [system("S."), *exchanges(3), user("Task " * 400), *step("a", LONG)]
    found = at_once(truncation_steps(messages, 500, size))
    assert found.size > 500
    assert [message.role for message in found.messages] == ["system", "user", "assistant", "tool"]
    assert "Task " * 400 in text_of(found.messages[1])


def test_a_result_without_its_call_is_never_kept() -> None:
    lost = ChatMessage(role="tool", tool_call_id="gone", content="?")
    assert at_once(truncation_steps([lost, user("Hi."), lost, *step("a"), lost], 10_000, size)).messages == [
        user("Hi."),
        *step("a"),
    ]


def test_the_summary_of_what_was_compacted_stays_at_the_head_and_speaks_with_what_the_user_says_next() -> None:
    """There are models that take no two messages of the user in a row."""
    recap = Recap(role="user", content="[Summary] We talked.")
    messages = [system("S."), recap, *exchanges(20)[1:], user("And now?")]
    found = fitted(messages, 1500)
    assert [message.role for message in found[:3]] == ["system", "user", "assistant"]
    said, gone, question = text_of(found[1]).split("\n\n")
    assert (said, gone.startswith(GONE), question[:8]) == ("[Summary] We talked.", True, "question")
    pictured = ChatMessage(role="user", content=[PICTURE, {"type": "text", "text": "And this?"}])
    last = at_once(truncation_steps([recap, *exchanges(9)[1:], pictured], 300, size)).messages
    assert [message.role for message in last] == ["user"]
    assert isinstance(last[0].content, list)
    assert (last[0].content[0]["text"][:9], last[0].content[1:]) == ("[Summary]", pictured.content)


def test_what_the_user_said_first_after_a_compaction_goes_like_all_else_and_the_summary_stays() -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "Read this. " * 100}, PICTURE]
    for content in ("Read this. " * 100, parts):
        first = recalled(recap_of("We talked."), ChatMessage(role="user", content=content))
        messages = [system("S."), first, assistant("Done."), *exchanges(3), user("And now?")]
        assert text_of(fitted(messages, total(messages))[1]) == text_of(first)
        assert [message.role for message in fitted(messages, total(messages))] == [each.role for each in messages]
        [top, said, *_] = fitted(messages, 1200)
        summary, *gone, question = text_of(said).split(GONE)
        assert (top, summary.strip(), len(gone)) == (system("S."), recap_of("We talked."), 0)
        assert question.startswith(" 2 earlier messages]\n\nquestion 0")


def test_the_cut_stays_where_it_is_while_a_conversation_goes_on() -> None:
    """So that a backend has read the beginning before."""
    messages = [system("S.")]
    begins: list[list[ChatMessage]] = []
    for n in range(200):
        messages += [user(f"question {n} " + "q" * 80), *step(f"c{n}", "r" * (900 if n % 7 == 0 else 60))]
        begins.append(fitted(messages, 4096)[:4])
        messages.append(assistant(f"answer {n}"))
    moved = sum(one != other for one, other in pairwise(begins))
    steps = total(messages) // 512
    assert 10 < moved <= steps


def test_the_cut_does_not_move_with_small_changes_of_the_budget() -> None:
    messages = [system("S."), *exchanges(100), user("And now?")]
    cuts = {at_once(truncation_steps(messages, budget, size)).left_out for budget in range(4500, 4700, 10)}
    assert len(cuts) <= 2
