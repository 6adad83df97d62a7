"""What an MCP server answers a call with, as the model reads it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import InputFile, InputImage, InputText, ResultPart
from antwort.api.wire import encode
from antwort.tools.mcp.base import McpCallResult
from antwort.tools.mcp.conversion import output_of
from antwort.tools.mcp.messages import call_result
from plan_kit import STEADY

PICTURE = b64encode(b"\x89PNG not really").decode()
BYTES = b64encode(b"some bytes").decode()


def outcome(*content: Any, structured: Any = None, is_error: bool = False) -> McpCallResult:
    return McpCallResult(content=content, structured=structured, is_error=is_error)


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image(data: object = PICTURE, kind: object = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": kind}


def blob(kind: str, uri: str = "file:///a/report.pdf") -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "blob": BYTES}}


def test_text_alone_is_text() -> None:
    assert output_of(outcome(said("one"), said("two"))) == "one\ntwo"


def test_a_picture_comes_as_a_part_beside_the_text() -> None:
    shown = InputImage(image_url=f"data:image/png;base64,{PICTURE}")
    assert output_of(outcome(said("look"), image())) == (InputText(text="look"), shown)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (image(kind="IMAGE/PNG; charset=x"), InputImage(image_url=f"data:image/png;base64,{PICTURE}")),
        (image(data=f"{PICTURE[:4]}\n{PICTURE[4:]}"), InputImage(image_url=f"data:image/png;base64,{PICTURE}")),
        (blob("application/pdf"), InputFile(filename="report.pdf", file_data=f"data:application/pdf;base64,{BYTES}")),
        (blob("image/webp"), InputImage(image_url=f"data:image/webp;base64,{BYTES}")),
    ],
)
def test_what_models_take_comes_as_a_part(content: dict[str, Any], expected: ResultPart) -> None:
    assert output_of(outcome(content)) == (expected,)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (image(kind="image/svg+xml"), "[image (image/svg+xml), 15 bytes: left out]"),
        (image(kind=None), "[image, 15 bytes: left out]"),
        (image(data="not base64!"), "[image that cannot be read: left out]"),
        (image(data="abc"), "[image that cannot be read: left out]"),
        (image(data="a==="), "[image that cannot be read: left out]"),
        (image(data="===="), "[image that cannot be read: left out]"),
        (image(data="ab=c"), "[image that cannot be read: left out]"),
        (image(data="ääää"), "[image that cannot be read: left out]"),
        (image(data=""), "[image that cannot be read: left out]"),
        (image(data=17), "[image that cannot be read: left out]"),
        (image(data="\udcff" * 4), "[image that cannot be read: left out]"),
        ({"type": "audio", "data": BYTES, "mimeType": "audio/wav"}, "[audio (audio/wav): left out]"),
        (blob("application/zip", "file:///a.zip"), "[resource file:///a.zip (application/zip), 10 bytes: left out]"),
        ({"type": "resource", "resource": {"uri": "x", "text": "inside"}}, "inside"),
        ({"type": "resource", "resource": None}, "[a resource that is none: left out]"),
        ({"type": "text", "text": 3}, "[text that is none: left out]"),
        ({"type": "video\x1b[2J"}, "[content of the type 'video [2J': left out]"),
        ({}, "[content of the type '': left out]"),
        (
            {"type": "resource_link", "uri": "file:///b", "name": "b", "mimeType": "text/csv", "description": "Sales"},
            "[resource 'b' (text/csv) at file:///b]: Sales",
        ),
        ({"type": "resource_link", "uri": "file:///b", "name": "b"}, "[resource 'b' at file:///b]"),
    ],
)
def test_what_models_do_not_take_is_named(content: object, expected: str) -> None:
    assert output_of(outcome(content)) == expected


def test_structured_content_counts_where_there_is_no_text() -> None:
    assert output_of(outcome(structured={"sum": 3})) == '{"sum":3}'
    assert output_of(outcome(said("three"), structured={"sum": 3})) == "three"
    both = output_of(outcome(image(), structured=[1]))
    assert isinstance(both, tuple)
    assert both[0] == InputText(text="[1]")


def test_no_content_at_all_is_an_empty_text() -> None:
    assert output_of(outcome()) == ""


@pytest.mark.parametrize("content", [(), (said(" "),)])
def test_an_error_always_says_something(content: tuple[Any, ...]) -> None:
    output = output_of(outcome(*content, is_error=True))
    assert isinstance(output, str)
    assert output.startswith("The tool failed, and did not say why.")


def test_an_error_that_says_why_is_left_as_it_is() -> None:
    assert output_of(outcome(said("no such city"), is_error=True)) == "no such city"


def test_parts_beyond_number_are_left_out() -> None:
    output = output_of(outcome(*[said("x")] * 1000))
    assert isinstance(output, str)
    assert output.endswith("x\n[744 more parts left out]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["text", "image", "audio", "resource", "resource_link", "else"])
CONTENT = st.fixed_dictionaries(
    {"type": TYPES | JSON},
    optional={"text": JSON, "data": JSON, "mimeType": JSON, "uri": JSON, "name": JSON, "resource": JSON},
)


@STEADY
@given(st.lists(CONTENT | JSON, max_size=4), JSON, st.booleans())
def test_whatever_a_server_sends_is_an_output_that_can_be_sent(
    content: list[Any], structured: Any, fails: bool
) -> None:
    sent = {"content": content, "structuredContent": structured, "isError": fails}
    output = output_of(call_result(sent))
    assert isinstance(output, str) or all(isinstance(part, ResultPart) for part in output)
    assert encode(output)
