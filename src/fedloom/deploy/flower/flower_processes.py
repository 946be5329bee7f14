"""Flower's processes beside ours: the SuperLink of `fedloom serve`, the SuperNode of `fedloom join`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedloom.core.errors import RankError, SettingError
from fedloom.deploy.certificates import fingerprint
from fedloom.deploy.child_program import ChildProgram
from fedloom.deploy.flower.flower_commands import END
from fedloom.deploy.flower.flower_relay import SOCKET
from fedloom.deploy.refusals import UNREGISTERED, Refusal, RefusalLog, begin_anew
from fedloom.ranks.communication import check_port
from fedloom.wording import install

VERSION = "1.42.0"
START = 90.0  # seconds for a process of Flower to begin its work
AGAIN = 5.0  # seconds until a process that ended is started again
_FOLDER = re.compile(r"fedloom-([0-9]+)-\w+")
_CONFIG = '[superlink]\ndefault = "fedloom"\n[superlink.fedloom]\naddress = "127.0.0.1:{port}"\n{security}\n'
_APP = """[project]
name = "fedloom-relay"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "fedloom"
[tool.flwr.app.components]
serverapp = "fedloom.deploy.flower.flower_app:server"
clientapp = "fedloom.deploy.flower.flower_app:client"
"""


def check_installed() -> None:
    """Raise SettingError unless Flower is installed, in the version whose processes are started here."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise SettingError(f"--transport flower needs Flower, and it is not installed: {install('flower')}") from None
    if installed != VERSION:
        raise SettingError(f"--transport flower needs Flower {VERSION}, got {installed}: {install('flower')}")
    if sys.platform != "linux":
        raise SettingError(f"--transport flower runs on Linux, got {sys.platform}: take another machine or transport")


def private_folder() -> Path:
    """Return a new folder that only this user can open, with a short name, as sockets need.

    Those of processes that were killed are deleted: a database of Flower has all messages of a run.
    """
    for folder in Path(tempfile.gettempdir()).glob("fedloom-*-*"):
        match = _FOLDER.fullmatch(folder.name)
        with contextlib.suppress(OSError):
            if match and folder.lstat().st_uid == os.getuid() and not _is_alive(int(match[1])):
                shutil.rmtree(folder)
    return Path(tempfile.mkdtemp(prefix=f"fedloom-{os.getpid()}-"))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        pass
    return True


