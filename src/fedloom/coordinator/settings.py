"""Settings of a run that are the same for every algorithm."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from fedloom.coordinator.engine_choice import CompilationName
from fedloom.core.choices import Count, Positive, StrictSettings, WholeNumber, check_choices
from fedloom.core.errors import SettingError, warn
from fedloom.core.setting import Where, setting
from fedloom.engines.aggregators import aggregator
from fedloom.engines.by_name import EngineName
from fedloom.engines.upload_bounds import bound
from fedloom.evaluate.measure import HEADLINE, Measure

Processes = Annotated[int, Ge(1), Le(4096)]  # or threads: beyond what any machine has, so a slip
_DEVICES = "device must be 'cpu', 'cuda' or 'cuda:0', ..."


EVERYWHERE: tuple[Where, ...] = ("resumed", "method", "recipe")  # how a run is computed and kept changes no number


@dataclass(frozen=True, kw_only=True)
class RunSettings(StrictSettings):
    """Settings of a run; the same for every algorithm of a comparison.

    `engine`, `compilation`, `chunk`, `bf16`, `device`, `dtype` and `threads` may change results in the last bits.
    """

    rounds: Count = setting(30, "--rounds N", "training", may_differ=("resumed", "recipe"))
    """Maximum number of rounds."""
    cohort_size: Count = setting(10, "--cohort K", "training")
    """Clients selected in each round."""
    spares: WholeNumber = 0
    """Clients drawn beyond the cohort, who replace those that [decline](devices.md#who-is-asked); without them such a
    round is smaller. With a `clock` they are [asked at once](time.md#rounds-that-wait)."""
    seed: WholeNumber = setting(0, may_differ=("method", "recipe"))
    """Seed of everything random but the partition (`data.partition_seed`). `--seed 0,1,2` starts one run for each."""
    monitor: str = setting(
        HEADLINE, "--monitor NAME", "training", may_differ=("resumed",),
        part="fedloom.coordinator.stopping:StopConditions",
    )  # fmt: skip
    """Measure that `target` and `patience` watch ([stop conditions](runs.md#stop-early)). Losses and forgetting are
    better when lower. The default stands for the headline on the global test set, also where that is not accuracy."""
    target: float | None = setting(
        None, "--target X", "training", may_differ=("resumed",), part="fedloom.coordinator.stopping:StopConditions"
    )
    """Value of the monitored measure at which the run stops. Accuracies are shares: 0.9 is 90 %."""
    patience: Count | None = setting(
        None, "--patience N", "training", may_differ=("resumed",), part="fedloom.coordinator.stopping:StopConditions"
    )
    """Measurements without an improvement after which the run stops."""
    eval_every: Count = setting(1, "--eval-every N", "results")
    """Rounds between evaluations of the personal models; the last round always has one."""
    global_every: Count = setting(1, "--global-every N", "results")
    """Rounds between evaluations of the global model, which may take longer than the rounds; the last round always has
    one. [What follows from it](measures.md#rounds-without-evaluations)."""
    panel: Count = 1000
    """Maximum number of clients whose personal models are evaluated."""
    evaluate_training: bool = setting(
        False, "--evaluate-training", "results", may_differ=("resumed", "recipe"),
        part="fedloom.coordinator.personal_models:TrainingLoss",
    )  # fmt: skip
    """Measure the loss of the personal models over all training examples of their clients too (`personal_train_loss`),
    whenever they are evaluated. It costs a pass over these examples."""
    per_client: bool = setting(
        False, "--per-client", "results", may_differ=("recipe",), part="fedloom.coordinator.per_client:PerClient"
    )
    """Write the numbers of [each client](runs.md#each-client) to `clients.jsonl`: examples, right answers and losses of
    the personal and the global model, before and after local training. It costs a pass over these examples for each
    model."""
    measures: tuple[str, ...] = setting((), "--measures M,M", "results")
    """[Measures of the task](tasks.md#measures) that are computed beside its headline, which is always computed."""
    headline: str = setting("", "--headline M", "results")
    """[Measure of the task](tasks.md#measures) by which models are compared and rounds and settings are chosen: `auc`,
    `average_precision` or `balanced_accuracy` where a class is rare. Accuracy is computed too. Empty: the task's first,
    accuracy for classes."""
    checkpoint_every: Count = setting(1, "--checkpoint-every N", "results", may_differ=EVERYWHERE)
    """Rounds between [checkpoints](runs.md#checkpoints); the last round always has one. The first and the last two are
    kept."""
    keep_every: Count = setting(10, may_differ=EVERYWHERE)
    """Checkpoints of every N-th round are kept for good."""
    keep_best: bool = setting(
        False, "--keep-best", "results", may_differ=EVERYWHERE, part="fedloom.coordinator.best_round:BestRound"
    )
    """Keep the [checkpoint of the best round](runs.md#the-best-round) so far too: that with the best headline on
    validation examples, such as the highest `val_accuracy`, the first of equals. It needs validation examples
    (`data.val_fraction`)."""
    mirror: str | None = setting(None, "--mirror ADDRESS", "results", EVERYWHERE, "fedloom.mirror.mirroring:Mirroring")
    """Address to which the run's folder is [copied after each checkpoint](clusters.md#a-mirror), so that it can go on
    where this machine is lost: `s3://bucket/run`, `sftp://host/folder`, `file:///mnt/other/run` or any other of fsspec;
    several runs get a folder each below it."""
    state_memory_mib: Annotated[float, Ge(1)] | None = setting(
        None, "--state-memory MIB", "engine", may_differ=EVERYWHERE
    )
    """MiB of client states held in memory; the rest [goes to disk](runs.md#memory); none: all in memory."""
    stateless: bool = False
    """Keep client states on the server and send them with each request; [bytes](runs.md#bytes) count them. Results are
    the same bits."""
    engine: EngineName = setting("auto", "--engine", "engine", may_differ=("recipe",))
    """Engine that computes the clients: [engines](guide.md#engines), [ranks](ranks.md), [devices](devices.md)."""
    workers: Processes | None = setting(None, "--workers N", "engine", may_differ=EVERYWHERE)
    """Processes of the engines `workers` and `stacks`; none: one for each core. Results do not depend on it."""
    deadline: Positive | None = setting(None, "--deadline S", "engine", may_differ=("resumed",))
    """Seconds that clients in other processes have for an exchange; a client that is later [is left out of the
    round](ranks.md#deadline) and named in its record; none: no limit."""
    compilation: CompilationName = setting("auto", "--compilation", "engine", may_differ=("recipe",))
    """Form of the training step: step by step, from a traced or from a compiled graph ([the rule of
    auto](design.md#the-fold))."""
    chunk: Count | None = setting(None, "--chunk K", "engine", may_differ=("method", "recipe"))
    """Clients stacked at a time; none: by memory, of `stacks` by the network too. With it, ranks [stack as
    well](ranks.md)."""
    front: Literal["auto", "off"] = setting("auto", "--front", "engine", may_differ=EVERYWHERE)
    """Frozen layers at the front of a network are [computed once for each example](frozen.md#the-front-once) (`auto`:
    where results are the same bits), or in every pass (`off`)."""
    bf16: bool = setting(False, "--bf16", "engine")
    """Mixed precision (bfloat16) in local training; [slower](benchmarks.md#bf16) on a CPU without its arithmetic."""
    device: str = setting("cpu", "--device NAME", "engine", may_differ=("recipe",))
    """PyTorch device: `cpu`, `cuda`, `cuda:1`."""
    dtype: Literal["float32", "float64"] = setting("float32", "--dtype", "engine")
    """Type of weights and activations."""
    threads: Processes | None = setting(None, "--threads N", "engine", may_differ=("method", "recipe"))
    """Threads of PyTorch; none: [as many as a step can feed](guide.md#threads)."""
    on_nonfinite: Literal["stop", "refuse"] = setting("stop", "--on-nonfinite", "training")
    """At a loss, an upload or a server state that is NaN or infinite: stop, or continue without that client (with the
    previous server state)."""
    aggregator: str = setting(
        "mean", "--aggregator RULE", "training", part="fedloom.coordinator.aggregation:AggregatorUsed"
    )
    """[Rule by which uploads become a mean](robust.md#rules), the weighted mean or one that survives clients that lie,
    in every algorithm that averages."""
    bound: str = setting("none", "--bound RULE", "training")
    """[Bound of one upload](robust.md#a-bound): of the norm of its difference to what was sent, `refuse:X` or `clip:X`;
    `refuse:median:X` is X times the median of such uploads, `refuse:sent:X` X times the norm of what was sent; none: no
    bound. `fedloom serve` uses `refuse:median:5` unless told otherwise."""
    privacy: str = setting("none", "--privacy KIND", "training", part="fedloom.privacy.privacy_kinds:Privacy")
    """[Differential privacy of clients](privacy.md#privacy-of-clients): `central:epsilon=4,delta=1e-5,clip=0.5` clips
    each upload and adds noise to their sum, as much as the run's rounds need for this epsilon; `noise=1` in its place
    gives the noise in clip norms, and with it epsilon; `clip=adaptive:0.5` follows a quantile of the norms.
    [Of examples](privacy.md#privacy-of-examples): `examples:noise=1,delta=1e-5,clip=1`, in each client's training.
    [With noise by the clients](privacy.md#noise-by-the-clients): `distributed:epsilon=4,delta=1e-5,clip=0.5,lost=2`,
    with `secure_aggregation`.
    [Of each upload](privacy.md#privacy-of-uploads): `local:epsilon=8,delta=1e-5,clip=1`, before it leaves its
    client."""
    secure_aggregation: str = setting(
        "none", "--secure-aggregation RANGE", "training", part="fedloom.privacy.secure_sums:SecureSums"
    )
    """[Means of sums that nobody sees into](privacy.md#sums-that-nobody-sees-into): `range=8` says how far numbers of
    uploads are from 0 at most; `range=8,bits=64` takes words of 64 bits, where 32 would do; `masks=true` runs the
    protocol in a simulation too, with the same bits. Methods and settings that need single uploads are refused."""
    clock: str = setting("none", "--clock KIND", "training", part="fedloom.virtual_time.virtual_rounds:VirtualTime")
    """[Virtual clock](time.md) of a simulation, which counts the seconds that clients would take to receive, compute
    and send: `lognormal:example=0.01,spread=1,down=20,up=5` has log-normal speeds, `classes:...` kinds of devices,
    `trace:FILE.csv` a trace, `measured:RUN` those of a run. In it `deadline=60` leaves out who is late, and
    `there=0.5,cycle=86400` who is away; with it `spares` are asked at once, and the first that come count."""
    compression: str = setting(
        "none", "--compression ENCODER", "training", part="fedloom.compression.encoders_by_name:Compression"
    )
    """[Encoder of uploads](compression.md), of what they change: `bits:8`, `bits:4` or `bits:2`, `topk:0.01` (a share,
    or a count), `randk:0.01`, `sign`, `lowrank:2`, `float16`, or a chain, `topk:0.01+bits:4`. `?feedback=true` adds
    what is left of an upload to the client's next one, as topk, sign and lowrank do unless told otherwise;
    `?scope=whole` encodes an upload as one vector, `?scope=tensor` each tensor. One of your own is `module:name`."""
    compression_down: str = setting(
        "none", "--compression-down ENCODER", "training", part="fedloom.compression.encoders_by_name:DownCompression"
    )
    """[Encoder of what all clients are sent](compression.md#downloads), whole models: `bits:8` or `float16`."""
    asynchrony: str = setting(
        "none", "--asynchrony KIND", "training", part="fedloom.virtual_time.asynchronous:Asynchronous"
    )
    """[Rounds that do not wait](time.md#rounds-that-do-not-wait), on the virtual clock (`clock`), or as
    [devices](time.md#on-devices) come: `fedbuff:size=10,staleness=polynomial:0.5` moves the model as soon as 10 clients
    have answered, `fedasync:alpha=0.6` after each answer, `deadline:seconds=60` after 60 seconds. `cohort_size` is then
    the most clients under way, and `rounds` counts versions of the model. With `arrivals=RUN` in it a simulation
    follows the log of such a run of devices; none: rounds that wait for their cohort."""
    partial_sums: Count | None = None
    """Parts into which a cohort is cut, in the order of its clients; the uploads of each part are summed, then the
    sums. Ranks and workers [send sums alone](ranks.md#partial-sums). Results depend on the number of parts in the
    last bits; none: uploads are summed one by one."""
    norm_bound: InitVar[float | None] = None  # of 0.2.0, which scripts have
    median_bound: InitVar[float | None] = None

    def __post_init__(self, norm_bound: float | None, median_bound: float | None) -> None:
        old = {
            f"norm_bound = {norm_bound}": None if norm_bound is None else f"refuse:sent:{norm_bound:g}",
            f"median_bound = {median_bound}": None if median_bound is None else f"refuse:median:{median_bound:g}",
        }
        if self.aggregator.partition(":")[0] == "clip":
            rule = self.aggregator.removeprefix("clip").removeprefix(":")
            old[f"aggregator = {self.aggregator!r}"] = f"clip:{rule or 'median:1'}"
            object.__setattr__(self, "aggregator", "mean")
        given = self.bound
        for said, written in old.items():  # of several the last counts, as in 0.2.0
            if written is not None:
                if given not in ("none", written):
                    raise SettingError(f"an upload has one bound, got bound = {given!r} and {said}: leave one out")
                object.__setattr__(self, "bound", written)
                warn(f"{said} is written bound = {written!r} now: rename it", FutureWarning)
        check_choices(self)
        aggregator(self.aggregator)
        bound(self.bound)
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

    def for_debugging(self) -> RunSettings:
        """Return the same with clients that are computed one by one in this process, where a debugger stops.

        Raises:
            SettingError: another engine than `loop` is asked for.
        """
        if self.engine not in ("auto", "loop"):
            raise SettingError(
                f"debugging computes the clients one by one on the engine loop, got engine = {self.engine!r}: leave "
                "one of both out"
            )
        return replace(self, engine="loop", compilation="none", chunk=None, workers=None, deadline=None)

    def check_target(self, measure: Measure) -> None:
        """Raise SettingError where the measure that is monitored never has the value of `target`."""
        low, high = (at if end is None else end for at, end in zip((-math.inf, math.inf), measure.range, strict=True))
        if self.target is not None and not low <= self.target <= high:
            what = {"%": "a share", "points": "a difference of shares"}.get(measure.unit, "a number")
            percent = measure.unit == "%" and 1 < self.target <= 100
            share = f": write {self.target / 100:g} for {self.target:g} %" * percent
            raise SettingError(
                f"target of {measure.name} is {what} in [{low:g}, {high:g}], got {self.target:g}{share} [FL-RUN-003]"
            )

    def reason_to_stop(self, values: list[float], measure: Measure) -> str | None:
        """Return why to stop after these measurements of a number, None to go on."""
        if not values:
            return None
        sign, name = -1.0 if measure.better == "low" else 1.0, measure.name.replace("_", " ")
        if self.target is not None and sign * values[-1] >= sign * self.target:
            return f"{name} reached {values[-1]:.4g} (target {self.target:g})"
        if self.patience is not None:
            best = max(range(len(values)), key=lambda i: (sign * values[i], -i))  # the first of equals
            if len(values) - 1 - best >= self.patience:
                return f"{name} did not improve on {values[best]:.4g} in {self.patience} measurements"
        return None
