"""The settings as they are shown: masked, with their origins; the schema for editors; the reference."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
import yaml

from antwort.config.schema import all_leaves, leaves, reference, schema
from antwort.config.shown import as_json, as_yaml, written
from config_kit import Operator

FULL = """
default_model: qwen3
backends:
  - name: gpu1
    url: http://gpu1:8000/v1?key=hush-in-query
    kind: chat
    api_key: hush-by-value
    models: [qwen3]
    headers: {x-team: {env: TEAM}}
    timeouts: {connect: 2}
    capabilities: {vision: false}
  - {name: gpu2, url: http://gpu2:8000/v1, api_key: {file: key}, weight: 2}
scripted: false
data: /var/lib/antwort
server: {host: 0.0.0.0, port: 9000}
routing:
  policy: weighted
  aliases: {gpt-4o: qwen3, "a: b": c}
  routes: [{model: big, to: [{backend: gpu1, model: qwen3}, {backend: gpu2}], policy: failover}]
loop: {max_turns: 20, strict: true}
limits: {tools: 64}
tools: {modules: [mypkg.tools], limits: {timeouts: {slow: 120}}}
auth:
  required: always
  keys:
    - {name: ada, key: hush-hush-hush-hush, tenant: research, models: [qwen*], limits: {concurrent: 4}}
    - {name: bob, sha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}
cors: {origins: ["https://app.example.com"]}
log: {level: debug, format: json}
metrics: {port: 9090, key: {env: METRICS_KEY}}
"""
VARIABLES = {"TEAM": "hush-team", "METRICS_KEY": "hush-metrics-hush", "ANTWORT_SERVER_LINGER": "5"}


@pytest.fixture
def full(operator: Operator) -> Operator:
    operator.writes("hush-in-file", "key")
    return operator


def test_what_was_given_is_shown_with_its_origin_and_nothing_else(full: Operator) -> None:
    shown = as_yaml(full.reads("server: {port: 9000}\nmemory: true", VARIABLES, max_turns="3"), everything=False)
    lines = [line.replace(str(full.folder) + "/", "").split("  # ") for line in shown.splitlines()]
    assert [[part.rstrip() for part in line] for line in lines] == [
        ["memory: true", "antwort.yaml:2"],
        ["server:"],
        ["  port: 9000", "antwort.yaml:1"],
        ["  linger: 5", "ANTWORT_SERVER_LINGER"],
        ["loop:"],
        ["  max_turns: 3", "--max-turns"],
    ]


def test_secrets_are_masked_wherever_they_came_from(full: Operator) -> None:
    loaded = full.reads(FULL, VARIABLES)
    for shown in (as_yaml(loaded, everything=False), as_yaml(loaded, everything=True), as_json(loaded)):
        assert "hush" not in shown
        assert "•••• (from METRICS_KEY)" in shown
        assert f"•••• (from {full.folder}/key)" in shown
        assert "http://gpu1:8000/v1?••••" in shown


@pytest.mark.parametrize("everything", [True, False])
def test_what_is_shown_is_yaml_that_says_the_same(everything: bool, full: Operator) -> None:
    loaded = full.reads(FULL, VARIABLES)
    shown: Any = yaml.safe_load(as_yaml(loaded, everything=everything))
    assert shown["routing"]["aliases"] == {"gpt-4o": "qwen3", "a: b": "c"}
    assert shown["backends"][1]["weight"] == 2
    assert shown["server"]["host"] == "0.0.0.0"
    assert ("request_time" in shown["server"]) is everything
    assert ("idle" in shown["backends"][0]["timeouts"]) is everything
    if everything:
        assert shown == json.loads(as_json(loaded))["settings"]


@pytest.mark.parametrize(
    "value",
    ["plain", "a b", "http://host:80/v1", "", "null", "true", "No", "12", "1e3", "- x", "a: b", "a #b", "x:", " x ",
     "{a}", "[a]", "'", '"', "é", "a\nb", "*", "&a", "!x", "%a", "@a", "`a", "~", "/a/b", "2024-01-01", "a:b",
     "10.0.0.1", "?", "-"],
)  # fmt: skip
def test_a_text_is_written_so_that_it_is_read_as_the_same_text(value: str) -> None:
    assert yaml.safe_load(f"key: {written(value)}") == {"key": value}


def test_the_json_has_everything_and_where_it_came_from(full: Operator) -> None:
    shown = json.loads(as_json(full.reads(FULL, VARIABLES)))
    assert shown["origins"]["server.linger"] == "ANTWORT_SERVER_LINGER"
    assert shown["origins"]["backends[0].url"].endswith("antwort.yaml:5")
    assert shown["settings"]["loop"]["hold_back"] == 2.0


# ---- the schema ----


@pytest.fixture(scope="module")
def validator() -> jsonschema_rs.Draft202012Validator:
    jsonschema_rs.meta.validate(schema())
    return jsonschema_rs.Draft202012Validator(schema())


def test_the_schema_takes_a_full_example_and_the_defaults(
    validator: jsonschema_rs.Draft202012Validator, full: Operator
) -> None:
    full.reads(FULL, VARIABLES)
    assert [error.message for error in validator.iter_errors(yaml.safe_load(FULL))] == []
    defaults = yaml.safe_load(as_yaml(full.reads(), everything=True))
    assert [error.message for error in validator.iter_errors(defaults)] == []


@pytest.mark.parametrize(
    "text",
    [
        "max_turns: 3",
        "server: {prot: 1}",
        "server: {port: 70000}",
        "server: {linger: 0}",
        "server: 5",
        "backends: [{name: a}]",
        "backends: [{name: a, url: http://a, apikey: x}]",
        "backends: [{name: 'a b', url: http://a}]",
        "backends: [{name: a, url: http://a, api_key: {value: x}}]",
        "backends: [{name: a, url: http://a, api_key: {env: A, file: b}}]",
        "loop: {mixed_turns: maybe}",
        "tools: {limits: {timeouts: {a: 0}}}",
    ],
)
def test_the_schema_refuses_what_the_server_refuses(
    text: str, validator: jsonschema_rs.Draft202012Validator, operator: Operator
) -> None:
    assert not validator.is_valid(yaml.safe_load(text))
    assert operator.is_told(text)


def test_the_schema_says_what_each_setting_is_for() -> None:
    port = schema()["properties"]["server"]["properties"]["port"]
    assert port == {
        "description": "The port to listen on; 0 takes a free one.",
        "default": 8080,
        "type": "integer",
        "minimum": 0,
        "maximum": 65535,
    }


# ---- the reference ----


def test_the_reference_has_a_row_for_every_setting() -> None:
    page = reference()
    for leaf in all_leaves():
        assert page.count(f"| `{leaf.path}` |") == 1
    for path in leaves():
        assert f"`{leaves()[path].variable}`" in page


def test_a_row_says_what_is_taken_the_default_and_how_it_is_set() -> None:
    rows = reference().splitlines()
    assert (
        "| `server.port` | a whole number from 0 to 65535 | `8080` | `ANTWORT_SERVER_PORT`<br>`--port` | "
        "The port to listen on; 0 takes a free one. |"
    ) in rows
    assert any(
        row.startswith(
            "| `metrics.key` | a secret: text, `{env: NAME}` or `{file: PATH}` | unset | `ANTWORT_METRICS_KEY`"
        )
        for row in rows
    )
    assert any(row.startswith("| `backends[].name` | ") and " | required |  | " in row for row in rows)
