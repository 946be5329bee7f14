"""Folders of images with masks: what is read, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data.inputs import IGNORED
from fedloom.experiments import catalogue
from fedloom.sources import load
from masks_made import images, write

Image = pytest.importorskip("PIL.Image")


def counted(y: Any) -> torch.Tensor:
    return torch.from_numpy(np.where(y == 255, IGNORED, y.astype(int))).to(torch.int8)


@pytest.mark.parametrize("mode", ["L", "P"])
def test_masks_have_the_names_of_their_images(tmp_path: Path, mode: str) -> None:
    x, y = write(tmp_path, of="train", mode=mode)
    more, theirs = write(tmp_path, 6, 3, of="test", mode=mode)
    found = catalogue.data(f"images:{tmp_path}/images?masks={tmp_path}/masks")
    assert found.test is not None
    assert torch.equal(found.train.x[:, 0], torch.from_numpy(x))
    assert torch.equal(found.test.x[:, 0], torch.from_numpy(more))
    assert torch.equal(found.train.y, counted(y))
    assert torch.equal(found.test.y, counted(theirs))
    assert (found.train.num_classes, found.test.num_classes, found.owners) == (3, 3, None)


def test_a_flat_folder_is_all_to_train_on_and_classes_may_have_names(tmp_path: Path) -> None:
    _, y = write(tmp_path)
    found = load("images", tmp_path / "images", masks=str(tmp_path / "masks"), classes="a,b,c,d")
    assert found.test is None
    assert found.train.classes == ("a", "b", "c", "d")
    assert torch.equal(found.train.y, counted(y))
    with pytest.raises(ValueError, match=r"classes of pixels are 0 to 3 \(classes\), got 255: mend the mask"):
        load("images", tmp_path / "images", masks=str(tmp_path / "masks"), classes="4", ignored="none")


def test_each_site_is_a_client_whose_test_images_are_held_out(tmp_path: Path) -> None:
    write(tmp_path, 0, 4, of="b/train")
    write(tmp_path, 4, 2, of="b/test")
    write(tmp_path, 6, 3, of="a")
    source = f"images:{tmp_path}/images/*?masks={tmp_path}/masks/*"
    found = catalogue.data(source)
    assert found.train.owners == ("a", "b")
    assert found.owners is not None
    assert found.held_out is not None
    assert found.owners.tolist() == [0] * 3 + [1] * 6
    assert np.flatnonzero(found.held_out).tolist() == [7, 8]
    assert torch.equal(found.train.y, counted(images()[1][[6, 7, 8, 0, 1, 2, 3, 4, 5]]))
    (tmp_path / "masks/b").rename(tmp_path / "masks/c")
    with pytest.raises(
        ValueError, match="sites have folders of the same names for images and masks, got a, b and a, c"
    ):
        catalogue.data(source)


def damage(folder: Path, what: str) -> None:
    mask = folder / "masks/train/001.png"
    if what == "lacks":
        mask.unlink()
    elif what == "alone":
        shutil.copy(mask, folder / "masks/train/9.png")
    elif what == "size":
        Image.fromarray(np.zeros((8, 9), np.uint8)).save(mask)
    elif what == "colour":
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(mask)
    elif what == "kind":
        mask.rename(mask.with_suffix(".jpg"))
    elif what == "cut":
        mask.write_bytes(mask.read_bytes()[:60])
    elif what == "twice":
        shutil.copy(folder / "images/train/001.png", folder / "images/train/001.bmp")
    elif what == "values":
        Image.fromarray(np.full((8, 8), 7, np.uint8)).save(mask)
    elif what == "one":
        for each in mask.parent.iterdir():
            Image.fromarray(np.uint8(np.eye(8) * 255)).save(each)
    elif what == "none":
        shutil.rmtree(folder / "masks")
    elif what == "test":
        (folder / "images/test").mkdir()
    elif what == "empty":
        for each in (*mask.parent.iterdir(), *(folder / "images/train").iterdir()):
            each.unlink()


@pytest.mark.parametrize(
    ("what", "said", "message"),
    [
        ("lacks", "", r"each image must have a mask of its name, a PNG file, got none for 001.png: add what"),
        ("alone", "", r"each mask must have an image of its name, got none for 9.png"),
        ("size", "", r"001.png: a mask has the size of its image, 8 x 8, got 8 x 9: resize it \(nearest\)"),
        ("colour", "", r"a mask holds class numbers, grey or by a palette of at most 256, got mode RGB: save the num"),
        ("kind", "", r"it must be a file that ends in .png, got 001.jpg"),
        ("cut", "", "001.png: the file must be a whole PNG image, got"),
        ("twice", "", "files have different names without their endings, got 001.bmp"),
        ("values", "&classes=7", r"classes of pixels are 0 to 6 \(classes\), or 255 where none counts, got 7: mend"),
        ("values", "", r"masks must hold every class from 0, got 0, 1, 2, 7: renumber them, or say how many"),
        ("one", "", r"masks must hold two classes or more, got \[0\] beside 255, which counts nowhere"),
        ("none", "", "masks lie in a folder as their images do, got no such folder"),
        ("test", "", "there must be a folder of this name, got none: put images, or masks, into it"),
        ("empty", "", "the folder must hold images, got none"),
        ("", "&ignored=some", "ignored is the value that counts nowhere, or none, got 'some'"),
    ],
)
def test_what_breaks_a_rule_is_refused(tmp_path: Path, what: str, said: str, message: str) -> None:
    write(tmp_path, of="train")
    damage(tmp_path, what)
    with pytest.raises(ValueError, match=message):
        catalogue.data(f"images:{tmp_path}/images?masks={tmp_path}/masks{said}")


def test_classes_of_pixels_need_masks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="classes and ignored are said of masks, got no masks: name their folder"):
        load("images", tmp_path, classes="3")
