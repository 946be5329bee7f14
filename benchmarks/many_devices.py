"""Many devices over NATS on one machine: rounds a minute, and what the server needs for each device.

    python benchmarks/many_devices.py --light 2000 --cohort 100 2000      # some minutes
    python benchmarks/many_devices.py --processes 50 --cohort 50
    python benchmarks/many_devices.py --light 200 --cohort 200 --inputs 87500   # 3.5 MB

A server, nats-server and all devices are on this machine, with TLS and a key for each device. Devices of `--processes`
are `fedloom join`, forked from one process that has imported PyTorch, so that fifty fit. Those of `--light` are
connections of one process: they register, and answer each request with the model that they were sent and a little
noise, without training. A share of them is slow, silent (they say that they are there, and never answer) or frozen
(they say nothing at all once they have joined), and the deadline of a round decides what these cost.

Seconds are those of a machine that does all this at once. CPU seconds of the server are what counts of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import re
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.cli.main import main as fedloom
from fedloom.core import tree
from fedloom.core.types import Weighted
from fedloom.deploy import certificates
from fedloom.deploy.nats.door import Door
from fedloom.deploy.nats.leaves import SMALL
from fedloom.deploy.nats.nats_server import make_key
from fedloom.deploy.nats.over_nats import DOWN, PIECE, UP, NatsManager
from fedloom.deploy.registration import versions
from fedloom.engines.message import EVALUATING
from fedloom.engines.message_bytes import Part, pack, part, seal, unpack, unseal

CLASSES, ROWS = 10, 40
AT_ONCE = 40  # light clients that connect at a time
SETTINGS = """
algorithm = "fedavg"
model = "logistic"
data.classes = {classes}
local = {{epochs = 1, batch_size = 8}}
run = {{rounds = 100000, cohort_size = {cohort}, eval_every = 100000, checkpoint_every = 50, deadline = {deadline}}}
"""


# ---- light clients


@dataclass
class Round:
    """Answer to the requests of one exchange, which light clients share: its parts, packed once."""

    key: tuple[int, object] = (-1, None)
    parts: dict[str, Part] = field(default_factory=dict)

    def take(self, head: dict[str, Any], message: bytes | memoryview) -> dict[str, Part]:
        """Return the parts of an answer to a request, made of the model in it where it is the first of its exchange."""
        if self.key != (key := (head["round"], head["exchange"])):
            (sent,) = unpack(message).parts["broadcast"]
            value = tree.map_tree(lambda t: t[None] + 1e-3 * torch.randn_like(t)[None], sent)
            upload = Weighted(value=value, weight=torch.tensor([ROWS]))
            self.key, self.parts = key, {"upload": part(upload), "losses": part([torch.ones(1, 1)])}
        return self.parts


@dataclass
class Light:
    """Device that answers without training. `after`: seconds until it does; None: never. `frozen`: it says nothing."""

    door: Door
    round: Round
    registration: dict[str, Any]
    told: Counter[str]
    after: float | None = 0.0
    frozen: bool = False
    session: str = ""
    token: str = ""
    data: bytearray = field(default_factory=bytearray)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def come(self) -> None:
        """Connect, and begin a session."""
        from nats.errors import NoRespondersError

        self.session, self.token = secrets.token_hex(16), ""

        async def note(error: Exception) -> None:
            self.told[f"error of a connection: {type(error).__name__}"] += 1

        self.connection = await self.door.connect(note)
        await self.connection.subscribe(f"{DOWN}.{self.door.name}.{self.session}", cb=self.take)
        while True:
            try:
                return await self.say({"greeting": "1"})
            except NoRespondersError:
                await asyncio.sleep(0.5)

    async def say(self, head: dict[str, str], piece: bytes = b"", within: float = 60.0) -> None:
        reply = await self.connection.request(
            f"{UP}.{self.door.name}", piece, timeout=within, headers={"session": self.session, **head}
        )
        if reply.data:
            self.told[f"the server says: {reply.data.decode()[:60]}"] += 1

    async def take(self, message: Any) -> None:
        """Acknowledge a piece; with the last one a message is whole."""
        if self.frozen and self.token:
            return
        await message.respond(b"")
        head = message.headers or {}
        if "size" not in head:
            return
        self.data += message.data
        if len(self.data) == int(head["size"]):
            whole, self.data = bytes(self.data), bytearray()
            task = asyncio.create_task(self.answer(whole))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self, message: bytes) -> None:
        try:
            if (said := await self.answer_to(message)) is None:
                return
            if len(said) > SMALL:
                await self.say({"leave": str(len(said))}, within=600.0)
            for start in range(0, max(1, len(said)), PIECE):
                await self.say({"size": str(len(said)), "start": str(start)}, said[start : start + PIECE])
        except Exception as error:
            self.told[f"{type(error).__name__}: {error}"[:80]] += 1

    async def answer_to(self, message: bytes) -> bytes | None:
        if not message:  # the run is over
            return message
        if not self.token:
            text = json.loads(message)
            self.token = text.get("token", "")
            if "refused" in text:
                self.told[f"refused: {text['refused']}"[:160]] += 1
            return json.dumps(self.registration).encode() if "settings" in text else b"{}"
        inner = unseal(message, self.token, 1 << 30)
        head = json.loads(bytes(inner[8 : 8 + int.from_bytes(inner[4:8], "little")]))["head"]
        said = {"number": head["number"], "from": self.registration["id"], "warnings": []}
        if head["exchange"] == EVALUATING:
            return seal(pack({**said, "problem": {"kind": "DeclinedError", "text": "it is light"}}, {}), self.token)
        if self.after is None:
            return None
        await asyncio.sleep(self.after)
        self.told["answers"] += 1
        return seal(pack({**said, "problem": None, "steps": [[1]]}, self.round.take(head, inner)), self.token)


def light(folder: Path, port: int, args: argparse.Namespace, first: int, count: int) -> None:
    """Be `count` light clients until this process is ended."""
    torch.set_num_threads(1)
    told, rng, shared = Counter[str](), np.random.default_rng(1), Round()
    kinds = rng.permutation(count)
    frozen, silent, slow = (int(share * count) for share in (args.frozen, args.silent, args.slow))
    by_class = [ROWS // CLASSES] * CLASSES
    registration = {
        "train": by_class, "test": [0] * CLASSES, "val": [0] * CLASSES, "shape": [args.inputs], "dtype": "float32",
        "model": "", "classes": [], "columns": [], "start": True, "versions": versions(),
    }  # fmt: skip
    devices = list[Light]()
    for k in range(count):
        name = f"device{first + k}"
        door = Door(f"tls://127.0.0.1:{port}", name, folder / "keys" / f"{name}.nk", folder / "certs/authority.crt")
        after = None if kinds[k] < frozen + silent else args.slow_seconds if kinds[k] < frozen + silent + slow else 0.0
        own = {**registration, "id": f"{first + k:032x}", "name": name}
        devices.append(Light(door, shared, own, told, after, bool(kinds[k] < frozen)))

    async def all_come() -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(device: Light) -> None:
            async with gate:
                try:
                    await device.come()
                    told["came"] += 1
                except Exception as error:
                    told[f"did not come: {type(error).__name__} {error}"[:120]] += 1

        await asyncio.gather(*map(one, devices))
        while True:
            await asyncio.sleep(1)
            (folder / "light.json").write_text(json.dumps(told))

    asyncio.run(all_come())


# ---- the server, and what it is asked from outside


def watched_server(path: Path, words: list[str]) -> int:
    """Be `fedloom serve`, and write into a file what waits in it at most."""
    managers, most = list[Any](), Counter[str]()
    begin = NatsManager.__init__

    def watched(self: NatsManager, door: Door) -> None:
        begin(self, door)
        managers.append(self)

    NatsManager.__init__ = watched  # type: ignore[method-assign]

    def look() -> None:
        while True:
            time.sleep(0.2)
            for its in managers:
                with contextlib.suppress(RuntimeError):  # a dictionary that changes
                    waits = [message for each in [*its._inbox.values()] for message in [*each]]
                    found = {
                        "answers": len(waits), "bytes of answers": sum(map(len, waits)),
                        "requests": sum(queue.qsize() for queue in [*its._queues.values()]),
                    }  # fmt: skip
                    for name, number in found.items():
                        most[name] = max(most[name], number)
            path.write_text(json.dumps(most))

    threading.Thread(target=look, daemon=True).start()
    return fedloom(words)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int, what: str = "VmRSS") -> int:
    """Return the resident bytes of a process: now, or `VmHWM`, at most."""
    found = re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found else 0


def own_of(pid: int) -> int:
    """Return the bytes that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(n) << 10 for n in re.findall(r"Private_\w+:\s+(\d+)", text))


