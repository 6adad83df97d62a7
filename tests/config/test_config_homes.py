"""Paths that begin with `~`, homes that are not ours, and users without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antwort.config import CannotStart, Settings, check, check_ready, load
from antwort.config.files import find_file, places
from antwort.config.settings import BackendSettings
from config_kit import Operator

pytestmark = pytest.mark.skipif(os.name != "posix", reason="homes are found in another way")


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that the machine does not know, as in a container."""
    import pwd

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_a_place_that_cannot_be_looked_at_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", f"/{'x' * 300}")  # no system looks at a name as long as this
    assert find_file(None, {}) is None


def test_a_current_folder_that_is_gone_holds_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert find_file(None, {}) is None


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_needs_no_file_and_is_asked_for_a_data_folder() -> None:
    assert places() == (Path("antwort.yaml"),)
    with pytest.raises(CannotStart, match=r"There is no home folder to keep data in: say --data DIR"):
        check_ready(Settings(scripted=True))
    check_ready(Settings(scripted=True, memory=True))
    check_ready(Settings(scripted=True, data="here"))


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("data: ~/x", "data"),
        ("tools: {modules: [~/tools.py]}", "tools.modules[0]"),
        ("backends: [{name: a, url: http://a, ca_file: ~/ca.pem}]", "backends[0].ca_file"),
        ("metrics: {key: {file: ~/key}}", "metrics.key"),
        ("local: {model: ~/m.gguf}", "local.model"),
        ("local: {template: ~/chat.jinja}", "local.template"),
        ("local: {adapter: ~/lora.gguf}", "local.adapter"),
    ],
)
def test_a_home_that_is_not_known_is_one_sentence(text: str, path: str, operator: Operator) -> None:
    assert operator.is_told(text) == [f"{path} begins with '~', and no such home folder is known (antwort.yaml:1)."]


def test_the_home_of_somebody_who_is_not_there_is_one_sentence(operator: Operator) -> None:
    assert operator.is_told("data: ~nobody-of-that-name/x") == [
        "data begins with '~nobody-of-that-name', and no such home folder is known (antwort.yaml:1)."
    ]
    with pytest.raises(CannotStart, match="its name begins with '~nobody-of-that-name'"):
        load("~nobody-of-that-name/antwort.yaml")


def test_a_tilde_is_the_home_wherever_a_path_is_given(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(operator.folder))
    operator.writes("0123456789abcdef", "key")
    settings = operator.gets(
        "backends: [{name: a, url: http://a, ca_file: ~/ca.pem}]\nmetrics: {key: {file: ~/key}}",
        {"ANTWORT_DATA": "~/data", "ANTWORT_LOCAL_MODEL": "~/m.gguf"},
        tools=["~/tools.py", "a.b"],
    )
    assert settings.data == f"{operator.folder}/data"
    assert settings.local.model == f"{operator.folder}/m.gguf"
    assert settings.backends[0].ca_file == f"{operator.folder}/ca.pem"
    assert settings.tools.modules == (f"{operator.folder}/tools.py", "a.b")
    assert settings.metrics.key is not None
    assert load("~/antwort.yaml", environment={}).metrics.key == settings.metrics.key
    made = check(Settings(backends=(BackendSettings(name="a", url="http://a"),), data="~/data"))
    assert made.data == settings.data
