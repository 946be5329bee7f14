"""A device that takes longer for each training: `python tests/delayed.py SECONDS join ...`, as `fedloom join ...`."""

from __future__ import annotations

import sys
import time
from typing import Any

from fedloom.cli.main import main
from fedloom.engines.message import EVALUATING, Request
from fedloom.engines.runtime import Runtime


def delay(seconds: float) -> None:
    """Let each training of this process begin so much later."""
    answer = Runtime.answer

    def later(self: Runtime, request: Request, *args: Any, **more: Any) -> Any:
        if request.call.exchange != EVALUATING:
            time.sleep(seconds)
        return answer(self, request, *args, **more)

    Runtime.answer = later  # type: ignore[method-assign]


if __name__ == "__main__":
    delay(float(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
