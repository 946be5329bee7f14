"""`fedloom join`: a rank that is a device, with examples and states of its own."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fedloom.cli.device_commands import check_flags
from fedloom.core.errors import SettingError
from fedloom.deploy import invitations
from fedloom.deploy.device import Limits, Membership, Reading, system_monitor, take_part
from fedloom.deploy.device.data_manager import default_name
from fedloom.deploy.server.fleet import TRUSTED
from fedloom.display.terminal import Terminal
from fedloom.ranks.launched import communication, meeting_point, rank_here


def join(args: argparse.Namespace, console: Terminal) -> int:
    """Join the run of a server, and answer requests until it ends."""
    joining = None
    if args.invite is not None:
        joining = invitations.accept(Path(args.invite), Path(args.state))
        _check_invited(args, joining)
        args.name, args.transport, args.server = joining.name, joining.transport, joining.server
        args.authority = joining.authority
    else:
        check_flags(args)
        if args.transport == "flower" and not (args.insecure or args.insecure_anywhere):
            args.name = args.name or ""  # that of its key
    if args.transport in ("gloo", "mpi"):
        console.print(TRUSTED)
        if not rank_here(args.transport, of_devices=True):
            raise SettingError("fedloom join runs at ranks 1, 2, ..., got rank 0: run fedloom serve there")
    start_limits = Limits(battery=args.battery, load=args.load, temperature=args.temperature, memory=args.memory)
    abort_limits = Limits(battery=args.abort_battery, temperature=args.abort_temperature, memory=args.abort_memory)
    monitor = system_monitor() if start_limits.is_set or abort_limits.is_set else Reading

    def new_member() -> Membership:
        return Membership(
            args.data,
            Path(args.state),
            args.model,
            name=default_name(args.data) if args.name is None else args.name,
            monitor=monitor,
            start_limits=start_limits,
            abort_limits=abort_limits,
            steps=args.most_steps,
            say=lambda text: console.print(text, highlight=False),
        )

    if args.transport == "flower":
        from fedloom.cli.flower_command import join_over_flower

        left = join_over_flower(args, new_member, console, joining)
        console.print("left" if left else "the run is over")
        return 0
    if args.transport == "nats":
        from fedloom.cli.nats_command import join_over_nats

        left = join_over_nats(args, new_member, console, joining)
        console.print("left" if left else "the run is over")
        return 0
    member = new_member()
    console.print(member.waits_at(meeting_point(args.transport)))
    manager = communication(args.transport)
    if take_part(manager, member):
        console.print("left")
        sys.stdout.flush()
        os._exit(0)  # a thread waits for the server and would keep the process alive
    console.print("the run is over")
    return 0


def _check_invited(args: argparse.Namespace, joining: invitations.Joining) -> None:
    """Raise SettingError where a flag contradicts the invitation; `--transport gloo` is the default."""
    said = [
        ("--name", args.name, joining.name),
        ("--server", args.server, joining.server),
        ("--transport", None if args.transport == "gloo" else args.transport, joining.transport),
        ("--authority", args.authority, str(joining.authority)),
        ("--insecure", args.insecure or None, "with certificates"),
        ("--insecure-anywhere", args.insecure_anywhere or None, "with certificates"),
    ]
    for flag, given, invited in said:
        if given not in (None, invited):
            what = flag if given is True else f"{flag} {given}"
            raise SettingError(
                f"the invitation of {joining.name} says {invited}, got {what}: leave {flag} out, or, once the device "
                "is registered, --invite"
            )
