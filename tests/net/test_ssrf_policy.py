"""The operator's lists, and what names stand for at the moment of connecting."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from antwort.limiter import Limiter
from antwort.net import dns
from antwort.net.client import HttpClient
from antwort.net.connection import Timeouts
from antwort.net.dns import look_up
from antwort.net.response import ConnectFailed, ConnectTimeout
from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, parse_host_pattern
from http_kit import OK, fetched
from jumping_time import jumping_time
from replay_backend import Backend, serve

TLS = Path(__file__).parent / "tls"
PUBLIC = "93.184.216.34"


class Names:
    """A resolver that plays a script, and keeps what it was asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def addresses(policy: AddressPolicy, url: str) -> Sequence[str]:
    parsed = policy.check(url)
    return await policy.resolver(parsed)(parsed.host, parsed.port)


# ---- lists ----


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("10.1.0.0/16", "https://10.1.2.3/mcp"),
        ("10.1.0.0/16", "http://10.1.2.3:8000/mcp"),
        ("10.1.2.3", "http://10.1.2.3:22/mcp"),
        ("10.1.0.0/16:8000", "http://10.1.2.3:8000/mcp"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/mcp"),
        ("fd00::/8", "http://[fd00::1]/mcp"),
        ("[fd00::/8]:81", "http://[fd00::1]:81/mcp"),
        ("[::1]:81", "http://[::1]:81/mcp"),
        ("tools.internal", "http://tools.internal/mcp"),
        ("Tools.Internal:81", "http://TOOLS.internal.:81/mcp"),
        ("*.internal", "http://a.b.internal/mcp"),
        ("bücher.example", "http://xn--bcher-kva.example/"),
        ("localhost", "http://localhost:8000/"),
        ("10.1.0.0/16", "http://[64:ff9b::10.1.2.3]/mcp"),
        ("::ffff:10.1.0.0/112", "http://10.1.2.3/mcp"),
    ],
)
async def test_what_is_allowed_may_be_named_whatever_it_stands_for(allow: str, url: str) -> None:
    policy = AddressPolicy(allow=[allow], lookup=Names(["10.1.2.3", "127.0.0.1"]))
    assert await addresses(policy, url)


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("10.1.0.0/16", "https://10.2.0.1/mcp"),
        ("10.1.0.0/16:8000", "https://10.1.2.3:8001/mcp"),
        ("tools.internal:81", "http://tools.internal/mcp"),
        ("*.internal", "http://internal/mcp"),
        ("*.internal", "http://notinternal/mcp"),
        ("example.com", "http://a.example.com/mcp"),
        ("10.1.0.0/16", "https://[2606:4700::5efe:10.1.2.3]/mcp"),
        ("10.1.0.0/16", "https://[2002:0a01:0203::1]/mcp"),
    ],
)
async def test_an_entry_allows_nothing_else(allow: str, url: str) -> None:
    with pytest.raises(AddressNotAllowed):
        await addresses(AddressPolicy(allow=[allow], lookup=Names(["192.168.0.1"])), url)


@pytest.mark.parametrize(
    ("deny", "url"),
    [
        ("8.8.8.0/24", "https://8.8.8.8/"),
        ("8.8.8.8", "https://[::ffff:8.8.8.8]/"),
        ("*.example.com", "https://a.example.com/"),
        ("a.example.com", "https://a.example.com:8443/"),
        ("a.example.com:443", "https://a.example.com/"),
        ("93.184.216.0/24", "https://a.example.com/"),
        ("8.8.8.0/24", "https://[64:ff9b::8.8.8.8]/"),
        ("8.8.8.0/24", "https://[2606:4700::5efe:8.8.8.8]/"),
        ("::ffff:8.8.8.0/120", "https://8.8.8.8/"),
        ("[::ffff:8.8.8.8]:443", "https://8.8.8.8/"),
    ],
)
async def test_what_is_denied_may_not_be_named_though_it_is_allowed(deny: str, url: str) -> None:
    policy = AddressPolicy(allow=["a.example.com", "8.8.8.8"], deny=[deny], lookup=Names([PUBLIC]))
    with pytest.raises(AddressNotAllowed):
        await addresses(policy, url)


