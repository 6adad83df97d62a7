"""Defaults, the file, the environment, the flags: who goes before whom, and what each can say."""

from __future__ import annotations

import pytest

from antwort.config import Secret, load
from antwort.config.loading import variables
from antwort.config.schema import leaves
from antwort.config.settings import BackendSettings
from config_kit import Operator

FILE = """
server:
  port: 1000
  host: localhost
  drain: 3
tools: {modules: [a, b]}
"""
OPEN = "a bracket is not closed, or a comma is missing; write [a, b] or {a: 1, b: 2}"


def test_flags_go_before_the_environment_before_the_file_before_the_default(operator: Operator) -> None:
    loaded = operator.reads(
        FILE, {"ANTWORT_SERVER_PORT": "2000", "ANTWORT_SERVER_HOST": "::1"}, port="3000", tools=["c"]
    )
    server = loaded.settings.server
    assert (server.port, server.host, server.drain, server.linger) == (3000, "::1", 3.0, 30.0)
    assert loaded.settings.tools.modules == ("c",)
    assert loaded.origin("server.port") == "--port"
    assert loaded.origin("server.host") == "ANTWORT_SERVER_HOST"
    assert loaded.origin("server.drain") == f"{operator.folder}/antwort.yaml:5"
    assert loaded.origin("server.linger") == "default"
    assert loaded.origin("tools.modules") == "--tools"


def test_a_program_has_the_last_word(operator: Operator) -> None:
    file = operator.writes("server: {port: 1000}")
    variables = {"ANTWORT_LOOP_STRICT": "true"}
    settings = load(file, environment=variables, overrides={"server.port": 4000, "tools.modules": ["x"], "data": None})
    assert (settings.server.port, settings.tools.modules, settings.loop.strict) == (4000, ("x",), True)


# ---- the environment ----


def test_what_a_client_takes_from_the_environment_is_no_setting_and_no_fault(operator: Operator) -> None:
    assert operator.gets(variables={"ANTWORT_URL": "http://a", "ANTWORT_API_KEY": "sk-a"}) == operator.gets()


def test_no_two_settings_have_the_same_variable() -> None:
    names = variables()
    assert len(names) == len(set(names))
    assert {leaf.variable for leaf in leaves().values()} <= set(names)
    assert "ANTWORT_LOOP_MAX_TURNS" in names


