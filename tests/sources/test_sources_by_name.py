"""Loaders of published files: small made files in every format, every refusal, and the real files where they are."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedloom.data import Examples
from fedloom.sources import load

Array = npt.NDArray[np.uint8]
RNG = np.random.default_rng(0)


def words(value: object) -> str:
    """Names cases by their messages: the time in gzip headers would name them anew in every process."""
    return value if isinstance(value, str) else "file"


def idx(array: Array) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def grey(n: int) -> Array:
    return RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)


def write_idx(
    folder: Path, prefixes: tuple[str, str] = ("train-", "t10k-"), first: int = 0, dot: bool = False, gz: bool = False
) -> dict[str, Array]:
    """Write five training and three test examples; return the arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for prefix, n in zip(prefixes, (5, 3), strict=True):
        arrays[f"{prefix}images-idx3-ubyte"] = grey(n)
        arrays[f"{prefix}labels-idx1-ubyte"] = np.arange(first, first + n, dtype=np.uint8)
    for name, array in arrays.items():
        name = name.replace("-idx", ".idx") if dot else name
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(idx(array)) if gz else idx(array))
    return arrays


class Python2(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes and text alike as Python 2 wrote its str."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_str(self, obj: str | bytes) -> None:
        raw = obj if isinstance(obj, bytes) else obj.encode("latin1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(obj)

    dispatch[str] = dispatch[bytes] = save_str


def python2(value: object) -> bytes:
    file = io.BytesIO()
    Python2(file, protocol=2).dump(value)
    # The module was called so when the files were published.
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def colour(n: int) -> Array:
    return RNG.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


def batch(n: int, first: int = 0, key: str = "labels") -> dict[str, Any]:
    return {"data": colour(n).reshape(n, 3072), key: list(range(first, first + n)), "filenames": ["a.png"] * n}


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def write_cifar10(folder: Path, dump: Callable[[object], bytes] = python2) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = [batch(2, first=i) for i in range(6)]
    for name, content in zip(BATCHES, batches, strict=True):
        (folder / name).write_bytes(dump(content))
    return batches


def both(name: str, folder: str | Path) -> tuple[Examples, Examples]:
    """Training and test examples of a source that knows no natural clients."""
    dataset = load(name, folder)
    assert dataset.test is not None
    assert (dataset.owners, dataset.held_out) == (None, None)
    return dataset.train, dataset.test


# ---- IDX


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize(
    ("name", "place"), [("mnist", "MNIST/raw"), ("mnist", "."), ("fashion_mnist", "FashionMNIST/raw")]
)
def test_idx_files_in_every_spelling(tmp_path: Path, name: str, place: str, dot: bool, gz: bool) -> None:
    arrays = write_idx(tmp_path / place, dot=dot, gz=gz)
    train, test = both(name, tmp_path)
    np.testing.assert_array_equal(train.x.numpy()[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(test.x.numpy()[:, 0], arrays["t10k-images-idx3-ubyte"])
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2])
    assert train.x.dtype == torch.uint8
    assert (train.num_classes, train.name, train.shape) == (10, name, (1, 28, 28))
    assert train.normalise.mean == ((0.1307,) if name == "mnist" else (0.2860,))


def test_the_layout_folder_goes_before_the_flat_one(tmp_path: Path) -> None:
    write_idx(tmp_path)
    arrays = write_idx(tmp_path / "MNIST" / "raw")
    np.testing.assert_array_equal(load("mnist", tmp_path)[0].x.numpy()[:, 0], arrays["train-images-idx3-ubyte"])


@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("balanced", 0, 47), ("byclass", 0, 62)])
def test_emnist_is_upright_and_counts_from_0(tmp_path: Path, split: str, first: int, classes: int) -> None:
    prefixes = (f"emnist-{split}-train-", f"emnist-{split}-test-")
    arrays = write_idx(tmp_path / "EMNIST" / "raw", prefixes, first, gz=True)
    train, test = both(f"emnist-{split}", str(tmp_path))
    stored = arrays[f"emnist-{split}-train-images-idx3-ubyte"]
    np.testing.assert_array_equal(train.x.numpy()[:, 0], stored.swapaxes(1, 2))
    assert train.y.tolist() == [0, 1, 2, 3, 4]
    assert test.num_classes == classes


