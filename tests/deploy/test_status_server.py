"""The page over HTTP: its token, what is refused, and what a client cannot do to the server; health and numbers."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launching
from fedloom.core.errors import SettingError
from fedloom.deploy import status_server
from fedloom.deploy.presence import Presence
from fedloom.deploy.status_file import StatusFile
from fedloom.deploy.status_server import AT_ONCE, HERE, LARGEST_HEAD, TOKEN, check_page, serve_page

KIEL = "a" * 32


class Served:
    """A page at a port of its own."""

    def __init__(self, folder: Path, metrics: bool) -> None:
        self.said: list[str] = []
        self.presence = Presence(self.said.append, 20, "0.2.0")
        self.status = StatusFile(folder, self.presence, self.said.append)
        self.presence.hear({"event": "joined", "device": KIEL, "name": "Kiel", "client": 0, "examples": 12})
        self.presence.hear({"event": "asked", "device": KIEL, "bytes": 300})
        self.presence.hear({"event": "refused", "device": "key abc", "why": "unknown"})
        self.page = serve_page(self.status, 0, metrics, self.said.append)

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection(HERE, self.port, timeout=20)
        connection.request(method, path)
        response = connection.getresponse()
        found = response.status, dict(response.getheaders()), response.read().decode()
        connection.close()
        return found

    def open(self) -> socket.socket:
        return socket.create_connection((HERE, self.port), timeout=20)

    def __enter__(self) -> Served:
        address = self.page.__enter__()
        assert address is not None
        self.port, self.token = int(address.split(":")[2].partition("/")[0]), address.split("/")[3]
        return self

    def __exit__(self, *_: object) -> None:
        self.page.__exit__(None, None, None)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, metrics=True) as made:
        yield made


def test_the_page_stands_behind_its_token(served: Served) -> None:
    code, heads, text = served.get(f"/{served.token}/")
    assert (code, "Kiel" in text) == (200, True)
    assert heads["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert (heads["Cache-Control"], heads["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert (heads["X-Content-Type-Options"], heads["Server"]) == ("nosniff", "fedloom")
    assert served.get(f"/{served.token}?again")[0] == 200
    for path in (
        "/", "/x", f"/{served.token[:-1]}/", f"/{served.token}x/", f"/{served.token}/other", f"/{served.token}/../",
        "/x/metrics", "/metrics", "/%ff/", "/status.json", f"/{TOKEN}", "/health/",
    ):  # fmt: skip
        code, _, text = served.get(path)
        assert (code, text) == (404, "Not Found\n"), path
    assert f"page of the devices, on this host alone: http://127.0.0.1:{served.port}/{served.token}/" in served.said[1]


def test_nothing_but_get_is_answered(served: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
        code, heads, _ = served.get(f"/{served.token}/", method)
        assert (code, heads["Allow"]) == (405, "GET"), method


def test_who_talks_too_much_or_not_at_all_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "PATIENCE", 0.3)
    for said in (b"GET / HTTP/1.1\r\nX: " + b"y" * LARGEST_HEAD, b"GET / HTT", b"\x16\x03\x01 of TLS\r\n", b""):
        start = time.monotonic()
        with served.open() as client:
            client.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(99) == b""
        assert time.monotonic() - start < 10
    with served.open() as client:
        client.sendall(b"\xff\xfe nonsense\r\n\r\n")
        assert client.recv(999) == b"Bad Request\n"
    assert served.get("/health")[0] == 200


def test_few_connections_are_served_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [served.open() for _ in range(AT_ONCE)]
    time.sleep(0.3)  # the server takes them
    with served.open() as another:
        assert another.recv(9) == b""
    for client in held:
        client.close()
    end = time.monotonic() + 20
    code = 0
    while code != 200 and time.monotonic() < end:
        try:
            code = served.get("/health")[0]
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
    assert code == 200


def test_health_is_that_of_the_server(served: Served) -> None:
    code, heads, text = served.get("/health")
    assert (code, heads["Content-Type"]) == (200, "application/json")
    assert json.loads(text) == {"status": "waits", "problem": "", "round": 0, "rounds": 20}
    served.presence.has_begun = True
    served.status.problem = "cannot write status.json: no space left"
    code, _, text = served.get("/health")
    assert (code, json.loads(text)["status"]) == (503, "runs")


def test_numbers_are_those_that_prometheus_reads(served: Served) -> None:
    parser: Any = pytest.importorskip("prometheus_client.parser")
    served.presence.hear({"event": "joined", "device": "b" * 32, "name": 'Bonn"\n\\', "client": 1, "examples": 9})
    served.presence.hear({"event": "left", "device": "b" * 32, "why": "its connection ended"})
    code, heads, text = served.get(f"/{served.token}/metrics")
    assert (code, heads["Content-Type"].partition(";")[0]) == (200, "text/plain")
    found = {
        (sample.name, sample.labels.get("device")): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["fedloom_rounds", None] == 20
    assert found["fedloom_turned_away_total", None] == 1
    assert (found["fedloom_device_connected", "Kiel"], found["fedloom_device_connected", 'Bonn"\n\\']) == (1, 0)
    assert found["fedloom_device_sent_bytes_total", "Kiel"] == 300
    assert found["fedloom_device_examples", "Kiel"] == 12
    assert ("fedloom_device_round", "Kiel") not in found  # it was never asked


def test_without_metrics_there_are_none_and_without_a_port_no_page(tmp_path: Path) -> None:
    with Served(tmp_path, metrics=False) as served:
        assert served.get(f"/{served.token}/metrics")[0] == 404
    with serve_page(served.status, None, False, served.said.append) as address:
        assert address is None


def test_the_token_stays_with_its_run_and_is_its_users_alone(tmp_path: Path) -> None:
    with Served(tmp_path, metrics=False) as first, Served(tmp_path, metrics=False) as second:
        assert first.token == second.token == (tmp_path / TOKEN).read_text()
    assert len(first.token) == 32
    assert (tmp_path / TOKEN).stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").mkdir()
    with Served(tmp_path / "other", metrics=False) as third:
        assert third.token != first.token
    (tmp_path / TOKEN).chmod(0o640)
    said = rf"{TOKEN} is to hold the token of the page, 32 .* that its user alone may read, and does not: remove it"
    with pytest.raises(SettingError, match=said), Served(tmp_path, metrics=False):
        pass
    (tmp_path / TOKEN).write_text("short")
    (tmp_path / TOKEN).chmod(0o600)
    with pytest.raises(SettingError, match=said), Served(tmp_path, metrics=False):
        pass


def test_what_cannot_be_served_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_page(None, False)
    check_page(launching.free_port(), False)
    with pytest.raises(SettingError, match="--metrics needs the port of --page, got none: give --page 8080"):
        check_page(None, True)
    with pytest.raises(SettingError, match="--page is a port from 1 to 65535, got 0: give another, such as 8080"):
        check_page(0, False)
    with socket.create_server((HERE, 0)) as taken:
        monkeypatch.setattr("fedloom.ranks.communication._LEAVES_WITHIN", 0.0)
        with pytest.raises(SettingError, match=r"port \d+ of 127\.0\.0\.1 is taken .*\(--page\)"):
            check_page(taken.getsockname()[1], False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingError, match=r"--metrics needs prometheus-client .* pip install '<PATH>\[metrics\]'"):
        check_page(launching.free_port(), True)
