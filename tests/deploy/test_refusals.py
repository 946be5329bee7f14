"""Who is refused stands in the audit log of the run: by Flower, by nats-server, and by the server itself."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")

sys.path.insert(0, str(Path(__file__).parents[1]))

from cryptography.hazmat.primitives import serialization

from connected import asked, named, until
from fedloom.algorithms import FedAvg
from fedloom.deploy import refusals
from fedloom.deploy.certificates import device_key, fingerprint
from fedloom.deploy.flower import flower_processes
from fedloom.deploy.flower.flower_processes import UNSIGNED, of_flower
from fedloom.deploy.invitations import enrol
from fedloom.deploy.nats.nats_server import of_nats
from fedloom.deploy.refusals import MOST, UNREGISTERED, Refusal, RefusalLog
from fedloom.deploy.server import audit_log
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.engines.engine_options import Options
from fedloom.engines.message_bytes import pack, seal, unpack, unseal
from flower_in_memory import DevicesOverFlower, Flower, serve
from tiny import LOCAL, mlp, population

NKEY = "UAMLZXWIOWWNF2IOITHKT2ZINQTORWMKOARPZBLLJ77CTHJ36LURD55A"
NATS = "[26654] 2026/11/27 02:03:33.502171 [ERR] 127.0.0.1:60154 - cid:7 - "  # as nats-server 2.15.1 writes it
KNOWN = f'{NATS}"v2.16.0:python3:Kiel" - "$G/nkey:{NKEY}" - '


def flower_line(public: str, code: int = 2001, end: str = "") -> str:
    """What Flower 1.42 writes when it refuses a key."""
    key = serialization.load_ssh_public_key(public.encode())
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    what = "Attempted to register SuperNode with public key"
    return f"ERROR : [/v1/fleet/register-node][ApiError:{code}] {what}: {pem!r}{end}"


def test_lines_of_flower(tmp_path: Path) -> None:
    _, public = device_key(tmp_path)
    its = Refusal(fingerprint(public), UNREGISTERED)
    assert of_flower(flower_line(public)) == its
    assert of_flower(flower_line(public, 2004, ", exception: No SuperNode found with the given public key.")) == its
    assert of_flower(flower_line(public, 2004, ", exception: SuperNode with node ID 3 could not be activated.")) is None
    assert of_flower("[ApiError:2001] x public key: b'-----BEGIN PUBLIC KEY-----\\nAAAA\\n'") == Refusal(
        "of another kind", UNREGISTERED
    )
    asked = '2026-11-27T07:18:57.311Z INFO [uvicorn.access] 10.0.0.7:46826 - "POST /v1/fleet/push-messages HTTP/1.1" '
    assert of_flower(f"{asked}401") == Refusal("none, 10.0.0.7", UNSIGNED)
    unknown = "MFQwDgYHKoZIzj0CAQYDKgMEA0IABAEB" + "A" * 79 + "="  # a curve that `cryptography` does not know
    line = f"[ApiError:2001] x public key: b'-----BEGIN PUBLIC KEY-----\\n{unknown}\\n-----END PUBLIC KEY-----\\n'"
    assert of_flower(line) == Refusal("of another kind", UNREGISTERED)
    for other in ("", "INFO : [Fleet.ActivateNode] Activated node_id=7", "ApiError:2001", f"{asked}200"):
        assert of_flower(other) is None


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (f'{NATS}authentication error - Nkey "{NKEY}"', Refusal(NKEY, UNREGISTERED)),
        (f"{NATS}authentication error", Refusal("none, 127.0.0.1", "it has no key")),
        (f'{KNOWN}Publish Violation - Subject "fedloom.up.Jena"',
         Refusal(NKEY, "it would speak in the place of another device, fedloom.up.Jena")),
        (f'{KNOWN}Subscription Violation - Subject "fedloom.down.Jena.>", SID 1',
         Refusal(NKEY, "it would listen in the place of another device, fedloom.down.Jena.>")),
        (f"{NATS}TLS handshake error: EOF", None),
        ("[26654] 2026/11/27 02:03:33.905965 [INF] Reloaded: accounts", None),
    ],
)  # fmt: skip
def test_lines_of_nats(line: str, refusal: Refusal | None) -> None:
    assert of_nats(line) == refusal


def test_a_log_takes_no_more_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that appends to it goes on at its new end; the part before is kept."""
    monkeypatch.setattr(refusals, "LARGEST", 2000)
    path, noted = tmp_path / "log", list[str]()
    log = RefusalLog(path, of_nats, lambda who, why: noted.append(who))
    with path.open("ab", buffering=0) as program:
        for k in range(100):
            program.write(f"{NATS.replace('127.0.0.1', f'10.0.0.{k}')}authentication error\n".encode())
            log.look()
            assert path.stat().st_size <= 2000
    assert noted == [f"key none, 10.0.0.{k}" for k in range(100)]
    assert {each.name: each.stat().st_size > 1900 for each in tmp_path.iterdir()} == {"log": False, "log.old": True}


