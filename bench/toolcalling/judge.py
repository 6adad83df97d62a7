"""What is right: the calls that came, held against those that a question asks for. Pure.

* **Right tools**: the names are those that are expected, each as often as expected, in any order; none where none is.
* **Right arguments**: moreover each call has the arguments that are expected. An expected argument is given as the
  value itself, as a list of values of which one will do, as `"~word"` for a text that has the word in it, or as `"*"`
  for any text; one whose name ends in `?` may be missing. An argument that is not expected is wrong, and so is a call
  that its tool's schema does not allow.
* **Valid**: the tool is offered, and the arguments are what its schema allows. A call that is cut off where the answer
  reaches its longest counts by itself: it is neither valid nor not, and the answer is wrong.

Texts are compared without regard to case, to underscores for spaces, and to quotes and marks around them. Numbers are
compared by their value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import jsonschema_rs
from toolcalling.data import Expected, Question

from antwort.providers.base import ChatTool


class Call(NamedTuple):
    """One that came. Arguments that are no JSON object are None."""

    name: str
    arguments: Mapping[str, object] | None
    is_cut: bool = False
    """The answer reached its longest before the call was whole: nobody would run it."""


class Verdict(NamedTuple):
    tools: bool
    arguments: bool
    valid: int
    """How many of the calls the schemas allow."""
    calls: int
    cut: int = 0
    """Calls, besides those, that were cut off."""


class Judge:
    def __init__(self, tools: Sequence[ChatTool]) -> None:
        self._checks = {
            tool.function.name: jsonschema_rs.validator_for(tool.function.parameters)
            for tool in tools
            if isinstance(tool.function.parameters, dict)
        }

    def judge(self, question: Question, calls: Sequence[Call]) -> Verdict:
        whole = [call for call in calls if not call.is_cut]
        valid = sum(map(self.is_valid, whole))
        tools = len(whole) == len(calls) and sorted(call.name for call in calls) == sorted(
            one.name for one in question.calls
        )
        arguments = tools and valid == len(calls) and _all_match(question.calls, calls)
        return Verdict(tools, arguments, valid, len(whole), len(calls) - len(whole))

    def is_valid(self, call: Call) -> bool:
        check = self._checks.get(call.name)
        return check is not None and call.arguments is not None and check.is_valid(call.arguments)


def _all_match(expected: Sequence[Expected], calls: Sequence[Call]) -> bool:
    """Whether the calls can be laid beside the expected ones so that each fits."""
    return any(all(map(_matches, expected, order)) for order in permutations(calls))


def _matches(expected: Expected, call: Call) -> bool:
    if call.name != expected.name or call.arguments is None:
        return False
    wanted = {name.removesuffix("?"): value for name, value in expected.arguments.items()}
    needed = {name for name in expected.arguments if not name.endswith("?")}
    return needed <= call.arguments.keys() <= wanted.keys() and all(
        fits(wanted[name], came) for name, came in call.arguments.items()
    )


def fits(wanted: object, came: object) -> bool:
    """Whether an argument is the one that is wanted."""
    if isinstance(wanted, list):
        return any(fits(one, came) for one in wanted)
    if isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
        return isinstance(came, (int, float)) and not isinstance(came, bool) and came == wanted
    if not isinstance(wanted, str) or not isinstance(came, str):
        return wanted == came
    if wanted == "*":
        return bool(fold(came))
    if wanted.startswith("~"):
        return fold(wanted[1:]) in fold(came)
    return fold(came) == fold(wanted)


def fold(text: str) -> str:
    """The text as it is compared."""
    return " ".join(text.casefold().replace("_", " ").split()).strip("\"'.,;:!? ")
