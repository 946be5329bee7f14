"""Parquet files, which pandas reads where pyarrow is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.data.examples import Dataset
from fedloom.tables.data_frames import of_frame, refuse_gaps
from fedloom.tables.file_checks import FormatError, refuse
from fedloom.tables.table_words import TableWords, takes_words
from fedloom.wording import install, local_path

if TYPE_CHECKING:
    import pandas as pd


@takes_words(TableWords)
def read_parquet(path: str | os.PathLike[str], words: TableWords) -> Dataset:
    """Return the rows of a Parquet file as feature vectors (N, D) float32, in their order.

    Args:
        path: the file.
        words: those of `fedloom.tables.TableWords`, each by its name: `read_parquet("a.parquet", label="ill")`.

    Raises:
        ValueError: there is no such file, it is no Parquet, pyarrow is not installed (the extra `parquet`), or what
            `from_frame` refuses.
    """
    refuse_gaps(words, Path(path))
    return of_frame(read_frame(local_path(path)), words, Path(path).stem)


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name says that it is Parquet."""
    return os.fspath(path).endswith(".parquet")


def read_frame(path: Path) -> pd.DataFrame:
    """Return the data frame in a Parquet file."""
    if not path.is_file():
        raise FormatError(f"there is no file {str(path)!r}; give the path of a .parquet file")
    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError:
        raise FormatError(
            f"to read Parquet takes pandas and pyarrow, got {path} without them: {install('parquet')}, or "
            "write the table as CSV"
        ) from None
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except (pa.ArrowException, OSError, ValueError) as error:
        refuse(path, "the file must be Parquet", str(error)[:200], "write it again with to_parquet")
