"""Secrets: by value, by variable, by file, and never to be seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antwort.config import Secret
from antwort.config.settings import NAME_IN_WORDS
from config_kit import Operator


def with_key(secret: str) -> str:
    return f"backends: [{{name: a, url: http://a/v1, api_key: {secret}}}]"


@pytest.mark.parametrize(
    ("secret", "origin"),
    [
        ("sk-hush", "antwort.yaml:1"),
        ("' sk-hush '", "antwort.yaml:1"),
        ("{env: THE_KEY}", "THE_KEY"),
        ("{env: ANTWORT_THE_KEY}", "ANTWORT_THE_KEY"),
        ("{file: keys/a}", "keys/a"),
    ],
)
def test_a_secret_is_given_by_value_variable_or_file(secret: str, origin: str, operator: Operator) -> None:
    (operator.folder / "keys").mkdir()
    operator.writes(b"\xef\xbb\xbf sk-hush \r\n", "keys/a")
    variables = {name: " sk-hush\n" for name in ("THE_KEY", "ANTWORT_THE_KEY") if name in secret}
    settings = operator.gets(with_key(secret), variables)
    key = settings.backends[0].api_key
    assert key == Secret("sk-hush")
    assert key.origin.removeprefix(f"{operator.folder}/") == origin
    assert "hush" not in repr(settings)


def test_a_number_as_a_secret_keeps_its_digits(operator: Operator) -> None:
    assert operator.gets(with_key("00123456789")).backends[0].api_key == Secret("00123456789")


def test_a_secret_setting_has_a_second_variable_that_names_a_file(operator: Operator) -> None:
    file = str(operator.writes("sk-metrics-0123456789", "key"))
    assert operator.gets("", {"ANTWORT_METRICS_KEY_FILE": file}).metrics.key == Secret("sk-metrics-0123456789")
    assert operator.gets("", {"ANTWORT_METRICS_KEY": "{not:yaml,really}"}).metrics.key == Secret("{not:yaml,really}")
    assert operator.gets("", set=[f"metrics.key={{file: {file}}}"]).metrics.key == Secret("sk-metrics-0123456789")


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("{env: NOT_SET}", "is to come from the variable NOT_SET, which is not set"),
        ("{env: EMPTY}", "is to come from the variable EMPTY, which is not set"),
        ("{file: missing}", "cannot be read from 'missing': No such file or directory"),
        ("{file: empty}", "cannot be read from 'empty': it is empty"),
        ("{file: binary}", "cannot be read from 'binary': it is not text"),
        ("{file: .}", "cannot be read from '.': Is a directory"),
        ("{}", "must be text, {env: NAME} or {file: PATH}"),
        ("{env: A, file: b}", "must be text, {env: NAME} or {file: PATH}"),
        ("{value: hush}", "must be text, {env: NAME} or {file: PATH}"),
        ("[hush]", "must be text, {env: NAME} or {file: PATH}, not a list"),
        ("' '", "is empty; leave it out where there is none"),
        ('"hush\\nhush"', "cannot be sent: it must be one line of printable ASCII"),
        ("hüsh", "cannot be sent: it must be one line of printable ASCII"),
        ('"hush\\0"', "cannot be sent: it must be one line of printable ASCII"),
    ],
)
def test_a_secret_that_cannot_be_had_is_one_sentence_that_does_not_hold_it(
    secret: str, said: str, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.writes("", "empty")
    operator.writes(b"\xff\xfehush", "binary")
    [sentence] = operator.is_told(with_key(secret), {"EMPTY": " "})
    if secret == "{file: .}":
        sentence = sentence.replace(str(operator.folder), ".")
    assert sentence == f"backends[0].api_key {said} (antwort.yaml:1)."
    assert "hush" not in sentence


def test_headers_are_secrets_too(operator: Operator) -> None:
    settings = operator.gets(
        "backends: [{name: a, url: http://a/v1, headers: {x-key: hush, x-b: {env: B}}}]", {"B": "hush"}
    )
    assert dict(settings.backends[0].headers) == {"x-key": Secret("hush"), "x-b": Secret("hush")}
    assert "hush" not in repr(settings)


@pytest.mark.skipif(os.name != "posix", reason="files have no such rights")
@pytest.mark.parametrize(
    ("secret", "mode", "warned"),
    [("sk-hush", 0o644, True), ("sk-hush", 0o640, True), ("sk-hush", 0o600, False), ("{env: KEY}", 0o644, False)],
)
def test_a_file_with_secrets_that_others_can_read_is_worth_a_warning(
    secret: str, mode: int, warned: bool, operator: Operator
) -> None:
    from antwort.config import read

    file = operator.writes(with_key(secret))
    Path(file).chmod(mode)
    warnings = read({"config": str(file)}, environment={"KEY": "sk-hush"}).warnings
    expected = f"{file} holds secrets and can be read by other users; `chmod 600 {file}` keeps them to yourself."
    assert warnings == ((expected,) if warned else ())


@pytest.mark.parametrize("place", ["env", "file"])
@pytest.mark.parametrize(
    "hush",
    ["sk-antwort-hush", "hf_AbCdHush", "eyJhbGciHush.eyJz.c2ln", "a1B2c3D4e5F6g7H8i9J0hush", "sk-hush/with/slashes"],
)
def test_a_key_in_the_place_of_a_name_is_not_repeated(place: str, hush: str, operator: Operator) -> None:
    [said] = operator.is_told(f"metrics: {{key: {{{place}: '{hush}'}}}}")
    assert hush not in said
    assert said.startswith("metrics.key must be the ")
    assert f"`{place}`, and what is there looks like a key itself (antwort.yaml:1)." in said


@pytest.mark.parametrize("name", ["MY_KEY_2", "SK_LIVE_2024_0123456789", "ada_key", "X"])
def test_the_name_of_a_variable_that_is_not_set_is_told(name: str, operator: Operator) -> None:
    [said] = operator.is_told(f"metrics: {{key: {{env: {name}}}}}")
    assert f"the variable {name}, which is not set" in said


@pytest.mark.parametrize(
    "name", ["k.txt", "keys/a1b2c3d4e5f6g7h8i9j0k1", "../secret", "/run/secrets/sk", "metrics-key"]
)
def test_the_path_of_a_file_that_is_not_there_is_told(name: str, operator: Operator) -> None:
    [said] = operator.is_told(f"metrics: {{key: {{file: {name}}}}}")
    assert f"{name}': No such file" in said


SPACE = "a space is missing after the colon"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metrics: {key:sk-hush}", f"metrics.key… is not a setting (antwort.yaml:1); {SPACE}."),
        ("metrics: {sk-hush}", "metrics has a key that is not a setting (antwort.yaml:1)."),
        ("sk-hush: 1", "the top has a key that is not a setting (antwort.yaml:1)."),
        ("metrics:\n  key:sk-hush: 1", f"metrics.key… is not a setting (antwort.yaml:2); {SPACE}."),
        (
            "backends: [{name: a, url: http://a, api_key:sk-hush}]",
            f"backends[0].api_key… is not a setting (antwort.yaml:1); {SPACE}.",
        ),
        (
            "backends: [{name: a, url: http://a, headers: {X-Key:sk-hush}}]",
            f"backends[0].headers.X-Key… has no value (antwort.yaml:1); {SPACE}.",
        ),
        (
            "backends: [{name: a, url: http://a, headers: {'X-Key:sk-hush': v}}]",
            f"backends[0].headers has a name that cannot be that of a header (antwort.yaml:1); {SPACE}.",
        ),
        (
            "backends: [{name: a, url: http://a, headers: {'X-Key hush': []}}]",
            "backends[0].headers.X-Key must be text, {env: NAME} or {file: PATH}, not a list (antwort.yaml:1).",
        ),
        (
            "metrics: {key: !sk-hush x}",
            "antwort.yaml:1 is not valid: a tag means nothing here; put text that begins with `!` into quotes.",
        ),
        (
            "metrics: {'key:hush': 1, 'key:hush': 2}",
            "antwort.yaml:1 is not valid: the key 'key' stands there twice.",
        ),
        (
            "auth: {keys: [{name: sk-hush!, key: 0123456789abcdef}]}",
            f"auth.keys[0].name must be {NAME_IN_WORDS} (antwort.yaml:1).",
        ),
        ('"\\e[31mhush": 1', "the top has a key that is not a setting (antwort.yaml:1)."),
        ('routing: {aliases: {"\\e": []}}', "routing.aliases['\\x1b'] must be text, not a list (antwort.yaml:1)."),
    ],
)
def test_a_slip_of_the_finger_does_not_bring_a_secret_to_light(text: str, said: str, operator: Operator) -> None:
    assert operator.is_told(text) == [said]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("metrics={key:sk-hush}", f"metrics.key… is not a setting (--set); {SPACE}."),
        (
            "metrics.key:sk-hush",
            "--set must be PATH=VALUE, and there is no `=` after metrics.key; such as --set server.linger=5.",
        ),
        ("sk-hush", "--set must be PATH=VALUE; such as --set server.linger=5."),
        ("metrics.key:sk-hush=1", f"metrics.key… is not a setting (--set); {SPACE}."),
        ("sk-hush=1", "the top has a key that is not a setting (--set)."),
    ],
)
def test_nor_does_one_on_the_command_line(given: str, said: str, operator: Operator) -> None:
    assert operator.is_told(set=[given]) == [said]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without end to be had")
def test_a_file_without_end_holds_no_secret(operator: Operator) -> None:
    [said] = operator.is_told("metrics: {key: {file: /dev/zero}}")
    assert said == "metrics.key cannot be read from '/dev/zero': it is larger than 65536 bytes (antwort.yaml:1)."