@pytest.mark.parametrize(
    ("name", "value", "path", "expected"),
    [
        ("ANTWORT_DEFAULT_MODEL", "true", "default_model", "true"),
        ("ANTWORT_DEFAULT_MODEL", "null", "default_model", None),
        ("ANTWORT_SERVER_PORT", " 1 ", "server.port", 1),
        ("ANTWORT_LOOP_DEADLINE", "0.5", "loop.deadline", 0.5),
        ("ANTWORT_SCRIPTED", "1", "scripted", True),
        ("ANTWORT_METRICS_ENABLED", "No", "metrics.enabled", False),
        ("ANTWORT_LOG_LEVEL", "debug", "log.level", "debug"),
        ("ANTWORT_TOOLS_MODULES", "a, b,", "tools.modules", ("a", "b")),
        ("ANTWORT_TOOLS_MODULES", '["a", "b,c"]', "tools.modules", ("a", "b,c")),
        ("ANTWORT_ROUTING_ALIASES", "{a: b}", "routing.aliases", {"a": "b"}),
        ("ANTWORT_TOOLS_LIMITS_TIMEOUTS", '{"slow": 5}', "tools.limits.timeouts", {"slow": 5.0}),
        ("ANTWORT_METRICS_PORT", "", "metrics.port", None),
        (
            "ANTWORT_BACKENDS",
            '[{"name": "a", "url": "http://a/v1"}]',
            "backends",
            (BackendSettings(name="a", url="http://a/v1"),),
        ),
    ],
)
def test_a_variable_is_read_as_its_setting_wants_it(
    name: str, value: str, path: str, expected: object, operator: Operator
) -> None:
    found: object = operator.gets(variables={name: value})
    for part in path.split("."):
        found = getattr(found, part)
    assert found == expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "ANTWORT_SERVER_PORT",
            "x",
            "server.port must be a whole number from 0 to 65535, not 'x' (ANTWORT_SERVER_PORT).",
        ),
        ("ANTWORT_BACKENDS", "http://a", 'backends must be a list such as [{"name": …}] (ANTWORT_BACKENDS).'),
        ("ANTWORT_BACKENDS", "[{]", f"backends is not valid: {OPEN} (ANTWORT_BACKENDS)."),
        ("ANTWORT_BACKENDS", "[{name: a}]", "backends[0].url is missing (ANTWORT_BACKENDS)."),
        (
            "ANTWORT_ROUTING_ALIASES",
            "a",
            "routing.aliases must be a mapping of names to texts, not text (ANTWORT_ROUTING_ALIASES).",
        ),
    ],
)
def test_a_variable_that_cannot_be_is_one_sentence(name: str, value: str, said: str, operator: Operator) -> None:
    assert operator.is_told(variables={name: value}) == [said]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ANTWORT_MAX_TURNS", "3", "ANTWORT_MAX_TURNS is not a setting; did you mean ANTWORT_LOOP_MAX_TURNS?"),
        ("ANTWORT_SERVER_PROT", "3", "ANTWORT_SERVER_PROT is not a setting; did you mean ANTWORT_SERVER_PORT?"),
        (
            "ANTWORT_PORT",
            "80",
            (
                "ANTWORT_PORT is not a setting; "
                "did you mean ANTWORT_SERVER_PORT or ANTWORT_SERVER_PEER_PORT or ANTWORT_METRICS_PORT?"
            ),
        ),
        ("ANTWORT_XYZZY", "", "ANTWORT_XYZZY is not a setting."),
        ("ANTWORT_\x1b[31m", "", r"ANTWORT_\x1b[31m is not a setting."),
    ],
)
def test_a_variable_that_means_nothing_is_ignored_with_a_warning(
    name: str, value: str, said: str, operator: Operator
) -> None:
    loaded = operator.reads(variables={name: value})
    assert loaded.settings == operator.gets()
    assert loaded.warnings == (f"{said} It is ignored.",)
    assert operator.reads().warnings == ()


def test_a_program_that_loads_settings_finds_the_warning_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    load("/dev/null", environment={"ANTWORT_SERVER_PROT": "3"})
    assert [(record.name, record.levelname) for record in caplog.records] == [("antwort.config", "WARNING")]
    assert "did you mean ANTWORT_SERVER_PORT? It is ignored." in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ANTWORT_SERVICE_HOST", "10.0.0.1"),
        ("ANTWORT_SERVICE_PORT", "80"),
        ("ANTWORT_SERVICE_PORT_HTTP", "80"),
        ("ANTWORT_PORT", "tcp://10.0.0.1:80"),
        ("ANTWORT_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("ANTWORT_PORT_80_TCP_PROTO", "tcp"),
        ("ANTWORT_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("ANTWORT_SERVER_PORT", "tcp://10.0.0.1:80"),
        ("ANTWORT_METRICS_SERVICE_HOST", "10.0.0.1"),
        ("ANTWORT_METRICS_PORT_9090_TCP_PORT", "9090"),
        ("OTHER_ANTWORT_THING", "x"),
    ],
)
def test_what_kubernetes_and_docker_set_for_services_is_left_alone(name: str, value: str, operator: Operator) -> None:
    assert operator.gets(variables={name: value}) == operator.gets()


# ---- backends in short ----


def only(backend: BackendSettings) -> tuple[str, str, str | None]:
    return backend.name, backend.url, backend.api_key.reveal() if backend.api_key else None


def test_one_backend_can_come_from_two_variables(operator: Operator) -> None:
    variables = {"ANTWORT_BACKEND": "http://a/v1/", "ANTWORT_BACKEND_API_KEY": " sk-a\n"}
    [backend] = operator.gets("backends: [{name: z, url: http://z/v1}]", variables).backends
    assert only(backend) == ("default", "http://a/v1", "sk-a")


