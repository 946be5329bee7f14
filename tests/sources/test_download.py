"""Downloads, from a server on this machine that behaves, breaks off and lies."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from test_sources_by_name import BATCHES, python2, write_cifar10, write_idx

from fedloom.sources import download, load
from fedloom.sources.download import Download, DownloadError, Remote
from fedloom.sources.sources_by_name import SOURCES

CONTENT = np.random.default_rng(0).bytes(100_000)


@dataclass
class Server:
    """What the server has, how it behaves, and what it was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    length: bool = True
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            content = state.files.get(self.path)
            if content is None:
                return self.send_error(404)
            self.send_response(200)
            if state.length:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: state.cut.pop(0) if state.cut else len(content)])
            return None

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{httpd.server_port}"
    monkeypatch.setattr(pooch.core.time, "sleep", lambda seconds: None)  # between attempts
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def offer(monkeypatch: pytest.MonkeyPatch, server: Server, content: bytes = CONTENT, **changes: Any) -> None:
    """Make `toy` a data set of one file, which the server has."""
    server.files["/toy.bin"] = content
    remote = Remote("toy/toy.bin", (f"{server.url}/toy.bin",), sha256(content))
    offered = Download("nobody", "nobody", (replace(remote, **changes),))
    monkeypatch.setitem(SOURCES, "toy", replace(SOURCES["leaf"], name="toy", download=offered))


class EvaluationResult:
    """A progress bar that remembers."""

    def __init__(self, name: str) -> None:
        self.name, self.total, self.count, self.closed = name, 0.0, 0, False

    def update(self, count: int) -> None:
        self.count += count

    def reset(self) -> None:
        self.count = 0

    def close(self) -> None:
        self.closed = True


def test_a_file_is_fetched_once(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server)
    bars: list[EvaluationResult] = []

    def bar(name: str) -> EvaluationResult:
        bars.append(EvaluationResult(name))
        return bars[-1]

    (path,) = download("toy", tmp_path, progress=bar)
    assert (path, path.read_bytes()) == (tmp_path / "toy" / "toy.bin", CONTENT)
    assert [(bar.name, bar.total, bar.count, bar.closed) for bar in bars] == [("toy.bin", 100_000, 100_000, True)]
    assert [path.name for path in path.parent.iterdir()] == ["toy.bin"]
    assert download("toy", tmp_path) == [path]
    assert server.asked == ["/toy.bin"]


