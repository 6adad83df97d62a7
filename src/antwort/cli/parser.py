"""Parse a command line by the table of commands. `argparse` parses the flags of one command at a time."""

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

`antwort help COMMAND` says more about a command."""


class Parser(argparse.ArgumentParser):
    """A parser that takes `--version` and reports errors in one line, without the usage of many flags."""

    def __init__(self, prog: str, usage: str, description: str = "", epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28),
            allow_abbrev=False,  # what is short for one flag today may be short for two tomorrow
            argument_default=argparse.SUPPRESS,  # the settings have the defaults
        )
        about = "show the version and exit" if prog == "antwort" else argparse.SUPPRESS
        self.add_argument("--version", action="version", version=f"antwort {__version__}", help=about)

    def error(self, message: str) -> NoReturn:
        from antwort.config.problems import printable

        print(f"{self.prog}: {printable(message)}\nTry `{self.prog} --help`.", file=sys.stderr)
        raise SystemExit(2)


def parse(arguments: Sequence[str]) -> tuple[Command, Mapping[str, object]]:
    """Return the command and the values of its flags. Prints help, the version or an error, and exits, otherwise."""
    words = list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif words == ["version"]:
        words = ["--version"]
    prog, group = "antwort", Command("antwort", "", commands=COMMANDS, description=_DESCRIPTION, examples=_EXAMPLES)
    while group.commands:
        if not words or words[0].startswith("-"):
            _show_group(prog, group, words)
        word, names = words.pop(0), [command.name for command in group.commands]
        if word not in names:
            hint = did_you_mean(nearest(word, names)) or f"the commands are {', '.join(names)}"
            Parser(prog, "").error(f"there is no command {word!r}; {hint}")
        group = group.commands[names.index(word)]
        prog = f"{prog} {word}"
    parser = make_parser(prog, group)
    # Words that may be several can stand between flags as well.
    is_open = any(argument.is_repeatable for argument in group.arguments)
    found, unknown = parser.parse_known_intermixed_args(words) if is_open else parser.parse_known_args(words)
    if unknown:
        parser.error(_unknown(unknown[0], ["--help", *(flag.name for flag in group.flags)]))
    given: dict[str, object] = vars(found)
    return group, given


def _show_group(prog: str, group: Command, words: Sequence[str]) -> NoReturn:
    """Print the commands of a group, the version, or an error."""
    width = max(len(command.name) for command in group.commands)
    lines = "\n".join(f"  {command.name:{width}}  {command.help}" for command in group.commands)
    parser = Parser(prog, "COMMAND …", group.description, f"commands:\n{lines}\n\nexamples:{group.examples}")
    _, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(_unknown(unknown[0], ["--help", "--version"]))
    parser.print_help(sys.stderr)
    raise SystemExit(2)


def make_parser(prog: str, command: Command) -> Parser:
    """Return the parser of a command that is not a group."""
    arguments = [f"[{_metavar(each)}]" if each.is_optional else _metavar(each) for each in command.arguments]
    parser = Parser(
        prog,
        " ".join([*arguments, "[options]"]),
        command.description or f"Print {command.help}.",
        f"examples:{command.examples}" if command.examples else None,
    )
    for argument in command.arguments:
        parser.add_argument(
            argument.name,
            metavar=_metavar(argument),
            choices=argument.choices or None,
            help=argument.help,
            nargs="+" if argument.is_repeatable else "?" if argument.is_optional else None,
        )
    excluded = {flag.excludes for flag in command.flags}
    for title in dict.fromkeys(flag.group for flag in command.flags):
        group = parser if title == "options" else parser.add_argument_group(title)
        exclusive = group.add_mutually_exclusive_group()
        for flag in command.flags:
            if flag.group != title:
                continue
            target = exclusive if flag.excludes or flag.name in excluded else group
            if not flag.metavar:
                target.add_argument(flag.name, action="store_true", help=flag.help)
            else:
                action = "append" if flag.is_repeatable else "store"
                target.add_argument(flag.name, metavar=_metavar(flag), action=action, help=flag.help)
    return parser


def _metavar(flag: Flag) -> str:
    return f"{{{','.join(flag.choices)}}}" if flag.choices else flag.metavar


def _unknown(word: str, known: Sequence[str]) -> str:
    word = word.partition("=")[0]
    if not word.startswith("-"):
        return f"there is no use for {word!r}"
    hint = did_you_mean(nearest(word, known))
    return f"there is no option {word}{hint and f'; {hint}'}"
