"""What would run and teach nothing is refused or warned of before the run, and what is ordinary is not."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithms.shared.ldam import LDAM
from fedloom.coordinator.data_advice import check_plausible
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.task import Task
from fedloom.data import Examples, Federation, Normalise, by_lists, federate, from_arrays, iid, natural
from fedloom.sources import fashion_mnist_small
from fedloom.tables import read_csv, read_sites
from fedloom.tables.preparation import Preparation
from fedloom.tasks import Classification

RNG = np.random.default_rng(0)
Y = np.arange(60) % 2


def federation(x: np.ndarray, y: np.ndarray = Y, test: Examples | None = None, **changes: object) -> Federation:
    train = replace(from_arrays(x, y, num_classes=10), **changes)  # type: ignore[arg-type]
    return Federation(train, iid(train.y, 3, seed=0), test)


def check(federation: Federation, build: Callable[[], nn.Module] | None = None, task: Task | None = None) -> None:
    width = int(np.prod(federation.train.shape))
    model = fl.Model(build or (lambda: nn.Sequential(nn.Flatten(), nn.Linear(width, 10))), name="net")
    check_plausible(federation, [model.reading(federation.train.normalise)], task or Classification())


# ---- scales of features


ORDINARY = {
    "standard": RNG.normal(size=(60, 5)),
    "within 0..1": RNG.random((60, 5)),
    "one-hot beside rare counts": np.concatenate([np.eye(6)[Y], RNG.poisson(3, (60, 4))], 1).astype(float),
    "degrees, flowers": np.stack([RNG.normal(18, 8, 60), RNG.normal(5.8, 0.8, 60)], 1),
    "bytes": RNG.integers(0, 256, (60, 5), dtype=np.uint8),
    "images of bytes": RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8),
    "images within 0..1": RNG.random((60, 3, 8, 8)),
    "zeros": np.zeros((60, 5)),
    "tiny": np.full((60, 5), 1e-20),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_features_are_taken_in_silence(name: str) -> None:
    check(federation(ORDINARY[name]))


@pytest.mark.slow
def test_the_embedded_data_are_taken_in_silence() -> None:
    train, test = fashion_mnist_small()
    check(Federation(train, iid(train.y, 3, seed=0), test))


def test_a_table_with_age_and_income_is_warned_of(tmp_path: Path) -> None:
    rows = [f"{20 + i},{20_000 + 1000 * i},{i / 60},{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["age,income,share,label", *rows]))
    train, test, _, _ = read_csv(tmp_path / "t.csv")
    message = (
        r"hardly learnt, got column income \(mean 5.*e\+04, deviation 1.*e\+04\), age \(mean .*\): standardise them"
    )
    with pytest.warns(SettingWarning, match=message):
        check(Federation(train, iid(train.y, 3, seed=0), test))
    standard = (train.x - train.x.mean(0)) / train.x.std(0)
    check(Federation(replace(train, x=standard), iid(train.y, 3, seed=0)))


def test_columns_without_names_have_numbers() -> None:
    with pytest.warns(SettingWarning, match=r"got column 6 \(mean 7e\+07, .* and 1 more: standardise"):
        check(federation(np.ones((60, 7)) * 10.0 ** np.arange(1, 8) * [1, 1, 1, 1, 1, 1, 7]))
    with pytest.warns(SettingWarning, match=r"got channel 0 \(mean 12\d, deviation 7\d"):
        check(federation(255 * RNG.random((60, 1, 8, 8))))
    with pytest.warns(SettingWarning, match=r"got channel 0 \(mean 12\d, deviation 7\d"):
        check(
            federation(255 * RNG.random((60, 1, 8, 8))),
            lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)),
        )


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(2), lambda: nn.LayerNorm(2)])
def test_a_model_that_begins_with_a_normalisation_takes_any_scale(layer: Callable[[], nn.Module]) -> None:
    x = np.stack([RNG.normal(40, 12, 60), RNG.normal(50_000, 10_000, 60)], 1)
    check(federation(x), lambda: nn.Sequential(layer(), nn.Linear(2, 10)))
    with pytest.warns(SettingWarning, match="column 1"):
        check(federation(x), lambda: nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x / 255)  # type: ignore[no-any-return]


def test_a_model_that_scales_by_itself_takes_any_scale() -> None:
    check(federation(255 * RNG.random((60, 5))), Scaled)


# ---- token ids


class Words(nn.Module):
    """The mean of the embeddings of tokens and of their places."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.places, self.words, self.head = nn.Embedding(12, 4), nn.Embedding(80, 4), nn.Linear(4, 10)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        ids = (x * self.factor).round().long()
        return self.head((self.places(torch.arange(12)) + self.words(ids)).mean(1))  # type: ignore[no-any-return]


