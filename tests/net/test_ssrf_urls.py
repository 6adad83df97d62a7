"""Addresses that a request may not name, however they are written."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.net.ssrf import AddressNotAllowed, AddressPolicy, is_public, parse_url
from evil_urls import EVIL


@pytest.mark.parametrize("url", EVIL)
def test_an_evil_address_is_refused(url: str) -> None:
    with pytest.raises(AddressNotAllowed) as caught:
        AddressPolicy().check(url)
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
    place = AddressPolicy().check(url)
    assert (place.origin, place.target, place.url) == (origin, target, origin + target)
    assert parse_url(place.url) == place


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
    place = parse_url(f"https://{text}/")
    assert (place.address, place.host) == (address, str(address))


@given(st.text(alphabet="0123456789abcdefx.", min_size=1, max_size=24))
def test_whatever_the_c_library_takes_for_a_number_is_judged_as_that_number(text: str) -> None:
    try:
        packed = socket.inet_aton(text)
    except OSError:
        return
    assert parse_url(f"https://{text}/").address == IPv4Address(packed)


@given(st.ip_addresses(v=4))
def test_an_address_in_disguise_is_what_it_is_in_clear(address: IPv4Address) -> None:
    policy, is_good = AddressPolicy(), is_public(address)
    for disguise in (f"::ffff:{address}", f"64:ff9b::{address}", f"2606:4700::5efe:{address}"):
        url = f"https://[{disguise}]/"
        if is_good:
            assert policy.check(url).url.startswith("https://[")
        else:
            with pytest.raises(AddressNotAllowed):
                policy.check(url)


@given(st.ip_addresses())
def test_what_the_standard_library_takes_for_private_is_never_public(address: IPv4Address) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        mapped = getattr(address, "ipv4_mapped", None)
        assert not is_public(address) or (mapped is not None and is_public(mapped))


PIECES = st.sampled_from(
    ["https://", "http://", "[", "]", "::1", "@", ":", ".", "%", "/", "?", "#", "127.0.0.1", "0x", "é"]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=8).map("".join))
def test_any_text_is_refused_or_read_as_one_place(text: str) -> None:
    for url in (text, f"https://{text}"):
        try:
            place = parse_url(url)
        except AddressNotAllowed:
            continue
        assert place.url.isascii()
        assert not set(place.host) & set(" /?#@\\%[]")
        assert parse_url(place.url) == place
