"""A request that was written for one backend, in the words of another."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.wire import UNSET
from antwort.providers.base import Capabilities, ChatMessage
from antwort.providers.capabilities import adapt, widest
from fleet_kit import asking

PLAIN = Capabilities()
OWN = Capabilities(
    reasoning_field="reasoning",
    developer_role=True,
    allowed_tools=True,
    max_tokens_field="max_completion_tokens",
    prompt_cache_key=True,
    verbosity=True,
)
ALLOWED: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
REQUIRED: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}
FORCED: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("capabilities", "given", "expected"),
    [
        (OWN, {"max_tokens": 9}, {"max_completion_tokens": 9}),
        (PLAIN, {"max_completion_tokens": 9}, {"max_tokens": 9}),
        (PLAIN, {"prompt_cache_key": "k", "verbosity": "low"}, {}),
        (OWN, {"prompt_cache_key": "k", "verbosity": "low"}, {"prompt_cache_key": "k", "verbosity": "low"}),
        (PLAIN, {"tool_choice": ALLOWED}, {}),
        (PLAIN, {"tool_choice": REQUIRED}, {"tool_choice": "required"}),
        (OWN, {"tool_choice": ALLOWED}, {"tool_choice": ALLOWED}),
        (PLAIN, {"tool_choice": FORCED}, {"tool_choice": FORCED}),
        (PLAIN, {"tool_choice": "none"}, {"tool_choice": "none"}),
    ],
)
def test_fields_are_named_as_the_backend_names_them_or_left_out(
    capabilities: Capabilities, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert adapt(asking(**given), capabilities) == asking(**expected)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", None])
@pytest.mark.parametrize("came_as", ["reasoning", "reasoning_content"])
def test_reasoning_stands_where_the_backend_reads_it(field: Any, came_as: Any) -> None:
    request = asking()
    thought: dict[str, Any] = {came_as: "hm"}
    request.messages.append(ChatMessage(role="assistant", content="x", **thought))
    last = adapt(request, Capabilities(reasoning_field=field)).messages[-1]
    found = {name: value for name in ("reasoning", "reasoning_content") if (value := getattr(last, name)) is not UNSET}
    assert found == ({field: "hm"} if field else {})


@pytest.mark.parametrize(("capabilities", "role"), [(PLAIN, "system"), (OWN, "developer")])
def test_a_developer_is_the_system_where_the_backend_knows_no_developers(capabilities: Capabilities, role: str) -> None:
    request = asking()
    request.messages.insert(0, ChatMessage(role="developer", content="Be brief."))
    assert [message.role for message in adapt(request, capabilities).messages] == [role, "user"]


@pytest.mark.parametrize(
    ("first", "second", "grammar"),
    [
        ("pattern", "pattern", "pattern"),
        ("pattern", "described", "described"),
        ("plain_pattern", "pattern", "described"),
    ],
)
def test_a_grammar_is_told_in_words_unless_all_backends_are_held_to_it_alike(
    first: Any, second: Any, grammar: str
) -> None:
    several = [Capabilities(grammar=first, vision=False), Capabilities(grammar=second)]
    assert widest(several).grammar == grammar


def test_what_one_backend_may_fold_is_told_apart_for_all() -> None:
    assert widest([Capabilities(folds=True), Capabilities(vision=False)]).folds
    assert not widest([Capabilities(), Capabilities(vision=False)]).folds