TOKENS = RNG.integers(0, 80, (60, 12))


def test_bytes_of_tokens_are_refused_where_an_embedding_would_see_zeros() -> None:
    with pytest.raises(
        SettingError, match=r"embedding of net as they are stored, got torch\.uint8 .* \(79 becomes 0\.3.*Tokens\(\)"
    ):
        check(federation(TOKENS.astype(np.uint8)), lambda: Words())


def test_tokens_that_arrive_are_taken_in_silence() -> None:
    check(federation(TOKENS.astype(np.uint8), normalise=Normalise()), lambda: Words())
    check(federation(TOKENS.astype(np.float32)), lambda: Words())
    check(federation(TOKENS.astype(np.uint8)), lambda: Words(255))  # makes up for it
    with pytest.raises(ValueError, match=r"the id of padding, 0, stands behind the last token of a sequence"):
        from_arrays(TOKENS, Y)


def test_places_of_image_patches_are_no_tokens() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut, self.places, self.head = nn.Conv2d(1, 4, 4, 4), nn.Embedding(4, 4), nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            found = self.cut(x).flatten(2).transpose(1, 2)
            return self.head((found + self.places(torch.arange(4))).mean(1))  # type: ignore[no-any-return]

    check(federation(RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)), Patches)


# ---- labels


@dataclass(frozen=True)
class Own:
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(logits.square().sum(1))

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return y == y


X = RNG.normal(size=(60, 5))


def test_one_class_is_warned_of() -> None:
    with pytest.warns(SettingWarning, match="all training examples have label 3: .* give examples of two classes"):
        check(federation(X, np.full(60, 3)))
    check(federation(X, np.full(60, 3)), task=Own())  # whatever its labels are


def test_labels_that_only_the_test_set_has_are_warned_of() -> None:
    test = from_arrays(X[:5], np.array([0, 1, 7, 9, 9]), num_classes=10)
    message = "no client has training examples of class 7, 9, which 3 of the 5 test examples have"
    with pytest.warns(SettingWarning, match=message):
        check(federation(X, test=test))
    check(federation(X, test=test), task=Own())
    check(federation(X, test=test.select(np.array([1, 0]))))
    train = from_arrays(X, np.arange(60) % 10)
    with pytest.warns(SettingWarning, match="of class 2, 3, 4, 5, 6, 7, 8, 9, which 48 of the 60"):
        check(Federation(train, by_lists([[0, 1], [10, 11]]), train))


def test_classes_are_called_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(f"{i / 60},{i % 3 + 1}" for i in range(60)))
    train, test, _, _ = read_csv(tmp_path / "t.csv", label="y")
    rows = [np.flatnonzero(train.y.numpy() == c).tolist() for c in (1, 2)]
    with pytest.warns(SettingWarning, match="no client has training examples of class 1, which 4 of the 12"):
        check(Federation(train, by_lists(rows), test))
    with pytest.warns(SettingWarning, match="all training examples have label 2:"):
        check(Federation(train, by_lists(rows[:1]), test))


# ---- images, tables and what is held out


def test_images_with_channels_behind_are_warned_of() -> None:
    with pytest.warns(SettingWarning, match=r"got 8 channels of 8 x 3, .*: pass x\.transpose\(0, 3, 1, 2\)"):
        check(federation(RNG.random((60, 8, 8, 3))))
    for shape in ((3, 8, 8), (8, 1, 1), (1, 8, 3), (8, 8, 8)):
        check(federation(RNG.random((60, *shape))))


