"""Test that a server can be reached, and is the one that a device trusts: for transports over the internet."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from fedloom.core.errors import RankError, SettingError
from fedloom.deploy.transport import DevicePlace

_SECONDS = 10.0  # for the server to answer
_PAUSE = 2.0  # seconds between two tries to reach it


def address_of(server: str | None, over: str) -> tuple[str, int]:
    """Return (host, port) of --server. `over`: the transport's name in messages."""
    host, _, port = (server or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise SettingError(f"over {over} a device is given the server's place, got {server!r}: --server HOST:PORT")
    return host.strip("[]"), int(port)


def authority_of(place: DevicePlace) -> Path:
    """Return the file with the certificate that a device trusts."""
    authority = place.authority or place.state / "authority.crt"
    if not authority.exists():
        raise SettingError(
            f"there is no {authority}: ask the server's owner for the file authority.crt, and give --authority FILE"
        )
    return authority


def wait_for_server(host: str, port: int, authority: Path | None, say: Callable[[str], object]) -> None:
    """Wait until the server can be reached, which may be started later."""
    is_said = False
    while True:
        try:
            return check_reachable(host, port, authority)
        except RankError as error:
            if not is_said:
                say(f"{error}; trying again")
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
