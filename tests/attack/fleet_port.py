"""Hostile requests to the port of a real SuperLink, by HTTP and TLS, directly or through nginx.

    python tests/attack/fleet_port.py --cases 100000 --nginx /usr/sbin/nginx --seconds 600

Without a key, with one that is not registered, with a signature of another key or of another time, in the name of
another device, to the interface by which runs are started, and what is no HTTP: nothing of this may be answered by a
success. A registered device sends damaged requests, too: those may be answered as they like, and the SuperLink must
go on. Every hundredth request is a sound heartbeat, which must be answered. nginx has the configuration of
docs/flower.md, with the ports and files of this trial.

Printed are the requests by kind and the statuses of the answers, how the SuperLink has grown, and which lines of its
log the audit log would have.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import time
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from fuzz import damaged

from fedloom.deploy import certificates
from fedloom.deploy.child_program import descendants
from fedloom.deploy.flower.flower_processes import SuperLink, free_port
from flower_in_memory import short_folder

SOUND = 100  # every so many requests one is sound
KINDS = ("no key", "another key", "another signature", "another time", "another device", "control", "damaged", "noise")
FLEET = "/v1/fleet/"
CONTROL = ("/v1/control/start-run", "/v1/control/list-runs", "/v1/control/register-node", "/v1/runtime/acquire-task",
           "/v1/control/stop-run", "/docs", "/openapi.json", "/v1/fleet/../control/start-run")  # fmt: skip


class Key:
    """A device's key, and what its owner signs."""

    def __init__(self, folder: Path) -> None:
        path, self.public = certificates.device_key(folder)
        private: Any = serialization.load_ssh_private_key(path.read_bytes(), None)
        self.private = private
        self.pem = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def headers(self, claimed: Key | None = None, seconds: float = 0.0) -> dict[str, str]:
        at = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)).isoformat()
        signature = self.private.sign(at.encode(), ec.ECDSA(hashes.SHA256()))
        public = (claimed or self).pem
        return {
            "flwr-public-key": b64encode(public).decode(), "flwr-signature": b64encode(signature).decode(),
            "flwr-timestamp": at,
        }  # fmt: skip


def requests(key: Key, node: int) -> dict[str, bytes]:
    """Sound requests of a device, by path."""
    who = Node(node_id=node)
    found = {
        "send-node-heartbeat": SendNodeHeartbeatRequest(node=who, heartbeat_interval=30.0),
        "pull-messages": PullMessagesRequest(node=who), "push-messages": PushMessagesRequest(node=who),
        "push-object": PushObjectRequest(node=who, object_id="0" * 64, object_content=b"x" * 100),
        "register-node": RegisterNodeFleetRequest(public_key=key.pem),
        "activate-node": ActivateNodeRequest(public_key=key.pem, heartbeat_interval=30.0),
    }  # fmt: skip
    return {FLEET + name: each.SerializeToString() for name, each in found.items()}


class Port:
    """A connection to the port, which begins anew where the other end has closed it."""

    def __init__(self, port: int, authority: Path) -> None:
        self.port, self.context = port, ssl.create_default_context(cafile=str(authority))
        self.connection = self._new()

    def _new(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)

    def status(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Return the status of the answer; 0: the connection was closed."""
        for _ in range(2):
            try:
                self.connection.request("POST", path, body, {"content-type": "application/protobuf", **headers})
                answer = self.connection.getresponse()
                answer.read()
                return answer.status
            except (OSError, http.client.HTTPException):
                self.connection.close()
                self.connection = self._new()
        return 0

    def noise(self, rng: random.Random) -> int:
        """Send what is no TLS, or no HTTP; return 0, as there is no status."""
        data = rng.choice((b"", b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(300), b"POST /v1/fleet/ HTTP/9\r\n" * 50))
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 20) as raw:
            if rng.random() < 0.5:
                raw.sendall(data)
            else:
                with self.context.wrap_socket(raw, server_hostname="127.0.0.1") as secured:
                    secured.sendall(data)
        return 0


def case(kind: str, rng: random.Random, port: Port, keys: tuple[Key, Key], node: int) -> int:
    """Send a request of a kind, and return the status of its answer."""
    ours, theirs = keys
    path, body = rng.choice([*requests(ours, node).items()])
    match kind:
        case "sound":
            path = FLEET + "send-node-heartbeat"
            return port.status(path, requests(ours, node)[path], ours.headers())
        case "no key":
            return port.status(path, body, {})
        case "another key":
            return port.status(path, rng.choice([body, requests(theirs, node)[path]]), theirs.headers())
        case "another signature":
            return port.status(path, body, theirs.headers(claimed=ours))
        case "another time":
            return port.status(path, body, ours.headers(seconds=rng.choice([-1, 1]) * rng.uniform(400, 1e6)))
        case "another device":
            other = rng.choice([0, 1, node ^ (1 << rng.randrange(63)), rng.getrandbits(63)])
            path = rng.choice([path for path in requests(ours, node) if "ivate" not in path and "register" not in path])
            return port.status(path, requests(ours, other)[path], ours.headers())
        case "control":
            return port.status(rng.choice(CONTROL), rng.choice([b"", body]), rng.choice([{}, ours.headers()]))
        case "damaged":
            return port.status(path, damaged(body, rng), ours.headers())
    return port.noise(rng)


def nginx(program: str, folder: Path, certs: Path, upstream: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start nginx with the configuration of docs/flower.md; return it and its port."""
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    found, port = re.search(r"\n    server \{\n.*?\n    \}\n", page, re.DOTALL), free_port()
    assert found is not None
    block = textwrap.dedent(found[0]).replace("/etc/fedloom/certs", str(certs)).replace(":8443", f":{upstream}")
    block = block.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{places}\n{block}}}\n"
    )
    command = [program, "-p", str(folder), "-e", f"{folder}/nginx.log", "-c", f"{folder}/nginx.conf"]
    subprocess.run([*command, "-t"], check=True)
    return subprocess.Popen(command), port


