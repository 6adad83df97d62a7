"""The codes that are sent, read off the source: each is a label of the metrics, and each stands in the reference."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from antwort import errors
from antwort.telemetry.labels import CODES

SOURCE = Path(errors.__file__).parent
KINDS = {
    name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.AntwortError)
}
TREES = {
    path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py") if path.parent.name != "testing"
}
CONSTANTS = {
    target.id: node.value.value
    for tree in TREES.values()
    for node in tree.body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    for target in node.targets
    if isinstance(target, ast.Name)
}


def sent() -> set[str]:
    """Whatever a program may raise itself is sent, too."""
    found = {errors.NotAuthenticated.code, errors.NotPermitted.code}
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id in KINDS:
                found.add(KINDS[node.exc.id].code)
            elif isinstance(node, ast.Call):
                found.update(of_call(node, tree))
    return found


def of_call(call: ast.Call, tree: ast.Module) -> Iterator[str]:
    """The codes of the error that a call makes, if it makes one."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if isinstance(call.func, ast.Name) and call.func.id in KINDS:
        yield from values(given[0], tree) if given else [KINDS[call.func.id].code]
        if given and any(isinstance(node, ast.Name) and node.id == "code" for node in given):
            yield KINDS[call.func.id].code  # the name is None at times
    elif given and isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
        yield from values(given[0], tree)


def values(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    """What is passed as a code: as text, by the name of a constant or a variable, or as the first of a pair."""
    match node:
        case ast.Constant(value=str(code)):
            yield code
        case ast.Name(id=name) if name in CONSTANTS:
            yield CONSTANTS[name]
        case ast.Name(id=name):
            yield from assigned(name, tree)
        case ast.Subscript():
            yield from firsts(tree)
        case ast.Attribute(attr="code") | ast.Constant(value=None):
            return
        case _:
            pytest.fail(f"cannot tell the code in line {node.lineno}: {ast.unparse(node)}")


def assigned(name: str, tree: ast.Module) -> Iterator[str]:
    """In functions: the attribute of a class is another thing."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            choices = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            yield from (
                each.value for each in choices if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def firsts(tree: ast.Module) -> Iterator[str]:
    """Of every pair of a code and a sentence that is returned."""
    for node in ast.walk(tree):
        match node:
            case ast.Return(value=ast.Tuple(elts=[ast.Constant(value=str(code)), ast.JoinedStr()])):
                yield code


def test_codes_are_found_however_they_are_passed() -> None:
    by_text, by_constant, as_pair, by_class, by_variable = (
        *("model_not_allowed", "backend_circuit_open", "unknown_call_id"),
        *("body_too_large", "previous_response_not_found"),
    )
    assert {by_text, by_constant, as_pair, by_class, by_variable} <= sent()
    assert not {"conflict", "invalid_request"} & sent()


def test_every_code_that_is_sent_is_a_label() -> None:
    assert sent() - CODES == set()


def test_the_reference_lists_the_codes_that_are_sent_and_no_others() -> None:
    assert set(reference().MEANING) == sent()


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", SOURCE.parents[1] / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
