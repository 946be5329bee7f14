"""Folders of images: CINIC-10, any others, and what is refused."""

from __future__ import annotations

import builtins
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.sources import load
from fedloom.sources.folders import _CLASSES
from fedloom.tables.file_checks import memory

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)


def write(path: Path, shape: tuple[int, ...] = (4, 5, 3), mode: str | None = None) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    picture = Image.fromarray(pixels)
    (picture if mode is None else picture.convert(mode)).save(path)
    return pixels


def write_cinic10(folder: Path, parts: tuple[str, ...] = ("train", "valid", "test")) -> None:
    for part in parts:
        for i, name in enumerate(_CLASSES):
            write(folder / part / name / f"{part}-{i}.png", (32, 32, 3))


def test_a_third_part_is_not_read_in_silence(tmp_path: Path) -> None:
    for part in ("train", "val", ".git", "__MACOSX"):
        write(tmp_path / part / "ant" / "1.png")
    with pytest.warns(UserWarning, match=r"train/ and test/ are read, and val/ not: rename the one to test on test/"):
        assert load("images", tmp_path).test is None


def test_classes_that_look_like_one_are_warned_of(tmp_path: Path) -> None:
    for name in ("ant", "Ant"):
        write(tmp_path / "train" / name / "1.png")
    with pytest.warns(UserWarning, match="one word has one spelling, got 'Ant' and 'ant' in 'train', each of which"):
        assert load("images", tmp_path).train.num_classes == 2


def test_images_by_class(tmp_path: Path) -> None:
    cat = write(tmp_path / "train" / "cat" / "b.png")
    first = write(tmp_path / "train" / "cat" / "a.bmp")
    write(tmp_path / "train" / "ant" / "1.PNG")
    write(tmp_path / "train" / "dog" / "x.png")
    dog = write(tmp_path / "test" / "dog" / "y.png")
    (tmp_path / "train" / "cat" / ".hidden").write_text("left out")
    train, test, owners, held_out = load("images", tmp_path)
    assert test is not None
    assert (train.y.tolist(), test.y.tolist(), train.num_classes, test.num_classes) == ([0, 1, 1, 2], [2], 3, 3)
    assert (train.shape, train.name, owners, held_out) == ((3, 4, 5), tmp_path.name, None, None)
    np.testing.assert_array_equal(train.x[1].numpy(), first.transpose(2, 0, 1))
    np.testing.assert_array_equal(train.x[2].numpy(), cat.transpose(2, 0, 1))
    np.testing.assert_array_equal(test.x[0].numpy(), dog.transpose(2, 0, 1))


def test_grey_images_without_a_test_set(tmp_path: Path) -> None:
    pixels = write(tmp_path / "train" / "a" / "1.png", (3, 3))
    train, test, _, _ = load("images", tmp_path)
    assert (test, train.shape) == (None, (1, 3, 3))
    np.testing.assert_array_equal(train.x[0, 0].numpy(), pixels)


def test_no_image_is_turned_as_its_exif_data_ask_for(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    (tmp_path / "train" / "a").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "train" / "a" / "1.png", exif=exif)
    np.testing.assert_array_equal(load("images", tmp_path).train.x[0].numpy(), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["cinic10", "cinic10_with_valid"])
@pytest.mark.parametrize("place", ["", "CINIC-10"])
def test_cinic10(tmp_path: Path, name: str, place: str) -> None:
    write_cinic10(tmp_path / place)
    grey = write(tmp_path / place / "train" / "airplane" / "a.png", (32, 32))
    train, test, _, _ = load(name, tmp_path)
    assert test is not None
    assert (len(train), len(test), train.num_classes) == (11 if name == "cinic10" else 21, 10, 10)
    assert train.y[:11].tolist() == [0, 0, *range(1, 10)]
    assert train.normalise.mean == (0.47889522, 0.47227842, 0.43047404)
    np.testing.assert_array_equal(train.x[0].numpy(), np.stack([grey] * 3))


