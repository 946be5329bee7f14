"""Certificates of a server and keys of devices, by `cryptography`: what `fedloom certs` and `fedloom devices` make.

    authority.crt, authority.key    made once; devices get the first, and nobody the second
    server.crt, server.key          for the names and addresses by which devices reach the server
    devices.json                    the public keys of the devices that may connect, by name, and of invitations
    key, key.pub                    of a device, in its state folder; the first never leaves it

Files that are secret can be read by their user alone.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import ipaddress
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.deploy.device_names import INVITED, check_name
from fedloom.storage import files
from fedloom.storage.strict_json import parse, pretty
from fedloom.wording import some_of

AUTHORITY, SERVER, DEVICES, KEY = "authority", "server", "devices.json", "key"
SOON = 30  # days before the end of a certificate in which the server warns
_PUBLIC = re.compile(r"ecdsa-sha2-nistp384 ([A-Za-z0-9+/=]{100,400})(?: .*)?")
_NKEY = re.compile(r"U[A-Z2-7]{55}")  # a device's public key over NATS
_USER = 20 << 3  # the first byte of such a key
_DEVICES = 1 << 24  # bytes of the file of devices
_LOCK = "devices.lock"
_SHOWN = 100  # names in a line
_SECRET = ("*.key", "*.nk")  # files of the folder that its user alone may read


def make_authority(folder: Path, days: int) -> Path:
    """Make the authority that signs the server's certificate; return its certificate, which devices need."""
    from cryptography import x509

    _check_days(days)
    files.make(folder)
    key = _new_key()
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "fedloom authority")])
    certificate = (
        _begin(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _write(folder, AUTHORITY, key, certificate, key)


def make_server(folder: Path, names: Sequence[str], days: int) -> Path:
    """Make the certificate of a server for its names and addresses, which replaces an earlier one; return it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    _check_days(days)
    if not names:
        raise SettingError("a server's certificate is for a name or an address, got none: give --name fed.example.org")
    general_names = [_general_name(name) for name in names]
    parent = x509.load_pem_x509_certificate(_read(folder / f"{AUTHORITY}.crt", "fedloom certs authority"))
    signer: Any = load_pem_private_key(_read(folder / f"{AUTHORITY}.key", "fedloom certs authority"), None)
    if parent.not_valid_after_utc < datetime.now(UTC) + timedelta(days=days):
        raise SettingError(
            f"the server's certificate ends before that of its authority, on {parent.not_valid_after_utc:%Y-%m-%d}: "
            "give fewer --days, or make a new authority, which all devices need then"
        )
    key = _new_key()
    certificate = (
        _begin(x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, names[0][:64])]), parent.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(general_names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _write(folder, SERVER, key, certificate, signer)


def server_files(folder: Path) -> tuple[tuple[Path, Path, Path], str | None]:
    """Return (authority's certificate, server's certificate, its key), and a warning if one ends soon.

    Raises:
        SettingError: one is missing, has ended, has not begun, or a private key can be read by others.
    """
    from cryptography import x509

    warning = None
    for name, remedy in ((AUTHORITY, "fedloom certs authority"), (SERVER, "fedloom certs server")):
        path = folder / f"{name}.crt"
        certificate, now = x509.load_pem_x509_certificate(_read(path, remedy)), datetime.now(UTC)
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not start <= now <= end:
            raise SettingError(
                f"{path} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and this host says that it is "
                f"{now:%Y-%m-%d %H:%M} UTC: set the clock, or renew it ({remedy} {folder})"
            )
        if end - now < timedelta(days=SOON):
            warning = f"{path} ends on {end:%Y-%m-%d}: renew it ({remedy} {folder})"
    for path in sorted(found for pattern in _SECRET for found in folder.glob(pattern)):
        check_private(path)
    _read(folder / f"{SERVER}.key", "fedloom certs server")
    return (folder / f"{AUTHORITY}.crt", folder / f"{SERVER}.crt", folder / f"{SERVER}.key"), warning


def device_key(folder: Path) -> tuple[Path, str]:
    """Return the file of a device's private key and its public key; make them if there are none."""
    from cryptography.hazmat.primitives import serialization as s

    files.make(folder)
    private, public = folder / KEY, folder / f"{KEY}.pub"
    if not private.exists():
        key = _new_key()
        line = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
        write_file(public, line + b"\n", 0o644)
        write_file(private, key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()), 0o600)
    check_private(private)
    return private, public.read_text(encoding="ascii").strip()


def fingerprint(public: str) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -l` prints it; a key of NATS is short enough itself.

    Raises:
        SettingError: it is no public key of a device.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    match = _PUBLIC.fullmatch(public.strip())
    try:
        if is_nkey(public.strip()) and bytes_of_nkey(public.strip())[0] == _USER:
            return public.strip()
        if match is None:
            raise ValueError
        load_ssh_public_key(f"ecdsa-sha2-nistp384 {match[1]}".encode())
        digest = hashlib.sha256(base64.b64decode(match[1], validate=True)).digest()
    except ValueError:
        raise SettingError(
            f"a device's public key is a line ecdsa-sha2-nistp384 AAAA..., over NATS U and 55 letters and digits, got "
            f"{public.strip()!r:.60}: take the file key.pub of its state folder, or what fedloom join prints"
        ) from None
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def is_nkey(public: str) -> bool:
    """Return whether a public key of a device is one of NATS."""
    return _NKEY.fullmatch(public) is not None


def bytes_of_nkey(text: str) -> bytes:
    """Return the bytes of a key of NATS, without their checksum; raise `ValueError` if that is of others."""
    data = base64.b32decode(text + "=" * (-len(text) % 8))
    if int.from_bytes(data[-2:], "little") != binascii.crc_hqx(data[:-2], 0):
        raise ValueError("its checksum is of another key")
    return data[:-2]


def registered(folder: Path) -> dict[str, dict[str, str]]:
    """Return the devices that may connect by name: their public keys, and since when."""
    return _read_devices(folder)["devices"]


def invitations(folder: Path) -> dict[str, dict[str, str]]:
    """Return the invitations by the names of their devices: public key, last day, and when and by which key used."""
    return _read_devices(folder)["invitations"]


def keys(folder: Path, *, nkeys: bool = False) -> dict[str, str]:
    """Return the public keys that may connect, by name: those of OpenSSH, or nkeys.

    The key of an invitation has the name of its device after `INVITED`. It stays until its last day, so that a second
    use is told from a wrong key; all that it lets its holder do is to register a key.
    """
    its = {name: device["key"] for name, device in registered(folder).items()}
    its |= {INVITED + name: each["key"] for name, each in invitations(folder).items() if each["until"] >= today()}
    return {name: key for name, key in its.items() if is_nkey(key) == nkeys}


def who_may_connect(folder: Path) -> str:
    """Return the names of the devices that are registered and of the invitations that are open."""
    opened = [name for name, its in invitations(folder).items() if not its["used"] and its["until"] >= today()]
    invited = f"; open invitations: {some_of(opened, _SHOWN)}" if opened else ""
    return f"registered devices: {some_of([*registered(folder)], _SHOWN) or 'none yet'}{invited} ({folder})"


def today() -> str:
    """Return the date, in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def name_of_server(folder: Path) -> str:
    """Return the first name or address that the server's certificate is for."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(_read(folder / f"{SERVER}.crt", "fedloom certs server"))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return str(next(iter(names)).value)


def add_device(folder: Path, name: str, public: str) -> str:
    """Let a device with this public key connect; return the fingerprint.

    Raises:
        SettingError: the name or the key is registered already.
    """
    check_name(name)
    its, key = fingerprint(public), " ".join(public.split()[:2])
    with changed(folder) as lists:
        check_new(lists, name, key, folder)
        lists["devices"][name] = {"key": key, "added": today()}
    return its


def remove_device(folder: Path, name: str) -> None:
    """Let a device connect no longer, also in a run that goes on; its invitation ends too."""
    with changed(folder, any_names=True) as lists:
        if not any(name in its for its in lists.values()):
            raise SettingError(
                f"no device {name!r:.80} is registered in {folder}; there are {', '.join(lists['devices']) or 'none'}"
            )
        for its in lists.values():
            its.pop(name, None)


def check_new(lists: Mapping[str, Mapping[str, Any]], name: str, key: str, folder: Path) -> None:
    """Raise SettingError if a name or a key is of another device, or of an invitation."""
    its = fingerprint(key)
    for kind, word in (("devices", ""), ("invitations", "the invitation of ")):
        for other, known in lists[kind].items():
            if other == name or fingerprint(known["key"]) == its:
                raise SettingError(
                    f"a device has a name and a key of its own, got those of {word}{other}, "
                    f"{fingerprint(known['key'])}: take another name, or remove that device (fedloom devices remove "
                    f"{folder} {other})"
                )


def check_private(path: Path) -> None:
    """Raise SettingError if others than its user may read a file."""
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise SettingError(f"{path} is secret, and others may read it: chmod 600 {path}")


# ---- parts of these


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _begin(subject: Any, issuer: Any, key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs: bool) -> Any:
    from cryptography import x509

    names = (
        "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
        "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **dict.fromkeys(names, False)
    )


def _general_name(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9*]([A-Za-z0-9-]*)(\.[A-Za-z0-9-]+)*", name):
            raise SettingError(
                f"a server has a name or an address, got {name!r:.80}: such as fed.example.org"
            ) from None
        return x509.DNSName(name)


def _write(folder: Path, name: str, key: Any, certificate: Any, signer: Any) -> Path:
    from cryptography.hazmat.primitives import hashes, serialization as s

    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    public = certificate.sign(signer, hashes.SHA384()).public_bytes(s.Encoding.PEM)
    path = folder / f"{name}.crt"
    if name == AUTHORITY and (folder / f"{name}.key").exists():
        raise SettingError(
            f"{folder} has an authority, which the devices have the certificate of: make one in another folder, or "
            "remove authority.key and authority.crt, and bring all devices the new certificate"
        )
    write_file(folder / f"{name}.key", private, 0o600)
    write_file(path, public, 0o644)
    return path


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file that never has another mode, in the place of an earlier one; it belongs to the folder's owner."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        _give_to_owner(file.fileno(), path.parent)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _give_to_owner(descriptor: int, folder: Path) -> None:
    """Let a file of root's belong to the owner of its folder: a service that runs as another user is to read it."""
    its, owner = os.fstat(descriptor), folder.stat()
    if its.st_uid == os.geteuid() == 0 != owner.st_uid and its.st_nlink == 1:
        with suppress(OSError):  # of a user that this container has not; the service says that it may not read it
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


@contextmanager
def changed(folder: Path, *, any_names: bool = False) -> Iterator[dict[str, dict[str, Any]]]:
    """Let the lists of devices and of invitations be changed, by one process at a time, and write them.

    `any_names`: whether they may hold names that no device may have, so that these can be removed.
    """
    files.make(folder)
    with os.fdopen(os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b") as lock:
        _give_to_owner(lock.fileno(), folder)
        fcntl.flock(lock, fcntl.LOCK_EX)
        lists = _read_devices(folder, any_names=any_names)
        yield lists
        its = {name: each for name, each in lists.items() if each or name == "devices"}
        write_file(folder / DEVICES, (pretty({"format": 1, **its}) + "\n").encode(), 0o600)


def _read_devices(folder: Path, *, any_names: bool = False) -> dict[str, dict[str, Any]]:
    """Return the list of devices and that of invitations, by the names of devices.

    Raises:
        SettingError: the file does not hold them, or a name is that of no device, unless `any_names`.
    """
    path = folder / DEVICES
    if not path.exists():
        return {"devices": {}, "invitations": {}}
    try:
        found = parse(path.read_bytes(), _DEVICES)
        lists = {"devices": found.get("devices"), "invitations": found.get("invitations", {})}
        seen = set[str]()
        for kind, words in (("devices", ("key", "added")), ("invitations", ("key", "until", "used"))):
            its = lists[kind]
            if not isinstance(its, dict):
                raise ValueError(f"there is no list of {kind}")
            for name, each in its.items():
                if not isinstance(each, dict) or not all(isinstance(each.get(word), str) for word in words):
                    raise ValueError(f"{name!r:.80} has no {' or no '.join(words)}")
                if (its_key := fingerprint(each["key"])) in seen:
                    raise ValueError(f"{name} has the key of another entry, {its_key}")
                seen.add(its_key)
    except ValueError as error:
        raise SettingError(f"{path} does not name devices ({error}): bring it back") from None
    if not any_names:
        _check_names(folder, lists)
    return lists


def _check_names(folder: Path, lists: Mapping[str, Mapping[str, Any]]) -> None:
    for its in lists.values():
        for name, each in its.items():
            try:
                check_name(name, registered_for_flower=not is_nkey(each["key"]))
            except SettingError as error:
                raise SettingError(
                    f"{folder / DEVICES}: {error}, and remove this entry (fedloom devices remove {folder} {name!r:.80})"
                ) from None


def _read(path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SettingError(f"there is no {path}: make it ({remedy} {path.parent})") from None


def _check_days(days: int) -> None:
    if not 1 <= days <= 36_500:
        raise SettingError(f"a certificate is valid for 1 to 36500 days, got {days}")
