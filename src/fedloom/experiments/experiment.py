"""A run described in words: what a settings file, the command line and a run directory say; and the job it is."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le, Lt

from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.history import runs_below
from fedloom.coordinator.newcomers import WAYS, NewClients, Way
from fedloom.coordinator.run import Job
from fedloom.coordinator.settings import RunSettings
from fedloom.core.algorithm import Algorithm
from fedloom.core.choices import Count, WholeNumber, check_choices
from fedloom.core.errors import FedloomError, SettingError, SettingWarning
from fedloom.core.frozen import Factors
from fedloom.core.model import Model, packaged
from fedloom.core.naming import did_you_mean, is_python_name, source_file
from fedloom.core.optimiser import SGD, Adam, Local
from fedloom.core.random import derive
from fedloom.core.setting import setting
from fedloom.data import Dataset, Examples, Federation, federate
from fedloom.data.examples import MAX_CLASSES
from fedloom.engines.faults import Unreliable
from fedloom.experiments import catalogue
from fedloom.experiments.parts import parts, with_parts
from fedloom.experiments.weights_file import load_network
from fedloom.experiments.words import coerce
from fedloom.models import MODELS
from fedloom.storage.strict_json import SETTINGS, check_depth, parse
from fedloom.wire.registration import Registry

Share = Annotated[float, Ge(0), Lt(1)]  # of examples: 0.2 is one in five


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Set what clients hold."""

    source: str = setting("fashion_mnist_small", "--data SOURCE")
    """[Data](data.md#sources): a name of `fedloom data sources`, `NAME:FOLDER` for original files, `FILE.npz` with
    x_train, y_train, x_test, y_test, `FILE.csv?label=y&prepare=standard` for [tables](data.md#tables),
    `huggingface:NAME`, or your own as `module:name`."""
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
    """[Partition](data.md#partitions) of the examples over the clients."""
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
    """Which training examples of a client [are there in a round](data.md#data-that-change): `all`, `growing:START:BY`,
    from the share START in round 1 to all from round BY on, or `window:SHARE:BY`, a stretch of that share, which moves
    to the last examples by round BY."""
    drift: str = setting("none", "--drift RULE")
    """What [examples become](data.md#data-that-change): `labels:EVERY`, every EVERY rounds each class takes the label
    of the next, `rotation:EVERY`, images turn by a quarter, `offset:STEP`, stored values grow by STEP a round; each
    with `:SHARE` of the clients; or `none`."""
    augment: str = setting("none", "--augment A")
    """Augmentation of training images: `crop:PIXELS`, `crop:PIXELS:reflect`, `flip`, `cutout:PIXELS`, separated by
    commas."""

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Set which clients are selected, and which do not answer."""

    sampler: str = setting("uniform", "--sampler S")
    """[Sampling of the cohort](runs.md#who-is-asked)."""
    declined: float = setting(0.0, "--declined P")
    """Probability that a client declines when a round asks it first."""
    lost: float = setting(0.0, "--lost P")
    """Probability that a client drops out, at any exchange."""
    late: float = setting(0.0, "--late P")
    """Probability that a client answers too late, at any [exchange](runs.md#clients-that-do-not-answer)."""
    new: str | None = setting(None, "--new N")
    """[Clients held out from training](runs.md#new-clients) and evaluated at the end: the last N, or `list:3,7`."""
    joins: int | None = setting(None, "--joins ROUND")
    """Round, from 1, from which on new clients may be selected; none: never."""
    new_judged_by: tuple[Way, ...] = WAYS
    """How new clients are evaluated after the last round."""

    def __post_init__(self) -> None:
        check_choices(self)
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
class Experiment:
    """Describe one run in words: the algorithm, model, task and start, and a table of settings for each section.

    Attributes:
        data: what clients hold.
        clients: which clients are selected, and which do not answer.
        local: the local training of every client.
        run: rounds, engine, seed, what is measured and kept.
        settings: hyper-parameters, by the label of their algorithm.
    """

    algorithm: str = "fedavg"
    """Name of `fedloom algorithms`, or your own as `module:Class`; the command line must name one if the file does not.
    """
    model: str = setting("lenet", "--model NAME")
    """[Model by name](data.md#networks) or `module:name`; several, separated by commas, are given to the clients in
    turn."""
    task: str = setting("classification", "--task NAME")
    """[Task by name](data.md#tasks) or `module:name`."""
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
    """Of a [low-rank adapter](frozen.md#adapters) B A: train the `second` factor B alone, so that the mean of B is that
    of the products, or `both`."""

    data: DataSettings = field(default_factory=DataSettings)
    clients: ClientSettings = field(default_factory=ClientSettings)
    local: Local = field(default_factory=Local)
    run: RunSettings = field(default_factory=RunSettings)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choices(self)
        if type(self.local.optimiser) not in (SGD, Adam):
            raise SettingError(
                f"the optimiser of an experiment is one of sgd, adam, which words can name, got "
                f"{self.local.optimiser}: use fedloom.run for others"
            )

    @staticmethod
    def knows(key: str) -> bool:
        """Return whether a key is in a place for settings that belong to no algorithm."""
        section, dot, _ = key.partition(".")
        return section in _SECTIONS if dot else section in _TOP

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Experiment:
        """Make the experiment that nested mappings describe, as a settings file or a settings.json has them.

        Raises:
            SettingError: a key is unknown or its value of another type; names the key and what it might mean.
        """
        out, given = cls(), dict[str, Any]()
        if "algorithm" in described:  # first, since tables bear its label
            out = out.changed("algorithm", described["algorithm"])
        for key, value in described.items():
            if isinstance(value, Mapping):
                if not value and key not in {*_SECTIONS, *ALGORITHMS, catalogue.label(out.algorithm)}:
                    out.changed(f"{key}.", None)  # raises
                given |= flat(value, f"{key}.")
            elif key != "algorithm":
                given[key] = value
        return out.with_all(given)

    @classmethod
    def from_directory(cls, directory: str | Path, *, allow_code: bool = False) -> Experiment:
        """Return the experiment that was run in a directory.

        `allow_code`: whether code that its settings name may be imported, as module:name; `code_of` says which.

        Raises:
            SettingError: there is none, it was started from Python with objects that have no names, or it names code
                and `allow_code` is not given.
            StorageError: its settings.json or manifest.json was damaged or changed, or cannot be read.
        """
        described = cls._described_in(directory)
        if not allow_code and (code := _with_files(named_code(described))):
            raise SettingError(
                f"the settings of the run in {directory} name code to import, {', '.join(code)}: read it, and allow it "
                "with --allow-code (in Python allow_code=True) if you trust it"
            )
        return cls.of(described)

    @classmethod
    def code_of(cls, directory: str | Path) -> tuple[str, ...]:
        """Return the code that the settings of the run in a directory name, each with its file; nothing is imported."""
        return _with_files(named_code(cls._described_in(directory)))

    @staticmethod
    def _described_in(directory: str | Path) -> dict[str, Any]:
        """Return the settings from which `from_directory` makes an experiment."""
        if not (Path(directory) / "settings.json").exists():
            if below := runs_below(directory) if Path(directory).is_dir() else []:
                raise SettingError(
                    f"{directory} holds {len(below)} runs and is none itself: name one, such as "
                    f"{' or '.join(map(str, below[:3]))}"
                )
            raise SettingError(f"{directory} holds no run; name a folder with a settings.json, as --out makes it")
        described = RunDirectory(directory).settings()
        if "data" not in described:
            raise SettingError(
                f"the run in {directory} was started from Python with objects of its own: go on with it from there, "
                "fedloom.run(..., directory=..., resume=True); replay and restore are methods of fedloom.Job"
            )
        return described

    def changed(self, key: str, value: Any) -> Experiment:
        """Return the experiment with one setting changed: `model`, `local.lr`, `fedntd.beta`; values may be text.

        Raises:
            SettingError: there is no such setting, or the value is of another type.
        """
        return self.with_all({key: value})

    def with_all(self, given: Mapping[str, Any]) -> Experiment:
        """Return the experiment with several settings changed at once, in any order; `algorithm` is changed first."""
        out, sections, tables = self, dict[str, dict[str, Any]](), dict(self.settings)
        for key, value in sorted(given.items(), key=lambda item: item[0] != "algorithm"):
            section, dot, name = key.partition(".")
            own = catalogue.label(out.algorithm)
            if key == "algorithm" and (taken := catalogue.label(str(value))) in {*_SECTIONS, *_TOP}:
                raise SettingError(
                    f"algorithm {value!r} would have its settings under {taken!r}, where others stand: rename it"
                )
            if not dot and section in _TOP:
                out = dataclasses.replace(out, **{section: coerce(value, _TOP[section], section)})
            elif dot and section in _SECTIONS:
                sections.setdefault(section, {})[name] = value
            elif dot and (section == own or section in ALGORITHMS):
                tables[section] = {**tables.get(section, {}), name: value}
            else:
                known = [*_TOP, *(f"{s}.{n}" for s in _SECTIONS for n in parts(getattr(self, s))), *ALGORITHMS]
                whole = {k.rpartition(".")[2]: k for k in known}
                close = did_you_mean(whole.get(key, key), known)
                raise SettingError(
                    f"there is no setting {key!r}{close}; settings are {', '.join(_TOP)}, those in the sections "
                    f"{', '.join(_SECTIONS)}, and those of an algorithm, for example {own}.NAME"
                )
        made = {section: with_parts(getattr(out, section), section, values) for section, values in sections.items()}
        out = dataclasses.replace(out, **made, settings=tables)
        for section in {key.partition(".")[0] for key in given} & tables.keys():
            whose = out.algorithm if section == catalogue.label(out.algorithm) else section
            if not catalogue.lacking(whose, tables[section]):  # else the others may still come
                _quietly(whose, out.local, tables[section])
        return out

    def described(self) -> dict[str, Any]:
        """Return the experiment as nested mappings, which `of` takes, with every setting written out."""
        out: dict[str, Any] = {name: getattr(self, name) for name in _TOP if getattr(self, name) is not None}
        out |= {name: parts(getattr(self, name)) for name in _SECTIONS}
        own = catalogue.label(self.algorithm)
        if table := catalogue.written(_quietly(self.algorithm, self.local, self.settings.get(own, {}))):
            out[own] = table
        return out

    def dataset(self) -> tuple[Dataset, Examples | None]:
        """Return the data and the public examples, None where there are none."""
        d, seed = self.data, self.partition_seed
        found = catalogue.data(d.source)
        found = found.merged() if d.merge else found
        found = catalogue.first_classes(found, d.classes) if d.classes else found
        found = catalogue.cut(found, d.examples, seed) if d.examples else found
        found = catalogue.normalise(d.normalise, found)
        found = found._replace(train=catalogue.augment(d.augment, found.train))
        if d.public_source is not None:
            return found, catalogue.public(d.public_source, found.train, d.public, seed)
        return catalogue.take_out(found, d.public, seed) if d.public else (found, None)

    def federation(self, found: tuple[Dataset, Examples | None] | None = None) -> Federation:
        """Return the federation, which is the same for all experiments with equal `data` and partition seed.

        `found`: what `self.dataset()` gave, if it is there.
        """
        d, seed = self.data, self.partition_seed
        if d.source.startswith("devices:"):
            registry = Registry.read(Path(d.source.removeprefix("devices:")))
            whole = registry.federation(self._test_of_server(registry))
            arrives, drift = catalogue.changes(d.arrives, d.drift, seed)
            whole = dataclasses.replace(whole, arrives=arrives, drift=drift)
            if d.public_source is None:
                return whole
            given = catalogue.public_of_server(d.public_source, whole.train, d.public, seed, d.normalise)
            return dataclasses.replace(whole, public=given, public_labels=d.public_labels)
        dataset, public = self.dataset() if found is None else found
        if d.partition.startswith("lists"):
            self._check_rows(dataset, public)
        dataset, partition = catalogue.handed_out(d.partition, dataset, d.clients, seed)
        arrives, drift = catalogue.changes(d.arrives, d.drift, seed)
        return federate(
            dataset.train,
            partition,
            test=dataset.test,
            test_fraction=d.test_fraction,
            val_fraction=d.val_fraction,
            held_out=dataset.held_out,
            public=public,
            public_labels=d.public_labels,
            arrives=arrives,
            drift=drift,
            seed=seed,
        )

    def _check_rows(self, dataset: Dataset, public: Examples | None) -> None:
        """Refuse lists of rows where the rows of `dataset` are no longer numbered as in the source."""
        d = self.data
        others = f"renumbers the others, so the rows in {d.partition} would be others"
        if public is not None and d.public_source is None:
            raise SettingError(
                f"data.public takes {d.public} rows out and {others}: leave public rows out of the lists and call "
                "fedloom.federate(..., public=examples), or use another partition"
            )
        for name, given in (("examples", d.examples), ("classes", d.classes)):
            if given:
                raise SettingError(
                    f"data.{name} = {given} takes rows out and {others}: leave it out of the settings, and rows that "
                    "nobody is to have out of the lists, or use another partition"
                )
        if catalogue.is_table(d.source) and dataset.held_out is None and (d.merge or dataset.test is not None):
            raise SettingError(
                f"data.source = {d.source!r} has test rows, and to take them out of the table {others}: say train for "
                "every row in a column of it (split=NAME), or name each row's client in one (client=NAME) and use the "
                "partition natural"
            )

    def _test_of_server(self, registry: Registry) -> Examples | None:
        """Return the examples on which a server evaluates the global model, with the classes of its devices.

        A source without test examples gives all its examples.
        """
        if not registry.test:
            return None
        d, first = self.data, registry.devices[0]
        found = catalogue.data(registry.test, whole=True)
        if first.class_names is None:
            found = catalogue.numbered(found, len(first.train))
        else:
            found = catalogue.numbered(found, d.classes, first.class_names)
        found = catalogue.normalise(d.normalise, found)
        return found.train if found.test is None else found.test

    @property
    def partition_seed(self) -> int:
        """The seed of the partition and of what is held out."""
        return self.run.seed if self.data.partition_seed is None else self.data.partition_seed

    def models(self, train: Examples) -> dict[str, Model]:
        """Return the architectures, by name."""
        found = catalogue.models(self.model, train).items()
        made = {name: Model(make, name=name, frozen=self.frozen, factors=self.factors) for name, make in found}
        if self.start is None:
            if self.start_only != "*":
                raise SettingError(f"start_only = {self.start_only!r} says what is taken from a file: set start too")
            return made
        if len(made) > 1:
            raise SettingError(f"start takes the weights of one model, and model = {self.model!r} names {len(made)}")
        seed = derive(self.run.seed, "init")
        return {n: load_network(self.start, m, only=self.start_only, seed=seed) for n, m in made.items()}

    def job(self, federation: Federation | None = None) -> Job:
        """Make the job, which is everything that determines the run.

        `federation`: what `self.federation()` gave, if it is there.
        """
        own = self.settings.get(catalogue.label(self.algorithm), {})
        algorithm = catalogue.algorithm(self.algorithm, self.local, own)
        if algorithm.needs_public and not self.data.public and self.data.public_source is None:
            raise SettingError(
                f"{catalogue.label(self.algorithm)} needs public examples, got none; take some out with data.public "
                "(--public 500), or name other data with data.public_source"
            )
        c, seed = self.clients, self.run.seed
        who = catalogue.sampler(c.sampler, seed)
        faults = Unreliable(declined=c.declined, lost=c.lost, late=c.late, seed=seed)
        task = catalogue.task(self.task)
        federation = self.federation() if federation is None else federation
        models = self.models(federation.train)
        return Job(
            algorithm=algorithm,
            federation=federation,
            model=models,
            settings=self.run,
            task=task,
            sampler=who,
            faults=faults if c.declined or c.lost or c.late else None,
            new=c.newcomers(),
            described=self.described(),
        )


_WHO_HOLDS = {
    "partition", "clients", "partition_seed", "test_fraction", "val_fraction", "public_labels", "arrives", "drift",
}  # fmt: skip


def _arrays(d: DataSettings, seed: int) -> tuple[object, ...]:
    """Return the settings from which `Experiment.dataset` makes its arrays.

    They are all except those that say who holds which of the rows. Forgetting to leave one out costs the time to make
    the same arrays twice; it never gives the arrays of other settings.
    """
    drawn = seed if d.public or d.examples else None
    return (*(getattr(d, f.name) for f in dataclasses.fields(d) if f.name not in _WHO_HOLDS), drawn)


class Federations:
    """Experiments that say the same of the data share one federation, those with the same source its arrays."""

    def __init__(self) -> None:
        self._data: dict[tuple[object, ...], tuple[Dataset, Examples | None]] = {}
        self._made: dict[tuple[object, ...], Federation] = {}

    def of(self, experiment: Experiment) -> Federation:
        """Return what `experiment.federation()` gives, shared between experiments with the same data."""
        d, seed = experiment.data, experiment.partition_seed
        if d.source.startswith("devices:"):  # no examples to share
            return experiment.federation()
        if (d, seed) not in self._made:
            arrays = _arrays(d, seed)
            if arrays not in self._data:
                self._data[arrays] = experiment.dataset()
            self._made[d, seed] = experiment.federation(self._data[arrays])
        return self._made[d, seed]

    def job(self, experiment: Experiment) -> Job:
        """Return what `experiment.job()` gives, on a federation that is shared."""
        return experiment.job(self.of(experiment))


_TOP = {
    "algorithm": str,
    "model": str,
    "task": str,
    "start": str | None,
    "start_only": str,
    "frozen": str,
    "factors": Factors,
}
_SECTIONS = ("data", "clients", "local", "run")


_DEEPEST = 32  # of settings within settings
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"""(?<![\w\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_DEEPEST}}}""")


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read a settings file: TOML (.toml), or JSON (.json) such as the settings.json of a run.

    Raises:
        SettingError: the file is missing, of another kind, too long, or not well-formed; names the place.
    """
    path = Path(path)
    readers: dict[str, Callable[[bytes], Any]] = {".toml": _toml, ".json": parse}
    if path.suffix not in readers:
        raise SettingError(f"a settings file is .toml or .json, got {str(path)!r}")
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS + 1)
        if len(data) > SETTINGS:
            raise ValueError(f"settings have at most {SETTINGS:,} bytes, got more")
        found: dict[str, Any] = readers[path.suffix](data)
    except OSError as error:
        raise SettingError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        quotes = '; text stands in quotes, algorithm = "fedavg"' if "Invalid value" in str(error) else ""
        raise SettingError(f"{path} is not well-formed: {error}{quotes}") from None
    found.pop("$schema", None)  # what editors check it by
    return found


def _toml(data: bytes) -> dict[str, Any]:
    text = data.decode("utf-8")
    if found := _LONG_KEY.search(text):  # whose parser keeps every beginning of a key
        raise ValueError(f"a key has at most {_DEEPEST} parts, got {found[0][:60]}...")
    table = tomllib.loads(text)
    check_depth(table, _DEEPEST, "TOML")
    return table


def _quietly(name: str, local: Local, settings: Mapping[str, Any]) -> Algorithm[Any, Any]:
    """Make an algorithm only to look at it, without warnings; whoever runs it is warned then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)
        return catalogue.algorithm(name, local, settings)