def test_cinic10_needs_all_parts_and_classes(tmp_path: Path) -> None:
    write_cinic10(tmp_path, ("train", "test"))
    assert len(load("cinic10", tmp_path).train) == 10
    with pytest.raises(ValueError, match="valid: there must be a folder of this name, got none: unpack"):
        load("cinic10_with_valid", tmp_path)
    (tmp_path / "test" / "truck").rename(tmp_path / "test" / "lorry")
    with pytest.raises(ValueError, match=r"test: CINIC-10 has the classes airplane, .*truck, got airplane, .*lorry"):
        load("cinic10", tmp_path)


def png(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_bytes(b""), "must be a whole image, got UnidentifiedImageError"),
        (lambda p: p.write_bytes(p.read_bytes()[:-40]), "must be a whole image"),
        (lambda p: p.write_bytes(png(4, 4)), r"must have the shape \(3, 4, 5\), got \(3, 4, 4\): resize"),
        (lambda p: p.write_bytes(png(5, 4)), "must be a whole image"),
        (lambda p: p.write_bytes(png(20_000, 20_000)), "got DecompressionBomb"),
        (lambda p: p.write_bytes(png(10_000, 10_000)), "got DecompressionBombWarning"),
        (lambda p: p.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n"), "must be a whole image"),
        (lambda p: write(p, (4, 5)), r"must have the shape \(3, 4, 5\), got \(1, 4, 5\)"),
        (lambda p: write(p, mode="RGBA"), "must be grey .L. or in colour .RGB., got mode RGBA: convert"),
        (lambda p: write(p, mode="P"), "got mode P"),
        (lambda p: p.rename(p.with_suffix(".tiff")), r"images end in \.png, .*, got 2\.tiff"),
        (lambda p: (p.unlink(), p.mkdir()), r"images end in \.png, .*, got 2\.png"),
        (lambda p: (p.unlink(), p.symlink_to("/etc/hostname")), "links must stay inside .* got /etc/hostname"),
        (lambda p: (p.unlink(), p.symlink_to("../../../out.png")), r"links must stay inside .* got \.\./\.\./\.\./out"),
        (lambda p: (p.unlink(), p.symlink_to(p.name)), r"links must lead to something, got 2\.png"),
        (lambda p: (p.unlink(), p.symlink_to("3.png")), r"links must lead to something, got 3\.png"),
        (lambda p: (p.parent.parent / "notes.txt").write_text("x"), "one folder for each class and nothing else"),
        (lambda p: (p.parent.parent / "empty").mkdir(), "the folder of a class must hold images, got none"),
        (lambda p: write(p.parents[2] / "test" / "new" / "1.png"), "test/ must hold classes of train/, a, got new"),
    ],
)
def test_what_is_refused(tmp_path: Path, spoil: Any, message: str) -> None:
    root = tmp_path / "data"
    write(root / "train" / "a" / "1.png")
    write(root / "train" / "a" / "2.png")
    write(tmp_path / "out.png")
    spoil(root / "train" / "a" / "2.png")
    with pytest.raises(ValueError, match=message):
        load("images", root)


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    pixels = write(tmp_path / "train" / "a" / "1.png")
    (tmp_path / "train" / "a" / "2.png").symlink_to("1.png")
    np.testing.assert_array_equal(load("images", tmp_path).train.x[1].numpy(), pixels.transpose(2, 0, 1))


def test_what_is_no_folder_of_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold train/<class>/ with images, got no train/"):
        load("images", tmp_path)
    with pytest.raises(ValueError, match="got no such folder: give the folder that holds train/"):
        load("images", tmp_path / "nowhere")
    write(tmp_path / "classes" / "ant" / "1.png")
    with pytest.raises(ValueError, match="got folders with images alone: move the folders of classes into train/"):
        load("images", tmp_path / "classes")
    write(tmp_path / "sites" / "kiel" / "train" / "ant" / "1.png")
    with pytest.raises(
        ValueError, match=r"got folders with train/ in them: name the sites, each a client: 'images:.*/\*'"
    ):
        load("images", tmp_path / "sites")
    write(tmp_path / "flat" / "kiel" / "ant" / "1.png")
    with pytest.raises(ValueError, match=r"got folders of folders, .*: move the classes .* sites: 'images:.*flat/\*'"):
        load("images", tmp_path / "flat")
    (tmp_path / "empty" / "train").mkdir(parents=True)
    with pytest.raises(ValueError, match="must hold one folder for each class, got none"):
        load("images", tmp_path / "empty")