async def test_a_name_that_leads_into_an_allowed_network_may_be_named_also_without_tls() -> None:
    policy = AddressPolicy(allow=["10.1.0.0/16"], lookup=Names(["10.1.2.3"], ["10.1.2.3", PUBLIC], [PUBLIC]))
    assert await addresses(policy, "http://tools.example.com/") == ("10.1.2.3",)
    with pytest.raises(AddressNotAllowed):
        await addresses(policy, "http://tools.example.com/")
    assert await addresses(policy, "https://tools.example.com/") == (PUBLIC,)


async def test_only_those_that_are_listed_may_be_named() -> None:
    policy = AddressPolicy(allow=["tools.example.com"], only_allowed=True, loopback=True, lookup=Names([PUBLIC]))
    assert await addresses(policy, "https://tools.example.com/") == (PUBLIC,)
    for url in ("https://other.example.com/", "https://8.8.8.8/", "http://127.0.0.1/", "http://localhost/"):
        with pytest.raises(AddressNotAllowed):
            policy.check(url)


async def test_public_addresses_may_be_named_without_tls_where_that_is_said() -> None:
    policy = AddressPolicy(http=True, lookup=Names(["10.0.0.1"]))
    assert policy.check("http://8.8.8.8:8000/").port == 8000
    with pytest.raises(AddressNotAllowed):
        policy.check("http://10.0.0.1/")
    with pytest.raises(AddressNotAllowed):
        await addresses(policy, "http://tools.example.com/")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/", "https://[::1]/", "http://localhost:81/", "http://2130706433/"]
)
async def test_this_machine_may_be_named_where_that_is_said(url: str) -> None:
    assert await addresses(AddressPolicy(loopback=True, lookup=Names(["127.0.0.1", "::1"])), url)


async def test_a_name_from_elsewhere_that_stands_for_this_machine_was_made_to_deceive() -> None:
    policy = AddressPolicy(loopback=True, http=True, lookup=Names(["127.0.0.1"]))
    with pytest.raises(AddressNotAllowed):
        await addresses(policy, "http://tools.example.com/")


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.0/99", "a b", "https://x", "x/y", "x?y", "*", "a.*.b", "x:0", "x:99999", "u@x", "1.2.3.4.5"]
)
def test_an_entry_that_is_no_host_and_no_network_is_told(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is not a|cannot be one|does not appear"):
        parse_host_pattern(entry)


@pytest.mark.parametrize(
    "name",
    [
        "64:ff9b::a01:203",
        "64:ff9b:1::a01:203",
        "::10.1.2.3",
        "2002:0a01:0203::1",
        "2001:0:808:808::f5fe:fdfc",
        "2001:0:0a01:0203::1",
        "2606:4700::200:5efe:a01:203",
    ],
)
async def test_a_network_is_denied_by_whichever_way_an_address_leads_there(name: str) -> None:
    """Also behind a name that is allowed whatever it stands for."""
    policy = AddressPolicy(allow=["a.example.com"], deny=["10.1.0.0/16"], lookup=Names([name]))
    with pytest.raises(AddressNotAllowed):
        await addresses(policy, "https://a.example.com/")


@pytest.mark.parametrize("entry", ["1.2.3", "0x7f.1", "2130706433", "010.1.2.3", "*.10.1.2.3", "1.2.3:80"])
def test_an_entry_that_could_never_fit_is_told(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is not a whole address: write one as 10\.1\.2\.3, and a network as"):
        parse_host_pattern(entry)


# ---- what names stand for ----


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        [PUBLIC, "10.0.0.1"],
        ["2606:4700::1111", "::1"],
        ["::ffff:169.254.169.254"],
        ["64:ff9b::7f00:1"],
        ["fe80::1%eth0"],
        ["nonsense"],
        [],
    ],
)
async def test_one_address_of_a_name_that_may_not_be_asked_spoils_all(found: Sequence[str]) -> None:
    with pytest.raises(AddressNotAllowed):
        await addresses(AddressPolicy(lookup=Names(found)), "https://tools.example.com/")


