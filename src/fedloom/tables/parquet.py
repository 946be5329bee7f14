"""Parquet files, which pandas reads where pyarrow is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.data.examples import Dataset
from fedloom.tables.data_frames import from_frame
from fedloom.tables.file_checks import FormatError, refuse
from fedloom.tables.vocabulary import Tokeniser, TokenKind
from fedloom.wording import install, local_path

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    target: str | Sequence[str] = (),
    client: str | None = None,
    split: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    prepare: Any = None,
    least: int = 1,
    least_clients: int = 1,
    text: str | None = None,
    tokens: TokenKind | Tokeniser | None = None,
    length: int | None = None,
    most: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return the rows of a Parquet file as feature vectors (N, D) float32, in their order.

    Args:
        path: the file.
        label: column of class labels; "label" where neither it nor `target` is given.
        target: column of numbers to predict in the place of classes, or several.
        client: column of natural clients.
        split: column that says `train` or `test` for every row.
        group: column of groups, whose rows never fall on both sides of a split.
        drop: columns that are left out.
        categories: columns of numbers that are names, prepared as words.
        prepare: "standard", "federated" or a transformer, as of `read_csv`.
        least: of "federated", how many rows of a client must have a word for the client to name it.
        least_clients: of "federated", how many clients must have a word; of a text, how many must have a token.
        text: column of texts, which become token ids (N, length), as of `read_csv`.
        tokens: of a text, "words", "characters" or a tokeniser of your own.
        length: of a text, most tokens of it, 128 unless said.
        most: of a text, the largest vocabulary; 10,000 unless said.
        test_fraction: without `split`, the part of all rows that becomes the test set, in [0, 1).
        seed: of this choice, 0 to 2**32 - 1.

    Raises:
        ValueError: there is no such file, it is no Parquet, pyarrow is not installed (the extra `parquet`), or what
            `from_frame` refuses.
    """
    return from_frame(
        read_frame(local_path(path)),
        label=label,
        target=target,
        client=client,
        split=split,
        group=group,
        drop=drop,
        categories=categories,
        prepare=prepare,
        least=least,
        least_clients=least_clients,
        text=text,
        tokens=tokens,
        length=length,
        most=most,
        test_fraction=test_fraction,
        seed=seed,
        name=Path(path).stem,
    )


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
