"""`antwort completion`: a script for a shell, made from the table of commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping

from antwort.cli.commands import Command, all_commands
from antwort.cli.output import print_result
from antwort.config.flags import Flag


def run(given: Mapping[str, object]) -> int:
    return print_result(SCRIPTS[str(given["shell"])]().rstrip())


def _settings() -> list[str]:
    """What `--set` takes."""
    from antwort.config.schema import leaves

    return [f"{path}=" for path in leaves()]


# ---- bash ----

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


def _bash() -> str:
    values = [
        f"        {shlex.quote(f' {name}|{flag.name}')}) {_bash_value(flag)}; return ;;"
        for name, command in all_commands()
        for flag in command.flags
        if flag.metavar
    ]
    words = [f"        {shlex.quote(above)}) {_compgen(_words(command))} ;;" for above, command in _places()]
    names = "|".join(shlex.quote(f" {name}") for name, _ in all_commands())
    return _BASH.format(names=names, values="\n".join(values), words="\n".join(words))


def _bash_value(flag: Flag) -> str:
    match flag.takes:
        case "file":
            return 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$current")'
        case "folder":
            return 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$current")'
        case "setting":
            return f"compopt -o nospace; {_compgen(_settings())}"
        case _:
            return _compgen(flag.choices)


def _compgen(words: tuple[str, ...] | list[str]) -> str:
    return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(words))} -- "$current"))' if words else ":"


def _places() -> Iterator[tuple[str, Command | None]]:
    """Where a word may stand: behind `antwort` and behind each command. With a space before each command's name."""
    yield "", None
    for name, command in all_commands():
        yield f" {name}", command


def _words(command: Command | None) -> list[str]:
    """What may stand there."""
    if command is None:
        return [*(name for name, _ in all_commands() if " " not in name), "--help", "--version"]
    return [
        *(below.name for below in command.commands),
        *(choice for argument in command.arguments for choice in argument.choices),
        *(flag.name for flag in command.flags),
        "--help",
    ]


# ---- zsh ----

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
{described}
    esac
}}
compdef _antwort antwort
"""


def _zsh() -> str:
    values = [
        f"        {shlex.quote(f' {name}|{flag.name}')}) {_zsh_value(flag)}; return ;;"
        for name, command in all_commands()
        for flag in command.flags
        if flag.metavar
    ]
    described = [f"        {shlex.quote(above)}) {_zsh_words(command)} ;;" for above, command in _places()]
    names = "|".join(shlex.quote(f" {name}") for name, _ in all_commands())
    return _ZSH.format(names=names, values="\n".join(values), described="\n".join(described))


def _zsh_value(flag: Flag) -> str:
    match flag.takes:
        case "file":
            return "_files"
        case "folder":
            return "_files -/"
        case "setting":
            return f"compadd -S '' -- {shlex.join(_settings())}"
        case _:
            return f"compadd -- {shlex.join(flag.choices)}" if flag.choices else "return"


def _zsh_words(command: Command | None) -> str:
    return f"compadd -- {shlex.join(_words(command))}"


# ---- fish ----


def _fish() -> str:
    return "\n".join(["# Completes antwort in fish: antwort completion fish | source", *_fish_lines(), ""])


def _fish_lines() -> Iterator[str]:
    tops = [(name, command) for name, command in all_commands() if " " not in name]
    yield "complete -c antwort -f"
    yield "complete -c antwort -n __fish_use_subcommand -l version -d 'the version'"
    for name, command in tops:
        yield f"complete -c antwort -n __fish_use_subcommand -a {name} -d {_fish_text(command.help)}"
    for name, command in all_commands():
        yield from _fish_command(name, command)


def _fish_command(name: str, command: Command) -> Iterator[str]:
    *above, last = name.split()
    seen = " && ".join(f"__fish_seen_subcommand_from {word}" for word in (*above, last))
    for below in command.commands:
        names = " ".join(each.name for each in command.commands)
        where = f"{seen} && not __fish_seen_subcommand_from {names}"
        yield f"complete -c antwort -n {_fish_text(where)} -a {below.name} -d {_fish_text(below.help)}"
    for argument in command.arguments:
        yield f"complete -c antwort -n {_fish_text(seen)} -a {_fish_text(' '.join(argument.choices))}"
    for flag in command.flags:
        what = f"-l {flag.name[2:]}{_fish_value(flag)} -d {_fish_text(flag.help)}"
        yield f"complete -c antwort -n {_fish_text(seen)} {what}"


def _fish_value(flag: Flag) -> str:
    if not flag.metavar:
        return ""
    match flag.takes:
        case "file":
            return " -r -F"
        case "folder":
            return " -x -a '(__fish_complete_directories)'"
        case "setting":
            return f" -x -a {_fish_text(' '.join(_settings()))}"
        case _:
            return f" -x -a {_fish_text(' '.join(flag.choices))}" if flag.choices else " -x"


def _fish_text(text: str) -> str:
    """Within single quotes fish knows two escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: Mapping[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
