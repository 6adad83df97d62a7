"""The flags of `antwort serve` and what each one sets. Nothing heavy is imported here: `--help` is to be quick."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

KEY_VARIABLE = "ANTWORT_BACKEND_API_KEY"
BACKEND_VARIABLE = "ANTWORT_BACKEND"


class Flag(NamedTuple):
    """One flag. Without a metavar it is a switch."""

    name: str
    help: str
    group: str = "options"
    metavar: str = ""
    path: str = ""
    """The setting it sets, if it is one and no more."""
    choices: tuple[str, ...] = ()
    is_repeatable: bool = False
    takes: Literal["text", "file", "folder", "setting"] = "text"
    is_optional: bool = False
    """Of an argument: it may be left out."""
    excludes: str = ""
    """A flag that it cannot stand beside."""

    @property
    def key(self) -> str:
        """What the command line's reader calls it."""
        return self.name.removeprefix("--").replace("-", "_")


_ANSWERS, _LISTENS, _KEEPS = "who answers", "where it listens", "what it keeps"
_LOOP, _LOGS, _SETTINGS = "the loop", "logs", "all other settings"

FLAGS = (
    Flag(
        "--backend",
        "a backend's base address, such as http://localhost:8000/v1; several, each by a name: gpu1=URL",
        _ANSWERS,
        "[NAME=]URL",
        is_repeatable=True,
    ),
    Flag(
        "--backend-key-file",
        f"a file with the backend's API key (or set {KEY_VARIABLE})",
        _ANSWERS,
        "FILE",
        takes="file",
    ),
    Flag(
        "--gguf",
        "a GGUF file for antwort to run with llama.cpp (default, without a backend: the demo model)",
        _ANSWERS,
        "FILE",
        "local.model",
        takes="file",
    ),
    Flag(
        "--scripted",
        "no backend: a scripted stand-in answers, not a model",
        _ANSWERS,
        path="scripted",
        excludes="--backend",
    ),
    Flag("--model", "the model for requests that name none", _ANSWERS, "MODEL", "default_model"),
    Flag("--default-model", "older name of --model", _ANSWERS, "MODEL", "default_model"),
    Flag(
        "--tools",
        "a Python module whose tools are offered; can be given several times",
        _ANSWERS,
        "MODULE",
        "tools.modules",
        is_repeatable=True,
    ),
    Flag("--demo-tools", "offer a clock, a calculator and a unit converter", _ANSWERS, path="tools.demo"),
    Flag("--host", "the address to listen on (default: 127.0.0.1)", _LISTENS, "HOST", "server.host"),
    Flag("--port", "0 takes a free one (default: 8080)", _LISTENS, "N", "server.port"),
    Flag(
        "--workers",
        "processes that serve side by side; more than one needs a database",
        _LISTENS,
        "N",
        "server.workers",
    ),
    Flag(
        "--drain",
        "seconds that responses under way get when the server is told to stop (default: 10)",
        _LISTENS,
        "S",
        "server.drain",
    ),
    Flag(
        "--data",
        "the folder for stored responses (default: the user's data folder)",
        _KEEPS,
        "DIR",
        "data",
        takes="folder",
    ),
    Flag("--memory", "keep stored responses in memory only", _KEEPS, path="memory"),
    Flag("--max-turns", "how often the model is asked for one response (default: 10)", _LOOP, "N", "loop.max_turns"),
    Flag("--deadline", "seconds that one response may take (default: 600)", _LOOP, "S", "loop.deadline"),
    Flag(
        "--mixed-turns",
        "a turn that calls the client's and the server's tools: hand all to the client, or run ours (default: pause)",
        _LOOP,
        "HOW",
        "loop.mixed_turns",
        ("pause", "execute"),
    ),
    Flag(
        "--requires-action",
        "how a response says that the client must act (default: status)",
        _LOOP,
        "HOW",
        "loop.requires_action",
        ("status", "event", "completed"),
    ),
    Flag("--strict", "write the standard's names where OpenAI's differ", _LOOP, path="loop.strict"),
    Flag(
        "--log-level",
        "what is logged (default: info, one line a request)",
        _LOGS,
        "LEVEL",
        "log.level",
        ("debug", "info", "warning", "error"),
    ),
    Flag(
        "--log-format",
        "how (default: auto, for people on a terminal, JSON otherwise)",
        _LOGS,
        "FORMAT",
        "log.format",
        ("auto", "human", "json"),
    ),
    Flag(
        "--config",
        "the configuration file (default: $ANTWORT_CONFIG, or ./antwort.yaml, or the user's own)",
        _SETTINGS,
        "FILE",
        takes="file",
    ),
    Flag(
        "--set",
        "any setting by its path, such as server.linger=5; `antwort config reference` lists them",
        _SETTINGS,
        "PATH=VALUE",
        is_repeatable=True,
        takes="setting",
    ),
)
BY_PATH = {flag.path: flag.name for flag in reversed(FLAGS) if flag.path}


def is_gguf(model: str) -> bool:
    """Whether this is the file of a model rather than a model's name."""
    if model.lower().endswith(".gguf"):
        return True
    with suppress(OSError, RuntimeError, ValueError):  # RuntimeError: the home of an unknown user
        file = Path(model).expanduser()
        if file.is_file():
            with file.open("rb") as opened:
                return opened.read(4) == b"GGUF"
    return False
