"""Segmentation: losses by PyTorch and by hand, measures by scikit-learn, runs on every engine, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk
from torch import Tensor, nn

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core.batch import Batch, probe
from fedloom.core.model import Model
from fedloom.core.task import weight_of
from fedloom.core.task_measures import impossible, measures_of, sums_of
from fedloom.data.changes import RotationDrift
from fedloom.data.inputs import IGNORED
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.evaluate.accuracy import RowResults
from fedloom.experiments.catalogue.models_and_tasks import task as named
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from fedloom.testing.small_networks import MLP
from masks_made import CLASSES, Pixels, federation

LOCAL = fl.Local(optimiser=fl.SGD(lr=0.5), batch_size=4, epochs=3)
BY_CLASS = sorted(name for name, kind in ALGORITHMS.items() if kind().requires.targets)
OTHERS = {"fedalign": "slims", "fedmd": "one answer to each public example, got one for each of"}


def case(seed: int = 0, n: int = 6, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Logits and masks of which some pixels count nowhere, and of which the last image has none that counts."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, (n, 5, 7))
    y[rng.random(y.shape) < 0.2] = IGNORED
    y[-1] = IGNORED
    return torch.from_numpy(rng.normal(size=(n, classes, 5, 7))), torch.from_numpy(y)


def measured(task: Any, logits: Tensor, y: Tensor) -> dict[str, float]:
    return RowResults(sums_of(task, list(measures_of(task)), logits, y), {}, y, 0.0).measured(task)


def batch(y: Tensor, real: int) -> Batch:
    mask = torch.arange(len(y)) < real
    return Batch(x=torch.zeros(len(y), 1), y=y, mask=mask, key=torch.zeros((), dtype=torch.int64))


@pytest.mark.parametrize("kind", [torch.int8, torch.int64])
def test_the_cross_entropy_is_that_of_pytorch_over_the_pixels_that_count(kind: torch.dtype) -> None:
    logits, y = case()
    want = F.cross_entropy(logits[:4], y[:4], ignore_index=IGNORED)
    torch.testing.assert_close(fl.Segmentation().loss(logits, batch(y.to(kind), 4)), want)
    assert float(fl.Segmentation(error="both").loss(logits[-1:], probe(logits[-1:], y[-1:]))) == 0  # none counts


def dice_of_image(p: Any, y: Any) -> float:
    counts, scores = y != IGNORED, []
    for c in np.unique(y[counts]):
        t = (y == c)[counts]
        scores.append(2 * (p[c][counts] * t).sum() / (p[c][counts].sum() + t.sum()))
    return 1 - float(np.mean(scores))


def test_the_dice_loss_by_hand_and_both_added_up() -> None:
    """Of an image it is over the classes of its mask; images weigh by how many of their pixels count."""
    logits, y = case()
    y[1][y[1] == 3] = 0  # an image without a class
    p, rows = logits.softmax(1).numpy(), range(4)
    count = [int((y[i] != IGNORED).sum()) for i in rows]
    want = np.average([dice_of_image(p[i], y[i].numpy()) for i in rows], weights=count)
    dice = fl.Segmentation(error="dice").loss(logits, batch(y, 4))
    assert float(dice) == pytest.approx(want, abs=1e-12)
    both = fl.Segmentation(error="both").loss(logits, batch(y, 4))
    torch.testing.assert_close(both, dice + F.cross_entropy(logits[:4], y[:4], ignore_index=IGNORED))
    assert float(weight_of(fl.Segmentation(), batch(y, 4))) == sum(count)


def test_the_loss_of_rounded_logits_is_not_rounded() -> None:
    logits, y = case()
    task = fl.Segmentation(error="both")
    exact, rounded = (task.loss(each, batch(y, 6)) for each in (logits.bfloat16().double(), logits.bfloat16()))
    assert float(rounded) == pytest.approx(float(exact), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_measures_are_those_of_scikit_learn_over_all_pixels_together(seed: int) -> None:
    logits, y = case(seed)
    counts = (y != IGNORED).numpy()
    true, said = y.numpy()[counts], logits.argmax(1).numpy()[counts]
    found = measured(fl.Segmentation(by_class=4), logits, y)
    want = {
        "mean_iou": sk.jaccard_score(true, said, average="macro"),
        "mean_dice": sk.f1_score(true, said, average="macro"),
        "pixel_accuracy": sk.accuracy_score(true, said),
    }
    for name, score in (("iou", sk.jaccard_score), ("dice", sk.f1_score)):
        want |= {f"{name}_{k}": each for k, each in enumerate(score(true, said, average=None))}
    assert found == pytest.approx(want, abs=1e-12)
    matrix = sk.confusion_matrix(true, said)
    total = sums_of(fl.Segmentation(), ["mean_iou"], logits, y)["mean_iou"].sum(0)
    assert np.array_equal(total, np.stack([np.diag(matrix), matrix.sum(0), matrix.sum(1)]))


def test_a_class_that_nobody_has_or_says_is_absent_and_not_0() -> None:
    y = torch.tensor([[[0, 0, 1, IGNORED]]])
    logits = F.one_hot(torch.tensor([[[0, 1, 1, 3]]]), 5).double().movedim(-1, 1)
    found = measured(fl.Segmentation(by_class=6), logits, y)
    assert (found["iou_0"], found["iou_1"]) == (0.5, 0.5)
    assert all(math.isnan(found[f"{name}_{k}"]) for name in ("iou", "dice") for k in range(2, 6))
    assert found["mean_iou"] == 0.5
    assert found["mean_dice"] == pytest.approx(2 / 3)
    none = measured(fl.Segmentation(by_class=1), logits, torch.full_like(y, IGNORED))
    assert all(map(math.isnan, none.values()))


def test_a_model_is_silent_on_images_where_a_pixel_that_counts_has_no_number() -> None:
    logits, y = case()
    y[0, 0, :2] = torch.tensor([1, IGNORED])
    logits[0, :, 0, 1] = math.nan
    logits[2, 0, 0, 0] = -math.inf
    task = fl.Segmentation()
    assert not task.silent(logits, y).any()
    logits[0, 2, 0, 0] = math.nan
    assert task.silent(logits, y).tolist() == [True, *[False] * 5]


def test_what_no_pixels_can_add_up_to_is_named() -> None:
    task, good = fl.Segmentation(), torch.tensor([[3.0, 1], [4, 2], [5, 1]])
    assert impossible(task, {"mean_iou": good}, {}, 9) is None
    for wrong in (
        [[5.0, 1], [4, 2], [5, 1]],
        [[3.0, 1], [4, 2], [5, 2]],
        [[-1.0, 0], [1, 0], [1, 0]],
        [[math.nan] * 2] * 3,
    ):
        assert impossible(task, {"mean_iou": torch.tensor(wrong)}, {}, 9) == "mean_iou"


def test_chance_is_what_the_commonest_class_reaches() -> None:
    f = federation()
    found = fl.run(fl.FedAvg(local=LOCAL), f, Pixels, settings(rounds=1), task=fl.Segmentation()).manifest["chance"]
    assert f.test is not None
    y = f.test.y.numpy().ravel()
    y = y[y != IGNORED].astype(int)
    constant = np.full_like(y, np.bincount(y).argmax())
    for name, score in (("mean_iou", sk.jaccard_score), ("mean_dice", sk.f1_score)):
        want = score(y, constant, average="macro", zero_division=0)
        assert found[f"global_{name}"] == pytest.approx({"value": want, "examples": len(y)})
    assert found["global_pixel_accuracy"]["value"] == pytest.approx((y == constant).mean())
    assert found["personal_mean_iou"]["examples"] == 15 * 7 * 8


def settings(**changes: Any) -> fl.RunSettings:
    names = ("mean_dice", "pixel_accuracy", "iou_2")
    return fl.RunSettings(**{"rounds": 2, "cohort_size": 5, "dtype": "float64", "measures": names[:2]} | changes)


def records(engine: Any, task: Any = None, **more: Any) -> Any:
    method = fl.Ditto(local=LOCAL)
    chosen = settings(engine=engine, measures=("mean_dice", "iou_2"), **more)
    task = task or fl.Segmentation(error="both", by_class=CLASSES)
    found = fl.run(method, federation(), Pixels, chosen, task=task).metrics
    return [{n: v for n, v in record.items() if isinstance(v, float)} for record in found]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["stacked", pytest.param("workers", marks=pytest.mark.slow)])
def test_engines_agree(engine: str) -> None:
    want, found = records("loop"), records(engine)
    assert all(mine == pytest.approx(other, abs=1e-9) for mine, other in zip(want, found, strict=True))
    assert {"global_iou_2", "personal_iou_2", "personal_mean_iou", "global_mean_dice"} <= {*want[-1]}


@pytest.mark.parametrize("kind", [Messages, DevicesInProcess])
def test_a_run_over_messages_is_that_in_one_process(kind: type[Engine]) -> None:
    population = Population(
        federation=federation(), models={"net": Model(Pixels)}, dtype=torch.float64, task=fl.Segmentation(),
        measures=("mean_iou",),
    )  # fmt: skip
    found = []
    kinds: tuple[type[Engine], ...] = (Loop, kind)
    for each in kinds:
        engine = each(population, fl.Ditto(local=LOCAL), Options())
        server = engine.init()
        for t in range(2):
            server = engine.round(server, [0, 1, 3], t)
        found.append(engine.evaluate(server, range(5), 1, "all"))
        engine.close()
    for k, result in found[0].items():
        assert torch.equal(result.sums["mean_iou"], found[1][k].sums["mean_iou"])
        assert torch.allclose(result.loss, found[1][k].loss, atol=1e-9)


@pytest.mark.some(1)
@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in {*BY_CLASS, *OTHERS}])
def test_algorithms_that_need_only_a_loss_learn_masks(name: str) -> None:
    history = fl.run(ALGORITHMS[name](local=LOCAL), federation(), Pixels, settings(rounds=3), task=fl.Segmentation())
    series = [history.series(f"{whose}_mean_iou") for whose in ("global", "personal")]
    (first, *_, last), *_ = [values for values in series if len(values)]
    assert np.isfinite([*series[0], *series[1]]).all()
    assert last > first
    assert json.dumps(history.federation["targets"]).startswith('{"names": ["pixels that count"], "train": [[[56.0')


@pytest.mark.some(2)
@pytest.mark.parametrize("name", BY_CLASS)
def test_those_that_compare_classes_are_refused_before_the_run(name: str) -> None:
    made = ALGORITHMS[name]()
    with pytest.raises(fl.SettingError, match=f"{type(made).__name__} compares .* the task Segmentation are pixels"):
        fl.Job(algorithm=made, federation=federation(), model=Pixels, task=fl.Segmentation())


@pytest.mark.parametrize("name", OTHERS)
def test_those_that_need_more_of_a_network_are_refused_before_the_run(name: str) -> None:
    with pytest.raises(fl.SettingError, match=OTHERS[name]):
        fl.Job(
            algorithm=ALGORITHMS[name](), federation=federation(), model=Pixels, task=fl.Segmentation(),
            settings=settings(),
        ).check()  # fmt: skip


class Few(Pixels):
    """A network with a logit too few."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :-1]


