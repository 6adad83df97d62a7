"""Evaluate arithmetic expressions, without running any of them as Python. Pure.

Numbers, `+ - * / // % ** ^`, parentheses, percentages (`15% of 80`), a few functions and constants. What an expression
may take is bounded before it is evaluated, so that no expression takes long.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, TypeAlias

Number: TypeAlias = int | float

LONGEST = 1000
"""Characters of an expression."""
DEEPEST = 40
"""Parentheses within each other."""
LARGEST = 4096
"""Bits of a whole number."""
_LONGEST_CHAIN = 600
"""Operations within each other: more than a sum of so many characters can have."""
_MOST_FACTORS = 500
_MOST_DIGITS = 100


class CannotCalculate(ValueError):
    """The expression has no value. The message says why."""


_TOO_LARGE = "The result is too large."
_TOO_DEEP = "The expression has too many levels."
_NOT_REAL = "The expression has no real value."
_UNREADABLE = "The expression cannot be read; write it such as (12 + 3.5) * 4, with * to multiply."


def calculate(expression: str) -> Number:
    """Return the value of an expression, exact where it is whole. Raises `CannotCalculate`."""
    if len(expression) > LONGEST:
        raise CannotCalculate(f"The expression is longer than {LONGEST} characters.")
    text = _as_python(expression)
    if not text:
        raise CannotCalculate("The expression is empty.")
    if (sign := _NO_SIGN.search(text)) is not None:
        raise CannotCalculate(f"{sign[0]!r} means nothing in an expression.")
    if max(accumulate((char == "(") - (char == ")") for char in text)) > DEEPEST:
        raise CannotCalculate(_TOO_DEEP)
    try:
        return _evaluate(ast.parse(text, mode="eval").body)
    except SyntaxError:
        raise CannotCalculate(_UNREADABLE) from None
    except (RecursionError, MemoryError):
        raise CannotCalculate(_TOO_DEEP) from None
    except ZeroDivisionError:
        raise CannotCalculate("The expression divides by zero.") from None
    except OverflowError:
        raise CannotCalculate(_TOO_LARGE) from None


def shown(value: Number) -> str:
    """Format a value without the noise of binary fractions."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.15g}"


# ---- what people write on paper, in Python's notation ----

_SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "\u2013": "-", "\u03c0": "pi"})
"""Typographic signs: times, dot, division, minus, dash and pi."""
_NO_SIGN = re.compile(r"[^\w\s.,+\-*/%()]", re.ASCII)
_CALL = re.compile(r"[A-Za-z_]\w*\s*\(")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_TIMES = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(.])")
_ZEROS = re.compile(r"(?<![\w.])0+(?=\d)")
_PERCENT = re.compile(r"%(?!\s*(?:[\d.(]|(?!of\b)[A-Za-z_]))")
"""A `%` that no operand follows, or a sign: it means a hundredth, as in `50% - 3`."""


def _as_python(expression: str) -> str:
    """Return the expression in Python's notation. A hundredth is an attribute there, which binds as tightly."""
    text = " ".join(expression.translate(_SIGNS).rstrip("=? \t\r\n").split())
    text = _TIMES.sub("*", text).replace("^", "**")
    if not _CALL.search(text):  # else a comma separates arguments
        text = _GROUPED.sub(lambda found: found[0].replace(",", ""), text)
    return re.sub(r"\bof\b", "*", _PERCENT.sub(" .percent", _ZEROS.sub("", text)))


# ---- operations, each within its bounds ----


def _bounded(value: Number) -> Number:
    is_large = value.bit_length() > LARGEST if isinstance(value, int) else not math.isfinite(value)
    if is_large:
        raise CannotCalculate(_TOO_LARGE)
    return value


def _power(base: Number, exponent: Number) -> Number:
    are_whole = isinstance(base, int) and isinstance(exponent, int)
    if are_whole and (int(base).bit_length() - 1) * exponent > LARGEST:
        raise CannotCalculate(_TOO_LARGE)
    result: Number | complex = base**exponent
    if isinstance(result, complex):
        raise CannotCalculate(_NOT_REAL)
    return result


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > _MOST_DIGITS:
        raise CannotCalculate(f"round takes a whole number of digits, at most {_MOST_DIGITS}.")
    return round(value, digits) if digits else round(value)


def _factorial(value: Number) -> Number:
    if value != int(value) or not 0 <= value <= _MOST_FACTORS:
        raise CannotCalculate(f"factorial takes a whole number from 0 to {_MOST_FACTORS}.")
    return math.factorial(int(value))


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    **{name: getattr(math, name) for name in ("sqrt", "cbrt", "exp", "log", "log2", "log10", "sin", "cos", "tan")},
    **{name: getattr(math, name) for name in ("asin", "acos", "atan", "degrees", "radians", "floor", "ceil")},
    "ln": math.log,
    "abs": abs,
    "round": _round,
    "factorial": _factorial,
    "pow": _power,
    "min": lambda first, *more: min((first, *more)),
    "max": lambda first, *more: max((first, *more)),
    "sum": lambda first, *more: sum(more, first),
    "mean": lambda first, *more: sum(more, first) / (1 + len(more)),
}
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


# ---- evaluation ----


def _evaluate(node: ast.expr, depth: int = 0) -> Number:
    if depth > _LONGEST_CHAIN:
        raise CannotCalculate(_TOO_DEEP)
    match node:
        case ast.Constant(value=value) if type(value) is int or type(value) is float:
            return _bounded(value)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _bounded(_OPERATORS[type(sign)](_evaluate(left, depth + 1), _evaluate(right, depth + 1)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate(operand, depth + 1)
        case ast.Attribute(value=operand, attr="percent"):
            return _evaluate(operand, depth + 1) / 100
        case ast.Name(id=name) if name.lower() in CONSTANTS:
            return CONSTANTS[name.lower()]
        case ast.Name(id=name) if name.lower() in FUNCTIONS:
            raise CannotCalculate(f"{name} is a function: write {name}(…).")
        case ast.Call(func=ast.Name(id=name), args=arguments) if (function := FUNCTIONS.get(name.lower())) is not None:
            values = [_evaluate(each, depth + 1) for each in arguments]
            try:
                return _bounded(function(*values))
            except TypeError:
                raise CannotCalculate(f"{name} cannot be given {len(values)} arguments.") from None
            except CannotCalculate:
                raise
            except ValueError:
                raise CannotCalculate(_NOT_REAL) from None
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) if name.lower() not in CONSTANTS:
            known = f"{', '.join(FUNCTIONS)}, and {', '.join(CONSTANTS)}"
            raise CannotCalculate(f"There is no {name!r}; there are {known}.")
        case _:
            raise CannotCalculate(_UNREADABLE)
