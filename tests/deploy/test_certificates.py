"""Certificates and keys: who may read them, for whom and until when they are, and which devices may connect."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")

from cryptography import x509

from fedloom.cli.main import main
from fedloom.core.errors import SettingError
from fedloom.deploy import certificates
from fedloom.deploy.certificates import (
    add_device,
    device_key,
    fingerprint,
    keys,
    make_authority,
    make_server,
    registered,
    remove_device,
    server_files,
)
from fedloom.deploy.watched_keys import WatchedKeys


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def made(folder: Path) -> Path:
    make_authority(folder, 100)
    make_server(folder, ["fed.example.org", "127.0.0.1"], 90)
    return folder


def test_a_server_has_a_certificate_for_its_names_and_addresses(tmp_path: Path) -> None:
    (authority, server, key), warning = server_files(made(tmp_path))
    assert warning is None
    certificate = x509.load_pem_x509_certificate(server.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org"]
    assert [*map(str, names.get_values_for_type(x509.IPAddress))] == ["127.0.0.1"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server, key)  # they belong together
    ends = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=89) < ends <= timedelta(days=90)


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root alone")
def test_what_root_writes_belongs_to_whom_the_folder_belongs(tmp_path: Path) -> None:
    """So a service that runs as a user of its own reads what its owner has changed; nothing else is given away."""
    certs, outside = tmp_path / "certs", tmp_path / "outside"
    certs.mkdir()
    os.chown(certs, 4321, 4322)
    add_device(made(certs), "Kiel", device_key(tmp_path / "state")[1])
    for path in certs.iterdir():
        assert (path.stat().st_uid, path.stat().st_gid) == (4321, 4322), path
    assert (tmp_path / "state" / "key").stat().st_uid == 0
    outside.write_text("of root")
    (certs / "devices.lock").unlink()
    (certs / "devices.lock").symlink_to(outside)  # by the user whose folder it is
    with pytest.raises(OSError, match="symbolic links"):
        remove_device(certs, "Kiel")
    (certs / "devices.lock").unlink()
    os.link(outside, certs / "devices.lock")
    remove_device(certs, "Kiel")
    assert outside.stat().st_uid == 0


def test_what_is_secret_is_its_users_alone(tmp_path: Path) -> None:
    made(tmp_path / "certs")
    private, _ = device_key(tmp_path / "state")
    add_device(tmp_path / "certs", "Kiel", (tmp_path / "state" / "key.pub").read_text())
    for path in (tmp_path / "certs" / "authority.key", tmp_path / "certs" / "server.key", private,
                 tmp_path / "certs" / "devices.json"):  # fmt: skip
        assert mode(path) == 0o600, path
    private.chmod(0o640)
    with pytest.raises(SettingError, match=r"key is secret, and others may read it: chmod 600 "):
        device_key(tmp_path / "state")
    (tmp_path / "certs" / "nats.nk").touch(mode=0o600)  # as an earlier version made it
    for name in ("server.key", "authority.key", "nats.nk"):
        (tmp_path / "certs" / name).chmod(0o640)
        with pytest.raises(SettingError, match=rf"{name} is secret, and others may read it: chmod 600"):
            server_files(tmp_path / "certs")
        (tmp_path / "certs" / name).chmod(0o600)
    server_files(tmp_path / "certs")


def test_a_device_keeps_its_key(tmp_path: Path) -> None:
    assert device_key(tmp_path) == device_key(tmp_path)
    assert device_key(tmp_path)[1] != device_key(tmp_path / "other")[1]


def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    device_key(tmp_path)
    try:
        said = subprocess.run(
            ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("there is no ssh-keygen")
    assert fingerprint((tmp_path / "key.pub").read_text()) == said.stdout.split()[1]


def test_devices_are_added_and_removed(tmp_path: Path) -> None:
    (_, one), (_, two) = device_key(tmp_path / "1"), device_key(tmp_path / "2")
    add_device(tmp_path, "Kiel", f"{one} root@kiel\n")
    add_device(tmp_path, "Bremen", two)
    assert keys(tmp_path) == {"Kiel": one, "Bremen": two}
    for name, key in (("Kiel", two), ("Hamburg", one)):
        with pytest.raises(SettingError, match=r"a name and a key of its own, got those of Kiel, SHA256:"):
            add_device(tmp_path, name, key)
    remove_device(tmp_path, "Kiel")
    assert keys(tmp_path) == {"Bremen": two}
    with pytest.raises(SettingError, match=r"no device 'Kiel' is registered in .*; there are Bremen"):
        remove_device(tmp_path, "Kiel")


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 61, "-x", "\x1b[31m", "a\n", "a.b", "é", "server"])
def test_a_device_has_a_plain_name(name: str, tmp_path: Path) -> None:
    """One that every transport takes, and by which no transport calls anybody else."""
    words = "a device's name has 1 to 60 ASCII letters, digits, - and _, does not begin with - or invitation-, and is"
    for key in (device_key(tmp_path)[1], NKEY):
        with pytest.raises(SettingError, match=words):
            add_device(tmp_path, name, key)


def test_a_list_with_a_name_that_no_device_may_have_is_refused_until_that_is_removed(tmp_path: Path) -> None:
    """An earlier version took more for a key of Flower, and such devices stay; not so the server's own name."""
    of_flower = device_key(tmp_path)[1]
    for name, key, stays in (
        ("server", NKEY, False), ("server", of_flower, False), ("a.b", NKEY, False), ("a.b", of_flower, True),
        ("é", of_flower, True),
    ):  # fmt: skip
        (tmp_path / "devices.json").write_text(json.dumps({"devices": {name: {"key": key, "added": "2026-01-01"}}}))
        if stays:
            assert keys(tmp_path) == {name: key}
            continue
        for read in (registered, keys, lambda folder: WatchedKeys(folder, print)):
            with pytest.raises(SettingError, match=rf"and remove this entry \(fedloom devices remove \S+ '{name}'\)"):
                read(tmp_path)
        remove_device(tmp_path, name)
        assert registered(tmp_path) == {}


