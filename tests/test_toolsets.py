"""The tools that an operator offers, from modules, files and installed packages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from antwort.config.problems import CannotStart
from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.local import LocalExecutor
from antwort.tools.toolset import Toolset, ToolsetInfo
from antwort.toolsets import LoadedTools, load_tools

Write = Callable[[str, str], Path]

TOOLSET = """
    from antwort import Toolset, tool

    calc = Toolset("calc")

    @calc.tool
    def add(a: int, b: int) -> int:
        return a + b
"""
FUNCTIONS = """
    from antwort import tool

    @tool
    def search(query: str) -> str:
        return query

    @tool(name="look")
    def look_up(key: str) -> str:
        return key

    def not_a_tool() -> None: ...
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file below the current folder. What is imported meanwhile is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def from_modules(*names: str) -> LoadedTools:
    return load_tools(names, entry_points=False)


def from_packages() -> LoadedTools:
    return load_tools((), entry_points=True)


def problem(*names: str) -> str:
    with pytest.raises(CannotStart) as caught:
        load_tools(names, entry_points=not names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- modules ----


def test_the_toolsets_of_a_module_in_the_current_folder_are_offered(write: Write) -> None:
    write("mypkg/mytools.py", TOOLSET)
    loaded = from_modules("mypkg.mytools")
    assert loaded.toolsets == (ToolsetInfo("calc", ("add",), "mypkg.mytools"),)
    (executor,) = loaded.executors
    assert isinstance(executor, Toolset)


def test_bare_functions_are_a_toolset_named_after_the_module_and_answer_declared_functions(write: Write) -> None:
    write("finders.py", FUNCTIONS)
    loaded = from_modules("finders")
    assert loaded.toolsets == (ToolsetInfo("finders", ("search", "look"), "finders"),)
    toolset, local = loaded.executors
    assert isinstance(toolset, Toolset)
    assert isinstance(local, LocalExecutor)
    declared = ToolDefinition(name="search", kind=ToolKind.FUNCTION)
    assert (toolset.can_execute(declared), local.can_execute(declared)) == (False, True)


def test_a_function_that_is_in_a_toolset_is_no_bare_one(write: Write) -> None:
    write("both.py", FUNCTIONS + '\n    from antwort import Toolset\n    finders = Toolset("finders", search)\n')
    loaded = from_modules("both")
    assert [(info.label, info.tools) for info in loaded.toolsets] == [("finders", ("search",)), ("both", ("look",))]


def test_functions_of_other_modules_are_offered_by_the_one_that_imports_them(write: Write) -> None:
    write("lib.py", "def lookup(q: str) -> str:\n    return q\n")
    write("mypkg/finders.py", FUNCTIONS)
    write("mypkg/__init__.py", "from mypkg.finders import search\n")
    write("made.py", "from antwort import tool\nimport lib\nlookup = tool(lib.lookup)\n")
    assert from_modules("mypkg").toolsets == (ToolsetInfo("mypkg", ("search",), "mypkg"),)
    assert from_modules("made").toolsets == (ToolsetInfo("made", ("lookup",), "made"),)


def test_a_module_that_says_what_it_offers_offers_nothing_else(write: Write) -> None:
    write("finders.py", FUNCTIONS + "\n    __all__ = ['search']\n")
    assert from_modules("finders").toolsets == (ToolsetInfo("finders", ("search",), "finders"),)


def test_a_function_of_a_toolset_is_no_bare_one_wherever_the_toolset_is(write: Write) -> None:
    write("shop.py", TOOLSET)
    write("uses.py", "from shop import add\n" + dedent(FUNCTIONS))
    write("hides.py", FUNCTIONS + "\n    from antwort import Toolset\n    sets = [Toolset('hidden', search)]\n")
    assert from_modules("uses").toolsets == (ToolsetInfo("uses", ("search", "look"), "uses"),)
    assert from_modules("hides").toolsets == (ToolsetInfo("hides", ("look",), "hides"),)


def test_bare_functions_join_the_toolset_that_is_called_like_their_module(write: Write) -> None:
    write("calc.py", TOOLSET + FUNCTIONS)
    for _ in range(2):  # what was joined is the server's, not the module's
        loaded = from_modules("calc")
        assert loaded.toolsets == (ToolsetInfo("calc", ("add", "search", "look"), "calc"),)
        toolset, local = loaded.executors
        assert toolset.can_execute(ToolDefinition(name="look", kind=ToolKind.MCP, server_label="calc"))
        assert local.can_execute(ToolDefinition(name="look", kind=ToolKind.FUNCTION))
        assert not local.can_execute(ToolDefinition(name="add", kind=ToolKind.FUNCTION))


def test_a_bare_function_cannot_join_where_there_is_one_of_its_name(write: Write) -> None:
    write("calc.py", TOOLSET + "\n    @tool(name='add')\n    def more(a: int) -> int:\n        return a\n")
    assert problem("calc") == (
        "The functions of calc cannot be offered together: There are two tools named 'add'; "
        "give one of them another with @tool(name=…)."
    )


def test_objects_that_do_not_say_what_they_are_are_left_out(write: Write) -> None:
    """As the proxies of web frameworks are, outside of a request."""
    write(
        "lazy.py",
        FUNCTIONS
        + """
    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("Working outside of application context.")

    class Unkind:
        kind = property(lambda self: 1 / 0)
        def can_execute(self, tool): ...
        async def execute(self, call, context): ...

    current_app, broken = Proxy(), Unkind()
    """,
    )
    assert from_modules("lazy").toolsets == (ToolsetInfo("lazy", ("search", "look"), "lazy"),)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["add", "missing"], "its __all__ names 'missing', which it does not have"),
        ("add", "its __all__ is not a list of names"),
        ([1, None], "its __all__ is not a list of names"),
    ],
    ids=str,
)
def test_a_module_whose_list_of_names_is_wrong_is_one_sentence(write: Write, names: object, said: str) -> None:
    write("lie.py", TOOLSET + f"\n    __all__ = {names!r}\n")
    assert problem("lie") == f"The tools module 'lie' cannot be used: {said}; mend it."


