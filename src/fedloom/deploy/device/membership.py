"""Membership of a device in a run: it joins, answers, and leaves."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedloom.coordinator.part import encoders_of, gradients_of
from fedloom.coordinator.task_targets import check_targets
from fedloom.core.errors import FedloomError, RefusedError, SettingError, SettingWarning
from fedloom.core.json_types import MAPPING, TEXT, JsonType, whole
from fedloom.core.naming import forbid_imports
from fedloom.core.task import FitsTargets, TargetMoments, Task, needs_moments
from fedloom.core.types import Weights
from fedloom.deploy.device.controller import STEPS, Controller, too_many_steps
from fedloom.deploy.device.data_manager import DataManager, load_examples
from fedloom.deploy.device.device_results import DeviceResults
from fedloom.deploy.device.model_manager import ModelManager
from fedloom.deploy.device.monitor import Limits, Reading, SystemMonitor
from fedloom.deploy.device.public_examples import read_public
from fedloom.deploy.device.start_file import StartFile
from fedloom.deploy.device.uploaded_file import weights_in
from fedloom.deploy.device.watched_data import WatchedData
from fedloom.deploy.device_statistics import MAX_BYTES, read_moments, read_preparation, to_bytes
from fedloom.deploy.participation import FIRST
from fedloom.deploy.registration import check_device_name, check_id, check_versions, versions
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime
from fedloom.experiments import catalogue
from fedloom.experiments.bought_models import uploading
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.named_code import named_code
from fedloom.experiments.settings_file import flat
from fedloom.ranks.communication import CLOSED
from fedloom.storage import files
from fedloom.storage.strict_json import parse

_EXCHANGES = 8  # of counts, which the server repeats without devices that it has lost


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn any exception that a stranger's settings raise into a RefusedError."""
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        raise RefusedError(f"the settings of the server cannot be run here: {error!r:.200}") from error


