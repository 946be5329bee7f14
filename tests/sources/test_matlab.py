"""MATLAB files: what SciPy and MATLAB write is read alike, everything else is refused; SVHN and Vehicle."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.sources import load, matlab
from fedloom.sources.matlab import read_matlab

scipy_io = pytest.importorskip("scipy.io")

RNG = np.random.default_rng(0)
HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind: int, shape: tuple[int, ...], name: str, data: bytes, flags: int = 0) -> bytes:
    head = element(6, struct.pack("<II", kind | flags, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, head + element(1, name.encode()) + data)


def cells(arrays: list[np.ndarray]) -> np.ndarray:
    out = np.empty((len(arrays), 1), object)
    out[:, 0] = arrays
    return out


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_arrays_are_what_was_written(tmp_path: Path, dtype: str, compress: bool) -> None:
    stored = {"A": RNG.integers(0, 100, (2, 3, 4)).astype(dtype), "tiny": np.ones((1, 1), dtype), "B": np.eye(3)}
    scipy_io.savemat(
        tmp_path / "a.mat", {**stored, "text": "skipped", "C": cells([np.eye(2)])}, do_compression=compress
    )
    found = read_matlab(tmp_path / "a.mat", ("A", "tiny", "absent"))
    assert set(found) == {"A", "tiny"}
    for name, array in found.items():
        assert isinstance(array, np.ndarray)
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, stored[name])


@pytest.mark.parametrize("compress", [False, True])
def test_cells_are_lists(tmp_path: Path, compress: bool) -> None:
    arrays = [RNG.random((n, 2)) for n in (3, 1, 0)]
    scipy_io.savemat(tmp_path / "a.mat", {"X": cells(arrays)}, do_compression=compress)
    found = read_matlab(tmp_path / "a.mat", ("X",))["X"]
    assert isinstance(found, list)
    for read, written in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(read, written)


def test_files_that_matlab_wrote_are_read_as_scipy_does() -> None:
    folder = Path(scipy_io.__file__).parent / "matlab" / "tests" / "data"
    if not folder.is_dir():
        pytest.skip("this SciPy comes without its test files")
    read = []
    for stem in ("test3dmatrix", "testdouble", "testmatrix", "testminus", "testemptycell", "testscalarcell"):
        for path in folder.glob(f"{stem}_[678]*.mat"):
            (name,) = (n for n, _, _ in scipy_io.whosmat(path))
            mine, other = read_matlab(path, (name,))[name], scipy_io.loadmat(path)[name]
            pairs = zip(mine, other.ravel("F"), strict=True) if isinstance(mine, list) else [(mine, other)]
            for a, b in pairs:
                np.testing.assert_array_equal(a, b)
            read.append(path.name)
    assert len(read) > 15
    big = read_matlab(folder / "big_endian.mat", ("floats",))["floats"]
    np.testing.assert_array_equal(big, scipy_io.loadmat(folder / "big_endian.mat")["floats"])


ONE = element(9, struct.pack("<d", 1.0))
GOOD = matrix(6, (1, 1), "A", ONE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with 128 bytes that end in IM or MI, got 0 bytes"),
        (b"\x89HDF".ljust(512), "end in IM or MI"),
        (HEADER[:124] + b"\x00\x02IM", r"version must be 0x100, got 0x200: write it with save -v7"),
        (HEADER + GOOD[:5], "half of a tag, it is cut off"),
        (HEADER + GOOD[:-1], "must be whole"),
        (HEADER + struct.pack("<II", 14, 2**32 - 1), "an element of 4294967295 bytes must be whole, got 0 bytes"),
        (HEADER + element(9, bytes(8)), "holds elements of type 14, got 9"),
        (HEADER + element(14, b""), "flags, dimensions and a name"),
        (HEADER + struct.pack("<HH", 14, 5) + bytes(4), "short element holds at most 4 bytes, got 5"),
        (HEADER + GOOD + GOOD, "different names, got A twice"),
        (
            HEADER + matrix(6, (1, 1), "A", ONE, flags=0x800),
            "A must hold real numbers, or cells of them, got .*complex",
        ),
        (HEADER + matrix(4, (1, 1), "A", element(4, b"a\x00")), "got class 4"),
        (HEADER + matrix(17, (1, 1), "A", element(6, bytes(24))), "got class 17"),
        (HEADER + matrix(6, (2**31 - 1, 2**31 - 1), "A", ONE), "must be stored whole, got 8 bytes"),
        (HEADER + matrix(6, (1, 1), "A", element(9, bytes(16))), "must be stored whole, got 16 bytes"),
        (
            HEADER + matrix(9, (1, 1), "A", element(9, struct.pack("<d", np.nan))),
            "numbers of its class, got others than",
        ),
        (HEADER + matrix(9, (1, 1), "A", element(3, struct.pack("<h", -1))), "others than u1 has"),
        (HEADER + matrix(6, (0, 2**30, 2**30, 2**30), "A", element(9, b"")), "must be stored whole, got 0 bytes"),
        (HEADER + matrix(6, (1, 1), "A", element(16, bytes(8))), "stored as one list of numbers, got type 16"),
        (HEADER + matrix(6, (1, 1), "A", ONE + ONE), "stored as one list of numbers"),
        (HEADER + matrix(1, (2**31 - 1, 4), "A", GOOD), "more cells than the file can hold, got 8589934588"),
        (HEADER + matrix(1, (2, 1), "A", GOOD), "as many matrices as it has cells, got an element of type 0"),
        (HEADER + matrix(1, (1, 1), "A", matrix(1, (1, 1), "", GOOD)), "a cell must hold real numbers.* got class 1"),
        (HEADER + struct.pack("<II", 15, 4) + b"junk", "whole zlib streams"),
        (HEADER + struct.pack("<II", 15, 9) + zlib.compress(GOOD)[:9], "a stream without its end"),
        (HEADER + struct.pack("<II", 15, len(zlib.compress(b""))) + zlib.compress(b""), "elements of type 14, got 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.mat").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_matlab(tmp_path / "a.mat", ("A",))
    assert str(caught.value).startswith(str(tmp_path / "a.mat"))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.tables.file_checks.LIMIT", 10**6)
    packed = zlib.compress(matrix(2, (1, 1), "other", bytes(600_000)))
    (tmp_path / "a.mat").write_bytes(HEADER + 2 * (struct.pack("<II", 15, len(packed)) + packed))
    with pytest.raises(ValueError, match="must unpack to at most 1000000 bytes"):
        read_matlab(tmp_path / "a.mat", ("A",))


def test_the_limit_holds_when_it_is_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first variable takes all the room, exactly, and the next would have none."""
    first = matrix(2, (1, 1), "other", bytes(600_000))
    monkeypatch.setattr("fedloom.tables.file_checks.LIMIT", len(first))
    for size in (0, 1, 10**7):
        packed = [zlib.compress(first), zlib.compress(bytes(size))]
        (tmp_path / "a.mat").write_bytes(HEADER + b"".join(struct.pack("<II", 15, len(p)) + p for p in packed))
        with pytest.raises(ValueError, match="must unpack to at most 600056 bytes" if size else "of type 14, got 0"):
            read_matlab(tmp_path / "a.mat", ("A",))


