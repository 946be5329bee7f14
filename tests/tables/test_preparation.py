"""Tables whose columns are prepared: what is fitted on which rows, gaps, words, what is refused, what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from torch import nn

import fedloom as fl
from fedloom.coordinator.descriptions import parts
from fedloom.data import Dataset, natural
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.tables import from_frame, read_csv, read_sites
from fedloom.tables.gaps import Gaps


def households(n: int = 2000) -> pd.DataFrame:
    """Ages in years, incomes in euros (lognormal, one in ten not told), towns, and who bought; one town is rare."""
    rng = np.random.default_rng(7)
    age, income = rng.integers(18, 81, n), np.exp(rng.normal(10.4, 0.5, n)).round(-1)
    town = rng.choice(["Oslo", "Rome", "Łódź"], n, p=[0.5, 0.3, 0.2])
    drive = (age - 49) / 18 + 1.2 * (np.log(income) - 10.4) / 0.5 + np.where(town == "Rome", 1.0, -0.5)
    bought = np.where(rng.random(n) < 1 / (1 + np.exp(-1.3 * drive)), "yes", "no")
    gaps = rng.random(n) < 0.1
    return pd.DataFrame(
        {
            "id": [f"h{i}" for i in range(n)],
            "age": age,
            "income": np.where(gaps, np.nan, income),
            "town": town,
            "bought": bought,
            "part": np.where(np.arange(n) % 4 == 0, "test", "train"),
        }
    )


def of_scikit_learn(frame: pd.DataFrame) -> float:
    """The test accuracy of scikit-learn's own pipeline."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    columns = make_column_transformer((numbers, ["age", "income"]), (OneHotEncoder(), ["town"]))
    train, test = (frame[frame["part"] == part] for part in ("train", "test"))
    model = make_pipeline(columns, LogisticRegression()).fit(train, train["bought"])
    return float(model.score(test, test["bought"]))


def trained(dataset: Dataset, seed: int = 0) -> float:
    """The test accuracy of logistic regression by FedAvg on ten clients."""
    partition = fl.iid(dataset.train.y, 10, seed=0)
    federation = fl.federate(dataset.train, partition, test=dataset.test, test_fraction=0)
    local = fl.Local(epochs=2, batch_size=50, optimiser=fl.SGD(lr=0.5))
    settings = fl.RunSettings(rounds=20, cohort_size=10, seed=seed, threads=1)

    def network() -> nn.Module:  # made with the run's seed; a module would bring weights of whatever ran before
        return nn.Linear(*federation.train.shape, federation.num_classes)

    return fl.run(fl.FedAvg(local=local), federation, network, settings).last("global_accuracy")


@pytest.mark.slow
def test_a_table_is_learnt_as_by_scikit_learn(tmp_path: Path) -> None:
    frame = households()
    path = tmp_path / "households.csv"
    frame.to_csv(path, index=False)
    prepared = read_csv(path, label="bought", split="part", drop=["id"], prepare="standard")
    theirs = of_scikit_learn(frame)
    assert theirs > 0.75
    assert trained(prepared) == pytest.approx(theirs, abs=0.02)
    unscaled = from_frame(frame.fillna(0), label="bought", split="part", drop=["id", "town"])
    warned = fl.core.errors.SettingWarning
    with (
        pytest.warns(warned, match=r"column income .* of a table: prepare=standard"),
        pytest.warns(warned, match=r"the global_loss of round 20 is .* it diverged"),
    ):
        assert trained(unscaled) < theirs - 0.1


