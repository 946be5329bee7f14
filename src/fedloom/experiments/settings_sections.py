"""The settings of a run in words that no other room declares: those at the top, of the data, and of the clients."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from annotated_types import Ge, Le, Lt

from fedloom.coordinator.newcomers import WAYS, NewClients, Way
from fedloom.core.choices import Count, WholeNumber, check_choices, field_types
from fedloom.core.errors import SettingError
from fedloom.core.frozen import Factors
from fedloom.core.setting import setting
from fedloom.data.examples import MAX_CLASSES

Share = Annotated[float, Ge(0), Lt(1)]  # of examples: 0.2 is one in five


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Settings of what clients hold."""

    source: str = setting("fashion_mnist_small", "--data SOURCE")
    """[Data](data.md#sources): a name of `fedloom data sources`, `NAME:FOLDER` for original files, `FILE.npz` with
    x_train, y_train, x_test, y_test, `FILE.csv?label=y&prepare=standard` for [tables](tables.md),
    `sites/*.csv?label=y` for [a table of each site](tables.md#a-table-of-each-site), `huggingface:NAME`, or your own as
    `module:name`."""
    merge: bool = False
    """Give clients the test examples of the source too; there is no global test set then."""
    classes: Annotated[int, Ge(0), Le(MAX_CLASSES)] = 0
    """Use the first N classes of the source alone, such as the letters a to j; 0: all."""
    examples: WholeNumber = 0
    """Distribute N random examples, with the class shares of the source, drawn by `data.partition_seed`; 0: all."""
    normalise: str = "source"
    """Network inputs are (value - mean) / std: [`MEANS/STDS`](data.md#examples) by channel; `places`: each place of an
    example standardised by itself; `source`: the source's own."""
    partition: str = setting("shards:2", "--partition P")
    """[Partition](partitions.md) of the examples over the clients. Where `data.source` names tables or folders of
    sites, or a column by `client=`, and no partition is named, it is `natural`."""
    clients: Count = setting(100, "--clients N")
    """Number of clients; `natural` and `lists:FILE.json` bring their own."""
    partition_seed: WholeNumber | None = setting(None, "--partition-seed N")
    """Seed of the partition, of `data.examples` and of the held-out split; none: `run.seed`. Set it, and the seeds of a
    run share one partition."""
    test_fraction: Share = setting(0.2, "--test-fraction F")
    """Share of each client's examples held out to evaluate its personal model; 0: none."""
    val_fraction: Share = setting(0.0, "--val-fraction F")
    """Share of the remaining examples held out to choose between settings by `val_accuracy`."""
    public: WholeNumber = setting(0, "--public N")
    """Training examples taken out first, without labels and known to all (`kt_pfl` needs some)."""
    public_source: str | None = None
    """Other data whose training examples are public instead, named as in `data.source`: `data.public` random ones, 0:
    all. Images of the same shape."""
    public_labels: bool = False
    """Give public examples their labels, as `fedmd` and the validation of `feddf` need them; they are of the clients'
    classes."""
    arrives: str = setting("all", "--arrives RULE")
    """Training examples of a client that [are there in a round](data.md#data-that-change): `all`, `growing:START:BY`,
    from the share START in round 1 to all from round BY on, or `window:SHARE:BY`, a stretch of that share, which moves
    to the last examples by round BY."""
    drift: str = setting("none", "--drift RULE")
    """Rule by which [examples change](data.md#data-that-change): `labels:EVERY`, every EVERY rounds each class takes
    the label of the next, `rotation:EVERY`, images turn by a quarter, `offset:STEP`, stored values grow by STEP a
    round; each with `:SHARE` of the clients; or `none`."""
    augment: str = setting("none", "--augment A")
    """Augmentation of training images: `crop:PIXELS`, `crop:PIXELS:reflect`, `flip`, `cutout:PIXELS`, separated by
    commas."""

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings of which clients are selected, which do not answer, and which lie."""

    sampler: str = setting("uniform", "--sampler S")
    """[Sampling of the cohort](runs.md#who-is-asked)."""
    declined: float = setting(0.0, "--declined P")
    """Probability that a client declines when a round asks it first."""
    lost: float = setting(0.0, "--lost P")
    """Probability that a client drops out, at any exchange."""
    late: float = setting(0.0, "--late P")
    """Probability that a client answers too late, at any [exchange](runs.md#clients-that-do-not-answer)."""
    attack: str = setting("none", "--attack RULE")
    """Attack that [clients that lie](robust.md#attackers) make in a simulation."""
    attackers: str | None = setting(None, "--attackers WHO")
    """Clients that lie: a share of all, `0.25`, drawn by `run.seed`, or a list, `0,3,7`."""
    new: str | None = setting(None, "--new N")
    """[Clients held out from training](runs.md#new-clients) and evaluated at the end: the last N, or `list:3,7`."""
    joins: int | None = setting(None, "--joins ROUND")
    """Round, from 1, from which on new clients may be selected; none: never."""
    new_judged_by: tuple[Way, ...] = WAYS
    """Ways to evaluate new clients after the last round."""

    def __post_init__(self) -> None:
        check_choices(self)
        if (self.attack == "none") != (self.attackers is None):
            raise SettingError(
                f"clients.attack says what the clients of clients.attackers do, got attack = {self.attack!r} and "
                f"attackers = {self.attackers!r}: set both (--attack sign_flip --attackers 0.25) or none"
            )
        if self.new is None and self.joins is not None:
            raise SettingError(f"clients.joins = {self.joins} is for new clients, and there are none: set clients.new")
        self.newcomers()

    def newcomers(self) -> NewClients | None:
        """Return the new clients, None if there are none."""
        if self.new is None:
            return None
        listed = self.new.removeprefix("list:")
        if not all(part.isdecimal() for part in (listed.split(",") if listed != self.new else [self.new])):
            raise SettingError(f"clients.new is a number of clients or list:3,7,9, got {self.new!r}")
        which = int(self.new) if listed == self.new else tuple(int(k) for k in listed.split(","))
        return NewClients(which, self.joins, self.new_judged_by)


@dataclass(frozen=True, kw_only=True)
class TopSettings:
    """Settings of what is trained, on which task, and from which weights."""

    algorithm: str = "fedavg"
    """Name of `fedloom algorithms`, or your own as `module:Class`; the command line must name one if the file does not.
    """
    model: str = setting("lenet", "--model NAME")
    """[Model by name](networks.md) or `module:name`; several, separated by commas, are given to the clients in
    turn."""
    task: str = setting("classification", "--task NAME")
    """[Task by name](tasks.md) or `module:name`."""
    start: str | None = setting(None, "--start FILE")
    """Weights to start from: a `.safetensors` or [`.pt` file](export.md#files-from-outside)."""
    start_only: str = setting("*", "--start-only PATTERN")
    """Tensors that are taken from the `start` file, by words as those of `frozen`: `* !last:1` leaves out a last layer
    that was made for other classes, which then begins by the seed."""
    frozen: str = setting("", "--frozen PATTERN")
    """Parameters that stay as they begin: glob patterns of their names or of their layers', `last:N` for the last N
    layers, or a kind of layers (`norm`, `conv`, `linear`, `embedding`), separated by spaces; a word that begins with !
    takes back. `* !last:1` trains the last layer alone. [Frozen parts](frozen.md) are never sent."""
    factors: Factors = setting("second", "--factors NAME")
    """Of a [low-rank adapter](frozen.md#adapters) B A: train the `second` factor B alone (of an embedding A), so that
    its mean is that of the products, or `both`."""
    parts: tuple[str, ...] = setting((), "--parts CODE,CODE")
    """[Your own](parts.md) parts of the run beside its algorithm, each `module:name`: measurements, stops, advice."""
    schedule: str | None = setting(None, "--schedule CODE")
    """[Your own](parts.md#a-schedule) schedule, `module:name`: who is asked when, and from which version of the model;
    none: rounds that wait for their cohort."""


OF_DEVICES = frozenset(  # of [data], which devices follow with examples of their own
    {"test_fraction", "val_fraction", "normalise", "augment", "classes", "partition_seed", "arrives", "drift"}
)
OF_SERVER = frozenset({"public_source", "public", "public_labels"})
SIMULATED = frozenset(  # settings that say nothing of a run over devices
    {f"data.{f.name}" for f in fields(DataSettings) if f.name not in {"source", *OF_DEVICES, *OF_SERVER}}
    | {f"clients.{name}" for name in ("attack", "attackers", "new", "joins", "new_judged_by")}
    | {f"run.{name}" for name in ("chunk", "compilation", "evaluate_training", "partial_sums", "per_client", "workers")}
)


def applies(name: str, engine: object) -> bool:
    """Return whether a setting, by its full name, says something of a run on an engine."""
    return engine != "devices" or name not in SIMULATED


TOP = field_types(TopSettings)
SECTIONS = ("data", "clients", "local", "run")