async def test_a_refusal_does_not_tell_what_a_name_stands_for() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(f"{host}:{port} is not known")

    words = set()
    for lookup_ in (unknown, Names(["10.0.0.1"]), Names([])):
        with pytest.raises(AddressNotAllowed) as caught:
            await addresses(AddressPolicy(lookup=lookup_), "https://git.corp.example/")
        words.add(str(caught.value))
    assert len(words) == 1
    assert "10.0.0.1" not in words.pop()


def port_of(backend: Backend) -> int:
    return int(backend.url.removesuffix("/v1").rpartition(":")[2])


async def test_a_name_that_is_rebound_is_refused_when_a_connection_is_made() -> None:
    """It is public when it is judged, and this machine when it is connected to, and the other way round."""
    async with serve(OK) as backend:
        for names in (Names(["127.0.0.1"]), Names(["127.0.0.1", PUBLIC])):
            policy = AddressPolicy(http=True, lookup=names)
            parsed = policy.check(f"http://tools.example.com:{port_of(backend)}/")
            client = HttpClient(parsed.origin, resolve=policy.resolver(parsed))
            with pytest.raises(AddressNotAllowed):
                await fetched(client)
            await client.close()
    assert backend.connections == 0


async def test_a_connection_is_made_to_the_very_address_that_was_judged() -> None:
    """Whatever the name stands for a moment later: it is looked up once for each connection."""
    async with serve(OK, OK) as backend:
        names = Names(["127.0.0.1"], ["10.0.0.1"])
        policy = AddressPolicy(allow=["127.0.0.1"], lookup=names)
        parsed = policy.check(f"http://tools.example.com:{port_of(backend)}/")
        client = HttpClient(parsed.origin, resolve=policy.resolver(parsed))
        assert await fetched(client) == b'{"ok": true}'
        assert await fetched(client) == b'{"ok": true}', "the connection that is there was good when it was made"
        assert names.asked == [("tools.example.com", port_of(backend))]
        await client.close()
        assert backend.requests[0].headers["host"] == f"tools.example.com:{port_of(backend)}"


async def test_a_certificate_is_held_against_the_name_and_not_the_address() -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    trusting = ssl.create_default_context(cafile=TLS / "cert.pem")
    names: list[str | None] = []
    server.sni_callback = lambda _, name, __: names.append(name)
    async with serve(OK, OK, tls=server) as backend:
        good = HttpClient(f"https://localhost:{port_of(backend)}", tls=trusting, resolve=Names(["127.0.0.1"]))
        assert await fetched(good) == b'{"ok": true}'
        bad = HttpClient(f"https://tools.example.com:{port_of(backend)}", tls=trusting, resolve=Names(["127.0.0.1"]))
        with pytest.raises(ConnectFailed) as caught:
            await fetched(bad)
        assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
        await good.close()
        await bad.close()
    assert names == ["localhost", "tools.example.com"]


async def test_addresses_are_tried_in_their_order_until_one_answers() -> None:
    async with serve(OK) as backend:
        client = HttpClient(f"http://x:{port_of(backend)}", resolve=Names(["127.0.0.2", "::1", "127.0.0.1"]))
        assert await fetched(client) == b'{"ok": true}'
        await client.close()


