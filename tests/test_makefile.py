"""What `make serve` does with what it is given, as make itself tells it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def commands(target: str, arguments: str = "", **environment: str) -> list[str]:
    """What make would run, once all is set up."""
    return said("-n", "-o", ".venv/.ready", target, f"ARGS={arguments}", **environment)


def said(*words: str, **environment: str) -> list[str]:
    """What make says when it is called so, and not from within another make."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTWORT_", "MAKE", "MFLAGS"))}
    made = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.splitlines()


def test_make_serve_fetches_the_model_and_offers_the_demo_tools() -> None:
    pull, serve = commands("serve")
    assert pull == ".venv/bin/antwort model path  >/dev/null 2>&1 || .venv/bin/antwort model pull  >/dev/null"
    assert serve.split() == [".venv/bin/antwort", "serve", "--demo-tools"]


@pytest.mark.parametrize("arguments", ["--backend http://a/v1", "--scripted --port 0", "--port 1 --model a.gguf"])
def test_make_serve_fetches_nothing_where_somebody_else_answers(arguments: str) -> None:
    assert commands("serve", arguments) == [f".venv/bin/antwort serve --demo-tools {arguments}"]


def test_make_serve_fetches_nothing_where_the_environment_names_a_backend() -> None:
    assert len(commands("serve", ANTWORT_BACKEND="http://a/v1")) == 1


@pytest.mark.parametrize("place", ["--data /x/y", "--data=/x/y", "--config a.yaml"])
def test_the_model_is_fetched_to_where_the_server_looks_for_it(place: str) -> None:
    pull, serve = commands("serve", f"--port 0 {place} --default-model m")
    assert f"antwort model path {place} >" in pull
    assert f"antwort model pull {place} >" in pull
    assert serve == f".venv/bin/antwort serve --demo-tools --port 0 {place} --default-model m"


def test_make_help_says_what_serve_brings() -> None:
    [line] = [line for line in said("help") if line.startswith("serve")]
    assert "demo model, fetched once (93 MB)" in line