def test_what_begins_with_an_underscore_is_kept_back(write: Write) -> None:
    write("mine.py", TOOLSET + "\n    _secret = Toolset('secret')\n")
    assert [info.label for info in from_modules("mine").toolsets] == ["calc"]


def test_executors_of_a_module_are_taken_as_they_are_and_their_classes_are_not(write: Write) -> None:
    write(
        "custom.py",
        """
        from unittest.mock import call  # it says that it has every attribute
        from antwort import LocalExecutor, ToolExecutor, Toolset

        def shout(text: str) -> str:
            return text.upper()

        executor = LocalExecutor(shout)
        same = executor
        """,
    )
    loaded = from_modules("custom")
    assert [type(each) for each in loaded.executors] == [LocalExecutor]
    assert loaded.toolsets == ()


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_file_can_be_named_by_its_path_and_may_be_called_like_a_module(write: Write, is_absolute: bool) -> None:
    path = write("some/where/json.py", "from beside import ANSWER\n" + dedent(FUNCTIONS))
    write("some/where/beside.py", "ANSWER = 42\n")
    loaded = from_modules(str(path) if is_absolute else "some/where/json.py")
    assert [(info.label, info.tools) for info in loaded.toolsets] == [("json", ("search", "look"))]
    assert "loads" in vars(sys.modules["json"])


def test_a_module_named_twice_counts_once(write: Write) -> None:
    write("finders.py", FUNCTIONS)
    write("again.py", "import finders\nfrom antwort import Toolset\ncalc = Toolset('calc')\nother = calc\n")
    assert len(from_modules("finders", "finders", "again").executors) == 3


