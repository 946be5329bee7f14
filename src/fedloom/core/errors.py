"""The errors fedloom raises on purpose. Each message states the rule, the value that broke it and the remedy."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_NO_RULE = "There is a performance drop because we have not yet implemented the batching"


class FedloomError(Exception):
    """Base of every error that fedloom raises on purpose.

    Attributes:
        line: the line of a person's code that failed, where that was in another process: "FILE, line 7, in loss".
    """

    line: str = ""


class SettingError(FedloomError, ValueError):
    """A setting is unknown, out of range or contradicts another one; raised before any work starts."""


class CodecError(FedloomError, ValueError):
    """Bytes do not decode to what was asked for; nothing was allocated on their word."""


class StorageError(FedloomError, OSError):
    """A file of a run cannot be written, or is not what was written. What was on disk before is still there."""


class DamageError(StorageError):
    """A file of a run is missing, or is not what was written. What merely cannot be read is a `StorageError`."""


class ShortageError(FedloomError, MemoryError):
    """Shortage of memory; says what to lower."""


class NobodyAnswered(FedloomError):  # noqa: N818  # an end of the round, not a defect
    """Too few of the clients that were asked have answered; an engine ends the round, and its server state stays."""


class ClientError(FedloomError):
    """Code of one client failed. Names the client, the round (from 1) and, if known, the batch (from 0).

    `client`: -1 for a stack of clients, None for the server.
    """

    def __init__(self, message: str, *, client: int | None, round: int, batch: int | None = None) -> None:
        who = "the server" if client is None else f"client {client}" if client >= 0 else "a stack of clients"
        where = f"{who}, round {round}" + ("" if batch is None else f", batch {batch}")
        super().__init__(f"{where}: {message}")
        self.what, self.client, self.round, self.batch = message, client, round, batch


class NonFiniteError(ClientError):
    """A loss, an upload or a state of one client, or of the server itself, is NaN or infinite."""


class RankError(FedloomError, ConnectionError):
    """A rank that a run needs is gone, or runs another job."""


class DeclinedError(FedloomError):
    """A device does not take part, or no longer; says why."""


class RefusedError(FedloomError):
    """A request or an answer is not acceptable: it is of another device, of an old round, or sent twice."""


class StackingError(FedloomError, TypeError):
    """Refusal of what one client does and a stack of clients cannot, or the other way round."""


class SettingWarning(UserWarning):
    """A setting is legal but makes the method something else than its name says (for example mu = 0)."""


class StorageWarning(UserWarning):
    """Files of a run were moved aside or are not guarded; says which and where."""


class EngineWarning(UserWarning):
    """An engine does something else than it was asked to, and says why."""


def first_line(error: Exception) -> str:
    """Return the kind of an exception, and the beginning of its message, for a message of ours."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])[:160]


def line_of(error: BaseException) -> str:
    """Return the line of a person's code that an error came from, "FILE, line 7, in loss"; "" where there is none.

    It is the innermost one outside of Python and all packages.
    """
    if isinstance(error, FedloomError) and error.line:
        return error.line
    origin = error.__cause__ if isinstance(error, FedloomError) else error
    frames = [] if origin is None else traceback.extract_tb(origin.__traceback__)
    packages = (Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix))
    own = [f for f in frames if Path(f.filename).exists() and not any(map(Path(f.filename).is_relative_to, packages))]
    return f"{own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}" if own else ""


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raise ShortageError where Python, NumPy or PyTorch gets no memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, FedloomError) or not _out_of_memory(error):
            raise
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ShortageError(
            f"there is not enough memory ({said}): lower panel, cohort_size, batch_size, chunk or state_memory_mib, or "
            "take a smaller model or fewer examples"
        ) from error


def _out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; PyTorch has an exception of its own for GPUs alone."""
    said = str(error)
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in said or "out of memory" in said


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Leave out PyTorch's warning that `vmap` computes a function client by client, as it does fused attention."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _NO_RULE)
        yield


@contextmanager
def without_rules() -> Iterator[list[str]]:
    """Leave out PyTorch's warning as `quiet_vmap` does; fill a list with the functions that it names."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _NO_RULE)
        yield found
    for one in caught:
        if named := re.match(_NO_RULE + r" rule for aten::_?(\w+)", str(one.message)):
            found.append(named[1])
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)


def warn(message: str, kind: type[Warning]) -> None:
    """Warn of something, naming the line outside of fedloom that led to it, as far as there is such a line.

    That is the line that a person has written.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and _between(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, kind, stacklevel=level if frame else 2)


def _between(frame: FrameType) -> bool:
    """Return whether code stands between a person's line and what it led to.

    Such code is fedloom's, a decorator's, or what `dataclass` has written.
    """
    code, module = frame.f_code, str(frame.f_globals.get("__name__"))
    made = code.co_filename == "<string>" and code.co_name == "__init__"
    return made or module.partition(".")[0] in ("fedloom", "contextlib", "functools")
