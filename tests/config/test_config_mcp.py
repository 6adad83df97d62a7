"""What an operator says about MCP servers, and what is wrong with it."""

from __future__ import annotations

import pytest

from antwort.app import build
from antwort.config import BadSettings, CannotStart, Secret, Settings
from antwort.config.checks import check
from antwort.config.settings import HostedPolicy, McpServerSettings, StandingSettings, ToolSettings
from antwort.config.shown import as_json, as_yaml, shown_command
from antwort.tools.mcp.servers import McpServer
from config_kit import Operator

FULL = """
mcp_servers:
  - label: docs
    url: " https://docs.example.com/mcp?key=hush-in-query "
    token: {env: DOCS_TOKEN}
    standing: {models: [qwen*]}
    tools: {search: {timeout: 5, parallel: false}}
  - label: files
    command: [npx, -y, "@files/files-mcp@1.2", /srv/hush, --api-key, hush, --token=hush, KEY=hush, -phush, main.py]
    env: {FILES_KEY: {file: key}}
    folder: ~/files
  - label: tickets
    url: https://tickets.example.com:8443/api/u/hush0123/sse#hush
    transport: sse
    headers: {X-Team: hush-team}
    oauth: {client_id: antwort, client_secret: hush-secret, scopes: [read], token_url: "https://id.example.com/hush/v1?k=hush"}
"""


def told(operator: Operator, fields: str) -> list[str]:
    """What is wrong with one server, without the path of it."""
    said = operator.is_told(f"mcp_servers: [{{label: docs, {fields}}}]")
    return [each.removeprefix("mcp_servers[0]").lstrip(" .").replace(" (antwort.yaml:1)", "") for each in said]


def test_servers_are_read_with_their_secrets_from_where_they_are(operator: Operator) -> None:
    operator.writes("hush-in-file", "key")
    docs, files, tickets = operator.gets(FULL, {"DOCS_TOKEN": "hush-in-env", "HOME": "/home/ada"}).mcp_servers
    assert (docs.url, docs.token) == ("https://docs.example.com/mcp?key=hush-in-query", Secret("hush-in-env"))
    assert (docs.standing, docs.tools["search"].timeout) == (StandingSettings(models=("qwen*",)), 5)
    assert (files.env, files.command[:2]) == ({"FILES_KEY": Secret("hush-in-file")}, ("npx", "-y"))
    assert files.folder is not None
    assert files.folder.endswith("/files")
    assert "~" not in files.folder
    assert tickets.oauth is not None
    assert tickets.oauth.client_secret == Secret("hush-secret")


def test_no_secret_of_a_server_is_ever_shown(operator: Operator) -> None:
    operator.writes("hush-in-file", "key")
    loaded = operator.reads(FULL, {"DOCS_TOKEN": "hush-in-env"})
    for shown in (as_yaml(loaded, everything=True), as_yaml(loaded, everything=False), as_json(loaded)):
        assert "hush" not in shown
        assert "https://docs.example.com/mcp?••••" in shown
        assert "https://tickets.example.com:8443/api/••••/••••/sse?••••" in shown
        assert "https://id.example.com/••••/v1?••••" in shown
    assert shown_command(loaded.settings.mcp_servers[1].command) == [
        *("npx", "-y", "@files/files-mcp@1.2", "••••", "--api-key", "••••"),
        *("--token=••••", "••••", "••••", "main.py"),
    ]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("uvx mcp-server-time --local-timezone Europe/Berlin", "same"),
        ("npx -y some-server@1.2 hush", "npx -y some-server@1.2 ••••"),
        ("npx --token hush some-server", "npx --token •••• ••••"),
        ("serve.py --port 8000 --log-level=debug --dir /srv/files", "same"),
        ("serve.py --port 8000 hush", "serve.py --port 8000 ••••"),
        ("serve.py --port-key hush --zone-token=hush", "serve.py --port-key •••• --zone-token=••••"),
        ("serve.py --host ada:hush@db --host=hush@db", "serve.py --host •••• --host=••••"),
        ("serve.py --zone --key hush", "serve.py --zone --key ••••"),
    ],
)
def test_arguments_that_hold_no_secrets_are_shown(command: str, shown: str) -> None:
    assert " ".join(shown_command(command.split())) == (command if shown == "same" else shown)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("description: x", "needs either a url or a command; write one of them."),
        ("url: http://a/mcp, command: [run]", "has both a url and a command; write one of them."),
        ("url: ftp://a/mcp", "url 'ftp://a/mcp' is not a URL like https://tools.example.com/mcp."),
        ("url: 'https://a/m?k=hush x'", "url 'https://a/m' is not a URL like https://tools.example.com/mcp."),
        ("url: 'https://ada:hush@a/mcp'", "url must not carry a name or password; give them as a token or in headers."),
        ("url: 'http://a:0/'", "url 'http://a:0/' is not a URL like https://tools.example.com/mcp."),
        (
            "command: [run], transport: sse",
            "transport is for servers with a url: a command speaks on its own input and output.",
        ),
        ("command: [run], token: hush", "token means nothing without a url; leave it out."),
        ("command: [run], headers: {A: hush}", "headers means nothing without a url; leave it out."),
        ("url: http://a/mcp, env: {A: hush}", "env means nothing without a command; leave it out."),
        ("url: http://a/mcp, folder: /srv", "folder means nothing without a command; leave it out."),
        ("command: [run], env: {'A=B': hush}", "env has a name that cannot be that of a variable."),
        (
            "url: http://a/mcp, token: hush, authorization: request",
            "has token and authorization: request: it can be logged in to in one way only; leave one of them.",
        ),
        (
            "url: http://a/mcp, token: hush, oauth: {client_id: a, client_secret: hush}",
            "has token and oauth: it can be logged in to in one way only; leave one of them.",
        ),
        ("command: [run], authorization: request", "authorization means nothing without a url; leave it out."),
        (
            "url: http://a/mcp, authorization: request, standing: {}",
            (
                "standing cannot be where authorization is `request`: a request that does not name it brings nothing; "
                "leave one of them out."
            ),
        ),
        (
            "url: http://a/mcp, oauth: {client_id: a, client_secret: hush, token_url: nowhere}",
            "oauth.token_url 'nowhere' is not a URL like https://tools.example.com/mcp.",
        ),
        ("url: http://a/mcp, headers: {Host: b}", "headers has 'Host', which is not to be changed."),
        (
            "url: http://a/mcp, headers: {Mcp-Session-Id: b}",
            "headers has 'Mcp-Session-Id', which is not to be changed.",
        ),
        (
            "url: http://a/mcp, token: hush, headers: {authorization: hush}",
            "headers has 'Authorization' beside another way to log in; leave one of them.",
        ),
    ],
)
def test_a_server_that_cannot_be_so_is_told_in_a_sentence(operator: Operator, fields: str, said: str) -> None:
    sentences = told(operator, fields)
    assert sentences == [said]
    assert "hush" not in str(sentences)