def resident() -> float:
    """Return the resident memory of the SuperLink's own process, in MiB."""
    sizes = [0.0]
    for number in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if b"flower-superlink" in Path(f"/proc/{number}/cmdline").read_bytes():
                sizes.append(int(Path(f"/proc/{number}/statm").read_text().split()[1]) * 4096 / 2**20)
    return max(sizes)


def attack(cases: int, seed: int, seconds: float, program: str | None) -> int:
    """Send the requests; return how many were taken that may not be, or not answered though sound."""
    folder, refused = short_folder(), Counter[str]()
    certs, wrong, proxy = folder / "certs", 0, None
    certificates.make_authority(certs, 9)
    certificates.make_server(certs, ["127.0.0.1", "fed.example.org"], 2)
    tls, _ = certificates.server_files(certs)
    keys = Key(folder / "ours"), Key(folder / "theirs")
    link = SuperLink(
        folder / "flower.log", free_port(), folder / "server", lambda: True, tls, lambda: {"Kiel": keys[0].public},
        lambda who, why: refused.update([why]),
    )  # fmt: skip
    try:
        at, node, kinds = link.port, link._registered["Kiel"][1], KINDS
        if program is None:  # this port has the other interface, too
            kinds = tuple(kind for kind in KINDS if kind != "control")
        else:
            proxy, at = nginx(program, folder, certs, link.port)
        port = Port(at, tls[0])
        while port.status(FLEET + "activate-node", requests(keys[0], node)[FLEET + "activate-node"],
                          keys[0].headers()) != 200:  # fmt: skip
            time.sleep(0.5)
        for number in range(200):
            case("no key" if number % 2 else "damaged", random.Random(number), port, keys, node)
        before, start, counts = resident(), time.monotonic(), Counter[tuple[str, int]]()
        for number in range(cases):
            if time.monotonic() - start > seconds:
                break
            rng = random.Random(f"{seed}/{number}")
            kind = "sound" if number % SOUND == 0 else rng.choice(kinds)
            status = case(kind, rng, port, keys, node)
            counts[kind, status] += 1
            wrong += (status != 200) if kind == "sound" else (kind != "damaged" and 0 < status < 400)
        link._refusals.look()
        took = time.monotonic() - start
        for (kind, status), count in sorted(counts.items()):
            print(f"{kind}: {count:,} answered by {status or 'the end of the connection'}")
        print(
            f"{'nginx' if program else 'SuperLink'}: requests {counts.total():,}, wrong {wrong}, seconds {took:.0f}, "
            f"the SuperLink has grown from {before:.0f} MiB by {resident() - before:.1f} MiB; for the audit log: "
            f"{dict(refused)}",
            flush=True,
        )
    finally:
        if proxy is not None:
            proxy.terminate()
            proxy.wait()
        link.close()
        shutil.rmtree(folder)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no more is sent")
    parser.add_argument("--nginx", help="the program, for requests through nginx")
    args = parser.parse_args()
    return int(attack(args.cases, args.seed, args.seconds, args.nginx) > 0)


if __name__ == "__main__":
    sys.exit(main())