@pytest.mark.parametrize("block", [7, 4096])
def test_features_are_those_of_scikit_learn(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.tables.preparation._BLOCK", block)
    frame = households(60)
    dataset = from_frame(frame, label="bought", split="part", drop=["id"], prepare="standard")
    train = frame[frame["part"] == "train"]
    income = train["income"].fillna(train["income"].median())
    assert dataset.train.columns == ("age", "income", "town_Oslo", "town_Rome", "town_Łódź")
    expected = (income - income.mean()) / income.std(ddof=0)
    np.testing.assert_allclose(dataset.train.x[:, 1].numpy(), expected, atol=1e-6)
    np.testing.assert_array_equal(dataset.train.x[:, 3].numpy(), train["town"] == "Rome")
    assert dataset.train.classes == ("no", "yes")


@pytest.mark.slow
def test_only_rows_that_train_decide() -> None:
    """What held-out rows hold, of the table or of a client, moves no mean and makes no column."""
    frame = households(200)
    partition_of = {}

    def federation(frame: pd.DataFrame) -> fl.Federation:
        dataset = from_frame(frame, label="bought", split="part", drop=["id"], prepare="standard")
        partition = fl.iid(dataset.train.y, 4, seed=0)
        partition_of["rows"] = np.flatnonzero(frame["part"] == "train")
        return fl.federate(dataset.train, partition, test=dataset.test, val_fraction=0.2, seed=0)

    before = federation(frame)
    assert before.local_test is not None
    assert before.local_val is not None
    held = np.concatenate([before.local_test.indices, before.local_val.indices])
    changed = frame.copy()
    for row in (*partition_of["rows"][held], *np.flatnonzero(frame["part"] == "test")):
        changed.loc[row, ["age", "income", "town"]] = [200, 1e6, "Atlantis"]
    after = federation(changed)
    rows = before.partition.indices
    np.testing.assert_array_equal(before.train.x.numpy()[rows], after.train.x.numpy()[rows])
    assert before.train.columns == after.train.columns
    assert after.test is not None
    assert after.test.x[:, 2:].abs().sum() == 0  # a town that no training row has
    facts = parts(before)["table"]
    assert facts["fitted_on"] == len(rows)
    assert facts == parts(after)["table"]
    assert facts["dropped"] == ["id"]
    assert facts["columns"]["age"].startswith("standardised: mean 4")
    assert "missing as the median" in facts["columns"]["income"]
    assert facts["columns"]["town"] == "one-hot: Oslo, Rome, Łódź"
    assert "table" not in parts(fl.federate(fl.from_arrays(np.eye(4), np.arange(4) % 2), fl.iid([0, 1, 0, 1], 2, 0)))


def test_public_rows_and_merged_tables_are_prepared_alike() -> None:
    frame = households(100)
    dataset = from_frame(frame, label="bought", split="part", drop=["id"], prepare="standard")
    rest, public = catalogue.take_out(dataset, 20, seed=0)
    federation = fl.federate(rest.train, fl.iid(rest.train.y, 4, 0), public=public, test=rest.test)
    assert federation.public is not None
    assert federation.public.preparation is not None
    ages = federation.public.preparation.frame["age"].to_numpy()
    scaled = federation.public.x[:, 0].numpy()
    slope, _ = np.polyfit(ages, scaled, 1)
    train = federation.train.preparation
    assert train is not None
    assert 1 / slope == pytest.approx(train.frame["age"].iloc[federation.partition.indices].std(ddof=0), rel=1e-5)
    merged = dataset.merged()
    assert merged.train.preparation is not None
    assert len(merged.train.preparation.frame) == len(merged.train) == 100
    arrays = fl.from_arrays(np.zeros((3, 5), np.float32), np.array([0, 1, 0]))
    with pytest.raises(ValueError, match="arrays must be rows of the table that is prepared, got arrays: take test"):
        fl.federate(rest.train, fl.iid(rest.train.y, 4, 0), test=arrays)


def test_a_transformer_of_ones_own() -> None:
    frame = households(60)
    own = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["town"]), sparse_threshold=1.0)
    dataset = from_frame(frame, label="bought", split="part", drop=["id"], prepare=own)
    assert dataset.train.shape == (3,)
    assert not hasattr(own, "transformers_")  # a copy is fitted
    federation = fl.federate(dataset.train, fl.iid(dataset.train.y, 3, 0), test=dataset.test)
    assert "OneHotEncoder" in parts(federation)["table"]["columns"]
    with pytest.raises(
        ValueError, match=r"the transformer must take the columns 'age', 'income', 'town' .* ValueError"
    ):
        from_frame(frame, label="bought", drop=["id", "part"], prepare=StandardScaler())
    with pytest.raises(
        ValueError, match="must be 'standard', 'federated' or a transformer of scikit-learn, got 'scale'"
    ):
        from_frame(frame, label="bought", drop=["id", "part"], prepare="scale")


