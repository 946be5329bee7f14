"""Damaged payloads and data files, read under limits of time and memory: refused by name, or read as what they are.

    python tests/attack/fuzz.py payloads --cases 200000 --seed 0

Every case is made of (seed, target, number) alone. Anything else than a documented refusal or a value of the right form
is bad: other exceptions, values of wrong form, more than 2 seconds of computing, more memory than --memory, a crash.
Runs on Linux.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import mmap
import os
import pickletools
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch

from fedloom.coordinator import History
from fedloom.core import tree
from fedloom.core.errors import CodecError, DamageError
from fedloom.core.types import Maybe, Weighted, Weights
from fedloom.data import Dataset
from fedloom.sources import folders, load
from fedloom.sources.matlab import read_matlab
from fedloom.sources.pickles import read_pickle
from fedloom.storage import files
from fedloom.storage.codec import decode, encode
from fedloom.tables import file_checks, read_csv, read_npz
from fedloom.tables.columns import NoColumnError
from fedloom.tables.file_checks import FormatError
from fedloom_papers.reproduction import kept

SECONDS = 2.0
LIMIT = 2**22  # of unpacked data, in place of 1 GiB
NUMBERS = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)


class Target(NamedTuple):
    """`make` a damaged input of a random generator; `read` it, and raise one of `refusals` or AssertionError."""

    make: Callable[[Random], Any]
    read: Callable[[Any, Path], None]
    refusals: tuple[type[Exception], ...]


# ---- damage


def damaged(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """The same with one to four damages."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        at = rng.randrange(len(out) + 1)
        some = out[at : at + rng.choice((1, 4, 8, 30, 300))]
        match rng.randrange(9):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(out):
                out[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 3:
                del out[at : at + len(some)]
            case 4:
                out[at:at] = some
            case 5:
                out[at : at + 4] = struct.pack("<Q", rng.choice(NUMBERS))[: rng.choice((4, 8))]
            case 6:
                del out[at:]
            case 7 if others:
                other = rng.choice(others)
                out[at:] = other[rng.randrange(len(other)) :]
            case _:
                out[at:at] = rng.randbytes(rng.choice((1, 8, 100)))
    return bytes(out)


# ---- payloads

TREES: list[Any] = [
    {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3), "b": torch.tensor([True, False, True])},
    Weighted(value=Weights(params={"a": torch.ones(3, 2), "b": torch.zeros(2)}), weight=torch.tensor(2.0)),
    {"m": Maybe.some(torch.ones(2)), "gone": Maybe.none(torch.ones(2)), "h": torch.ones(4, dtype=torch.bfloat16)},
    [torch.ones(0, 3), (torch.ones(5, dtype=torch.int8), Maybe.some({"x": Maybe.none(torch.ones(2))}))],
]
PAYLOADS = [encode(value) for value in TREES]


def payload(rng: Random) -> tuple[bytes, int]:
    i = rng.randrange(len(TREES))
    data = PAYLOADS[i]
    if rng.random() < 0.5:
        return damaged(data, rng, PAYLOADS), i
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    for _ in range(rng.choice((1, 1, 2))):
        edit_header(header, rng)
    text = json.dumps(header).encode()
    if rng.random() < 0.2:
        text = damaged(text, rng)
    if rng.random() < 0.2:
        body = damaged(body, rng)
    return len(text).to_bytes(8, "little") + text + body, i


def edit_header(header: dict[str, Any], rng: Random) -> None:
    name = rng.choice(sorted(header) or ["x"])
    entry = header.setdefault(name, {})
    odd = rng.choice([*NUMBERS, -1, 1.5, 1e400, float("nan"), True, None, "2", [], {}, [[[[]]]], "F32", "BOOL"])
    match rng.randrange(8):
        case 0:
            header[rng.choice(["x", "", "__metadata__", name + " ", name.upper()])] = header.pop(name)
        case 1:
            header[name] = odd
        case 2:
            del header[name]
        case 3 if isinstance(entry, dict) and entry:
            entry[rng.choice(sorted(entry))] = odd
        case 4 if isinstance(entry, dict) and entry:
            del entry[rng.choice(sorted(entry))]
        case 5 if isinstance(entry, dict):
            entry["dtype"] = rng.choice(["F64", "F32", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "f32", ""])
        case 6 | 7 if isinstance(entry, dict):
            part = entry.get(rng.choice(["shape", "data_offsets"]))
            if isinstance(part, list) and part:
                part[rng.randrange(len(part))] = odd