def test_backends_by_flags_replace_those_of_the_file_and_have_names(operator: Operator) -> None:
    given = ["http://a/v1?x=y", "gpu=http://b/v1", "http://c/v1"]
    backends = operator.gets("backends: [{name: z, url: http://z/v1}]", backend=given).backends
    assert [(backend.name, backend.url) for backend in backends] == [
        ("default", "http://a/v1?x=y"),
        ("gpu", "http://b/v1"),
        ("default3", "http://c/v1"),
    ]


def test_the_key_of_the_environment_is_for_the_flags_backend_unless_a_file_is_named(operator: Operator) -> None:
    variables = {"ANTWORT_BACKEND_API_KEY": "sk-variable"}
    assert operator.gets("", variables, backend=["http://a"]).backends[0].api_key == Secret("sk-variable")
    file = str(operator.writes("sk-file", "key"))
    assert operator.gets("", variables, backend=["http://a"], backend_key_file=file).backends[0].api_key == Secret(
        "sk-file"
    )
    variables = {"ANTWORT_BACKEND_API_KEY_FILE": file}
    assert operator.gets("", variables, backend=["http://a"]).backends[0].api_key == Secret("sk-file")


def test_the_key_of_the_environment_is_for_the_one_backend_of_the_file_that_has_none(operator: Operator) -> None:
    text = "backends: [{name: a, url: http://a/v1, api_key: sk-a}, {name: b, url: http://b/v1}]"
    a, b = operator.gets(text, {"ANTWORT_BACKEND_API_KEY": "sk-b"}).backends
    assert (only(a)[2], only(b)[2]) == ("sk-a", "sk-b")


@pytest.mark.parametrize(
    ("backends", "said"),
    [
        ("[{name: a, url: http://a}, {name: b, url: http://b}]", "2 of the 2 backends have none"),
        (
            "[{name: a, url: http://a, api_key: sk-a}, {name: b, url: http://b, api_key: sk-b}]",
            "none of the backends lacks one",
        ),
    ],
)
def test_a_key_that_could_be_for_any_or_for_none_is_refused(backends: str, said: str, operator: Operator) -> None:
    [sentence] = operator.is_told(f"backends: {backends}", {"ANTWORT_BACKEND_API_KEY": "hush"})
    fix = "give each its own as `api_key` in the configuration file"
    assert sentence == f"ANTWORT_BACKEND_API_KEY is for one backend without a key, and {said}; {fix}."


def test_a_key_without_any_backend_is_ignored_in_the_environment_and_refused_as_a_flag(operator: Operator) -> None:
    assert operator.gets("scripted: true", {"ANTWORT_BACKEND_API_KEY": "sk"}).scripted
    assert operator.is_told("scripted: true", backend_key_file="key") == [
        "--backend-key-file is for one backend without a key, and there is no backend; name one with --backend."
    ]


def test_backends_in_short_and_in_full_exclude_each_other(operator: Operator) -> None:
    variables = {"ANTWORT_BACKEND": "http://a", "ANTWORT_BACKENDS": "[]"}
    assert operator.is_told("", variables) == ["ANTWORT_BACKEND and ANTWORT_BACKENDS cannot both be set."]


# ---- settings that exclude each other, in different layers ----


def test_whoever_names_a_folder_keeps_responses_there_unless_memory_is_asked_for_as_well(operator: Operator) -> None:
    settings = operator.gets("data: /here", memory=True)
    assert (settings.data, settings.memory) == ("/here", True)
    settings = operator.gets("memory: true", {"ANTWORT_DATA": "/here"})
    assert (settings.data, settings.memory) == ("/here", False)
    settings = operator.gets("memory: true\ndata: /here")
    assert (settings.data, settings.memory) == ("/here", True)


def test_a_stand_in_that_is_asked_for_above_goes_before_the_files_backends(operator: Operator) -> None:
    text = "backends: [{name: a, url: http://a}]"
    assert operator.gets(text, scripted=True).backends == ()
    assert operator.gets(text, {"ANTWORT_SCRIPTED": "true"}).backends == ()
    assert len(operator.gets(f"scripted: true\n{text}").backends) == 1


