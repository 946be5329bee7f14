"""Things by the names that people type, apart from what the command line's tests cover."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import SGD, Examples, FedNTD, KTpFL, Local, Model, from_arrays
from fedloom.coordinator import History, RunSettings
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Digest
from fedloom.data import Dataset, Growing, LabelDrift, Normalise, OffsetDrift, RotationDrift, Window
from fedloom.engines.population import Population
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.experiments.settings_sections import DataSettings

LOCAL = Local(epochs=3, optimiser=SGD(lr=0.2))


def test_an_algorithm_gets_the_common_local_training_and_its_own_settings() -> None:
    made = catalogue.algorithm("fedntd", LOCAL, {"beta": "0.5", "buffers": "server"})
    assert made == FedNTD(local=LOCAL, beta=0.5, buffers="server")


def test_parts_of_a_setting_change_one_by_one() -> None:
    made = catalogue.algorithm("kt_pfl", LOCAL, {"distill.lr": "0.3", "distill.epochs": "2", "distill.clip": "none"})
    default = KTpFL().distill
    assert made == KTpFL(local=LOCAL, distill=Digest(epochs=2, batch_size=default.batch_size, optimiser=SGD(lr=0.3)))
    clipped = catalogue.algorithm("kt_pfl", LOCAL, {"distill.clip": "2", "distill.nesterov": "false"})
    assert isinstance(clipped, KTpFL)
    assert clipped.distill.optimiser.clip == 2.0
    with pytest.raises(SettingError, match=r"kt_pfl\.distill\.nesterov must be of type bool, got 'maybe'"):
        catalogue.algorithm("kt_pfl", LOCAL, {"distill.nesterov": "maybe"})


def test_public_examples_are_taken_out_of_the_others() -> None:
    train = Examples(torch.arange(50.0)[:, None], torch.zeros(50, dtype=torch.int64), 1)
    (others, _, owners, _), public = catalogue.take_out(Dataset(train, None, np.arange(50) // 10), 12, seed=3)
    assert owners is not None
    assert (owners == others.x[:, 0].numpy() // 10).all()
    assert (len(others), len(public)) == (38, 12)
    assert sorted([*others.x[:, 0].tolist(), *public.x[:, 0].tolist()]) == train.x[:, 0].tolist()
    again, different = (catalogue.take_out(Dataset(train, None), 12, seed)[1].x[:, 0].tolist() for seed in (3, 4))
    assert again == public.x[:, 0].tolist() != different


def test_data_without_natural_clients_are_told_how_to_have_some() -> None:
    bare = Dataset(from_arrays(np.ones((4, 2), np.float32), np.array([0, 1, 0, 1])), None)
    with pytest.raises(SettingError, match=r"clients_train in a \.npz file.*, or use another: iid, ") as error:
        catalogue.partition("natural", bare, 2, 0)
    assert "natural" not in str(error.value).partition("use another")[2]


@pytest.mark.slow
def test_labels_of_public_examples_are_read_where_they_are_known() -> None:
    said = DataSettings(public=40, clients=5, partition="iid", public_labels=True)
    for known in (True, False):
        experiment = Experiment(algorithm="fedmd", data=dataclasses.replace(said, public_labels=known))
        people = experiment.federation()
        assert people.public is not None
        assert people.public_labels is known
        read = Population(people, {"mlp": Model(lambda: nn.Linear(3, 3))}).public.batches.y
        assert torch.equal(read, people.public.y if known else torch.zeros(40, dtype=torch.int64))


def test_the_first_classes_of_data() -> None:
    x, y = np.arange(60.0)[:, None], np.arange(60) % 6
    dataset = Dataset(from_arrays(x, y), from_arrays(x[:12], y[:12]), np.arange(60) // 10)
    found = catalogue.first_classes(dataset, 4)
    assert found.test is not None
    assert found.owners is not None
    assert (found.train.num_classes, found.test.num_classes, len(found.train), len(found.test)) == (4, 4, 40, 8)
    rows = [i for i in range(60) if i % 6 < 4]
    assert found.train.x[:, 0].tolist() == rows
    assert found.owners.tolist() == [i // 10 for i in rows]
    for count in (1, 7):
        with pytest.raises(SettingError, match=f"data.classes takes 2 to 6 of the 6 classes of arrays, got {count}"):
            catalogue.first_classes(dataset, count)


def test_public_examples_of_a_table_are_all_its_rows(tmp_path: Path) -> None:
    for name, rows in (("mine", 30), ("theirs", 20)):
        lines = [f"{k},{k % 7},{k % 2}" for k in range(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,label", *lines]))
    data = DataSettings(
        source=str(tmp_path / "mine.csv"), public_source=str(tmp_path / "theirs.csv"), clients=2, partition="iid"
    )
    found = Experiment(data=data).federation()
    assert found.public is not None
    assert (len(found.public), len(found.train)) == (20, 24)  # of one's own, a fifth are to test on


def test_public_examples_of_other_data(tmp_path: Path) -> None:
    """They reach the networks as the clients' own do, and take nothing from the clients."""
    rng = np.random.default_rng(0)
    sizes = {"mine": (30, 8), "theirs": (20, 8), "large": (20, 9)}
    for name, (n, side) in sizes.items():
        x, y = rng.integers(0, 255, size=(n, 1, side, side)).astype(np.uint8), np.arange(n) % 2
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    said = DataSettings(
        source=str(tmp_path / "mine.npz"), public_source=str(tmp_path / "theirs.npz"), normalise="0/1", clients=2,
        partition="iid", partition_seed=0,
    )  # fmt: skip
    plain = Experiment(data=dataclasses.replace(said, public_source=None)).federation()
    theirs = catalogue.data(str(tmp_path / "theirs.npz")).train
    for count in (0, 7):
        data = dataclasses.replace(said, public=count)
        experiment = Experiment(algorithm="feddf", model="small_bn", data=data, run=RunSettings(cohort_size=2))
        found = experiment.federation()
        assert found.public is not None
        assert len(found.public) == (count or 20)
        assert found.public.normalise == found.train.normalise == Normalise((0.0,), (1.0,), 1 / 255)
        assert {bytes(x.numpy()) for x in found.public.x} <= {bytes(x.numpy()) for x in theirs.x}
        assert found.partition.fingerprint() == plain.partition.fingerprint()
        assert torch.equal(found.train.x, plain.train.x)
        assert experiment.job().algorithm.requires.public
    both = Federations()
    other = Experiment(data=dataclasses.replace(said, public_source=None))
    assert both.of(Experiment(data=said)).public is not None
    assert both.of(other).public is None
    with pytest.raises(
        SettingError, match=r"\(1, 8, 8\) of torch.uint8, got \(1, 9, 9\) of torch.uint8 from data.public"
    ):
        Experiment(data=dataclasses.replace(said, public_source=str(tmp_path / "large.npz"))).federation()
    with pytest.raises(SettingError, match=r"data.public takes 0 \(all\) to 20 of the examples of .*, got 21"):
        Experiment(data=dataclasses.replace(said, public=21)).federation()