def read_payload(case: tuple[bytes, int], _: Path) -> None:
    data, i = case
    back = decode(data, TREES[i])
    assert tree.same_structure(back, TREES[i]), "another structure"
    for leaf in tree.leaves(back):
        assert leaf.dtype != torch.bool or not leaf.numel() or int(leaf.view(torch.uint8).max()) <= 1, "no bool"


# ---- MATLAB files

HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind: int, shape: Sequence[int], name: str, data: bytes) -> bytes:
    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, head + element(1, name.encode()) + data)


def cells(name: str, *sizes: int) -> bytes:
    inner = (matrix(6, (n, 2), "", element(9, np.arange(2.0 * n).tobytes())) for n in sizes)
    return matrix(1, (len(sizes), 1), name, b"".join(inner))


VARIABLES = [
    matrix(9, (3, 2, 1, 2), "X", element(2, bytes(range(12)))),
    matrix(6, (3, 1), "y", element(2, b"\x01\x02\x0a")),  # in bytes what becomes float64
    matrix(6, (2, 3), "X", element(9, np.arange(6.0).tobytes())),
    cells("X", 3, 1, 0),
    cells("Y", 2, 2),
    matrix(4, (1, 3), "text", element(4, b"a\0b\0c\0")),
]


def mat(rng: Random) -> bytes:
    parts = rng.sample(VARIABLES, rng.choice((1, 2, 3)))
    if rng.random() < 0.5:
        parts = [damaged(part, rng, VARIABLES) if rng.random() < 0.7 else part for part in parts]
    if rng.random() < 0.005:
        parts.append(bytes(rng.choice((LIMIT, LIMIT + 1, 2 * LIMIT))))
    if rng.random() < 0.02:
        for _ in range(rng.choice((2, 30, 3000))):
            parts[0] = struct.pack("<II", 14, len(parts[0])) + parts[0][: 2**16]
    if rng.random() < 0.5:
        packed = [zlib.compress(part, 1) for part in parts]
        parts = [struct.pack("<II", 15, len(p)) + p for p in packed]
    whole = HEADER + b"".join(parts)
    return whole if rng.random() < 0.3 else damaged(whole, rng, VARIABLES)


def read_mat(data: bytes, folder: Path) -> None:
    path = folder / "a.mat"
    path.write_bytes(data)
    found = read_matlab(path, ("X", "y", "Y"))
    arrays = [a for value in found.values() for a in (value if isinstance(value, list) else [value])]
    assert found.keys() <= {"X", "y", "Y"}, "another name"
    assert all(isinstance(a, np.ndarray) and a.dtype.kind in "fiu" and a.ndim >= 2 for a in arrays), "no numbers"
    assert sum(a.nbytes for a in arrays) <= 2 * LIMIT, "more than the limit"


# ---- pickles


def cifar(count: int) -> list[bytes]:
    """The opcodes of a batch of CIFAR-10, as Python 2 wrote them."""
    pixels = bytes(range(256)) * 12 * count
    short: Callable[[bytes], bytes] = lambda text: b"U" + bytes([len(text)]) + text  # noqa: E731
    names = [op for i in range(count) for op in (short(b"%d.png" % i), b"r" + struct.pack("<I", 300 + i))]
    return [
        *(b"\x80\x02", b"}", b"q\x01", b"(", short(b"labels"), b"q\x02", b"]", b"q\x03", b"("),
        *(b"K" + bytes([i % 10]) for i in range(count)),
        *(b"e", short(b"data"), b"q\x04", b"cnumpy.core.multiarray\n_reconstruct\n", b"q\x05", b"cnumpy\nndarray\n"),
        *(b"q\x06", b"K\x00", b"\x85", short(b"b"), b"\x87", b"R", b"q\x07", b"(", b"K\x01", b"K" + bytes([count])),
        *(b"M\x00\x0c", b"\x86", b"cnumpy\ndtype\n", b"q\x08", short(b"u1"), b"K\x00", b"K\x01", b"\x87", b"R"),
        *(b"q\x09", b"(", b"K\x03", short(b"|"), b"N", b"N", b"N", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\xff"),
        *(b"K\x00", b"t", b"b", b"\x89", b"T" + struct.pack("<I", len(pixels)) + pixels, b"t", b"b"),
        *(short(b"filenames"), b"q\x0a", b"]", b"q\x0b", b"(", *names, b"e", b"u", b"."),
    ]


BATCHES = [cifar(n) for n in (1, 3)]
CODES = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]


