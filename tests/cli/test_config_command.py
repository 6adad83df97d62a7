"""`antwort config` and `antwort key`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from antwort.cli import main
from antwort.config import Secret, check_ready, load


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither this machine's variables nor its files count."""
    for name in list(os.environ):
        if name.startswith("ANTWORT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))


def test_show_prints_what_differs_and_where_it_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("antwort.yaml").write_text(
        "server:\n  port: 9000\nbackends:\n  - name: a\n    url: http://a/v1\n    api_key: {env: A_KEY}\n"
    )
    monkeypatch.setenv("ANTWORT_LOOP_DEADLINE", "120")
    monkeypatch.setenv("A_KEY", "hush")
    assert main(["config", "show", "--port", "8001"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "# antwort.yaml; all else has its default, which --all shows",
        "backends:                       # antwort.yaml:3",
        "  - name: a                     # antwort.yaml:4",
        "    url: http://a/v1            # antwort.yaml:5",
        "    api_key: •••• (from A_KEY)  # antwort.yaml:6",
        "server:",
        "  port: 8001                    # --port",
        "loop:",
        "  deadline: 120                 # ANTWORT_LOOP_DEADLINE",
    ]


def test_show_all_and_json_print_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--all", "--scripted"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# no file\n")
    assert main(["config", "show", "--json", "--scripted"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert yaml.safe_load(shown) == as_json["settings"]
    assert as_json["origins"] == {"backends": "--scripted", "scripted": "--scripted"}


def test_check_says_all_that_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.yaml").write_text("server:\n  prot: 8080\nmax_turns: 3\n")
    assert main(["config", "check", "--config", "wrong.yaml"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "antwort: max_turns is not a setting (wrong.yaml:3); did you mean loop.max_turns?",
        "antwort: server.prot is not a setting (wrong.yaml:2); did you mean server.port?",
    ]


def test_check_also_asks_whether_the_server_could_start(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", "check", "--data", str(tmp_path)]) == 1
    assert "No backend is named, and the demo model is not there" in capsys.readouterr().err
    assert main(["config", "check", "--scripted", "--host", "0.0.0.0"]) == 1
    assert "needs API keys" in capsys.readouterr().err
    assert main(["config", "check", "--scripted", "--port", "x"]) == 2
    assert main(["config", "check", "--scripted", "--config", "missing.yaml"]) == 1
    capsys.readouterr()
    assert main(["config", "check", "--scripted"]) == 0
    assert capsys.readouterr() == ("The settings are right (no file).\n", "")


def test_check_warns_of_secrets_that_others_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("antwort.yaml").write_text("scripted: true\nmetrics: {key: hush-hush-hush-hush}")
    Path("antwort.yaml").chmod(0o644)
    assert main(["config", "check"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "The settings are right (antwort.yaml).\n"
    assert shown.err.startswith("antwort: antwort.yaml holds secrets and can be read by other users")
    assert "hush" not in shown.err


def test_a_variable_that_means_nothing_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTWORT_SERVER_PROT", "8001")
    for command in ("check", "show"):
        assert main(["config", command, "--scripted"]) == 0
        warning = "antwort: ANTWORT_SERVER_PROT is not a setting; did you mean ANTWORT_SERVER_PORT? It is ignored.\n"
        assert capsys.readouterr().err == warning


def test_a_problem_keeps_the_settings_from_being_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "server.port=x"]) == 2
    assert capsys.readouterr().err == "antwort: server.port must be a whole number from 0 to 65535, not 'x' (--set).\n"


def test_the_schema_and_the_reference_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["additionalProperties"] is False
    assert main(["config", "reference"]) == 0
    assert "| `loop.max_turns` | a whole number from 1 to 10000 | `10` |" in capsys.readouterr().out


# ---- keys ----


@pytest.mark.parametrize(
    ("arguments", "name"), [([], "default"), (["--name", "ada"], "ada"), (["--name", "null"], "null")]
)
def test_a_key_is_made_with_what_the_server_needs_of_it(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", *arguments]) == 0
    key, _, rest = capsys.readouterr().out.partition("\n")
    assert key.startswith("sk-antwort-")
    assert len(key) > 40
    assert key not in rest
    Path("antwort.yaml").write_text("server: {host: 0.0.0.0}\nscripted: true\n" + rest[rest.index("auth:") :])
    settings = load(environment={})
    check_ready(settings)
    [made] = settings.auth.keys
    assert (made.name, made.sha256) == (name, hashlib.sha256(key.encode()).hexdigest())
    by_value = load(environment={"K": key}, overrides={"auth.keys": [{"name": "a", "key": {"env": "K"}}]})
    assert by_value.auth.keys[0].key == Secret(key)


def test_no_two_keys_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    made = set()
    for _ in range(5):
        main(["key"])
        made.add(capsys.readouterr().out.split("\n")[0])
    assert len(made) == 5


def test_a_name_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "--name", "a b"]) == 2
    assert capsys.readouterr().err.startswith("antwort key: --name must be a name of at most 64 letters")


def test_check_refuses_what_serve_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    Path("antwort.yaml").write_text("backends: [{name: a, url: https://a/v1, ca_file: ./nowhere.pem}]\nmemory: true")
    assert main(["config", "check", "--tools", "no_such_module"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        (
            "antwort: There is no tools module 'no_such_module'; give the name of a module that is installed or lies "
            "in the current folder, or the path of a .py file."
        ),
        (
            "antwort: The backend 'a' cannot be used: the certificates in './nowhere.pem' cannot be read: "
            "No such file or directory."
        ),
    ]


def test_check_refuses_a_policy_that_nobody_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    policies = "web_search: {do: run, toolset: search}"
    Path("antwort.yaml").write_text(f"scripted: true\nmemory: true\ntools: {{demo: true, hosted: {{{policies}}}}}")
    assert main(["config", "check"]) == 1
    said = "tools.hosted.web_search.toolset names 'search', and there is no toolset of that name; there is demo."
    assert capsys.readouterr().err == f"antwort: {said}\n"


def test_check_knows_the_network_as_serve_does(capsys: pytest.CaptureFixture[str]) -> None:
    policies = "web_search: {do: run, toolset: search}"
    servers = "mcp_servers: [{label: search, url: 'https://search.example.com/mcp'}]"
    Path("antwort.yaml").write_text(
        f"scripted: true\nmemory: true\n{servers}\ntools: {{hosted: {{{policies}}}}}\nmcp: {{reach: {{deny: ['a b']}}}}"
    )
    assert main(["config", "check"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("antwort: mcp.reach.deny[0] 'a b' is not a host")


def test_check_says_what_it_imports(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["config", "check", "--help"])
    assert "Modules of tools are imported" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to be had")
@pytest.mark.parametrize(
    "command",
    [
        "key",
        "openapi",
        "config show",
        "config show --json",
        "config check --scripted",
        "config schema",
        "completion bash",
    ],
)
def test_a_result_that_cannot_be_written_is_a_failure(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "antwort", *command.split()], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "antwort: The output cannot be written: No space left on device.\n"


def test_a_key_that_goes_nowhere_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["key"]) == 1
    assert capsys.readouterr().err == "antwort: The output cannot be written: it is closed.\n"


def test_a_reader_who_has_read_enough_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "antwort", "config", "reference"], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_says_where_addresses_and_labels_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    Path("antwort.yaml").write_text(
        "scripted: true\nmemory: true\ntools: {demo: true}\n"
        "mcp:\n  reach:\n    allow: ['http://foo']\n    deny: ['*']\n"
        "mcp_servers:\n- label: demo\n  command: [ls]\n- label: frag\n  url: https://x.example.com/a#b\n"
    )
    assert main(["config", "check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "antwort: mcp_servers[1].url must not have a fragment (antwort.yaml:12).",
        (
            "antwort: mcp.reach.allow[0] 'http://foo' is not a host; write it without http:// or https:// "
            "(antwort.yaml:6)."
        ),
        (
            "antwort: mcp.reach.deny[0] '*' is not a host; `mcp.declared: false` keeps requests from naming "
            "any server (antwort.yaml:7)."
        ),
        "antwort: mcp_servers[0].label is that of a toolset, too: 'demo' (antwort.yaml:9); choose another.",
    ]
