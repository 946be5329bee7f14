"""A device's own examples: what it registers, and what it counts of its columns and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import RefusedError, SettingError
from fedloom.data import Dataset, from_arrays
from fedloom.deploy.device import DataManager
from fedloom.deploy.device.data_manager import load_examples
from fedloom.deploy.device_statistics import CommonTotals
from fedloom.deploy.registration import Registration
from fedloom.experiments.settings_sections import DataSettings
from fedloom.tables.statistics import CommonPreparation, Scale, Spread, Summary

PREPARED = "target=days&prepare=federated&split=part"
ROWS = ["1,a,10,train", "3,b,20,train", ",b,30,train", "9,c,40,test"]


def manager(folder: Path, rows: list[str], source: str = PREPARED, **more: Any) -> DataManager:
    (folder / "mine.csv").write_text("\n".join(["age,ward,days,part", *rows]))
    return DataManager(f"{folder}/mine.csv?{source}", DataSettings(**more), 0)


def test_targets_that_are_no_classes_are_registered_by_their_number(tmp_path: Path) -> None:
    rows = [f"{i},{i * i % 7}.5,{i % 4}.25,{'test' if i < 3 else 'train'}" for i in range(10)]
    for source, targets, shape in (
        ("target=days&drop=ward", ("days",), ()),
        ("target=days,ward", ("days", "ward"), (2,)),
    ):
        found = manager(tmp_path, rows, f"{source}&split=part", val_fraction=0.3).registration("a" * 32)
        assert (found.train, found.test, found.val) == ((5,), (3,), (2,))
        assert (found.target_dtype, found.target_shape, found.targets) == ("float32", shape, targets)
        assert Registration.of(found.described()) == found
    classes = manager(tmp_path, [f"{i},{i},{i % 2},train" for i in range(10)], "label=days&split=part")
    assert not {"target_dtype", "target_shape", "targets"} & classes.registration("a" * 32).described().keys()


def test_of_a_folder_the_one_file_is_taken_whose_name_begins_with_no_dot(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("age,label\n1,0\n2,1\n3,0\n")
    (tmp_path / "._mine.csv").write_bytes(bytes(99))
    assert len(load_examples(str(tmp_path)).train) == 3


def test_labels_of_several_kinds_are_registered() -> None:
    x = np.random.default_rng(0).random((12, 5)).astype(np.float32)
    examples = from_arrays(x, (x[:, :3] > 0.5).astype(np.float32))
    found = DataManager(Dataset(examples, None), DataSettings(test_fraction=0.25), 0).registration("a" * 32)
    assert (found.train, found.test, found.target_shape, found.targets) == ((9,), (3,), (3,), ())
    assert found.num_outputs == 3


def test_numbers_have_no_classes_to_count(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"data.classes counts classes, got 3 and targets that are numbers .* leave"):
        manager(tmp_path, ROWS, classes=3)


def test_columns_are_standardised_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"got data.normalise = 'places' and a table with prepare=federated: leave"):
        manager(tmp_path, ROWS, normalise="places")


def test_training_rows_alone_are_counted(tmp_path: Path) -> None:
    found = manager(tmp_path, ROWS).statistics(moments=True)
    assert found is not None
    assert (found.rows, found.targets, found.least) == (3, (60.0,), 1)
    assert found.summary is not None
    assert found.summary.words == {"ward": {"a": 1, "b": 2}}
    assert (found.summary.numbers["age"].count, found.summary.numbers["age"].sum) == (2, 4.0)
    rare = manager(tmp_path, ROWS, f"{PREPARED}&least=2").statistics(moments=False)
    assert rare is not None
    assert rare.summary is not None
    assert (rare.summary.words, rare.least, rare.targets) == ({"ward": {"b": 2}}, 2, None)


def test_a_device_sends_words_that_others_may_have(tmp_path: Path) -> None:
    """How many clients must have a word is for the server to count: alone, a device keeps all of its own."""
    own = manager(tmp_path, ROWS, f"{PREPARED}&least_clients=3")
    found = own.statistics(moments=False)
    assert found is not None
    assert found.summary is not None
    assert (found.summary.words, found.least_clients) == ({"ward": {"a": 1, "b": 2}}, 3)
    for asked, message in ((3, None), (1, "name the same text=, prepare=, columns= and least_clients= on all devices")):
        made = CommonPreparation(1, {"age": Scale(0.0, 0.0, 1.0)}, {"ward": ("b",)}, asked)
        if message is None:
            own.prepare(made)
            assert own.federation.train.columns == ("age", "ward_b")
            continue
        with pytest.raises(RefusedError, match=message):
            own.prepare(made)


def test_a_table_that_is_not_prepared_tells_nothing_unasked(tmp_path: Path) -> None:
    rows = [f"{i},{i * i},{i % 2}.5,train" for i in range(4)]
    plain = manager(tmp_path, rows, "target=days&split=part", test_fraction=0.0)
    assert plain.statistics(moments=False) is None
    asked = plain.statistics(moments=True)
    assert asked is not None
    assert (asked.summary, asked.targets) == (None, (4.0,))


def test_features_are_made_of_what_all_devices_have(tmp_path: Path) -> None:
    own = manager(tmp_path, ROWS)
    first = own.statistics(moments=True)
    assert first is not None
    assert first.summary is not None
    assert own.is_prepared_by_all
    second = own.second_statistics(CommonTotals(first.summary.numbers, (20.0,)).described())
    assert second.targets == (200.0,)
    assert second.numbers["age"].squares == 2.0
    other = Summary(2, {"age": first.summary.numbers["age"]}, {"ward": {"a": 1, "z": 1}})
    common = Summary.added([first.summary, other])
    made = CommonPreparation().of(common, {"age": Spread.added([second.numbers["age"]] * 2)})
    own.prepare(made)
    f = own.federation
    assert f.train.columns == ("age", "ward_a", "ward_b", "ward_z")
    assert f.train.x.shape == (4, 4)
    assert f.train.x[3, 1:].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(f.train.x.numpy(), made.transform(f.train.preparation.frame))  # type: ignore[union-attr]


def test_a_preparation_of_other_columns_is_refused(tmp_path: Path) -> None:
    own, scale = manager(tmp_path, ROWS), Scale(0.0, 0.0, 1.0)
    for numbers, words, message in (
        (
            {"age": scale},
            {"wards": ("a",)},
            "must have the names 'age', 'wards', in any order, got no 'wards' .*: name columns as at all clients",
        ),
        (
            {},
            {"ward": ("a",), "age": ("1",)},
            "got 'age' with words at all clients together and numbers in this table: m",
        ),
        (
            {"age": scale, "ward": scale},
            {},
            "'ward' with numbers at all clients together and words in this table: m",
        ),
    ):
        with pytest.raises(RefusedError, match=message):
            own.prepare(CommonPreparation(1, numbers, words))


def test_a_preparation_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    rows = [f"{i},w{i % 9},{i * i % 7}.5,train" for i in range(2000)]
    own = manager(tmp_path, rows)
    words = {f"c{k}": tuple(map(str, range(1000))) for k in range(600)}
    with pytest.raises(
        RefusedError, match=r"at most 1,073,741,824 features of all rows together, got 1,200,000,000 by"
    ):
        own.prepare(CommonPreparation(1, {}, words))


def test_a_device_counts_by_totals_of_which_it_is_a_part(tmp_path: Path) -> None:
    own = manager(tmp_path, ROWS)
    with pytest.raises(RefusedError, match="a device counts its columns after it has sent their totals: register it"):
        own.second_statistics({"numbers": {}, "targets": []})
    own.statistics(moments=False)
    with pytest.raises(RefusedError, match="column 'ward' holds words on this device, and numbers were asked for"):
        own.second_statistics({"numbers": {"ward": [1, 2.0, 2.0, 2.0]}, "targets": []})
