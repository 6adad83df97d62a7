"""Addresses that a request may not name, however they are written."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.net.addresses import is_public
from antwort.net.places import LONGEST, OutOfReach, read_place
from antwort.net.reach import Reach

EVIL = [
    # this machine
    "https://127.0.0.1/mcp",
    "https://127.1/mcp",
    "https://127.0.1/mcp",
    "https://2130706433/mcp",
    "https://0x7f000001/mcp",
    "https://0x7F.1/mcp",
    "https://0177.0.0.1/mcp",
    "https://017700000001/mcp",
    "https://127.0.0.1./mcp",
    "https://127.255.255.254/mcp",
    "https://0/mcp",
    "https://0.0.0.0/mcp",
    "https://\uff10x7f000001/mcp",
    "https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/mcp",
    "https://\u2460\u2461\u2466.0.0.1/mcp",
    "https://127\u30020\u30020\u30021/mcp",
    "https://localhost/mcp",
    "https://LOCALHOST./mcp",
    "https://a.localhost/mcp",
    "https://[::1]/mcp",
    "https://[::]/mcp",
    "https://[0:0:0:0:0:0:0:1]/mcp",
    "https://[::ffff:127.0.0.1]/mcp",
    "https://[::ffff:7f00:1]/mcp",
    "https://[::127.0.0.1]/mcp",
    "https://[::ffff:0:127.0.0.1]/mcp",
    "https://[64:ff9b::127.0.0.1]/mcp",
    "https://[64:ff9b::a9fe:a9fe]/mcp",
    "https://[64:ff9b:1::7f00:1]/mcp",
    "https://[2002:7f00:1::]/mcp",
    "https://[2002:c0a8:101::1]/mcp",
    "https://[2001:0:7f00:1::]/mcp",
    "https://[2606:4700::5efe:10.0.0.1]/mcp",
    # somebody's own network, and what clouds have there
    "https://10.0.0.1/mcp",
    "https://172.16.0.1/mcp",
    "https://172.31.255.255/mcp",
    "https://192.168.1.1/mcp",
    "https://3232235777/mcp",
    "https://100.64.0.1/mcp",
    "https://100.100.100.200/mcp",
    "https://169.254.169.254/latest/meta-data",
    "https://0xa9fea9fe/latest/meta-data",
    "https://168.63.129.16/mcp",
    "https://[fe80::1]/mcp",
    "https://[fc00::1]/mcp",
    "https://[fd00:ec2::254]/mcp",
    "https://[fec0::1]/mcp",
    # nobody's
    "https://192.0.0.192/mcp",
    "https://192.0.2.1/mcp",
    "https://192.88.99.1/mcp",
    "https://198.18.0.1/mcp",
    "https://198.51.100.1/mcp",
    "https://203.0.113.9/mcp",
    "https://224.0.0.1/mcp",
    "https://240.0.0.1/mcp",
    "https://255.255.255.255/mcp",
    "https://[ff02::1]/mcp",
    "https://[100::1]/mcp",
    "https://[2001:db8::1]/mcp",
    "https://[3fff::1]/mcp",
    # not an address, or not one way to read it
    "http://tools.example.com/mcp",
    "HTTP://tools.example.com/mcp",
    "ftp://tools.example.com/mcp",
    "file:///etc/passwd",
    "gopher://tools.example.com:6379/_FLUSHALL",
    "javascript:alert(1)",
    "//tools.example.com/mcp",
    "https:tools.example.com/mcp",
    "https:///mcp",
    "https://",
    "",
    "https://user:secret@tools.example.com/mcp",
    "https://tools.example.com@127.0.0.1/mcp",
    "https://tools.example.com:443@127.0.0.1/mcp",
    "https://127.0.0.1#@tools.example.com/mcp",
    "https://tools.example.com/mcp#there",
    "https://127.0.0.1\\@tools.example.com/mcp",
    "https:\\\\tools.example.com/mcp",
    "https://tools.example.com\\.evil.example/mcp",
    "https://tools.example.com /mcp",
    " https://tools.example.com/mcp",
    "https://tools.example.com/mcp\n",
    "https://tools.example.com/\r\nHost: 127.0.0.1",
    "https://tools\t.example.com/mcp",
    "https://tools.exa\x00mple.com/mcp",
    "https://tools.exa\u200bmple.com/mcp",
    "https://%31%32%37.0.0.1/mcp",
    "https://tools.example.com%2f@127.0.0.1/mcp",
    "https://[fe80::1%25eth0]/mcp",
    "https://[fe80::1%eth0]/mcp",
    "https://[::1/mcp",
    "https://[::1]x/mcp",
    "https://[v1.fe80]/mcp",
    "https://[127.0.0.1]/mcp",
    "https://::1/mcp",
    "https://tools..example.com/mcp",
    "https://.tools.example.com/mcp",
    "https://tools.example.com../mcp",
    "https://-tools.example.com/mcp",
    "https://*.example.com/mcp",
    "https://256.256.256.256/mcp",
    "https://1.2.3.4.5/mcp",
    "https://1.2.3.0x/mcp?" + "x" * LONGEST,
    "https://08.8.8.8/mcp",
    "https://99999999999/mcp",
    "https://tools.example.0x7f/mcp",
    "https://tools.example.com:0/mcp",
    "https://tools.example.com:65536/mcp",
    "https://tools.example.com:/mcp",
    "https://tools.example.com:443:80/mcp",
    "https://tools.example.com:+443/mcp",
    "https://tools.example.com:\u0664\u0664\u0663/mcp",
    "https://tools.example.com:25/mcp",
    "https://tools.example.com:22/mcp",
    f"https://{'a' * 64}.example.com/mcp",
    f"https://{'a.' * 130}example.com/mcp",
]


@pytest.mark.parametrize("url", EVIL)
def test_an_evil_address_is_refused(url: str) -> None:
    with pytest.raises(OutOfReach) as caught:
        Reach().judge(url)
    assert str(caught.value).endswith("."), "it ends the sentence that the field begins"


def test_there_are_enough_evil_addresses() -> None:
    assert len(set(EVIL)) == len(EVIL) >= 40


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("https://tools.example.com/mcp", "https://tools.example.com", "/mcp"),
        ("HTTPS://Tools.Example.COM.:443", "https://tools.example.com", "/"),
        ("https://tools.example.com:8443/a/b?key=%20x", "https://tools.example.com:8443", "/a/b?key=%20x"),
        ("https://bücher.example/ü", "https://xn--bcher-kva.example", "/%C3%BC"),
        ("https://8.8.8.8/", "https://8.8.8.8", "/"),
        ("https://134744072/", "https://8.8.8.8", "/"),
        ("https://8.8.2056/", "https://8.8.8.8", "/"),
        ("https://[2606:4700::1111]:8443/x", "https://[2606:4700::1111]:8443", "/x"),
        ("https://[64:ff9b::8.8.8.8]/", "https://[64:ff9b::808:808]", "/"),
        ("https://my_tools.example.com?x", "https://my_tools.example.com", "/?x"),
        ("https://123.example.com/", "https://123.example.com", "/"),
    ],
)
def test_a_public_address_is_read_in_one_way(url: str, origin: str, target: str) -> None:
    place = Reach().judge(url)
    assert (place.origin, place.target, place.url) == (origin, target, origin + target)
    assert read_place(place.url) == place


PARTS = st.sampled_from(["{}", "0{:o}", "0x{:x}", "0X{:X}", "00{:o}"])


@st.composite
def spellings(draw: st.DrawFn) -> tuple[IPv4Address, str]:
    """An address, and one of the ways in which the C library reads it."""
    address = IPv4Address(draw(st.integers(0, 2**32 - 1)))
    octets, number = address.packed, draw(st.integers(1, 4))
    values = [*octets[: number - 1], int.from_bytes(octets[number - 1 :], "big")]
    return address, ".".join(draw(PARTS).format(value) for value in values)


@given(spellings())
def test_a_number_is_read_as_the_c_library_reads_it(spelling: tuple[IPv4Address, str]) -> None:
    address, text = spelling
    assert socket.inet_aton(text) == address.packed
    place = read_place(f"https://{text}/")
    assert (place.address, place.host) == (address, str(address))


@given(st.text(alphabet="0123456789abcdefx.", min_size=1, max_size=24))
def test_whatever_the_c_library_takes_for_a_number_is_judged_as_that_number(text: str) -> None:
    try:
        packed = socket.inet_aton(text)
    except OSError:
        return
    assert read_place(f"https://{text}/").address == IPv4Address(packed)


@given(st.ip_addresses(v=4))
def test_an_address_in_disguise_is_what_it_is_in_clear(address: IPv4Address) -> None:
    reach, is_good = Reach(), is_public(address)
    for disguise in (f"::ffff:{address}", f"64:ff9b::{address}", f"2606:4700::5efe:{address}"):
        url = f"https://[{disguise}]/"
        if is_good:
            assert reach.judge(url).url.startswith("https://[")
        else:
            with pytest.raises(OutOfReach):
                reach.judge(url)


@given(st.ip_addresses())
def test_what_the_standard_library_takes_for_private_is_never_public(address: IPv4Address) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        mapped = getattr(address, "ipv4_mapped", None)
        assert not is_public(address) or (mapped is not None and is_public(mapped))
