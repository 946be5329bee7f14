"""The page of a server's devices over HTTP, beside health and numbers for Prometheus: on this host alone, GET alone.

The page and the numbers stand behind a token in their address, since other users of the host reach the port.
"""

from __future__ import annotations

import hmac
import io
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.deploy.presence import CONNECTED
from fedloom.deploy.status_file import StatusFile
from fedloom.deploy.status_page import POLICY, page
from fedloom.ranks.communication import check_port
from fedloom.wording import install

HERE = "127.0.0.1"
TOKEN = "page.token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")
AT_ONCE = 8  # connections that are served at a time; others are closed
PATIENCE = 5.0  # seconds for a whole request, and for its answer
LARGEST_HEAD = 1 << 13  # bytes of a request
_COUNTED = {
    "sent": ("sent_bytes", "Bytes of requests to a device."),
    "received": ("received_bytes", "Bytes of answers of a device."),
    "answered": ("answers", "Answers that were accepted."),
    "lost": ("lost_rounds", "Rounds in which a device did not answer in time, or was not there."),
    "late": ("late_answers", "Answers that came too late and were dropped."),
    "refused": ("refused_answers", "Answers that were refused."),
    "declined": ("declined", "Rounds that a device declined."),
}
_MEASURED = {
    "heard": ("heard_timestamp_seconds", "When a device was last heard, since 1970."),
    "examples": ("examples", "Training examples of a device that count."),
    "round": ("round", "The last round in which a device answered."),
    "seconds": ("round_seconds", "Seconds of that round, from being asked to the answer."),
    "personal": ("personal_measure", "The headline measure of a device's personal model."),
}


def check_page(port: int | None, metrics: bool) -> None:
    """Raise SettingError if there can be no page at a port, or no numbers on it, before anything starts."""
    if port is None:
        if metrics:
            raise SettingError("--metrics needs the port of --page, got none: give --page 8080")
        return
    if not 1 <= port <= 65535:
        raise SettingError(f"--page is a port from 1 to 65535, got {port}: give another, such as 8080")
    check_port(HERE, port, "--page")
    if metrics:
        try:
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise SettingError(f"--metrics needs prometheus-client ({error}): {install('metrics')}") from None


@contextmanager
def serve_page(
    status: StatusFile, port: int | None, metrics: bool, say: Callable[[str], object]
) -> Iterator[str | None]:
    """Serve the page of a status while this is open, and say where; do nothing without a port.

    `port`: 0 for any. Yield the address.
    """
    if port is None:
        yield None
        return
    token = _token(status.folder / TOKEN)
    server = _Server((HERE, port), _Handler)
    server.status, server.token, server.metrics = status, token, metrics
    address = f"http://{HERE}:{server.server_address[1]}/{token}/"
    say(f"page of the devices, on this host alone: {address}" + f"; numbers: {address}metrics" * metrics)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="page", daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def exposition(content: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return what Prometheus reads of a status: the kind of the text, and the text."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Numbers:
        def collect(self) -> Iterator[Any]:
            yield GaugeMetricFamily("fedloom_round", "Rounds that are finished.", value=content["round"])
            yield GaugeMetricFamily("fedloom_rounds", "Rounds of the run.", value=content["rounds"])
            yield CounterMetricFamily(
                "fedloom_turned_away", "Connections that were refused before their device was known.",
                value=content["turned_away"],
            )  # fmt: skip
            of = {its["id"]: (its["name"] or its["id"], its["id"]) for its in content["devices"]}
            there = GaugeMetricFamily("fedloom_device_connected", "1 if a device is connected.", labels=_LABELS)
            for its in content["devices"]:
                there.add_metric(of[its["id"]], its["state"] == CONNECTED)
            yield there
            for table, family in ((_MEASURED, GaugeMetricFamily), (_COUNTED, CounterMetricFamily)):
                for entry, (name, meaning) in table.items():
                    numbers = family(f"fedloom_device_{name}", meaning, labels=_LABELS)
                    for its in content["devices"]:
                        if its[entry] is not None:
                            numbers.add_metric(of[its["id"]], its[entry])
                    yield numbers

    registry = CollectorRegistry()
    registry.register(Numbers())
    return CONTENT_TYPE_LATEST, generate_latest(registry)


_LABELS = ("device", "id")


class _Server(ThreadingHTTPServer):
    """Server of a few connections at a time."""

    daemon_threads = True
    status: StatusFile
    token: str
    metrics: bool

    def __init__(self, *args: Any) -> None:
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that leaves is no event of the run."""


class _Handler(BaseHTTPRequestHandler):
    """Answer of one request, whose head is read whole first, so that nobody holds a thread for long."""

    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BytesIO(_head(self.connection))
        self.connection.settimeout(PATIENCE)

    def version_string(self) -> str:
        return "fedloom"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: addresses have the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with an error, in two words; whatever is not GET is not allowed."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._answer(status, "text/plain", f"{status.phrase}\n".encode())

    def do_GET(self) -> None:  # as the library calls it
        """Answer with the page, health or numbers, or that there is nothing."""
        status = self.server.status
        path = self.path.partition("?")[0]
        if path == "/health":
            snapshot = status.presence.snapshot()
            said = {"status": "runs" if snapshot["begun"] else "waits", "problem": status.problem}
            said |= {name: snapshot[name] for name in ("round", "rounds")}
            return self._answer(503 if status.problem else 200, "application/json", json.dumps(said).encode())
        _, token, *rest = path.split("/", 2)
        if not hmac.compare_digest(token.encode("latin-1", "replace"), self.server.token.encode()):
            return self.send_error(404)
        content = {**status.presence.snapshot(), "server": "runs", "written": time.time()}
        if rest in ([], [""]):
            text = page(content, status.folder.resolve().name, time.time())
            return self._answer(200, "text/html; charset=utf-8", text.encode("utf-8", "replace"))
        if rest == ["metrics"] and self.server.metrics:
            return self._answer(200, *exposition(content))
        return self.send_error(404)

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store", "Allow": "GET",
            "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _head(connection: socket.socket) -> bytes:
    """Return the head of a request; b"" where it does not come whole in time, or is too long."""
    head, end = b"", time.monotonic() + PATIENCE
    with suppress(OSError):
        while len(head) < LARGEST_HEAD and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (more := connection.recv(LARGEST_HEAD - len(head))):
                break
            head += more
            if b"\r\n\r\n" in head:
                return head
    return b""


def _token(path: Path) -> str:
    """Return the token of a run's page, which is drawn once, so that an address stays when a run goes on.

    Raises:
        SettingError: the file is no such token, or others may read it.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(made := secrets.token_urlsafe(24))
        return made
    except FileExistsError:
        text = path.read_bytes()[:64].decode("ascii", "replace")
    if not _TOKEN.fullmatch(text) or (os.name != "nt" and path.stat().st_mode & 0o077):
        raise SettingError(
            f"{path} is to hold the token of the page, 32 letters and digits that its user alone may read, and does "
            "not: remove it, and another is drawn"
        )
    return text