@pytest.mark.parametrize("label", ["my.server", "a b", "x" * 65, ""])
def test_a_label_that_models_could_not_be_shown_is_told_when_settings_are_checked(
    operator: Operator, label: str
) -> None:
    (said,) = operator.is_told(f"mcp_servers: [{{label: '{label}', command: [run]}}]")
    assert said.startswith("mcp_servers[0].label")
    assert "must be 1 to 64 letters, digits, '_' or '-'" in said
    with pytest.raises(ValueError, match="1 to 64 letters"):
        McpServer(label, command=("run",))


def test_a_command_has_a_program() -> None:
    with pytest.raises(BadSettings, match=r"mcp_servers\[0\]\.command begins with no program"):
        check(Settings(mcp_servers=(McpServerSettings(label="docs", command=("", "x")),)))


def test_labels_are_each_of_one_server(operator: Operator) -> None:
    more = ", {label: docs, command: [run]}, {label: antwort, command: [run]}"
    assert operator.is_told(f"mcp_servers: [{{label: docs, command: [run]}}{more}]") == [
        "mcp_servers[1].label is the same as that of another MCP server: 'docs' (antwort.yaml:1).",
        "mcp_servers[2].label is our own: calls that are refused show under it (antwort.yaml:1); choose another.",
    ]


def test_a_demand_that_demands_nothing_is_told(operator: Operator) -> None:
    assert operator.is_told("mcp: {require_approval: never, force_approval: true}") == [
        (
            "mcp.force_approval means nothing where mcp.require_approval is `never` (antwort.yaml:1); "
            "write `require_approval: always`, or leave it out."
        )
    ]


def scripted(*servers: McpServerSettings, tools: ToolSettings | None = None) -> Settings:
    return Settings(scripted=True, memory=True, mcp_servers=servers, tools=tools or ToolSettings())


async def test_a_toolset_and_a_server_cannot_have_one_label() -> None:
    server = McpServerSettings(label="demo", url="http://127.0.0.1:9/mcp")
    with pytest.raises(
        CannotStart, match=r"^mcp_servers\[0\]\.label is that of a toolset, too: 'demo'; choose another"
    ):
        await build(scripted(server, tools=ToolSettings(demo=True)))


async def test_a_server_may_stand_in_for_a_hosted_tool() -> None:
    server = McpServerSettings(label="search", url="http://127.0.0.1:9/mcp")
    policy = {"web_search": HostedPolicy(do="run", toolset="search", tools=("whatever",))}
    app = await build(scripted(server, tools=ToolSettings(hosted=policy)))
    await app.close()
