"""Try the wheels of dist/ in environments of their own: each Python, each extra by itself, and the lowest versions.

    python scripts/release_trials.py [NAME ...]      such as 3.12, nats or lowest-report; all by default

A trial makes an environment in build/trials, installs the wheel with one extra, and runs a line that needs what the
extra brings. `lowest-` takes the oldest versions that pyproject.toml admits, of PyTorch the one of constraints.txt.
What has passed with these very wheels is not tried again, so a run that was stopped goes on. What cannot be installed
here, or needs a build of PyTorch with CUDA, is named and is no failure. Then follow a bill of materials, CycloneDX, in
dist/, and what pip-audit knows of it; `bill` writes that of the environment that runs this, and tries nothing.
Packages come from where pip looks, by uv, which takes a wheel once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
WORK, DIST = ROOT / "build/trials", ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NOT_TRIED = ("tested", "all", "dev")  # several extras in one
SMALL = "--model logistic --clients 5 --cohort 3 --set data.examples=400 --epochs 1 --threads 1"
FIRST = (f"fedloom run fedavg {SMALL} --rounds 2 --out run", "fedloom verify run")
LINES: dict[str, tuple[str, ...]] = {
    "report": ("fedloom report run",),
    "analysis": ("fedloom analyse run confusion",),
    "images": (
        "import numpy as np, pathlib; from PIL import Image\n"
        "for n in range(8):\n"
        "    folder = pathlib.Path(f'pictures/train/{n % 2}'); folder.mkdir(parents=True, exist_ok=True)\n"
        "    Image.fromarray(np.full((8, 8), 30 * n, np.uint8)).save(folder / f'{n}.png')",
        "fedloom data show --data images:pictures --clients 2 --partition iid",
    ),
    "tables": (
        "import pandas, sklearn; pandas.DataFrame({'a': range(40), 'b': list('xy') * 20}).to_csv('t.csv', index=False)",
        "fedloom data show --data 't.csv?label=b&prepare=standard' --clients 2 --partition iid",
    ),
    "parquet": (
        "import pandas; pandas.DataFrame({'a': range(40), 'b': [0.0, 1.0] * 20}).to_parquet('t.parquet')",
        "import fedloom as fl; print(len(fl.read_parquet('t.parquet', label='b')[0].y))",
    ),
    "huggingface": (
        "import datasets; from fedloom.sources import from_huggingface\n"
        "made = datasets.Dataset.from_dict({'a': [[0.0, 1.0]] * 40, 'label': [0, 1] * 20})\n"
        "print(from_huggingface(datasets.DatasetDict({'train': made}), x='a', label='label'))",
    ),
    "onnx": ("fedloom export run model.onnx", "import onnx; onnx.checker.check_model('model.onnx')"),
    "tensorboard": (f"fedloom run fedavg {SMALL} --rounds 1 --track tensorboard:logs",),
    "wandb": (f"WANDB_MODE=offline fedloom run fedavg {SMALL} --rounds 1 --track wandb:trial",),
    "mlflow": (
        "MLFLOW_ALLOW_FILE_STORE=true MLFLOW_TRACKING_URI=file:m "
        f"fedloom run fedavg {SMALL} --rounds 1 --track mlflow:trial",
    ),
    "mpi": (f"mpirun --allow-run-as-root --oversubscribe -np 3 fedloom run fedavg {SMALL} --rounds 1 --engine mpi",),
    "device": ("from fedloom.deploy.device.monitor import system_monitor; print(system_monitor())",),
    "mirror": (f"fedloom run fedavg {SMALL} --rounds 1 --out mirrored --mirror file://$PWD/mirror",),
    "metrics": (
        "from fedloom.deploy.status_server import exposition\n"
        "said = {'round': 1, 'rounds': 2, 'turned_away': 0, 'devices': []}\n"
        "print(exposition(said))",
    ),
    "flower": ("import flwr", "fedloom certs authority certs", "fedloom certs server certs --name 127.0.0.1"),
    "nats": ("import nats, nkeys; from fedloom.deploy.nats import nats_server; print(nats_server)",),
    "search": (
        f"fedloom sweep fedavg {SMALL} --rounds 1 --val-fraction 0.2 --over local.lr=log:0.01:0.1 --search 2 --out s",
    ),
    "privacy": (f"fedloom run fedavg {SMALL} --rounds 1 --privacy central:noise=1,delta=1e-3,clip=1",),
    "adapters": (
        "import peft, transformers; from transformers import GPT2Config, GPT2LMHeadModel\n"
        "base = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=16, n_embd=32, n_layer=1, n_head=2))\n"
        "peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=['c_attn'])).print_trainable_parameters()",
    ),
    "vision": ("import fedloom as fl; print(fl.models.build('torchvision:resnet18?norm=group', (3, 32, 32), 10))",),
}
BESIDE = {"mpi": ("openmpi>=5",)}  # what is no package of Python's, and there is one that brings it
_WHERE = {
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A wheel in an environment: of a Python, with an extra or none, of newest or lowest versions."""

    python: str
    extra: str = ""
    lowest: bool = False

    @property
    def name(self) -> str:
        of = self.extra or ("base" if self.lowest else self.python)
        return f"{'lowest-' * self.lowest}{of}"


