"""The names of the package: there when they are asked for, and not before."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedloom

STUB = ast.parse(Path(fedloom.__file__).with_suffix(".pyi").read_bytes())


def test_every_name_is_what_the_stub_says() -> None:
    imports = [node for node in STUB.body if isinstance(node, ast.ImportFrom)]
    said = {alias.name: node.module for node in imports for alias in node.names}
    (listed,) = (ast.literal_eval(node.value) for node in STUB.body if isinstance(node, ast.Assign))
    assert sorted(listed) == sorted(said) == sorted(fedloom.__all__)
    for name, module in said.items():
        assert getattr(fedloom, name) is getattr(import_module(str(module)), name)
    assert {*said, "__version__"} <= set(dir(fedloom))


def test_star_imports_all_of_them() -> None:
    found: dict[str, object] = {}
    exec("from fedloom import *", found)
    assert set(fedloom.__all__) <= set(found)


def test_nothing_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, fedloom as fl; assert 'torch' not in sys.modules; fl.data.Normalise; fl.FedAvg; "
        "assert 'torch' in sys.modules and 'fedloom.experiments' not in sys.modules; from fedloom import Sweep, run"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="module 'fedloom' has no attribute 'FedAverage'"):
        _ = fedloom.FedAverage  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'FedAverage' from 'fedloom'"):
        from fedloom import FedAverage  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(fedloom, "__main__")  # asking whether it is there must not run it