@pytest.mark.parametrize(
    "key", ["", "x", "ssh-rsa AAAA", "ecdsa-sha2-nistp384 " + "A" * 120, "ecdsa-sha2-nistp384 " + "!" * 120]
)
def test_a_key_is_one_that_flower_takes(key: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="a device's public key is a line ecdsa-sha2-nistp384 AAAA"):
        add_device(tmp_path, "Kiel", key)
    assert registered(tmp_path) == {}


NKEY = "UAMLZXWIOWWNF2IOITHKT2ZINQTORWMKOARPZBLLJ77CTHJ36LURD55A"  # as nkeys makes them


@pytest.mark.parametrize(
    "key", ["U" + "A" * 55, NKEY[:-1] + "B", NKEY[:9] + "A" + NKEY[10:], "A" + NKEY[1:], "UX" + NKEY[2:], NKEY[:-1]]
)
def test_a_key_of_nats_has_its_checksum(key: str, tmp_path: Path) -> None:
    """nats-server takes no configuration with another, and would go on with the keys that it had."""
    with pytest.raises(SettingError, match="a device's public key is a line"):
        add_device(tmp_path, "Kiel", key)
    assert add_device(tmp_path, "Kiel", NKEY) == NKEY


def test_two_entries_of_one_key_are_a_damaged_list(tmp_path: Path) -> None:
    entry = {"key": NKEY, "added": "2026-01-01", "until": "2100-01-01", "used": ""}
    for lists in ({"devices": {"a": entry, "b": entry}}, {"devices": {"a": entry}, "invitations": {"a": entry}}):
        (tmp_path / "devices.json").write_text(json.dumps(lists))
        with pytest.raises(SettingError, match=r"does not name devices \([ab] has the key of another entry, UAML"):
            registered(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"devices": 3}', b'{"devices": {"a": {}}}',
        b'{"devices": {"a": {"key": "x", "added": "x"}}}',
    ],
)  # fmt: skip
def test_a_damaged_list_of_devices_lets_nobody_in(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "devices.json").write_bytes(data)
    with pytest.raises(SettingError, match=r"devices.json does not name devices \(.*: bring it back"):
        registered(tmp_path)


