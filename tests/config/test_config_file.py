"""The configuration file: which one is read, and what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from antwort.config import CannotStart, Settings, load, read
from antwort.config.settings import BackendSettings, TimeoutSettings
from config_kit import Operator


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder and a home that hold no configuration."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    return tmp_path


def test_without_a_file_all_is_default(elsewhere: Path) -> None:
    loaded = read({}, environment={})
    assert (loaded.settings, loaded.file, dict(loaded.origins)) == (Settings(), None, {})


def test_the_file_is_the_named_one_or_the_variables_or_the_folders_or_the_users(elsewhere: Path) -> None:
    from platformdirs import user_config_path

    users = user_config_path("antwort", appauthor=False) / "antwort.yaml"
    users.parent.mkdir(parents=True)
    users.write_text("default_model: users")
    assert load(environment={}).default_model == "users"
    Path("antwort.yaml").write_text("default_model: folders")
    assert load(environment={}).default_model == "folders"
    Path("other.yaml").write_text("default_model: variables")
    variables = {"ANTWORT_CONFIG": "other.yaml"}
    assert load(environment=variables).default_model == "variables"
    Path("named.yaml").write_text("default_model: named")
    assert load("named.yaml", environment=variables).default_model == "named"
    assert load(Path("named.yaml"), environment=variables).default_model == "named"


def test_every_shape_of_value_is_read(operator: Operator) -> None:
    settings = operator.gets("""
default_model: 4
server: {port: "9000", drain: 2}
backends:
  - name: a
    url: http://host/v1/
    models: [m, 5]
    timeouts: {connect: 1e1}
    max_exchanges:
routing:
  aliases: {gpt-4o: m, 4: n}
loop: {strict: yes}
memory: on
""")
    assert settings.default_model == "4"
    assert (settings.server.port, settings.server.drain) == (9000, 2.0)
    assert settings.backends == (
        BackendSettings(name="a", url="http://host/v1", models=("m", "5"), timeouts=TimeoutSettings(connect=10.0)),
    )
    assert settings.routing.aliases == {"gpt-4o": "m", "4": "n"}
    assert settings.loop.strict
    assert settings.memory


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null", "server:\nbackends:\nrouting: {aliases: }\n"])
def test_what_is_left_empty_has_its_default(text: str, operator: Operator) -> None:
    assert operator.gets(text) == Settings()


def test_a_table_can_be_written_once_and_used_again(operator: Operator) -> None:
    settings = operator.gets("""
backends:
  - &one {name: a, url: http://a/v1, weight: 3}
  - {<<: *one, name: b}
  - {<<: [{weight: 7}, *one], name: c}
""")
    assert [(backend.name, backend.weight) for backend in settings.backends] == [("a", 3), ("b", 3), ("c", 7)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "memory: true\nserver:\n  port: 1\n  port: 2",
            "antwort.yaml:4 is not valid: the key 'port' stands there twice.",
        ),
        ("memory: true\n? [a]\n: b", "antwort.yaml:2 is not valid: a key must be a single value."),
        (
            "memory: !!python/name:os.system x",
            "antwort.yaml:1 is not valid: a tag means nothing here; put text that begins with `!` into quotes.",
        ),
        (
            "memory: true\n---\nmemory: false",
            (
                "antwort.yaml:2 is not valid: there is a second document in it; "
                "leave out the line `---`, and what comes after it."
            ),
        ),
        ("log:\n\tlevel: info", "antwort.yaml:2 is not valid: indent with spaces: there is a tab."),
        (
            "default_model: *sk-hush",
            (
                "antwort.yaml:1 is not valid: a `*` begins a reference to something that is not there; "
                "put text that begins so into quotes."
            ),
        ),
        ("- a", "antwort.yaml must hold settings, such as `default_model: qwen3`."),
        ("hello", "antwort.yaml must hold settings, such as `default_model: qwen3`."),
        ("memory: true\nx: {<<: 5}", "antwort.yaml:2 is not valid: `<<` takes a mapping, or a list of them."),
        ("x: \x01", "antwort.yaml is not valid: it holds a character that YAML does not allow."),
        (b"memory: true\nx: \xff", "antwort.yaml:2 is not valid: it is not UTF-8 text."),
        ("a: &a [*a]", "antwort.yaml:1 is not valid: it is nested too deeply, or holds too much."),
    ],
)
def test_what_is_no_configuration_is_one_sentence_with_its_line(
    text: str | bytes, said: str, operator: Operator
) -> None:
    assert operator.is_told(text) == [said]


@pytest.mark.parametrize(
    ("text", "line"), [("memory: true\n]", 2), ("server:\n\tport: 1", 2), ("memory: true\n--- \nmemory: true", 2)]
)
def test_what_is_no_yaml_is_told_with_its_line(text: str, line: int, operator: Operator) -> None:
    [said] = operator.is_told(text)
    assert said.startswith(f"antwort.yaml:{line} is not valid: ")


def test_aliases_that_stand_for_very_many_values_are_refused(operator: Operator) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 9)]
    [said] = operator.is_told("\n".join(rows))
    assert said.endswith("is not valid: it is nested too deeply, or holds too much.")


def test_a_file_that_is_too_large_is_refused(operator: Operator) -> None:
    [said] = operator.is_told("#" * (2**20 + 1))
    assert said == "The configuration file 'antwort.yaml' is larger than 1048576 bytes."


@pytest.mark.parametrize(("name", "why"), [("missing.yaml", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_one_sentence(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=rf"^The configuration file '.*' cannot be read: {why}\.$"):
        load(tmp_path / name, environment={})


def test_a_byte_order_mark_does_no_harm(operator: Operator) -> None:
    assert operator.gets(b"\xef\xbb\xbfmemory: true").memory
