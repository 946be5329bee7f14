"""Features of a table's columns: scaled, imputed and one-hot, fitted on the examples that train."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from fedloom.data import Examples, Tokens
from fedloom.data.schema import Schema
from fedloom.tables.client_counts import check_least_clients
from fedloom.tables.gaps import MISSING, Gaps, spelt
from fedloom.tables.statistics import GAP, CommonPreparation, Scale, UnlikeColumns, expected
from fedloom.tables.table_words import TableWords
from fedloom.tables.vocabulary import TextPreparation
from fedloom.wording import install, some_of

_BLOCK = 4096  # rows that are transformed at once
_MOST_NAMED = 20  # categories of a column that facts name


@dataclass(frozen=True, eq=False)
class Preparation:
    """The columns of some examples as they were read, and what makes features of them.

    Args:
        frame: the columns, a pandas DataFrame of N rows; missing values are NaN.
        transformer: of scikit-learn, with `fit(frame, y)` and `transform(frame)`, copied before it is fitted; or a
            `CommonPreparation`; or, of a column of texts, a `TextPreparation`.
        read: how the table was read, for `facts`; new rows are read by its `gaps` and `thousands`.
        facts: what the features are, once it is fitted; for manifest.json.
    """

    frame: Any
    transformer: Any
    read: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: Any, prepare: Any, read: Mapping[str, Any]) -> Preparation:
        """Make a preparation that is not fitted yet; `prepare`: as `asked` returns it.

        "standard": numbers lose their mean and are divided by their deviation, gaps are the median; words become one
        column of 0 and 1 for each, a gap is a word of its own, and a word that no training example has is all 0.

        Raises:
            ValueError: scikit-learn is not installed, or `prepare` is something else.
        """
        if isinstance(prepare, CommonPreparation | TextPreparation):
            return cls(frame, prepare, read)
        try:
            from sklearn.compose import ColumnTransformer
            from sklearn.impute import SimpleImputer
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import OneHotEncoder, StandardScaler
        except ImportError:
            raise ValueError(f"to prepare a table takes scikit-learn: {install('tables')}") from None
        if hasattr(prepare, "fit") and hasattr(prepare, "transform") and not isinstance(prepare, type):
            return cls(frame, prepare, read)
        if prepare != "standard":
            raise ValueError(
                f"prepare must be 'standard', 'federated' or a transformer of scikit-learn, got {prepare!r}: leave it "
                "out where all columns are numbers of sizes near 1"
            )
        numbers = [name for name in frame.columns if frame[name].dtype.kind == "f"]
        words = [name for name in frame.columns if name not in numbers]
        scaled = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
        hot = make_pipeline(
            SimpleImputer(strategy="constant", fill_value="missing"),
            OneHotEncoder(handle_unknown="ignore"),  # sparse: to fit is to transform, and that is 8 bytes a number
        )
        each = [("numbers", scaled, numbers), ("words", hot, words)]
        return cls(frame, ColumnTransformer(each, verbose_feature_names_out=False), read)

    def select(self, rows: npt.NDArray[np.int64]) -> Preparation:
        """Return the same of some rows (n,), in that order."""
        return Preparation(self.frame.iloc[rows], self.transformer, self.read, self.facts)

    def of_rows(self, other: Preparation) -> Preparation:
        """Return the same of the rows of `other`."""
        return replace(self, frame=other.frame)

    def joined(self, other: Preparation) -> Preparation:
        """Return the same with the rows of `other` after its own."""
        import pandas as pd

        return Preparation(pd.concat([self.frame, other.frame]), self.transformer, self.read, self.facts)

    def fitted(
        self, rows: npt.NDArray[np.int64], y: npt.NDArray[Any], sizes: npt.NDArray[np.int64] | None = None
    ) -> Preparation:
        """Return the same with a transformer that was fitted on `rows` and their labels `y[rows]` alone.

        `sizes`: how many of the rows each client has, one client after the other; None: the clients are not known yet,
        and `least_clients` leaves no word out.

        Raises:
            ValueError: the transformer does not take the columns, or there are fewer clients than `least_clients`.
        """
        if isinstance(self.transformer, CommonPreparation | TextPreparation):
            if sizes is None:
                return self.fitted_on_some(rows, y, np.array([len(rows)]))
            check_least_clients(self.least_clients, int(np.count_nonzero(sizes)))
            clients = np.split(rows, np.cumsum(sizes)[:-1])
            common = self.transformer.fit([self.frame.iloc[part] for part in clients])
            return Preparation(self.frame, common, self.read, {**self.read, **_facts_of(common, len(rows))})
        from sklearn.base import clone

        try:
            made = clone(self.transformer).fit(self.frame.iloc[rows], y[rows])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"the transformer must take the columns {', '.join(map(repr, self.frame.columns))} of the table, got "
                f"{type(error).__name__}: {error}: give one that does, or prepare='standard'"
            ) from error
        facts = {**self.read, "fitted_on": len(rows), "columns": _described(made, self.frame.iloc[rows])}
        return Preparation(self.frame, made, self.read, facts)

    def fitted_on_some(
        self, rows: npt.NDArray[np.int64], y: npt.NDArray[Any], sizes: npt.NDArray[np.int64]
    ) -> Preparation:
        """Return the same, fitted on some of the clients: `least_clients` leaves no word out before all are known."""
        return self.with_least_clients(1).fitted(rows, y, sizes).with_least_clients(self.least_clients)

    @property
    def least_clients(self) -> int:
        """Return how many clients must have a word for it to be kept; 1 where clients count none."""
        return self.transformer.least_clients if self.common is not None else 1

    def with_least_clients(self, least_clients: int) -> Preparation:
        """Return the same with another number of clients that must have a word, which holds when it is fitted next."""
        if least_clients == self.least_clients:
            return self
        return replace(self, transformer=replace(self.transformer, least_clients=least_clients))

    @property
    def common(self) -> CommonPreparation | TextPreparation | None:
        """The transformer, where it follows from the statistics of all clients; else None."""
        made = self.transformer
        counts = isinstance(made, CommonPreparation) or (isinstance(made, TextPreparation) and not made.is_own)
        return made if counts else None

    @classmethod
    def without_rows(cls, common: CommonPreparation | TextPreparation, fitted_on: int) -> Preparation:
        """Return a common preparation of rows that are elsewhere: none of them is here.

        Raises:
            ValueError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ValueError(f"to prepare a table takes pandas: {install('tables')}") from None
        kinds: dict[str, type] = (
            {common.column: object}
            if isinstance(common, TextPreparation)
            else {**dict.fromkeys(common.numbers, float), **dict.fromkeys(common.words, object)}
        )
        frame = pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in kinds.items()})
        return cls(frame, common, {}, _facts_of(common, fitted_on))

    @property
    def lacking(self) -> tuple[str, ...]:
        """The columns that a table may lack, since some of those that were trained on did."""
        return self.transformer.lacking if isinstance(self.transformer, CommonPreparation) else ()

    @property
    def text(self) -> TextPreparation | None:
        """The part that makes token ids of a column of texts; None where the columns are other features."""
        return self.transformer if isinstance(self.transformer, TextPreparation) else None

    @property
    def tokens(self) -> Tokens | None:
        """The kind of the token ids that it makes; None where it makes other features."""
        return None if self.text is None else Tokens(self.text.padding, vocabulary=self.text.size)

    def features(self, other: Preparation | None = None) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
        """Return features (N, D) of these columns, or of those of `other`, and their names; token ids of a text."""
        frame = (other or self).frame
        if self.text is not None:
            return self.text.transform(frame), ()
        # Somebody's own may look at all rows at once; ours makes float64 of each alone, which need not be there of all.
        ours = _is_standard(self.transformer) or isinstance(self.transformer, CommonPreparation)
        block = _BLOCK if ours else max(1, len(frame))
        x: npt.NDArray[np.float32] | None = None
        for start in range(0, max(1, len(frame)), block):
            made = self.transformer.transform(frame.iloc[start : start + block])
            part = np.asarray(made.toarray() if hasattr(made, "toarray") else made)
            if x is None:
                x = np.empty((len(frame), *part.shape[1:]), np.float32)
            x[start : start + block] = part
        assert x is not None
        try:
            names = tuple(map(str, self.transformer.get_feature_names_out()))
        except AttributeError:
            names = ()
        return x, names

    @property
    def constants(self) -> CommonPreparation | None:
        """Description of what becomes of each column, once fitted; None where a transformer does not tell."""
        if isinstance(self.transformer, CommonPreparation):
            return self.transformer
        if not _is_standard(self.transformer):
            return None
        numbers: dict[str, Scale] = {}
        words: dict[str, tuple[str, ...]] = {}
        for group, pipeline, names in self.transformer.transformers_:
            for i, name in enumerate(map(str, names)):
                if group == "numbers":
                    of, scaler = pipeline[0].statistics_[i], pipeline[1]
                    numbers[name] = Scale(float(of), float(scaler.mean_[i]), float(scaler.scale_[i]))
                elif group == "words":
                    words[name] = tuple(map(str, pipeline[1].categories_[i]))
        return CommonPreparation(1, numbers, words)

    def new_rows(self, frame: Any) -> npt.NDArray[Any]:
        """Return features (N, D) of other rows, as the fitted transformer makes them.

        A trained model predicts from these features.

        `frame`: a pandas DataFrame with the columns that were features, in any order; others are left out, and those
        that some site lacked may be lacking. What meant a gap in the table (`gaps` of `read_csv`) means one here.

        Raises:
            ValueError: a column is not there, holds words in place of numbers, or text with marks where marks part
                thousands in the table that was trained on.
        """
        import pandas as pd

        frame = frame.rename(columns=str)  # as `from_frame` names them
        wanted = expected(self.frame.columns, frame.columns, self.lacking)
        known = Schema("in the table that was trained on", wanted)
        if (told := Schema("in the new rows", tuple(frame.columns)).lacks_of(known, may_have_more=True)) is not None:
            raise ValueError(told)
        for name in {*self.frame.columns} - {*wanted}:
            frame[name] = np.nan
        columns, gaps = {}, Gaps(frozenset(MISSING | {*self.read.get("gaps", ())}))
        for name, seen in self.frame.items():
            given = frame[name].reset_index(drop=True)
            given = given.where(given.map(lambda cell: gaps.word(spelt(cell)) is None))
            shown = self.read.get("thousands", {}).get(name)  # a cell of it; 1.500 alone does not tell what it means
            if shown and (marked := [v for v in given if isinstance(v, str) and re.search("[.,]", v)]):
                raise ValueError(
                    f"column {name!r} must hold numbers, or text without marks, since marks part thousands in the "
                    f"table that was trained on ({shown}), got {marked[0]!r}: read it by pandas with the same marks, "
                    "decimal=',', thousands='.' or the other way round [FL-TABLE-004]"
                )
            if seen.dtype.kind == "f":
                columns[name] = pd.to_numeric(given, errors="coerce").astype(np.float64)
                if (words := columns[name].isna() & given.notna()).any():
                    raise ValueError(
                        f"column {name!r} must hold numbers, as in the table that was trained on, got "
                        f"{given[words.idxmax()]!r}: decimal=',', thousands='.' or na_values=[...] [FL-TABLE-005]"
                    )
            else:
                cells = [np.nan if gap else spelt(v) for v, gap in zip(given, given.isna(), strict=True)]
                columns[name] = pd.Series(cells, dtype=object)
        return self.features(Preparation(pd.DataFrame(columns), self.transformer))[0]


