"""`antwort codex`: a profile for Codex CLI and a model catalogue, beside a config.toml that stays as it is."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antwort.cli import codex, main
from antwort.cli.codex import ListedModels, base_of
from antwort.config.problems import CannotStart
from live_server import launched, start
from replay import answering
from replay_backend import Answer, whole

URL = "http://127.0.0.1:8080/v1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("ANTWORT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return tmp_path / "codex"


def profile_in(home: Path) -> dict[str, Any]:
    return tomllib.loads((home / "antwort.config.toml").read_text())


def files_in(home: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in home.iterdir()} if home.exists() else {}


def models_in(home: Path) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = json.loads((home / "antwort.models.json").read_text())["models"]
    return models


# ---- the address ----


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8080", URL),
        ("127.0.0.1:8080/", URL),
        (f"{URL}/", URL),
        (f"{URL}/responses", URL),
        ("https://ai.example.com/antwort", "https://ai.example.com/antwort/v1"),
    ],
)
def test_the_address_is_the_base_of_the_api(url: str, base: str) -> None:
    assert base_of(url, "--url") == base


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://me:secret@host",
        "http://host?key=secret",
        "http://h:0",
        "http://h:x",
        "http://x secret",
        "http://[::1",
        "http://x\x1b[31m",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(CannotStart) as caught:
        base_of(url, "--url")
    assert "secret" not in str(caught.value)


def test_an_address_that_is_none_is_the_fault_of_whoever_said_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", "http://x y"]) == 2
    assert "--url must be the address of a server" in capsys.readouterr().err
    monkeypatch.setenv("ANTWORT_URL", "http://x y")
    assert main(["codex"]) == 1
    assert "ANTWORT_URL must be the address of a server" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["ä..x", "a" * 70])
def test_a_host_that_cannot_be_is_one_where_nobody_answers(
    host: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", f"http://{host}"]) == 1
    assert "No server answers at" in capsys.readouterr().err


# ---- servers that are none ----


async def _looked(answer: Answer, key: str = "", timeout_seconds: float = 5.0) -> ListedModels:
    async with answering(lambda _: answer) as server:
        return await asyncio.to_thread(codex.look, f"{server.url}/v1", key, timeout_seconds)


@pytest.mark.parametrize("body", [b"<html>", b"[" * 200_000, b"", b'{"data": 3}', b'{"data":[{"id":"a\\ud800"}]}'])
async def test_what_is_no_list_of_models_is_told_as_none(body: bytes) -> None:
    assert await _looked(whole(body)) == ListedModels(None, None, 200)


async def test_names_that_a_terminal_would_obey_are_passed_over() -> None:
    body = rb'{"data":[{"id":"a\u001b]0;pwned\u0007"},{"id":"qwen3"}]}'
    assert (await _looked(whole(body))).models == ("qwen3",)


async def test_a_list_that_drips_is_given_up_in_time() -> None:
    async with asyncio.timeout(10):
        assert (await _looked(Answer((b'{"da',), ending="hold"), timeout_seconds=0.3)).models is None


async def test_a_key_that_no_header_can_hold_is_not_sent() -> None:
    assert await _looked(whole(b"{}", 401), "schlüssel") == ListedModels(None, needs_key=True, status=0)


def test_a_server_that_lists_no_models_is_named_with_its_status() -> None:
    with pytest.raises(CannotStart, match=r"^A server answers with HTTP 200 instead of models at URL:"):
        codex.choose_model("", ListedModels(None, None, 200), "URL", has_key=False)


# ---- the context ----


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("tiny", 1, "The context of 'tiny' has 4,096 tokens, too few for Codex"),
        ("small", 0, "The context of 'small' has 32,768 tokens; Codex works well from 64,000 on."),
        ("unknown", 0, "does not report the context length of 'unknown'; Codex works well from 64,000 on."),
        ("large", 0, ""),
    ],
)
async def test_a_short_context_is_refused_or_warned_of(
    model: str, status: int, message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = {"tiny": 4096, "small": 32_768, "large": 131_072}
    body = json.dumps(
        {"data": [{"id": "unknown"}, *({"id": name, "context_length": n} for name, n in lengths.items())]}
    ).encode()
    async with answering(lambda _: whole(body)) as server:
        assert await asyncio.to_thread(main, ["codex", "--url", server.url, "--model", model]) == status
    errors = capsys.readouterr().err
    assert message in errors if message else not errors
    assert bool(files_in(home)) is (status == 0)
    if status == 0:
        assert models_in(home)[0]["slug"] == model
        assert {entry["slug"]: entry.get("context_window") for entry in models_in(home)} == {"unknown": None, **lengths}


# ---- the profile ----


async def _codex(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    process = await start("codex", *arguments, environment=environment)
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest.fixture
def config_toml(home: Path) -> str:
    """Codex's own configuration, which is there before."""
    home.mkdir()
    (home / "config.toml").write_text('model = "gpt-5.5"\n')
    return 'model = "gpt-5.5"\n'