# ---- flags ----


def test_any_setting_can_be_set_by_its_path(operator: Operator) -> None:
    given = ["server.linger=5", "cors.origins=https://a.example,https://b.example", "loop.keepalive=in_progress"]
    given += ["metrics={enabled: false}", "routing.aliases={a: 'b=c'}", "default_model=a=b", "server.port=7"]
    loaded = operator.reads("", set=given, port="8")
    settings = loaded.settings
    assert (settings.server.linger, settings.server.port, settings.loop.keepalive) == (5.0, 7, "in_progress")
    assert settings.cors.origins == ("https://a.example", "https://b.example")
    assert (settings.metrics.enabled, settings.routing.aliases) == (False, {"a": "b=c"})
    assert settings.default_model == "a=b"
    assert loaded.origin("server.linger") == "--set"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("server.prot=1", "server.prot is not a setting (--set); did you mean server.port?"),
        ("max_turns=1", "max_turns is not a setting (--set); did you mean loop.max_turns?"),
        ("server.port=x", "server.port must be a whole number from 0 to 65535, not 'x' (--set)."),
        ("server=x", "server must be a mapping of settings, not text (--set)."),
        ("x", "--set must be PATH=VALUE, and there is no `=` after x; such as --set server.linger=5."),
        ("cors.origins=[", f"cors.origins is not valid: {OPEN} (--set)."),
    ],
)
def test_a_setting_that_cannot_be_is_one_sentence(given: str, said: str, operator: Operator) -> None:
    assert operator.is_told("", set=[given]) == [said]


def test_a_flags_problem_is_told_by_the_flags_name(operator: Operator) -> None:
    assert operator.is_told("", port="65536") == ["--port must be a whole number from 0 to 65535, not '65536'."]
    assert operator.is_told("", backend=["nonsense"]) == [
        "--backend 'nonsense' is not a URL like http://localhost:8000/v1."
    ]


# ---- entries of maps ----


def test_an_entry_of_a_map_that_is_set_by_its_path_joins_the_others(operator: Operator) -> None:
    file = "routing: {aliases: {a: b, x: y}}"
    assert operator.gets(file, set=["routing.aliases.c=d", "routing.aliases.x=z"]).routing.aliases == {
        "a": "b",
        "x": "z",
        "c": "d",
    }
    assert operator.gets(file, set=["routing.aliases={c: d}"]).routing.aliases == {"c": "d"}
    assert operator.gets(file, set=["routing.aliases={c: d}", "routing.aliases.e=f"]).routing.aliases == {
        "c": "d",
        "e": "f",
    }
    assert operator.gets(file, {"ANTWORT_ROUTING_ALIASES": "{c: d}"}).routing.aliases == {"c": "d"}
    timeouts = operator.gets(set=["tools.limits.timeouts.slow=5"]).tools.limits.timeouts
    assert timeouts == {"slow": 5.0}


@pytest.mark.parametrize("given", ['routing.aliases."gpt-4.1"=x=y', "routing.aliases.'gpt-4.1'=x=y"])
def test_a_name_with_a_dot_in_it_stands_in_quotes(given: str, operator: Operator) -> None:
    assert operator.gets(set=[given]).routing.aliases == {"gpt-4.1": "x=y"}


def test_a_path_without_end_is_one_sentence(operator: Operator) -> None:
    [said] = operator.is_told(set=[f"{'a.' * 3000}a=1"])
    assert said.endswith("… is not a setting (--set).")
    assert len(said) < 100


# ---- text ----


def test_bytes_that_are_no_text_are_refused(operator: Operator) -> None:
    assert operator.is_told(variables={"ANTWORT_DEFAULT_MODEL": "\udcff"}) == [
        "ANTWORT_DEFAULT_MODEL is not UTF-8 text."
    ]
    assert operator.is_told(variables={"ANTWORT_ROUTING_ALIASES": "{a: \udcff}"}) == [
        "ANTWORT_ROUTING_ALIASES is not UTF-8 text."
    ]
    assert operator.is_told(default_model="\udcff") == ["--default-model is not UTF-8 text."]
    assert operator.is_told(set=["default_model=\udcff"]) == ["--set is not UTF-8 text."]