def test_pixels_as_floating_point_are_told_what_images_need() -> None:
    with pytest.warns(SettingWarning, match=r"pixels of 0 to 255 as uint8, or from_arrays.*Normalise\(scale=1/255\)"):
        check(federation(255 * RNG.random((60, 1, 8, 8))))
    with pytest.warns(SettingWarning, match=r"normalise=fedloom\.data\.Normalise\(mean, std\)\), by channel"):
        check(federation(255 * RNG.normal(size=(60, 1, 8, 8))))


def test_clients_that_hold_nothing_out_are_warned_of() -> None:
    train = from_arrays(X, Y, num_classes=10)
    with pytest.warns(SettingWarning, match="what clients hold out, got 0 of 30 clients that hold anything out: give"):
        check(fl.federate(train, iid(train.y, 30, seed=0)))
    check(fl.federate(train, iid(train.y, 30, seed=0), test_fraction=0))
    check(fl.federate(train, iid(train.y, 6, seed=0)))


@pytest.mark.parametrize(("holding", "warned"), [(1, True), (2, False), (3, False)])
def test_half_of_the_clients_that_hold_something_out_are_enough(holding: int, warned: bool) -> None:
    """Of four clients; of these with one example each holds none out."""
    train = from_arrays(X, Y, num_classes=10)
    sizes = [14] * holding + [1] * (4 - holding)
    lists = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(fl.federate(train, by_lists(lists), test_fraction=0.2))
    assert any("what clients hold out" in str(one.message) for one in caught) == warned


