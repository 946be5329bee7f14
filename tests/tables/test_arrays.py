"""NumPy archives: read without trust. What is no set of examples is refused on the command line's tests too."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.tables import read_npz
from fedloom.tables.arrays import read_arrays


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def archive(path: Path, content: bytes, kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("a.npy", content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_like_that_of_keras(tmp_path: Path, save: object) -> None:
    x, y = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28), np.array([7, 9], np.uint8)
    assert callable(save)
    save(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    train, test, owners, held_out = read_npz(tmp_path / "mnist.npz", every_class=False)
    assert test is not None
    assert (train.shape, train.num_classes, test.num_classes, train.name) == ((1, 28, 28), 10, 10, "mnist")
    assert (len(test), owners, held_out, train.x.dtype) == (1, None, None, torch.uint8)
    np.testing.assert_array_equal(train.x[:, 0].numpy(), x)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_a_third_split_is_not_read_in_silence(tmp_path: Path, kind: type) -> None:
    x, y = np.ones((4, 3), kind), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y, x_val=x, y_val=y)
    with pytest.warns(UserWarning, match=r"x_train, .* are read, and x_val, y_val not: save the ones to test on as x_"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.arange(15) % 5}, "a.npz: x_train and y_train must have the same number of rows, got 20 and 15"),
        ({"x_test": np.ones((9, 4), np.float32)}, "a.npz: x_test and y_test must have the same number of rows, got 9"),
        ({"x_test": np.ones((10, 3), np.float32)}, r"must have one shape, got \(4,\) and \(3,\): save the same"),
        (
            {"x_train": np.ones((20, 8, 8), np.uint8), "x_test": np.ones((10, 8, 9), np.uint8)},
            r"must have one shape, got \(8, 8\) and \(8, 9\): resize the images of one",
        ),
        (
            {"y_test": np.array([0, 1, 2, 3, 4, 0, 1, 9, 3, 4])},
            r"got 6 different ones up to 9, without 5 \(9 in row 7 of y_test\): mend a label that is wrong, or s",
        ),
        ({"y_train": np.array([7, *range(5), 8] * 3)[:20] % 9}, "without 5: mend a label"),  # too many to be damaged
        ({"y_train": np.where(np.arange(20) == 3, 7, np.arange(20) % 5)}, r"without 5 \(7 in row 3 of y_train\): mend"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_named_with_their_file(
    change: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    arrays = {"x_train": np.ones((20, 4), np.float32), "y_train": np.arange(20) % 5}
    arrays |= {"x_test": np.ones((10, 4), np.float32), "y_test": np.arange(10) % 5}
    np.savez(tmp_path / "a.npz", **{**arrays, **change})
    with pytest.raises(ValueError, match=message):
        read_npz(tmp_path / "a.npz")


def test_token_arrays_that_do_not_fit_are_named_with_their_file(tmp_path: Path) -> None:
    ids = np.ones((6, 4), np.int32)
    np.savez(tmp_path / "a.npz", x_train=ids, y_train=np.arange(5), x_test=ids, y_test=np.arange(6))
    with pytest.raises(ValueError, match=r"a.npz: x_train and y_train must have the same number of rows, got 6 and 5"):
        read_npz(tmp_path / "a.npz")


def test_a_file_may_name_the_client_of_each_row(tmp_path: Path) -> None:
    x, y, names = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]), np.array(["kiel", "bonn", "kiel", "bonn"])
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    for given in (names, np.array([7, 3, 7, 3])):
        np.savez(tmp_path / "a.npz", **arrays, clients_train=given)
        train, _, owners, held_out = read_npz(tmp_path / "a.npz")
        assert owners is not None
        assert ([train.owners[k] for k in owners], held_out) == (list(map(str, given)), None)
    np.savez(tmp_path / "a.npz", **arrays, clients_train=np.array(["kiel", "Kiel", "bonn", "bonn"]))
    with pytest.warns(UserWarning, match="one word has one spelling, got 'Kiel' and 'kiel' in 'clients_train', each"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **arrays, clients_train=names[:3])
    with pytest.raises(ValueError, match=r"clients_train must name the client of each of 4 rows, got \(3,\): save as"):
        read_npz(tmp_path / "a.npz")


def test_a_file_may_have_no_test_examples(tmp_path: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, clients_train=np.array(["a", "b", "a", "a"]))
    train, test, owners, _ = read_npz(tmp_path / "a.npz")
    assert owners is not None
    assert (train.x.tolist(), train.y.tolist(), owners.tolist(), test) == (x.tolist(), y.tolist(), [0, 1, 0, 0], None)
    np.savez(tmp_path / "a.npz", x=x, y=2 * y)
    with pytest.raises(
        ValueError, match=r"labels of y must be 0\.\.C-1, .* without 1: mend .*\(y, return_inverse=True\)\[1\]$"
    ):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=x, y=y[:3])
    with pytest.raises(ValueError, match="must have the same number of rows, got 4 and 3"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x)
    with pytest.raises(
        ValueError, match="must hold x_train, y_train, x_test, y_test; x_train, y_train, y_test is missing"
    ):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(("of_train", "of_test"), [("uint8", "float32"), ("float64", "uint8")])
def test_pixels_of_one_part_alone_are_not_scaled_as_those_of_the_other(
    tmp_path: Path, of_train: str, of_test: str
) -> None:
    x, y = np.ones((2, 4, 4)), np.array([0, 1])
    np.savez(tmp_path / "a.npz", x_train=x.astype(of_train), y_train=y, x_test=x.astype(of_test), y_test=y)
    with pytest.raises(ValueError, match=f"must be stored alike, .*, got {of_train} and {of_test}: bring both to one"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x_train=x, y_train=y, x_test=x.astype(np.float32), y_test=y)  # nothing is scaled
    assert read_npz(tmp_path / "b.npz").test is not None


def test_absurd_labels_are_refused(tmp_path: Path) -> None:
    x = np.ones((2, 3))
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.array([0, 10**12]), x_test=x, y_test=np.array([0, 1]))
    with pytest.raises(
        ValueError, match="labels of y_train must be below 65536, got 1000000000000: number the classes from 0"
    ):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["x_train", "y_train"])
def test_numbers_that_pytorch_does_not_know_are_refused(tmp_path: Path, name: str) -> None:
    arrays = {"x_train": np.ones((2, 3)), "y_train": np.array([0, 1])}
    arrays |= {"x_test": arrays["x_train"], "y_test": arrays["y_train"]}
    np.savez(tmp_path / "a.npz", **{**arrays, name: arrays[name].astype(np.longdouble)})
    with pytest.raises(ValueError, match=rf"{name} (of .*a\.npz )?must hold .*, got float(128|96) of shape"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3), np.int8),
        np.array(["b", "aa"]),
        np.arange(4, dtype=">i4"),
        np.float64(3.5),
    ],
    ids=["fortran", "empty", "text", "big-endian", "scalar"],
)
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_arrays_are_what_was_written(tmp_path: Path, array: np.ndarray, kind: int) -> None:
    found = read_arrays(archive(tmp_path / "a.npz", npy(np.asarray(array)), kind), ("a",))["a"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.asarray(array).dtype


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "written by numpy.savez: "),
        (npy(np.ones(3))[:-1], r"a of shape \(3,\) takes 24 bytes, got 23"),
        (npy(np.ones(3)) + b"\x00", r"a of shape \(3,\) takes 24 bytes, got 25"),
        (header("(10**12,)"), "Cannot parse header|malformed"),
        (header(f"({10**12},)") + bytes(80), "takes 8000000000000 bytes, got 80"),
        (header("(-1, -1)") + bytes(8), "written by numpy.savez: "),
        (header("(1,)", "'|O'") + bytes(8), "a holds Python objects, which are never unpickled"),
        (header("(1,)", "[('x', '|O')]") + bytes(8), "a holds Python objects"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "version 1.0 or 2.0 of the .npy format, got"),
        (header("(" * 4000), "written by numpy.savez: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_broken_arrays_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = archive(tmp_path / "a.npz", content)
    with pytest.raises(ValueError, match=message) as caught:
        read_arrays(path, ("a",))
    assert str(path) in str(caught.value)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.tables.file_checks.LIMIT", 10**6)
    big = npy(np.zeros(200_000))
    assert len(read_arrays(archive(tmp_path / "plain.npz", big), ("a",))["a"]) == 200_000
    with pytest.raises(ValueError, match=r"a must promise at most 1000000 bytes, got 1600128: .* uncompressed"):
        read_arrays(archive(tmp_path / "packed.npz", big, zipfile.ZIP_DEFLATED), ("a",))


def test_the_limit_is_of_all_arrays_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "several.npz", a=np.zeros(75_000), b=np.zeros(75_000))
    monkeypatch.setattr("fedloom.tables.file_checks.LIMIT", 10**6)
    with pytest.raises(ValueError, match=r"b must promise at most 399872 bytes, got 600128: .* uncompressed"):
        read_arrays(tmp_path / "several.npz", ("a", "b"))
    assert len(read_arrays(tmp_path / "several.npz", ("b",))["b"]) == 75_000


def test_promises_beyond_the_file_are_not_believed(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", header(f"({2**28},)"))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    for offset in (20, 24):  # both sizes, in the central directory
        content[at + offset : at + offset + 4] = (2**31 + 128).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a must promise at most \d+ bytes, got 2147483776"):
        read_arrays(path, ("a",))


def test_missing_files_and_arrays_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none\.npz'; give the path of a \.npz file with a, b"):
        read_arrays(tmp_path / "none.npz", ("a", "b"))
    with pytest.raises(ValueError, match="must hold a, b; b is missing"):
        read_arrays(archive(tmp_path / "a.npz", npy(np.ones(3))), ("a", "b"))