def test_a_cut_keeps_random_examples_in_their_order() -> None:
    dataset = Dataset(Examples(torch.arange(50.0)[:, None], torch.arange(50) % 5, 5), None)
    kept, again, different = (catalogue.cut(dataset, 10, seed).train.x[:, 0].tolist() for seed in (3, 3, 4))
    assert sorted(k % 5 for k in kept) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]  # each class keeps its share
    assert len(set(kept)) == 10
    assert kept == sorted(kept) == again != different
    targets = Dataset(Examples(torch.arange(9.0)[:, None], torch.rand(9), 1), None)
    assert len(catalogue.cut(targets, 4, 0).train) == 4
    assert catalogue.cut(dataset, 50, 3).train.x[:, 0].tolist() == list(range(50))
    with pytest.raises(SettingError, match=r"data\.examples takes 1 to 50 of the training examples, got 51"):
        catalogue.cut(dataset, 51, 3)


def test_normalisation_in_words() -> None:
    images = Examples(torch.full((4, 3, 2, 2), 255, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), 1)
    dataset = Dataset(images, images)
    assert catalogue.normalise("source", dataset) is dataset
    made = catalogue.normalise("0.5,0.4,0.2/0.5,0.2,0.1", dataset)
    assert made.test is not None
    for part in (made.train, made.test):
        inputs = part.normalise(part.x, torch.float32)[0, :, 0, 0].tolist()
        assert inputs == pytest.approx([1, 3, 8])  # (1 - 0.5) / 0.5, ...
    one = catalogue.normalise("0.5/0.25", dataset._replace(test=None)).train
    assert one.normalise(one.x, torch.float32).unique().tolist() == [2]
    vectors = Dataset(Examples(torch.full((4, 3), 5.0), torch.zeros(4, dtype=torch.int64), 1), None)
    features = catalogue.normalise("3/2", vectors).train
    assert features.normalise(features.x, torch.float32).unique().tolist() == [1]  # as they are stored