@pytest.mark.parametrize(("most", "warned"), [(48, False), (49, True)])
def test_four_fifths_in_one_class_are_not_most(most: int, warned: bool) -> None:
    y = (np.arange(60) >= most).astype(np.int64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(federation(X, y))
    assert any("accuracy says little" in str(one.message) for one in caught) == warned


def test_words_of_many_columns_and_numbers_of_rows_are_warned_of(tmp_path: Path) -> None:
    rows = [f"{i},{i % 40 // 2 * 7}w,{i % 7 / 7},{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["row_id,place,share,label", *rows]))

    def table(**arguments: object) -> Federation:
        train, test, _, _ = read_csv(tmp_path / "t.csv", prepare="standard", **arguments)  # type: ignore[arg-type]
        return Federation(train, iid(train.y, 3, seed=0), test)

    with pytest.warns(SettingWarning, match=r"got 20 for 48 rows that train, most of them from 'place' \(20 words\)"):
        check(table(drop="row_id"))
    with pytest.warns(SettingWarning, match="got 'row_id', different in all: drop=row_id"):
        check(table(drop="place"))
    check(table(drop=["place", "row_id"]))
    x = np.stack([np.arange(60) / 60, np.arange(60) / 10], 1)
    check(federation(x, columns=("id", "other")))
    with pytest.warns(SettingWarning, match="drop=ID"):
        check(federation(np.stack([np.arange(60), np.zeros(60)], 1) - 30, columns=("ID", "other")))


def test_masks_of_a_union_are_no_columns_of_words(tmp_path: Path) -> None:
    """Where each site lacks other columns; and on devices, whose rows are not here, words are counted all the same."""
    rng = np.random.default_rng(0)
    for k in range(3):
        columns = {f"n{k}{i}": rng.normal(size=30).round(2).tolist() for i in range(10)}
        columns |= {"place": ["abc"[i % 3] for i in range(30)], "label": [i % 2 for i in range(30)]}
        rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        (tmp_path / f"s{k}.csv").write_text("\n".join([",".join(columns), *rows]))
    data = read_sites(f"{tmp_path}/*.csv", label="label", prepare="federated", columns="union")
    whole = federate(data.train, natural(data.owners, data.train.owners), test=data.test)
    assert whole.train.shape == (30 + 30 + 3,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(whole)
    kept = {"place": tuple(f"{i}w" for i in range(60))}
    common = replace(whole.train.preparation.common, words=kept)  # type: ignore[union-attr, type-var]
    away = Preparation.without_rows(common, 57)  # type: ignore[arg-type]
    with pytest.warns(SettingWarning, match=r"got 60 for 57 rows that train, most of them from 'place' \(60 words\)"):
        check(replace(whole, train=replace(whole.train, preparation=away)))


# ---- where it is called


def test_a_run_is_warned_of_before_it_starts() -> None:
    train = from_arrays(1000 * X, Y)
    job = fl.Job(
        algorithm=fl.FedAvg(),
        federation=Federation(train, iid(train.y, 3, seed=0), train),
        model=lambda: nn.Linear(5, 2),
        settings=fl.RunSettings(rounds=1, cohort_size=2),
    )
    with pytest.warns(SettingWarning, match="hardly learnt"):
        job.check()
    job.check()  # what was checked is not said again
    started: list[object] = []
    with pytest.raises(SettingWarning, match="hardly learnt"):  # warnings are errors in tests
        replace(job).run(on_start=started.append)
    assert not started


def test_a_run_of_scaled_tokens_is_refused() -> None:
    job = fl.Job(
        algorithm=fl.FedAvg(), federation=federation(TOKENS.astype(np.uint8)), model=lambda: Words(),
        settings=fl.RunSettings(rounds=1, cohort_size=2),
    )  # fmt: skip
    with pytest.raises(SettingError, match="token ids must reach"):
        job.check()


class Both(nn.Module):
    """Ids up to 90, their mask, and perhaps numbers beside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 4), nn.Linear(4, 10)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, ages: Tensor | None = None) -> Tensor:
        words = self.embedding(input_ids) * attention_mask[..., None]
        return self.head(words.sum(-2))  # type: ignore[no-any-return]


def several(**more: np.ndarray) -> Federation:
    ids = RNG.integers(1, 91, (60, 5))
    return federation({"input_ids": ids, "attention_mask": np.ones((60, 5), np.int64), **more})  # type: ignore[arg-type]


def test_of_several_inputs_only_numbers_have_a_scale() -> None:
    check(several(), Both)
    with pytest.warns(SettingWarning, match=r"column ages\[0\] \(mean"):
        check(several(ages=RNG.normal(5000, 1, (60, 1))), Both)
    check(several(ages=RNG.normal(0, 1, (60, 1))), Both)


def test_a_mask_has_a_token_of_each_sequence() -> None:
    parts = several()
    column = [part.name for part in parts.train.normalise.parts].index("attention_mask")  # type: ignore[union-attr]
    parts.train.x[3, 5 * column : 5 * column + 5] = 0
    with pytest.raises(SettingError, match="attention_mask 0 everywhere in example 3"):
        check(parts, Both)


# ---- answers


def probabilities(*last: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(5, 10), *last)


class Mine:
    """A task of one's own by cross-entropy."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(nn.functional.cross_entropy(logits, batch.y, reduction="none"))

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return logits.argmax(-1) == y


class OfProbabilities(Mine):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(nn.functional.nll_loss(logits.log(), batch.y, reduction="none"))


@pytest.mark.parametrize("task", [None, LDAM(), Mine()], ids=["classification", "ldam", "mine"])
def test_cross_entropy_of_probabilities_is_warned_of(task: Task | None) -> None:
    with pytest.warns(SettingWarning, match="cross-entropy is of logits, got probabilities from net .* the Softmax"):
        check(federation(ORDINARY["standard"]), probabilities(nn.Softmax(dim=1)), task)


def test_other_answers_are_taken_in_silence() -> None:
    data = federation(ORDINARY["standard"])
    check(data, probabilities(nn.LogSoftmax(dim=1)))
    check(data, probabilities(nn.Sigmoid()))  # none negative, but no sum of 1
    check(data, probabilities(nn.Softmax(dim=1)), OfProbabilities())
    tenths = nn.Linear(5, 10)
    nn.init.zeros_(tenths.weight), nn.init.zeros_(tenths.bias)
    tenths.bias.data[:2] = torch.tensor([2.0, -1.0])  # a sum of 1, but one is negative
    check(data, lambda: tenths)


# ---- rare classes


@pytest.mark.parametrize(
    ("task", "remedy"),
    [
        (Classification(), r"let it count for more \(class_weights, or focal = 2\), and look at recall by class"),
        (fl.Binary(), r"let it count for more \(positive_weight\), and look at recall and precision"),
        (LDAM(), r": look at recall by class"),
    ],
)
def test_a_rare_class_is_warned_of_with_what_helps(task: Task, remedy: str) -> None:
    y = np.where(np.arange(600) < 10, 2, np.arange(600) % 2)
    made = Federation(from_arrays(RNG.normal(size=(600, 5)), y), iid(torch.from_numpy(y), 3, seed=0))
    message = r"got fewer than 3\.33% of the training examples \(a tenth of an equal share\) of class 2 \(1\.67%\)"
    with pytest.warns(SettingWarning, match=f"{message}.*{remedy}"):
        check(made, task=task)


@pytest.mark.parametrize(
    ("y", "remedy"),
    [
        (np.arange(600) % 12 == 0, r"--headline auc; or average_precision, balanced_accuracy\)"),  # 8 %, not below 5 %
        (np.where(np.arange(600) < 10, 2, np.arange(600) % 2), r"--headline balanced_accuracy; or macro_f1\)"),
    ],
)
def test_accuracy_is_no_headline_where_a_class_is_rare(y: Any, remedy: str) -> None:
    y = y.astype(int)
    made = Federation(from_arrays(RNG.normal(size=(600, 5)), y), iid(torch.from_numpy(y), 3, seed=0))
    model = fl.Model(lambda: nn.Linear(5, 3), name="Linear")
    for headline, warned in (("accuracy", True), ("balanced_accuracy", False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_plausible(made, [model], Classification(), headline)
        assert any(re.search(f"make another measure the headline .{remedy}", str(w.message)) for w in caught) == warned


# ---- tensors that learn nothing beside a frozen one of zeros


class Beside(nn.Module):
    """A frozen layer beside a branch: `down`, `up`, and a gate, of which some are frozen or zero."""

    def __init__(self, frozen: str = "", zero: str = "", dead: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(5, 10)
        self.base.requires_grad_(False).bias.zero_()  # as many networks begin
        self.down, self.up, self.gate = nn.Linear(5, 2, bias=False), nn.Linear(2, 10), nn.Parameter(torch.ones(1))
        self.dead = dead
        with torch.no_grad():
            for name in frozen.split():
                self.get_parameter(name).requires_grad_(False)
            for name in zero.split():
                self.get_parameter(name).zero_()

    def forward(self, x: Tensor) -> Tensor:
        branch = self.up(self.down(x)) * self.gate
        return self.base(x) + (0 * branch if self.dead else branch)  # type: ignore[no-any-return]


STUCK = {
    "one factor": (("up.weight", "up.weight"), "down.weight", "up.weight"),
    "the other": (("down.weight", "down.weight"), "up.weight", "down.weight"),
    "a gate": (("gate", "gate"), "down.weight, up.bias, up.weight", "gate"),
    "both factors and a gate": (("gate up.weight", "gate up.weight"), "down.weight, up.bias", "gate, up.weight"),
}


@pytest.mark.parametrize("kind", STUCK)
def test_a_tensor_that_learns_nothing_beside_a_frozen_zero_is_warned_of(kind: str) -> None:
    (frozen, zero), stuck, cause = STUCK[kind]
    with pytest.warns(SettingWarning) as seen:
        check(federation(ORDINARY["standard"]), lambda: Beside(frozen, zero))
    assert [str(w.message) for w in seen] == [
        f"a tensor that a frozen one of zeros multiplies learns nothing, got {stuck} of net beside {cause}: train both "
        "(of an adapter: factors='both'), or let the frozen one begin with other values"
    ]


@pytest.mark.parametrize(
    "network",
    [
        lambda: Beside("up.weight"),
        lambda: Beside("down.weight", "up.weight"),  # as an adapter begins
        lambda: Beside("", "down.weight up.weight"),  # nobody learns, but nothing of it is frozen
        lambda: Beside("", "", dead=True),
    ],
)
def test_other_frozen_tensors_are_taken_in_silence(network: Callable[[], nn.Module]) -> None:
    check(federation(ORDINARY["standard"]), network)
