"""`fedloom serve` and `fedloom join` over Flower: what is refused before anything starts, and in which words."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")


from fedloom.cli.main import main
from fedloom.core.errors import RankError, SettingError
from fedloom.deploy import certificates, reachable
from fedloom.deploy.certificates import make_authority, make_server
from fedloom.deploy.flower import flower_processes, flower_transport
from fedloom.deploy.flower.flower_processes import check_installed
from fedloom.deploy.reachable import address_of, check_reachable


@contextmanager
def listening(folder: Path | None) -> Iterator[int]:
    """A server with the certificate in a folder, or one without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            context = None
            if folder is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(folder / "server.crt", folder / "server.key")
            while True:
                try:
                    with server.accept()[0] as connection:
                        if context is None:
                            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        else:
                            context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    if server.fileno() < 0:
                        return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def certified(folder: Path, name: str = "127.0.0.1", shift: int = 0, monkeypatch: Any = None) -> Path:
    """A folder with certificates that begin `shift` days from now and end two days later."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=shift)

    make_authority(folder, 50)
    if monkeypatch is not None:
        monkeypatch.setattr(certificates, "datetime", Shifted)
    make_server(folder, [name], 2)
    return folder


def test_the_server_of_the_certificate_is_reached(tmp_path: Path) -> None:
    folder = certified(tmp_path)
    with listening(folder) as port:
        check_reachable("127.0.0.1", port, folder / "authority.crt")
    with listening(None) as port:
        check_reachable("127.0.0.1", port, None)


def test_another_server_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(RankError, match=rf"no server answers at 127.0.0.1:{port} \(.*: start fedloom serve"):
        check_reachable("127.0.0.1", port, None)
    ours = certified(tmp_path / "ours", "fed.example.org")
    theirs = certified(tmp_path / "theirs")
    with listening(ours) as port, pytest.raises(SettingError, match=r"is for another name .*: give --server by the"):
        check_reachable("127.0.0.1", port, ours / "authority.crt")
    with listening(theirs) as port, pytest.raises(SettingError, match=r"was not signed by .*authority.crt"):
        check_reachable("127.0.0.1", port, ours / "authority.crt")
    with listening(None) as port, pytest.raises(SettingError, match="does not speak TLS"):
        check_reachable("127.0.0.1", port, ours / "authority.crt")
    old = certified(tmp_path / "old", shift=-5, monkeypatch=monkeypatch)
    with listening(old) as port, pytest.raises(SettingError, match=r"has expired, and this host says that it is 20"):
        check_reachable("127.0.0.1", port, old / "authority.crt")
    early = certified(tmp_path / "early", shift=5, monkeypatch=monkeypatch)
    with listening(early) as port, pytest.raises(SettingError, match=r"is not valid yet, and this host .* the clock"):
        check_reachable("127.0.0.1", port, early / "authority.crt")


def test_a_server_that_says_nothing_or_hardly_anything_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds are those of the whole greeting, not those between two bytes of it."""
    monkeypatch.setattr(reachable, "_SECONDS", 0.3)
    authority, over = certified(tmp_path) / "authority.crt", threading.Event()

    def drip(server: socket.socket, each: bytes) -> None:
        with server.accept()[0] as connection:
            while not over.wait(0.1):
                connection.sendall(each)

    for each in (b"", b"\x16"):
        over.clear()
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=drip, args=(server, each), daemon=True)
            thread.start()
            port = server.getsockname()[1]
            with pytest.raises(
                RankError, match=rf"^no server answers at 127.0.0.1:{port} \(.*timed out\): start fedloom"
            ):
                check_reachable("127.0.0.1", port, authority)
            over.set()
            thread.join()


@pytest.mark.parametrize("server", [None, "", "host", "host:", ":8443", "host:0", "host:70000", "host:x"])
def test_a_server_is_named_by_host_and_port(server: str | None) -> None:
    with pytest.raises(
        SettingError, match=r"^over NATS a device is given the server's place, got .*--server HOST:PORT"
    ):
        address_of(server, "NATS")