def test_a_transformer_of_ones_own_is_given_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.tables.preparation._BLOCK", 7)
    ranks = make_column_transformer((FunctionTransformer(lambda frame: frame.rank()), ["age"]))
    frame = households(60)
    dataset = from_frame(frame, label="bought", drop=["id", "part"], prepare=ranks, test_fraction=0)
    assert sorted(dataset.train.x[:, 0].tolist()) == sorted(frame["age"].rank().tolist())


@pytest.mark.parametrize(
    ("separator", "encoding", "decimal"),
    [(",", "utf-8", "."), (";", "cp1252", ","), ("\t", "utf-16", "."), ("|", "utf-8-sig", ".")],
)
def test_separators_encodings_and_decimal_commas(tmp_path: Path, separator: str, encoding: str, decimal: str) -> None:
    frame = pd.DataFrame({"größe": [1.5, 2.25, -3.5], "kind": ["é", "ü", "é"]})
    path = tmp_path / "t.csv"
    frame.to_csv(path, sep=separator, encoding=encoding, decimal=decimal, index=False)
    train = read_csv(path, label="kind", test_fraction=0).train
    assert train.x[:, 0].tolist() == [1.5, 2.25, -3.5]
    assert (train.columns, train.classes) == (("größe",), ("é", "ü"))
    prepared = read_csv(path, label="kind", test_fraction=0, prepare="standard").train.preparation
    assert prepared is not None
    expected = {"utf-8": "utf-8-sig"}.get(encoding, encoding)
    assert (prepared.facts["separator"], prepared.facts["encoding"]) == (separator, expected)


@pytest.mark.slow
def test_names_of_classes_and_clients_are_kept(tmp_path: Path) -> None:
    frame = households(80).assign(owner=[f"shop {i % 5}" for i in range(80)])
    dataset = from_frame(frame, label="bought", client="owner", split="part", drop=["id"], prepare="standard")
    partition = natural(dataset.owners, dataset.train.owners)  # type: ignore[arg-type]
    federation = fl.federate(dataset.train, partition, test=dataset.test, held_out=dataset.held_out)
    assert federation.partition.clients == ("shop 0", "shop 1", "shop 2", "shop 3", "shop 4")
    held = ["a", "b", "b", "c"], np.array([True, False, True, False])
    federation = fl.federate(fl.from_arrays(np.eye(4), np.array([0, 1, 0, 1])), natural(held[0]), held_out=held[1])
    assert federation.partition.clients == ("b", "c")  # the first has no row to train on
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    said = {"source": f"{path}?label=bought&client=owner&drop=id,part&prepare=standard", "partition": "natural"}
    history = (
        Experiment.of({"model": "logistic", "data": said, "run": {"rounds": 1, "cohort_size": 2}})
        .job()
        .run(tmp_path / "run")
    )
    assert history.federation["class_names"] == ["no", "yes"]
    assert sorted(history.federation["client_names"]) == [f"shop {i}" for i in range(5)]
    assert fl.History.read(tmp_path / "run").federation == history.federation
    with pytest.raises(ValueError, match="clients must name each of the 2 clients, got 1 names"):
        fl.Partition(np.array([0, 1, 2]), np.arange(2), clients=("a",))
    with pytest.raises(ValueError, match="classes must name each of the 3 classes, got 2 names"):
        fl.Examples(federation.train.x, federation.train.y, 3, classes=("a", "b"))