def random_opcode(rng: Random) -> bytes:
    if rng.random() < 0.5:
        return rng.choice(BATCHES[0][:-3])
    arguments = (
        b"",
        bytes([rng.randrange(12)]),
        struct.pack("<Q", rng.choice(NUMBERS)),
        b"os\nsystem\n",
        b"1\n",
        b"x'\n",
    )
    return rng.choice(CODES) + rng.choice(arguments)


def pickled(rng: Random) -> bytes:
    kind = rng.randrange(10)
    if kind == 0:  # opcodes at random
        return b"\x80\x04" + b"".join(random_opcode(rng) for _ in range(rng.choice((5, 50, 500)))) + b"."
    if kind == 1:  # what is deep, wide, or grows without end
        n = rng.choice((10, 1000, 200_000))
        seed = rng.choice((b")", b"]", b"}", b"N", b"cnumpy\ndtype\n"))
        step = rng.choice((b"\x85", b"2\x86", b"q\x00h\x00\x86", b"\x94h\x00\x87", b"(", b"l", b")R", b"N\x85b", b"(u"))
        end = rng.choice((b".", b"}h\x00Ns.", b"(N\x90.", b"K\x00s.", b"\x81.", b"h\x00a."))
        return b"\x80\x04" + seed + step * n + end
    ops = list(rng.choice(BATCHES))
    if kind < 6:
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(ops))
            match rng.randrange(4):
                case 0:
                    del ops[at]
                case 1:
                    ops.insert(at, random_opcode(rng))
                case 2:
                    ops[at] = random_opcode(rng)
                case _:
                    ops[at] = damaged(ops[at], rng)
        return b"".join(ops)
    return damaged(b"".join(ops), rng, [b"".join(other) for other in BATCHES])


def read_batch(data: bytes, folder: Path) -> None:
    path = folder / "data_batch_1"
    path.write_bytes(data)
    images, labels = read_pickle(path, "labels")
    assert images.dtype == np.uint8, "no bytes"
    assert images.shape[1:] == (3, 32, 32), "no images"
    assert (labels.dtype, labels.ndim) == (np.int64, 1), "no labels"


# ---- archives, tables, images


def archive(compressed: bool) -> bytes:
    file = io.BytesIO()
    x, y = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([0, 1])
    (np.savez_compressed if compressed else np.savez)(file, x_train=x, y_train=y, x_test=x, y_test=y)
    return file.getvalue()


ARCHIVES = [archive(False), archive(True)]


def npz(rng: Random) -> bytes:
    if rng.random() < 0.5:
        return damaged(rng.choice(ARCHIVES), rng, ARCHIVES)
    file = io.BytesIO()
    hurt = rng.choice(("x_train", "y_train", "x_test", "y_test"))
    with zipfile.ZipFile(io.BytesIO(ARCHIVES[0])) as old, zipfile.ZipFile(file, "w", rng.choice((0, 8))) as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, damaged(content, rng) if name.startswith(hurt) else content)
    return file.getvalue()


def read_archive(data: bytes, folder: Path) -> None:
    path = folder / "a.npz"
    path.write_bytes(data)
    check_dataset(read_npz(path))


TABLE = b"a,b,label,part\n1,2.5,x,train\n-3,4e2,y,test\n5,6,x,train\n7,8,y,train\n"