def test_letters_a_to_j_are_black_on_white(tmp_path: Path) -> None:
    arrays = write_idx(tmp_path, ("emnist-letters-train-", "emnist-letters-test-"), first=9)  # i, j, k, l, m
    for part, name in zip(both("emnist_letters_aj", tmp_path), ("train", "test"), strict=True):
        assert (part.num_classes, part.name, part.y.tolist()) == (10, "emnist_letters_aj", [8, 9])
        stored = arrays[f"emnist-letters-{name}-images-idx3-ubyte"][:2].swapaxes(1, 2)[:, None]
        inputs = part.normalise(part.x, torch.float64).numpy()
        np.testing.assert_allclose(inputs, 1 - stored / 255, atol=1e-12)


GOOD_X, GOOD_Y = idx(grey(5)), idx(np.arange(5, dtype=np.uint8))
HUGE = struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 28, 28)
MANY = struct.pack(">4B3I", 0, 0, 8, 3, 10**6, 28, 28)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (b"", GOOD_Y, "start with 00 00 08 03, got nothing"),
        (b"\x00\x00\x0d\x03" + GOOD_X[4:], GOOD_Y, "start with 00 00 08 03, got 00 00 0d 03"),
        (GOOD_Y, GOOD_Y, "images in IDX format start with"),
        (GOOD_X, GOOD_X, "labels in IDX format start with 00 00 08 01"),
        (GOOD_X[:9], GOOD_Y, "header takes 16 bytes, got 9"),
        (GOOD_X[:-1], GOOD_Y, "promise at most the 3919 bytes that the file can hold, got 3920"),
        (GOOD_X + b"\x00", GOOD_Y, "must end after the 3920 bytes"),
        (HUGE, GOOD_Y, "promise at most the 0 bytes"),
        (idx(np.zeros((5, 28, 27), np.uint8)), GOOD_Y, r"\(N, 28, 28\) with N > 0, got \(5, 28, 27\)"),
        (idx(np.zeros((0, 28, 28), np.uint8)), GOOD_Y, r"got \(0, 28, 28\)"),
        (GOOD_X, idx(np.arange(4, dtype=np.uint8)), "one label for each of the 5 examples, got 4 labels"),
        (GOOD_X, idx(np.arange(6, 11, dtype=np.uint8)), r"labels must be in 0\.\.9, got 6\.\.10"),
    ],
    ids=words,
)
def test_broken_idx_files_are_refused(tmp_path: Path, images: bytes, labels: bytes, message: str) -> None:
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(ValueError, match=message) as caught:
        load("mnist", tmp_path)
    assert str(tmp_path / "train-") in str(caught.value)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (GOOD_X, "one whole gzip stream"),
        (gzip.compress(GOOD_X)[:-20], "one whole gzip stream"),
        (gzip.compress(GOOD_X)[:-8] + bytes(8), "one whole gzip stream"),
        (gzip.compress(GOOD_X)[:10] + b"\xff" * 50, "one whole gzip stream"),
        (gzip.compress(GOOD_X) + b"more", "one whole gzip stream"),
        (gzip.compress(GOOD_X[:-1]), "3920 bytes must follow the header, got 3919"),
        (gzip.compress(GOOD_X + bytes(10**8)), "must end after the 3920 bytes"),  # a bomb after the images
        (gzip.compress(HUGE + bytes(10**8)), "promise at most the"),  # a bomb that the header admits to
        (gzip.compress(MANY), "promise at most the"),
    ],
    ids=words,
)
def test_broken_gzip_files_are_refused(tmp_path: Path, packed: bytes, message: str) -> None:
    write_idx(tmp_path, gz=True)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed)
    with pytest.raises(ValueError, match=message):
        load("mnist", tmp_path)


def test_letters_do_not_start_at_0_in_the_files(tmp_path: Path) -> None:
    write_idx(tmp_path, ("emnist-letters-train-", "emnist-letters-test-"), first=0)
    with pytest.raises(ValueError, match=r"labels must be in 1\.\.26, got 0\.\.4"):
        load("emnist_letters", tmp_path)


