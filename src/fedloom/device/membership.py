"""A device joins a run, answers, and leaves."""

from __future__ import annotations

import json
import secrets
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedloom.core import files
from fedloom.core.errors import RankError, RefusedError, SettingError
from fedloom.core.naming import forbid_imports
from fedloom.data import Federation
from fedloom.device.controller import Controller
from fedloom.device.data_manager import DataManager, loaded
from fedloom.device.model_manager import ModelManager
from fedloom.device.monitor import Limits, Reading, SystemMonitor
from fedloom.engines.communication import CLOSED, CommunicationManager
from fedloom.engines.population import Population
from fedloom.engines.processes import threads
from fedloom.engines.reception import handed_out
from fedloom.engines.registration import checked_id
from fedloom.engines.runtime import Runtime
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment, named_code


class Membership:
    """A device in the run of a server.

    `folder`: where it keeps its id and its states, in a folder for each run. `source`: of its examples. `model`: its
    architecture, "" for the one that the server chooses.
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
    ) -> None:
        self.source, self.folder, self.model = source, folder, model
        self._examples = loaded(source)  # a wrong name shows before it has joined
        self.monitor, self.begin, self.go_on = monitor, begin, go_on
        self.id = own_id(folder)
        self.controller: Controller | None = None
        self.over = False
        self.why_leaving: str | None = None
        self._asked: dict[str, Any] = {}
        self._taken: dict[str, Any] | None = None  # what the server has said, before public examples come

    def __call__(self, data: bytes) -> bytes:
        """The answer to a message: first the server's settings, then whether it takes this device, then public examples
        where there are some, then requests.
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
            public, labels = handed_out(data, self.data.federation.train)
            self._join(self._taken, replace(self.data.federation, public=public, public_labels=labels))
            return b"{}"
        said = json.loads(data)
        if "settings" in said:
            self._asked = said
            self._prepare(said)
            registration = self.data.registration(self.id, self.model)
            return json.dumps(vars(registration)).encode()
        if said.get("refused") is not None:
            raise RefusedError(f"the server does not take this device: {said['refused']}")
        if said.get("public"):
            self._taken = said
        else:
            self._join(said, self.data.federation)
        return b"{}"

    def _prepare(self, said: dict[str, Any]) -> None:
        """Load what the server's settings ask for."""
        if own := named_code(said["settings"]):
            raise SettingError(f"a device imports no code that a server names, and its settings say {own[0]!r}")
        experiment = Experiment.of(said["settings"])
        self.experiment = experiment
        self.data = DataManager(self._examples, experiment.data, experiment.partition_seed)
        self.models = experiment.models(self.data.federation.train)

    def _join(self, said: dict[str, Any], federation: Federation) -> None:
        e, chosen = self.experiment, {said["model"]: self.models[said["model"]]}
        algorithm = catalogue.algorithm(e.algorithm, e.local, e.settings.get(e.algorithm, {}))
        population = Population(
            federation, chosen, task=catalogue.task(e.task), seed=e.run.seed,
            dtype=getattr(torch, e.run.dtype), first=int(said["client"]),
        )  # fmt: skip
        runtime = Runtime(
            population, algorithm.suited(population.federation, chosen), compilation="none", bf16=e.run.bf16
        )
        folder = self.folder / "runs" / checked_id(self._asked["run"], "a run")
        models = None if e.run.stateless else ModelManager(folder, runtime.fresh(0))
        self.controller = Controller(
            self.id, str(said["token"]), runtime, models,
            monitor=self.monitor, begin=self.begin, go_on=self.go_on, leaving=lambda: self.why_leaving,
        )  # fmt: skip


def own_id(folder: Path) -> str:
    """The id of a device, which it has drawn once and keeps in its state folder."""
    files.make(folder)
    path = folder / "id"
    if not files.there(path):
        files.write(folder, "id", secrets.token_hex(16).encode())
    return checked_id(files.load(path).decode(errors="replace").strip(), "a device")


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
            with threads(1):
                while not member.over:
                    idle.set()
                    message = bytes(manager.receive())
                    idle.clear()
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
