"""Commands of devices: serve and join, certificates and invitations."""

from __future__ import annotations

import argparse
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.deploy.transport import DEFAULT, DEFAULT_INVITED, TRANSPORTS, transport_named
from fedloom.display.arguments import directory, file
from fedloom.display.command import Command

_HOST, _PORT = "127.0.0.1", 8443
# Flags that not all transports take, and the value where one is not given.
_FLAGS: dict[str, Any] = {
    "server": None, "authority": None, "certs": None, "port": _PORT, "host": _HOST, "insecure": False,
    "insecure_anywhere": False, "watch_data": False,
}  # fmt: skip


def check_flags(args: argparse.Namespace) -> None:
    """Raise SettingError where a flag of another transport is given, or one that contradicts another."""
    given, taken = {}, transport_named(args.transport).flags
    for name, default in _FLAGS.items():
        if getattr(args, name, default) == default:
            continue
        given[name] = flag = f"--{name.replace('_', '-')}"
        if name not in taken:
            them = " or ".join(f"--transport {one}" for one in TRANSPORTS if name in transport_named(one).flags)
            raise SettingError(f"{flag} belongs to {them}, got --transport {args.transport}: give both, or neither")
    insecure = given.get("insecure") or given.get("insecure_anywhere")
    certificate = given.get("certs") or given.get("authority")
    if insecure and certificate:
        raise SettingError(f"{insecure} uses no certificates, got {certificate} too: leave one of them out")


def _serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--settings",
        required=True,
        type=file,
        metavar="FILE",
        help="settings of the run, .toml or .json, without the clients' examples",
    )
    add("--out", required=True, type=directory, metavar="DIR", help="where the run and the audit log are written")
    add("--resume", action="store_true", help="continue the run in --out with its devices")
    add(
        "--test",
        default="",
        metavar="SOURCE",
        help="as --data of fedloom run: test examples of the global model; with --resume as when the run began",
    )
    add(
        "--most-examples", type=int, metavar="N",
        help="the most examples of a device that count (default: ten times the median over devices, at most 1000000; "
        "with --resume, as when the run began)",
    )  # fmt: skip
    add(
        "--bound", metavar="RULE",
        help="refuse or clip uploads that differ too much from what was sent, none for no bound (run.bound; default: "
        "refuse:median:5; with --resume, as when the run began)",
    )  # fmt: skip
    add(
        "--wait", type=float, default=600.0, metavar="S",
        help="seconds to wait for devices: then the run begins with those that are connected, or ends if all have left "
        "(default: 600)",
    )  # fmt: skip
    add(
        "--least", type=int, metavar="K",
        help="the fewest devices to begin with (default: WORLD_SIZE - 1, minus those that are refused); over the "
        "internet the run begins once so many have registered; a one-shot method stops if fewer have sent their models "
        "(with --resume, as when the run began)",
    )  # fmt: skip
    add("--host", default=_HOST, metavar="A", help="address to listen at, over the internet (default: 127.0.0.1)")
    add("--port", type=int, default=_PORT, metavar="N", help="port to listen at, over the internet (default: 8443)")
    add("--certs", type=directory, metavar="DIR", help="over the internet: what fedloom certs made")
    add("--page", type=int, metavar="PORT", help="show who is there, on a page of this host alone")
    add("--metrics", action="store_true", help="with --page: numbers for Prometheus beside it")
    _add_transport(parser)