def test_white_space_around_an_address_does_no_harm(operator: Operator) -> None:
    assert operator.gets(backend=[" http://a/v1/ \n"]).backends[0].url == "http://a/v1"


# ---- keys ----


def test_the_variable_goes_before_the_file_for_the_key_of_the_one_backend(operator: Operator) -> None:
    file = "backends: [{name: a, url: http://a, api_key: sk-file}]"
    variable = {"ANTWORT_BACKEND_API_KEY": "sk-variable"}
    operator.writes("sk-flag", "key")
    key = str(operator.folder / "key")

    def used(**flags: object) -> object:
        return operator.gets(file, variable, **flags).backends[0].api_key

    assert used() == Secret("sk-variable")
    assert used(backend_key_file=key) == Secret("sk-flag")
    assert used(set=["backends=[{name: a, url: http://a, api_key: sk-set}]"]) == Secret("sk-set")
    assert used(backend=["http://b"]) == Secret("sk-variable")


def test_two_keys_for_one_backend_in_the_same_layer_are_refused(operator: Operator) -> None:
    variables = {
        "ANTWORT_BACKENDS": "[{name: a, url: http://a, api_key: sk-a}]",
        "ANTWORT_BACKEND_API_KEY": "sk-b",
    }
    [said] = operator.is_told(variables=variables)
    assert "none of the backends lacks one" in said


def test_a_variable_that_the_file_names_is_ours_also_when_a_flag_replaces_that_part(operator: Operator) -> None:
    file = "backends: [{name: a, url: http://a, api_key: {env: ANTWORT_GPU_KEY}}]\nmetrics: {key: {env: ANTWORT_M}}"
    variables = {"ANTWORT_GPU_KEY": "sk-a", "ANTWORT_M": "k" * 20}
    assert operator.gets(file, variables, scripted=True, set=[f"metrics.key={'s' * 20}"]).backends == ()
    assert operator.reads(file, variables).warnings == ()
    assert operator.reads("", variables).warnings[0].startswith("ANTWORT_GPU_KEY is not a setting")


def test_a_program_gives_a_secret_as_one(operator: Operator) -> None:
    file = operator.writes("")
    settings = load(file, environment={}, overrides={"metrics.key": Secret("k" * 20), "routing.aliases.a": "b"})
    assert settings.metrics.key == Secret("k" * 20)
    assert settings.routing.aliases == {"a": "b"}


def test_a_table_that_is_set_at_once_keeps_what_other_flags_say_of_it(operator: Operator) -> None:
    tables = ['server={"drain": 5}', 'server={"linger": 6}', "server.head_limit=7000", 'server={"body_limit": 8000}']
    server = operator.gets("server: {host: 0.0.0.0, port: 1}", host="127.0.0.1", port="2", set=tables).server
    assert (server.host, server.port) == ("127.0.0.1", 2)
    assert (server.drain, server.linger, server.head_limit, server.body_limit) == (5.0, 6.0, 7000, 8000)


def test_entries_of_a_map_that_are_set_by_their_paths_all_join_the_others(operator: Operator) -> None:
    given = ["routing.aliases.b=y", "routing.aliases.c=z"]
    assert operator.gets("routing: {aliases: {a: x}}", set=given).routing.aliases == {"a": "x", "b": "y", "c": "z"}


def test_a_program_that_sets_a_table_keeps_what_it_said_of_a_part(operator: Operator) -> None:
    overrides = {"server.port": 1, "server": {"drain": 2}, "routing.aliases.b": "y", "routing.aliases.c": "z"}
    settings = load(operator.writes("routing: {aliases: {a: x}}"), environment={}, overrides=overrides)
    assert (settings.server.port, settings.server.drain) == (1, 2.0)
    assert settings.routing.aliases == {"a": "x", "b": "y", "c": "z"}