def preparation_of(examples: Examples) -> Preparation | None:
    """Return what the features of some examples are made of; None where they are as somebody gave them."""
    made = examples.preparation
    assert made is None or isinstance(made, Preparation)
    return made


def asked(words: TableWords, several: bool = False) -> Any:
    """Return what prepares a table: None, "standard", a transformer, a `CommonPreparation` for "federated".

    Of a column of texts it is a `TextPreparation`.

    Args:
        words: what is said of the table.
        several: whether it is the tables of several sites.

    Raises:
        ValueError: `least` or `least_clients` is no count, or what was said belongs to another preparation.
    """
    prepare, least, least_clients = words.prepare, words.least, words.least_clients
    federated = isinstance(prepare, str) and prepare == "federated"
    _check_columns(words, federated, several)
    how: dict[str, Any] = {"tokens": words.tokens, "length": words.length, "most": words.most}
    said = {name: value for name, value in how.items() if value is not None}
    if (text := words.text) is not None:
        if prepare is not None:
            raise ValueError(
                f"a text becomes token ids, got prepare={prepare!r} beside text={text}: leave prepare out; tokens, "
                "length and most say how"
            )
        return TextPreparation(str(text), least=least, least_clients=least_clients, **said)
    if said:
        name, value = next(iter(said.items()))
        raise ValueError(f"{name} is said of a column of texts, got {name}={value!r} without one: name it, text=NAME")
    if type(least) is not int or least < 1:
        raise ValueError(f"least must be a whole number from 1, got {least!r}: 5 withholds words of fewer rows")
    check_least_clients(least_clients)
    if federated:
        return CommonPreparation(least, least_clients=least_clients, columns=words.columns)
    if least_clients > 1:
        raise ValueError(
            f"least_clients={least_clients} leaves out words where prepare='federated' or text=NAME, got {prepare!r}: "
            "leave it out"
        )
    if least > 1:
        raise ValueError(f"least={least} withholds rare words where prepare='federated', got {prepare!r}: leave it out")
    return prepare