def environment(home: Path, sockets: Path, path: str) -> dict[str, str]:
    """Return the variables of Flower's processes."""
    return {
        **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1", "PATH": path, SOCKET: str(sockets), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class _Supervised:
    """Process of Flower that is started again when it ends, until it is closed."""

    def __init__(self, log: Path) -> None:
        self.folder, self.log = private_folder(), log
        self.home = self.folder / "home"
        self.home.mkdir(mode=0o700)
        self._process: ChildProgram | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def close(self) -> None:
        """End the process and all that it started, and delete its folder."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            self._process.close()

    def _supervise(self) -> None:
        while not self._closing.wait(0.2):
            try:
                self._look()
            except Exception as error:  # a full disk, say: a thread that ended would shut nobody out any more
                with contextlib.suppress(OSError), self.log.open("a", encoding="utf-8") as file:
                    file.write(f"fedloom: {error!r:.500}\n")
                self._closing.wait(AGAIN)

    def _look(self) -> None:
        raise NotImplementedError


class SuperLink(_Supervised):
    """The SuperLink of a server, on a port of 127.0.0.1, and the run that relays its messages.

    `socket`: that of `FlowerConnections`. `is_carried`: whether the ServerApp is connected there. `tls`: the files of
    the authority's certificate, the server's and its key; with them every device needs a registered key. `keys`:
    returns the public keys of devices that may connect, by name.
    """

    def __init__(
        self,
        log: Path,
        port: int,
        socket: Path,
        is_carried: Callable[[], bool],
        tls: tuple[Path, Path, Path] | None = None,
        keys: Callable[[], Mapping[str, str]] = dict,
        refused: Callable[[str, str], object] = lambda who, why: None,
    ) -> None:
        super().__init__(log)
        self._refusals = RefusalLog(log, of_flower, refused)
        self.port, self.tls, self._keys, self._is_carried = port, tls, keys, is_carried
        self._registered: dict[str, tuple[str, int]] = {}  # (key, node) by name
        self._submitted = 0.0
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self._env = environment(self.home, socket, path)
        security = "insecure = true" if tls is None else f"root-certificates = {json.dumps(str(tls[0].resolve()))}"
        (self.home / "config.toml").write_text(_CONFIG.format(port=port, security=security), encoding="utf-8")
        (self.folder / "app").mkdir()
        (self.folder / "app" / "pyproject.toml").write_text(_APP, encoding="utf-8")
        try:
            self._start()
        except (SettingError, RankError):
            self.close()
            raise
        self._thread.start()

    @property
    def registered(self) -> dict[int, str]:
        """Return the names of the nodes whose keys are registered."""
        return {node: name for name, (_, node) in list(self._registered.items())}

    def _command(self) -> list[str]:
        command = [
            "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(self.folder / "state.db"), "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        if self.tls is None:
            return [*command, "--insecure"]
        names = ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile")
        files = [part for name, path in zip(names, self.tls, strict=True) for part in (name, str(path.resolve()))]
        return [*command, *files, "--enable-supernode-auth"]

    def _start(self) -> None:
        """Start the SuperLink, and the run in it.

        Raises:
            SettingError: another program listens at the port.
            RankError: it does not begin to listen.
        """
        check_port("127.0.0.1", self.port, "--port")
        self._process = ChildProgram(self._command(), self._env, self.log)
        end = time.monotonic() + START
        while not _is_open(self.port):
            if self._process.has_ended or time.monotonic() > end or self._closing.is_set():
                raise RankError(f"Flower's SuperLink does not start: {_last_words(self.log)}; look at {self.log}")
            time.sleep(0.1)
        self._control(with_run=True)

    def _flwr(self, commands: Sequence[Sequence[str]]) -> list[str]:
        """Return what each command of Flower prints.

        Raises:
            RankError: one fails.
        """
        output = self.folder / "output"
        output.write_bytes(b"")
        words = [word for command in commands for word in (*command, END)][:-1]
        command = ChildProgram(
            [sys.executable, "-m", "fedloom.deploy.flower.flower_commands", *words], self._env, output
        )
        try:
            status = command.wait(START)
        except TimeoutError as error:
            raise RankError(f"a command to Flower's SuperLink: {error}") from None
        finally:
            command.close()
        text = output.read_text(errors="replace")
        with self.log.open("a", encoding="utf-8") as file:
            file.write(text)
        if status:
            raise RankError(f"a command to Flower's SuperLink failed: {text.strip()[-500:]}")
        return text.split(END)

    def _control(self, with_run: bool = False) -> None:
        """Let the devices in whose keys are registered now, and no others; submit the run where asked."""
        keys = self._keys() if self.tls is not None else {}
        gone = [name for name, (key, _) in self._registered.items() if keys.get(name) != key]
        new = [name for name in keys if name not in self._registered or name in gone]
        commands = [["supernode", "unregister", str(self._registered[name][1]), "fedloom"] for name in gone]
        for k, name in enumerate(new):
            file = self.folder / f"{k}.pub"
            file.write_text(keys[name], encoding="ascii")
            commands.append(["supernode", "register", str(file), "fedloom", "--name", name, "--format", "json"])
        if with_run:
            self._submitted = time.monotonic()
            commands.append(["run", str(self.folder / "app"), "fedloom"])
        if not commands:
            return
        said = self._flwr(commands)
        self._refusals.register(keys)
        for name in gone:
            del self._registered[name]
        for name, text in zip(new, said[len(gone) :], strict=False):
            self._registered[name] = (
                keys[name],
                int(json.loads(text[text.index("{") : text.rindex("}") + 1])["node-id"]),
            )

    def _look(self) -> None:
        assert self._process is not None
        self._refusals.look()
        if self._process.has_ended:
            self._process.close()
            self._start()
        elif not self._is_carried() and time.monotonic() - self._submitted > START:
            self._control(with_run=True)
        self._control()


class SuperNode(_Supervised):
    """The SuperNode of a device, and the SuperExec that starts its ClientApps.

    The SuperNode gives messages of the server to whoever knows a secret, which is in a file that only this user can
    read: other users of the host reach its port, too. `socket`: that of `RelayedServer`. `authority`, `key`: files;
    None: insecure.
    """

    def __init__(
        self,
        log: Path,
        server: str,
        socket: Path,
        authority: Path | None = None,
        key: Path | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        super().__init__(log)
        self.server, self.authority, self.key, self._say = server, authority, key, say
        self._executor: ChildProgram | None = None  # the SuperExec
        self._secret = self.folder / "secret"
        self._secret.touch(mode=0o600)
        self._secret.write_bytes(secrets.token_bytes(32))
        programs = self.folder / "bin"
        programs.mkdir()
        _write_program(programs / "flwr-clientapp", [sys.executable, "-m", "fedloom.deploy.flower.flower_app"])
        self._env = environment(self.home, socket, str(programs))  # no other program of Flower is found
        self._started, self._begin = float("-inf"), 0
        self._look()
        self._thread.start()

    def _look(self) -> None:
        if begin_anew(self.log):
            self._begin = 0
        running = (self._process, self._executor)
        if any(one is None or one.has_ended for one in running) and time.monotonic() - self._started > AGAIN:
            self._started = time.monotonic()
            if self._process is not None:
                self._end()
                self._say(_why_it_ended(self.log, self._begin))
            self.log.touch(mode=0o600)
            self._begin = self.log.stat().st_size
            security = ["--insecure"]
            if self.authority is not None:
                security = ["--root-certificates", str(self.authority.resolve())]
            if self.key is not None:
                security += ["--auth-supernode-private-key", str(self.key.resolve())]
            here, port = Path(sys.executable).parent, str(free_port())
            secret = ["--superexec-auth-secret-file", str(self._secret)]
            server = ["--superlink", self.server, "--isolation", "process", "--host", "127.0.0.1", "--port", port]
            node = [str(here / "flower-supernode"), *security, *server, *secret]
            self._process = ChildProgram(node, self._env, self.log)
            executor = [str(here / "flower-superexec"), "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"]
            self._executor = ChildProgram([*executor, *secret], self._env, self.log)

    def _end(self) -> None:
        super()._end()
        if self._executor is not None:
            self._executor.close()


_REFUSED = ("ApiError:2001", "code: 2001", "ApiError:2004", "code: 2004")  # key unknown, or not activated


def _why_it_ended(log: Path, begin: int) -> str:
    """Return why a SuperNode ended, from its log after `begin` bytes."""
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read(1 << 20).decode(errors="replace")
    if any(code in text for code in _REFUSED):
        return (
            "the server does not let this device in, trying again: its key was removed or never registered (the "
            "server's owner registers it), or its last connection was cut off and is held for about a minute"
        )
    return f"the connection to the server ended, trying again; {log} has the reasons"


def _write_program(path: Path, command: list[str]) -> None:
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in command)
    path.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n', encoding="utf-8")
    path.chmod(stat.S_IRWXU)


def _is_open(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex(("127.0.0.1", port)) == 0


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it says nothing"


UNSIGNED = "its request is not signed by the key of the device that it names, or its clock is wrong"
_FLOWER = re.compile(r"\[ApiError:(2001|2004)\].*? public key: b'(-----BEGIN PUBLIC KEY-----[^']{1,1000})'(.*)")
_UNSIGNED = re.compile(r'\[uvicorn\.access\] (\S+):\d+ - "POST /v1/fleet/[a-z-]+ HTTP/[0-9.]+" 401')
_FREE = "No SuperNode found"  # else the key is registered, and its last connection is held


def of_flower(line: str) -> Refusal | None:
    """Return the refusal in a line of the SuperLink's log."""
    if match := _UNSIGNED.search(line):
        return Refusal(f"none, {match[1]}", UNSIGNED)
    match = _FLOWER.search(line)
    if match is None or (match[1] == "2004" and _FREE not in match[3]):
        return None
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as s

    try:
        key = s.load_pem_public_key(match[2].replace("\\n", "\n").encode())
        who = fingerprint(key.public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode())
    except (ValueError, TypeError, SettingError, UnsupportedAlgorithm):
        who = "of another kind"
    return Refusal(who, UNREGISTERED)