# ---- CIFAR


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "."])
def test_cifar10_pickles(tmp_path: Path, place: str) -> None:
    batches = write_cifar10(tmp_path / place)
    train, test = both("cifar10", tmp_path)
    pixels = np.concatenate([b["data"] for b in batches])
    np.testing.assert_array_equal(train.x.flatten(1).numpy(), pixels[:10])
    np.testing.assert_array_equal(test.x.flatten(1).numpy(), pixels[10:])
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 1, 2, 2, 3, 3, 4, 4, 5], [5, 6])
    assert (train.shape, train.num_classes, train.normalise.std[2]) == ((3, 32, 32), 10, 0.26158768)


def test_pickles_of_python_3_and_in_fortran_order(tmp_path: Path) -> None:
    def dump(value: object) -> bytes:
        assert isinstance(value, dict)
        return pickle.dumps({**value, "data": np.asfortranarray(value["data"])}, protocol=4)

    batches = write_cifar10(tmp_path, dump)
    np.testing.assert_array_equal(both("cifar10", tmp_path)[1].x.flatten(1).numpy(), batches[5]["data"])


def test_grey_images_are_the_luma_of_coloured_ones(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    for colours, grey in zip(both("cifar10", tmp_path), both("cifar10_grey", tmp_path), strict=True):
        luma = (colours.x.double() * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
        assert (grey.shape, grey.x.dtype, grey.name) == ((1, 32, 32), torch.uint8, "cifar10_grey")
        assert float((grey.x - luma).abs().max()) <= 0.5 + 1e-6
        assert torch.equal(grey.y, colours.y)
        torch.testing.assert_close(grey.normalise(grey.x, torch.float32), grey.x / 255)


def test_cifar100_pickles_give_the_fine_labels(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    for name, n in (("train", 4), ("test", 2)):
        content = {**batch(n, first=90, key="fine_labels"), "coarse_labels": [0] * n}
        (tmp_path / "cifar-100-python" / name).write_bytes(python2(content))
    train, test = both("cifar100", tmp_path)
    assert (train.y.tolist(), test.y.tolist(), train.num_classes) == ([90, 91, 92, 93], [90, 91], 100)
    assert train.normalise.mean == (0.5071, 0.4865, 0.4409)


def test_binary_versions(tmp_path: Path) -> None:
    ten, hundred = tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-100-binary"
    ten.mkdir()
    hundred.mkdir()
    x = colour(2)
    for i, name in enumerate(BATCHES):
        (ten / f"{name}.bin").write_bytes(b"".join(bytes([i + j]) + x[j].tobytes() for j in range(2)))
    for name in ("train", "test"):
        (hundred / f"{name}.bin").write_bytes(b"".join(bytes([19 - j, 99 - j]) + x[j].tobytes() for j in range(2)))
    train, test = both("cifar10", tmp_path)
    np.testing.assert_array_equal(train.x.numpy(), np.concatenate([x] * 5))
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 1, 2, 2, 3, 3, 4, 4, 5], [5, 6])
    train, test = both("cifar100", tmp_path)
    np.testing.assert_array_equal(test.x.numpy(), x)
    assert train.y.tolist() == test.y.tolist() == [99, 98]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "whole records of 3074 bytes, got 0 bytes"),
        (bytes(3073), "whole records of 3074 bytes, got 3073 bytes"),
        (bytes(3075), "whole records of 3074 bytes, got 3075 bytes"),
        (bytes([20, 0]) + bytes(3072), r"labels must be in 0\.\.19, got 20\.\.20"),
        (bytes([0, 100]) + bytes(3072), r"labels must be in 0\.\.99, got 100\.\.100"),
    ],
    ids=words,
)
def test_broken_records_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "train.bin").write_bytes(content)
    (tmp_path / "test.bin").write_bytes(bytes(3074))
    with pytest.raises(ValueError, match=message):
        load("cifar100", tmp_path)


class Runs:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, protocol: int) -> None:
    write_cifar10(tmp_path)
    content = {**batch(2), "more": Runs(tmp_path / "ran")}
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps(content, protocol=max(protocol, 3) if protocol else 0))
    with pytest.raises(ValueError, match=r"data_batch_3: .* got the (global (posix|nt)\.mkdir|opcode DICT)"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "ran").exists()


