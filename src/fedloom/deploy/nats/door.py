"""The way to a nats-server: where it is, who knocks, by which key, and the connection that follows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.deploy.device_names import INVITED, SERVER, check_name
from fedloom.ranks.communication import PATIENCE
from fedloom.wording import install


@dataclass(frozen=True)
class Door:
    """The way to a nats-server, and who knocks.

    `url`: tls://HOST:PORT, or nats://HOST:PORT without encryption. `name`: of the device, or `SERVER`. `key`: its nkey
    seed, or the file of it. `authority`: file with the certificate that has signed nats-server's; None: those of the
    system. `certified`: the name in that certificate, if it is not HOST.
    """

    url: str
    name: str
    key: Path | str | None = field(default=None, repr=False)
    authority: Path | None = None
    certified: str | None = None

    def __post_init__(self) -> None:
        if self.name != SERVER:
            check_name(self.name.removeprefix(INVITED))

    async def connect(self, note: Callable[[Exception], Coroutine[Any, Any, None]]) -> Any:
        """Return a connection of nats-py, which calls `note` with each error that ends nothing."""
        try:
            from nats.aio.client import Client
        except ImportError as error:
            raise SettingError(f"transport = 'nats' needs nats-py ({error}): {install('nats')}") from None
        more: dict[str, Any] = {}
        if self.url.startswith("tls://"):
            more["tls"] = ssl.create_default_context(cafile=self.authority)
            logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each end of a TLS connection
            more |= {"tls_hostname": self.certified, "tls_handshake_first": True}
        if self.key is not None:
            key = self.key if isinstance(self.key, str) else self.key.read_text(encoding="ascii")
            more["nkeys_seed_str"] = key.strip()
        connection: Any = Client()
        try:
            await connection.connect(
                self.url, name=self.name, inbox_prefix=f"_INBOX.{self.name}".encode(), connect_timeout=int(PATIENCE),
                allow_reconnect=self.name == SERVER, max_reconnect_attempts=-1 if self.name == SERVER else 1,
                reconnect_time_wait=0.1, error_cb=note, **more,
            )  # fmt: skip
        except BaseException:
            with contextlib.suppress(Exception):  # after a failed handshake of TLS it would wait for ever
                await asyncio.wait_for(connection.close(), 1.0)
            raise
        return connection

    def why_shut(self, error: Exception) -> str:
        """Return in words why there is no connection. `error`: of nats-py, whose errors have no common class."""
        text = _UNREACHED
        if _KEY_REFUSED in str(error).lower():
            text = _UNINVITED if self.name.startswith(INVITED) else _UNKNOWN
            text = _OTHER_SERVER if self.name == SERVER else text
        return text.format(url=self.url, name=self.name, why=words(error))


def words(error: BaseException) -> str:
    """Return what an error says, and its kind."""
    return f"{type(error).__name__}: {error}"[:300] if str(error) else type(error).__name__


_KEY_REFUSED = "authorization violation"  # as nats-server says it, in small letters
_UNREACHED = (
    "nats-server at {url} was not reached ({why}): check host, port and firewall, and that it shows a certificate of "
    "its authority for this name"
)
_UNKNOWN = (
    "the server at {url} does not know the key of {name}: it was removed or never registered; ask the server's owner "
    "to register it (fedloom devices add DIR {name} KEY)"
)
_UNINVITED = (
    "the server at {url} does not know the key of {name}: the invitation has ended or was removed; ask the server's "
    "owner for another (fedloom invite)"
)
_OTHER_SERVER = "the nats-server at {url} is not the one that was started here: choose another port (--port)"
TROUBLED = (
    "the connection to nats-server has lost what was under way ({why}); devices that waited for it come again: if this "
    "returns, ask fewer at a time (run.cohort_size), or give the server more of its machine"
)
OTHER_NAME = (
    "this key belongs to another name than {name!r}: join with the --name by which the server's owner has registered "
    "it (fedloom devices list)"
)
