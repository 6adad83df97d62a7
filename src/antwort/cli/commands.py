"""The commands there are: what the parser, the help and the shells' completion are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from antwort.config.flags import FLAGS, Flag


class Command(NamedTuple):
    name: str
    help: str
    """One line, for the list of commands."""
    run: str = ""
    """`module:function`, imported when the command is run."""
    flags: tuple[Flag, ...] = ()
    arguments: tuple[Flag, ...] = ()
    commands: tuple[Command, ...] = ()
    description: str = ""
    examples: str = ""


SHELLS = ("bash", "zsh", "fish")

_SERVE = Command(
    "serve",
    "answer the Responses API over HTTP",
    "antwort.cli.serve:run",
    FLAGS,
    description="Answer the Responses API over HTTP, in front of Chat Completions backends.",
    examples="""
  antwort serve --scripted --memory
      try it: a stand-in answers, nothing is kept
  antwort serve --backend http://localhost:8000/v1 --tools mypkg.mytools
      in front of one backend, with tools of your own
  antwort serve --backend gpu1=http://gpu1:8000/v1 --backend gpu2=http://gpu2:8000/v1
      in front of two; a model goes to the one that has it
  antwort serve --config /etc/antwort.yaml --set server.linger=5
      from a file, with one setting changed

A setting comes from the flags, or else from the environment (ANTWORT_SERVER_PORT for server.port), or else from the
file, or else has its default. A backend's key comes from --backend-key-file, or else from the
variable ANTWORT_BACKEND_API_KEY, or else from the file.""",
)

_CONFIG = Command(
    "config",
    "show, check and describe the settings",
    description="Show, check and describe the settings.",
    commands=(
        Command(
            "show",
            "what is in force, and where each value came from",
            "antwort.cli.config:show",
            (
                Flag("--all", "also what has its default", "output"),
                Flag("--json", "everything, as JSON: the settings, and the origins by path", "output"),
                *FLAGS,
            ),
            description="Show the settings that `antwort serve` would have with the same flags. Secrets are masked.",
        ),
        Command(
            "check",
            "whether the server could start with them",
            "antwort.cli.config:check",
            FLAGS,
            description=(
                "Check the settings that `antwort serve` would have with the same flags; list all problems.\n"
                "Modules of tools are imported; no backend is asked, and no port and no data folder is opened."
            ),
        ),
        Command("schema", "a JSON Schema of antwort.yaml, for editors", "antwort.cli.config:schema"),
        Command("reference", "all settings with their descriptions, as Markdown", "antwort.cli.config:reference"),
    ),
    examples="""
  antwort config show --all
  antwort config check --config antwort.yaml
  antwort config schema > antwort.schema.json""",
)

COMMANDS: tuple[Command, ...] = (
    _SERVE,
    _CONFIG,
    Command(
        "key",
        "make an API key",
        "antwort.cli.key:run",
        (Flag("--name", "what the key is called in logs (default: default)", metavar="NAME"),),
        description="Make a random API key. It is shown once; the server needs only its hash.",
    ),
    Command(
        "completion",
        "print a script that completes commands in a shell",
        "antwort.cli.completion:run",
        arguments=(Flag("shell", "the shell to write for", choices=SHELLS),),
        description="Print a script that completes commands and flags in a shell.",
        examples="""
  source <(antwort completion bash)        in ~/.bashrc
  source <(antwort completion zsh)         in ~/.zshrc, after compinit
  antwort completion fish | source         in ~/.config/fish/config.fish""",
    ),
)


def all_commands(commands: tuple[Command, ...] = COMMANDS, above: str = "") -> Iterator[tuple[str, Command]]:
    """Every command by its whole name, such as `config show`."""
    for command in commands:
        name = f"{above} {command.name}".strip()
        yield name, command
        yield from all_commands(command.commands, name)