# Globals with a dotted name, reached through an admitted module, and by way of the extension registry.
@pytest.mark.parametrize(
    ("code", "named"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", r"os\.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", r"builtins\.eval"),
        (b"cnumpy.core.multiarray\nfromfile\n.", r"numpy\.core\.multiarray\.fromfile"),
        (b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.", r"numpy\.ndarray\.__init__"),
    ],
    ids=words,
)
def test_other_globals_are_named(tmp_path: Path, code: bytes, named: str) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(code)
    with pytest.raises(ValueError, match=f"test_batch: .*the global {named}: do not load it"):
        load("cifar10", tmp_path)


WIDE = {"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]}
SHORT = python2({**batch(2)}).replace(b"M\x00\x0c", b"M\x00\x0d", 1)
NDARRAY = b"\x80\x02cnumpy\nndarray\n(\x8a\x05\xff\xff\xff\xff\x7ftR."  # ndarray(2**39 - 1)


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the pickle may hold .*, got its end: fetch the file again"),
        (b"not a pickle", "got the opcode 6e: do not load it"),
        (b"\xffmore", "got the opcode ff: do not load it"),
        (python2(batch(2))[:-1], "got its end"),
        (python2(batch(2))[:2000], "must be a whole pickle"),
        (python2(batch(2)) + b"\x00", "must end where its pickle does"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "dictionary with 'data' and 'labels', got NoneType"),
        (b"\x80\x04\x96" + b"\xff" * 7 + b"\x7f.", "got the opcode BYTEARRAY8"),
        (b"\x80\x03B\xff\xff\xff\x7f.", "must be a whole pickle"),
        (NDARRAY, "got the opcode LONG1"),
        (b"\x80\x02cnumpy\nndarray\nK\x01\x85R.", "may make NumPy arrays only, got another call"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "got the opcode NEWOBJ"),
        (b"\x80\x02K\x01K\x01\x85R.", "may make NumPy arrays only, got another call"),
        (b"\x80\x02]}b.", "must fill what it has made, got list"),
        (b"\x80\x02)K\x01a.", "must fill what it has made, got tuple"),
        (b"\x80\x02]U\x01aK\x01s.", "must fill what it has made, got list"),
        (b"\x80\x02})K\x01s.", "keys of the pickle must be text, got another"),
        (b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.", "keys of the pickle must be text"),
        (b"\x80\x02)" + b"\x85" * 200_000 + b".", "'data' and 'labels', got tuple"),
        (b"\x80\x02]" + b"q\x00h\x00h\x00h\x00\x87" * 100 + b".", "'data' and 'labels', got tuple"),
        (b"\x80\x04)" + b"\x94h\x00h\x00\x86" * 100 + b"\x8c\x01a\x93.", r"the global \?\.a"),
        (b"\x80\x04}\x8f(K\x01\x90.", "got the opcode EMPTY_SET"),
        (b"\x80\x02N2.", "got the opcode DUP"),
        (b"\x80\x02" + b"}" * 2**20 + b".", "may take 262144 steps, got more"),
        (b"\x80\x02cnum\\qpy\nndarray\n.", r"the global num\\qpy\.ndarray"),
        (python2([1, 2]), "dictionary with 'data' and 'labels', got list"),
        (python2(batch(2, key="fine_labels")), "dictionary with 'data' and 'labels', got .'data', 'filenames', 'fine"),
        (python2({"data": [1], "labels": [1]}), r"uint8 array \(N, 3072\) with N > 0, got list"),
        (python2(WIDE), r"uint8 array \(N, 3072\) with N > 0, got uint8 of the shape \(2, 3071\)"),
        (python2({**batch(2), "data": np.zeros((2, 3072), np.int64)}), r"got int64 of the shape \(2, 3072\)"),
        (python2({**batch(2), "data": np.zeros((2, 3072), object)}), "got another array"),
        (python2({**batch(0)}), r"got uint8 of the shape \(0, 3072\)"),
        (SHORT, r"got 6144 bytes for the shape \(2, 3328\)"),
        (python2({**batch(2), "labels": [0]}), "one label for each of the 2 examples, got 1 labels"),
        (python2({**batch(2), "labels": [0, 10]}), r"labels must be in 0\.\.9, got 0\.\.10"),
        (python2({**batch(2), "labels": [-1, 0]}), r"labels must be in 0\.\.9, got -1\.\.0"),
        (python2({**batch(2), "labels": [0, 1.5]}), "got the opcode BINFLOAT"),
        (python2({**batch(2), "labels": [0, 2**80]}), "got the opcode LONG1"),
        (python2({**batch(2), "labels": ["0", "1"]}), "must be a list of small integers"),
        (python2({**batch(2), "labels": "01"}), "must be a list of small integers, got str"),
    ],
    ids=words,
)
def test_broken_pickles_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load("cifar10", tmp_path)
    assert str(tmp_path / "data_batch_2") in str(caught.value)


def test_a_shape_that_its_bytes_do_not_fill_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    good = python2(batch(2))
    assert good.count(b"K\x02M\x00\x0c") == 1
    (tmp_path / "test_batch").write_bytes(good.replace(b"K\x02M\x00\x0c", b"J\xff\xff\xff\x7fM\x00\x0c"))
    with pytest.raises(ValueError, match=r"got 6144 bytes for the shape \(2147483647, 3072\)"):
        load("cifar10", tmp_path)


def test_files_beyond_the_limit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.tables.file_checks.LIMIT", 3000)
    write_cifar10(tmp_path)
    write_idx(tmp_path)
    with pytest.raises(ValueError, match="data_batch_1: the file must be at most 3000 bytes"):
        load("cifar10", tmp_path)
    with pytest.raises(ValueError, match="promise at most the 3000 bytes"):
        load("mnist", tmp_path)


# ---- names and folders


def test_missing_files_are_listed_with_their_folders(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="nothing is downloaded") as caught:
        load("mnist", tmp_path)
    assert f" t10k-labels-idx1-ubyte in {tmp_path / 'MNIST' / 'raw'};" in str(caught.value)
    assert f"t10k-labels-idx1-ubyte in {tmp_path}:" in str(caught.value)
    with pytest.raises(ValueError, match=r"data_batch_5, test_batch in .*cifar-10-batches-py; data_batch_1\.bin"):
        load("cifar10", tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["stl10", "emnist", "emnist_", "letters", "", "MNIST"])
def test_unknown_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"data set with a loader, got .*use one of fashion_mnist_small, fashion_mnist_pairs, mnist, fash",
    ):
        load(name, tmp_path)