async def test_the_profile_uses_the_running_server_and_touches_nothing_else(home: Path, config_toml: str) -> None:
    async with launched("--scripted", "--memory") as server:
        status, output, _ = await _codex("--url", server.url)
        again = await _codex("--url", server.url)
    assert status == 0
    file = home / "antwort.config.toml"
    assert output == f"Wrote {file}.\nStart Codex with: codex --profile antwort\n"
    assert again[1] == f"{file} is up to date.\nStart Codex with: codex --profile antwort\n"
    assert profile_in(home) == {
        "model": "scripted",
        "model_provider": "antwort",
        "model_catalog_json": str(home / "antwort.models.json"),
        "model_providers": {
            "antwort": {
                "name": "antwort",
                "base_url": server.url,
                "wire_api": "responses",
                "request_max_retries": 2,
                "stream_max_retries": 1,
                "stream_idle_timeout_ms": 600_000,
            }
        },
    }
    assert files_in(home).keys() == {"antwort.config.toml", "antwort.models.json", "config.toml"}
    assert files_in(home)["config.toml"] == config_toml


def test_only_the_user_can_read_the_profile(home: Path, nowhere: str) -> None:
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}


async def test_print_shows_the_profile_and_writes_nothing(home: Path) -> None:
    async with launched("--scripted", "--memory") as server:
        status, output, errors = await _codex("--url", server.url, "--print")
    assert (status, tomllib.loads(output)["model"]) == (0, "scripted")
    assert f"For {home / 'antwort.config.toml'}; without --print, `antwort codex` writes it." in errors
    assert not files_in(home)


async def test_a_server_with_keys_is_asked_with_one_and_codex_is_told_where_it_is(home: Path) -> None:
    keys = {"ANTWORT_AUTH_KEYS": '[{"name": "me", "key": "sk-a-key-of-some-length"}]'}
    async with launched("--scripted", "--memory", environment=keys) as server:
        status, output, errors = await _codex("--url", server.url)
        assert (status, output) == (1, "")
        assert "requires a key: set ANTWORT_API_KEY" in errors
        wrong = await _codex("--url", server.url, environment={"ANTWORT_API_KEY": "sk-another"})
        assert (wrong[0], "sk-another" in wrong[2]) == (1, False)
        assert "does not accept the key in ANTWORT_API_KEY" in wrong[2]
        right = await _codex("--url", server.url, "--print", environment={"ANTWORT_API_KEY": "sk-a-key-of-some-length"})
        unasked = await _codex("--url", server.url, "--print", "--model", "scripted")
    for status, output, _ in (right, unasked):
        assert status == 0
        assert tomllib.loads(output)["model_providers"]["antwort"]["env_key"] == "ANTWORT_API_KEY"
        assert "sk-a-key" not in output


@pytest.fixture
def nowhere(unused_tcp_port: int) -> str:
    return f"http://127.0.0.1:{unused_tcp_port}/v1"


def test_without_a_server_the_model_must_be_named(home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codex", "--url", nowhere]) == 1
    ways = "start one (`antwort serve`), give its address (--url URL), or name a model (--model MODEL)."
    assert capsys.readouterr() == ("", f"antwort: No server answers at {nowhere}: {ways}\n")
    assert not home.exists()
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    assert profile_in(home)["model"] == "qwen3"
    assert f"The model is not checked: no server answers at {nowhere}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (("a", "b"), "lists several models: a, b; name the one for Codex (--model MODEL)."),
        (tuple(f"m{n}" for n in range(10)), "m6, m7 and 2 more; name the one"),
        ((), "lists no models; name the one"),
    ],
)
async def test_of_several_models_one_must_be_named(
    models: tuple[str, ...], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"data": [{"id": model} for model in models]}).encode()
    async with answering(lambda _: whole(body)) as server:
        assert await asyncio.to_thread(main, ["codex", "--url", server.url]) == 1
        assert words in capsys.readouterr().err
        assert await asyncio.to_thread(main, ["codex", "--url", server.url, "--model", "other"]) == 0
        assert "does not list 'other'" in capsys.readouterr().err


def test_what_the_user_has_added_to_the_profile_stays(home: Path, nowhere: str) -> None:
    assert main(["codex", "--url", nowhere, "--model", "one"]) == 0
    file = home / "antwort.config.toml"
    own = file.read_text().replace("request_max_retries = 2", "request_max_retries = 9  # mine")
    file.write_text(f"{own}\n[features]\nplugins = false\n")
    assert main(["codex", "--url", f"{nowhere}/", "--model", "two"]) == 0
    assert file.read_text() == f"{own}\n[features]\nplugins = false\n".replace('"one"', '"two"')


