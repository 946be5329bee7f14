"""Masks that are predicted: pictures of new images, measures of masked ones, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.cli.main import main
from fedloom.experiments import predictions
from fedloom.experiments.mask_pictures import write_masks
from masks_made import images, write

Image = pytest.importorskip("PIL.Image")
RUN = "run fedavg --task segmentation --model unet?width=4&depth=1 --partition iid --clients 2 --cohort 2 --rounds 1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    write(folder, 0, 12, of="train")
    write(folder, 12, 40, of="test")
    source = f"images:{folder}/images?masks={folder}/masks"
    assert main([*RUN.split(), "--data", source, "--out", str(folder / "run")]) == 0
    return folder


@pytest.mark.slow
def test_masks_of_new_images_are_written_as_pictures(run: Path, tmp_path: Path, capsys: Any) -> None:
    call = ["predict", str(run / "run"), "--data", f"images:{run}/images/test"]
    said = fl.predict(run / "run", f"images:{run}/images")
    assert said.values.shape == (40, 8, 8)
    assert main([*call, "--out", str(tmp_path / "said")]) == 0
    made = {path.name for path in (tmp_path / "said").iterdir()}
    assert made == {*(f"{k:03}.png" for k in range(12, 52)), "masks.csv"}
    for k in range(40):
        with Image.open(tmp_path / f"said/{k + 12:03}.png") as picture:
            assert picture.mode == "L"
            assert np.array_equal(np.asarray(picture), said.values[k])
    header, first, *_ = (tmp_path / "said/masks.csv").read_text().splitlines()
    counts = np.bincount(said.values[0].ravel(), minlength=3)
    assert header == "image,mask,pixels 0,pixels 1,pixels 2"
    assert first == ",".join(["012.png", "012.png", *map(str, counts)])
    capsys.readouterr()
    assert main([*call, "--out", str(tmp_path / "said")]) != 0
    assert "exists; choose another name" in capsys.readouterr().err
    assert main([*call, "--out", str(tmp_path / "said"), "--overwrite"]) == 0
    assert main(call) != 0
    assert "got masks of 64 pixels each: write them as pictures" in capsys.readouterr().err


@pytest.mark.slow
def test_masks_of_arrays_have_numbers_and_are_the_models(run: Path, tmp_path: Path) -> None:
    x, y = (each[12:52] for each in images())
    np.savez(tmp_path / "new.npz", x=x, y=y)
    one = fl.predict(run / "run", tmp_path / "new.npz")
    other = fl.predict(run / "run", f"images:{run}/images/test")
    assert np.array_equal(one.values, other.values)
    assert one.masks(tmp_path / "said").name == "masks.csv"
    assert (tmp_path / "said/000039.png").is_file()


@pytest.mark.slow
def test_new_images_with_masks_are_measured(run: Path, tmp_path: Path) -> None:
    x, y = (each[12:52] for each in images())
    np.savez(tmp_path / "new.npz", x=x, y=y)
    source = f"images:{run}/images/test?masks={run}/masks/test"
    one, other = (fl.evaluate_run(run / "run", data, resamples=50) for data in (source, tmp_path / "new.npz"))
    wanted = fl.History.read(run / "run").last("global_mean_iou")
    assert one.measures["mean_iou"].value == pytest.approx(wanted)
    assert one.measures == other.measures
    assert one.measures["mean_iou"].low < wanted < one.measures["mean_iou"].high
    with pytest.raises(fl.SettingError, match="a class for each pixel in the run and classes in"):
        fl.evaluate_run(run / "run", fl.from_arrays(x, np.arange(40) % 3))


def test_a_pixel_without_a_number_is_no_class(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictions.trained_model

    def broken(*args: Any, **more: Any) -> Any:
        one = found(*args, **more)
        params = fl.Params({n: t * (float("nan") if "classifier" in n else 1) for n, t in one.weights.params.items()})
        return dataclasses.replace(one, weights=dataclasses.replace(one.weights, params=params))

    monkeypatch.setattr(predictions, "trained_model", broken)
    with pytest.raises(fl.SettingError, match="are NaN or infinite for 40 of 40 rows, first row 0"):
        fl.predict(run / "run", f"images:{run}/images")


def test_many_classes_take_two_bytes_and_names_are_different(tmp_path: Path) -> None:
    values = np.arange(2 * 64).reshape(2, 8, 8) * 4
    write_masks(tmp_path, values, (), [str(k) for k in range(600)], False)
    with Image.open(tmp_path / "000001.png") as picture:
        assert np.array_equal(np.asarray(picture), values[1])
    with pytest.raises(fl.SettingError, match="images have different names, got 'a' twice"):
        write_masks(tmp_path, values, (Path("x/a.png"), Path("y/a.png")), ["0"], False)
    with pytest.raises(fl.SettingError, match="masks are predictions for each pixel"):
        write_masks(tmp_path, values[:, 0, 0], (), ["0"], False)
