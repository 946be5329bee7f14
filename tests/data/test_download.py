"""Downloads, from a server on this machine that behaves, breaks off, lies, and sends too much."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_sources import BATCHES, python2, write_cifar10, write_idx

from fedloom.data import download, load
from fedloom.data.download import DOWNLOADS, DownloadError, Remote

MODULE = sys.modules["fedloom.data.download"]  # the package has a function of this name
CONTENT = np.random.default_rng(0).bytes(100_000)


@dataclass
class Server:
    """What the server has, how it behaves, and what it was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # answers Range with a part
    cut: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    wrong_part: bool = False
    drip: float = 0.0  # seconds between two bytes
    length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            content = state.files.get(self.path)
            if content is None:
                return self.send_error(404)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start and start >= len(content):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if start:
                at = start + state.wrong_part
                self.send_header("Content-Range", f"bytes {at}-{len(content) - 1}/{len(content)}")
            if state.length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + state.cut.pop(0) if state.cut else len(content)
            if state.drip:
                with suppress(ConnectionError):
                    for byte in content[start:end]:
                        self.wfile.write(bytes([byte]))
                        time.sleep(state.drip)
                return None
            self.wfile.write(content[start:end])
            return None

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{httpd.server_port}"
    monkeypatch.setattr(MODULE, "_PAUSE", 0.0)
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
    remote = Remote("toy/toy.bin", (f"{server.url}/toy.bin",), sha256(content), 2 * len(content))
    monkeypatch.setitem(DOWNLOADS, "toy", (replace(remote, **changes),))


def test_a_file_is_fetched_once(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server)
    seen: list[tuple[str, int, int | None]] = []
    (path,) = download("toy", tmp_path, progress=lambda *said: seen.append(said))
    assert (path, path.read_bytes()) == (tmp_path / "toy" / "toy.bin", CONTENT)
    assert seen[-1] == ("toy.bin", 100_000, 100_000)
    assert [path.name for path in path.parent.iterdir()] == ["toy.bin"]
    assert download("toy", tmp_path) == [path]
    assert server.asked == [("/toy.bin", None)]


def test_what_broke_off_is_resumed(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server)
    server.cut = [30_000, 50_000]
    (path,) = download("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=30000-", "bytes=80000-"]


