"""The corpus that the demo model's adapter is trained on: well-formed, right, apart from what it is measured with."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_rs
import pytest
import yaml

pytestmark = pytest.mark.xdist_group("corpus")  # read once, and not by every worker
ROOT = Path(__file__).resolve().parents[2]
SLOT = re.compile(r"\{(\w+)\}")
RUN = 5
"""So many words in a row that are the same are no accident."""
ALIKE, ALIKE_PLAIN = 0.7, 0.5
"""The share of words that two questions may have in common. Where a tool is asked for, the frame of a sentence may be
the same ("how much is … in …"): what is asked for is not. Where none is, the frame is all there is.
"""


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "models" / "toolcalling" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def corpus() -> Any:
    return generator().Corpus()


@cache
def conversations() -> list[dict[str, Any]]:
    dice = random.Random(7)
    return [generator().conversation(corpus(), dice) for _ in range(1500)]


@cache
def benchmark() -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Its tools, and its questions with whether they need no tool."""
    folder = ROOT / "bench" / "toolcalling"
    questions = yaml.safe_load((folder / "questions.yaml").read_text())
    asks = [(question["ask"], not question.get("calls")) for half in questions.values() for question in half]
    return yaml.safe_load((folder / "tools.yaml").read_text()), asks


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[at : at + RUN]) for at in range(len(found) - RUN + 1)}


def test_tools_have_names_of_their_own() -> None:
    names = [tool["name"] for tool in corpus().tools]
    assert len(names) == len(set(names))
    assert len(names) > 200


@pytest.mark.parametrize("domain", sorted(path.stem for path in (ROOT / "models/toolcalling/corpus").glob("*.yaml")))
def test_every_ask_names_what_the_call_needs_and_nothing_else(domain: str) -> None:
    for tool in corpus().domains.get(domain, []):
        parameters = tool.get("parameters") or {}
        required = {name for name, field in parameters.items() if not field.get("optional")}
        for ask in tool.get("asks") or []:
            slots = set(SLOT.findall(ask))
            assert required <= slots <= parameters.keys(), f"{tool['name']}: {ask}"


def test_calls_that_are_to_be_learnt_are_valid_under_the_schemas_on_offer() -> None:
    for conversation in conversations():
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation["tools"]}
        for message in conversation["messages"]:
            for call in message.get("tool_calls") or []:
                arguments = json.loads(call["function"]["arguments"])
                jsonschema_rs.validate({**schemas[call["function"]["name"]], "additionalProperties": False}, arguments)


def test_no_slot_is_left_open_in_what_is_said() -> None:
    slots = {name for tool in corpus().tools for name in (*(tool.get("parameters") or {}), *(tool.get("gives") or {}))}
    for conversation in conversations():
        for message in conversation["messages"]:
            assert not slots.intersection(SLOT.findall(message["content"] or "")), message


def test_no_tool_of_the_benchmark_is_trained_on() -> None:
    tools, _ = benchmark()
    trained = {tuple(words(tool["name"].replace("_", " "))) for tool in corpus().tools}
    measured = {tuple(words(tool["name"].replace("_", " "))) for tool in tools}
    assert not trained & measured


def test_no_question_of_the_benchmark_is_trained_on() -> None:
    """Not even in other words: most words of a question that needs no tool are not those of one that was learnt, and
    five words in a row of any question are seldom the same."""
    trained = {ask for tool in corpus().tools for ask in tool.get("asks") or []}
    trained |= {case["ask"] for tool in corpus().tools for case in tool.get("cases") or []}
    trained |= {pair["ask"] for pair in corpus().chat}
    seen = {run for ask in trained for run in runs(SLOT.sub(" slot ", ask))}
    bags = [frozenset(words(SLOT.sub(" ", ask))) for ask in trained]
    for ask, is_plain in benchmark()[1]:
        mine = runs(ask)
        assert len(mine & seen) <= len(mine) / 2, ask
        bag = frozenset(words(ask))
        nearest = max(len(bag & other) / len(bag | other) for other in bags)
        assert nearest <= (ALIKE_PLAIN if is_plain else ALIKE), ask