def test_the_log_of_a_device_and_that_of_events_take_no_more_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part before stays beside them, as private as the log."""
    monkeypatch.setattr(refusals, "LARGEST", 2000)
    monkeypatch.setattr(audit_log, "LARGEST_AUDIT", 2000)
    monkeypatch.setattr(flower_processes, "ChildProgram", lambda command, env, log: SimpleNamespace(has_ended=False))
    path = tmp_path / "flower.log"
    node = flower_processes.SuperNode(path, "127.0.0.1:9", tmp_path / "device")
    node._closing.set()
    for _ in range(3):
        with path.open("ab") as program:
            program.write(b"x" * 1500)
        node._look()
    assert path.stat().st_size == 1500
    assert path.with_name("flower.log.old").stat().st_size == 3000
    assert [each.stat().st_mode & 0o777 for each in tmp_path.glob("flower.log*")] == [0o600] * 2
    audit = Audit(tmp_path / "audit.jsonl")
    for k in range(100):
        audit("joined", f"device {k}")
    both = [*events(tmp_path / "audit.jsonl.old"), *events(tmp_path / "audit.jsonl")]
    assert both[-1]["device"] == "device 99"
    assert [int(line["device"].split()[1]) for line in both] == [*range(100 - len(both), 100)]
    assert all(each.stat().st_size < 2200 for each in tmp_path.glob("audit.jsonl*"))


def test_each_is_noted_once_in_a_while_and_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, noted = tmp_path / "log", list[tuple[str, str]]()
    path.write_text(f'{NATS}authentication error - Nkey "{NKEY}"\n')  # of an earlier run

    def write(text: str) -> None:
        with path.open("a") as file:
            file.write(text)
        log.look()

    log = RefusalLog(path, of_nats, lambda who, why: noted.append((who, why)))
    log.register({"Kiel": NKEY})
    line = f'{NATS}authentication error - Nkey "{NKEY}"\n'
    write(line[:40])
    assert noted == []
    write(line[40:] + line * 3)
    assert noted == [(f"key {NKEY}", "its key is not registered; it was that of Kiel, which was removed")]
    monkeypatch.setattr(refusals, "AGAIN", 0.0)
    write(line)
    assert len(noted) == 2
    numbers = [f"{k:04}".translate(str.maketrans("0123456789", "ABCDEFGHIJ")) for k in range(MOST + 50)]
    write("".join(f'{NATS}authentication error - Nkey "{NKEY[:-4]}{n}"\n' for n in numbers))
    log.look()
    assert len(noted) == MOST + 2
    assert noted[-1] == ("others", f"more than {MOST} different ones were refused: {path} has all")
    write("x" * 3_000_000 + "\n" + line)
    for _ in range(4):
        log.look()
    assert len(noted) == MOST + 3
    assert len(log._rest) < 1 << 15
    path.write_text("")  # as logrotate does with copytruncate
    log.look()
    write(line)
    assert len(noted) == MOST + 4


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_list_of_devices_that_cannot_be_read_ends_no_run(tmp_path: Path) -> None:
    """The holder of an invitation is told so, and not where the list is."""
    flower, heard = Flower(), list[dict[str, Any]]()
    flower.connections.registered = lambda: {1: "invitation-Kiel"}
    fleet = RankFleet(flower.connections, Audit(tmp_path / "audit.jsonl"))
    (tmp_path / "devices.json").write_text("{")
    fleet.enrol = partial(enrol, tmp_path)
    public = device_key(tmp_path / "kiel")[1]

    def device(data: bytes) -> bytes:
        heard.append(json.loads(data))
        return json.dumps({"enrol": public}).encode()

    serve(flower.add(1), device)
    until(lambda: (fleet.handshake(b'{"settings": {}}', 0.1, bool), len(heard) == 2)[1])
    assert heard[1]["refused"].startswith("the server cannot read or write its list of devices")
    (line,) = events(tmp_path / "audit.jsonl")
    assert (line["event"], line["device"]) == ("refused", "invitation-Kiel")
    assert "devices.json does not name devices" in line["why"]
    flower.close()


def test_a_key_that_is_removed_in_the_middle(tmp_path: Path) -> None:
    """Flower names its node no more; the log says why the device has left."""
    flower, names = Flower(), {1: "Kiel", 2: "Jena"}
    flower.connections.registered = lambda: names
    for node, name in names.items():
        serve(flower.add(node), named(name))
    fleet = RankFleet(flower.connections, Audit(tmp_path / "audit.jsonl"))
    answers = fleet.handshake(b"hello", 20, lambda got: len(got) == 2)
    fleet.ranks = {data.decode(): rank for rank, data in answers.items()}
    fleet.names = tuple(fleet.ranks)
    del names[2], flower.grid.clients[2]
    until(lambda: flower.connections.reasons)
    assert asked(fleet, "Kiel") == {"Kiel": b"Kiel request"}
    assert [(line["event"], line["device"], line["why"]) for line in events(tmp_path / "audit.jsonl")] == [
        ("left", "Jena", "its key is not registered any more")
    ]
    flower.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"from": "device 1"}, "it answers for 'device 1'"),
        ({"number": 0}, "it answers request 0, and was sent 3"),
        ({"number": 1}, "it answers request 1, and was sent 3"),
    ],
)
def test_a_device_that_answers_for_another_or_to_an_old_round(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Over Flower's path of bytes: refused, in the log, and the others' round goes on."""
    engine = DevicesOverFlower(population(mlp), FedAvg(local=LOCAL), Options())
    fleet, state = engine.fleet, engine.init()
    assert fleet is not None
    fleet.audit.path = tmp_path / "audit.jsonl"
    sound = engine._answer

    def lying(client: int, name: str, data: bytes) -> bytes:
        answer = sound(client, name, data)
        if client != 2:
            return answer
        message = unpack(unseal(answer, fleet.tokens[name], 1 << 30))
        return seal(pack({**message.head, **change}, message.parts), fleet.tokens[name])

    state = engine.round(state, [2], 0)
    engine._answer = lying  # type: ignore[method-assign]
    engine.round(state, [0, 2], 1)
    last = events(tmp_path / "audit.jsonl")[-2:]
    assert {(line["event"], line["device"], line.get("why")) for line in last} == {
        ("answered", "device 0", None), ("refused", "device 2", why)
    }  # fmt: skip
    engine.close()
