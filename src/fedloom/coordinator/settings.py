"""How a run is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from fedloom.coordinator.choose import CompilationName, EngineName
from fedloom.coordinator.history import lower_is_better
from fedloom.core.choices import Count, Known, Positive, WholeNumber, check_choices
from fedloom.core.errors import SettingError

Monitor = Literal["global_accuracy", "global_loss", "forgetting", "train_loss", "personal_accuracy", "val_accuracy"]


Processes = Annotated[int, Ge(1), Le(4096)]  # or threads: beyond what any machine has, so a slip
_DEVICES = "device must be 'cpu', 'cuda' or 'cuda:0', ..."


@dataclass(frozen=True, kw_only=True)
class RunSettings(Known):
    """How a run is run; the same for every algorithm of a comparison.

    `rounds`: at most so many. `cohort_size`: clients asked per round. `seed`: of everything random but the partition.

    `spares`: clients drawn beyond the cohort, who take the places of those that decline; without them a round that is
    declined is smaller.

    `monitor`: the measure that may end a run early: `target` is the value to reach, `patience` how many measurements
    in a row may pass without a better one; None: neither. Losses and forgetting are better when lower.

    `eval_every`: rounds between judgements of personal models (the last round always is one); the global model is
    evaluated after every round. `panel`: how many clients are judged.

    `per_client`: write down each client's numbers in clients.jsonl: examples, right answers and losses of its personal
    and of the global model, on its held-out and its training examples, and accuracy before and after local training. It
    costs a pass over these examples for each model.

    `checkpoint_every`: rounds between checkpoints of a run with a directory (the last round always is one). The first,
    the last two and every `keep_every`-th are kept. `state_memory_mib`: clients' states beyond so many MiB go to disk.

    `stateless`: devices keep nothing between rounds, so the server keeps each client's state and sends it with the
    request. Results are the same bits; bytes count the states that travel, as `personal`.

    `workers`: processes of the engine "workers"; None: one for each core. Results do not depend on it.

    `deadline`: seconds that the clients of an exchange have to answer, where they are in other processes or elsewhere;
    who has not answered by then is left out of the round, and named in its record. None: as long as it takes.

    `engine`, `compilation`, `chunk` (clients stacked at a time; given, ranks stack as well), `bf16` (automatic mixed
    precision in local training), `device`, `dtype`, `threads` (of PyTorch, for this run; None leaves them as they are):
    results may differ with them in the last bits. `on_nonfinite`: at a loss, an upload or a server state that is NaN or
    infinite, "stop" or go on ("refuse"): without that client, with the server state before.

    `norm_bound`: an upload whose norm is more than so many times the norm of what its client was sent (or than so many,
    where that is below 1) is refused: its client is lost to the round. None: any that is finite is taken.

    `median_bound`: an upload whose norm is more than so many times the median norm of those of the same kind that were
    accepted in the last five rounds is refused, in the first round by the median of its own cohort; a median is of at
    least three. None: none is measured.

    `partial_sums`: a cohort is cut into so many parts, in the order of its clients; the uploads of each are added up,
    and then the sums. Ranks and workers send one sum for each part and no uploads. The number of parts is in the
    results, in the last bits, and how many compute them is not. None: uploads are added one after the other.
    """

    rounds: Count = 30
    cohort_size: Count = 10
    spares: WholeNumber = 0
    seed: WholeNumber = 0
    monitor: Monitor = "global_accuracy"
    target: float | None = None
    patience: Count | None = None
    eval_every: Count = 1
    panel: Count = 1000
    per_client: bool = False
    checkpoint_every: Count = 1
    keep_every: Count = 10
    state_memory_mib: Annotated[float, Ge(1)] | None = None
    stateless: bool = False
    engine: EngineName = "auto"
    workers: Processes | None = None
    deadline: Positive | None = None
    compilation: CompilationName = "auto"
    chunk: Count | None = None
    bf16: bool = False
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    threads: Processes | None = None
    on_nonfinite: Literal["stop", "refuse"] = "stop"
    norm_bound: Positive | None = None
    median_bound: Positive | None = None
    partial_sums: Count | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if self.target is not None and self.monitor.endswith("accuracy") and not 0 <= self.target <= 1:
            share = f": write {self.target / 100:g} for {self.target:g} %" if 1 < self.target <= 100 else ""
            raise SettingError(f"target of {self.monitor} is a share in [0, 1], got {self.target:g}{share}")
        if self.target is not None and self.monitor == "forgetting" and not -1 <= self.target <= 1:
            raise SettingError(f"target of forgetting is a difference of shares in [-1, 1], got {self.target:g}")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise SettingError(f"{_DEVICES}, got {self.device!r}") from None
        if device.type not in ("cpu", "cuda"):  # of others, mps lacks the float64 in which sums are made
            raise SettingError(f"{_DEVICES}, got {self.device!r}, on which nothing is computed: use device = 'cpu'")
        if device.type == "cuda":
            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if not gpus:
                raise SettingError(f"device = {self.device!r}, but this machine has no CUDA GPU; use device = 'cpu'")
            if (device.index or 0) >= gpus:
                raise SettingError(f"device = {self.device!r}, but the GPUs here are cuda:0 to cuda:{gpus - 1}")

    def reason_to_stop(self, values: list[float]) -> str | None:
        """Why to stop after these measurements of `monitor`, None to go on."""
        if not values:
            return None
        sign = -1.0 if lower_is_better(self.monitor) else 1.0
        name = self.monitor.replace("_", " ")
        if self.target is not None and sign * values[-1] >= sign * self.target:
            return f"{name} reached {values[-1]:.4g} (target {self.target:g})"
        if self.patience is not None:
            best = max(range(len(values)), key=lambda i: (sign * values[i], -i))  # the first of equals
            if len(values) - 1 - best >= self.patience:
                return f"{name} did not improve on {values[best]:.4g} in {self.patience} measurements"
        return None