def test_a_folder_of_images_of_each_site_is_a_client(tmp_path: Path) -> None:
    pixels = [
        write(tmp_path / "s" / place) for place in ("kiel/train/b/1.png", "kiel/test/b/2.png", "ulm/train/a/3.png")
    ]
    pixels.append(write(tmp_path / "s" / "ulm/train/b/4.png"))
    (tmp_path / "s" / "notes.txt").write_text("no folder")
    for source in (f"images:{tmp_path}/s/*", f"images:{tmp_path}/s/ulm,{tmp_path}/s/kiel"):
        with pytest.warns(UserWarning, match="kiel has no training image of a"):
            train, test, owners, held_out = catalogue.data(source)
        assert (train.owners, train.classes, train.name) == (("kiel", "ulm"), ("a", "b"), "s")
        assert owners is not None
        assert held_out is not None
        assert test is not None
        assert (owners.tolist(), held_out.tolist(), train.y.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 1])
        np.testing.assert_array_equal(train.x.numpy(), np.stack(pixels).transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(test.x.numpy(), train.x.numpy()[1:2])
        assert catalogue.names_clients(source)
        assert Experiment().changed("data.source", source).data.partition == "natural"
    assert not catalogue.names_clients(f"images:{tmp_path}/s/kiel")
    write(tmp_path / "s" / "Kiel" / "train" / "B" / "1.png", (9, 5, 3))
    with pytest.raises(
        ValueError, match=r"all images must have one shape, got \(3, 9, 5\) in Kiel and \(3, 4, 5\) in ulm"
    ):
        catalogue.data(f"images:{tmp_path}/s/*")
    for wrong in (f"{tmp_path}/s/u*", f"{tmp_path}/s/ulm,{tmp_path}/s/ulm"):
        with pytest.raises(ValueError, match="sites are two folders or more, of different names, got ulm"):
            catalogue.data(f"images:{wrong}")


def test_all_images_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.sources.folders.memory", lambda: 150)
    write(tmp_path / "train" / "a" / "1.png")
    write(tmp_path / "train" / "a" / "2.png")
    assert len(load("images", tmp_path).train) == 2
    write(tmp_path / "test" / "a" / "3.png")
    with pytest.raises(ValueError, match=r"the 3 images must take at most 150 bytes, .* got 180: resize them, or use"):
        load("images", tmp_path)


def test_bombs_are_counted_by_their_headers(tmp_path: Path) -> None:
    """Files that are small for themselves; nothing is unpacked, and nothing is allocated, before all are counted."""
    for i in range(194):
        path = tmp_path / "train" / "a" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(9400, 9400))  # 265 MB
    with pytest.raises(ValueError, match=r"the 194 images must take at most \d+ bytes, half of the memory, unpacked"):
        load("images", tmp_path)


def test_what_a_chunk_promises_is_not_reserved(tmp_path: Path) -> None:
    """A file of 100 bytes that promises 4 GiB, read by a process that has half a GiB to spare."""
    resource = pytest.importorskip("resource")
    write(tmp_path / "train" / "a" / "1.png")
    path = tmp_path / "train" / "a" / "1.png"
    content = path.read_bytes()
    at = content.index(b"IDAT") - 4
    path.write_bytes(content[:at] + b"\xff\xff\xff\xf0" + content[at + 4 :])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, limits[1]))
    try:
        load("images", tmp_path)  # all the bytes of the image are there
    except ValueError as error:
        assert "MemoryError" not in str(error)  # noqa: PT017
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_room_is_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine's or of its container's, whichever is less, and at most 16 GiB."""
    assert 2**26 < memory() <= 2**34
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**20}
    limit = ["max"]
    monkeypatch.setattr("fedloom.tables.file_checks.os.sysconf", pages.__getitem__)
    monkeypatch.setattr(Path, "read_text", lambda self: limit[0])
    assert memory() == 2**31
    limit[0] = "1073741824"
    assert memory() == 2**29
    pages["SC_PHYS_PAGES"] = 2**30
    limit[0] = "max"
    assert memory() == 2**34


def test_pillow_is_named_if_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train" / "a" / "1.png")
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"needs Pillow: pip install '<PATH>\[images\]', where <PATH> is fedloom's"):
        load("images", tmp_path)
