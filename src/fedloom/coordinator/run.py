"""The run: sample a cohort, do the round, evaluate, log; until the last round."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from torch import nn

from fedloom.coordinator.history import History, Record
from fedloom.coordinator.sampler import DeviceSampler, Uniform
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError
from fedloom.core.execution import Compilation
from fedloom.core.model import Model
from fedloom.core.random import generator
from fedloom.core.task import Classification, Task
from fedloom.core.types import Weights
from fedloom.data import Examples, Federation, Partition
from fedloom.engines.choose import EngineName, choose
from fedloom.engines.population import Population, pooled
from fedloom.engines.simulated import Faults, Simulation
from fedloom.evaluate import classify, forgetting, in_local, out_local, rows_right

Models = Model | nn.Module | Callable[[], nn.Module] | Mapping[str, Model | nn.Module | Callable[[], nn.Module]]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a run is run; the same for every algorithm of a comparison.

    `cohort_size`: clients asked per round. `eval_every`: rounds between judgements of personal models (the last round
    always is one); the global model is evaluated after every round. `panel`: how many clients are judged.
    `compilation`, `chunk`: of the stacked engine. `bf16`: automatic mixed precision in local training. `threads`: of
    PyTorch, for this run; None leaves them as they are. Results may differ with them in the last bit.
    """

    rounds: int = 30
    cohort_size: int = 10
    seed: int = 0
    engine: EngineName = "auto"
    compilation: Compilation = "none"
    bf16: bool = False
    chunk: int | None = None
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    threads: int | None = None
    eval_every: int = 1
    panel: int = 1000
    on_nonfinite: Literal["stop", "refuse"] = "stop"

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise SettingError(f"threads must be >= 1 or None (as they are), got {self.threads}")
        for name in ("rounds", "cohort_size", "eval_every", "panel"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be >= 1, got {getattr(self, name)}")
        for name, known in (
            ("dtype", ("float32", "float64")),
            ("compilation", ("none", "trace", "compile")),
            ("on_nonfinite", ("stop", "refuse")),
        ):
            if getattr(self, name) not in known:
                raise SettingError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise SettingError(f"device must be 'cpu', 'cuda' or 'cuda:0', ..., got {self.device!r}") from None
        if device.type == "cuda":
            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if not gpus:
                raise SettingError(f"device = {self.device!r}, but this machine has no CUDA GPU; use device = 'cpu'")
            if (device.index or 0) >= gpus:
                raise SettingError(f"device = {self.device!r}, but the GPUs here are cuda:0 to cuda:{gpus - 1}")


def run(
    algorithm: Algorithm[Any, Any],
    federation: Federation,
    model: Models,
    settings: RunSettings | None = None,
    *,
    task: Task | None = None,
    sampler: DeviceSampler | None = None,
    faults: Faults | None = None,
    directory: str | os.PathLike[str] | None = None,
    on_start: Callable[[History], None] | None = None,
    on_round: Callable[[History], None] | None = None,
) -> History:
    """Train `model` on `federation` with `algorithm` and return what was measured.

    `model`: a module, a function that makes one (its weights then follow the seed), or a mapping of names to several
    architectures, given to the clients in turn. `directory`: where settings.json, metrics.jsonl and timing.jsonl go;
    it must not hold a run yet. `on_start` is called once, when the engine is chosen and nothing is measured yet,
    `on_round` after every round.

    Raises:
        SettingError: settings contradict each other or the federation, or `directory` holds a run.
        ValueError: `sampler` names a client twice, or one that does not exist.
        ClientError: the code of a client failed; names the client, the round and the batch.
        NonFiniteError: a loss or an upload is not finite (a ClientError), unless `on_nonfinite` is "refuse".
    """
    settings = settings or RunSettings()
    if federation.train.y.is_floating_point():
        raise SettingError(
            "labels must be class numbers (integers), got floating-point targets: regression is not supported"
        )
    if settings.cohort_size > federation.num_clients:
        raise SettingError(
            f"cohort_size = {settings.cohort_size} is larger than the federation of {federation.num_clients} clients; "
            f"set cohort_size <= {federation.num_clients}"
        )
    if directory is not None:
        check_free(directory)
    if algorithm.pooled and algorithm.personalises:
        raise SettingError(
            f"{type(algorithm).__name__} trains one model for all, which no client can have parts of: "
            "use shared = '*' and buffers = 'average'"
        )
    population = Population(
        federation=federation,
        models=_models(model),
        task=task or Classification(),
        seed=settings.seed,
        device=torch.device(settings.device),
        dtype=getattr(torch, settings.dtype),
    )
    job = _Run(algorithm, population, settings, sampler or Uniform(settings.seed), faults, on_round)
    if on_start is not None:
        on_start(job.history)
    return job.go(directory)


def check_free(directory: str | os.PathLike[str]) -> None:
    """Raise SettingError if a directory holds a run already, or is no directory."""
    if Path(directory).exists() and not Path(directory).is_dir():
        raise SettingError(f"{directory} is a file; name a directory, new or without a run")
    if (Path(directory) / "metrics.jsonl").exists():
        raise SettingError(f"{directory} already holds a run; choose another directory or move it away")


class _Run:
    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        population: Population,
        settings: RunSettings,
        sampler: DeviceSampler,
        faults: Faults | None,
        on_round: Callable[[History], None] | None,
    ) -> None:
        self.population, self.settings, self.sampler, self.on_round = population, settings, sampler, on_round
        self.cohort_size, trained = settings.cohort_size, population
        if algorithm.pooled:  # as many steps a round as a cohort takes
            local, share = algorithm.local, self.cohort_size / population.num_clients
            steps = local.steps or round(local.epochs * share * float((-(-population.sizes // local.batch_size)).sum()))
            algorithm = replace(algorithm, local=replace(local, steps=max(1, steps)))
            trained, self.cohort_size = pooled(population), 1
        self.algorithm, self.trained = algorithm, trained
        kind, reason = choose(settings.engine, trained, algorithm.local, self.cohort_size)
        self.engine: Simulation = kind(
            trained,
            algorithm,
            compilation=settings.compilation,
            bf16=settings.bf16,
            chunk=settings.chunk,
            faults=faults,
            on_nonfinite=settings.on_nonfinite,
        )
        self.history = History(algorithm=type(algorithm).__name__, engine=kind.name, engine_reason=reason)
        n = population.num_clients
        rng = generator(settings.seed, "panel")
        self.panel = sorted(int(k) for k in rng.permutation(n)[: min(n, settings.panel)])
        self._held: dict[str, tuple[Examples | None, list[tuple[int, int, int]]]] = {}
        counts = population.federation.counts()
        self.share = counts / counts.sum(1, keepdims=True)

    def go(self, directory: str | os.PathLike[str] | None) -> History:
        with ExitStack() as files:
            if self.settings.threads is not None:
                files.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(self.settings.threads)
            logs = self._open(Path(directory), files) if directory is not None else None
            server, clock = self.engine.init(), _Clock()
            self._record({"round": 0, **self._evaluate(server, []), **self._personal(server)}, clock, logs)
            for t in range(self.settings.rounds):
                clock = _Clock()
                clients = self._cohort(t)
                clock.lap("sample")
                server = self.engine.round(server, clients, t)
                clock.lap("train")
                done = t + 1
                record: Record = {
                    "round": done,
                    "clients": clients,
                    **self._traffic(),
                    **self._evaluate(server, clients),
                }
                if done % self.settings.eval_every == 0 or done == self.settings.rounds:
                    record.update(self._personal(server))
                clock.lap("evaluate")
                self.history.server, self.history.clients = server, self.engine.states
                self._record(record, clock, logs)
                if self.on_round is not None:
                    self.on_round(self.history)
        return self.history

    def _cohort(self, round: int) -> list[int]:
        n = self.trained.num_clients
        clients = [int(k) for k in self.sampler(round, n, self.cohort_size)]
        if len(set(clients)) < len(clients) or not all(0 <= k < n for k in clients):
            raise ValueError(f"a sampler must name distinct clients of 0..{n - 1}, got {clients} in round {round}")
        return clients

    def _traffic(self) -> Record:
        traffic = self.engine.traffic
        failed = {str(f.client): f.reason for f in traffic.failed}
        losses = [traffic.losses[k] for k in sorted(traffic.losses) if str(k) not in failed]
        return {
            "failed": failed,
            "train_loss": _mean(losses),
            # where everything is in one place, nothing travels
            "bytes_down": 0 if self.algorithm.pooled else sum(traffic.down.values()),
            "bytes_up": 0 if self.algorithm.pooled else sum(traffic.up.values()),
        }

    def _evaluate(self, server: dict[str, Any], cohort: list[int]) -> Record:
        out: Record = {}
        federation, p = self.population.federation, self.population
        weights = self._global(server)
        if federation.test is not None and weights:
            members = np.array([sum(a == n for a in self.trained.assignment) for n in weights], float)
            members /= members.sum()  # exactly 1 where there is one architecture
            found = [classify(p.models[n], w, p.task, federation.test) for n, w in weights.items()]
            per_class = np.average([f.per_class for f in found], axis=0, weights=members)
            out["global_accuracy"] = float(np.average([f.accuracy for f in found], weights=members))
            out["global_loss"] = float(np.average([f.loss for f in found], weights=members))
            out["class_accuracy"] = [None if np.isnan(a) else float(a) for a in per_class]
            if cohort:
                past = self.history.per_class
                history = np.vstack([past, per_class]) if len(past) else per_class[None]
                out["forgetting"] = _mean(forgetting(history))  # None after the first round: nothing to forget yet
                share = self.share if self.algorithm.pooled else self.share[cohort]
                out["in_local_accuracy"] = _mean(in_local(share, per_class))
                out["out_local_accuracy"] = _mean(out_local(share, per_class))
        return out

    def _global(self, server: dict[str, Any]) -> dict[str, Weights]:
        """The global model of each architecture, where there is one."""
        found = {name: self.algorithm.global_weights(state) for name, state in server.items()}
        return {name: weights for name, weights in found.items() if weights is not None}

    def _personal(self, server: dict[str, Any]) -> Record:
        """Each client of the panel, judged by its personal model on its own held-out examples."""
        p, partition, weights = self.population, self.population.federation.local_test, self._global(server)
        if partition is None:
            return {}
        if self.algorithm.personalises or not weights:
            judged = self.engine.judge(server, self.panel)
            rate = {k: right / total for k, (right, total) in judged.items() if total}
        else:  # one model for all of them: each row once
            rate = {}
            for name, w in weights.items():
                held_out, spans = self._held_out(name, partition)
                if held_out is not None:
                    right = rows_right(p.models[name], w, p.task, held_out)
                    rate.update({k: float(right[a:b].mean()) for k, a, b in spans if b > a})
        if not rate:
            return {}
        values = np.array([rate[k] for k in self.panel if k in rate])
        tenth = np.sort(values)[: max(1, len(values) // 10)]
        return {
            "personal_accuracy": float(values.mean()),
            "personal_std": float(values.std()),
            "personal_worst_tenth": float(tenth.mean()),
            "personal_by_client": {str(k): rate[k] for k in self.panel if k in rate},
        }

    def _held_out(self, name: str, partition: Partition) -> tuple[Examples | None, list[tuple[int, int, int]]]:
        """What the panel's clients of one architecture hold out, and each one's span in it; the same every round."""
        if name not in self._held:
            p = self.population
            members = [k for k in self.panel if self.algorithm.pooled or p.assignment[k] == name]
            rows = [partition.rows(k) for k in members]
            ends = [int(n) for n in np.cumsum([0, *map(len, rows)])]
            examples = p.federation.train.select(np.concatenate(rows)) if ends[-1] else None
            self._held[name] = examples, list(zip(members, ends[:-1], ends[1:], strict=True))
        return self._held[name]

    def _record(self, metrics: Record, clock: _Clock, logs: tuple[IO[str], IO[str]] | None) -> None:
        metrics = _plain(metrics)  # what is in the file is what is in memory
        timing = {"round": metrics["round"], "seconds": clock.laps, "peak_rss_mib": _peak_rss_mib()}
        self.history.metrics.append(metrics)
        self.history.timing.append(timing)
        if logs is not None:
            for file, line in zip(logs, (metrics, timing), strict=True):
                file.write(json.dumps(line, allow_nan=False) + "\n")
                file.flush()

    def _open(self, directory: Path, files: ExitStack) -> tuple[IO[str], IO[str]]:
        directory.mkdir(parents=True, exist_ok=True)
        p = self.population
        resolved = {
            "algorithm": type(self.algorithm).__name__,
            "hyper_parameters": _plain(self.algorithm),
            "run": _plain(self.settings),
            "task": _plain(self.population.task),
            "sampler": _plain(self.sampler),
            "engine": self.history.engine,
            "engine_reason": self.history.engine_reason,
            "models": {n: m.num_params for n, m in p.models.items()},
            "federation": {
                "clients": p.num_clients,
                "partition": p.federation.partition.name,
                "fingerprint": p.federation.fingerprint(),
            },
            "versions": {"torch": torch.__version__, "numpy": np.__version__},
            "fixed": {"threads": torch.get_num_threads(), **self.engine.fixed()},
        }
        (directory / "settings.json").write_text(json.dumps(resolved, indent=2) + "\n", encoding="utf-8")
        logs = (directory / "metrics.jsonl", directory / "timing.jsonl")
        first, second = (files.enter_context(path.open("w", encoding="utf-8")) for path in logs)
        return first, second


def _mean(values: Iterable[float]) -> float | None:
    """The mean of the finite ones (a class without examples has no accuracy), None if there are none."""
    known = [float(v) for v in values if math.isfinite(v)]
    return float(np.mean(known)) if known else None


def _plain(value: Any) -> Any:
    """As JSON has it: a dataclass becomes a mapping with its class as "kind", a number that is not finite null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{f.name: _plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _peak_rss_mib() -> float | None:
    """Most memory that this process has held, None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / (1 << 10)


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def _models(model: Models) -> dict[str, Model]:
    given = model if isinstance(model, Mapping) else {"": model}
    made = {n: m if isinstance(m, Model) else Model(m, name=n or None) for n, m in given.items()}
    return {n or m.name: m for n, m in made.items()}
