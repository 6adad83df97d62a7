"""The commands about tools: rows of the table of commands."""

from __future__ import annotations

from antwort.cli.command import Command
from antwort.config.flags import FLAGS, Flag

_SETTINGS = tuple(flag._replace(group="options") for flag in FLAGS if flag.name in ("--config", "--set"))
_ELSEWHERE = "a server that is not configured"
_MCP_FLAGS = (
    Flag("--url", "its address", _ELSEWHERE, metavar="URL", excludes="--command"),
    Flag("--command", "a program that speaks MCP on its standard input and output", _ELSEWHERE, metavar="COMMAND"),
    Flag(
        "--transport",
        "how the address is spoken to (default: sse where it ends in /sse, else http)",
        _ELSEWHERE,
        metavar="HOW",
        choices=("http", "sse"),
    ),
    Flag("--token-file", "a file with the bearer token to log in with", _ELSEWHERE, metavar="FILE", takes="file"),
)
_JSON = Flag("--json", "as JSON, with all that there is to say", "output")

MCP = Command(
    "mcp",
    "try MCP servers: list them and their tools, and call one",
    description="Try MCP servers from the command line, the way that a request uses them.",
    commands=(
        Command(
            "list",
            "the configured servers, and how each stands",
            "antwort.cli.mcp:list_servers",
            (_JSON, *_SETTINGS),
            description="Ask all configured MCP servers for their tools, side by side, and say how each stands.",
        ),
        Command(
            "tools",
            "the tools of a server, or of all",
            "antwort.cli.mcp:show_tools",
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
            "antwort.cli.mcp_call:run",
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

TOOLS = Command(
    "tools",
    "what the model would be offered: toolsets and MCP servers",
    "antwort.cli.tools:run",
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
        *(flag._replace(group="options") for flag in FLAGS if flag.name in ("--tools", "--demo-tools")),
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