def test_places_are_standardised_each_by_itself() -> None:
    """By means and deviations of the training examples, as FedProx's authors do with MNIST; 0.001 is a pixel's unit."""
    x = torch.randint(0, 256, (50, 1, 3, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, 0] = 7  # does not vary
    y = torch.zeros(50, dtype=torch.int64)
    made = catalogue.normalise("places", Dataset(Examples(x[:40], y[:40], 1), Examples(x[40:], y[40:], 1)))
    assert made.test is not None
    mean, std = x[:40].double().mean(0), x[:40].double().std(0, correction=0)
    for part, rows in ((made.train, x[:40]), (made.test, x[40:])):
        inputs = part.normalise(part.x, torch.float32)
        assert part.x.dtype == torch.float32
        torch.testing.assert_close(inputs, ((rows - mean) / (std + 0.001)).float())
        assert not inputs[:, 0, 0, 0].any()


def test_a_source_that_needs_no_files_needs_no_folder() -> None:
    made, again = (catalogue.data(source).train for source in ("vehicle_like", "vehicle_like:nowhere"))
    assert made.fingerprint() == again.fingerprint()
    with pytest.raises(SettingError, match="data 'mnist' needs the folder with its files: mnist:FOLDER"):
        catalogue.data("mnist")
    with pytest.raises(
        SettingError, match="fashion_mnist_small, fashion_mnist_pairs, vehicle_like, original files as NAME:FOLDER"
    ):
        catalogue.data("nothing")


def test_clients_that_share_examples_have_copies() -> None:
    y = torch.arange(3000) % 10
    dataset = Dataset(Examples(torch.arange(3000.0)[:, None], y, 10), None)
    same, partition = catalogue.handed_out("lognormal_sizes:3:disjoint", dataset, 6, 2)
    assert same is dataset
    copied, again = catalogue.handed_out("lognormal_sizes:3:overlapping", dataset, 6, 2)
    assert again.sizes.tolist() == partition.sizes.tolist()
    assert (len(copied.train), again.name) == (again.sizes.sum(), "lognormal_sizes:3:overlapping, with copies")
    stored = [copied.train.x[again.rows(k).copy(), 0] for k in range(6)]
    assert [float(own[0]) for own in stored] == [0, 1, 2, 3, 4, 5]  # each has the first examples of its classes
    assert set(stored[0].tolist()) & set(stored[1].tolist())


@pytest.mark.parametrize(
    ("text", "name", "clients"),
    [
        ("lognormal", "lognormal sigma=2", 20),
        ("lognormal:1.5", "lognormal sigma=1.5", 20),
        ("lognormal:1.5:5:10", "lognormal sigma=1.5", 20),
        ("lognormal_sizes", "lognormal sizes s=3", 6),
    ],
)
def test_partitions_with_several_values(text: str, name: str, clients: int) -> None:
    dataset = Dataset(Examples(torch.zeros(9000, 1), torch.arange(9000) % 10, 10), None)
    made = catalogue.partition(text, dataset, clients, 0)
    held = (made.counts(dataset.train.y, 10) > 0).sum(1)
    per_client = 5 if text.endswith("5:10") else 3 if "sizes" in text else 2
    assert (made.name, set(held.tolist())) == (name, {per_client})
    with pytest.raises(SettingError, match="is written lognormal:SIGMA:S:LEAST"):
        catalogue.partition("lognormal:1:2:3:4", dataset, clients, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar10", "data.normalise must be source, places, or MEANS/STDS by channel, .* got 'cifar10'"),
        ("0.5/0", "got '0.5/0': .* std positive"),
        ("0.5/0.5,0.5", "got '0.5/0.5,0.5': mean and std need one value each"),
        ("0.5,0.5/0.5,0.5", "data.normalise needs 1 mean or 3, as many as arrays has channels, got '0.5,0.5/0.5,0.5'"),
    ],
)
def test_normalisations_that_are_refused(text: str, message: str) -> None:
    images = Examples(torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), 1)
    with pytest.raises(SettingError, match=message):
        catalogue.normalise(text, Dataset(images, images))