def test_a_server_goes_on_with_the_keys_it_knows_where_the_list_is_spoilt(tmp_path: Path) -> None:
    """It says so once, and reads the list again once that is mended."""
    told, public = list[str](), device_key(tmp_path / "kiel")[1]
    add_device(tmp_path, "Kiel", public)
    watched = WatchedKeys(tmp_path, told.append)
    known, right = watched(), (tmp_path / "devices.json").read_bytes()
    for _ in range(2):
        (tmp_path / "devices.json").write_bytes(b"{")
        for _ in range(3):
            assert watched() == known
        (tmp_path / "devices.json").write_bytes(right)
        assert watched() == known
    assert [text.partition(" does not name devices ")[0] for text in told] == [str(tmp_path / "devices.json")] * 2
    assert told[0].endswith("bring it back; until then nobody is let in or shut out")
    remove_device(tmp_path, "Kiel")
    assert watched() == {}
    (tmp_path / "devices.json").write_bytes(b"{")
    with pytest.raises(SettingError, match="does not name devices"):
        WatchedKeys(tmp_path, told.append)


def test_what_is_refused_before_a_server_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"there is no .*authority.crt: make it \(fedloom certs authority "):
        server_files(tmp_path)
    with pytest.raises(SettingError, match=r"there is no .*authority.crt"):
        make_server(tmp_path, ["a"], 5)
    make_authority(tmp_path, 20)
    with pytest.raises(SettingError, match="an authority, which the devices have the certificate of"):
        make_authority(tmp_path, 20)
    with pytest.raises(SettingError, match="ends before that of its authority"):
        make_server(tmp_path, ["a"], 30)
    with pytest.raises(SettingError, match="is for a name or an address, got none"):
        make_server(tmp_path, [], 10)
    for name in ("a b", "-x", "", "a/b", "x" * 300):
        with pytest.raises(SettingError, match="a server has a name or an address"):
            make_server(tmp_path, [name], 10)
    for days in (0, -1, 100_000):
        with pytest.raises(SettingError, match="valid for 1 to 36500 days"):
            make_server(tmp_path, ["a"], days)
    make_server(tmp_path, ["::1", "*.example.org"], 10)
    assert "server.crt ends on" in str(server_files(tmp_path)[1])

    shift = [0]

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=shift[0])

    monkeypatch.setattr(certificates, "datetime", Later)
    for days in (11, -11):
        shift[0] = days
        with pytest.raises(
            SettingError, match=r"is valid from .* and this host says that it is .*: set the clock, or renew"
        ):
            server_files(tmp_path)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs, state = str(tmp_path / "certs"), str(tmp_path / "state")

    def said(*words: str, status: int = 0) -> str:
        assert main([*words]) == status
        captured = capsys.readouterr()
        return " ".join((captured.err if status else captured.out).split())

    assert f"{certs}/authority.crt goes to all devices; " in said("certs", "authority", certs)
    assert "server.crt is for localhost; fedloom serve --certs " in said(
        "certs", "server", certs, "--name", "localhost", "--days", "9"
    )
    line = said("certs", "device", state)
    assert line.startswith("ecdsa-sha2-nistp384 ")
    its = fingerprint((tmp_path / "state" / "key.pub").read_text())
    assert line.endswith(its)
    assert f"Kiel may connect with the key {its}" in said("devices", "add", certs, "Kiel", f"{state}/key.pub")
    assert said("devices", "list", certs).startswith(f"Kiel {its} since ")
    assert "needs the name of a device" in said("devices", "remove", certs, status=2)
    assert "needs the device's public key" in said("devices", "add", certs, "Bremen", status=2)
    assert "Kiel may connect no longer" in said("devices", "remove", certs, "Kiel")
    assert said("devices", "list", certs) == f"registered devices: none yet ({certs})"
    assert "got 'key.pubb' (No such file or directory)" in said("devices", "add", certs, "Bremen", "key.pubb", status=2)
    for kind in ("authority", "server"):
        words = ["certs", kind, str(tmp_path / "certs"), "--name", "localhost", "--days", "0"]
        assert "a certificate is valid for 1 to 36500 days, got 0" in said(*words, status=2)
    for action in (["list"], ["add", "Bremen", f"{state}/key.pub"], ["remove", "Bremen"]):
        words = ["devices", action[0], str(tmp_path / "cerst"), *action[1:]]
        assert f"there is no folder {tmp_path}/cerst" in said(*words, status=2)
    assert not (tmp_path / "cerst").exists()
    assert json.loads((tmp_path / "certs" / "devices.json").read_text()) == {"format": 1, "devices": {}}
