"""Flower's processes beside ours: the SuperLink of `fedloom serve`, the SuperNode of `fedloom join`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedloom.core.errors import RankError, SettingError
from fedloom.wire.flower_relay import SOCKET
from fedloom.wire.guard import Guarded

VERSION = "1.42.0"
START = 90.0  # seconds for a process of Flower to begin its work
AGAIN = 5.0  # seconds until a process that ended is started again
_CONFIG = '[superlink]\ndefault = "fedloom"\n[superlink.fedloom]\naddress = "127.0.0.1:{port}"\n{security}\n'
_APP = """[project]
name = "fedloom-relay"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "fedloom"
[tool.flwr.app.components]
serverapp = "fedloom.wire.flower_app:server"
clientapp = "fedloom.wire.flower_app:client"
"""


def check_installed() -> None:
    """Raise SettingError unless Flower is installed, in the version whose processes are started here."""
    try:
        import flwr
    except ImportError as error:
        raise SettingError(f"--transport flower needs Flower ({error}): pip install fedloom[flower]") from None
    if flwr.__version__ != VERSION:
        raise SettingError(
            f"--transport flower needs Flower {VERSION}, got {flwr.__version__}: pip install fedloom[flower]"
        )
    if sys.platform != "linux":
        raise SettingError(f"--transport flower runs on Linux, got {sys.platform}: take another machine or transport")


def private_folder() -> Path:
    """Return a new folder that only this user can open, with a short name, as sockets need."""
    return Path(tempfile.mkdtemp(prefix="fedloom-"))


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
        self._process: Guarded | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def close(self) -> None:
        """End the process and all that it started, and delete its folder."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._process is not None:
            self._process.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _supervise(self) -> None:
        while not self._closing.wait(0.2):
            self._look()

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
    ) -> None:
        super().__init__(log)
        self.port, self.tls, self._keys, self._is_carried = port, tls, keys, is_carried
        self._registered: dict[str, tuple[str, int]] = {}  # (key, node) by name
        self._submitted = 0.0
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self._env = environment(self.home, socket, path)
        security = "insecure = true" if tls is None else f"root-certificates = {json.dumps(str(tls[0].resolve()))}"
        (self.home / "config.toml").write_text(_CONFIG.format(port=port, security=security), encoding="utf-8")
        (self.folder / "app").mkdir()
        (self.folder / "app" / "pyproject.toml").write_text(_APP, encoding="utf-8")
        if _is_open(port):
            self.close()
            raise SettingError(f"port {port} of 127.0.0.1 is in use: choose another (--port)")
        try:
            self._start()
        except RankError:
            self.close()
            raise
        self._thread.start()

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
            RankError: it does not begin to listen.
        """
        self._process = Guarded(self._command(), self._env, self.log)
        end = time.monotonic() + START
        while not _is_open(self.port):
            if self._process.has_ended or time.monotonic() > end or self._closing.is_set():
                raise RankError(f"Flower's SuperLink does not start: {_last_words(self.log)}; look at {self.log}")
            time.sleep(0.1)
        self._register()
        self._submit()

    def _submit(self) -> None:
        self._submitted = time.monotonic()
        self._flwr("run", str(self.folder / "app"), "fedloom")

    def _flwr(self, *words: str) -> str:
        """Return what a command of Flower prints.

        Raises:
            RankError: it fails.
        """
        output = self.folder / "output"
        output.write_bytes(b"")
        command = Guarded(["flwr", *words], self._env, output)
        try:
            status = command.wait(START)
        except TimeoutError as error:
            raise RankError(f"flwr {words[0]}: {error}") from None
        finally:
            command.close()
        text = output.read_text(errors="replace")
        with self.log.open("a", encoding="utf-8") as file:
            file.write(text)
        if status:
            raise RankError(f"flwr {words[0]} failed: {text.strip()[-500:]}")
        return text

    def _register(self) -> None:
        """Let the devices in whose keys are registered now, and no others."""
        if self.tls is None:
            return
        keys = self._keys()
        for name, (key, node) in list(self._registered.items()):
            if keys.get(name) != key:
                self._flwr("supernode", "unregister", str(node), "fedloom")
                del self._registered[name]
        for name, key in keys.items():
            if name not in self._registered:
                (self.folder / "key.pub").write_text(key, encoding="ascii")
                text = self._flwr(
                    "supernode", "register", str(self.folder / "key.pub"), "fedloom", "--name", name, "--format", "json"
                )
                self._registered[name] = key, int(json.loads(text[text.index("{") :])["node-id"])

    def _look(self) -> None:
        assert self._process is not None
        try:
            if self._process.has_ended:
                self._start()
            elif not self._is_carried() and time.monotonic() - self._submitted > START:
                self._submit()
            self._register()
        except RankError as error:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(f"fedloom: {error}\n")
            self._closing.wait(AGAIN)


class SuperNode(_Supervised):
    """The SuperNode of a device. `socket`: that of `RelayedServer`. `authority`, `key`: files; None: insecure."""

    def __init__(
        self, log: Path, server: str, socket: Path, authority: Path | None = None, key: Path | None = None
    ) -> None:
        super().__init__(log)
        self.server, self.authority, self.key = server, authority, key
        programs = self.folder / "bin"
        programs.mkdir()
        here = Path(sys.executable).parent
        _write_program(programs / "flower-superexec", [str(here / "flower-superexec")])
        _write_program(programs / "flwr-clientapp", [sys.executable, "-m", "fedloom.wire.flower_app"])
        self._env = environment(self.home, socket, str(programs))  # no other program of Flower is found
        self._started = float("-inf")
        self._look()
        self._thread.start()

    def _look(self) -> None:
        if (self._process is None or self._process.has_ended) and time.monotonic() - self._started > AGAIN:
            self._started = time.monotonic()
            security = ["--insecure"]
            if self.authority is not None:
                security = ["--root-certificates", str(self.authority.resolve())]
            if self.key is not None:
                security += ["--auth-supernode-private-key", str(self.key.resolve())]
            program = str(Path(sys.executable).parent / "flower-supernode")
            port = ["--host", "127.0.0.1", "--port", str(free_port())]
            self._process = Guarded([program, *security, "--superlink", self.server, *port], self._env, self.log)


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
