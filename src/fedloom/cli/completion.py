"""`fedloom completion`: scripts that complete commands, flags and their values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fedloom.cli.explain import explanations
from fedloom.cli.index import INDEX
from fedloom.cli.parser import parser
from fedloom.core.entry_points import ANALYSES, offers
from fedloom.display.terminal import Terminal

_LISTS = {  # by the setting of a flag, or by the name of a command's argument
    "algorithm": "algorithms", "algorithms": "algorithms", "source": "downloads",
    "model": "models", "task": "tasks", "data.partition": "partitions", "clients.sampler": "samplers",
    "clients.attack": "attacks", "run.aggregator": "aggregators",
}  # fmt: skip
_BASH = """\
# fedloom: eval "$(fedloom completion SHELL)"
_fedloom() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
    local command=${{COMP_WORDS[1]}}
    [[ $command == data && $COMP_CWORD -gt 2 ]] && command="data ${{COMP_WORDS[2]}}"
    case "$command/$before" in
{values}
    *) case "$command" in
{words}
        *) words="{commands}" ;;
        esac ;;
    esac
    [[ $COMP_CWORD == 1 ]] && words="{commands}"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _fedloom fedloom
"""


def show(args: argparse.Namespace, console: Terminal) -> int:
    """Print the script for a shell, which evaluates it at its start."""
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]().rstrip("\n"))
    return 0


def _commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command and its subcommands."""
    for name, one in _subcommands(parser()):
        yield name, one
        yield from ((f"{name} {inner}", its) for inner, its in _subcommands(one))


def _subcommands(parser_: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser_._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from ((name, one.filled()) for name, one in action.choices.items())


def _completions(parser_: argparse.ArgumentParser) -> list[str]:
    """Return the names and flags that may follow a command."""
    arguments = [action.dest for action in parser_._actions if not action.option_strings]
    listed = [name for dest in arguments for name in INDEX.get(_LISTS.get(dest, ""), ())]
    if parser_.prog == "fedloom analyse":
        listed += [*INDEX["analyses"], *offers(ANALYSES)]
    if parser_.prog == "fedloom explain":
        listed += explanations()
    flags = [flag for action in parser_._actions for flag in action.option_strings if flag.startswith("--")]
    return [*(name for name, _ in _subcommands(parser_)), *listed, *flags]


def _choices(parser_: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield the flags that have a list of values, each with its list."""
    for action in parser_._actions:
        values = action.choices or INDEX.get(_LISTS.get(action.dest, ""), ())
        if action.option_strings and values:
            yield action.option_strings[-1], [str(value) for value in values]


def _bash() -> str:
    commands = list(_commands())
    values = [
        f'    "{name}/{flag}") words="{" ".join(found)}" ;;' for name, one in commands for flag, found in _choices(one)
    ]
    words = [f'        "{name}") words="{" ".join(_completions(one))}" ;;' for name, one in commands]
    top = " ".join(name for name, _ in _subcommands(parser()))
    return _BASH.format(values="\n".join(values), words="\n".join(words), commands=top)


def _zsh() -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = ["# fedloom: fedloom completion fish | source"]
    for name, command in _subcommands(parser()):
        lines.append(f"complete -c fedloom -f -n __fish_use_subcommand -a {name}")
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        values = dict(_choices(command))
        for word in _completions(command):
            if not word.startswith("--"):
                lines.append(f"complete -c fedloom {condition} -a {word}")
                continue
            values_text = f" -x -a '{' '.join(values[word])}'" if word in values else ""
            lines.append(f"complete -c fedloom {condition} -l {word.removeprefix('--')}{values_text}")
    return "\n".join(lines)
