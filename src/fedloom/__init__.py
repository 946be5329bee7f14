"""fedloom: federated learning on clients that differ in data, in architecture, in availability.

Write what ONE client does and what the server does with the answers; fedloom runs many such clients as one computation.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "0.3.0"


def _imported(path: Path) -> dict[str, str]:
    """Return the module of each name that a file imports `as` itself, and of those that it imports by a star."""
    found: dict[str, str] = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.names[0].name == "*":
                package = Path(__file__).parents[1].joinpath(*node.module.split("."))
                found |= dict.fromkeys(_imported(package / "__init__.py"), node.module)
            found |= {alias.name: node.module for alias in node.names if alias.asname == alias.name}
    return found


# A name is imported when it is first used, so that what needs no PyTorch does not wait for it. Which names there are
# is said once, by the imports of the stub beside this file, which type checkers and editors read.
_MODULES = _imported(Path(__file__).with_suffix(".pyi"))
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        home = import_module(_MODULES[name])
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")  # of `tree`
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        value = import_module(f"{__name__}.{name}")  # fedloom.data, as after any other import
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
