"""TOML as people write it, whose parser takes time that grows with the square of a key's length."""

from __future__ import annotations

import re
import tomllib
from typing import Any

DEEPEST = 32  # parts of a key
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"""(?<![\w\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{DEEPEST}}}""")


def read_toml(data: bytes) -> dict[str, Any]:
    """Return the mapping that a TOML file holds.

    Raises:
        ValueError: it is no TOML in UTF-8, or a key has too many parts.
    """
    text = data.decode("utf-8")
    if found := _LONG_KEY.search(text):  # whose parser keeps every beginning of a key
        raise ValueError(f"a key has at most {DEEPEST} parts, got {found[0][:60]}...")
    return tomllib.loads(text)
