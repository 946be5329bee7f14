"""Tables and arrays in files: columns and their roles, tables of several sites, the preparation of columns."""

from __future__ import annotations

from fedloom.tables.arrays import read_npy, read_npz
from fedloom.tables.data_frames import from_frame
from fedloom.tables.parquet import read_parquet
from fedloom.tables.sites import read_sites
from fedloom.tables.table_words import TableWords
from fedloom.tables.text_table import read_csv

__all__ = ["TableWords", "from_frame", "read_csv", "read_npy", "read_npz", "read_parquet", "read_sites"]
