"""`antwort completion`: scripts for shells, made from the table of commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from antwort.cli.commands import Command, all_commands
from antwort.cli.output import print_result
from antwort.config.flags import Flag


def run(given: Mapping[str, object]) -> int:
    return print_result(SCRIPTS[str(given["shell"])]().rstrip())


def _settings() -> list[str]:
    """Return what `--set` takes."""
    from antwort.config.schema import leaves

    return [f"{path}=" for path in leaves()]


# In the scripts, `command` holds the words of the command so far, each with a space before it.

_BASH = """\
# Completes antwort in bash: source <(antwort completion bash)
_antwort() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= at
    COMPREPLY=()
    if [[ $current == = || $previous == = ]]; then
        if [[ $current == = ]]; then current=; else previous=${{COMP_WORDS[COMP_CWORD-2]}}; fi
        if [[ $previous != -* ]]; then return; fi  # the value of a setting
    fi
    for ((at = 1; at < COMP_CWORD; at++)); do
        case "$command ${{COMP_WORDS[at]}}" in
            {names}) command="$command ${{COMP_WORDS[at]}}" ;;
        esac
    done
    case "$command|$previous" in
{values}
    esac
    case "$command" in
{words}
    esac
}}
complete -F _antwort antwort
"""

_ZSH = """\
#compdef antwort
# Completes antwort in zsh: source <(antwort completion zsh)
_antwort() {{
    local command= at
    for ((at = 2; at < CURRENT; at++)); do
        case "$command $words[at]" in
            {names}) command="$command $words[at]" ;;
        esac
    done
    case "$command|$words[CURRENT-1]" in
{values}
    esac
    case "$command" in
{words}
    esac
}}
compdef _antwort antwort
"""


def _bash() -> str:
    def choose(words: Sequence[str]) -> str:
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(words))} -- "$current"))' if words else ":"

    files = 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen {} -- "$current")'
    paths = {"file": files.format("-f"), "folder": files.format("-d")}
    return _fill(_BASH, choose, paths, f"compopt -o nospace; {choose(_settings())}")


def _zsh() -> str:
    def choose(words: Sequence[str]) -> str:
        return f"compadd -- {shlex.join(words)}" if words else "return"

    return _fill(_ZSH, choose, {"file": "_files", "folder": "_files -/"}, f"compadd -S '' -- {shlex.join(_settings())}")


def _fill(script: str, choose: Callable[[Sequence[str]], str], paths: Mapping[str, str], setting: str) -> str:
    """Fill in what completes the value of each flag, and what can follow each command."""
    commands = [*all_commands()]
    values = [
        f"        {shlex.quote(f' {name}|{flag.name}')}) "
        f"{setting if flag.takes == 'setting' else paths.get(flag.takes) or choose(flag.choices)}; return ;;"
        for name, command in commands
        for flag in command.flags
        if flag.metavar
    ]
    top = [*(name for name, _ in commands if " " not in name), "--help", "--version"]
    words = [f"        {shlex.quote('')}) {choose(top)} ;;"]
    for name, command in commands:
        below = [each.name for each in command.commands]
        choices = [choice for argument in command.arguments for choice in argument.choices]
        flags = [flag.name for flag in command.flags]
        words.append(f"        {shlex.quote(f' {name}')}) {choose([*below, *choices, *flags, '--help'])} ;;")
    names = "|".join(shlex.quote(f" {name}") for name, _ in commands)
    return script.format(names=names, values="\n".join(values), words="\n".join(words))


def _fish() -> str:
    lines = ["# Completes antwort in fish: antwort completion fish | source", "complete -c antwort -f"]
    lines.append("complete -c antwort -n __fish_use_subcommand -l version -d 'the version'")
    commands = [*all_commands()]
    for name, command in commands:
        if " " not in name:
            lines.append(f"complete -c antwort -n __fish_use_subcommand -a {name} -d {_fish_text(command.help)}")
    for name, command in commands:
        lines += (f"complete -c antwort -n {line}" for line in _fish_command(name, command))
    return "\n".join([*lines, ""])


def _fish_command(name: str, command: Command) -> Iterator[str]:
    seen = " && ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
    below = f"{seen} && not __fish_seen_subcommand_from {' '.join(each.name for each in command.commands)}"
    for each in command.commands:
        yield f"{_fish_text(below)} -a {each.name} -d {_fish_text(each.help)}"
    for argument in command.arguments:
        yield f"{_fish_text(seen)} -a {_fish_text(' '.join(argument.choices))}"
    for flag in command.flags:
        yield f"{_fish_text(seen)} -l {flag.name[2:]}{_fish_value(flag)} -d {_fish_text(flag.help)}"


def _fish_value(flag: Flag) -> str:
    if not flag.metavar:
        return ""
    match flag.takes:
        case "file":
            return " -r -F"
        case "folder":
            return " -x -a '(__fish_complete_directories)'"
        case _:
            choices = _settings() if flag.takes == "setting" else flag.choices
            return f" -x -a {_fish_text(' '.join(choices))}" if choices else " -x"


def _fish_text(text: str) -> str:
    """Quote a text: within single quotes fish knows two escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: Mapping[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
