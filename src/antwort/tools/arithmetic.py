"""Parse and evaluate arithmetic expressions, without running any of them as Python. Pure.

Numbers, `+ - * / // % ** ^`, parentheses, percentages (`15% of 80`), a few functions and constants. What an expression
may take is bounded before it is evaluated, so that no expression takes long.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn, TypeAlias

Number: TypeAlias = int | float

LONGEST = 1000
"""Characters of an expression."""
DEEPEST = 40
"""Parentheses, signs and powers within each other."""
LARGEST = 4096
"""Bits of a whole number."""
_MOST_FACTORS = 500
_MOST_DIGITS = 100


class CannotCalculate(ValueError):
    """The expression has no value. The message says why."""


def calculate(expression: str) -> Number:
    """Return the value of an expression, exact where it is whole. Raises `CannotCalculate`."""
    if len(expression) > LONGEST:
        raise CannotCalculate(f"The expression is longer than {LONGEST} characters.")
    try:
        return _Parser(_tokens(_plain(expression))).value()
    except ZeroDivisionError:
        raise CannotCalculate("The expression divides by zero.") from None
    except OverflowError:
        raise CannotCalculate(_TOO_LARGE) from None


def shown(value: Number) -> str:
    """Format a value without the noise of binary fractions."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.15g}"


_TOO_LARGE = "The result is too large."
_NOT_REAL = "The expression has no real value."


# ---- tokens ----


class _Token(NamedTuple):
    kind: str
    """`number`, `name`, the operator itself, or `end`."""
    text: str
    at: int


_TOKEN = re.compile(
    r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),]))"
)
_CALL = re.compile(r"[A-Za-z_]\w*\s*\(")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_TIMES = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(.])")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "\u2013": "-", "\u03c0": "pi"})
"""Typographic signs: times, dot, division, minus, dash and pi."""


def _plain(expression: str) -> str:
    """Normalize signs. A comma groups digits where it does not separate arguments."""
    text = _TIMES.sub("*", expression.translate(_SIGNS)).rstrip("=? \t\r\n").strip()
    return text if _CALL.search(text) else _GROUPED.sub(lambda found: found[0].replace(",", ""), text)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            sign = text[at:].lstrip()[0]
            raise CannotCalculate(f"{sign!r} means nothing in an expression.")
        number, name, sign = found.groups()
        tokens.append(_Token("number" if number else "name" if name else sign, found[0].strip(), found.start()))
        at = found.end()
    return [*tokens, _Token("end", "", at)]


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


class _Operator(NamedTuple):
    binding: int
    """Operators with a higher one are applied first."""
    run: Callable[[Number, Number], Number]


_SIGN_BINDING = 3
_OPERATORS: Mapping[str, _Operator] = {
    "+": _Operator(1, operator.add),
    "-": _Operator(1, operator.sub),
    "*": _Operator(2, operator.mul),
    "of": _Operator(2, operator.mul),
    "/": _Operator(2, operator.truediv),
    "//": _Operator(2, operator.floordiv),
    "%": _Operator(2, operator.mod),
    "**": _Operator(4, _power),
    "^": _Operator(4, _power),
}


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > _MOST_DIGITS:
        raise CannotCalculate(f"round takes a whole number of digits, at most {_MOST_DIGITS}.")
    return round(value, digits) if digits else round(value)


def _factorial(value: Number) -> Number:
    if value != int(value) or not 0 <= value <= _MOST_FACTORS:
        raise CannotCalculate(f"factorial takes a whole number from 0 to {_MOST_FACTORS}.")
    return math.factorial(int(value))


def _mean(*values: Number) -> Number:
    return sum(values) / len(values)


class _Function(NamedTuple):
    run: Callable[..., Number]
    least: int = 1
    most: int = 1