def child_named(pid: int, name: str) -> int:
    """Return the id of a child of a process by the name of its program."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and (entry / "comm").read_text().strip() == name:
                return int(entry.name)
    raise SystemExit(f"no {name} below {pid}")


def forked(work: Callable[[], object], said: Path) -> int:
    """Return the id of a child that does some work, and writes what it says into a file."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            with said.open("ab", buffering=0) as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def written(folder: Path, args: argparse.Namespace, cohort: int) -> None:
    """Write the settings, certificates, the keys of all devices and their list, and examples of the processes."""
    (folder / "fed.toml").write_text(SETTINGS.format(classes=CLASSES, cohort=cohort, deadline=args.deadline))
    rng = np.random.default_rng(0)
    for k in range(args.processes + 1):
        x = rng.normal(size=(ROWS, args.inputs)).astype(np.float32)
        its, where = np.resize(np.arange(CLASSES), ROWS), folder / (f"data{k}" if k < args.processes else "test")
        where.mkdir()
        np.savez(where / "its.npz", x_train=x, y_train=its, x_test=x[:CLASSES], y_test=its[:CLASSES])
    certs, count = str(folder / "certs"), args.processes + args.light
    with contextlib.redirect_stdout(io.StringIO()):
        fedloom(["certs", "authority", certs])
        fedloom(["certs", "server", certs, "--name", "127.0.0.1"])
    keys = dict[str, str]()
    for k in range(count):
        its_key = folder / "keys" / f"device{k}.nk" if k >= args.processes else folder / f"state{k}" / "nats.nk"
        keys[f"device{k}"] = make_key(its_key)
        if k < args.processes:
            (folder / f"state{k}" / "authority.crt").write_bytes((folder / "certs" / "authority.crt").read_bytes())
    with certificates.changed(folder / "certs") as lists:  # one by one the list would be read 2,000 times
        lists["devices"] |= {name: {"key": key, "added": certificates.today()} for name, key in keys.items()}