@pytest.mark.slow
def test_rules_by_which_data_change_in_words() -> None:
    made = Experiment().with_all({"data.arrives": "growing:0.2:50", "data.drift": "labels:10:0.5", "run.seed": 3})
    f = made.federation()
    assert (f.arrives, f.drift) == (Growing(0.2, 50, seed=3), LabelDrift(10, share=0.5, seed=3))
    assert Experiment.of(made.described()).federation().fingerprint() == f.fingerprint()
    assert not Experiment().federation().changes
    assert catalogue.changes("window:0.5:9", "rotation:4", 0) == (Window(0.5, 9), RotationDrift(4))
    assert catalogue.changes("all", "offset:-2.5", 0) == (None, OffsetDrift(-2.5))


@pytest.mark.parametrize(
    ("arrives", "drift", "message"),
    [
        (
            "growin:0.2:5",
            "none",
            r"unknown arrival 'growin:0.2:5' \(did you mean 'growing'\?\); there are all, g",
        ),
        ("growing:0.2", "none", "this arrival is written growing:START:BY, got 'growing:0.2'"),
        ("growing:0.2:5:1", "none", "this arrival is written growing:START:BY, got"),
        ("growing:2:5", "none", "arrival = 'growing:2:5': examples grow from a share above 0"),
        ("window:a:5", "none", "is written window:SHARE:BY, got 'window:a:5': SHARE is a number"),
        ("all", "labels", "this drift is written labels:EVERY or labels:EVERY:SHARE, got 'labels'"),
        ("all", "labels:1:2", "share of clients above 0 and at most 1 drifts, got 2"),
        ("all", "turns:1", "unknown drift 'turns:1'"),
    ],
)
def test_rules_that_are_refused(arrives: str, drift: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        catalogue.changes(arrives, drift, 0)


def test_the_newest_numbers_of_a_history() -> None:
    history = History(algorithm="A", metrics=[{"round": t, "a": v} for t, v in enumerate((0.1, None, 0.3, 0.5))])
    assert history.series("a").tolist() == [0.1, 0.3, 0.5]
    assert history.last("a") == 0.5
    assert history.last("a", 2) == pytest.approx(0.4)
    assert str(history.last("val_accuracy")) == "nan"
    assert [m["round"] for m in history] == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "part"), [("feddf", "epochs"), ("fedbe", "steps"), ("kt_pfl", "decay")])
def test_parts_that_are_not_used_are_refused(name: str, part: str) -> None:
    with pytest.raises(SettingError, match=rf"{name}\.distill has no setting '{part}'.*it has .*batch_size.*lr"):
        catalogue.algorithm(name, LOCAL, {f"distill.{part}": "2"})
