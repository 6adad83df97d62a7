from __future__ import annotations

import pytest

from antwort.tools.docstring import Documented, read_docstring


def documented(text: str | None) -> Documented:
    def function() -> None: ...

    function.__doc__ = text
    return read_docstring(function)


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (None, None),
        ("", None),
        ("One line.", "One line."),
        ("\n    Two\n    lines.\n\n    Another paragraph.\n", "Two lines."),
        ("A summary.\nArgs:\n    x: it", "A summary."),
        ("A summary.\n:param x: it", "A summary."),
        ("Args:\n    x: it", None),
        (":param x: it", None),
        ("Returns:\n    nothing", None),
        ("Note: this is a sentence.", "Note: this is a sentence."),
    ],
)
def test_the_summary_is_the_first_paragraph_on_one_line(text: str | None, summary: str | None) -> None:
    assert documented(text).summary == summary


@pytest.mark.parametrize("heading", ["Args:", "Arguments:", "Parameters:"])
def test_google_style_describes_parameters_under_a_heading(heading: str) -> None:
    text = f"""Sum.

    {heading}
        first: The first.
        second (int, optional): The second: it has
            a colon, and a second line.

        third (Callable[[int], str]):
            On a line of its own.
        fourth:

    Raises:
        ValueError: never
    """
    assert documented(text).parameters == {
        "first": "The first.",
        "second": "The second: it has a colon, and a second line.",
        "third": "On a line of its own.",
    }


def test_a_line_in_google_style_that_belongs_to_no_parameter_is_passed_over() -> None:
    assert documented("Sum.\n\nArgs:\n    no name here\n    x: it\n    more words\n").parameters == {"x": "it"}


def test_sphinx_style_describes_parameters_in_fields() -> None:
    text = """Sum.

    :param first: The first,
        with a second line.
    :param int second: The second.
    :type second: int

        not a part of it
    :param third:
    :returns: nothing
    """
    assert documented(text).parameters == {"first": "The first, with a second line.", "second": "The second."}
