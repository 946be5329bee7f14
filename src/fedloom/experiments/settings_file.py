"""Files of settings, as nested mappings and as one mapping with keys like `local.lr`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.core.toml_text import DEEPEST, read_toml
from fedloom.storage.files import path_of
from fedloom.storage.strict_json import SETTINGS, check_depth, parse


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read a settings file: TOML (.toml), or JSON (.json) such as the settings.json of a run.

    Raises:
        SettingError: the file is missing, of another kind, too long, or not well-formed; names the place.
    """
    path = path_of(path)
    readers: dict[str, Callable[[bytes], Any]] = {".toml": _toml, ".json": parse}
    if path.suffix not in readers:
        raise SettingError(f"a settings file is .toml or .json, got {str(path)!r}")
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS + 1)
        if len(data) > SETTINGS:
            raise ValueError(f"settings have at most {SETTINGS:,} bytes, got more")
        found: dict[str, Any] = readers[path.suffix](data)
    except OSError as error:
        raise SettingError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        quotes = '; text stands in quotes, algorithm = "fedavg"' if "Invalid value" in str(error) else ""
        raise SettingError(f"{path} is not well-formed: {error}{quotes}") from None
    found.pop("$schema", None)  # what editors check it by
    return found


def _toml(data: bytes) -> dict[str, Any]:
    table = read_toml(data)
    check_depth(table, DEEPEST, "TOML")
    return table


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with keys like `local.lr`.

    Raises:
        SettingError: they are nested too deeply.
    """
    if prefix.count(".") >= DEEPEST:
        raise SettingError(f"settings are nested at most {DEEPEST} deep, got {prefix[:60]}...: no setting lies deeper")
    out: dict[str, Any] = {}
    for key, value in table.items():
        out.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return out