async def test_an_address_that_does_not_answer_takes_only_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    async def silent(*_: object, **__: object) -> None:
        tried.append(1)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", silent)
    names = Names(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"])
    client = HttpClient("http://x", resolve=names, timeouts=Timeouts(connect=0.2))
    with pytest.raises(ConnectTimeout):
        await fetched(client)
    assert len(tried) == 4


@pytest.mark.parametrize("found", [[], ["127.0.0.2"]])
async def test_a_name_without_an_address_that_answers_is_no_connection(found: Sequence[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        client = HttpClient(f"http://x:{closed.getsockname()[1]}", resolve=Names(found))
        with pytest.raises(ConnectFailed):
            await fetched(client)


# ---- looking up ----


async def test_names_of_this_machine_are_looked_up() -> None:
    assert "127.0.0.1" in [*await look_up("127.0.0.1", 80), *await look_up("localhost", 80)]


async def test_a_name_that_cannot_be_looked_up_is_an_error_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="not a name"):
        await look_up("a" * 70 + ".example", 80)

    def fails(*_: object, **__: object) -> None:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    with pytest.raises(socket.gaierror):
        await look_up("tools.example.com", 80)


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, names that begin so are not answered for."""
    gate = threading.Event()

    def ask(host: str, *_: object, **__: object) -> object:
        assert not host.startswith("slow") or gate.wait(10)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, 80))]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    yield gate
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "lookup":
            thread.join()  # it gives its place back


async def resolved(policy: AddressPolicy, host: str, owner: str) -> Sequence[str]:
    parsed = policy.check(f"https://{host}/")
    return await policy.resolver(parsed, owner)(parsed.host, parsed.port)


@jumping_time
async def test_lookups_that_hang_hold_up_nobody_but_whose_they_are(slow_names: threading.Event) -> None:
    policy = AddressPolicy()
    hanging = [asyncio.create_task(resolved(policy, "slow.example", "ada")) for _ in range(dns.MAX_LOOKUPS_PER_OWNER)]
    await asyncio.sleep(0)
    with pytest.raises(AddressNotAllowed, match=r"could not be looked up in time\.$"):
        await resolved(policy, "another.example", "ada")
    assert await resolved(policy, "another.example", "bob") == (PUBLIC,)
    hanging[0].cancel()
    assert await asyncio.to_thread(lambda: "free") == "free", "those threads are everybody's"
    slow_names.set()
    assert await asyncio.gather(*hanging[1:]) == [(PUBLIC,)] * (dns.MAX_LOOKUPS_PER_OWNER - 1)
    with pytest.raises(asyncio.CancelledError):
        await hanging[0]


@jumping_time
async def test_names_that_the_operator_lists_do_not_wait_for_those_of_strangers(slow_names: threading.Event) -> None:
    policy = AddressPolicy(allow=["tools.example.com"])
    crowd = [resolved(policy, "slow.example", f"{at}") for at in range(dns.MAX_LOOKUPS)]
    hanging = [asyncio.create_task(each) for each in crowd]
    await asyncio.sleep(0)
    with pytest.raises(AddressNotAllowed, match="in time"):
        await resolved(policy, "another.example", "bob")
    assert await resolved(policy, "tools.example.com", "bob") == (PUBLIC,)
    slow_names.set()
    await asyncio.gather(*hanging)


async def test_a_place_that_comes_free_goes_to_whoever_waits(slow_names: threading.Event) -> None:
    policy = AddressPolicy()
    crowd = [asyncio.create_task(resolved(policy, "slow.example", "ada")) for _ in range(3 * dns.MAX_LOOKUPS_PER_OWNER)]
    await asyncio.sleep(0)
    crowd[-1].cancel()
    slow_names.set()
    assert await asyncio.gather(*crowd[:-1]) == [(PUBLIC,)] * (3 * dns.MAX_LOOKUPS_PER_OWNER - 1)
    assert await resolved(policy, "another.example", "ada") == (PUBLIC,)


async def test_whoever_leaves_as_a_place_comes_gives_it_back() -> None:
    limiter = Limiter(1)
    await limiter.acquire("ada")
    waiting = asyncio.create_task(limiter.acquire("bob"))
    await asyncio.sleep(0)
    limiter.release("ada")
    await asyncio.sleep(0)  # it is handed over, and the task has not gone on yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await limiter.acquire("ada")