@contextlib.contextmanager
def running(folder: Path, args: argparse.Namespace, port: int) -> Iterator[dict[str, int]]:
    """Run a server and its devices while this is open; yield the ids of the processes."""
    count = args.processes + args.light
    serve = [
        sys.executable, __file__, "--serve", str(folder / "waits.json"), "serve", "--transport", "nats", "--certs",
        f"{folder}/certs", "--port", str(port), "--settings", f"{folder}/fed.toml", "--out", f"{folder}/out", "--test",
        f"{folder}/test/its.npz", "--least", str(args.least or count + bool(args.idle)), "--wait", str(args.wait),
        "--bound", "none",
        *(("--page", str(port + 1)) if args.page else ()),
    ]  # fmt: skip
    told = (folder / "said").open("w")
    server = subprocess.Popen(serve, stdout=told, stderr=told)
    pids = {"server": server.pid}
    try:
        until(lambda: "waiting for" in (folder / "said").read_text(), folder, 60)
        time.sleep(1)
        pids["nats-server"] = child_named(server.pid, "nats-server")
        yield pids
    finally:
        for pid in (pid for name, pid in pids.items() if name not in ("server", "nats-server")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        told.close()


def until(reached: Callable[[], object], folder: Path, seconds: float, pid: int = 0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} s: {(folder / 'said').read_text()[-3000:]}")
        if pid and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise SystemExit(f"the server has ended: {(folder / 'said').read_text()[-3000:]}")
        time.sleep(0.05)


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    log = folder / "out" / "metrics.jsonl"
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")][1:]


def measure(args: argparse.Namespace, cohort: int) -> dict[str, Any]:
    """Return what was measured with cohorts of this size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, args, cohort)
        port, found = free_port(), dict[str, Any]()
        with running(folder, args, port) as pids:
            server = pids["server"]
            before, began, spent = memory_of(server), time.monotonic(), cpu_of(server)
            for k in range(args.processes):
                join = [
                    "join", "--transport", "nats", "--server", f"127.0.0.1:{port}", "--name", f"device{k}",
                    "--data", f"{folder}/data{k}", "--state", f"{folder}/state{k}",
                ]  # fmt: skip
                pids[f"device{k}"] = forked(partial(fedloom, join), folder / "joined")
            if args.light:
                pids["light"] = forked(
                    lambda: light(folder, port, args, args.processes, args.light), folder / "light.said"
                )
            devices = args.processes + args.light
            if args.idle:
                until(
                    lambda: (folder / "said").read_text().count("  registered: ") >= devices, folder, args.wait, server
                )
                time.sleep(5)
                spent = cpu_of(server)
                time.sleep(args.idle)
                return {"share of a core while nothing happens": (cpu_of(server) - spent) / args.idle}
            until(lambda: "devices are connected" in (folder / "said").read_text(), folder, args.wait, server)
            found["all registered, s"] = time.monotonic() - began
            found["server CPU of registering one, ms"] = 1e3 * (cpu_of(server) - spent) / devices
            found["server before, MB"] = before / 1e6
            found["server of each device, kB"] = (memory_of(server) - before) / devices / 1e3
            found["nats-server, MB"] = memory_of(pids["nats-server"]) / 1e6
            until(lambda: rounds_in(folder), folder, args.wait, server)
            found["first round after registering, s"] = time.monotonic() - began - found["all registered, s"]
            if args.page:
                found |= page_of(folder, port + 1)
            first, began = len(rounds_in(folder)), time.monotonic()
            so_far = {name: cpu_of(pid) for name, pid in pids.items()}
            until(
                lambda: time.monotonic() > began + args.seconds and len(rounds_in(folder)) > first,
                folder, 20 * args.seconds + args.wait, server,
            )  # fmt: skip
            records, seconds = rounds_in(folder)[first:], time.monotonic() - began
            answers = sum(len(each["clients"]) - len(each["failed"]) for each in records)
            found["rounds"], found["rounds a minute"] = len(records), 60 * len(records) / seconds
            found["answers"], found["answers a second"] = answers, answers / seconds
            found["lost in a round"] = sum(len(each["failed"]) for each in records) / len(records)
            for name in ("server", "nats-server"):
                used = cpu_of(pids[name]) - so_far[name]
                found[f"{name}, CPU ms an answer"] = 1e3 * used / max(1, answers)
                found[f"{name}, share of a core"] = used / seconds
            found["server at most, MB"] = memory_of(server, "VmHWM") / 1e6
            if args.processes:
                found["a device's own memory, MB"] = own_of(pids["device0"]) / 1e6
            found["waited at most"] = json.loads((folder / "waits.json").read_text())
            found["why lost"] = dict(Counter(why[:60] for each in records for why in each["failed"].values()))
            if args.light:
                found["light clients"] = json.loads((folder / "light.json").read_text())
                found["light clients, share of a core"] = (cpu_of(pids["light"]) - so_far["light"]) / seconds
        found["audit, kB"] = (folder / "out" / "audit.jsonl").stat().st_size / 1e3
        if args.keep:
            for each in (
                "said",
                "joined",
                "light.said",
                "out/audit.jsonl",
                "out/timing.jsonl",
                "out/nats/nats-server.log",
            ):
                if (folder / each).exists():
                    (Path(args.keep) / f"{cohort}-{Path(each).name}").write_bytes((folder / each).read_bytes())
    return found


def page_of(folder: Path, port: int) -> dict[str, Any]:
    """Return the size of the page of devices, and how long it takes."""
    import urllib.request

    token, began = (folder / "out" / "page.token").read_text().strip(), time.monotonic()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{token}/") as page:
        size = len(page.read())
    return {"page, kB": size / 1e3, "page, s": time.monotonic() - began}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=0, help="devices that are processes")
    parser.add_argument("--light", type=int, default=0, help="light clients of one process")
    parser.add_argument("--cohort", type=int, nargs="+", default=[100], help="devices of a round")
    parser.add_argument("--inputs", type=int, default=784, help="features of an example; a model has 10 times as many")
    parser.add_argument("--slow", type=float, default=0.0, help="share of the light clients that answer late")
    parser.add_argument("--slow-seconds", type=float, default=3.0)
    parser.add_argument("--silent", type=float, default=0.0, help="share that never answers")
    parser.add_argument("--frozen", type=float, default=0.0, help="share that says nothing at all")
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds of a round")
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring, by cohort")
    parser.add_argument("--wait", type=float, default=300.0, help="for all to register")
    parser.add_argument("--least", type=int, help="with how many the run begins; by default all")
    parser.add_argument("--idle", type=float, default=0.0, help="seconds in which nothing happens, instead of rounds")
    parser.add_argument("--page", action="store_true", help="look at the page of devices")
    parser.add_argument("--keep", help="folder for what the processes said")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    for cohort in args.cohort:
        print(f"{args.processes} processes, {args.light} light, cohorts of {cohort}, load {os.getloadavg()[0]:.1f}")
        for name, value in measure(args, cohort).items():
            print(f"    {name}: {value:.4g}" if isinstance(value, float) else f"    {name}: {value}", flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.exit(watched_server(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main())