_ANY = LONGEST
FUNCTIONS: Mapping[str, _Function] = {
    "sqrt": _Function(math.sqrt),
    "cbrt": _Function(math.cbrt),
    "exp": _Function(math.exp),
    "ln": _Function(math.log),
    "log": _Function(math.log, 1, 2),
    "log2": _Function(math.log2),
    "log10": _Function(math.log10),
    "sin": _Function(math.sin),
    "cos": _Function(math.cos),
    "tan": _Function(math.tan),
    "asin": _Function(math.asin),
    "acos": _Function(math.acos),
    "atan": _Function(math.atan),
    "degrees": _Function(math.degrees),
    "radians": _Function(math.radians),
    "abs": _Function(abs),
    "round": _Function(_round, 1, 2),
    "floor": _Function(math.floor),
    "ceil": _Function(math.ceil),
    "factorial": _Function(_factorial),
    "pow": _Function(_power, 2, 2),
    "min": _Function(lambda *values: min(values), 1, _ANY),
    "max": _Function(lambda *values: max(values), 1, _ANY),
    "sum": _Function(lambda *values: sum(values), 1, _ANY),
    "mean": _Function(_mean, 1, _ANY),
}
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


# ---- parsing ----


class _Parser:
    """An operator-precedence parser that evaluates as it goes."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def value(self) -> Number:
        value = self._evaluate(0, 0)
        if self._next.kind != "end":
            self._refuse()
        return value

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _evaluate(self, least: int, depth: int) -> Number:
        """Evaluate an operand and the operators after it that bind more than `least`. `depth` counts parentheses, signs
        and powers around it.
        """
        if depth > DEEPEST:
            raise CannotCalculate(f"The expression has more than {DEEPEST} levels.")
        value = self._operand(depth)
        while (sign := _OPERATORS.get(self._next.text)) is not None and sign.binding > least:
            self._at += 1
            if sign.run is _power:  # from right to left
                right = self._evaluate(_SIGN_BINDING, depth + 1)
            else:
                right = self._evaluate(sign.binding, depth)
            value = _bounded(sign.run(value, right))
        return value

    def _operand(self, depth: int) -> Number:
        token = self._next
        if token.kind not in ("number", "name", "(", "+", "-"):
            self._refuse()
        self._at += 1
        match token.kind:
            case "+" | "-":
                value = self._evaluate(_SIGN_BINDING, depth + 1)
                return -value if token.kind == "-" else value
            case "number":
                value = _bounded(int(token.text) if token.text.isdigit() else float(token.text))
            case "(":
                value = self._evaluate(0, depth + 1)
                self._close()
            case _:
                value = self._named(token.text.lower(), depth)
        if self._next.kind == "%" and not self._is_operand(self._tokens[self._at + 1]):
            self._at += 1
            return value / 100
        return value

    def _is_operand(self, token: _Token) -> bool:
        """Return whether an operand follows a `%`. If not, it means a hundredth, also before a sign: `50% - 3`."""
        return token.kind in ("number", "(") or (token.kind == "name" and token.text != "of")

    def _named(self, name: str, depth: int) -> Number:
        function = FUNCTIONS.get(name)
        if self._next.kind == "(" and function is not None:
            self._at += 1
            return self._called(name, function, depth + 1)
        if name in CONSTANTS:
            return CONSTANTS[name]
        known = f"there are {', '.join(FUNCTIONS)}, and {', '.join(CONSTANTS)}"
        what = f"There is no {name!r}; {known}" if function is None else f"{name} is a function: write {name}(…)"
        raise CannotCalculate(f"{what}.")

    def _called(self, name: str, function: _Function, depth: int) -> Number:
        arguments = [] if self._next.kind == ")" else [self._evaluate(0, depth)]
        while arguments and self._next.kind == ",":
            self._at += 1
            arguments.append(self._evaluate(0, depth))
        self._close()
        if not function.least <= len(arguments) <= function.most:
            raise CannotCalculate(f"{name} cannot be given {len(arguments)} arguments.")
        try:
            return _bounded(function.run(*arguments))
        except CannotCalculate:
            raise
        except ValueError:
            raise CannotCalculate(_NOT_REAL) from None

    def _close(self) -> None:
        if self._next.kind != ")":
            self._refuse()
        self._at += 1

    def _refuse(self) -> NoReturn:
        token = self._next
        if token.kind == "end":
            raise CannotCalculate("The expression ends too early." if self._at else "The expression is empty.")
        hint = "; write * to multiply" if token.kind in ("number", "name", "(") else ""
        before = "".join(token.text for token in self._tokens[max(self._at - 4, 0) : self._at])
        raise CannotCalculate(f"{token.text!r} cannot stand where it does, after {before!r}{hint}.")
