"""What a setting takes: what is wrong is told with its path, its place, what was expected and what was given."""

from __future__ import annotations

import pytest

from antwort.config import BadSettings
from antwort.config.settings import NAME_IN_WORDS
from config_kit import Operator

BACKEND = "backends: [{name: a, url: http://a/v1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {port: 70000}", "server.port must be a whole number from 0 to 65535, not '70000' (antwort.yaml:1)."),
        ("server:\n  port: 80.5", "server.port must be a whole number from 0 to 65535, not '80.5' (antwort.yaml:2)."),
        ("server: {port: }", "server.port must be a whole number from 0 to 65535, not nothing (antwort.yaml:1)."),
        ("server: {port: [1]}", "server.port must be a whole number from 0 to 65535, not a list (antwort.yaml:1)."),
        ("server: 5", "server must be a mapping of settings, not text (antwort.yaml:1)."),
        ("server: {host: ''}", "server.host must be text, not empty (antwort.yaml:1)."),
        ("server: {host: {a: b}}", "server.host must be text, not a mapping (antwort.yaml:1)."),
        (
            "server: {linger: 0}",
            "server.linger must be a number more than 0 and at most 86400, not '0' (antwort.yaml:1).",
        ),
        ("server: {drain: .nan}", "server.drain must be a number from 0 to 86400, not '.nan' (antwort.yaml:1)."),
        ("server: {drain: nan}", "server.drain must be a number from 0 to 86400, not 'nan' (antwort.yaml:1)."),
        (
            "server: {body_limit: 0}",
            "server.body_limit must be a whole number of at least 1, not '0' (antwort.yaml:1).",
        ),
        (
            "background: {log_bytes: 100000000}",
            "background.log_bytes must be a whole number from 0 to 67108864, not '100000000' (antwort.yaml:1).",
        ),
        ("memory: maybe", "memory must be true or false, not 'maybe' (antwort.yaml:1)."),
        ("log: {level: loud}", "log.level must be one of debug, error, info, warning, not 'loud' (antwort.yaml:1)."),
        ("backends: {a: b}", "backends must be a list of tables, not a mapping (antwort.yaml:1)."),
        ("cors: {origins: x}", "cors.origins must be a list of texts, not text (antwort.yaml:1)."),
        ("cors: {origins: [a: b]}", "cors.origins[0] must be text, not a mapping (antwort.yaml:1)."),
        (
            "routing: {aliases: [a]}",
            "routing.aliases must be a mapping of names to texts, not a list (antwort.yaml:1).",
        ),
        ("backends:\n  - url: http://a/v1", "backends[0].name is missing (antwort.yaml:2)."),
        (
            "backends: [{name: 'a b', url: http://a}]",
            f"backends[0].name must be {NAME_IN_WORDS} (antwort.yaml:1).",
        ),
        (
            "tools: {limits: {timeouts: {a b: 0}}}",
            "tools.limits.timeouts['a b'] must be a number more than 0 and at most 86400, not '0' (antwort.yaml:1).",
        ),
        ("default_model: {a: b}", "default_model must be text, not a mapping (antwort.yaml:1)."),
    ],
)
def test_a_value_that_cannot_be_is_one_sentence(text: str, said: str, operator: Operator) -> None:
    assert operator.is_told(text) == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_turns: 3", "max_turns is not a setting (antwort.yaml:1); did you mean loop.max_turns?"),
        ("max_turn: 3", "max_turn is not a setting (antwort.yaml:1); did you mean loop.max_turns?"),
        ("\nport: 3", "port is not a setting (antwort.yaml:2); did you mean server.port or metrics.port?"),
        ("backend: x", "backend is not a setting (antwort.yaml:1); did you mean backends?"),
        ("server:\n  host: a\n  prot: 1", "server.prot is not a setting (antwort.yaml:3); did you mean server.port?"),
        (
            "server.port: 1",
            "server.port is not a setting (antwort.yaml:1); write port on a line of its own below server.",
        ),
        (
            f"{BACKEND}, apikey: hush}}]",
            "backends[0].apikey is not a setting (antwort.yaml:1); did you mean backends[0].api_key?",
        ),
        (
            f"{BACKEND}, timeouts: {{idl: 1}}}}]",
            "backends[0].timeouts.idl is not a setting (antwort.yaml:1); did you mean backends[0].timeouts.idle?",
        ),
        ("retry: {}", "retry is not a setting (antwort.yaml:1); did you mean routing.retry?"),
        ("xyzzy: 1", "xyzzy is not a setting (antwort.yaml:1)."),
        ("api_key: hush", "api_key is not a setting (antwort.yaml:1); did you mean backends[].api_key?"),
    ],
)
def test_an_unknown_key_is_told_with_what_may_be_meant(text: str, said: str, operator: Operator) -> None:
    assert operator.is_told(text) == [said]


def test_all_problems_are_told_at_once_and_the_first_says_how_many_more(operator: Operator) -> None:
    with pytest.raises(BadSettings) as caught:
        operator.reads("a: 1\nb: 2\nserver: {port: x}", {"ANTWORT_NONE": "1"})
    assert [problem.path for problem in caught.value.problems] == ["a", "b", "server.port", "ANTWORT_NONE"]
    assert str(caught.value).endswith(
        "a is not a setting (" + str(operator.folder) + "/antwort.yaml:1). (`antwort config check` lists 3 more.)"
    )


def test_a_long_value_is_not_repeated_in_full(operator: Operator) -> None:
    [said] = operator.is_told(f"server: {{port: {'9' * 5000}}}")
    assert said == f"server.port must be a whole number from 0 to 65535, not '{'9' * 40}…' (antwort.yaml:1)."


@pytest.mark.parametrize(
    "text", ["auth: {keys: hush}", "auth: hush", "backends: [http://u:hush@host]", "metrics: hush", "backends: hush"]
)
def test_a_text_in_the_place_of_something_larger_is_not_repeated(text: str, operator: Operator) -> None:
    [said] = operator.is_told(text)
    assert said.endswith(", not text (antwort.yaml:1).")
    assert "hush" not in said


def test_a_choice_may_be_written_in_capitals(operator: Operator) -> None:
    assert operator.gets("log: {level: DEBUG}").log.level == "debug"


def test_a_hash_that_is_none_is_not_repeated_for_it_may_be_the_key(operator: Operator) -> None:
    assert operator.is_told("auth: {keys: [{name: a, sha256: hush}]}") == [
        "auth.keys[0].sha256 must be 64 hexadecimal digits (antwort.yaml:1)."
    ]
