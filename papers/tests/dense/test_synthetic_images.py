"""Pictures of what a server has made, of a tiny run."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.analyses import AnalysedRun, analyse, every
from fedloom.coordinator import History, RunSettings
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_sections import DataSettings
from fedloom_papers.dense import synthetic_images

OWN = {"nz": 4, "ngf": 2, "T_G": 2, "synthesis.batch_size": 12, "distill.batch_size": 12}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Three clients with grey images of 8 x 8 pixels, three classes."""
    path = tmp_path_factory.mktemp("data") / "dots.npz"
    rng, y = np.random.default_rng(0), np.arange(72) % 3
    x = (60 * y[:, None, None, None] + rng.integers(0, 40, size=(72, 1, 8, 8))).astype(np.uint8)
    np.savez(path, x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    return Experiment(
        algorithm="dense",
        model="small_bn",
        data=DataSettings(
            source=str(path), partition="iid", clients=3, partition_seed=0, test_fraction=0.0, normalise="0/1"
        ),
        local=Local(epochs=2, batch_size=10, optimiser=SGD(lr=0.05)),
        run=RunSettings(rounds=4, cohort_size=3),
        settings={"dense": OWN},
    )


@pytest.fixture(scope="module")
def run(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "dense"
    experiment.job().run(folder)
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_images_and_their_balance(experiment: Experiment, run: Path, tmp_path: Path) -> None:
    found, files = analyse(AnalysedRun.of(run), "synthetic-images", tmp_path, every())
    assert {p.name for p in files} == {
        *(f"synthetic-images.{kind}" for kind in ("png", "svg", "pdf", "csv")),
        "synthetic-images-rounds.csv",
    }
    pool = experiment.job().restore(run).engine.pool("images")
    rows = table(tmp_path / "synthetic-images.csv")
    assert [int(r["examples"]) for r in rows] == [20, 20, 20]
    for key, name in (("made_for", "y"), ("taken_for", "said")):
        want = np.bincount(np.concatenate([getattr(e, name).numpy() for e in pool]), minlength=3)
        assert [int(r[key]) for r in rows] == want.tolist()
    epochs = table(tmp_path / "synthetic-images-rounds.csv")
    assert [int(r["round"]) for r in epochs] == [2, 3, 4]
    logged = [m["server_agree"] for m in AnalysedRun.of(run).history.metrics if "server_agree" in m]
    assert [float(r["agree"]) for r in epochs] == pytest.approx(logged)
    assert sum(int(epochs[0][f"made_for_{c}"]) for c in range(3)) == 12
    assert found.remarks[0].startswith("36 images of 3 epochs; of the last, the ensemble takes ")


@pytest.mark.slow
def test_an_earlier_round_has_fewer_images(run: Path) -> None:
    found = synthetic_images.measure(AnalysedRun.of(run, [2]))
    assert found.remarks[0].startswith("12 images of 1 epochs")
    with pytest.raises(SettingError, match="made no images by round 1, which is one of uploads: name a later one"):
        synthetic_images.measure(AnalysedRun.of(run, [1]))


@pytest.mark.slow
def test_of_a_run_that_was_killed_the_images_of_its_newest_checkpoint_are_shown(
    experiment: Experiment, tmp_path: Path
) -> None:
    run = dataclasses.replace(experiment.run, rounds=5, checkpoint_every=3)

    def killed(history: History) -> None:
        if history.metrics[-1]["round"] == 4:
            raise SystemExit

    with pytest.raises(SystemExit):
        dataclasses.replace(experiment, run=run).job().run(tmp_path, on_round=killed)
    (tmp_path / "checkpoints" / "00000004.json").unlink(missing_ok=True)  # what leaving in order wrote
    found = synthetic_images.measure(AnalysedRun.of(tmp_path))
    assert found.remarks[0].startswith("24 images of 2 epochs")
    assert found.summary.name == "Images made by round 3, by class"


@pytest.mark.slow
def test_a_method_without_images_is_refused(trained: Any) -> None:
    with pytest.raises(SettingError, match="FedNTD makes no images on the server: analyse a run of dense"):
        synthetic_images.measure(AnalysedRun.of(trained("fedntd", "--model", "lenet")))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_grid_shows_each_image_in_its_class_and_what_it_is_taken_for(channels: int) -> None:
    images = np.zeros((5, channels, 4, 4), np.uint8)
    images += np.arange(1, 6, dtype=np.uint8)[:, None, None, None] * 40
    wanted, said = np.array([0, 0, 2, 2, 2]), np.array([0, 1, 2, 0, 2])
    counts = {"made for": np.array([[2, 0, 3]]), "taken for": np.array([[2, 1, 2]])}
    figure = synthetic_images.draw(images, wanted, said, counts, [2], [0.6])
    grid, bars, _ = figure.axes
    (picture,) = grid.images
    pixels = np.asarray(picture.get_array())
    assert [int(pixels[row, column, 0]) for row, column in ((0, 0), (0, 6), (7, 0), (7, 6), (7, 12))] == [
        40, 80, 120, 160, 200,
    ]  # fmt: skip
    assert (pixels[:4, 12:] == 255).all()  # class 0 has two images
    assert sorted(text.get_text() for text in grid.texts if text.get_text()) == ["0", "1"]
    assert [tick.get_text() for tick in grid.get_yticklabels()] == ["0", "2"]
    assert [bar.get_width() for bar in bars.patches] == [2, 0, 3, 2, 1, 2]
