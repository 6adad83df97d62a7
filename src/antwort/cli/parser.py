"""From the table of commands to what a command line asks for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from antwort.cli.commands import COMMANDS, Command
from antwort.config.flags import Flag
from antwort.suggestions import did_you_mean, nearest
from antwort.version import __version__

_DESCRIPTION = "The OpenAI Responses API in front of any Chat Completions backend, with an agentic tool loop."
_EXAMPLES = """
  antwort serve --demo-tools
      the demo model, after `antwort model pull`
  antwort serve --backend http://localhost:8000/v1
      a model server of yours
  antwort chat
      talk to it in the terminal

`antwort COMMAND --help` says more about a command."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage of a server with many flags would hide it."""

    def error(self, message: str) -> NoReturn:
        from antwort.config.repeating import printable

        print(f"{self.prog}: {printable(message)}\nTry `{self.prog} --help`.", file=sys.stderr)
        raise SystemExit(2)


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def parse(arguments: Sequence[str]) -> tuple[Command, Mapping[str, object]]:
    """The command that is asked for and what its flags say. Ends the program where there is none."""
    prog, choice, rest = "antwort", COMMANDS, list(arguments)
    if rest[:1] == ["help"]:
        rest = [*rest[1:], "--help"]
    elif rest == ["version"]:
        rest = ["--version"]
    while True:
        if not rest or rest[0].startswith("-"):
            _list_commands(prog, choice, rest)
        command = _chosen(prog, choice, rest.pop(0))
        prog = f"{prog} {command.name}"
        if not command.commands:
            return command, _read_flags(prog, command, rest)
        choice = command.commands


def _list_commands(prog: str, choice: Sequence[Command], rest: Sequence[str]) -> NoReturn:
    """Help, the version, or what is wrong."""
    parser = _command_list(prog, choice)
    _, unknown = parser.parse_known_args(rest)
    if unknown:
        parser.error(_unknown(unknown, ["--help", "--version"]))
    parser.print_help(sys.stderr)
    raise SystemExit(2)


def _command_list(prog: str, choice: Sequence[Command]) -> Parser:
    is_top = choice is COMMANDS
    about = next((command for command in COMMANDS if command.commands is choice), None)
    widest = max(len(command.name) for command in choice)
    lines = "\n".join(f"  {command.name:{widest}}  {command.help}" for command in choice)
    examples = _EXAMPLES if about is None else about.examples
    parser = Parser(
        prog=prog,
        usage=f"{prog} COMMAND …",
        description=_DESCRIPTION if about is None else about.description,
        epilog=f"commands:\n{lines}\n\nexamples:{examples}",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    _add_version(parser, None if is_top else argparse.SUPPRESS)
    return parser


def _add_version(parser: Parser, help: str | None = argparse.SUPPRESS) -> None:  # noqa: A002 - as it is called there
    """It is answered wherever it stands, and named once."""
    about = "show the version and exit" if help is None else help
    parser.add_argument("--version", action="version", version=f"antwort {__version__}", help=about)


def _chosen(prog: str, choice: Sequence[Command], word: str) -> Command:
    for command in choice:
        if command.name == word:
            return command
    names = [command.name for command in choice]
    hint = did_you_mean(nearest(word, names)) or f"the commands are {', '.join(names)}"
    return Parser(prog=prog).error(f"there is no command {word!r}; {hint}")


def _read_flags(prog: str, command: Command, rest: Sequence[str]) -> Mapping[str, object]:
    parser = command_parser(prog, command)
    # Words that may be many stand between the flags as well, and are still one list.
    is_open = any(argument.is_repeatable for argument in command.arguments)
    chosen, unknown = parser.parse_known_intermixed_args(rest) if is_open else parser.parse_known_args(rest)
    if unknown:
        parser.error(_unknown(unknown, ["--help", *(flag.name for flag in command.flags)]))
    given: dict[str, object] = vars(chosen)
    return given


def command_parser(prog: str, command: Command) -> Parser:
    parser = Parser(
        prog=prog,
        usage=f"{prog} {' '.join([*(_usage(argument) for argument in command.arguments), '[options]'])}",
        description=command.description or f"Print {command.help}.",
        epilog=f"examples:{command.examples}" if command.examples else None,
        formatter_class=_Help,
        allow_abbrev=False,  # what is short for one flag today may be short for two tomorrow
        argument_default=argparse.SUPPRESS,  # defaults are said once, by the settings
    )
    _add_version(parser)
    for argument in command.arguments:
        parser.add_argument(
            argument.name,
            metavar=_word(argument),
            choices=argument.choices or None,
            help=argument.help,
            nargs="+" if argument.is_repeatable else "?" if argument.is_optional else None,
        )
    for group in dict.fromkeys(flag.group for flag in command.flags):
        _add(parser, group, [flag for flag in command.flags if flag.group == group])
    return parser


def _add(parser: Parser, title: str, flags: Sequence[Flag]) -> None:
    group = parser.add_argument_group(title) if title != "options" else parser
    partners = {flag.excludes for flag in flags if flag.excludes}
    exclusive = group.add_mutually_exclusive_group()
    for flag in flags:
        place = exclusive if flag.excludes or flag.name in partners else group
        if not flag.metavar:
            place.add_argument(flag.name, action="store_true", help=flag.help)
        else:
            action = "append" if flag.is_repeatable else "store"
            place.add_argument(flag.name, metavar=_word(flag), action=action, help=flag.help)


def _word(flag: Flag) -> str:
    return f"{{{','.join(flag.choices)}}}" if flag.choices else flag.metavar


def _usage(argument: Flag) -> str:
    return f"[{_word(argument)}]" if argument.is_optional else _word(argument)


def _unknown(words: Sequence[str], known: Sequence[str]) -> str:
    word = words[0].partition("=")[0]
    if not word.startswith("-"):
        return f"there is no use for {word!r}"
    hint = did_you_mean(nearest(word, known))
    return f"there is no option {word}{hint and f'; {hint}'}"