def test_the_key_goes_with_a_server_that_needs_none(home: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTWORT_API_KEY", "sk-a-key-of-some-length")
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    assert profile_in(home)["model_providers"]["antwort"]["env_key"] == "ANTWORT_API_KEY"
    monkeypatch.delenv("ANTWORT_API_KEY")
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    assert "env_key" not in profile_in(home)["model_providers"]["antwort"]


def test_the_flag_of_earlier_versions_still_works_with_a_warning(
    home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", nowhere, "--model", "qwen3", "--write"]) == 0
    assert "--write is not needed any more" in capsys.readouterr().err
    assert profile_in(home)["model"] == "qwen3"
    assert not (home / "config.toml").exists()


def test_a_model_that_cannot_be_printed_is_refused_and_no_folder_made(
    home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", nowhere, "--model", "a\udcff"]) == 2
    assert capsys.readouterr().err == "antwort: --model must be a printable name.\n"
    assert not home.exists()


@pytest.mark.parametrize(
    "content", [b"model = \n", b"\xff\xfe", b"model_providers = 'x'\n", b"[model_providers]\nantwort = 3\n"]
)
def test_a_profile_that_cannot_be_changed_stays_as_it_is(
    home: Path, nowhere: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "antwort.config.toml").write_bytes(content)
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 1
    assert "antwort.config.toml" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {"antwort.config.toml": content}


def test_a_read_only_profile_stays(home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    file = home / "antwort.config.toml"
    file.write_text("# mine\n")
    file.chmod(0o444)
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 1
    assert "cannot be written: it is read-only." in capsys.readouterr().err
    assert file.read_text() == "# mine\n"


# ---- going back ----


def test_restore_removes_what_was_written(home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    (home / "config.toml").write_text('model = "gpt-5.5"\n')
    capsys.readouterr()
    assert main(["codex", "--restore"]) == 0
    removed = [f"Removed {home / name}." for name in ("antwort.config.toml", "antwort.models.json")]
    assert capsys.readouterr().out.splitlines() == removed
    assert {path.name: path.read_text() for path in home.iterdir()} == {"config.toml": 'model = "gpt-5.5"\n'}
    assert main(["codex", "--restore"]) == 0
    assert capsys.readouterr().out == f"There is nothing of antwort in {home}.\n"


def test_restore_takes_back_what_earlier_versions_wrote_into_config_toml(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    ours = '[model_providers.antwort]\nname = "antwort"\nbase_url = "http://x/v1"\n'
    (home / "config.toml.bak").write_text('model = "gpt-5.5"\n[tui]\ntheme = "x"\n')
    (home / "config.toml").write_text(
        f'model = "qwen3"\nmodel_provider = "antwort"\nmodel_context_window = 9\n[tui]\ntheme = "mine"  # new\n\n{ours}'
    )
    assert main(["codex", "--restore"]) == 0
    assert capsys.readouterr().out == f"Removed the provider 'antwort' from {home / 'config.toml'}.\n"
    assert (home / "config.toml").read_text().rstrip() == 'model = "gpt-5.5"\n[tui]\ntheme = "mine"  # new'


def test_restore_leaves_a_default_model_alone_that_is_not_ours(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        'model = "gpt-5.5"\n[model_providers.antwort]\nname = "antwort"\n[model_providers.other]\nname = "o"\n'
    )
    assert main(["codex", "--restore"]) == 0
    left = tomllib.loads((home / "config.toml").read_text())
    assert left == {"model": "gpt-5.5", "model_providers": {"other": {"name": "o"}}}


def test_restore_reads_the_backup_only_if_it_needs_it(
    home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    (home / "config.toml.bak").write_text("not = = toml")
    (home / "config.toml").write_text('model = "gpt-5.5"\nmodel_provider = "antwort"\n[model_providers.antwort]\n')
    assert main(["codex", "--restore"]) == 1
    assert "Nothing was removed." in capsys.readouterr().err
    assert (home / "antwort.config.toml").exists()
    (home / "config.toml").write_text('model = "gpt-5.5"\n')
    assert main(["codex", "--restore"]) == 0
    assert not (home / "antwort.config.toml").exists()


def test_a_model_that_codex_knows_keeps_codexs_own_metadata(home: Path, nowhere: str) -> None:
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    assert "model_catalog_json" in profile_in(home)
    assert main(["codex", "--url", nowhere, "--model", "gpt-5.5"]) == 0
    assert profile_in(home)["model"] == "gpt-5.5"
    assert "model_catalog_json" not in profile_in(home)
    assert main(["codex", "--url", nowhere, "--model", "gpt-oss:20b"]) == 0
    assert models_in(home)[0]["slug"] == "gpt-oss:20b"
