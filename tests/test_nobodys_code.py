"""Names that somebody else has written import nothing: on a device, for a server, and in commands on a run's folder."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from commands import error
from fedloom import Experiment
from fedloom.analyses import AnalysedRun
from fedloom.cli.main import main
from fedloom.coordinator import run_documents as reading
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.naming import by_python_name, forbid_imports, is_python_name, source_file
from fedloom.deploy.device import Membership
from fedloom.deploy.registration import versions
from fedloom.deploy.server.serve import settings_of
from fedloom.experiments import catalogue
from fedloom.experiments.named_code import named_code
from fedloom.storage import files

HOSTILE = (
    "evil:", "evil:1", "evil:network:x", "evil:network", ":evil", "evil:a.b", "evil: network", "evil :network",
    "evil\n:network", "evil:net-work", "..evil:network", ".evil:network", "evil.:network", "inner.evil:network",
    "this:1", "os:", "os:system", "os:system:x", "\u00fcbel:network", "fedloom.models:evil", "fedloom.cli.main:main",
    "\u2170evil:network",
)  # fmt: skip
PLACES = ("model", "task", "algorithm", "data.source", "data.public_source", "dense.generator")
SETTINGS = {
    "algorithm": "fedavg",
    "model": "logistic",
    "task": "classification",
    "data": {"partition": "iid", "clients": 4, "examples": 80},
    "local": {"epochs": 1},
    "run": {"rounds": 1, "cohort_size": 2, "threads": 1},
}


@pytest.fixture(autouse=True)
def _imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules in the current folder that must not run, and a watch over what is imported by a name in a variable."""
    for name in ("evil", "\u00fcbel", "inner/evil", "inner/__init__", "\u2170evil"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("import pathlib\npathlib.Path('ran').touch()\ndef network(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    asked: list[str] = []
    imported = importlib.import_module

    def watched(name: str, package: str | None = None) -> Any:
        asked.append(name)
        return imported(name, package)

    monkeypatch.setattr(importlib, "import_module", watched)
    yield
    assert not {name.partition(":")[0].strip() for name in HOSTILE if not name.startswith("fedloom")} & set(asked)
    assert not Path("ran").exists()


def nested(key: str, value: str) -> dict[str, Any]:
    """SETTINGS with one more, as a server or a folder has them."""
    section, dot, name = key.partition(".")
    whole: dict[str, Any] = json.loads(json.dumps(SETTINGS))
    if section == "dense":
        whole |= {"algorithm": "dense", "model": "mlp"}
    return whole | ({section: {**whole.get(section, {}), name: value}} if dot else {key: value})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that somebody has made."""
    out = tmp_path_factory.mktemp("made") / "run"
    Experiment.of(SETTINGS).job().run(out)
    return out


def edited(run: Path, folder: Path, key: str, value: str) -> Path:
    """A copy of the run whose settings name `value`, with the digest that makes them believed."""
    shutil.copytree(run, folder)
    settings, manifest = folder / "settings.json", folder / "manifest.json"
    before = files.digest(settings.read_bytes())
    settings.write_text(json.dumps(nested(key, value)))
    text = json.dumps(reading.unsealed(manifest.read_bytes()))
    assert before in text
    manifest.write_bytes(reading.sealed(json.loads(text.replace(before, files.digest(settings.read_bytes())))))
    return folder


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Membership:
    return Membership("fashion_mnist_small", tmp_path_factory.mktemp("state"))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_device_and_a_server(name: str, device: Membership) -> None:
    for key in PLACES:
        described = nested(key, name)
        decided = key in ("model", "task", "algorithm") or (key == "dense.generator" and is_python_name(name))
        for told in (
            lambda d: device(json.dumps({"run": "a" * 32, "versions": versions(), "settings": d}).encode()),
            settings_of,
        ):
            with pytest.raises(SettingError) if decided else suppress(ValueError):
                told(described)


@pytest.mark.slow
def test_a_device_imports_nothing_that_is_looked_up_late(device: Membership, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall behind the list of names: what a setting names may be looked up when a request is answered."""
    monkeypatch.setattr(device, "_answer", lambda data: Model.by_name("evil:network", nz=1))
    with pytest.raises(SettingError, match=r"network 'evil:network' is code, and a device imports no code that a ser"):
        device(b"")


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_commands_on_a_folder(name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    i = HOSTILE.index(name)
    for key in PLACES:
        if named_code(nested(key, name)):
            folder = edited(run, tmp_path / key, key, name)
            with pytest.raises(SettingError, match="name code to import"):
                Experiment.from_directory(folder)
        else:  # of no form that is imported: who looks it up refuses it
            with pytest.raises(SettingError):
                Model.by_name(name) if key == "dense.generator" else catalogue.data(name)
    folder = tmp_path / PLACES[i % 3]
    for command in ("resume {}", "replay {} 1", "export {} m.pt", "branch {} --out other"):
        assert "name code to import" in error(capsys, *command.format(folder).split())


@pytest.mark.slow
def test_a_page_a_summary_and_a_check(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, name in enumerate(HOSTILE[3::9]):
        edited(run, tmp_path / "runs" / f"run{i}", PLACES[i % len(PLACES)], name)
    runs = str(tmp_path / "runs")
    for argv in (["verify", runs], ["summary", runs], ["report", runs, "--out", "page"], ["analyse", "--list", runs]):
        assert main(argv) in (0, 1, 2)
    assert Path("page/report.html").exists()


@pytest.mark.slow
def test_devices_of_a_server_that_is_judged_by_code(run: Path, tmp_path: Path) -> None:
    """A registry says what the server evaluates by, and is a file of the folder too."""
    known = {"id": "a" * 32, "train": [5], "test": [0], "val": [0], "shape": [1], "dtype": "float32", "model": "mlp"}
    known |= {"classes": [], "columns": []}
    registry = {"run": "a" * 32, "test": "evil:network", "cap": 5, "devices": [known]}
    (tmp_path / "devices.json").write_text(json.dumps(registry))
    source = f"devices:{tmp_path}/devices.json"
    assert named_code({"data": {"source": source}}) == ["evil:network"]
    assert named_code({"data.source": f"devices:{tmp_path}/none.json"}) == []
    with pytest.raises(SettingError, match="name code to import, 'evil:network'"):
        Experiment.from_directory(edited(run, tmp_path / "run", "data.source", source))


def test_permission(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One flag; what is going to run is said first, with its file."""
    text = "from fedloom.models import LogisticRegression\ndef network(): return LogisticRegression((1, 28, 28), 10)\n"
    Path("own_net.py").write_text(text)
    folder = edited(run, tmp_path / "run", "model", "own_net:network")
    whose = f"'own_net:network' ({tmp_path / 'own_net.py'})"
    said = error(capsys, "resume", str(folder))
    assert said == (
        f"the settings of the run in {folder} name code to import, {whose}: read it, and allow it with --allow-code "
        "(in Python allow_code=True) if you trust it [FL-RUN-019]"
    )
    with pytest.raises(SettingError, match="name code to import, 'own_net:network'"):
        AnalysedRun.of(folder).job.check()
    assert Experiment.code_of(folder) == (whose,)
    assert "own_net" not in sys.modules


@pytest.mark.parametrize("name", ["own:Method", "pkg.own:Method", "\u00fcbung:netz", "a._b:_c1"])
def test_names_of_python(name: str) -> None:
    assert is_python_name(name)


@pytest.mark.parametrize("name", [name for name in HOSTILE if not re.fullmatch(r"[\w.]+:\w+", name)])
def test_other_names_are_refused_before_anything_is_imported(name: str) -> None:
    assert not is_python_name(name)
    with pytest.raises(SettingError, match=r"network is module:name, one name of one module, got"):
        by_python_name(name, "network")


def test_imports_are_forbidden_and_allowed_again() -> None:
    with forbid_imports("nobody knows who wrote it"):
        with pytest.raises(SettingError, match="task 'json:loads' is code, and nobody knows who wrote it"):
            by_python_name("json:loads", "task")
        with forbid_imports(None):
            pass
        with pytest.raises(SettingError, match="is code"):
            catalogue.task("json:loads")
        assert Model.by_name("fedloom.models:DenseGenerator", nz=2, ngf=2).num_params  # of the package: no code


def test_files_of_modules_without_importing_them() -> None:
    assert source_file("evil:network") == str(Path("evil.py").resolve())
    assert source_file("inner.evil:network") == str(Path("inner/evil.py").resolve())
    assert [source_file(name) for name in ("nowhere:x", "evil.deeper:x", "inner.none:x", "..evil:x")] == [None] * 4
    assert "inner" not in sys.modules


def test_names_in_every_place() -> None:
    described = {
        "algorithm": "a:A",
        "model": "lenet,b:B",
        "task": "c:C",
        "data": {"source": "cifar10:data", "public_source": "d:D", "partition": "dirichlet:1", "augment": "crop:4"},
        "clients": {"sampler": "list:0,1"},
        "dense": {"generator": "fedloom.models:DenseGenerator"},
        "fed_dafl": {"generator": "e:E", "others": ["f:F"]},
    }
    assert named_code(described) == ["a:A", "b:B", "c:C", "d:D", "e:E", "f:F"]
    assert named_code({"data.source": "huggingface:x", "model": "mlp"}) == named_code(None) == named_code([]) == []
