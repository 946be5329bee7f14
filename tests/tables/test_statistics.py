"""Statistics of clients and what they add up to: against all rows at once, pandas and scikit-learn, in any order."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedloom as fl
from fedloom.coordinator.descriptions import parts
from fedloom.data import natural
from fedloom.experiments import catalogue
from fedloom.tables import from_frame, read_csv, read_sites
from fedloom.tables.statistics import BINS, CommonPreparation, Spread, Summary


def patients(n: int = 300) -> pd.DataFrame:
    """Ages, moments in seconds since 1970, doses with gaps, a constant, and wards of which some are rare or a gap."""
    rng = np.random.default_rng(3)
    ward = rng.choice(["east", "north", "west"], n).astype(object)
    ward[:4], ward[4:10] = ["burns"] * 4, np.nan
    return pd.DataFrame(
        {
            "age": rng.integers(0, 100, n).astype(float),
            "moment": 1.7e9 + rng.random(n),
            "dose": np.where(rng.random(n) < 0.2, np.nan, rng.lognormal(0, 1, n)),
            "constant": np.full(n, 0.1),
            "ward": ward,
        }
    )


def divided(frame: pd.DataFrame, count: int, seed: int) -> list[pd.DataFrame]:
    """Return clients of unequal sizes, one of them with a single row and one with none."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(frame))
    cuts = np.sort(rng.integers(1, len(frame), count - 1))
    return [frame.iloc[rows] for rows in np.split(order, [1, 1, *np.sort(cuts)])]


