"""Invitations of devices: a file for each, by which a device registers a key of its own, once.

    server's owner          fedloom invite Kiel     makes a key for the invitation, and writes it into a private file
    device                  fedloom join --invite   connects by that key, and sends the public part of its own
    server                                          registers this one under the name; the invitation is used
    device                                          connects by its own key from now on

Whoever holds the file before it was used can be that device, so it travels as a password does. The key of a used
invitation is known until its last day, so that a second use is refused in words and stands in the audit log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedloom.core.errors import RefusedError, SettingError
from fedloom.deploy.certificates import (
    AUTHORITY,
    changed,
    check_new,
    check_private,
    fingerprint,
    is_nkey,
    today,
    write_file,
)
from fedloom.deploy.device_names import INVITED, check_name
from fedloom.deploy.transport import TRANSPORTS, Joining, transport_named
from fedloom.ranks.communication import CLOSED
from fedloom.storage import files
from fedloom.storage.strict_json import parse, pretty

DAYS = 14  # that an invitation is valid by default
_RECORD, _SECRET = "invitation.json", "invitation.key"  # in a device's folder: of the used invitation; until it is used
_LARGEST = 1 << 16  # bytes of the file, and of an enrolment


@dataclass(frozen=True)
class Invitation:
    """Content of the file. `authority`: the certificate; `key`: private; `until`: the last day."""

    name: str
    transport: str
    server: str
    authority: str
    key: str
    until: str

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """Return the invitation in a file.

        Raises:
            SettingError: it is none, can be read by others, or has ended.
        """
        check_private(path)
        try:
            content = parse(path.read_bytes()[: _LARGEST + 1], _LARGEST)
            if content.pop("format", None) != 1 or set(content) != {*cls.__annotations__}:
                raise ValueError("its entries are others")
            if not all(isinstance(value, str) for value in content.values()):
                raise ValueError("an entry is no text")
            if content["transport"] not in TRANSPORTS or not transport_named(content["transport"]).invites:
                raise ValueError(f"transport is {content['transport']!r:.80}")
            invitation = cls(**content)
            check_name(invitation.name, registered_for_flower=not transport_named(invitation.transport).nkeys)
        except (ValueError, OSError, SettingError) as error:
            raise SettingError(
                f"{path} is no invitation ({error!s:.200}): ask the server's owner for one (fedloom invite NAME)"
            ) from None
        if invitation.until < today():
            raise SettingError(
                f"the invitation of {invitation.name} ended on {invitation.until}, and this host says that it is "
                f"{today()}: set the clock, or ask the server's owner for another (fedloom invite)"
            )
        return invitation


def invite(folder: Path, name: str, server: str, transport: str, days: int, to: Path) -> None:
    """Write the invitation of a device to a private file, and let its key connect.

    Raises:
        SettingError: the name has a device or an invitation, the file exists, or there is no authority.
    """
    check_name(name)
    if not 1 <= days <= 365:
        raise SettingError(f"an invitation is valid for 1 to 365 days, got {days}: invite again later")
    if to.exists():
        raise SettingError(f"{to} exists, and may be the invitation of a device: remove it, or choose another (--out)")
    authority = folder / f"{AUTHORITY}.crt"
    if not authority.exists():
        raise SettingError(f"there is no {authority}: make it (fedloom certs authority {folder})")
    until = f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}"
    private, public = _new_key(to, transport)
    has_written = False
    try:
        with changed(folder) as lists:
            if to.exists():  # another process has made it meanwhile
                raise SettingError(f"{to} exists: remove it, or choose another (--out)")
            check_new(lists, name, public, folder)
            content = Invitation(name, transport, server, authority.read_text(encoding="ascii"), private, until)
            has_written = True
            write_file(to, (pretty({"format": 1, **asdict(content)}) + "\n").encode(), 0o600)
            lists["invitations"][name] = {"key": public, "until": until, "used": ""}
    except BaseException:
        if has_written:
            to.unlink(missing_ok=True)
        raise


def _new_key(to: Path, transport: str) -> tuple[str, str]:
    """Return a new private key and its public part."""
    files.make(to.parent)
    with TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as aside:
        private, line = transport_named(transport).new_key(Path(aside))
        return private.read_text(encoding="ascii"), " ".join(line.split()[:2])


def enrol(folder: Path, connected_as: str, data: bytes) -> str:
    """Register the key that the holder of an invitation sends; return its fingerprint.

    `connected_as`: the name under which the transport knows the invitation's key. The same key may be sent again, by a
    device that did not get the answer.

    Raises:
        RefusedError: the invitation was used by another key, or is not there; or this is no key.
    """
    name = connected_as.removeprefix(INVITED)
    try:
        if len(data) > _LARGEST or not isinstance(public := parse(data).get("enrol"), str):
            raise ValueError("it has sent no key")
        its = fingerprint(public)
    except (ValueError, SettingError) as error:
        raise RefusedError(
            f"the holder of an invitation registers a key, and does nothing else: {error!s:.200}"
        ) from None
    with changed(folder) as lists:
        invitation = lists["invitations"].get(name)
        if invitation is None or invitation["until"] < today():
            raise RefusedError(f"there is no invitation of {name} any more: ask the server's owner for another")
        if (used := invitation["used"]) and not used.endswith(f" {its}"):
            raise RefusedError(
                f"the invitation of {name} was used on {used}, and is for one device, once: if that was not you, tell "
                f"the server's owner at once, who removes it (fedloom devices remove); each device needs its own"
            )
        if not used:
            if is_nkey(its) != is_nkey(invitation["key"]):
                raise RefusedError(f"the invitation of {name} is for another transport than this key: join by it anew")
            if its in {fingerprint(each["key"]) for each in lists["invitations"].values()}:
                raise RefusedError(f"a device has a key of its own, and that of an invitation was sent for {name}")
            try:
                check_new(lists | {"invitations": {}}, name, public, folder)
            except SettingError as error:
                raise RefusedError(str(error)) from None
            lists["devices"][name] = {"key": " ".join(public.split()[:2]), "added": today()}
            invitation["used"] = f"{today()} by {its}"
    return its


class Enrolment:
    """The part that the holder of an invitation takes, until its own key is registered. `public`: of that."""

    def __init__(self, public: str) -> None:
        self.public = public
        self.is_over = self.is_done = False
        self.leave_reason: str | None = None

    def __call__(self, data: bytes) -> bytes:
        """Return the answer to a message.

        Raises:
            RefusedError: the server does not register the key.
        """
        if data == CLOSED:
            self.is_over = True
            return CLOSED
        try:
            message = parse(data)
        except ValueError as error:
            raise RefusedError(f"not a message of a fedloom server: {error!s:.200}") from None
        if message.get("refused") is not None:
            raise RefusedError(f"the server does not take this invitation: {message['refused']!s:.500}")
        if message.get("enrolled") is True:
            self.is_over = self.is_done = True
            return b"{}"
        return json.dumps({"enrol": self.public}).encode()


def accept(path: Path, state: Path) -> Joining:
    """Return how the device with a state folder joins by the invitation in a file, which may be used or gone by now.

    Raises:
        SettingError: there is no invitation, it has ended, or the folder has that of another device.
    """
    record, secret, authority = state / _RECORD, state / _SECRET, state / f"{AUTHORITY}.crt"
    known = _record(record) if record.exists() else None
    if not path.exists():
        if known is None:
            raise SettingError(f"there is no {path}: ask the server's owner for it (fedloom invite NAME)")
    else:
        digest = files.digest(path.read_bytes())
        if known is None:
            invitation = Invitation.read(path)
            files.make(state)
            write_file(authority, invitation.authority.encode(), 0o644)
            write_file(secret, invitation.key.encode(), 0o600)
            kept = {"name": invitation.name, "transport": invitation.transport, "server": invitation.server}

            def used() -> None:
                content = {"format": 1, **kept, "invitation": digest}
                write_file(record, (pretty(content) + "\n").encode(), 0o600)
                secret.unlink(missing_ok=True)

            return Joining(invitation.name, invitation.transport, invitation.server, authority, secret, used)
        if known["invitation"] != digest:
            raise SettingError(
                f"{state} is of the device {known['name']}, which was invited by another file: give each device a "
                "--state of its own, or leave --invite out"
            )
    return Joining(known["name"], known["transport"], known["server"], authority, None, lambda: None)


def _record(path: Path) -> dict[str, Any]:
    try:
        known = parse(path.read_bytes(), _LARGEST)
        if not all(isinstance(known.get(word), str) for word in ("name", "transport", "server", "invitation")):
            raise ValueError("an entry is missing")
    except ValueError as error:
        raise SettingError(f"{path} does not say how this device joined ({error}): bring it back") from None
    return known
