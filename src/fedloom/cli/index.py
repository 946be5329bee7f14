"""Index of algorithms and settings for the command line, which reads it instead of importing them.

`scripts/make_index.py` writes `index.json` from the classes; a test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INDEX: dict[str, Any] = json.loads(Path(__file__).with_name("index.json").read_bytes())
"""`algorithms`: what each is and its settings; `settings`: defaults and choices of flags; names of other things."""
