"""Make the data file of `fedloom.sources.embedded` from the original Fashion-MNIST files.

    python scripts/make_embedded.py FOLDER

FOLDER holds {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or with .gz. Of every class, the first 1,000 training
and the first 200 test images are kept, in the order of the originals. The arrays are compressed with LZMA, a method of
the zip format that NumPy reads like any other; it saves 14 % against the usual one. The same originals and the same
liblzma give the same bytes. Prints the SHA-256 that belongs into `fedloom/sources/embedded/__init__.py`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

TARGET = Path(__file__).parents[1] / "src/fedloom/sources/embedded/fashion_mnist_small.npz"
NUM_CLASSES = 10
TRAIN_PER_CLASS, TEST_PER_CLASS = 1000, 200


def read_idx(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    """Read one file of the IDX format: 0, 0, type code, number of axes, lengths (big-endian uint32), values."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.exists():
        content = plain.read_bytes()
    elif packed.exists():
        content = gzip.decompress(packed.read_bytes())
    else:
        raise SystemExit(f"{folder} holds neither {name} nor {name}.gz: give the folder of the original files")
    zeros, code, axes = struct.unpack_from(">HBB", content)
    if zeros != 0 or code != 8:
        raise SystemExit(f"{name} is not an IDX file of unsigned bytes: download it again")
    shape = struct.unpack_from(f">{axes}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def first_of_each_class(labels: npt.NDArray[np.uint8], per_class: int) -> npt.NDArray[np.intp]:
    """Return the rows of the first `per_class` examples of every class, in rising order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:per_class] for c in range(NUM_CLASSES)]))


def main(folder: Path) -> None:
    """Write TARGET from the original files in `folder`."""
    arrays: dict[str, npt.NDArray[np.uint8]] = {}
    for part, prefix, per_class in (("train", "train", TRAIN_PER_CLASS), ("test", "t10k", TEST_PER_CLASS)):
        x, y = read_idx(folder, f"{prefix}-images-idx3-ubyte"), read_idx(folder, f"{prefix}-labels-idx1-ubyte")
        rows = first_of_each_class(y, per_class)
        arrays[f"x_{part}"], arrays[f"y_{part}"] = x[rows], y[rows]
    with zipfile.ZipFile(TARGET, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")  # its date is 1980-01-01 whenever this runs
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_LZMA)
    print(f"{TARGET.stat().st_size:,} bytes, SHA-256 {hashlib.sha256(TARGET.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