def test_the_limit_counts_what_numbers_become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MATLAB stores small whole numbers in a byte each, which become eight."""
    scipy_io.savemat(tmp_path / "a.mat", {"A": np.zeros((500, 400), np.uint8)})
    content = (tmp_path / "a.mat").read_bytes().replace(struct.pack("<II", 9, 0), struct.pack("<II", 6, 0), 1)
    (tmp_path / "a.mat").write_bytes(content)
    assert read_matlab(tmp_path / "a.mat", ("A",))["A"].dtype == np.float64  # type: ignore[union-attr]
    monkeypatch.setattr("fedloom.tables.file_checks.LIMIT", 10**6)
    with pytest.raises(ValueError, match="must unpack to at most 1000000 bytes, got more: store fewer"):
        read_matlab(tmp_path / "a.mat", ("A",))


@pytest.mark.slow
def test_cells_in_cells_overflow_nothing(tmp_path: Path) -> None:
    nested, size = [], len(GOOD)
    for _ in range(100_000):  # SciPy 1.17 ends here with a segmentation fault
        body = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, b"A")
        size += len(body)
        nested.append(struct.pack("<II", 14, size) + body)
        size += 8
    (tmp_path / "a.mat").write_bytes(HEADER + b"".join(reversed(nested)) + GOOD)
    with pytest.raises(ValueError, match="must hold real numbers, or cells of them, got class 1"):
        read_matlab(tmp_path / "a.mat", ("A",))


# ---- SVHN


def write_svhn(folder: Path, **changes: Any) -> dict[str, np.ndarray]:
    folder.mkdir(exist_ok=True)
    arrays = {}
    for part, n in (("train", 5), ("test", 3)):
        arrays[part] = RNG.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
        stored = {"X": arrays[part], "y": np.arange(10, 10 - n, -1, dtype=np.uint8)[:, None], **changes}
        scipy_io.savemat(folder / f"{part}_32x32.mat", {k: v for k, v in stored.items() if v is not None})
    return arrays


@pytest.mark.parametrize("block", [2, 1024])
@pytest.mark.parametrize("place", ["", "SVHN"])
def test_svhn(tmp_path: Path, place: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.sources.matlab._BLOCK", block)
    arrays = write_svhn(tmp_path / place)
    dataset = load("svhn", tmp_path)
    assert dataset.test is not None
    np.testing.assert_array_equal(dataset.train.x.numpy(), arrays["train"].transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(dataset.test.x[1, 2].numpy(), arrays["test"][:, :, 2, 1])
    assert dataset.train.y.tolist() == [0, 9, 8, 7, 6]  # the file says 10, 9, 8, 7, 6
    assert (dataset.train.num_classes, dataset.train.normalise.mean[2], dataset.owners) == (10, 0.4728, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": None}, r"X must be a uint8 array \(32, 32, 3, N\) with N > 0, got nothing"),
        ({"X": np.zeros((32, 32, 3, 5))}, "got float64 of shape"),
        ({"X": np.zeros((5, 32, 32, 3), np.uint8)}, r"got uint8 of shape \(5, 32, 32, 3\)"),
        ({"X": cells([np.eye(2)])}, "X must be a uint8 array .* got 1 cells"),
        ({"y": np.zeros((5, 1), np.uint8)}, r"labels must be in 1\.\.10, got 0\.\.0"),
        ({"y": np.full((5, 1), 11.0)}, r"labels must be in 1\.\.10, got 11\.\.11"),
        ({"y": np.full((5, 1), np.nan)}, "small whole numbers"),
        ({"y": np.full((5, 1), 1.5)}, "small whole numbers"),
        ({"y": np.ones((4, 1))}, "one label for each of the 5 examples, got 4 labels"),
        ({"y": np.ones((1, 5))}, r"y must be an array \(N, 1\), got float64 of shape \(1, 5\)"),
        ({"y": "text"}, "y must hold real numbers"),
    ],
)
def test_what_is_not_svhn(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_svhn(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load("svhn", tmp_path)


# ---- Vehicle


def write_vehicle(path: Path, **changes: Any) -> list[np.ndarray]:
    xs = [10 + 3 * RNG.random((n, 100)) for n in (4, 1, 7)]
    for x in xs:
        x[:, 5] = 0.1  # does not vary
    ys = [np.where(np.arange(len(x)) % 2, 1.0, -1.0)[:, None] for x in xs]
    scipy_io.savemat(path, {"X": cells(xs), "Y": cells(ys), **changes})
    return xs


def test_vehicle_is_standardised_by_client(tmp_path: Path) -> None:
    xs = write_vehicle(tmp_path / "vehicle.mat")
    train, test, owners, held_out = load("vehicle", tmp_path)
    assert (test, held_out) == (None, None)
    assert owners is not None
    assert owners.tolist() == [0] * 4 + [1] + [2] * 7
    assert train.y.tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0]
    assert (train.num_classes, train.x.dtype, train.shape) == (2, torch.float32, (100,))
    expected = (xs[2] - xs[2].mean(0)) / np.maximum(xs[2].std(0), 1e-9)
    expected[:, 5] = 0
    np.testing.assert_allclose(train.x[5:].numpy(), expected, atol=1e-5)
    assert not train.x[4].any()  # a single example is its own mean


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.eye(3)}, "X and Y must be cells, one of each for every client, got float64 of shape"),
        ({"Y": cells([np.ones((4, 1))])}, "got 3 cells and 1 cells"),
        ({"Y": cells([np.ones((4, 1))] * 3)}, r"X \(n, 100\) and Y \(n, 1\) with n > 0, got \(1, 100\) and \(4, 1\)"),
        ({"X": cells([np.ones((n, 99)) for n in (4, 1, 7)])}, r"got \(4, 99\) and \(4, 1\)"),
        ({"X": cells([np.full((n, 100), np.inf) for n in (4, 1, 7)])}, "X must be finite in float32"),
        ({"X": cells([np.full((n, 100), 1e160) for n in (4, 1, 7)])}, "X must be finite in float32"),
        ({"Y": cells([np.zeros((n, 1)) for n in (4, 1, 7)])}, "y must be -1 or [+]1 for each of the 12 examples"),
    ],
)
def test_what_is_not_vehicle(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_vehicle(tmp_path / "vehicle.mat", **changes)
    with pytest.raises(ValueError, match=message):
        load("vehicle", tmp_path)


def test_the_published_part_as_arrays(tmp_path: Path) -> None:
    x = RNG.random((6, 100))
    content: dict[str, Any] = {"x": x, "y": np.array([-1, 1] * 3, np.int8), "client": np.array([7, 7, 2, 2, 2, 9])}
    np.savez(tmp_path / "vehicle.npz", **content)
    train, test, owners, _ = load("vehicle", tmp_path)
    assert (test, train.y.tolist()) == (None, [0, 1, 0, 1, 0, 1])
    assert owners is not None
    assert owners.tolist() == [1, 1, 0, 0, 0, 2]
    np.testing.assert_array_equal(train.x.numpy(), x.astype(np.float32))
    np.savez(tmp_path / "vehicle.npz", **{**content, "x": np.full((6, 100), np.nan)})
    with pytest.raises(ValueError, match=r"x must be \(N, 100\), floating point and finite in float32"):
        load("vehicle", tmp_path)
    np.savez(tmp_path / "vehicle.npz", **{**content, "client": np.zeros(5, int)})
    with pytest.raises(ValueError, match="client must be an integer for each of the 6 examples"):
        load("vehicle", tmp_path)
    with pytest.raises(ValueError, match=r"missing are vehicle\.mat in"):
        load("vehicle", tmp_path / "nowhere")


def test_the_published_part_of_vehicle() -> None:
    root = os.environ.get("FEDLOOM_DATA")
    if root is None or not (Path(root) / "vehicle_ditto_train.npz").is_file():
        pytest.skip("needs FEDLOOM_DATA, a folder with vehicle_ditto_train.npz")
    train, _, owners, _ = load("vehicle", root)
    assert owners is not None
    assert (len(train), owners.max() + 1, train.class_counts().tolist()) == (1860, 23, [837, 1023])
    assert np.bincount(owners)[:4].tolist() == [59, 8, 20, 156]


def test_a_part_of_vehicle_is_not_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vehicle(tmp_path / "vehicle.mat")
    with pytest.raises(
        ValueError,
        match=r"the whole of Vehicle has 23 clients with 43,695 examples, got 3 with 12: put the whole vehicle\.mat "
        "there; a part is read as 'vehicle', and compares with no published number",
    ):
        load("vehicle_whole", tmp_path)
    with pytest.raises(ValueError, match=r"missing are vehicle\.mat in"):
        load("vehicle_whole", tmp_path / "nowhere")
    monkeypatch.setattr(matlab, "VEHICLE", (3, 12))
    assert len(load("vehicle_whole", tmp_path).train) == 12