class Membership:
    """Device in the run of a server.

    `folder`: its id, its states in a folder for each run, and the initial tensors of networks. `source`: of its
    examples. `model`: its architecture; "" lets the server choose. `name`: what the server shows beside its id, see
    `default_name`. `steps`: the most training steps of a request. `upload`: a file of weights, which it uploads instead
    of training. `say`: called with lines for people. `watches`: whether the files of the source are looked at.
    """

    def __init__(
        self,
        source: str,
        folder: Path,
        model: str = "",
        *,
        name: str = "",
        monitor: SystemMonitor = Reading,
        start_limits: Limits | None = None,
        abort_limits: Limits | None = None,
        steps: int = STEPS,
        upload: str | None = None,
        say: Callable[[str], object] = lambda text: None,
        watches: bool = False,
    ) -> None:
        if steps < 1:
            raise SettingError(f"a device takes at least 1 training step, got {steps}: raise --most-steps")
        self.source, self.folder, self.model, self.steps, self.upload = source, folder, model, steps, upload
        self.name, self.say = check_device_name(name), say
        self.watched = WatchedData(source, say) if watches else None  # before they are read
        self._examples = load_examples(source)  # a wrong name fails before it joins
        self.monitor, self.start_limits, self.abort_limits = monitor, start_limits, abort_limits
        self.id = device_id(folder)
        self.controller: Controller | None = None
        self.is_over = False
        self.leave_reason: str | None = None
        self._offer: dict[str, Any] = {}
        self.task: Task
        self._counted = 0  # exchanges of counts
        self._welcome: dict[str, Any] | None = None  # the server's welcome, until all messages after it have come
        self._missing: list[str] = []  # of these, in this order
        self._start: StartFile | None = None
        self._weights: Weights | None = None  # of the file that it uploads

    def changed(self) -> bool:
        """Return whether there are other examples, with which this device joins again."""
        return self.watched is not None and self.watched.changed()

    def waits_at(self, place: str) -> str:
        """Return who this device is, what it holds and where it waits, in words."""
        called = f"{self.name}, " * bool(self.name)
        return f"device {called}{self.id}, examples of {self.source}; waiting for the server at {place}"

    def __call__(self, data: bytes) -> bytes:
        """Return the answer to a message.

        First come the server's settings, then the welcome or the refusal, then public examples and the initial tensors
        of networks if there are any, then requests.
        """
        with forbid_imports("a device imports no code that a server names"):
            return self._answer(data)

    def _answer(self, data: bytes) -> bytes:
        if data == CLOSED:  # also before it has joined, if the run is over
            self.is_over = True
            return CLOSED
        if self.controller is not None:
            return self.controller(data)
        if self._welcome is not None:
            return self._complete(self._welcome, data)
        message = _parse_message(data, MAX_BYTES + FIRST if self._offer else FIRST)
        if "settings" in message:
            self._offer = message
            return self._register(message) if self._has_versions_of(message) else self._introduce()
        if "common" in message:
            return self._count(message["common"])
        if message.get("refused") is not None:
            raise RefusedError(f"the server does not take this device: {message['refused']}")
        if not self._offer:
            raise RefusedError("the server welcomes a device before it has sent settings: start all ranks again")
        self._take_preparation(message)
        self._missing = [name for name in ("public", "start") if message.get(name)]
        self._start = None
        if self._missing:
            self._welcome = message
        else:
            self._join(message)
        return b"{}"

    def _complete(self, welcome: dict[str, Any], data: bytes) -> bytes:
        """Return the answer to a message after the welcome; with the last one, this device has joined."""
        if self._missing[0] == "public":
            public, labels = read_public(data, self.data.federation.train)
            self.data.federation = replace(self.data.federation, public=public, public_labels=labels)
            del self._missing[0]
            answer = b"{}"
        else:
            answer = self._take_start(welcome, data)
        if not self._missing:
            self._join(welcome)
        return answer

    @_translate_errors()
    def _take_start(self, welcome: dict[str, Any], data: bytes) -> bytes:
        """Take the initial tensors of the network, or a part of them, and return the number of bytes that are here."""
        name = self._architecture(welcome)
        if self._start is None:
            self._start = StartFile(self.folder / "starts", self.models[name], data)
        else:
            self._start.take(data)
        if self._start.network is not None:
            self.models[name] = self._start.network
            self._missing.remove("start")
        return json.dumps({"start": self._start.has}).encode()

    def _architecture(self, welcome: dict[str, Any]) -> str:
        if welcome["model"] not in self.models:
            raise RefusedError(
                f"the server gives the architecture {welcome['model']!r:.80}, and its settings have none such"
            )
        return str(welcome["model"])

    def _has_versions_of(self, message: dict[str, Any]) -> bool:
        """Return whether this device has the server's versions; without them its settings are not looked at.

        Raises:
            RefusedError: the server does not say any, and so would not refuse a device with others.
        """
        if "versions" not in message:
            check_versions(None, "the server", "this device")
        try:
            check_versions(message["versions"], "the server", "this device")
        except RefusedError:
            return False
        return True

    def _introduce(self) -> bytes:
        """Return who this device is, without examples, for a server that will refuse it."""
        return to_bytes({"id": self.id, "name": self.name, "versions": versions()})

    def _register(self, message: dict[str, Any]) -> bytes:
        """Return the registration of this device, with the statistics that the server's settings ask for."""
        self._prepare(message)
        registration = replace(self.data.registration(self.id, self.model), name=self.name).described()
        statistics = self.data.statistics(needs_moments(self.task))
        own = {} if statistics is None else {"statistics": statistics.described()}
        return to_bytes({**registration, "start": True, "versions": versions(), **own})  # "start": it can take one

    def _count(self, totals: Any) -> bytes:
        """Return what the columns of this device add to the second exchange."""
        self._counted += 1
        if not self._offer or self._counted > _EXCHANGES:
            raise RefusedError(
                f"a device counts its columns after the settings, and at most {_EXCHANGES} times, got one more: start "
                "all ranks again"
            )
        return to_bytes({"spread": self.data.second_statistics(totals).described()})

    @_translate_errors()
    def _take_preparation(self, welcome: dict[str, Any]) -> None:
        """Prepare columns and task by the statistics of all devices."""
        train = self.data.federation.train
        if self.data.is_prepared_by_all:
            if "preparation" not in welcome:
                raise RefusedError(
                    "the server has no preparation for this table, which was named with prepare=federated: install a "
                    "newer fedloom there, or leave prepare out on all devices"
                )
            self.data.prepare(read_preparation(welcome["preparation"]))
            self.models = self.experiment.models(self.data.federation.train)
        if isinstance(self.task, FitsTargets) and needs_moments(self.task):
            columns = train.num_classes if train.y.is_floating_point() else 0
            self.task = self.task.fit(TargetMoments(*read_moments(welcome.get("moments"), columns)))

    @_translate_errors()
    def _prepare(self, message: dict[str, Any]) -> None:
        """Load examples and networks by the server's settings."""
        if code := named_code(message["settings"]):
            raise SettingError(f"a device imports no code that a server names, and its settings say {code[0]!r}")
        experiment = Experiment.of(message["settings"])
        if experiment.start is not None:
            raise SettingError(f"a device opens no file that a server names, and its settings say {experiment.start!r}")
        self._check_steps(experiment)
        if experiment.run.secure_aggregation != "none":  # said before this device is registered
            from fedloom.privacy import mask_secrets as mask_secrets  # which refuses where there is no cryptography
        self.experiment = experiment
        self.data = DataManager(self._examples, experiment.data, experiment.partition_seed)
        self.task = catalogue.task(experiment.task)
        check_targets(self.data.federation, self.task)
        self.models = {} if self.data.is_prepared_by_all else experiment.models(self.data.federation.train)
        if self.upload is not None:
            self.model, self._weights = weights_in(self.upload, self.model, experiment, self.models, self.data)
            self.say(f"instead of training this device uploads {self.upload}, weights of {self.model}")

    def _check_steps(self, experiment: Experiment) -> None:
        """Refuse settings with more steps, passes or rows of a batch than `steps`."""
        local, n = experiment.local, len(self._examples.train)
        steps = local.steps or local.epochs * -(-n // local.batch_size)
        if steps > self.steps:
            raise SettingError(f"{too_many_steps(steps, self.steps)}: join with --most-steps {steps}, or not at all")
        for name, value in flat(experiment.described()).items():
            section = name.partition(".")[0]
            if type(value) is int and value > self.steps and section not in ("data", "run", "clients"):
                raise SettingError(
                    f"a device counts nothing of its training beyond {self.steps:,} (--most-steps), and the server's "
                    f"settings say {name} = {value}: join with a higher --most-steps, or not at all"
                )

    @_translate_errors()
    def _join(self, welcome: dict[str, Any]) -> None:
        e, name = self.experiment, self._architecture(welcome)
        federation = self.data.federation
        if e.run.stateless:  # a state that travels has the same shape everywhere, and this may be that of the largest
            federation = replace(federation, largest_elsewhere=welcome.get("largest", 0))
        population = Population(
            federation, self.models, (name,), self.task, seed=e.run.seed,
            dtype=getattr(torch, e.run.dtype), first=int(welcome["client"]), measures=e.run.measures,
            headline=e.run.headline,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SettingWarning)  # the server, which chose the settings, is warned of them
            algorithm = catalogue.algorithm(e.algorithm, e.local, e.settings.get(e.algorithm, {}))
            algorithm = algorithm.bind(population.federation, population.models)
        if self._weights is not None:
            algorithm = uploading(algorithm, self._weights)
        runtime = Runtime(
            population, algorithm, compilation="none", bf16=e.run.bf16, encoders=encoders_of(e.run),
            gradients=gradients_of(e.run),
        )  # fmt: skip
        files.make(self.folder / "runs", private=True)  # its states may be personal models
        folder = self.folder / "runs" / check_id(self._offer["run"], "a run")
        models = None if e.run.stateless else ModelManager(folder, runtime.fresh(0))
        described = e.described()
        for simulated in ("source", "partition", "clients", "examples", "merge"):
            del described["data"][simulated]
        facts = {
            "id": self.id, "name": self.name, "source": self.source, "model": name, "client": int(welcome["client"]),
            "settings": described, "preparation": welcome.get("preparation"), "moments": welcome.get("moments"),
        }  # fmt: skip
        masks = None
        if e.run.secure_aggregation != "none":
            from fedloom.deploy.device.device_masks import DeviceMasks  # which needs cryptography

            masks = DeviceMasks.of(e.run, runtime)
            self.say(f"uploads leave this device under masks: secure_aggregation = {e.run.secure_aggregation}")
        self.say(f"joined as client {int(welcome['client'])}: {e.algorithm}, {e.run.rounds} rounds, {name}")
        self.controller = Controller(
            self.id, str(welcome["token"]), runtime, models,
            monitor=self.monitor, start_limits=self.start_limits, abort_limits=self.abort_limits,
            leave_reason=lambda: self.leave_reason, steps=self.steps,
            results=DeviceResults(self.folder / "results", self._offer["run"], self.task, facts, self.say),
            masks=masks,
        )  # fmt: skip


_TYPES = {  # of the server's messages before requests
    **dict.fromkeys(("run", "model", "token", "refused"), TEXT),
    **dict.fromkeys(("settings", "common", "preparation", "moments", "versions"), MAPPING),
    **dict.fromkeys(("public", "start"), JsonType(bool, "true or false")),
    **dict.fromkeys(("client", "largest"), whole(0, (1 << 40) - 1, "a whole number below 2**40")),
}
_MESSAGES = (("run", "settings"), ("common",), ("client", "model", "token"), ("refused",))  # required entries of each


def _parse_message(data: bytes, limit: int) -> dict[str, Any]:
    """Return a message of the server before its requests, of at most `limit` bytes.

    Raises:
        RefusedError: it is too long, no JSON object, or not a message of a server.
    """
    try:
        message = parse(data, limit)
    except ValueError as error:
        raise RefusedError(f"not a message of a fedloom server: {error!s:.200}") from None
    for name, kind in _TYPES.items():
        if name in message and not kind.fits(message[name]):
            raise RefusedError(
                f"not a message of a fedloom server: {name} is {kind.words}, got {message[name]!r:.80}; install the "
                "server's version of fedloom here"
            )
    if not any(set(names) <= set(message) for names in _MESSAGES):
        raise RefusedError(
            f"not a message of a fedloom server: a message with {', '.join(message) or 'nothing'!s:.80}; install its "
            "version of fedloom here"
        )
    return message


def device_id(folder: Path) -> str:
    """Return the id of a device from its state folder; draw one if there is none."""
    files.make(folder)
    path = folder / "id"
    if not files.exists(path):
        files.write(folder, "id", secrets.token_hex(16).encode())
    return check_id(files.load(path).decode(errors="replace").strip(), "a device")