TABLE = {"x": [1.0, 2.0], "y": ["a", "b"]}


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        (
            {"when": pd.to_datetime(["2026-01-01", "2026-01-02"]), "void": [None, None], "age": ["12", "old"]},
            {"prepare": "standard"},
            r"'when' with datetime64.* values; 'void' with nothing: mend them, or leave them out: drop=when,void",
        ),
        (
            {"name": ["Ann", "Bo"], "age": [3.0, None], "pay": [1e60, 1.0]},
            {},
            r"'age' with 1 missing, first in row 1; 'pay' with 1e\+60 in row 0, too large for float32; 'name' with "
            r"'Ann' in row 0: prepare them .*drop=age,pay,name",
        ),
        ({}, {"label": "yy"}, r"no column 'yy' \(did you mean 'y'\?\), got x, y: name columns as the first line"),
        ({"town": [1, 2]}, {"drop": ["twon"]}, r"no column 'twon' \(did you mean 'town'\?\)"),
        ({"town": [1, 2]}, {"drop": "twon"}, r"no column 'twon' \(did you mean 'town'\?\)"),
        ({"town": [1, 2]}, {"drop": ["town", "y"]}, "a column has one role, got 'y' in several of label, target, "),
    ],
)  # fmt: skip
def test_bad_columns_are_named_in_one_message(columns: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_frame(pd.DataFrame(TABLE | columns), **({"label": "y"} | arguments))


def test_words_among_numbers_and_too_many_words(tmp_path: Path) -> None:
    rows = [f"{i},n{i},{i % 2}" for i in range(1200)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["age,name,y", *rows, "old,x,1", "young,x,0"]), encoding="utf-8")
    message = (
        r"'age' with 'old' in line 1202 and 1 more; 'name' with 1,201 different words such as 'n0', more than 601: "
        r"name words that mean a gap \(gaps=old\), name those that hold categories \(categories=NAME\), mend"
    )
    with pytest.raises(ValueError, match=message):
        read_csv(path, label="y", prepare="standard")
    path.write_text("code,y\n0150,0\n1,1\n0150,0\n", encoding="utf-8")
    coded = read_csv(path, label="y", categories=["code"], prepare="standard", test_fraction=0).train
    assert coded.columns == ("code_0150", "code_1")


def test_frames_hold_what_pandas_makes() -> None:
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None, 3, 4], dtype="Int64"),
            "b": [True, False, True, True],
            "w": pd.Categorical(["u", None, "v", "u"]),
            "y": [1.0, 0.0, 1.0, 0.0],  # as pandas has integers beside a gap
        }
    )
    train = from_frame(frame, label="y", prepare="standard", test_fraction=0).train
    assert train.columns == ("n", "b", "w_missing", "w_u", "w_v")
    assert (train.y.tolist(), train.classes) == ([1, 0, 1, 0], ())
    numbers: npt.NDArray[np.float32] = from_frame(frame[["b", "y"]], label="y", test_fraction=0).train.x.numpy()
    assert numbers[:, 0].tolist() == [1, 0, 1, 1]


def test_a_frame_may_have_numbers_for_names() -> None:
    """As pandas makes them of an array without a header, for new rows too."""
    frame = pd.DataFrame(np.column_stack([np.arange(6.0), np.arange(6) % 2, np.arange(6) % 3, np.zeros(6)]))
    arguments: dict[str, Any] = {"label": 1, "client": 2, "drop": 3, "prepare": "standard", "test_fraction": 0}
    dataset = from_frame(frame, **arguments)
    assert (dataset.train.columns, dataset.train.num_classes) == (("0",), 2)
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [0, 1, 2] * 2
    preparation = dataset.train.preparation
    assert preparation is not None
    np.testing.assert_array_equal(preparation.new_rows(frame), dataset.train.x.numpy())
    with pytest.raises(ValueError, match="there is no column '7', got 0, 1, 2, 3"):
        from_frame(frame, label=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"a": [1.0]}, pd.Series([1.0]), np.ones((2, 2))])
def test_what_is_no_data_frame_is_told(other: Any) -> None:
    with pytest.raises(ValueError, match=rf"must be a pandas DataFrame, got {type(other).__name__}: pandas.DataFrame"):
        from_frame(other)