def named_code(described: Any) -> list[str]:
    """Return what nested settings name that no registry has: code, which a run imports as module:name.

    Nothing is imported to find out. What only looks like such a name is in the list too.
    """
    if not isinstance(described, Mapping):
        return []
    return list(dict.fromkeys(code for key, value in flat(described).items() for code in _code_at(key, value)))


_REGISTRIES: dict[str, Mapping[str, Any]] = {"algorithm": ALGORITHMS, "model": MODELS, "task": catalogue.TASKS}


def _code_at(key: str, value: Any) -> Iterator[str]:
    """Yield the code that one setting names, by its key in a settings file."""
    section = key.partition(".")[0]
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _code_at(key, one)
    elif not isinstance(value, str):
        return
    elif key in _REGISTRIES:
        for name in value.split(",") if key == "model" else [value]:
            if ":" in name and name not in _REGISTRIES[key]:
                yield name
    elif key == "data.source" and value.startswith("devices:"):
        with suppress(FedloomError):  # of a registry that cannot be read, whoever needs it says so
            yield from _code_at(key, Registry.read(Path(value.removeprefix("devices:"))).test)
    elif key in ("data.source", "data.public_source"):
        if catalogue.is_own_data(value):
            yield value
    elif section not in (*_SECTIONS, *_TOP) and is_python_name(value) and not packaged(value):  # of an algorithm
        yield value


def _with_files(code: list[str]) -> tuple[str, ...]:
    return tuple(f"{name!r} ({source_file(name) or 'no such module here'})" for name in code)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with keys like `local.lr`.

    Raises:
        SettingError: they are nested too deeply.
    """
    if prefix.count(".") >= _DEEPEST:
        raise SettingError(f"settings are nested at most {_DEEPEST} deep, got {prefix[:60]}...: no setting lies deeper")
    out: dict[str, Any] = {}
    for key, value in table.items():
        out.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return out