def test_addresses() -> None:
    assert address_of("fed.example.org:443", "Flower") == ("fed.example.org", 443)
    assert address_of("[::1]:8443", "NATS") == ("::1", 8443)


def words(folder: Path) -> tuple[list[str], list[str]]:
    x, y = np.zeros((6, 4), np.float32), np.array([0, 1, 2] * 2)
    np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (folder / "fed.toml").write_text('algorithm = "fedavg"\nmodel = "logistic"\nrun = {rounds = 1, cohort_size = 2}\n')
    serve = ["serve", "--transport", "flower", "--settings", str(folder / "fed.toml"), "--out", str(folder / "out")]
    join = ["join", "--transport", "flower", "--data", str(folder / "mine.npz"), "--state", str(folder / "state")]
    return serve, join


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_transport, "check_installed", lambda: None)


@pytest.mark.usefixtures("installed")
def test_what_is_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve, join = words(tmp_path)

    def refused(*argv: str) -> str:
        assert main([*argv]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "say with how many the run begins (--least N)" in refused(*serve)
    assert "over Flower a server has certificates: give --certs DIR" in refused(*serve, "--least", "2")
    assert "there is no " in refused(*serve, "--least", "2", "--certs", str(tmp_path / "certs"))
    assert "--server HOST:PORT" in refused(*join)
    assert "ask the server's owner for the file authority.crt" in refused(*join, "--server", "127.0.0.1:1")
    text = refused(*join, "--server", "fed.example.org:443", "--insecure")
    assert "--insecure is for a server on this host, got fed.example.org" in text
    assert not (tmp_path / "state" / "key").exists()


def test_flags_of_another_transport_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who forgets --transport would else be told of ranks, or run without the certificates that were given."""
    serve, join = words(tmp_path)
    cases = [
        (serve, "gloo", ["--certs", "c"], "--certs belongs to --transport flower or --transport nats"),
        (serve, "mpi", ["--port", "1"], "--port belongs to --transport flower or"),
        (serve, "flower", ["--host", "0.0.0.0"], "--host belongs to --transport nats, got --transport flower"),
        (serve, "nats", ["--insecure"], "--insecure belongs to --transport flower, got --transport nats"),
        (serve, "flower", ["--insecure", "--certs", "c"], "--insecure uses no certificates, got --certs too"),
        (join, "gloo", ["--server", "a:1"], "--server belongs to --transport flower or"),
        (join, "nats", ["--insecure-anywhere"], "--insecure-anywhere belongs to --transport flower"),
        (join, "flower", ["--insecure", "--authority", "a"], "--insecure uses no certificates, got --authority too"),
    ]
    for command, transport, more, said in cases:
        assert main([*command, "--transport", transport, *more]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("installed")
def test_insecure_says_what_it_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    def tried(host: str, port: int, authority: Path | None) -> None:
        raise SettingError(f"tried {host}:{port} with {authority}")

    monkeypatch.setattr(reachable, "check_reachable", tried)
    _, join = words(tmp_path)
    for more in (["--server", "127.0.0.1:9", "--insecure"], ["--server", "far.org:9", "--insecure-anywhere"]):
        assert main([*join, *more]) == 2
        captured = capsys.readouterr()
        assert "nothing is encrypted, and anyone who can reach the port can join" in " ".join(captured.out.split())
        assert f"tried {more[1]} with None" in captured.err


def test_flower_is_installed_in_the_right_version(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = ["1.42.0", "1.41.0"]

    def version(name: str) -> str:
        if not versions:
            raise flower_processes.PackageNotFoundError
        return versions.pop()

    monkeypatch.setattr(flower_processes, "version", version)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(SettingError, match=r"needs Flower 1.42.0, got 1.41.0"):
        check_installed()
    check_installed()
    with pytest.raises(SettingError, match="it is not installed: pip install"):
        check_installed()
    versions.append("1.42.0")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SettingError, match="runs on Linux, got win32"):
        check_installed()
