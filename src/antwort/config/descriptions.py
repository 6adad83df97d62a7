"""What the settings say about themselves: the text under each field, read from the source."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache


def description(owner: type, field: str) -> str:
    """Empty where there is none."""
    return _of_module(owner.__module__).get((owner.__name__, field), "")


@cache
def _of_module(name: str) -> Mapping[tuple[str, str], str]:
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {(node.name, field): text for node in classes for field, text in _of_class(node)}


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, inspect.cleandoc(text)
