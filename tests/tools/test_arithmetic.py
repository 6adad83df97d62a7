"""The calculator: it agrees with Python, and no expression takes long."""

from __future__ import annotations

import math
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antwort.tools.arithmetic import DEEPEST, FUNCTIONS, LONGEST, CannotCalculate, Number, calculate, shown


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 ** 3 ** 2", 512),
        ("2^10", 1024),
        ("-2 ** 2", -4),
        ("2 ** -1", 0.5),
        ("7 // 2", 3),
        ("7 % 3", 1),
        ("7 / 2", 3.5),
        ("--3", 3),
        (".5 + 1.", 1.5),
        ("1e3", 1000.0),
        ("007 * 010", 70),
        ("1\n+ 2", 3),
        ("2 * pi", math.tau),
        ("PI", math.pi),
        ("sqrt(16) + abs(-2)", 6.0),
        ("round(2.567, 2)", 2.57),
        ("round(2.567)", 3),
        ("log(8, 2)", 3.0),
        ("ln(e)", 1.0),
        ("max(1, 2, min(9, 8))", 8),
        ("min(7)", 7),
        ("max(3+4)", 7),
        ("mean(1, 2, 6)", 3.0),
        ("pow(2, 100)", 2**100),
        ("factorial(20)", math.factorial(20)),
        ("floor(-1.5) + ceil(1.2)", 0),
        ("12 = ", 12),
        ("1 ** 99999999999999999", 1),
    ],
)
def test_an_expression_has_its_value(expression: str, value: Number) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("15% of 80", 12),
        ("15 % of 80", 12),
        ("200 * 15%", 30),
        ("50% - 0.25", 0.25),
        ("(50%)", 0.5),
        ("2 ^ 50%", math.sqrt(2)),
        ("max(5%, 1%)", 0.05),
        ("10 % 4", 2),
        ("10 % (-4)", -2),
        ("1,250 * 2", 2500),
        ("1,234,567.5", 1234567.5),
        ("max(1,250)", 250),
        ("3 x 4", 12),
        ("3\u00d74 \u00f7 2", 6),
        ("5 \u2212 2", 3),
        ("2 * \u03c0", math.tau),
    ],
)
def test_what_people_write_on_paper_is_understood(expression: str, value: Number) -> None:
    assert calculate(expression) == pytest.approx(value)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "The expression is empty."),
        ("  ", "The expression is empty."),
        ("1 / 0", "The expression divides by zero."),
        ("1 % 0", "The expression divides by zero."),
        ("0 ** -1", "The expression divides by zero."),
        ("log(8, 1)", "The expression divides by zero."),
        ("(-8) ** 0.5", "The expression has no real value."),
        ("sqrt(-1)", "The expression has no real value."),
        ("sqrt", "sqrt is a function: write sqrt(…)."),
        ("sqrt()", "sqrt cannot be given 0 arguments."),
        ("sqrt(1, 2)", "sqrt cannot be given 2 arguments."),
        ("$5", "'$' means nothing in an expression."),
        ("1; 2", "';' means nothing in an expression."),
        ("'a' * 3", '"\'" means nothing in an expression.'),
        ("round(1.5, 0.5)", "round takes a whole number of digits, at most 100."),
        ("factorial(2.5)", "factorial takes a whole number from 0 to 500."),
    ],
)
def test_what_has_no_value_is_told(expression: str, problem: str) -> None:
    with pytest.raises(CannotCalculate) as caught:
        calculate(expression)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "expression",
    [
        "1 +",
        "(1 + 2",
        "1 + 2)",
        "2(3)",
        "2 pi",
        "1, 2",
        "1 if 2 else 3",
        "True",
        "1j",
        "pi.real",
        "max(*(1, 2))",
        "pi(2)",
    ],
)
def test_what_is_no_expression_is_refused_with_an_example_of_one(expression: str) -> None:
    with pytest.raises(CannotCalculate, match=r"The expression cannot be read; .* with \* to multiply"):
        calculate(expression)


@pytest.mark.parametrize("name", ["foo", "__import__", "open", "self", "x"])
def test_names_that_are_no_functions_are_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(CannotCalculate, match=f"There is no '{name}'; there are sqrt, .*, and pi, e, tau"):
        calculate(f"{name}(1)")


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9^9^9^9",
        "(-9)**9999999",
        "2**4096",
        "10**1000 * 10**1000",
        "1e308 * 10",
        "1e999",
        "1.5 ** 99999",
        "exp(1000)",
        "sqrt(10**1000)",
        "10**1000 / 3.5",
        "pow(10, pow(10, 10))",
        "factorial(501)",
        "factorial(factorial(20))",
        "round(12345, -1000000000)",
        "2**" * 200 + "2",
        "(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1),
        "-" * 900 + "1",
        "abs(" * 200 + "1" + ")" * 200,
        "9" * (LONGEST + 1),
        "1+" * 50_000 + "1",
        "9" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_what_would_take_long_is_refused_at_once(expression: str) -> None:
    began = process_time()
    with pytest.raises(CannotCalculate):
        calculate(expression)
    assert process_time() - began < 5  # worked out, it would take for ever


@pytest.mark.parametrize("expression", ["9" * LONGEST, "1+" * 499 + "1", "7**1000" + "*7" * 300, "factorial(500)"])
def test_what_is_large_and_within_bounds_is_worked_out(expression: str) -> None:
    assert isinstance(calculate(expression), int)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (4.0, "4"),
        (-0.0, "0"),
        (2**100, str(2**100)),
        (1e20, "1e+20"),
        (1 / 3, "0.333333333333333"),
        (7, "7"),
    ],
)
def test_a_value_is_shown_as_people_write_it(value: Number, text: str) -> None:
    assert shown(value) == text


# ---- like Python ----

numbers = st.one_of(
    st.integers(0, 999).map(str), st.decimals(0, 99, places=2).map(str), st.sampled_from(["1e3", "2.5e-2"])
)


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from([" + ", "-", "*", " / ", "//"])
    return st.one_of(
        st.tuples(inner, signs, inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(inner, st.integers(-3, 3)).map(lambda pair: f"({pair[0]}) ** {pair[1]}"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) % ({pair[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda call: f"{call[0]}({call[1]}, {call[2]})"),
        inner.map("abs({})".format),
    )


expressions = st.recursive(numbers, _joined, max_leaves=12)


@given(expressions)
@example("2 ** -1 - -3 // 2")
@example("-2 ** 2")
def test_it_agrees_with_python(expression: str) -> None:
    try:
        expected = eval(expression, {"__builtins__": {}, "min": min, "max": max, "abs": abs})
    except (ZeroDivisionError, OverflowError):
        expected = None
    if expected is None or not math.isfinite(expected) or len(expression) > LONGEST:
        with pytest.raises(CannotCalculate):
            calculate(expression)
        return
    value = calculate(expression)
    assert (type(value), value) == (type(expected), expected)


@given(st.text(alphabet="0123456789.,+-*/%^() eExofpi" + "".join(sorted({*"".join(FUNCTIONS)})), max_size=60))
def test_any_text_has_a_value_or_a_reason(text: str) -> None:
    assert _outcome(text).endswith("!")


def _outcome(text: str) -> str:
    """Anything that is raised but a reason fails the test."""
    try:
        value = calculate(text)
    except CannotCalculate as exc:
        return f"{exc}!"
    assert math.isfinite(value)
    return f"{shown(value)}!"
