"""Parser of all commands, assembled of what rooms and other packages offer; it imports none of their code."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from fedloom import __version__
from fedloom.cli.argument_parser import Parser
from fedloom.core.entry_points import COMMANDS, offers
from fedloom.display.command import Command

ROOMS = ("cli", "experiments", "mirror", "report", "analyses", "deploy")
"""Rooms with a file `commands.py`, in the order of the list of commands."""
_ELSEWHERE = dict.fromkeys(("reproduce", "claims", "figures"), "fedloom-papers")  # the packages of known commands
_EXAMPLES = """\
examples:
  fedloom new mine
  fedloom algorithms
  fedloom run fedavg
  fedloom run fedntd --set beta=0.5 --partition dirichlet:0.1 --out runs/fedntd
  fedloom compare fedavg fedntd --rounds 50 --seed 0,1 --out runs/two
  fedloom run kt_pfl --model lenet,mlp,logistic --public 500 --clients 20
  fedloom sweep fedntd --over local.lr=0.01,0.1 --val-fraction 0.2 --out runs/lr
  fedloom resume runs/two
  fedloom branch runs/fedntd --at 100 --set fedntd.beta=0.3 --out runs/less
  fedloom fetch s3://bucket/two runs/two
  fedloom verify runs/two
  fedloom report runs/two
  fedloom summary runs/two --name fedavg=FedAvg --out paper
  fedloom analyse runs/fedntd local-accuracy alignment
  fedloom export runs/fedntd model.safetensors
  fedloom predict runs/fedntd --data new.csv --out predictions.csv
  fedloom evaluate runs/fedntd --data new.csv
"""


def own_commands() -> dict[str, Command]:
    """Return the commands that rooms offer, by name."""
    return {name: command for room in ROOMS for name, command in _of_room(room).items()}


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands. Its result's `do` names a function, `module:function`.

    Args:
        words: what a person has typed. Other packages are asked for their commands unless the first is one of ours.

    Raises:
        SettingError: two packages offer one command, or one of another package cannot be imported.
    """
    root = Parser(
        prog="fedloom",
        description="Federated learning, simulated on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"fedloom {__version__}")
    found = own_commands()
    if not words or words[0] not in found:
        found |= {name: offer.load() for name, offer in offers(COMMANDS, found).items()}
        root.elsewhere = {name: package for name, package in _ELSEWHERE.items() if name not in found}
    _add(root, found, "command")
    return root


def _add(parser: Parser, commands: Mapping[str, Command], dest: str) -> None:
    """Add commands to a parser; flags of each are added once it is asked for."""
    places = parser.add_subparsers(dest=dest, required=True, metavar=dest.upper())
    for name, command in commands.items():
        added: Parser = places.add_parser(name, help=command.help, description=command.help.replace("%%", "%"))
        if command.inner:
            _add(added, command.inner, "about")
        else:
            added.set_defaults(do=command.do)
            added.fill = functools.partial(command.flags, added)


@functools.cache
def _of_room(room: str) -> dict[str, Command]:
    """Return the commands that a room offers, without its package, which imports what they need."""
    name = f"fedloom.{room}.commands"
    spec = spec_from_file_location(name, Path(__file__).parents[1] / room / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Command] = module.COMMANDS
    return found
