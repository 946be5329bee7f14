"""Predicted masks as pictures: a PNG file for each image, and a table of them."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.core.errors import SettingError
from fedloom.sources.folders import pillow
from fedloom.storage.output import as_csv, check_new, publish

TABLE = "masks.csv"


def write_masks(
    folder: Path, values: npt.NDArray[Any], files: Sequence[Path], names: Sequence[str], overwrite: bool
) -> Path:
    """Write masks [N, H, W] as grey PNG files, and return the table of them.

    A file has the name of its image, or its number where images had no files; grey is the number of the class, up to
    255, else 16 bits. The table says how many pixels each class has.

    Raises:
        SettingError: these are no masks, two images have one name, or a file exists, unless `overwrite`.
    """
    if values.ndim != 3:
        raise SettingError(
            f"masks are predictions for each pixel of pictures, (N, H, W), got {values.shape}: write a table, csv(FILE)"
        )
    stems = [path.stem for path in files] or [f"{k:06}" for k in range(len(values))]
    if twice := [name for name, count in Counter(stems).items() if count > 1]:
        raise SettingError(f"images have different names, got {twice[0]!r} twice: rename one")
    pictures = [f"{stem}.png" for stem in stems]
    for name in (*pictures, TABLE):
        check_new(folder / name, overwrite)
    kind = np.uint8 if len(names) <= 256 else np.uint16
    rows: list[list[object]] = [["image", "mask", *(f"pixels {name}" for name in names)]]
    with pillow() as image:
        for k, name in enumerate(pictures):
            data = io.BytesIO()
            image.fromarray(values[k].astype(kind)).save(data, "PNG")
            publish(folder, name, data.getvalue())
            counts = np.bincount(values[k].ravel(), minlength=len(names)).tolist()
            rows.append([files[k].name if files else k, name, *counts])
    return publish(folder, TABLE, as_csv(rows).encode())