def test_what_broke_off_is_asked_for_again(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server)
    server.cut = [30_000, 50_000]
    (path,) = download("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert len(server.asked) == 3
    assert [path.name for path in path.parent.iterdir()] == ["toy.bin"]


@pytest.mark.parametrize("length", [True, False])
def test_part_of_a_file_is_never_named(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, length: bool
) -> None:
    offer(monkeypatch, server)
    server.length, server.cut = length, [10_000] * 3
    with pytest.raises(DownloadError, match=r"toy.bin could not be fetched \(http.*put the file into"):
        download("toy", tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []


def test_another_content_is_never_named(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, sha256="0" * 64)
    with pytest.raises(DownloadError, match=f"expected 0{{64}} but got {sha256(CONTENT)}.*try again later"):
        download("toy", tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []


def test_the_next_address_is_tried(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, urls=("http://127.0.0.1:1/x", f"{server.url}/none", f"{server.url}/toy.bin"))
    assert download("toy", tmp_path)[0].read_bytes() == CONTENT
    offer(monkeypatch, server, path="other", urls=("http://127.0.0.1:1/x", f"{server.url}/none"))
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:1/x: .*refused.*/none: 404 .*Not Found"):
        download("toy", tmp_path)


def test_files_of_the_user_are_left_alone(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin").write_bytes(b"mine")
    with pytest.raises(
        ValueError, match=f"must have the SHA-256 {sha256(CONTENT)}, got {sha256(b'mine')}: move the file away"
    ):
        download("toy", tmp_path)
    assert (tmp_path / "toy" / "toy.bin").read_bytes() == b"mine"
    assert server.asked == []


# ---- archives


def tarball(*members: tuple[str | tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize("pack", [tarball, zipped])
def test_only_what_is_wanted_is_unpacked(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, pack: Any
) -> None:
    content = pack(("../evil", b"1"), ("/tmp/evil", b"2"), ("a/../../evil", b"3"), ("a/b", CONTENT), ("a/c", b""))
    offer(monkeypatch, server, content, members={"a/b": "x/b", "a/c": "x/c"})
    folder = tmp_path / "data"
    paths = download("toy", folder)
    assert [path.read_bytes() for path in paths] == [CONTENT, b""]
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["data/toy/toy.bin", "data/x/b", "data/x/c"]
    (folder / "toy" / "toy.bin").unlink()  # the archive is not needed any more
    assert download("toy", folder) == paths
    assert len(server.asked) == 1


@pytest.mark.parametrize("pack", [tarball, zipped])
def test_an_archive_without_what_is_wanted(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, pack: Any
) -> None:
    offer(monkeypatch, server, pack(("a", b"1")), members={"a": "x/a", "b": "x/b"})
    with pytest.raises(DownloadError, match=r"toy.bin holds no b, .*fetch it again"):
        download("toy", tmp_path)
    assert not (tmp_path / "x").exists()


# ---- what is offered


def remotes_of(name: str) -> tuple[Remote, ...]:
    """The files of a data set that are fetched; none where nothing is."""
    offered = SOURCES[name].download
    return offered.files if offered else ()


def serve(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, contents: list[bytes]) -> None:
    """Let the server have `contents` as the files of a real data set, with their own checksums."""
    remotes = []
    for remote, content in zip(remotes_of(name), contents, strict=True):
        server.files[f"/{remote.path}"] = content
        remotes.append(replace(remote, urls=(f"{server.url}/{remote.path}",), sha256=sha256(content)))
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], download=Download("a", "b", tuple(remotes))))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_can_be_loaded(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_idx(tmp_path / "source", gz=True)
    serve(monkeypatch, server, name, [(tmp_path / "source" / Path(r.path).name).read_bytes() for r in remotes_of(name)])
    assert len(download(name.replace("_", "-"), tmp_path / "data")) == 4
    assert len(load(name, tmp_path / "data").train) == 5


def test_emnist_can_be_loaded(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    members = []
    for split in ("letters", "digits"):
        write_idx(tmp_path / "source", (f"emnist-{split}-train-", f"emnist-{split}-test-"), 1, gz=True)
    for path in (tmp_path / "source").iterdir():
        members.append((f"gzip/{path.name}", path.read_bytes()))
    serve(monkeypatch, server, "emnist_letters", [zipped(*members)])
    serve(monkeypatch, server, "emnist_digits", [zipped(*members)])
    assert len(download("emnist_letters", tmp_path / "data")) == 4
    assert len(load("emnist_letters", tmp_path / "data").train) == 5
    with pytest.raises(ValueError, match="needs all its files"):
        load("emnist_digits", tmp_path / "data")
    download("emnist_digits", tmp_path / "data")
    assert len(load("emnist_digits", tmp_path / "data").train) == 5
    assert len(server.asked) == 1  # both are in one archive


def test_cifar_can_be_loaded(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "source")
    files = [(f"cifar-10-batches-py/{name}", (tmp_path / "source" / name).read_bytes()) for name in BATCHES]
    serve(monkeypatch, server, "cifar10", [tarball(*files)])
    download("cifar10", tmp_path / "data")
    assert len(load("cifar10", tmp_path / "data").train) == 10
    hundred = python2({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 99]})
    serve(
        monkeypatch,
        server,
        "cifar100",
        [tarball(*((f"cifar-100-python/{part}", hundred) for part in ("train", "test")))],
    )
    download("cifar100", tmp_path / "data")
    assert load("cifar100", tmp_path / "data").train.y.tolist() == [0, 99]


def test_svhn_goes_where_it_is_looked_for(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, server, "svhn", [b"train", b"test"])
    download("svhn", tmp_path)
    with pytest.raises(ValueError, match=r"SVHN/train_32x32\.mat: a MATLAB file"):  # found, and no such file
        load("svhn", tmp_path)


def test_addresses_and_checksums_are_complete() -> None:
    remotes = [remote for name in SOURCES for remote in remotes_of(name)]
    assert all(len(r.sha256) == 64 and int(r.sha256, 16) and r.urls for r in remotes)
    assert all(url.startswith("https://") for r in remotes for url in r.urls)
    paths = {r.path: r.sha256 for r in remotes}
    assert len(set(paths.values())) == len(paths) == 13


@pytest.mark.parametrize("name", ["cinic10", "vehicle", "leaf", "stl10", ""])
def test_what_is_not_offered(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ValueError, match=r"a data set with a published checksum, got .* use one of mnist, fashion_mnist"
    ):
        download(name, tmp_path)


def test_a_checksum_is_that_of_its_own_file() -> None:
    """Of MNIST, as its mirrors publish them."""
    found = SOURCES["mnist"].download
    assert found is not None
    assert {file.path.rpartition("/")[2]: file.sha256[:4] for file in found.files} == {
        "train-images-idx3-ubyte.gz": "440f", "train-labels-idx1-ubyte.gz": "3552",
        "t10k-images-idx3-ubyte.gz": "8d42", "t10k-labels-idx1-ubyte.gz": "f7ae",
    }  # fmt: skip
