"""`fedloom join`: a rank that is a device, with examples and states of its own."""

from __future__ import annotations

import argparse
import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.deploy import invitations
from fedloom.deploy.commands import check_flags
from fedloom.deploy.device import Limits, Membership, Reading, system_monitor
from fedloom.deploy.device.data_manager import default_name
from fedloom.deploy.transport import DEFAULT, DevicePlace, Joining, transport_named
from fedloom.display.terminal import Terminal
from fedloom.storage import files


def join(args: argparse.Namespace, console: Terminal) -> int:
    """Join the run of a server, and answer requests until it ends."""
    joining = None
    if args.invite is not None:
        joining = invitations.accept(Path(args.invite), Path(args.state))
        _check_invited(args, joining)
        args.name, args.transport, args.server = joining.name, joining.transport, joining.server
        args.authority = joining.authority
    check_flags(args)
    transport, state = transport_named(args.transport), Path(args.state)
    if joining is None and transport.named_by_keys and not (args.insecure or args.insecure_anywhere):
        args.name = args.name or ""
    place = DevicePlace(
        state=state,
        say=lambda text: console.print(text, highlight=False),
        server=args.server,
        authority=None if args.authority is None else Path(args.authority),
        insecure=args.insecure,
        insecure_anywhere=args.insecure_anywhere,
        joining=joining,
    )
    transport.check(place)
    start_limits = Limits(battery=args.battery, load=args.load, temperature=args.temperature, memory=args.memory)
    abort_limits = Limits(battery=args.abort_battery, temperature=args.abort_temperature, memory=args.abort_memory)
    monitor = system_monitor() if start_limits.is_set or abort_limits.is_set else Reading

    def new_member() -> Membership:
        return Membership(
            args.data,
            state,
            args.model,
            name=default_name(args.data) if args.name is None else args.name,
            monitor=monitor,
            start_limits=start_limits,
            abort_limits=abort_limits,
            steps=args.most_steps,
            upload=args.upload,
            say=place.say,
            watches=args.watch_data,
        )

    with held(state):
        left = transport.join(place, new_member)
    console.print("left" if left else "the run is over")
    return 0


@contextmanager
def held(state: Path) -> Iterator[None]:
    """Hold a device's state folder, so that no second process is the same device: each would displace the other.

    Where a file system has no locks, nothing is held.

    Raises:
        SettingError: another process holds it.
    """
    files.make(state)
    with (state / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise SettingError(
                    f"a state folder is of one device, and another fedloom join runs with {state}: wait for it or stop "
                    "it, or give this device a --state of its own"
                ) from None
        yield


def _check_invited(args: argparse.Namespace, joining: Joining) -> None:
    """Raise SettingError where a flag contradicts the invitation."""
    said = [
        ("--name", args.name, joining.name),
        ("--server", args.server, joining.server),
        ("--transport", None if args.transport == DEFAULT else args.transport, joining.transport),
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