# ---- the real files


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "place", "sizes", "first", "fingerprints"),
    [
        ("mnist", "MNIST/raw", (60000, 10000), [5, 0, 4, 1], ("46bdd77a24740b09", "a69f5d8bfd059284")),
        (
            "fashion_mnist",
            "FashionMNIST/raw",
            (60000, 10000),
            [9, 0, 0, 3],
            ("93bfe70f510a6a9f", "1b86be2928b13a46"),
        ),
        ("cifar10", "cifar-10-batches-py", (50000, 10000), [6, 9, 9, 4], ("c37360824cdf8e89", "41ba0ec18dbd5bd4")),
    ],
)
def test_the_published_files(
    name: str, place: str, sizes: tuple[int, int], first: list[int], fingerprints: tuple[str, str]
) -> None:
    root = os.environ.get("FEDLOOM_DATA")
    if root is None or not (Path(root) / place).is_dir():
        pytest.skip(f"needs FEDLOOM_DATA, a folder with {place}")
    train, test = both(name, root)
    assert (len(train), len(test)) == sizes
    assert train.y[:4].tolist() == first
    # Recorded from files with the published MD5 sums.
    assert (train.fingerprint(), test.fingerprint()) == fingerprints
    # The constants are the statistics of the training images.
    x = train.x.double().div(255).transpose(0, 1).flatten(1)
    for c in range(len(x)):
        assert x[c].mean().item() == pytest.approx(train.normalise.mean[c], abs=1e-4)
        assert x[c].std().item() == pytest.approx(train.normalise.std[c], abs=1e-4)
