"""Invitations: a private file by which one device registers a key of its own, once, over either transport."""

from __future__ import annotations

import json
import re
import stat
import sys
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")
pytest.importorskip("nkeys", reason="nkeys is not installed")

sys.path.insert(0, str(Path(__file__).parents[1]))

from connected import until
from fedloom.cli.main import main
from fedloom.core.errors import RefusedError, SettingError
from fedloom.deploy import certificates, invitations
from fedloom.deploy.certificates import device_key, fingerprint, keys, registered
from fedloom.deploy.invitations import Enrolment, Invitation, accept, enrol, invite
from fedloom.deploy.nats.nats_server import make_key
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from flower_in_memory import Flower, serve


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return certificates.make_authority(tmp_path_factory.mktemp("ca"), 300).read_bytes()


@pytest.fixture
def certs(tmp_path: Path, authority: bytes) -> Path:
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs" / "authority.crt").write_bytes(authority)
    return tmp_path / "certs"


def public_of(folder: Path, transport: str) -> str:
    return make_key(folder / "nats.nk") if transport == "nats" else device_key(folder)[1]


def sent(public: str) -> bytes:
    return json.dumps({"enrol": public}).encode()


def later(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr(certificates, "datetime", Later)


@pytest.mark.parametrize("transport", ["flower", "nats"])
def test_an_invitation_registers_one_key_once(transport: Any, certs: Path, tmp_path: Path) -> None:
    file, state = tmp_path / "Kiel.invitation", tmp_path / "state"
    invite(certs, "Kiel", "fed.example.org:443", transport, 14, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {*tmp_path.iterdir()} == {file, certs}  # the key that it holds is nowhere else
    over_nats = transport == "nats"
    assert [*keys(certs, nkeys=over_nats)] == ["invitation-Kiel"]
    assert keys(certs, nkeys=not over_nats) == registered(certs) == {}

    joining = accept(file, state)
    assert (joining.name, joining.transport, joining.server) == ("Kiel", transport, "fed.example.org:443")
    assert joining.authority.read_bytes() == (certs / "authority.crt").read_bytes()
    assert joining.key is not None
    assert stat.S_IMODE(joining.key.stat().st_mode) == 0o600
    device = Enrolment(public_of(state, transport))
    answer = device(b'{"run": "x", "settings": {}}')
    its = enrol(certs, "invitation-Kiel", answer)
    assert its == fingerprint(device.public)
    assert keys(certs, nkeys=over_nats)["Kiel"] in device.public
    assert enrol(certs, "invitation-Kiel", answer) == its  # of a device that did not get the answer
    device(b'{"enrolled": true}')
    assert device.is_done
    assert joining.begins == "registering the key of Kiel at fed.example.org:443"
    assert joining.ends() == "the key of Kiel is registered; the invitation is used, and can be deleted"
    assert not joining.key.exists()
    again = accept(file, state)
    file.unlink()
    assert (again.key, accept(file, state).key, again.server) == (None, None, joining.server)

    other = public_of(tmp_path / "thief", transport)
    with pytest.raises(RefusedError, match=rf"the invitation of Kiel was used on 20\S+ by {re.escape(its)}, and"):
        enrol(certs, "invitation-Kiel", sent(other))
    assert [*registered(certs)] == ["Kiel"]
    certificates.remove_device(certs, "Kiel")
    assert keys(certs, nkeys=over_nats) == {}
    with pytest.raises(RefusedError, match="there is no invitation of Kiel any more"):
        enrol(certs, "invitation-Kiel", answer)


@pytest.mark.parametrize("transport", ["flower", "nats"])
def test_an_invitation_registers_no_key_that_the_server_cannot_hold(
    transport: Any, certs: Path, tmp_path: Path
) -> None:
    """With one of these in its list the server would take no other change of it."""
    for name in ("Kiel", "Jena"):
        invite(certs, name, "h:1", transport, 14, tmp_path / name)
    its = {name: each["key"] for name, each in certificates.invitations(certs).items()}
    other = public_of(tmp_path / "other", "flower" if transport == "nats" else "nats")
    for public, words in (
        (its["Kiel"], "a device has a key of its own, and that of an invitation was sent for Kiel"),
        (its["Jena"], "a device has a key of its own, and that of an invitation was sent for Kiel"),
        (other, "the invitation of Kiel is for another transport than this key: join by it anew"),
        ("U" + "A" * 55, "the holder of an invitation registers a key, and does nothing else: a device's public key"),
    ):
        with pytest.raises(RefusedError, match=words):
            enrol(certs, "invitation-Kiel", sent(public))
    assert registered(certs) == {}
    enrol(certs, "invitation-Kiel", sent(public_of(tmp_path / "state", transport)))


def test_an_invitation_that_another_process_makes_meanwhile_stays(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, new_key = tmp_path / "file", invitations._new_key

    def slow(*args: Any) -> Any:
        if not file.exists():
            monkeypatch.setattr(invitations, "_new_key", new_key)
            invite(certs, "Kiel", "h:1", "flower", 3, file)
        return new_key(*args)

    monkeypatch.setattr(invitations, "_new_key", slow)
    with pytest.raises(SettingError, match="file exists: remove it, or choose another"):
        invite(certs, "Kiel", "h:1", "flower", 3, file)
    assert Invitation.read(file).name == "Kiel"
    assert [*certificates.invitations(certs)] == ["Kiel"]


def test_an_invitation_ends(certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invite(certs, "Kiel", "h:1", "flower", 3, tmp_path / "file")
    for days in (3, 4):
        later(monkeypatch, days)
        monkeypatch.setattr(invitations, "today", certificates.today)
        assert [*keys(certs)] == ["invitation-Kiel"] * (days == 3)
    with pytest.raises(SettingError, match=r"the invitation of Kiel ended on 20.*, and this host says that it is 20"):
        Invitation.read(tmp_path / "file")
    with pytest.raises(RefusedError, match="no invitation of Kiel any more"):
        enrol(certs, "invitation-Kiel", sent(device_key(tmp_path / "state")[1]))


def test_what_is_refused_in_words(certs: Path, tmp_path: Path) -> None:
    file, public = tmp_path / "file", device_key(tmp_path / "state")[1]
    certificates.add_device(certs, "Jena", public)

    def refused(words: str, name: str = "Kiel", transport: Any = "flower", days: int = 3, out: Path = file) -> None:
        before = {*tmp_path.iterdir()}
        with pytest.raises(SettingError, match=words):
            invite(certs, name, "h:1", transport, days, out)
        assert {*tmp_path.iterdir()} == before

    refused("got those of Jena", "Jena")
    refused("valid for 1 to 365 days, got 0", days=0)
    for transport in ("flower", "nats"):
        for name in ("a.b", "server", "é", "invitation-x"):
            refused("a device's name has 1 to 60 ASCII letters, digits, - and _", name, transport)
    refused('does not begin with - or invitation-, .*, got "invitation-Kiel": choose another', "invitation-Kiel")
    refused("exists, and may be the invitation of a device", out=certs / "authority.crt")
    invite(certs, "Kiel", "h:1", "flower", 3, file)
    refused("got those of the invitation of Kiel", out=tmp_path / "another")
    with pytest.raises(SettingError, match="got those of the invitation of Kiel"):
        certificates.add_device(certs, "Kiel", device_key(tmp_path / "more")[1])
    for data in (b"", b"{}", b'{"enrol": 3}', b"x" * 70_000, sent("ssh-rsa AAAA"), b'{"id": "1"}'):
        with pytest.raises(RefusedError, match="registers a key, and does nothing else"):
            enrol(certs, "invitation-Kiel", data)
    with pytest.raises(RefusedError, match="got those of Jena"):  # the key of another device
        enrol(certs, "invitation-Kiel", sent(public))
    assert [*registered(certs)] == ["Jena"]

    with pytest.raises(SettingError, match=r"there is no .*gone: ask the server's owner"):
        accept(tmp_path / "gone", tmp_path / "new")
    accept(file, tmp_path / "new").used()
    invite(certs, "Ulm", "h:1", "flower", 3, tmp_path / "Ulm")
    with pytest.raises(SettingError, match="is of the device Kiel, which was invited by another file"):
        accept(tmp_path / "Ulm", tmp_path / "new")
    content = json.loads(file.read_text())
    for wrong in ({"format": 2}, {"server": 3}, {"transport": "gloo"}, {"name": "../x"}, {"more": "x"}):
        file.write_text(json.dumps(content | wrong))
        with pytest.raises(SettingError, match="is no invitation"):
            Invitation.read(file)
    file.chmod(0o644)
    with pytest.raises(SettingError, match="is secret, and others may read it: chmod 600"):
        Invitation.read(file)


def test_the_end_of_an_enrolment() -> None:
    device = Enrolment("key")
    assert device(b"") == b""
    assert (device.is_over, device.is_done) == (True, False)
    with pytest.raises(RefusedError, match="does not take this invitation: it was used"):
        device(b'{"refused": "it was used"}')
    with pytest.raises(RefusedError, match="not a message of a fedloom server"):
        device(b"{")


def test_a_server_takes_enrolments_before_devices(certs: Path, tmp_path: Path) -> None:
    """Of three ranks one is a device, and two have the key of one invitation: the second is refused and logged."""
    invite(certs, "Kiel", "h:1", "flower", 3, tmp_path / "file")
    flower, names = Flower(), {1: "Jena", 2: "invitation-Kiel"}
    flower.connections.registered = lambda: names
    fleet = RankFleet(flower.connections, Audit(tmp_path / "audit.jsonl"))
    fleet.enrol = partial(enrol, certs)
    first, second = (Enrolment(device_key(tmp_path / name)[1]) for name in ("one", "two"))
    serve(flower.add(1), lambda data: b"registration")
    serve(flower.add(2), first)
    answers = dict[int, bytes]()
    until(lambda: (answers.update(fleet.handshake(b'{"settings": {}}', 0.1, bool)), first.is_done and answers)[1])
    assert answers == {1: b"registration"}
    assert fleet.manager.name_of(1) == "Jena"
    assert [*registered(certs)] == ["Kiel"]
    names[3] = "invitation-Kiel"
    heard = list[str]()

    fleet.admit = lambda rank, data: None

    def answered(data: bytes) -> bytes:
        try:
            return second(data)
        except RefusedError as error:
            heard.append(str(error))
            return b"{}"

    serve(flower.add(3), answered)
    until(lambda: (fleet._admit_registered(0.0), heard)[1])
    assert heard[0].startswith("the server does not take this invitation: the invitation of Kiel was used on 20")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["device"]) for line in lines] == [
        ("enrolled", "invitation-Kiel"), ("refused", "invitation-Kiel"),
    ]  # fmt: skip
    assert lines[0]["key"] == fingerprint(first.public)
    assert "was used on" in lines[1]["why"]
    assert second.public.split()[1] not in (certs / "devices.json").read_text()
    flower.close()


def test_commands(certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["invite", "Kiel", "--certs", str(certs), "--server"]
    assert main([*words, "fed.example.org"]) == 2
    assert (
        "over Flower a device is given the server's place, got 'fed.example.org': --server" in capsys.readouterr().err
    )
    assert main([*words, "fed.example.org", "--transport", "nats"]) == 2
    assert "over NATS a device is given the server's place" in capsys.readouterr().err
    assert main([*words, "fed.example.org:443"]) == 0
    assert "Kiel.invitation lets one device register as Kiel, once, within 14 days" in capsys.readouterr().out
    assert main(["devices", "list", str(certs)]) == 0
    assert "Kiel  invited until 20" in (said := capsys.readouterr().out)
    assert "not used" in said
    join = ["join", "--invite", "Kiel.invitation", "--data", "mine.npz", "--state", "state", "--name", "Jena"]
    assert main(join) == 2
    assert "the invitation of Kiel says Kiel, got --name Jena: leave --name out" in capsys.readouterr().err

    def unreachable(*_: Any) -> None:
        raise SettingError("nothing is wrong with the flags")

    monkeypatch.setattr("fedloom.deploy.flower.flower_transport.wait_for_server", unreachable)
    assert main([*join[:-2], "--server", "fed.example.org:443", "--transport", "flower"]) == 2
    assert "nothing is wrong with the flags" in capsys.readouterr().err
    for more, said in (
        (["--server", "far.org:1"], "says fed.example.org:443, got --server far.org:1: leave --server out"),
        (["--transport", "nats"], "says flower, got --transport nats"),
        (["--authority", "other.crt"], f"says {Path('state/authority.crt')}, got --authority other.crt"),
        (["--insecure"], "says with certificates, got --insecure: leave --insecure out"),
    ):
        assert main([*join[:-2], *more]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
