"""What is offered in place of a name that does not exist."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from antwort import suggestions
from antwort.api.requests import REQUEST_FIELDS
from antwort.suggestions import addresses, among, did_you_mean, field_warnings, meant, missing, nearest

SOURCE = Path(suggestions.__file__).parent
PATHS = ["/v1/responses", "/v1/responses/compact", "/v1/models", "/docs", "/healthz"]


def test_names_are_compared_in_one_module_alone() -> None:
    users = [path.name for path in SOURCE.rglob("*.py") if "get_close_matches" in path.read_text(encoding="utf-8")]
    assert users == ["suggestions.py"]


def test_the_nearest_names_come_first_and_unlike_ones_not_at_all() -> None:
    assert nearest("wether", ["weather", "whether", "shop"], 3) == ["whether", "weather"]
    assert nearest("zzz", ["weather"]) == []
    assert did_you_mean(["a", "b", "c", "d"]) == "did you mean a or b or c?"
    assert did_you_mean([]) == ""


@pytest.mark.parametrize(
    ("name", "names", "said"),
    [
        ("qwen4", ["qwen3"], "Did you mean 'qwen3'?"),
        ("qwen4", ["qwen3", "llama"], "Did you mean 'qwen3'? Available: 'qwen3', 'llama'."),
        ("gpt-9", ["scripted"], "Available: 'scripted'."),
        ("gpt-9", [f"m{n}" for n in range(9)], ""),
        ("gpt-9", [], ""),
        ("qwen3", ["qwen3"], ""),
        ("", ["one", "two"], "Available: 'one', 'two'."),
    ],
)
def test_a_few_names_are_listed_and_the_nearest_is_named(name: str, names: list[str], said: str) -> None:
    assert among(name, names) == said


def test_the_nearest_of_very_many_names_is_found() -> None:
    assert among("owen3-instruct", [*(f"other-{n}" for n in range(500)), "qwen3-instruct"]) == (
        "Did you mean 'qwen3-instruct'?"
    )


def test_a_name_of_any_length_is_compared_by_its_start() -> None:
    names = ["ab-" * 30 + str(n) for n in range(100_000)]
    began = process_time()
    said = among("ab-" * 1_000_000, names)
    assert process_time() - began < 1
    assert len(said) < 200


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("temprature", "temperature"),
        ("inptu", "input"),
        ("Input", "input"),
        ("messages", "input"),
        ("max_tokens", "max_output_tokens"),
        ("response_format", "text.format"),
        ("prompt_cache_retention", ""),
        ("client_metadata", ""),
        ("x" * 10_000, ""),
    ],
)
def test_a_field_that_is_not_known_means_one_that_is_near(field: str, known: str) -> None:
    assert meant(field, REQUEST_FIELDS) == known


def test_warnings_are_few_short_and_printable() -> None:
    names = ["a\r\nSet-Cookie: x=1", "ü\U0001f600'", "n" * 10_000_000, *(f"f{n}" for n in range(100))]
    warnings = field_warnings(names, REQUEST_FIELDS)
    assert warnings.isascii()
    assert warnings.isprintable()
    assert warnings.count("unknown field") == suggestions.MAX_WARNINGS
    assert len(warnings) < 8 * 1000
    assert field_warnings(["temprature", "moderation"], REQUEST_FIELDS) == (
        "unknown field 'temprature', did you mean 'temperature'?; field without effect 'moderation'"
    )


def test_a_missing_field_is_looked_for_among_the_unknown_ones() -> None:
    assert missing("input", ["zzz", "inptu"], REQUEST_FIELDS) == "Unknown field 'inptu': did you mean 'input'?"
    assert missing("input", ["messages"], REQUEST_FIELDS) == "(Chat Completions 'messages' are not accepted here.)"
    assert missing("input", ["zzz", "modle"], REQUEST_FIELDS) == ""
    assert missing("model", ["modle"], REQUEST_FIELDS) == "Unknown field 'modle': did you mean 'model'?"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", "Requests go to POST /v1/responses; /docs describes all there is."),
        ("/v1/foo", "Requests go to POST /v1/responses; /docs describes all there is."),
        ("/v1/response", "Did you mean '/v1/responses'? Requests go to"),
        ("/v1/responses/", "Did you mean '/v1/responses'? Requests go to"),
        ("/responses", "Did you mean '/v1/responses'? Requests go to"),
        ("/v1/chat/completions", "Chat Completions are not served; send 'input' in place of 'messages'"),
        ("/v1/completions", "Chat Completions are not served; send 'input' in place of 'messages'"),
        ("/" + "x" * 1_000_000, "Requests go to"),
    ],
)
def test_an_address_that_does_not_exist_leads_to_one_that_does(path: str, said: str) -> None:
    assert addresses(path, PATHS).startswith(said)