def test_another_call_resumes_too(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server)
    server.cut = [10_000, 10_000, 10_000]
    with pytest.raises(DownloadError, match=r"broke off after 10000 of 100000 bytes.*put the file into"):
        download("toy", tmp_path)
    assert (tmp_path / "toy" / "toy.bin.part").stat().st_size == 30_000
    (path,) = download("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] == ("/toy.bin", "bytes=30000-")


def test_a_server_without_ranges_starts_again(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server)
    server.ranges, server.cut = False, [30_000]
    (path,) = download("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_server_that_sends_another_part_is_asked_anew(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server)
    server.wrong_part, server.cut = True, [30_000]
    (path,) = download("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=30000-", None]


@pytest.mark.parametrize("left", [b"not what is published" * 10, CONTENT, CONTENT + b"more"])
def test_an_old_part_does_no_harm(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, left: bytes) -> None:
    offer(monkeypatch, server)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin.part").write_bytes(left)
    assert download("toy", tmp_path)[0].read_bytes() == CONTENT


def test_another_content_is_never_named(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, sha256="0" * 64)
    with pytest.raises(DownloadError, match=f"SHA-256 {sha256(CONTENT)} instead of 0{{64}}.: try again later"):
        download("toy", tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []
    assert len(server.asked) == 1  # the same file would come again


@pytest.mark.parametrize("length", [True, False])
def test_too_much_is_not_kept(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, length: bool) -> None:
    offer(monkeypatch, server, limit=99_999)
    server.length = length
    with pytest.raises(DownloadError, match="more than the 99999 bytes that the file may have"):
        download("toy", tmp_path)
    assert not (tmp_path / "toy" / "toy.bin").exists()
    assert sum(path.stat().st_size for path in (tmp_path / "toy").iterdir()) == 0


def test_the_next_address_is_tried(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, urls=("http://127.0.0.1:1/x", f"{server.url}/none", f"{server.url}/toy.bin"))
    assert download("toy", tmp_path)[0].read_bytes() == CONTENT
    offer(monkeypatch, server, path="other", urls=("http://127.0.0.1:1/x", f"{server.url}/none"))
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:1/x: .*refused.*/none: status 404 Not Found"):
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


def test_a_server_that_drips_is_left(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, urls=(f"{server.url}/toy.bin", f"{server.url}/toy.bin"))
    monkeypatch.setattr(MODULE, "_LONGEST", 0.3)
    server.drip = 0.01
    with pytest.raises(DownloadError, match=r"not whole after 0\.3 seconds; what came is kept for the next time"):
        download("toy", tmp_path)
    assert 0 < (tmp_path / "toy" / "toy.bin.part").stat().st_size < 100
    assert len(server.asked) == 1
    server.drip = 0.0
    monkeypatch.setattr(MODULE, "_LONGEST", 60.0)
    assert download("toy", tmp_path)[0].read_bytes() == CONTENT


def test_an_encrypted_address_stays_encrypted(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if https://... had redirected to the server here, which is not encrypted."""
    offer(monkeypatch, server, urls=("https://published.example/toy.bin",))
    real = MODULE.urllib.request.urlopen
    monkeypatch.setattr(MODULE.urllib.request, "urlopen", lambda *_, **more: real(f"{server.url}/toy.bin", **more))
    with pytest.raises(DownloadError, match=r"leads to http://127\.0\.0\.1:\d+/toy\.bin, which is not encrypted"):
        download("toy", tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []


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


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            tarball((link("a", "/etc/passwd", tarfile.SYMTYPE), b"")),
            "a must be a regular file .* got a link or a folder",
        ),
        (tarball((link("a", "../b", tarfile.LNKTYPE), b"")), "got a link or a folder"),
        (tarball((link("a", "", tarfile.CHRTYPE), b"")), "got a link or a folder"),
        (tarball(("b", b"1")), "must hold a, got no a: fetch it again"),
        (tarball(("a", b"1"), ("a", b"2")), "members must have different names, got a twice"),
        (zipped(("b", b"1")), "must hold a, got no a"),
    ],
    ids=["symbolic", "hard", "device", "missing", "twice", "zip"],  # the bytes hold the time of day
)
def test_archives_that_are_not_what_they_should_be(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    offer(monkeypatch, server, content, members={"a": "x/a"})
    with pytest.raises(ValueError, match=message):
        download("toy", tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_MIB", 1)
    offer(monkeypatch, server, zipped(("a", bytes(2000))), members={"a": "x/a"})
    with pytest.raises(ValueError, match="a must be a regular file of at most 1 GiB, got 2000 bytes"):
        download("toy", tmp_path)


# ---- what is offered


def serve(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, contents: list[bytes]) -> None:
    """Let the server have `contents` as the files of a real data set, with their own checksums."""
    remotes = []
    for remote, content in zip(DOWNLOADS[name], contents, strict=True):
        server.files[f"/{remote.path}"] = content
        remotes.append(replace(remote, urls=(f"{server.url}/{remote.path}",), sha256=sha256(content)))
    monkeypatch.setitem(DOWNLOADS, name, tuple(remotes))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_can_be_loaded(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_idx(tmp_path / "source", gz=True)
    serve(monkeypatch, server, name, [(tmp_path / "source" / Path(r.path).name).read_bytes() for r in DOWNLOADS[name]])
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
    remotes = [remote for offered in DOWNLOADS.values() for remote in offered]
    assert all(len(r.sha256) == 64 and int(r.sha256, 16) and r.limit < 2**30 and r.urls for r in remotes)
    assert all(url.startswith("https://") for r in remotes for url in r.urls)
    paths = {r.path: r.sha256 for r in remotes}
    assert len(set(paths.values())) == len(paths) == 13


@pytest.mark.parametrize("name", ["cinic10", "vehicle", "leaf", "stl10", ""])
def test_what_is_not_offered(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ValueError, match=r"a data set with a published checksum, got .* use one of mnist, fashion_mnist"
    ):
        download(name, tmp_path)