@pytest.mark.parametrize("column", ["kind", "owner"])
def test_a_frame_has_no_gap_among_labels_and_clients(column: str) -> None:
    whole = {"n": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"], "owner": ["u", "v", "u"]}
    for gap in (None, np.nan, "N/A", " "):
        frame = pd.DataFrame({**whole, column: ["a", "b", gap]})
        with pytest.raises(ValueError, match=rf"'{column}' must have a value in every row, got '.*' in row 2, which"):
            from_frame(frame, label="kind", client="owner", test_fraction=0)
    frame = pd.DataFrame({**whole, "kind": [0.0, 1.0, np.nan]})
    with pytest.raises(ValueError, match="'kind' must have a value in every row, got '' in row 2"):
        from_frame(frame, label="kind", client="owner", test_fraction=0)


def test_what_words_say_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("x\tk\n1\ta\n2\tb\n3\ta\n4\tb\n5\ta\n", encoding="utf-8")
    assert catalogue.data(f"{path}?label=k").train.shape == (1,)
    with pytest.raises(fl.core.errors.SettingError, match=r"got 'labl=k' \(did you mean 'label'\?\)"):
        catalogue.data(f"{path}?labl=k")
    with pytest.raises(fl.core.errors.SettingError, match="what else columns may be is said as"):
        catalogue.data(str(path))
    prepared = catalogue.data(f"{path}?label=k&prepare=standard").train
    with pytest.raises(fl.core.errors.SettingError, match="public examples of a prepared table are rows of it"):
        catalogue.public(f"{path}?label=k", prepared, 0, 0)


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["66.981,87", "950,20", "1.250", ""], [66981.87, 950.2, 1250.0, np.nan]),  # one cell tells what 1.250 is
        (["950,20", "1,5", "7", "66.981,87"], [950.2, 1.5, 7.0, 66981.87]),
        (["66,981.87", "1,250", "-12", "?"], [66981.87, 1250.0, -12.0, np.nan]),
        (["1.234.567", "12", "k.A.", "-1.000"], [1234567.0, 12.0, np.nan, -1000.0]),
        (["66.981", "1.250", "950,5", "2"], [66.981, 1.25, 950.5, 2.0]),  # nothing tells
    ],
)
def test_marks_that_part_thousands_are_told_by_the_whole_column(
    tmp_path: Path, cells: list[str], numbers: list[float]
) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{cell};{i};{i % 2}" for i, cell in enumerate(cells)]
    path.write_text("\n".join(["income;n;y", *rows]), encoding="cp1252")
    gaps = [cell for cell in cells if cell == "k.A."]
    found = read_csv(path, label="y", prepare="standard", gaps=gaps, test_fraction=0).train.preparation
    assert found is not None
    np.testing.assert_array_equal(found.frame["income"].to_numpy(), numbers)
    assert list(found.frame) == ["income", "n"]
    assert found.facts.get("thousands", {}).keys() == ({"income"} if 66.981 not in numbers else set())


def test_marks_that_fit_no_rule_are_no_numbers(tmp_path: Path) -> None:
    for cells in (["66.98,87", "1.250,5"], ["66.981,87", "1,250.50"], ["1.2.3", "1.250,5"]):
        path = tmp_path / "t.csv"
        path.write_text("\n".join(["income;y", *(f"{cell};{i}" for i, cell in enumerate(cells))]), encoding="utf-8")
        with pytest.raises(ValueError, match=f"'income' with '{cells[0]}' in line 2"):
            read_csv(path, label="y", test_fraction=0)


def test_new_rows_are_prepared_as_those_that_trained() -> None:
    table = households(400)
    train = from_frame(table, label="bought", drop=["id", "part"], prepare="standard", test_fraction=0).train
    assert train.preparation is not None
    again = table[["town", "part", "income", "age"]].iloc[::-1]  # another order, and a column more
    np.testing.assert_array_equal(train.preparation.new_rows(again), train.x.numpy()[::-1])
    unseen = pd.DataFrame({"age": [40], "income": ["?"], "town": ["Bergen"]})
    expected = from_frame(table, label="bought", drop=["id", "part"], prepare="standard", test_fraction=0).train
    made = train.preparation.new_rows(unseen)[0]
    assert made[list(expected.columns).index("income")] == pytest.approx(
        (table["income"].median() - table["income"].fillna(table["income"].median()).mean())
        / table["income"].fillna(table["income"].median()).std(ddof=0),
        abs=1e-6,
    )
    assert made[-3:].tolist() == [0, 0, 0]  # no town that it knows