class Whole(MLP):
    """A network with one answer for each image."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.head = nn.Linear(64, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Return all pixels."""
        return x.flatten(1)


def of_classes() -> fl.Federation:
    f = federation(public_labels=False)
    parts = {n: dataclasses.replace(e, y=e.y[:, 1, 1].long()) for n in ("train", "test") if (e := getattr(f, n))}
    return dataclasses.replace(f, **parts, public=None)


@pytest.mark.parametrize(
    ("f", "model", "task", "message"),
    [
        (
            federation,
            Pixels,
            fl.Classification(),
            r"learns no masks, got a class for each pixel of an image, int8 of sh",
        ),
        (federation, Pixels, fl.NextToken(), r"learns no masks, .* task=fedloom.Segmentation\(\)"),
        (
            of_classes,
            Pixels,
            fl.Segmentation(),
            r"learns a class for each pixel of an image, got int64 of shape \(N,\)",
        ),
        (
            federation,
            Few,
            fl.Segmentation(),
            "a logit for each class of a pixel, num_classes = 3, got 2 of Few: make its head",
        ),
        (federation, Whole, fl.Segmentation(), r"for each pixel, \[\d, 'C', 8, 8\], got \[\d, 3\] for masks .* 'unet'"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(f: Any, model: Any, task: Any, message: str) -> None:
    with pytest.raises(fl.SettingError, match=message):
        fl.Job(algorithm=fl.FedAvg(), federation=f(), model=model, task=task, settings=settings()).check()


def test_augmentation_would_leave_masks_behind() -> None:
    f = federation()
    train = dataclasses.replace(f.train, augment=fl.Augment.of(f.train.normalise, flip=True))
    f = dataclasses.replace(f, train=train)
    with pytest.raises(fl.SettingError, match=r"changes inputs and no targets, .* leave augment out"):
        fl.Job(algorithm=fl.FedAvg(), federation=f, model=Pixels, task=fl.Segmentation())


def test_masks_turn_with_their_images() -> None:
    f = dataclasses.replace(federation(), drift=RotationDrift(1)).at(1)
    old = federation().train
    assert torch.equal(f.train.y, torch.rot90(old.y, 1, (1, 2)))
    assert torch.equal(f.train.x, torch.rot90(old.x, 1, (2, 3)))


def test_a_task_by_words() -> None:
    assert named("segmentation?error=dice&by_class=3") == fl.Segmentation(error="dice", by_class=3)
    for wrong in ("by_class=2.5", "error=iou"):
        with pytest.raises(fl.SettingError):
            named(f"segmentation?{wrong}")


def test_volumes_are_segmented_alike() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 1, 4, 5, 6)).astype(np.float32)
    examples = fl.from_arrays(x, (x[:, 0] > 0).astype(int))
    lists = np.array_split(np.arange(12), 2)
    f = fl.federate(examples, fl.data.by_lists(lists), test_fraction=0.5, seed=0)
    history = fl.run(
        fl.FedAvg(local=LOCAL), f, lambda: nn.Conv3d(1, 2, 1), settings(cohort_size=2), task=fl.Segmentation()
    )
    assert history.last("personal_mean_iou") > history.series("personal_mean_iou")[0]
