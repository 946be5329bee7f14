"""Data Manager: a device's own examples, which are never sent; results computed from them may reveal some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.core.errors import RefusedError, SettingError
from fedloom.data import Dataset, Examples, Federation, Partition, by_lists, federate
from fedloom.data.inputs import describe_inputs
from fedloom.deploy.device_statistics import CommonTotals, FirstStatistics, SecondStatistics, TextCounts
from fedloom.deploy.own_scale import warn_about_own_scale
from fedloom.deploy.registration import Registration, check_device_name, check_names
from fedloom.experiments import catalogue
from fedloom.experiments.settings_sections import DataSettings
from fedloom.storage.files import path_of
from fedloom.tables.file_checks import visible
from fedloom.tables.preparation import Preparation, preparation_of
from fedloom.tables.statistics import CommonPreparation, Spread, Summary
from fedloom.tables.vocabulary import TextPreparation
from fedloom.tasks.regression import target_columns

_MOST_VALUES = 1 << 30  # that the server's preparation makes of a table


class DataManager:
    """Examples of one device.

    `source`: as for `fedloom run --data`, or a folder with one such file or with images, or the result of
    `load_examples`. `settings`: those of the server, with the held-out fractions and the augmentation. If the source
    has test examples, the device's model is evaluated on them.
    """

    def __init__(self, source: str | Dataset, settings: DataSettings, seed: int) -> None:
        self.federation = _federation(load_examples(source) if isinstance(source, str) else source, settings, seed)
        self._statistics: FirstStatistics | None = None

    @property
    def is_prepared_by_all(self) -> bool:
        """True if features are made of columns by the statistics of all devices, which `prepare` is given."""
        return by_common_statistics(self.federation.train)

    def registration(self, id: str, model: str = "") -> Registration:
        """Return the registration of the examples for the server."""
        f = self.federation
        has_classes, tokens = f.train.has_classes, f.train.has_tokens

        def counts(rows: Partition | None) -> tuple[int, ...]:
            if not has_classes:
                return (0 if rows is None else int(rows.sizes[0]),)
            none = (0,) * f.num_classes
            return none if rows is None else tuple(map(int, rows.counts(f.train.y, f.num_classes)[0]))

        dtype, target_dtype = (str(t.dtype).removeprefix("torch.") for t in (f.train.x, f.train.y))
        if tokens and not f.train.x.is_floating_point():
            dtype = "int64"  # of any width on a device, and the same to a network
        if f.train.has_pixels:
            target_dtype = "int64"
        return Registration(
            id, counts(f.partition), counts(f.local_test), counts(f.local_val), f.train.shape, dtype, model,
            check_names(f.train.classes if has_classes else (), "classes", f.num_classes),
            check_names(f.train.columns, "columns", len(f.train.columns)),
            target_dtype, tuple(f.train.y.shape[1:]),
            () if has_classes else check_names(f.train.targets, "targets", len(f.train.targets)),
            inputs=describe_inputs(f.train.normalise) if tokens else None,
            vocabulary=0 if has_classes or f.train.y.is_floating_point() else f.train.num_classes,
        )  # fmt: skip

    def statistics(self, moments: bool) -> FirstStatistics | None:
        """Return the statistics of the training rows for the server; None where it needs none.

        `moments`: whether the task asks for sums of targets.
        """
        f = self.federation
        rows = f.partition.rows(0)
        sums = tuple(map(float, self._targets[rows].sum(0))) if moments else None
        summary, least, text, least_clients, columns = None, 1, None, 1, None
        if self.is_prepared_by_all:
            how = self._preparation.common
            if isinstance(how, TextPreparation):
                text = TextCounts(replace(how, vocabulary=None), how.counts(self._frame))
            elif how is not None:
                least, least_clients, columns = how.least, how.least_clients, how.columns
                summary = Summary.of(self._frame, least)
        if summary is not None or sums is not None or text is not None:
            self._statistics = FirstStatistics(len(rows), summary, least, sums, text, least_clients, columns)
        return self._statistics

    def second_statistics(self, fields: Any) -> SecondStatistics:
        """Return the statistics of the second exchange, by the totals of all devices as the server has sent them.

        Raises:
            RefusedError: they are no totals with those of this device among them.
        """
        if self._statistics is None:
            raise RefusedError("a device counts its columns after it has sent their totals: register it first")
        f, common = self.federation, CommonTotals.read(fields, self._statistics)
        spreads = dict[str, Spread]()
        if self._statistics.summary is not None:
            frame = self._frame
            lacks = [n for n in common.numbers if n not in frame]  # of a union
            frame = frame.reindex(columns=[*frame.columns, *lacks]) if lacks else frame
            if wrong := [n for n in common.numbers if frame[n].dtype.kind != "f" and not frame[n].isna().all()]:
                raise RefusedError(
                    f"column {wrong[0]!r:.80} holds words on this device, and numbers were asked for: mend the column"
                )
            spreads = {n: Spread.of(frame[n].to_numpy(np.float64), total) for n, total in common.numbers.items()}
        own = self._targets[f.partition.rows(0)]
        squares = np.square(own - np.array(common.targets)).sum(0) if common.targets else ()
        return SecondStatistics(spreads, tuple(map(float, squares)))

    def prepare(self, common: CommonPreparation | TextPreparation) -> None:
        """Make features of the columns by the statistics of all devices.

        Raises:
            RefusedError: the table has other columns, or too many features would be made of them.
        """
        f = self.federation
        made = self._preparation
        asked = made.common
        alike = type(asked) is type(common) and made.least_clients == common.least_clients
        if isinstance(asked, CommonPreparation) and isinstance(common, CommonPreparation):
            alike = alike and asked.columns == common.columns
        if isinstance(asked, TextPreparation) and isinstance(common, TextPreparation):
            alike = replace(asked, vocabulary=None) == replace(common, vocabulary=None)
        if not alike:
            raise RefusedError(
                "the server's preparation is of another kind than this table's: name the same text=, prepare=, "
                "columns= and least_clients= on all devices"
            )
        if (count := len(made.frame) * len(common.get_feature_names_out())) > _MOST_VALUES:
            raise RefusedError(
                f"a table has at most {_MOST_VALUES:,} features of all rows together, got {count:,} by the preparation "
                "of the server: leave columns with many words out on all devices (drop=)"
            )
        try:
            made = replace(made, frame=common.conform(made.frame), transformer=common)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        self.federation = replace(f, train=replace(f.train, preparation=made).prepared(made))

    @property
    def _preparation(self) -> Preparation:
        """The preparation of the table, which is prepared."""
        made = preparation_of(self.federation.train)
        assert made is not None
        return made

    @property
    def _frame(self) -> Any:
        """The columns of the training rows."""
        return self._preparation.frame.iloc[self.federation.partition.rows(0)]

    @property
    def _targets(self) -> npt.NDArray[np.float64]:
        return target_columns(self.federation.train.y.numpy())


def load_examples(source: str) -> Dataset:
    """Return the stored examples of a source; all rows of a table without `split` are for training."""
    if catalogue.is_sites(source):
        raise SettingError(f"a device holds the table of one site, got {source!r}: name one file with --data")
    dataset = catalogue.data(_resolve_source(source), whole=True)
    warn_about_own_scale(source, dataset)
    return dataset


def default_name(source: str) -> str:
    """Return the name of a device by the file of its examples, without what follows the last dot.

    "" where its examples are not one file, or the file's name is no name of a device.
    """
    try:
        path = path_of(_resolve_source(source).partition("?")[0])
        return check_device_name(path.stem) if path.is_file() else ""
    except (RefusedError, SettingError):
        return ""


def by_common_statistics(examples: Examples) -> bool:
    """Return whether a table is prepared by the statistics of all clients."""
    made = preparation_of(examples)
    return made is not None and made.common is not None


def _federation(source: Dataset, d: DataSettings, seed: int) -> Federation:
    dataset = catalogue.normalise(d.normalise, catalogue.numbered(source, d.classes))
    if by_common_statistics(source.train) and dataset.train.preparation is None:
        raise SettingError(
            f"columns are standardised once, got data.normalise = {d.normalise!r} and a table with prepare=federated: "
            "leave one of both out"
        )
    held_out, train, test = dataset.held_out, dataset.train, dataset.test
    if held_out is None and test is not None:
        train, held_out = dataset._replace(owners=None).merged().train, np.arange(len(train) + len(test)) >= len(train)
    arrives, drift = catalogue.changes(d.arrives, d.drift, seed)
    made = preparation_of(train)
    least_clients = 1 if made is None else made.least_clients
    f = federate(
        catalogue.augment(d.augment, _with_least_clients(train, 1)),  # the other clients are elsewhere
        by_lists([np.arange(len(train))]),
        test_fraction=d.test_fraction,
        val_fraction=d.val_fraction,
        held_out=held_out,
        arrives=arrives,
        drift=drift,
        seed=seed,
    )
    return replace(f, train=_with_least_clients(f.train, least_clients))


def _with_least_clients(examples: Examples, least_clients: int) -> Examples:
    made = preparation_of(examples)
    return examples if made is None else replace(examples, preparation=made.with_least_clients(least_clients))


def _resolve_source(source: str) -> str:
    """Return the source of a folder: the file in it, or its images."""
    folder = path_of(source)
    if not folder.is_dir():
        if "/" in source and ":" not in source and not path_of(source.partition("?")[0]).exists():
            raise SettingError(
                f"--data takes a file, a folder or a name of data, and there is no {source}: name another"
            )
        return source
    files = visible(path for path in folder.iterdir() if path.suffix in (".npz", ".csv", ".parquet"))
    if len(files) > 1:
        raise SettingError(f"{folder} holds {', '.join(path.name for path in files)}: name one of them with --data")
    return str(files[0]) if files else f"images:{folder}"
