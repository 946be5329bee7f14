"""`fedloom serve` and `fedloom join` over Flower: what is checked, said and started on both sides."""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

from fedloom.cli.certs import who_may_connect
from fedloom.core.errors import EngineWarning, RankError, SettingError, warn
from fedloom.deploy import certificates
from fedloom.deploy.device import Membership, take_part
from fedloom.deploy.flower.flower_processes import SuperLink, SuperNode, check_installed, private_folder
from fedloom.deploy.flower.over_flower import FlowerConnections, RelayedServer
from fedloom.deploy.invitations import Enrolment, Joining, address_of
from fedloom.deploy.server.fleet import Audit
from fedloom.deploy.watched_keys import WatchedKeys
from fedloom.display.terminal import Terminal

PORT = 8443
INSECURE = (
    "--insecure: nothing is encrypted, and anyone who can reach the port can join, or read and change what is sent; "
    "for a trial on one host"
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SECONDS = 10.0  # for the server to answer
_LAST = 5.0  # seconds for Flower to carry the last receipt
_PAUSE = 2.0  # seconds between two tries to reach it


@contextmanager
def flower_connections(
    args: argparse.Namespace, out: Path, console: Terminal, audit: Audit
) -> Iterator[FlowerConnections]:
    """Start Flower's SuperLink beside the server, and end it."""
    check_installed()
    tls = None
    keys: Callable[[], dict[str, str]] = dict
    if args.insecure:
        console.print(INSECURE)
    else:
        if args.certs is None:
            raise SettingError(
                "over Flower a server has certificates: give --certs DIR, which fedloom certs authority DIR and "
                "fedloom certs server DIR --name NAME make, or --insecure for a trial on one host"
            )
        folder = Path(args.certs)
        tls, warning = certificates.server_files(folder)
        if warning:
            warn(warning, EngineWarning)
        console.print(who_may_connect(folder))
        keys = WatchedKeys(folder, console.print)
    with ExitStack() as stack, sigterm_interrupts():
        folder = private_folder()
        stack.callback(_remove, folder)
        connections = FlowerConnections(folder)
        stack.callback(connections.close)
        link = SuperLink(
            out / "flower.log", args.port, connections.path, lambda: connections.is_carried, tls, keys,
            partial(audit, "refused"),
        )  # fmt: skip
        stack.callback(link.close)
        if tls is not None:
            connections.registered = lambda: link.registered
        console.print(
            f"waiting for {args.least or 1} devices at 127.0.0.1:{args.port}, {args.wait:g} s at most (--wait); "
            "devices on other hosts reach it through a proxy (docs/flower.md)",
        )
        yield connections


def join_over_flower(
    args: argparse.Namespace, member: Callable[[], Membership], console: Terminal, joining: Joining | None = None
) -> bool:
    """Take part over Flower until the run is over; return True if the device leaves before (SIGTERM)."""
    check_installed()
    host, port = address_of(args.server, args.transport)
    state = Path(args.state)
    authority = key = None
    public = ""
    if args.insecure or args.insecure_anywhere:
        if host not in _LOOPBACK and not args.insecure_anywhere:
            raise SettingError(
                f"--insecure is for a server on this host, got {host}: give it certificates (docs/flower.md), or "
                "--insecure-anywhere where everybody on the way may read and change all"
            )
        console.print(INSECURE)
    else:
        authority = authority_of(args)
        key, public = certificates.device_key(state)
        console.print(f"key of this device: {public}")
        console.print(f"fingerprint: {certificates.fingerprint(public)}")
    wait_for_server(host, port, authority, console)
    with ExitStack() as stack:
        folder = private_folder()
        stack.callback(_remove, folder)
        said = set[str]()

        def say(text: str) -> None:
            if text not in said:
                said.add(text)
                console.print(text, highlight=False)

        def connect(name: str, key: Path | None, stack: ExitStack) -> RelayedServer:
            server = RelayedServer(folder / name)
            stack.callback(server.close)
            node = SuperNode(state / "flower.log", f"{host}:{port}", server.path, authority, key, say)
            stack.callback(node.close)
            return server

        own = member()
        if joining is not None and joining.key is not None:
            console.print(joining.begins)
            with ExitStack() as once:
                if take_part(connect("invited", joining.key, once), enrolment := Enrolment(public)):
                    return True
                if not enrolment.is_done:
                    return False
            console.print(joining.ends())
        server = connect("device", key, stack)
        console.print(own.waits_at(args.server))
        while True:
            try:
                left = take_part(server, own)
                if not left:
                    time.sleep(_LAST)
                return left
            except RankError:
                if not server.reopen():
                    raise
                console.print("the server begins anew: joining again")
                own = member()


def authority_of(args: argparse.Namespace) -> Path:
    """Return the file with the certificate that a device trusts."""
    authority = Path(args.authority or Path(args.state) / "authority.crt")
    if not authority.exists():
        raise SettingError(
            f"there is no {authority}: ask the server's owner for the file authority.crt, and give --authority FILE"
        )
    return authority


def wait_for_server(host: str, port: int, authority: Path | None, console: Terminal) -> None:
    """Wait until the server can be reached, which may be started later."""
    is_said = False
    while True:
        try:
            return check_reachable(host, port, authority)
        except RankError as error:
            if not is_said:
                console.print(f"{error}; trying again", highlight=False)
            is_said = True
            time.sleep(_PAUSE)


def check_reachable(host: str, port: int, authority: Path | None) -> None:
    """Raise RankError or SettingError if the server cannot be reached, or is another one than the certificate says."""
    try:
        with socket.create_connection((host, port), _SECONDS) as plain:
            if authority is None:
                return
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(plain, server_hostname=host):
                return
    except ssl.SSLCertVerificationError as error:
        _explain(error, host, port, authority)
    except ssl.SSLError as error:
        raise SettingError(
            f"{host}:{port} does not speak TLS ({error.reason or error}): give the port of the server's proxy, or "
            "--insecure for a trial on one host"
        ) from None
    except OSError as error:
        raise RankError(
            f"no server answers at {host}:{port} ({error}): start fedloom serve, and see that this host may connect to "
            "that port"
        ) from None


def _explain(error: ssl.SSLCertVerificationError, host: str, port: int, authority: Path | None) -> NoReturn:
    now = f"this host says that it is {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    text = error.verify_message
    if error.verify_code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
        raise SettingError(
            f"the certificate of {host}:{port} is for another name ({text}): give --server by the name in the "
            "certificate, or make one for this name too (fedloom certs server)"
        ) from None
    if error.verify_code == 10:  # X509_V_ERR_CERT_HAS_EXPIRED
        raise SettingError(
            f"the certificate of {host}:{port} has expired, and {now}: set the clock, or ask for a new certificate"
        ) from None
    if error.verify_code == 9:  # X509_V_ERR_CERT_NOT_YET_VALID
        raise SettingError(
            f"the certificate of {host}:{port} is not valid yet, and {now}: set the clock of this host"
        ) from None
    raise SettingError(
        f"the certificate of {host}:{port} was not signed by {authority} ({text}): ask the server's owner for the "
        "file authority.crt, and see that this is the server"
    ) from None


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end the server as Ctrl-C does, so that it removes what it made."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
