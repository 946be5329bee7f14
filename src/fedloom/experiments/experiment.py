"""A run described in words: what a settings file, the command line and a run directory say; and the job it is."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.job import Job
from fedloom.coordinator.run_folders import runs_below
from fedloom.coordinator.settings import RunSettings
from fedloom.core.algorithm import Algorithm
from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import OPTIMISERS
from fedloom.core.random import derive
from fedloom.data import Dataset, Examples, Federation, federate
from fedloom.engines.faults import Unreliable
from fedloom.experiments import catalogue
from fedloom.experiments.coercion import coerce
from fedloom.experiments.named_code import digests, named_code, with_files
from fedloom.experiments.nested_settings import parts, with_parts, word_of
from fedloom.experiments.remote_source import RemoteSource, beside, is_remote, remote_source
from fedloom.experiments.settings_file import flat
from fedloom.experiments.settings_sections import SECTIONS, TOP, ClientSettings, DataSettings, TopSettings
from fedloom.experiments.weights_file import load_network
from fedloom.storage.files import path_of
from fedloom.wording import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Experiment(TopSettings):
    """One run in words: the algorithm, model, task and start, and a table of settings for each section.

    Attributes:
        data: what clients hold.
        clients: which clients are selected, and which do not answer.
        local: the local training of every client.
        run: rounds, engine, seed, what is measured and kept.
        settings: hyper-parameters, by the label of their algorithm.
        directory: that of the run which this describes, if there is one.
    """

    data: DataSettings = field(default_factory=DataSettings)
    clients: ClientSettings = field(default_factory=ClientSettings)
    local: Local = field(default_factory=Local)
    run: RunSettings = field(default_factory=RunSettings)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    directory: Path | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choices(self)
        if word_of(self.local.optimiser) is None:
            raise SettingError(
                f"the optimiser of an experiment has a name, {', '.join(OPTIMISERS)} or module:Class, got "
                f"{self.local.optimiser}: define it in a module, or use fedloom.run"
            )

    @staticmethod
    def knows(key: str) -> bool:
        """Return whether a key is in a place for settings that belong to no algorithm.

        Args:
            key: such as `local.lr`.
        """
        section, dot, _ = key.partition(".")
        return section in SECTIONS if dot else section in TOP

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Experiment:
        """Return the experiment that nested mappings describe, as a settings file or a settings.json has them.

        Args:
            described: settings by section and name.

        Raises:
            SettingError: a key is unknown or its value of another type; names the key and what it might mean.
        """
        out, given = cls(), dict[str, Any]()
        if "algorithm" in described:  # first, since tables bear its label
            out = out.changed("algorithm", described["algorithm"])
        for key, value in described.items():
            if isinstance(value, Mapping):
                if not value and key not in {*SECTIONS, *ALGORITHMS, catalogue.label(out.algorithm)}:
                    out.changed(f"{key}.", None)  # raises
                given |= flat(value, f"{key}.")
            elif key != "algorithm":
                given[key] = value
        return out.with_all(given)

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str], *, allow_code: bool = False) -> Experiment:
        """Return the experiment that was run in a directory.

        Args:
            directory: of a run.
            allow_code: whether code that its settings name, as module:name, may be imported; `code_of` lists it.

        Raises:
            SettingError: there is none, it was started from Python with objects that have no names, or it names code
                and `allow_code` is not given.
            StorageError: its settings.json or manifest.json was damaged or changed, or cannot be read.
        """
        described = cls._described_in(directory)
        if not allow_code and (code := with_files(named_code(described))):
            raise SettingError(
                f"the settings of the run in {directory} name code to import, {', '.join(code)}: read it, and allow it "
                "with --allow-code (in Python allow_code=True) if you trust it [FL-RUN-019]"
            )
        return dataclasses.replace(cls.of(described), directory=path_of(directory))

    @classmethod
    def code_of(cls, directory: str | os.PathLike[str]) -> tuple[str, ...]:
        """Return the code that the settings of a run name, each with its file; nothing is imported.

        Args:
            directory: of a run.
        """
        return with_files(named_code(cls._described_in(directory)))

    @staticmethod
    def _described_in(directory: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the settings from which `from_directory` makes an experiment."""
        directory = path_of(directory)
        if not (directory / "settings.json").exists():
            if below := runs_below(directory) if directory.is_dir() else []:
                raise SettingError(
                    f"{directory} holds {len(below)} runs and is none itself: name one, such as "
                    f"{' or '.join(map(str, below[:3]))}"
                )
            raise SettingError(f"{directory} holds no run; name a folder with a settings.json, as --out makes it")
        described = RunDirectory(directory).settings()
        if "data" not in described:
            raise SettingError(
                f"the run in {directory} was started from Python with objects of its own: go on with it from there, by "
                "fedloom.run(..., directory=..., resume=True), the methods replay and restore of fedloom.Job, "
                "fedloom.predict(..., job=...) or fedloom.export"
            )
        return described

    def changed(self, key: str, value: Any) -> Experiment:
        """Return the experiment with one setting changed.

        Args:
            key: such as `model`, `local.lr` or `fedntd.beta`.
            value: the new value; text is converted.

        Raises:
            SettingError: there is no such setting, or the value is of another type.
        """
        return self.with_all({key: value})

    def with_all(self, given: Mapping[str, Any]) -> Experiment:
        """Return the experiment with several settings changed at once; `algorithm` is changed first.

        Args:
            given: new values by key, in any order; text is converted.

        Raises:
            SettingError: there is no such setting, or a value is of another type.
        """
        if (
            catalogue.names_clients(str(given.get("data.source", "")))
            and self.data.partition == DataSettings().partition
        ):
            given = {"data.partition": "natural", **given}
        out, sections, tables = self, dict[str, dict[str, Any]](), dict(self.settings)
        unknown, own = list[str](), catalogue.label(out.algorithm)
        for key, value in sorted(given.items(), key=lambda item: item[0] != "algorithm"):
            section, dot, name = key.partition(".")
            own = catalogue.label(out.algorithm)
            if key == "algorithm" and (taken := catalogue.label(str(value))) in {*SECTIONS, *TOP}:
                raise SettingError(
                    f"algorithm {value!r} would have its settings under {taken!r}, where others stand: rename it"
                )
            if not dot and section in TOP:
                out = dataclasses.replace(out, **{section: coerce(value, TOP[section], section)})
            elif dot and section in SECTIONS:
                sections.setdefault(section, {})[name] = value
            elif dot and (section == own or section in ALGORITHMS):
                tables[section] = {**tables.get(section, {}), name: value}
            else:
                known = [*catalogue.setting_keys({name: getattr(self, name) for name in SECTIONS}), *ALGORITHMS, *TOP]
                whole = {k.rpartition(".")[2]: k for k in known}
                unknown.append(f"{key!r}{did_you_mean(whole.get(key, key), known)}")
        made, problems = dict[str, Any](), list[str]()
        if unknown:
            problems.append(
                f"there is no setting {', '.join(unknown)}; settings are {', '.join(TOP)}, those in the sections "
                f"{', '.join(SECTIONS)}, and those of an algorithm, for example {own}.NAME"
            )
        for section, values in sections.items():
            try:
                made[section] = with_parts(getattr(out, section), section, values)
            except SettingError as error:
                problems.append(str(error))
        if problems:  # what is wrong with all of them, not with the first alone
            raise SettingError("; ".join(problems))
        out = dataclasses.replace(out, **made, settings=tables)
        for section in {key.partition(".")[0] for key in given} & tables.keys():
            whose = out.algorithm if section == catalogue.label(out.algorithm) else section
            if not catalogue.lacking(whose, tables[section]):  # else the others may still come
                _quietly(whose, out.local, tables[section])
        return out

    def described(self) -> dict[str, Any]:
        """Return the experiment as nested mappings, which `of` takes, with every setting written out."""
        out: dict[str, Any] = {name: getattr(self, name) for name in TOP if getattr(self, name) is not None}
        out |= {name: parts(getattr(self, name)) for name in SECTIONS}
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

        Args:
            found: the result of `self.dataset()`, to read the data once.
        """
        d, seed = self.data, self.partition_seed
        if is_remote(d.source):
            return self.federation_of(remote_source(d.source))
        dataset, public = self.dataset() if found is None else found
        if dataset.owners is not None and d.partition == DataSettings().partition:
            warn(
                f"partition {d.partition} deals the rows of {dataset.train.name} out anew, and these name their "
                f"clients, {dataset.owners.max() + 1} in all: write --partition natural",
                SettingWarning,
            )
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

    def federation_of(self, registry: RemoteSource) -> Federation:
        """Return the federation of examples that are elsewhere.

        Args:
            registry: who holds them.
        """
        d, seed, test = self.data, self.partition_seed, self._test_of_server(registry)
        arrives, drift = catalogue.changes(d.arrives, d.drift, seed)

        def told(f: Federation) -> Federation:
            """Return a federation with what these settings say of it."""
            f = dataclasses.replace(f, arrives=arrives, drift=drift, begun=None if f.begun is None else told(f.begun))
            if d.public_source is None:
                return f
            given = catalogue.public_of_server(d.public_source, f.train, d.public, seed, d.normalise)
            return dataclasses.replace(f, public=given, public_labels=d.public_labels)

        return told(registry.federation(test))

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

    def _test_of_server(self, registry: RemoteSource) -> Examples | None:
        """Return the examples on which a server evaluates the global model, with the classes of its devices.

        A source without test examples gives all its examples.
        """
        if not registry.test:
            return None
        d = self.data
        found = catalogue.numbered(catalogue.data(registry.test, whole=True), d.classes, registry.class_names)
        found = catalogue.normalise(d.normalise, found)
        test = found.train if found.test is None else found.test
        return registry.prepared(test)

    @property
    def partition_seed(self) -> int:
        """The seed of the partition and of what is held out."""
        return self.run.seed if self.data.partition_seed is None else self.data.partition_seed

    def models(self, train: Examples) -> dict[str, Model]:
        """Return the architectures, by name.

        Args:
            train: the training examples, whose shape and classes the networks need.

        Raises:
            SettingError: the model, or the file that it starts from, does not fit the settings or the data.
        """
        found = catalogue.models(self.model, train).items()
        made = {name: Model(make, name=name, frozen=self.frozen, factors=self.factors) for name, make in found}
        if self.start is None:
            if self.start_only != "*":
                raise SettingError(f"start_only = {self.start_only!r} says what is taken from a file: set start too")
            return made
        if len(made) > 1:
            raise SettingError(f"start takes the weights of one model, and model = {self.model!r} names {len(made)}")
        file, only, seed = self.start, self.start_only, derive(self.run.seed, "init")
        if self.directory is not None and not path_of(file).is_file():
            kept = RunDirectory(self.directory).initial(file)
            file, only = (file, only) if kept is None else (str(kept), "*")
        return {n: load_network(file, m, only=only, seed=seed) for n, m in made.items()}

    def job(self, federation: Federation | None = None) -> Job:
        """Return the job, which is everything that determines the run.

        Args:
            federation: the result of `self.federation()`, to draw it once.

        Raises:
            SettingError: the settings contradict each other or do not fit the data.
        """
        own = self.settings.get(catalogue.label(self.algorithm), {})
        algorithm = catalogue.algorithm(self.algorithm, self.local, own)
        some = bool(self.data.public) or self.data.public_source is not None
        algorithm.requires.check_public(catalogue.label(self.algorithm), there=some)
        c, seed = self.clients, self.run.seed
        who = catalogue.sampler(c.sampler, seed)
        faults = Unreliable(declined=c.declined, lost=c.lost, late=c.late, seed=seed)
        task = catalogue.task(self.task)
        federation = self.federation() if federation is None else federation
        models = self.models(federation.train)
        its = beside(self.data.source)
        return Job(
            algorithm=algorithm,
            federation=federation,
            model=models,
            settings=self.run,
            task=task,
            sampler=who,
            faults=faults if c.declined or c.lost or c.late else None,
            attack=catalogue.attack(c.attack, c.attackers, seed),
            new=c.newcomers(),
            parts=[*map(catalogue.part, self.parts), *its["parts"]],
            assignment=its["assignment"],
            schedule=None if self.schedule is None else catalogue.schedule(self.schedule),
            described=(described := self.described()),
            code=digests(named_code(described)),
        )


def _quietly(name: str, local: Local, settings: Mapping[str, Any]) -> Algorithm[Any, Any]:
    """Make an algorithm only to look at it, without warnings; whoever runs it is warned then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)
        return catalogue.algorithm(name, local, settings)