def _check_columns(words: TableWords, federated: bool, several: bool) -> None:
    """Refuse a word for columns that differ which does not belong to this table."""
    if (said := words.columns) is None:
        return
    if said not in get_args(UnlikeColumns):
        raise ValueError(f"columns is {' or '.join(get_args(UnlikeColumns))}, got {said!r}: name one of these")
    if words.text is not None:
        raise ValueError(f"a text is the one column of features, got columns={said} beside text={words.text}: leave "
                         "one of both out")  # fmt: skip
    if said == "union" and not federated:
        raise ValueError(
            f"columns=union counts at each site what it has, which takes prepare=federated, got {words.prepare!r}: "
            "name it, or take columns=shared"
        )
    if not (several or federated):
        raise ValueError(
            "columns=shared compares the tables of sites, got one table: leave it out, or name the files of several "
            "sites; devices compare theirs with prepare=federated"
        )


def _is_standard(made: Any) -> bool:
    """Return whether a fitted transformer is the one that "standard" names."""
    return set(getattr(made, "named_transformers_", {})) == {"numbers", "words"}


def _facts_of(common: CommonPreparation | TextPreparation, rows: int) -> dict[str, Any]:
    """Describe a preparation by the statistics of all clients for manifest.json, which holds all of it."""
    told = {common.column: common.told()} if isinstance(common, TextPreparation) else _told(common)
    return {"fitted_on": rows, "columns": told, "digest": common.digest(), "prepare": common.described()}