def csv(rng: Random) -> bytes:
    text = damaged(TABLE, rng)
    for _ in range(rng.choice((0, 1, 2))):
        odd = rng.choice(
            (b"1_000", b"nan", b"1e999", b'"', b'"a,b"', b"\n\n", b"\r", b",", b"\0", b"\xff", b"01", b"+1")
        )
        at = rng.randrange(len(text) + 1)
        text = text[:at] + odd + text[at:]
    return text


def read_table(data: bytes, folder: Path) -> None:
    path = folder / "a.csv"
    path.write_bytes(data)
    check_dataset(read_csv(path, split="part"))


def picture() -> bytes:
    chunk: Callable[[bytes, bytes], bytes] = lambda kind, data: (  # noqa: E731
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    rows = b"".join(b"\0" + bytes(range(i, i + 12)) for i in range(3))
    head = struct.pack(">IIBBBBB", 4, 3, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def png(rng: Random) -> bytes:
    return damaged(picture(), rng)


def read_image(data: bytes, folder: Path) -> None:
    place = folder / "train" / "a"
    place.mkdir(parents=True, exist_ok=True)
    (place / "1.png").write_bytes(data)
    check_dataset(load("images", folder))


def check_dataset(found: Dataset) -> None:
    for part in (found.train, found.test):
        assert part is None or (part.y.dtype == torch.int64 and len(part.x) == len(part.y)), "no examples"


def user(n: int) -> dict[str, Any]:
    return {"x": [[i / 4, n] for i in range(n)], "y": [i % 2 for i in range(n)]}


USERS = json.dumps({"users": ["a", "b"], "num_samples": [2, 3], "user_data": {"a": user(2), "b": user(3)}}).encode()
PARTS = [b"[", b"]", b"{", b"}", b"[[", b"1e999", b"NaN", b"null", b'"x"', b"9" * 30, b"[" * 3000, b"{}", b"true", b","]


def leaf(rng: Random) -> bytes:
    text = bytearray(USERS)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, end = rng.randrange(len(text)), rng.choice((0, 0, 1, 5, 40))
        text[at : at + end] = rng.choice(PARTS) * rng.choice((1, 1, 1, 100))
    return bytes(text) if rng.random() < 0.6 else damaged(USERS, rng)


def read_leaf(data: bytes, folder: Path) -> None:
    for part, content in (("train", data), ("test", USERS)):
        (folder / part).mkdir(exist_ok=True)
        (folder / part / "a.json").write_bytes(content)
    check_dataset(load("leaf", folder))


def kept_runs() -> bytes:
    records = [{"round": t, "global_accuracy": t / 4, "clients": [0, t]} for t in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        kept.write(Path(folder), [kept.Kept("c/r", s, History(algorithm="A", metrics=records), None) for s in (0, 1)])
        return (Path(folder) / kept.NAME).read_bytes()


KEPT = kept_runs()
LINES = gzip.decompress(KEPT)


def some_kept(rng: Random) -> bytes:
    if rng.random() < 0.4:
        return damaged(KEPT, rng)
    first, _, rest = LINES.partition(b"\n")
    rest = damaged(rest, rng)
    if rng.random() < 0.7:  # by somebody who can count a digest
        first = json.dumps({**json.loads(first), "digest": files.digest(rest)}).encode()
    return gzip.compress(first + b"\n" + rest, 1)


def read_kept(data: bytes, folder: Path) -> None:
    (folder / kept.NAME).write_bytes(data)
    for one in kept._read.__wrapped__(folder / kept.NAME, 0, len(data)):
        assert all(isinstance(record["round"], int) for record in one.history.metrics), "no record"


# ---- what this script itself must notice


def broken(rng: Random) -> int:
    return rng.randrange(7)


def break_down(number: int, _: Path) -> None:
    match number:
        case 0:
            raise FormatError("refused")
        case 1:
            raise KeyError("leaks")
        case 2:
            while True:
                pass
        case 3:
            bytearray(2**33)
        case 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        case 5:
            try:
                bytearray(2**33)
            except MemoryError as error:
                raise FormatError("hides that memory ran out") from error


TARGETS = {
    "payloads": Target(payload, read_payload, (CodecError,)),
    "mat": Target(mat, read_mat, (FormatError,)),
    "pickles": Target(pickled, read_batch, (FormatError,)),
    "npz": Target(npz, read_archive, (FormatError, ValueError)),
    "csv": Target(csv, read_table, (FormatError, NoColumnError, ValueError)),
    "png": Target(png, read_image, (FormatError,)),
    "leaf": Target(leaf, read_leaf, (FormatError,)),
    "kept": Target(some_kept, read_kept, (DamageError,)),
    "broken": Target(broken, break_down, (FormatError,)),
}


# ---- running


class TooLongError(BaseException):
    """Not caught by readers, which turn every Exception of a parser into a refusal."""


def too_long(*_: object) -> None:
    raise TooLongError("too many seconds of computing")


def one(target: Target, rng: Random, seconds: float, folder: Path) -> str:
    """ "accepted", "refused", or what was bad."""
    case = target.make(rng)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        target.read(case, folder)
        return "accepted"
    except (Exception, TooLongError) as error:
        chain: BaseException | None = error
        while chain is not None:
            if isinstance(chain, MemoryError):
                return f"MemoryError behind {error!r:.200}"
            chain = chain.__cause__ or chain.__context__
        return "refused" if type(error) in target.refusals else f"{error!r:.200}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def child(name: str, seed: int, cases: range, memory: int, seconds: float, at: mmap.mmap, out: int) -> None:
    """Run cases, keeping the number of the present one in `at`; write a line for each that is not refused."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, too_long)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for number in cases:
            at[:8] = number.to_bytes(8, "little")
            said = one(TARGETS[name], Random(f"{seed}/{name}/{number}"), seconds, Path(folder))
            if said != "refused":
                os.write(
                    out, f"{number} {said.encode('ascii', 'replace').decode()}".replace("\n", " ").encode() + b"\n"
                )


def batch(name: str, seed: int, cases: range, memory: int, seconds: float) -> tuple[dict[int, str], int]:
    """What was said of the cases that were not refused, and the number of the next case to run."""
    at = mmap.mmap(-1, 8)
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if not pid:
            try:
                child(name, seed, cases, memory, seconds, at, said.fileno())
            finally:
                os._exit(0)
        last, seen = time.monotonic(), -1
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if (number := int.from_bytes(at[:8], "little")) != seen:
                last, seen = time.monotonic(), number
            if time.monotonic() - last > 15 * seconds:  # nothing moves, or the alarm did not reach it
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        said.seek(0)
        found = {int(n): what for n, what in (line.decode().rstrip().split(" ", 1) for line in said)}
    if not ended[1]:
        return found, cases.stop
    number = int.from_bytes(at[:8], "little")
    return {**found, number: f"ended by signal {ended[1]}"}, number + 1


def fuzz(name: str, cases: range, seed: int, memory: int, seconds: float) -> int:
    """Run the cases and print what became of them; the number of bad ones."""
    start, first, found = time.monotonic(), cases.start, dict[int, str]()
    while first < cases.stop:
        more, first = batch(name, seed, range(first, min(first + 5000, cases.stop)), memory, seconds)
        found |= more
    bad = {n: what for n, what in sorted(found.items()) if what != "accepted"}
    for n, what in list(bad.items())[:20]:
        print(f"  case {n}: {what}")
    print(
        f"{name}: cases {len(cases):,}, refused {len(cases) - len(found):,}, accepted {len(found) - len(bad):,}, "
        f"bad {len(bad):,}, seconds {time.monotonic() - start:.0f}",
        flush=True,
    )
    return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=list(TARGETS))
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=int, default=256, help="MiB beyond what the process has at its start")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of computing that a case may take")
    args = parser.parse_args()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*one word has one spelling")  # a table is read, and its author told
    torch.set_num_threads(1)
    file_checks.LIMIT = LIMIT
    folders.memory = lambda: LIMIT  # type: ignore[attr-defined]
    cases = range(args.first, args.first + args.cases)
    return int(sum(fuzz(name, cases, args.seed, args.memory, args.seconds) for name in args.targets) > 0)


if __name__ == "__main__":
    sys.exit(main())