def test_new_rows_have_words_as_a_table_spells_them() -> None:
    table = pd.DataFrame({"code": [150.0, 1.0, np.nan, 150.0], "y": [0, 1, 0, 1]})
    train = from_frame(table, label="y", categories=["code"], prepare="standard", test_fraction=0).train
    assert train.preparation is not None
    assert train.columns == ("code_1", "code_150", "code_missing")
    for codes in ([150, 1], [150.0, 1.0], ["150", " 1"]):
        assert train.preparation.new_rows(pd.DataFrame({"code": codes})).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_gaps_of_new_rows_are_those_of_the_table(tmp_path: Path) -> None:
    """A gap is the word `missing` and the median; as a word of its own it would be no town, and no number."""
    path = tmp_path / "t.csv"
    path.write_text("n,town,y\n1,Kiel,0\n2,k.A.,1\n-9,Ulm,0\n6,Kiel,1\n", encoding="utf-8")
    train = read_csv(path, label="y", gaps=["k.A.", "-9"], prepare="standard", test_fraction=0).train
    preparation = train.preparation
    assert preparation is not None
    assert train.columns == ("n", "town_Kiel", "town_Ulm", "town_missing")
    assert preparation.facts["gaps"] == ["-9", "k.A."]
    for n in ("k.A.", -9, -9.0, " -9 "):
        made = preparation.new_rows(pd.DataFrame({"n": [2, n], "town": ["Ulm", " k.A."]}))
        np.testing.assert_array_equal(made, [[made[0, 0], 0, 1, 0], [made[0, 0], 0, 0, 1]])  # the median is 2
    kept = preparation.select(np.array([0])).new_rows(pd.DataFrame({"n": [2], "town": ["k.A."]}))
    assert kept[0, 1:].tolist() == [0, 0, 1]


@pytest.mark.parametrize("gap", ["-999", "-999.0", -999, -999.0, np.int64(-999), ["-9.99e2"], (-999,), {"-999.00"}])
def test_a_number_among_gaps_is_meant_however_it_is_written(tmp_path: Path, gap: Any) -> None:
    path, cells = tmp_path / "t.csv", ["-999", "-999.0", "-999,00", "-9.99E+2", " -999."]
    rows = [f"{cell};{i};{i % 2}" for i, cell in enumerate(["3", *cells, "-998"])]
    path.write_text("\n".join(["n;m;y", *rows]), encoding="utf-8")
    found = read_csv(path, label="y", prepare="standard", gaps=gap, test_fraction=0).train.preparation
    assert found is not None
    np.testing.assert_array_equal(found.frame["n"], [3.0, *[np.nan] * 5, -998.0])
    made = found.new_rows(pd.DataFrame({"n": [np.nan, -999.0, "-999.00"], "m": [1, 1, 1]}))
    assert made[0].tolist() == made[1].tolist() == made[2].tolist()


def test_other_numbers_and_words_among_gaps(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n,w,y\n1,a,0\ninf,b,1\nInfinity,99,0\n4,99.0,1\n", encoding="utf-8")
    made = read_csv(path, label="y", prepare="standard", gaps=[np.inf, 99, np.nan], test_fraction=0).train.preparation
    assert made is not None
    np.testing.assert_array_equal(made.frame["n"], [1, np.nan, np.nan, 4])
    assert made.frame["w"].isna().tolist() == [False, False, True, True]
    assert Gaps.of("k.A.").word("-999") is None
    assert Gaps.of(None) == Gaps.of(()) == Gaps()
    assert Gaps.of(["-999", "x"]).word("x9") is None


def test_a_word_of_gaps_that_no_cell_is_is_warned_of(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"{i}.csv").write_text("n,m,y\n1,k.A.,0\n2,5,1\n".replace("k.A.", ("k.A.", "5")[i]))
    given: dict[str, Any] = {"label": "y", "prepare": "standard", "test_fraction": 0}
    with pytest.warns(
        UserWarning, match=r"0.csv: words of gaps stand in cells, got '-999', 'ka' in none: spell them as"
    ):
        read_csv(tmp_path / "0.csv", gaps=["ka", "k.A.", "NA", -999], **given)
    with pytest.warns(UserWarning, match=r"\*.csv: words of gaps stand in cells, got 'ka' in none: spell"):
        read_sites(str(tmp_path / "*.csv"), gaps=["ka", "k.A."], **given)  # which one site alone has


def test_marks_in_new_rows_mean_what_they_mean_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("income;y\n66.981,87;0\n1.500;1\n950,20;0\n", encoding="utf-8")
    train = read_csv(path, label="y", prepare="standard", test_fraction=0).train
    assert train.preparation is not None
    for numbers in ([1500, 950.2], ["1500", 950.2]):
        made = train.preparation.new_rows(pd.DataFrame({"income": numbers}))
        np.testing.assert_array_equal(made, train.x.numpy()[1:])
    for text in ("1.500", "950,20"):
        with pytest.raises(
            ValueError,
            match=rf"'income' must hold numbers, or text without marks, .* \(66.981,87\), got '{text}': read it by",
        ):
            train.preparation.new_rows(pd.DataFrame({"income": [text]}))