def _told(common: CommonPreparation) -> dict[str, str]:
    """Describe what became of each column by the statistics of all clients."""
    out = {}
    for name, scale in common.numbers.items():
        how = f"0, and 1 in {name}_{GAP}" if name in common.lacking else f"the median {scale.fill:.4g}"
        filled = f"; {scale.gaps} missing as {how}" if scale.gaps else ""
        out[name] = f"standardised: mean {scale.mean:.4g}, deviation {scale.deviation:.4g}{filled}"
    none = f"left out: no word that at least {common.least_clients} clients have"
    return out | {
        name: none if common.least_clients > 1 and not words else _one_hot(words)
        for name, words in common.words.items()
    }


def _one_hot(words: Sequence[str]) -> str:
    return f"one-hot: {some_of(words, _MOST_NAMED)}"


def _described(made: Any, frame: Any) -> dict[str, str] | str:
    """Describe what became of each column, for somebody who reads the manifest."""
    if not _is_standard(made):
        return " ".join(repr(made).split())
    out = {}
    gaps = frame.isna().sum()
    for group, pipeline, names in made.transformers_:
        for i, name in enumerate(names):
            if group == "numbers":
                filled, scaler = pipeline[0].statistics_[i], pipeline[1]
                said = f"standardised: mean {scaler.mean_[i]:.4g}, deviation {scaler.scale_[i]:.4g}"
                said += f"; {gaps[name]} missing as the median {filled:.4g}" if gaps[name] else ""
            else:
                said = _one_hot(list(map(str, pipeline[1].categories_[i])))
            out[str(name)] = said
    return out