@pytest.mark.parametrize("seed", range(5))
def test_statistics_of_parts_add_up_to_those_of_the_whole(seed: int) -> None:
    frame = patients()
    whole, clients = Summary.of(frame), divided(frame, 4 + seed, seed)
    added = Summary.added([Summary.of(client) for client in clients])
    assert (added.rows, added.words) == (whole.rows, whole.words)
    for name, total in whole.numbers.items():
        other = added.numbers[name]
        assert (other.count, other.smallest, other.largest) == (total.count, total.smallest, total.largest)
        assert other.sum == pytest.approx(total.sum, rel=1e-15)
    spread = Spread.of_columns(frame, added)
    for name, of_whole in spread.items():
        of_parts = Spread.added([Spread.of_columns(client, added)[name] for client in clients])
        np.testing.assert_array_equal(of_parts.bins, of_whole.bins)
        assert of_parts.bins.sum() == frame[name].count()
        assert of_parts.squares == pytest.approx(of_whole.squares, rel=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_neither_the_order_of_clients_nor_of_rows_moves_a_bit(seed: int) -> None:
    """A simulation reads sites by name, and devices are numbered by ids that they drew."""
    clients = divided(patients(), 6, seed)
    made = CommonPreparation().fit(clients)
    turned = CommonPreparation().fit([client.iloc[::-1] for client in reversed(clients)])
    assert json.dumps(made.described()) == json.dumps(turned.described())
    assert made.digest() == turned.digest() != CommonPreparation().fit(clients[:-1]).digest()
    again = CommonPreparation.read(json.loads(json.dumps(made.described())))
    np.testing.assert_array_equal(again.transform(clients[-1]), made.transform(clients[-1]))


def test_means_and_deviations_are_those_of_pandas() -> None:
    frame = patients()
    made = CommonPreparation().fit(divided(frame, 7, 0))
    for name in ("age", "moment"):
        assert made.numbers[name].mean == pytest.approx(frame[name].mean(), rel=1e-14)
        assert made.numbers[name].deviation == pytest.approx(frame[name].std(ddof=0), rel=1e-9)
    dose = made.numbers["dose"]
    filled = frame["dose"].fillna(dose.fill)
    assert dose.gaps == frame["dose"].isna().sum() > 0
    assert (dose.mean, dose.deviation) == pytest.approx((filled.mean(), filled.std(ddof=0)), rel=1e-12)
    assert made.numbers["constant"].deviation == 1.0
    assert made.words["ward"] == ("burns", "east", "missing", "north", "west")


@pytest.mark.parametrize("name", ["age", "moment", "dose", "constant"])
@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_quantiles_are_off_by_a_bin_at_most(name: str, q: float) -> None:
    frame = patients()
    common = Summary.of(frame)
    total = common.numbers[name]
    found = Spread.of_columns(frame, common)[name].quantile(q, total)
    assert abs(found - frame[name].quantile(q)) <= (total.largest - total.smallest) / BINS


def test_columns_of_gaps_alone_and_clients_without_rows_are_counted() -> None:
    frame = pd.DataFrame({"n": [np.nan, np.nan], "m": [1.0, 3.0]})
    made = CommonPreparation().fit([frame, frame.iloc[:0]])
    assert (made.numbers["n"].fill, made.numbers["n"].deviation, made.numbers["n"].gaps) == (0.0, 1.0, 2)
    assert made.transform(frame).tolist() == [[0, -1], [0, 1]]
    assert all(math.isfinite(n) for scale in made.described()["numbers"].values() for n in scale.values())


def test_rare_words_of_a_client_are_withheld() -> None:
    """Four of the burns are at one client, and five at two clients would be four and one."""
    frame = patients().iloc[:60]
    whole = CommonPreparation(5).fit([frame])
    assert "burns" not in whole.words["ward"]
    assert "missing" in whole.words["ward"]
    burns = pd.DataFrame({"ward": ["burns"] * 5 + ["east"] * 5})
    assert CommonPreparation(5).fit([burns]).words["ward"] == ("burns", "east")
    apart = CommonPreparation(5).fit([burns.iloc[:4], burns.iloc[4:]])
    assert apart.words["ward"] == ("east",)
    assert apart.transform(burns).tolist() == [[0]] * 5 + [[1]] * 5


def test_words_of_too_few_clients_become_no_column() -> None:
    """A client that invents words adds no feature to the others."""
    honest = [pd.DataFrame({"ward": ["east", "west", "west"]}), pd.DataFrame({"ward": ["east", "north", np.nan]})]
    liar = pd.DataFrame({"ward": [f"invented{i}" for i in range(9)] + ["west"]})
    made = CommonPreparation(least_clients=2).fit([*honest, liar])
    assert made.words["ward"] == ("east", "west")
    assert made.transform(honest[1]).tolist() == [[1, 0], [0, 0], [0, 0]]
    assert "invented3" in CommonPreparation().fit([*honest, liar]).words["ward"]
    assert CommonPreparation.read(made.described()).digest() == made.digest()
    assert made.described()["least_clients"] == 2
    assert "least_clients" not in CommonPreparation().fit(honest).described()


def cohort() -> pd.DataFrame:
    frame = patients()
    rng = np.random.default_rng(0)
    return frame.assign(site=rng.choice(["Kiel", "Ulm", "Bonn"], len(frame)), ill=rng.choice(["no", "yes"], len(frame)))


def federation(frame: pd.DataFrame, prepare: str, **more: Any) -> fl.Federation:
    dataset = from_frame(frame, label="ill", client="site", prepare=prepare, **more)
    assert dataset.owners is not None
    return fl.federate(dataset.train, natural(dataset.owners), test=dataset.test, test_fraction=0.2, seed=0)


def test_features_are_those_of_scikit_learn_where_nothing_is_filled() -> None:
    frame = cohort()
    ours, theirs = federation(frame, "federated"), federation(frame, "standard")
    assert ours.train.columns == theirs.train.columns
    assert ours.train.columns[:4] == ("age", "moment", "dose", "constant")
    for part in ("train", "test"):
        a, b = getattr(ours, part).x.numpy(), getattr(theirs, part).x.numpy()
        np.testing.assert_allclose(np.delete(a, 2, 1), np.delete(b, 2, 1), atol=1e-6)
        np.testing.assert_allclose(a[:, 2], b[:, 2], atol=0.02)  # filled with a median in a bin
    table = parts(ours)["table"]
    assert table["columns"]["age"] == parts(theirs)["table"]["columns"]["age"]
    assert table["columns"]["ward"] == parts(theirs)["table"]["columns"]["ward"]
    assert "missing as the median" in table["columns"]["dose"]
    made = CommonPreparation.read(table["prepare"])
    assert table["digest"] == made.digest()
    assert ours.train.preparation is not None
    np.testing.assert_array_equal(made.transform(ours.train.preparation.frame), ours.train.x.numpy())


def test_what_clients_train_on_alone_is_counted() -> None:
    frame = cohort()
    ours = federation(frame, "federated", least=3)
    assert ours.train.preparation is not None
    rows = [ours.train.preparation.frame.iloc[ours.partition.rows(k)] for k in range(ours.num_clients)]
    assert ours.train.preparation.transformer == CommonPreparation(3).fit(rows)
    assert parts(ours)["table"]["fitted_on"] == len(ours.partition.indices) < len(ours.train)


def test_new_rows_are_prepared_as_those_that_train() -> None:
    frame = cohort()
    ours = federation(frame, "federated", test_fraction=0)
    assert ours.train.preparation is not None
    np.testing.assert_array_equal(ours.train.preparation.new_rows(frame), ours.train.x.numpy())
    new = pd.DataFrame({"ward": ["attic"], "dose": ["?"], "moment": [1.7e9], "age": [50], "constant": [0.1]})
    made = ours.train.preparation.new_rows(new)[0]
    scale = CommonPreparation.read(parts(ours)["table"]["prepare"]).numbers["dose"]
    assert made[2] == np.float32((scale.fill - scale.mean) / scale.deviation)
    assert made[4:].tolist() == [0] * 5


def test_sites_and_one_table_with_a_column_of_sites_are_prepared_alike(tmp_path: Path) -> None:
    frame = cohort()
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    frame.to_csv(tmp_path / "all.csv", index=False)
    of_sites = catalogue.data(f"{tmp_path}/[A-Z]*.csv?label=ill&prepare=federated&least=2", whole=True)
    of_one = read_csv(tmp_path / "all.csv", label="ill", client="site", prepare="federated", least=2, test_fraction=0)
    made = []
    for dataset in (of_sites, of_one):
        assert dataset.owners is not None
        train = fl.federate(dataset.train, natural(dataset.owners), test_fraction=0).train
        assert train.preparation is not None
        made.append(train.preparation.facts["digest"])
    assert made[0] == made[1]


def test_words_that_one_site_alone_has_are_left_out_of_a_federation() -> None:
    frame = cohort()
    frame["own"] = frame["site"]
    frame["ward"] = frame["ward"].where(frame["site"] == "Kiel", "east")
    ours = federation(frame, "federated", least_clients=2)
    assert ours.train.columns == ("age", "moment", "dose", "constant", "ward_east")
    assert ours.test is not None
    assert ours.test.columns == ours.train.columns
    table = parts(ours)["table"]
    assert table["columns"]["own"] == "left out: no word that at least 2 clients have"
    assert table["prepare"]["least_clients"] == 2
    with pytest.raises(ValueError, match="at most the number of clients that count words, 3, got 4: no word would be"):
        federation(frame, "federated", least_clients=4)
    prepared = ours.train.preparation
    assert prepared is not None
    with pytest.raises(ValueError, match="clients that count words, 1, got 2"):  # the other has no row to train on
        prepared.fitted(np.arange(4), np.zeros(len(frame)), np.array([4, 0]))


def test_least_clients_is_a_count_of_a_preparation_that_counts() -> None:
    frame = cohort()
    with pytest.raises(ValueError, match="least_clients is a whole number from 1, got 0"):
        federation(frame, "federated", least_clients=0)
    with pytest.raises(
        ValueError, match="least_clients=2 leaves out words where prepare='federated' or text=NAME, got"
    ):
        federation(frame, "standard", least_clients=2)


def test_least_is_a_count_of_a_preparation_that_counts(tmp_path: Path) -> None:
    frame = cohort()
    with pytest.raises(ValueError, match="least must be a whole number from 1, got 0"):
        federation(frame, "federated", least=0)
    with pytest.raises(ValueError, match="least=5 withholds rare words where prepare='federated', got 'standard'"):
        federation(frame, "standard", least=5)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(ValueError, match="least=2 withholds"):
        read_sites(tmp_path / "*.csv", label="ill", least=2)
    with pytest.raises(fl.core.errors.SettingError, match="least of a table is a whole number, 0 or more, got"):
        catalogue.data(f"{tmp_path / 'a.csv'}?label=ill&prepare=federated&least=few")
