"""Build the archives of a release from the last commit, and try the wheels where nothing else of fedloom is.

    python scripts/make_release.py [--packages FOLDER]

`dist/` gets the source archives and the wheels of fedloom and of fedloom-papers, built from the files of HEAD alone.
fedloom's wheel is installed into an empty environment and runs `fedloom demo` and a comparison with its table, with
every connection beyond this machine refused; then the commands of fedloom-papers, which are there with its wheel alone.
The packages that it needs are installed from the index; with `--packages`, those of another environment's site-packages
are taken, which needs seconds instead of minutes. It publishes nothing and sets no version.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from fedloom import __version__

ROOT = Path(__file__).resolve().parents[1]
WORK, DIST = ROOT / "build/release", ROOT / "dist"
FOLDERS = {"fedloom": ".", "fedloom_papers": "papers"}  # of each distribution, by its name in its archives
LEFT_OUT = ("tests/golden/", "docs/results/", "papers/")
NEEDED = {
    "fedloom": ("fedloom/py.typed", "fedloom/cli/index.json", "fedloom/cli/errors.json", "fedloom/report/page.html"),
    "fedloom_papers": ("fedloom_papers/py.typed", "fedloom_papers/claims.json"),
}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")
_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]+\)\n", re.MULTILINE)
_NO_NETWORK = '''\
"""Refuse connections beyond this machine: what is tried must not need the network."""
import socket

_connect = socket.socket.connect


def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"no network here: {address}")
    return _connect(self, address)


socket.socket.connect = connect
'''


def readme(text: str, address: str | None) -> str:
    """Return the README with links that work where no file is beside it.

    Links become absolute below `address`, as .../blob/v0.2.0. Without one they become plain text, and pictures go.
    """
    if address is None:
        return _LINK.sub(r"\1", _PICTURE.sub("", text))
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?://)", rf"\1{address.replace('/blob/', '/raw/')}/", text)
    return _LINK.sub(rf"[\1]({address}/\2)", text)


def contents(archive: Path) -> list[str]:
    """Return the names of files in a wheel or in a source archive, of this without its folder."""
    if archive.suffix == ".whl":
        return zipfile.ZipFile(archive).namelist()
    with tarfile.open(archive) as files:
        return [name.partition("/")[2] for name in files.getnames()]


def wrong(archive: Path) -> list[str]:
    """Return what an archive holds and must not, or lacks."""
    names = contents(archive)
    found = [f"{archive.name} holds {name}" for name in names if name.startswith(LEFT_OUT)]
    prefix = "" if archive.suffix == ".whl" else "src/"
    needed = NEEDED[archive.name.partition("-")[0]]
    return found + [f"{archive.name} lacks {name}" for name in needed if prefix + name not in names]


def call(words: Sequence[str | Path], cwd: Path = ROOT, **environment: str) -> str:
    """Run a command, print it, and return what it prints; end here where it fails."""
    print("$", *words, flush=True)
    done = subprocess.run([*map(str, words)], cwd=cwd, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nthis failed, nothing is released")
    return done.stdout


def build() -> list[Path]:
    """Build the archives of both distributions from the files of HEAD."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.rmtree(DIST, ignore_errors=True)
    source = WORK / "source"
    source.mkdir(parents=True)
    call(["git", "archive", "--format=tar", "-o", WORK / "source.tar", "HEAD"])
    with tarfile.open(WORK / "source.tar") as files:
        files.extractall(source, filter="data")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project.get("urls", {}).get("Repository")
    address = repository and f"{repository.rstrip('/')}/blob/v{__version__}"
    print(f"links of the README: {address or 'plain text, for [project.urls] has no Repository'}")
    for folder in FOLDERS.values():
        page = source / folder / "README.md"
        place = address and f"{address}/{folder}".removesuffix("/.")
        page.write_text(readme(page.read_text(encoding="utf-8"), place), encoding="utf-8")
        call([sys.executable, "-m", "build", "--outdir", DIST, source / folder])
    return sorted(DIST.iterdir())


def try_out(wheel: Path, papers: Path, packages: Path | None) -> None:
    """Install the wheels into an empty environment, and run the demonstration and a comparison without the network."""
    venv.create(WORK / "venv", with_pip=True, clear=True)
    python = WORK / "venv/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    (site,) = (WORK / "venv/lib").glob("python3.*/site-packages")
    if packages is None:
        call([*pip, f"{wheel}[report]"])
    else:
        call([*pip, "--no-deps", wheel])
        others = WORK / "others"  # without the developers' fedloom, whose commands would be found
        others.mkdir()
        for one in packages.resolve().iterdir():
            if "fedloom" not in one.name:
                (others / one.name).symlink_to(one)
        (site / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    (site / "sitecustomize.py").write_text(_NO_NETWORK, encoding="utf-8")
    folder, alone = WORK / "elsewhere", {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    folder.mkdir()
    where = call([python, "-c", "import fedloom; print(fedloom.__file__, fedloom.__version__)"], folder, **alone)
    if str(site) not in where:
        sys.exit(f"this is not the wheel: {where}")
    fedloom = WORK / "venv/bin/fedloom"
    print(call([fedloom, "demo"], folder, **alone))
    words = "compare fedavg ditto --set data.examples=1000 --clients 10 --cohort 5 --rounds 2 --epochs 1 --model mlp"
    call([fedloom, *words.split(), "--threads", "1", "--seed", "0,1", "--out", "runs/two"], folder, **alone)
    print(call([fedloom, "summary", "runs/two"], folder, **alone))
    call([fedloom, "report", "runs/two"], folder, **alone)
    refused = subprocess.run([fedloom, "claims", "dense"], cwd=folder, env=os.environ | alone, capture_output=True)
    if refused.returncode != 2 or b"claims is a command of fedloom-papers" not in refused.stderr:
        sys.exit(f"without fedloom-papers, fedloom claims must name it: {refused.stderr.decode()}")
    call([*pip, "--no-deps", papers])
    print(call([fedloom, "claims", "dense"], folder, **alone))
    print(call([fedloom, "reproduce", "--list"], folder, **alone))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, help="site-packages whose packages the wheel is tried with")
    packages = parser.parse_args().packages
    archives = build()
    if found := [line for archive in archives for line in wrong(archive)]:
        sys.exit("\n".join(found))
    wheel, papers = (archive for archive in archives if archive.suffix == ".whl")
    try_out(wheel, papers, packages)
    for archive in archives:
        print(f"{archive.relative_to(ROOT)}: {len(contents(archive))} files, {archive.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
