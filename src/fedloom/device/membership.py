"""A device joins a run, answers, and leaves."""

from __future__ import annotations

import json
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedloom.core.errors import FedloomError, RankError, RefusedError, SettingError
from fedloom.core.naming import forbid_imports
from fedloom.data import Federation
from fedloom.device.controller import STEPS, Controller, too_many_steps
from fedloom.device.data_manager import DataManager, loaded
from fedloom.device.model_manager import ModelManager
from fedloom.device.monitor import Limits, Reading, SystemMonitor
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment, flat, named_code
from fedloom.storage import files
from fedloom.storage.strict_json import parse
from fedloom.wire.communication import CLOSED, CommunicationManager
from fedloom.wire.processes import threads
from fedloom.wire.reception import read_public
from fedloom.wire.registration import check_id
from fedloom.wire.service import LIMIT

FIRST = 1 << 20  # bytes of what the server says before public examples and requests


@contextmanager
def _understood() -> Iterator[None]:
    """Turn what reading a stranger's settings raises, which may be nearly anything, into words."""
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        raise RefusedError(f"the settings of the server cannot be run here: {error!r:.200}") from error


class Membership:
    """A device in the run of a server.

    `folder`: where it keeps its id and its states, in a folder for each run. `source`: of its examples. `model`: its
    architecture, "" for the one that the server chooses. `steps`: of training that it takes in a request, at most.
    """

    def __init__(
        self,
        source: str,
        folder: Path,
        model: str = "",
        *,
        monitor: SystemMonitor = Reading,
        begin: Limits | None = None,
        go_on: Limits | None = None,
        steps: int = STEPS,
    ) -> None:
        if steps < 1:
            raise SettingError(f"a device takes at least 1 training step, got {steps}: raise --most-steps")
        self.source, self.folder, self.model, self.steps = source, folder, model, steps
        self._examples = loaded(source)  # a wrong name shows before it has joined
        self.monitor, self.begin, self.go_on = monitor, begin, go_on
        self.id = own_id(folder)
        self.controller: Controller | None = None
        self.over = False
        self.why_leaving: str | None = None
        self._asked: dict[str, Any] = {}
        self._taken: dict[str, Any] | None = None  # what the server has said, before public examples come

    def __call__(self, data: bytes) -> bytes:
        """Return the answer to a message.

        First come the server's settings, then whether it takes this device, then public examples where there are some,
        then requests.
        """
        with forbid_imports("a device imports no code that a server names"):
            return self._answered(data)

    def _answered(self, data: bytes) -> bytes:
        if data == CLOSED:  # also before it has joined, where it comes when the run is over
            self.over = True
            return CLOSED
        if self.controller is not None:
            return self.controller(data)
        if self._taken is not None:
            public, labels = read_public(data, self.data.federation.train)
            self._join(self._taken, replace(self.data.federation, public=public, public_labels=labels))
            return b"{}"
        said = _said(data)
        if "settings" in said:
            self._asked = said
            self._prepare(said)
            registration = self.data.registration(self.id, self.model)
            return json.dumps(vars(registration)).encode()
        if said.get("refused") is not None:
            raise RefusedError(f"the server does not take this device: {said['refused']}")
        if not self._asked:
            raise RefusedError("the server welcomes a device before it has said what it runs: start all ranks again")
        if said.get("public"):
            self._taken = said
        else:
            self._join(said, self.data.federation)
        return b"{}"

    @_understood()
    def _prepare(self, said: dict[str, Any]) -> None:
        """Load what the server's settings ask for."""
        if own := named_code(said["settings"]):
            raise SettingError(f"a device imports no code that a server names, and its settings say {own[0]!r}")
        experiment = Experiment.of(said["settings"])
        self._check_steps(experiment)
        self.experiment = experiment
        self.data = DataManager(self._examples, experiment.data, experiment.partition_seed)
        self.models = experiment.models(self.data.federation.train)

    def _check_steps(self, experiment: Experiment) -> None:
        """Refuse settings by which a request takes more steps, passes or rows of a batch than `steps`."""
        local, n = experiment.local, len(self._examples.train)
        asked = local.steps or local.epochs * -(-n // local.batch_size)
        if asked > self.steps:
            raise SettingError(f"{too_many_steps(asked, self.steps)}: join with --most-steps {asked}, or not at all")
        for name, value in flat(experiment.described()).items():
            section = name.partition(".")[0]
            if type(value) is int and value > self.steps and section not in ("data", "run", "clients"):
                raise SettingError(
                    f"a device counts nothing of its training beyond {self.steps:,} (--most-steps), and the server's "
                    f"settings say {name} = {value}: join with a higher --most-steps, or not at all"
                )

    @_understood()
    def _join(self, said: dict[str, Any], federation: Federation) -> None:
        if said["model"] not in self.models:
            raise RefusedError(
                f"the server gives the architecture {said['model']!r:.80}, and its settings have none such"
            )
        e, chosen = self.experiment, {said["model"]: self.models[said["model"]]}
        algorithm = catalogue.algorithm(e.algorithm, e.local, e.settings.get(e.algorithm, {}))
        population = Population(
            federation, chosen, task=catalogue.task(e.task), seed=e.run.seed,
            dtype=getattr(torch, e.run.dtype), first=int(said["client"]),
        )  # fmt: skip
        runtime = Runtime(
            population, algorithm.bind(population.federation, chosen), compilation="none", bf16=e.run.bf16
        )
        folder = self.folder / "runs" / check_id(self._asked["run"], "a run")
        models = None if e.run.stateless else ModelManager(folder, runtime.fresh(0))
        self.controller = Controller(
            self.id, str(said["token"]), runtime, models,
            monitor=self.monitor, begin=self.begin, go_on=self.go_on, leaving=lambda: self.why_leaving,
            steps=self.steps,
        )  # fmt: skip


_SCHEMA: dict[str, type] = {  # of what the server says before requests
    "run": str, "settings": dict, "client": int, "model": str, "token": str, "public": bool, "refused": str,
}  # fmt: skip
_WHOLE = (("run", "settings"), ("client", "model", "token"), ("refused",))  # what each of its messages has


def _said(data: bytes) -> dict[str, Any]:
    """Return what a message of the server says, one before its requests.

    Raises:
        RefusedError: it is too long, no JSON object, or not what a server says.
    """
    try:
        said = parse(data, FIRST)
    except ValueError as error:
        raise RefusedError(f"the server says what no server of fedloom does: {error!s:.200}") from None
    wrong = [name for name, kind in _SCHEMA.items() if name in said and type(said[name]) is not kind]
    if wrong or not any(set(names) <= set(said) for names in _WHOLE):
        what = (
            f"{wrong[0]} = {said[wrong[0]]!r:.80}" if wrong else f"a message with {', '.join(said) or 'nothing'!s:.80}"
        )
        raise RefusedError(f"the server says what no server of fedloom does: {what}")
    if not 0 <= said.get("client", 0) < 1 << 40:
        raise RefusedError(f"the number of a client is below 2**40, got {said['client']}")
    return said


def own_id(folder: Path) -> str:
    """Return the id of a device, which it has drawn once and keeps in its state folder."""
    files.make(folder)
    path = folder / "id"
    if not files.exists(path):
        files.write(folder, "id", secrets.token_hex(16).encode())
    return check_id(files.load(path).decode(errors="replace").strip(), "a device")


def take_part(manager: CommunicationManager, member: Membership) -> bool:
    """Answer at this rank until the server closes the run, or this process gets SIGTERM: whether it is the latter.

    A signal is only seen between two calls of Python's, so messages are waited for in a thread of their own. A request
    that is being answered when it comes is aborted; what was answered before is on disk.

    Raises:
        RankError: the server is gone.
    """
    problems: list[BaseException] = []
    ended, idle = threading.Event(), threading.Event()

    def work() -> None:
        try:
            manager.limit = FIRST
            with threads(1):
                while not member.over:
                    idle.set()
                    message = bytes(manager.receive())
                    idle.clear()
                    manager.limit = LIMIT  # of requests, which may come as soon as the first message is answered
                    manager.answer(member(message))
        except BaseException as error:
            problems.append(error)
        ended.set()

    def stop(*_: object) -> None:
        member.why_leaving = "it leaves"

    before = signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=work, daemon=True).start()
    try:
        while not ended.wait(0.1) and not (member.why_leaving and idle.is_set()):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    if problems and not member.why_leaving:
        if isinstance(problems[0], EOFError):
            if member.over:  # and went as soon as it had said so
                return False
            raise RankError(
                "the server is gone: start it with --resume, and this device again, which waits for it"
            ) from None
        raise problems[0]
    return member.why_leaving is not None
