"""New rows from arrays and other data: of the run's shape, type and classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.data import Normalise, Tokens, next_tokens
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.prediction_rows import RowReader
from tiny import examples

TRAIN = replace(examples(30), normalise=Normalise((1.0,), (2.0,)), augment=lambda x, key: x)
NAMED = replace(TRAIN, classes=("a", "b", "c"))


def test_rows_are_normalised_as_the_run_does_and_never_augmented() -> None:
    found = RowReader(TRAIN).read(examples(12, seed=4), with_targets=True)
    assert torch.equal(found.examples.x, examples(12, seed=4).x)
    assert torch.equal(found.examples.y, examples(12, seed=4).y)
    assert (found.examples.normalise, found.examples.augment) == (TRAIN.normalise, None)
    assert (found.places.tolist(), found.counted, found.sites) == (list(range(12)), "row", ())


def test_of_a_data_set_the_test_rows_are_taken() -> None:
    reader, train, test = RowReader(TRAIN), examples(20, seed=1), examples(8, seed=2)
    owners, held_out = np.arange(20) % 3, np.arange(20) % 4 == 0

    def read(*parts: Any) -> Any:
        return reader.read(fl.Dataset(*parts), with_targets=True)

    assert torch.equal(read(train, test).examples.x, test.x)
    assert torch.equal(read(train, None).examples.x, train.x)
    found = read(train, test, owners, held_out)
    assert torch.equal(found.examples.x, train.x[::4])
    assert found.sites == ("0", "1", "2", "0", "1")
    named = replace(train, owners=("x", "y", "z"))
    assert read(named, None, owners).sites[:4] == ("x", "y", "z", "x")


def test_classes_go_by_their_names() -> None:
    other = replace(examples(9, seed=3), classes=("c", "a", "b"))
    found = RowReader(NAMED).read(other, with_targets=True).examples.y
    assert found.tolist() == [[2, 0, 1][k] for k in other.y.tolist()]
    unnamed = replace(other, classes=())  # numbered as the run's data are
    assert RowReader(NAMED).read(unnamed, with_targets=True).examples.y.tolist() == other.y.tolist()
    assert RowReader(TRAIN).read(other, with_targets=True).examples.y.tolist() == other.y.tolist()
    fewer = replace(other, y=other.y % 2, num_classes=2, classes=("c", "a"))
    for reader, new in ((RowReader(TRAIN), fewer), (RowReader(replace(TRAIN, columns=tuple("pqrs"))), other)):
        with pytest.raises(fl.SettingError, match="classes of the run are '0', '1', '2', got 'c' in clouds: spell cla"):
            reader.read(new, with_targets=True)
    more = replace(other, num_classes=4, classes=("c", "a", "b", "d"))
    assert RowReader(NAMED).read(more, with_targets=True).examples.y.tolist() == found.tolist()  # d has no row


def test_classes_that_are_called_by_numbers_are_no_places(tmp_path: Path) -> None:
    """A reader of tables leaves out the names 0, 1, ..., C-1; those of other rows may begin at 1."""

    def table(*classes: int) -> fl.Dataset:
        lines = [f"{k},{k * k},{name}" for k, name in enumerate([*classes, *classes])]
        (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *lines]))
        return fl.read_csv(tmp_path / "t.csv", test_fraction=0.0)

    of_three, of_two = RowReader(table(0, 1, 2).train), RowReader(table(1, 2).train)
    assert of_three.read(table(1, 2), with_targets=True).examples.y.tolist() == [1, 2, 1, 2]
    assert of_three.read(table(0, 1), with_targets=True).examples.y.tolist() == [0, 1, 0, 1]
    with pytest.raises(fl.SettingError, match="classes of the run are '1', '2', got '0' in t: spell classes"):
        of_two.read(table(0, 1), with_targets=True)
    numbered = RowReader(TRAIN).read(replace(examples(4), num_classes=2, y=torch.tensor([0, 1, 1, 0]),
                                             classes=("1", "2")), with_targets=True)  # fmt: skip
    assert numbered.examples.y.tolist() == [1, 2, 2, 1]


def test_numbers_to_predict_go_by_their_names() -> None:
    y = torch.arange(60.0).reshape(30, 2)
    reader = RowReader(replace(TRAIN, y=y, num_classes=2, targets=("p", "q")))
    swapped = replace(examples(30), y=y.flip(1), num_classes=2, targets=("q", "p"))
    assert torch.equal(reader.read(swapped, with_targets=True).examples.y, y)
    assert torch.equal(reader.read(replace(swapped, targets=()), with_targets=True).examples.y, y.flip(1))
    with pytest.raises(
        fl.SettingError, match=r"targets of the run are 'p', 'q', got 'q', 'r' in clouds: give the same"
    ):
        reader.read(replace(swapped, targets=("q", "r")), with_targets=True)


def floats(x: Any, **more: Any) -> fl.Examples:
    return fl.Examples(torch.as_tensor(x), torch.zeros(len(x), dtype=torch.int64), 1, name="new", **more)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (floats(np.ones((2, 5), np.float32)), "must have the same shape, got 4 in the run and 5 in new: give the"),
        (floats(np.ones((2, 4), np.uint8)), "rows must be stored as the run's, float32, got uint8 in new"),
        (replace(examples(5), num_classes=9, y=torch.tensor([0, 1, 8, 0, 1])), "numbers 0 to 2, got 8 in clouds"),
        (replace(examples(3), classes=("a", "b", "x")), "classes of the run are 'a', 'b', 'c', got 'x' in"),
        (replace(examples(3), y=torch.ones(3)), "got classes in the run and 1 column of numbers in clouds: give one"),
        (examples(3).select(np.empty(0, np.int64)), "data must have rows, got none in clouds"),
        ({"x": 1}, "data are a file or source by name, .* got dict: pass one of these"),
        ("nothing", "unknown data 'nothing'"),
    ],
)  # fmt: skip
def test_mistakes_are_said(data: Any, message: str) -> None:
    with pytest.raises((fl.SettingError, ValueError), match=message):
        RowReader(NAMED).read(data, with_targets=True)


def test_columns_of_examples_are_put_in_order() -> None:
    names = ("p", "q", "r", "s")
    reader, new = RowReader(replace(TRAIN, columns=names)), replace(examples(4, seed=5), columns=names[::-1])
    assert torch.equal(reader.read(new, with_targets=False).examples.x, new.x.flip(1))
    with pytest.raises(fl.SettingError, match="in any order, got no 's', 't' besides"):
        reader.read(replace(new, columns=("r", "q", "p", "t")), with_targets=False)


def test_files_of_arrays(tmp_path: Path) -> None:
    file, reader = tmp_path / "new.npz", RowReader(TRAIN)
    new = examples(6, seed=6)
    np.savez(file, x=new.x.numpy(), y=new.y.numpy().astype(np.float64))
    found = reader.read(file, with_targets=True)
    assert torch.equal(found.examples.x, new.x)
    assert found.examples.y.tolist() == new.y.tolist()
    for y, message in (
        (np.array(list("abcabc")), "y must hold class numbers"),
        (np.arange(6) - 1, "y must hold class numbers"),
        (np.arange(5) % 3, "x and y must have as many rows, got 6 and 5"),
        (np.arange(6), "numbers 0 to 2, got 5 in new"),
    ):
        np.savez(file, x=new.x.numpy(), y=y)
        with pytest.raises((fl.SettingError, ValueError), match=message):
            reader.read(file, with_targets=True)
    np.savez(file, x_test=new.x.numpy())
    with pytest.raises(ValueError, match=r"new rows are the array x, with their targets y .*, got x_test: save them"):
        reader.read(file, with_targets=False)
    np.savez(file, x=new.x.numpy())
    assert torch.equal(reader.read(file, with_targets=False).examples.x, new.x)
    with pytest.raises(ValueError, match="to evaluate takes the arrays x and y, got x alone: save y too"):
        reader.read(file, with_targets=True)
    np.savez(file, x=new.x.numpy()[:0])
    with pytest.raises(ValueError, match="x must have rows, got none"):
        reader.read(file, with_targets=False)
    np.savez(file, x=np.full((2, 4), np.nan, np.float32))
    with pytest.raises((fl.SettingError, ValueError), match="must be finite"):
        reader.read(file, with_targets=False)
    np.savez(file, x_train=new.x.numpy(), y_train=new.y.numpy(), x_test=new.x.numpy()[:3], y_test=new.y.numpy()[:3])
    assert len(reader.read(file, with_targets=True).examples) == 3


def test_numbers_to_predict_in_a_file(tmp_path: Path) -> None:
    train = replace(TRAIN, y=torch.linspace(0, 1, 30), num_classes=1)
    np.savez(tmp_path / "new.npz", x=TRAIN.x.numpy()[:3], y=np.arange(3))
    found = RowReader(train).read(tmp_path / "new.npz", with_targets=True).examples
    assert (found.y.tolist(), found.y.dtype) == ([0, 1, 2], torch.float32)


def test_several_numbers_to_predict_are_counted_by_their_columns(tmp_path: Path) -> None:
    x, file = TRAIN.x.numpy()[:4], tmp_path / "new.npz"
    one, two = (RowReader(replace(TRAIN, y=torch.rand(30, *shape), num_classes=k)) for k, shape in ((1, ()), (2, (2,))))
    np.savez(file, x=x, y=np.arange(8).reshape(4, 2))
    assert two.read(file, with_targets=True).examples.y.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(fl.SettingError, match="got 1 column of numbers in the run and 2 columns of numbers in new: g"):
        one.read(file, with_targets=True)
    np.savez(file, x=x, y=np.arange(4))
    with pytest.raises(fl.SettingError, match="got 2 columns of numbers in the run and 1 column of numbers in new: g"):
        two.read(file, with_targets=True)
    np.savez(file, x=x, y=np.arange(4)[:, None])
    assert one.read(file, with_targets=True).examples.y.tolist() == [0, 1, 2, 3]
    np.savez(file, x=x, y=np.array(list("abcd")))
    with pytest.raises(
        ValueError, match=r"y must hold numbers, as the run's targets are, got <U1 of shape \(4,\): save"
    ):
        one.read(file, with_targets=True)
    np.savez(file, x=x, y=3)
    with pytest.raises(ValueError, match="x and y must have as many rows, got 4 and one number: save them"):
        one.read(file, with_targets=True)


def test_tokens_that_follow_one_another_in_a_file(tmp_path: Path) -> None:
    ids, file = np.array([[1, 2, 3, 4], [4, 3, 0, 0]], np.int16), tmp_path / "new.npz"
    train = fl.from_arrays(ids, next_tokens(ids), num_classes=5, normalise=Tokens(vocabulary=5))
    reader = RowReader(train)
    for y in (None, next_tokens(ids).numpy(), next_tokens(ids).numpy().astype(np.int16)):
        np.savez(file, x=ids, **({} if y is None else {"y": y}))
        assert torch.equal(reader.read(file, with_targets=True).examples.y, train.y)
    np.savez(file, x=ids[:, :3])
    assert reader.read(file, with_targets=True).examples.y.tolist() == [[2, 3, -100, -100], [3, -100, -100, -100]]
    for arrays, message in (
        ({"x": ids, "y": np.array([0, 1])}, r"y must hold the token that follows each place of x \(N, T\), -100 where"),
        ({"x": ids, "y": ids * 1.0}, r"got float64 of shape \(2, 4\) for x of shape \(2, 4\): leave y out"),
        ({"x": ids, "y": ids - 200}, "y must hold the token that follows"),
        ({"x": ids * 1.0}, r"x must hold token ids \(N, T\), integers, got float64: save x.astype"),
        ({"x": ids, "y": ids + 3}, "tokens of the run are the numbers 0 to 4, got 7 in new: number tokens as"),
    ):
        np.savez(file, **arrays)
        with pytest.raises((fl.SettingError, ValueError), match=message):
            reader.read(file, with_targets=True)
    classes = fl.from_arrays(ids, np.array([0, 1]), num_classes=5)
    with pytest.raises(fl.SettingError, match="got a token for each place in the run and classes in arrays: give"):
        reader.read(classes, with_targets=True)


def test_a_file_of_arrays_that_is_not_there() -> None:
    with pytest.raises(
        fl.SettingError, match=r"there is no file 'no\.npz'; give the path of a \.npz file with the array x"
    ):
        RowReader(TRAIN).read("no.npz", with_targets=False)


def test_a_prepared_run_takes_tables_alone(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("h,w,label\n1,a,x\n2,b,y\n3,a,x\n4,b,y\n")
    whole = fl.read_csv(tmp_path / "t.csv", prepare="standard", test_fraction=0.0).train
    reader = RowReader(whole)
    with pytest.raises(fl.SettingError, match=r"trained on a table that is prepared, got arrays in array: .* 'h', 'w'"):
        reader.read(np.ones((2, 3), np.float32), with_targets=False)
    part = whole.select(np.array([2, 0]))
    assert torch.equal(reader.read(part, with_targets=True).examples.x, whole.x[[2, 0]])


def test_places_are_standardised_by_the_runs_examples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(5, 3, (40, 2)).astype(np.float32), np.arange(40) % 2
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    experiment = Experiment.of({"data": {"source": f"{tmp_path}/t.npz", "normalise": "places", "clients": 2}})
    train = experiment.federation().train
    found = RowReader(train, experiment).read(x[:4], with_targets=False).examples
    np.testing.assert_allclose(found.x, (x[:4] - x.mean(0)) / (x.std(0) + 0.001), rtol=1e-4)
