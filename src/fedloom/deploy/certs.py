"""`fedloom certs`, `devices` and `invite`: certificates of a server, keys of devices, and who may connect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.deploy import certificates, invitations
from fedloom.deploy.reachable import address_of
from fedloom.deploy.status_table import show
from fedloom.deploy.transport import transport_named
from fedloom.display.terminal import Terminal
from fedloom.storage.files import path_of
from fedloom.wording import install


def make(args: argparse.Namespace, console: Terminal) -> int:
    """Make an authority, a server's certificate, or a device's key."""
    _check_library()
    folder = Path(args.directory)
    if args.kind == "device":
        path, public = certificates.device_key(folder)
        console.print(public)
        console.print(
            f"{path} is this device's key, and stays here; the line above goes to the server's owner: fedloom devices "
            f"add DIR NAME KEY, fingerprint {certificates.fingerprint(public)}",
        )
        return 0
    if args.kind == "authority":
        path = certificates.make_authority(folder, 3650 if args.days is None else args.days)
        text = f"{path} goes to all devices; {folder / 'authority.key'} is secret, and stays here"
    else:
        path = certificates.make_server(folder, args.name, 825 if args.days is None else args.days)
        text = f"{path} is for {', '.join(args.name)}; fedloom serve --certs {folder}"
    console.print(text)
    return 0


def devices(args: argparse.Namespace, console: Terminal) -> int:
    """Add, list or remove the devices that may connect, or show how those of a run are."""
    folder = Path(args.directory)
    if args.watch and args.action != "status":
        raise SettingError(f"--watch belongs to fedloom devices status, got devices {args.action}: leave it out")
    if args.action == "status":
        if args.name is not None:
            raise SettingError(
                f"fedloom devices status takes a run's folder alone, got {args.name!r} too: leave it out"
            )
        return show(folder, console, args.watch)
    _check_library()
    if not folder.is_dir():
        raise SettingError(
            f"there is no folder {folder}: name that of the server's certificates, which fedloom certs authority makes"
        )
    if args.action == "list":
        if not certificates.registered(folder) and not certificates.invitations(folder):
            console.print(certificates.who_may_connect(folder))
        for name, its in certificates.registered(folder).items():
            console.print(
                f"{name}  {certificates.fingerprint(its['key'])}  since {its['added']}",
                highlight=False,
            )
        for name, its in certificates.invitations(folder).items():
            state = f"used on {its['used']}" if its["used"] else "not used"
            console.print(f"{name}  invited until {its['until']}, {state}", highlight=False)
        return 0
    if args.name is None:
        raise SettingError(
            f"fedloom devices {args.action} needs the name of a device: fedloom devices {args.action} DIR NAME"
        )
    if args.action == "remove":
        certificates.remove_device(folder, args.name)
        console.print(f"{args.name} may connect no longer; a run that goes on notices within seconds")
        return 0
    if args.key is None:
        raise SettingError("fedloom devices add needs the device's public key: fedloom devices add DIR NAME KEY.pub")
    text = sys.stdin.read(4096) if args.key == "-" else _key_text(args.key)
    digest = certificates.add_device(folder, args.name, text)
    console.print(
        f"{args.name} may connect with the key {digest}: compare it with what the device prints",
    )
    return 0


def invite(args: argparse.Namespace, console: Terminal) -> int:
    """Write the file by which one device joins."""
    _check_library()
    address_of(args.server, transport_named(args.transport).label)
    to = Path(args.out or f"{args.name}.invitation")
    invitations.invite(Path(args.certs), args.name, args.server, args.transport, args.days, to)
    console.print(
        f"{to} lets one device register as {args.name}, once, within {args.days} days. Bring it there as you would a "
        f"password, and there: fedloom join --invite {to.name} --data DATA --state DIR",
    )
    return 0


def _key_text(key: str) -> str:
    """Return the text of a key, which is typed or in a file."""
    if key.startswith("ecdsa-") or (len(key) == 56 and key.isalnum()):
        return key
    try:
        with path_of(key).open(encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError as error:
        raise SettingError(
            f"a device's public key is a file such as key.pub, or its line ecdsa-sha2-nistp384 AAAA..., got "
            f"{key!r:.80} ({error.strerror or error}): take what fedloom join prints there"
        ) from None


def _check_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise SettingError(f"certificates need cryptography ({error}): {install('flower')}") from None