class NotHereError(Exception):
    """Lack of what a trial needs, on this machine."""


class FailedError(Exception):
    """A trial has shown that something does not work."""


def trials() -> list[Trial]:
    """Return all trials, those of Pythons first; extras are tried with the Python that runs this."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    each = [Trial(python) for python in PYTHONS]
    return each + [Trial(own, extra, lowest) for lowest in (False, True) for extra in ("", *LINES) if extra or lowest]


def requirements(wheel: Path, extra: str) -> list[str]:
    """Return what a wheel needs with an extra, without the names of extras."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        needed = HeaderParser().parsestr(file.read(name).decode()).get_all("Requires-Dist") or []
    found = [Requirement(one) for one in needed]
    kept = [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
    names = [one.name + "[{}]".format(",".join(sorted(one.extras))) * bool(one.extras) for one in kept]
    return [f"{name}{one.specifier}" for name, one in zip(names, kept, strict=True)]


def pinned() -> list[str]:
    """Return the lines of constraints.txt that pin a package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "==" in line]


def looked_in() -> dict[str, str]:
    """Return variables by which uv looks for packages where pip does."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for key, value in re.findall(r"^\W*\w*\W*\.([\w-]+)='(.*)'$", listed, re.MULTILINE):
        if key in _WHERE:
            places = [word for word in value.split() if not word.startswith("file://") or Path(word[7:]).is_dir()]
            found[_WHERE[key]] = " ".join(places)
    return {name: value for name, value in found.items() if value}


def uv(*words: str | Path, python: Path | None = None) -> str:
    """Run uv, and return what it says.

    Raises:
        NotHereError: it cannot do this here.
    """
    environment = os.environ | looked_in() | {"UV_PYTHON_DOWNLOADS": "never", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    command = [shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv", *map(str, words)]
    if python is not None:
        command += ["--python", str(python)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip(" ×╰─▶│") for line in done.stderr.splitlines() if not line.startswith("Using ")]
        raise NotHereError(" ".join(filter(None, lines))[:400] or "uv gives no reason")
    return done.stdout + done.stderr


def interpreter(version: str) -> Path:
    """Return a Python of a version: of the search path, or one that pyenv keeps, whose shims may start nothing.

    Raises:
        NotHereError: there is none.
    """
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
    own = Path(sys.executable) if sys.version_info[:2] == tuple(map(int, version.split("."))) else None
    for found in filter(None, [own, shutil.which(f"python{version}"), *sorted(kept, reverse=True)]):
        if subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return Path(found)
    raise NotHereError("there is no such Python here")


def environment(trial: Trial, wheel: Path) -> tuple[Path, str]:
    """Make the environment of a trial, and return its Python and what is not as it should be.

    Raises:
        NotHereError: it cannot be made here.
    """
    folder = WORK / trial.name / "venv"
    shutil.rmtree(folder.parent, ignore_errors=True)
    uv("venv", "--quiet", folder, "--python", interpreter(trial.python))
    python, constraints = folder / "bin/python", folder.parent / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in pinned()), encoding="utf-8")
    needed, said = [*requirements(wheel, trial.extra), *BESIDE.get(trial.extra, ())], ""
    how = ["--constraint", str(constraints)]
    chosen = uv("pip", "install", "--dry-run", *how, *needed, python=python)
    if "nvidia-" in chosen:
        if trial.extra or trial.lowest:
            raise NotHereError("PyTorch would bring CUDA: there is no other build of it here")
        needed = [one for one in needed if not one.startswith("torch")]
        said = "without PyTorch, of which no CPU build is here"
    builds = dict(re.findall(r"(torch|torchvision)==\S+?(\+\w+|)\s", chosen))
    if len(set(builds.values())) > 1:
        raise NotHereError(
            f"torchvision must be of PyTorch's build, {builds['torch'] or 'that of PyPI'}, and is not here"
        )
    if trial.lowest:  # an old PyTorch would bring CUDA
        constraints.write_text("\n".join(re.findall(r"(torch(?:vision)?==\S+)", chosen)), encoding="utf-8")
        how += ["--resolution", "lowest-direct"]
    uv("pip", "install", "--quiet", *how, *needed, python=python)
    uv("pip", "install", "--quiet", "--no-deps", wheel, python=python)
    return python, said


def run(line: str, python: Path, folder: Path) -> None:
    """Run a line of Python, or a command of fedloom, which may have variables before it.

    Raises:
        FailedError: it fails.
    """
    variables = os.environ | {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    if re.match(r"(\w+=\S+ )*(fedloom|mpirun) ", line):
        words: Sequence[str | Path] = ["sh", "-c", line]
    else:
        words = [python, "-c", line]
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise FailedError(f"{line}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")


def tried(trial: Trial, wheel: Path) -> str:
    """Make the environment of a trial, run its lines there, and say what was not as it should be.

    Raises:
        NotHereError: the environment cannot be made here.
        FailedError: a line fails.
    """
    python, said = environment(trial, wheel)
    folder = WORK / trial.name / "folder"
    folder.mkdir()
    light = ("import fedloom; print(fedloom.__version__)", "fedloom algorithms", "fedloom run --help")
    for line in light if said else (*light, *FIRST, *LINES.get(trial.extra, ())):
        run(line, python, folder)
    return said


def digest(trial: Trial, wheel: Path) -> str:
    """Return a digest of what a wheel holds and of how it is tried."""
    lines = "\n".join([*FIRST, *LINES.get(trial.extra, ()), *BESIDE.get(trial.extra, ())]).encode()
    return hashlib.sha256(wheel.read_bytes() + (ROOT / "constraints.txt").read_bytes() + lines).hexdigest()[:16]


def results(chosen: Sequence[Trial], wheel: Path) -> Iterator[tuple[Trial, str, str]]:
    """Try what has not passed yet, and yield each trial with "passed", "not here" or "failed", and what is said."""
    record = WORK / "passed.json"
    passed: dict[str, list[str]] = json.loads(record.read_text()) if record.is_file() else {}
    for trial in chosen:
        how = digest(trial, wheel)
        if (before := passed.get(trial.name, [""]))[0] == how:
            yield trial, "passed", "; ".join(filter(None, ["before", before[1]]))
            continue
        start = time.perf_counter()
        try:
            said = tried(trial, wheel)
        except NotHereError as reason:
            yield trial, "not here", str(reason)
        except (FailedError, subprocess.TimeoutExpired) as reason:
            yield trial, "failed", str(reason)
        else:
            passed[trial.name] = [how, said]
            WORK.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(passed), encoding="utf-8")
            yield trial, "passed", "; ".join(filter(None, [f"{time.perf_counter() - start:.0f} s", said]))
        shutil.rmtree(WORK / trial.name, ignore_errors=True)


def bill_of_materials(python: Path, name: str) -> str:
    """Write what an environment holds into dist/, and return what is said of it.

    It is CycloneDX's where cyclonedx-bom can be had, else what `pip inspect` says, which needs no network.

    Raises:
        FailedError: neither can be written.
    """
    tools, said = WORK / "tools", ""
    try:
        uv("venv", "--quiet", "--allow-existing", tools)
        uv("pip", "install", "--quiet", "cyclonedx-bom", python=tools / "bin/python")
        target = DIST / f"{name}.cdx.json"
        command = [tools / "bin/cyclonedx-py", "environment", python, "--output-reproducible", "-o", target]
    except (NotHereError, FileNotFoundError) as reason:
        target = DIST / f"{name}.pip-inspect.json"
        said = f"; of pip inspect, for cyclonedx-bom cannot be installed: {reason}"
        command = [sys.executable, "-m", "pip", "--python", python, "inspect"]
    DIST.mkdir(exist_ok=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"bill of materials: {done.stderr[-2000:]}")
    if said:
        target.write_text(done.stdout, encoding="utf-8")
    held = json.loads(target.read_text(encoding="utf-8"))
    count = len(held["installed"] if said else held["components"])
    return f"bill of materials: {DIST.name}/{target.name}, {count} packages{said}"


def audit(python: Path) -> list[str]:
    """Return what pip-audit knows of the packages of an environment; without network it is named that it knows none."""
    tools = WORK / "tools"
    try:
        uv("venv", "--quiet", "--allow-existing", tools)
        uv("pip", "install", "--quiet", "pip-audit", python=tools / "bin/python")
    except NotHereError as reason:
        return [f"pip-audit: cannot be installed: {reason}"]
    (site,) = python.parents[1].glob("lib/python3.*/site-packages")
    command = [tools / "bin/pip-audit", "--path", site, "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True)
    return [*audited(done.stdout, done.stderr)]


def audited(found: str, errors: str) -> Iterator[str]:
    """Yield what pip-audit found, by its JSON: what it could not look up is not taken to be sound."""
    if not found.strip():
        yield f"pip-audit: no answer: {(errors.strip().splitlines() or ['it says nothing'])[-1]}"
        return
    packages = json.loads(found)["dependencies"]
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    yield f"pip-audit: {len(packages) - len(unknown)} packages looked up, {len(unknown)} could not be"
    for one in packages:
        for flaw in one.get("vulns", ()):
            mended = f", mended in {', '.join(flaw['fix_versions'])}" if flaw["fix_versions"] else ""
            yield f"pip-audit: {one['name']} {one['version']} has {flaw['id']}{mended}"


def main(names: Sequence[str]) -> int:
    """Run the trials, or write the bill of this environment; exit status 1 where one failed."""
    if names == ["bill"]:
        print(bill_of_materials(Path(sys.executable), "environment"))
        return 0
    every = trials()
    if unknown := set(names) - {trial.name for trial in every}:
        print(f"there is no trial {', '.join(sorted(unknown))}, only {', '.join(trial.name for trial in every)}")
        return 2
    wheels = sorted(DIST.glob("fedloom-*.whl"))
    if len(wheels) != 1:
        print(f"dist/ has {len(wheels)} wheels of fedloom, and one is tried: scripts/make_release.py builds it")
        return 2
    failed = 0
    for trial, verdict, said in results([t for t in every if not names or t.name in names], wheels[0]):
        print(f"{trial.name}: {verdict} ({said})", flush=True)
        failed += verdict == "failed"
    if not names:
        own = Trial(f"{sys.version_info.major}.{sys.version_info.minor}")
        python, _ = environment(own, wheels[0])
        print(bill_of_materials(python, wheels[0].name.removesuffix(".whl")))
        print("\n".join(audit(python)))
        shutil.rmtree(WORK / own.name)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