def _join(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", required=True, metavar="SOURCE", help="as of fedloom run; or a folder with such a file, or images")
    add("--state", required=True, type=directory, metavar="DIR", help="where the device keeps its id and its states")
    add("--model", default="", metavar="NAME", help="an architecture of the settings (default: the server chooses)")
    add(
        "--upload", type=file, metavar="FILE",
        help="weights that were trained elsewhere, which the device uploads instead of training (dense, feddf, ...)",
    )  # fmt: skip
    add("--name", metavar="NAME", help="the server shows it beside the id (default: the file's; '' for none)")
    add(
        "--watch-data", action="store_true",
        help="over NATS: look whether the file or folder of --data has changed, and join again with what it holds",
    )  # fmt: skip
    add("--battery", type=float, metavar="SHARE", help="lowest charge to begin with, unless plugged in")
    add("--load", type=float, metavar="SHARE", help="highest load to begin with, 1 for all processors")
    add("--temperature", type=float, metavar="C", help="highest temperature to begin with, degrees Celsius")
    add("--memory", type=float, metavar="MIB", help="lowest free memory to begin with")
    add(
        "--most-steps", type=int, default=100_000, metavar="N",
        help="the most training steps of a request; a server that asks for more is refused (default: 100000)",
    )  # fmt: skip
    add("--abort-battery", type=float, metavar="SHARE", help="lowest charge to continue with")
    add("--abort-temperature", type=float, metavar="C", help="highest temperature to continue with, degrees Celsius")
    add("--abort-memory", type=float, metavar="MIB", help="lowest free memory to continue with")
    add("--server", metavar="HOST:PORT", help="over the internet: where the server is")
    add(
        "--invite", type=file, metavar="FILE",
        help="what fedloom invite made: says transport, server, authority and name, and registers this device's key",
    )  # fmt: skip
    add(
        "--authority", type=file, metavar="FILE",
        help="over the internet: certificate of the server's authority (default: authority.crt in --state)",
    )  # fmt: skip
    add("--insecure-anywhere", action="store_true", help="over the internet: no encryption and no keys, to any host")
    _add_transport(parser)


def _add_transport(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transport", choices=tuple(TRANSPORTS), default=DEFAULT,
        help=f"way between server and devices (default: {DEFAULT}); see docs/devices.md",
    )  # fmt: skip
    parser.add_argument(
        "--insecure", action="store_true", help="over the internet: no encryption and no keys, on this host alone"
    )


def _certs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("authority", "server", "device"), help="what to make")
    parser.add_argument("directory", type=directory, help="where it is kept; of a device its state folder")
    parser.add_argument(
        "--name", action="append", default=[], metavar="NAME", help="name or address of the server; repeatable"
    )
    parser.add_argument("--days", type=int, metavar="N", help="how long it is valid (default: 3650, of a server 825)")


def _devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("add", "list", "remove", "status"), help="what to do")
    parser.add_argument(
        "directory", type=directory, help="the server's certificates; of status the folder of a run of devices"
    )
    parser.add_argument("name", nargs="?", help="of a device, such as Kiel")
    parser.add_argument("key", nargs="?", help="its public key, as a file or a line; - for standard input")
    parser.add_argument("--watch", action="store_true", help="with status: go on until the server has ended")


def _invite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the device, such as Kiel")
    parser.add_argument("--certs", required=True, type=directory, metavar="DIR", help="the server's certificates")
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="by which devices reach the server")
    parser.add_argument(
        "--transport", choices=tuple(TRANSPORTS), default=DEFAULT_INVITED, help=f"default: {DEFAULT_INVITED}"
    )
    parser.add_argument("--days", type=int, default=14, metavar="N", help="how long it is valid (default: 14)")
    parser.add_argument("--out", type=file, metavar="FILE", help="the file (default: NAME.invitation)")


COMMANDS = {
    "serve": Command(
        help="run rounds with devices that join, at rank 0; see docs/devices.md",
        do="fedloom.deploy.server.serve:serve",
        flags=_serve,
    ),
    "join": Command(
        help="take part as a device, at any other rank; see docs/devices.md",
        do="fedloom.deploy.device.join:join",
        flags=_join,
    ),
    "certs": Command(
        help="make a server's certificates, or a device's key; see docs/flower.md",
        do="fedloom.deploy.certs:make",
        flags=_certs,
    ),
    "devices": Command(
        help="add, list or remove the devices that may connect; status: who is there in a run",
        do="fedloom.deploy.certs:devices",
        flags=_devices,
    ),
    "invite": Command(
        help="write the file by which one device joins, once; see docs/flower.md",
        do="fedloom.deploy.certs:invite",
        flags=_invite,
    ),
}