def test_two_modules_with_a_function_of_one_name_are_told_apart_by_label_and_noted(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write("one.py", FUNCTIONS)
    write("two.py", FUNCTIONS.replace("look", "see"))
    loaded = from_modules("one", "two")
    assert [info.label for info in loaded.toolsets] == ["one", "two"]
    assert [record.getMessage() for record in caplog.records] == [
        "several modules have a function 'search': the first answers for one that a request declares"
    ]


def test_nothing_asked_for_is_nothing_loaded() -> None:
    assert from_modules() == LoadedTools((), ())


# ---- what can be wrong with them ----


def test_a_module_that_is_not_there(write: Write) -> None:
    assert problem("mypkg.nothing") == (
        "There is no tools module 'mypkg.nothing'; give the name of a module that is installed or lies in the current "
        "folder, or the path of a .py file."
    )
    assert "no file 'some/where.py'" in problem("some/where.py")


def test_a_module_that_needs_one_that_is_not_there_is_broken_and_not_missing(write: Write) -> None:
    write("needy.py", "import a_module_that_nobody_has\n")
    assert problem("needy") == (
        "The tools module 'needy' cannot be imported: ModuleNotFoundError: No module named "
        "'a_module_that_nobody_has'; mend it, or see the whole traceback with --log-level debug."
    )


@pytest.mark.parametrize("how", ["by name", "by path"])
@pytest.mark.parametrize("fault", ["1 / 0", "import sys; sys.exit(3)", "def broken(:"])
def test_a_module_that_cannot_be_imported_is_one_sentence_and_a_traceback_for_those_who_ask(
    write: Write, caplog: pytest.LogCaptureFixture, fault: str, how: str
) -> None:
    write("broken.py", fault)
    name = "broken" if how == "by name" else "./broken.py"
    with caplog.at_level(logging.DEBUG, "antwort.tools"):
        assert problem(name).startswith(f"The tools module {name!r} cannot be imported: ")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert not {"broken", "antwort_tools_broken"} & sys.modules.keys()


def test_a_module_with_nothing_in_it(write: Write) -> None:
    write("empty.py", "def plain() -> None: ...\n")
    assert problem("empty") == (
        "The tools module 'empty' offers nothing: it needs @tool functions or a Toolset, by public names of its own."
    )


def test_two_toolsets_of_one_name(write: Write) -> None:
    write("one.py", TOOLSET)
    write("two.py", TOOLSET)
    assert problem("one", "two") == (
        "There are two toolsets named 'calc', from one and two; give one of them another name."
    )


@pytest.mark.parametrize("name", ["a b", "antwort"])
def test_a_toolset_by_a_name_that_no_label_can_have(write: Write, name: str) -> None:
    write("named.py", f"from antwort import Toolset\nbad = Toolset({name!r})\n")
    assert f"'named' cannot be imported: {name!r} cannot be the name of a toolset" in problem("named")
    write(f"{name}.py", FUNCTIONS)
    said = problem(f"./{name}.py")
    assert said.startswith(f"The functions of ./{name}.py cannot be offered together: {name!r} cannot be the name")
    assert said.endswith("; put them into a Toolset with a name of its own.")


def test_two_bare_functions_of_one_name(write: Write) -> None:
    write("twins.py", FUNCTIONS + "\n    @tool(name='look')\n    def other() -> None: ...\n")
    assert problem("twins") == (
        "The functions of twins cannot be offered together: There are two tools named 'look'; "
        "give one of them another with @tool(name=…)."
    )


# ---- installed packages ----


def install(write: Write, monkeypatch: pytest.MonkeyPatch, entry: str, **modules: str) -> None:
    """A distribution as pip leaves it behind: its modules, and the folder that says what it registers."""
    for name, text in modules.items():
        write(f"site/{name}.py", text)
    write("site/acme_tools-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    write("site/acme_tools-1.0.dist-info/entry_points.txt", f"[antwort.tools]\nacme = {entry}\n")
    monkeypatch.syspath_prepend(str(Path.cwd() / "site"))


@pytest.mark.parametrize(
    ("entry", "labels"),
    [
        ("acme:calc", ["calc"]),
        ("acme:several", ["calc", "more"]),
        ("acme", ["calc", "more"]),
        ("acme_functions", ["acme"]),
        ("acme_functions:search", ["acme"]),
    ],
    ids=["a toolset", "a list", "a module", "a module of functions", "a function"],
)
def test_an_installed_package_offers_what_it_registers(
    write: Write, monkeypatch: pytest.MonkeyPatch, entry: str, labels: list[str]
) -> None:
    text = TOOLSET + "\n    more = Toolset('more')\n    several = [calc, more]\n"
    install(write, monkeypatch, entry, acme=text, acme_functions=FUNCTIONS)
    loaded = from_packages()
    assert [info.label for info in loaded.toolsets] == labels
    assert {info.origin for info in loaded.toolsets} == {"the package acme-tools"}


def test_installed_packages_are_left_alone_where_that_is_set(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    install(write, monkeypatch, "acme:calc", acme="raise RuntimeError('imported')")
    assert from_modules() == LoadedTools((), ())


def test_a_toolset_that_is_installed_and_named_as_a_module_counts_once(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(write, monkeypatch, "acme:calc", acme=TOOLSET)
    loaded = load_tools(["acme"], entry_points=True)
    assert loaded.toolsets == (ToolsetInfo("calc", ("add",), "acme"),)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("acme:nothing", "The tools 'acme' of the package acme-tools cannot be loaded: AttributeError"),
        ("acme_missing", "The tools 'acme' of the package acme-tools cannot be loaded: ModuleNotFoundError"),
        ("acme:NUMBER", "The entry point 'acme' of the package acme-tools names no toolset"),
    ],
)
def test_a_broken_package_is_one_sentence_that_says_how_to_start_without_it(
    write: Write, monkeypatch: pytest.MonkeyPatch, entry: str, said: str
) -> None:
    install(write, monkeypatch, entry, acme=TOOLSET + "\n    NUMBER = 42\n")
    assert problem().startswith(said)
    assert problem().endswith("or set tools.entry_points to false to start without the tools of installed packages.")


# ---- the demo tools ----


def test_the_demo_tools_are_offered_when_they_are_asked_for() -> None:
    assert load_tools([], entry_points=False).toolsets == ()
    loaded = load_tools([], entry_points=False, demo=True)
    tools = ("current_time", "calculate", "convert_units")
    assert loaded.toolsets == (ToolsetInfo("demo", tools, "antwort itself"),)


def test_a_toolset_of_their_name_is_told_apart_before_the_start(write: Write) -> None:
    write("mine.py", TOOLSET.replace('"calc"', '"demo"'))
    with pytest.raises(CannotStart, match=r"There are two toolsets named 'demo', from .*mine.* and antwort itself"):
        load_tools(["mine"], entry_points=False, demo=True)
