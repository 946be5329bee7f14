"""Tables and arrays in files: columns and their roles, tables of several sites, the preparation of columns."""

from __future__ import annotations

from fedloom.tables.arrays import read_npy, read_npz
from fedloom.tables.data_frames import from_frame, read_csv
from fedloom.tables.parquet import read_parquet
from fedloom.tables.sites import read_sites

__all__ = ["from_frame", "read_csv", "read_npy", "read_npz", "read_parquet", "read_sites"]
