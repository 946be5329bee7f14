"""Settings files, flags and what goes on with a run's directory, as a person uses them."""

from __future__ import annotations

import bdb
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import call, error, interrupted, without_warnings
from fedloom import Examples, FedAvg, RunSettings, federate, iid, run
from fedloom.cli import main as cli
from fedloom.coordinator import History, Job
from fedloom.core.errors import SettingError
from fedloom.experiments.experiment import Experiment

ROOT = Path(__file__).parents[2]
TINY = """
model = "own:network"
[data]
source = "own:arrays"
partition = "iid"
clients = 6
[local]
epochs = 1
batch_size = 8
lr = 0.1
[run]
rounds = 3
cohort_size = 3
threads = 1
[fedntd]
beta = 0.25
"""
OWN = """
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn
import fedloom as fl

class Mine(fl.FedAvg):
    pass

@dataclass(frozen=True, kw_only=True)
class Asks(fl.FedAvg):
    mu: float
    nu: float

class run(fl.FedAvg):
    pass

def arrays():
    y = np.arange(120) % 3
    x = (np.eye(3, 5)[y] + 0.3 * np.random.default_rng(0).normal(size=(120, 5))).astype(np.float32)
    return fl.from_arrays(x[:90], y[:90]), fl.from_arrays(x[90:], y[90:])

def network():
    return nn.Linear(5, 3)
"""
BROKEN = """import fedloom as fl

class Mine(fl.FedAvg):
    def term(self, loss, batch, start):
        return nothing

def arrays():
    raise ValueError("no arrays today")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, with a module and a settings file."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def done(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """What a command that must succeed prints."""
    status, out, err = call(capsys, *line.split())
    assert (status, without_warnings(err)) == (0, "")
    return out


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """What a command that must fail says."""
    return error(capsys, *line.split())


def settings(directory: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(directory, "settings.json").read_text())
    return found


# ---- precedence


@pytest.mark.slow
def test_flags_override_the_file_and_set_overrides_flags(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "run fedntd --settings tiny.toml --out a")
    done(capsys, "run fedntd --settings tiny.toml --lr 0.2 --rounds 2 --out b")
    done(capsys, "run fedntd --settings tiny.toml --lr 0.2 --rounds 2 --set local.lr=0.3 --set beta=0.5 --out c")
    a, b, c = map(settings, "abc")
    assert [s["local"]["lr"] for s in (a, b, c)] == [0.1, 0.2, 0.3]
    assert [s["run"]["rounds"] for s in (a, b, c)] == [3, 2, 2]
    assert [s["fedntd"]["beta"] for s in (a, b, c)] == [0.25, 0.25, 0.5]
    assert a["local"]["momentum"] == Experiment().described()["local"]["momentum"]
    assert a["data"]["clients"] == 6


@pytest.mark.slow
def test_the_algorithm_of_the_file_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.toml").write_text('algorithm = "fedntd"\n' + TINY)
    done(capsys, "run --settings one.toml --out a")
    done(capsys, "run fedavg --settings one.toml --out b")
    assert (settings("a")["algorithm"], settings("b")["algorithm"]) == ("fedntd", "fedavg")
    assert refused(capsys, "run --settings tiny.toml") == (
        "a run needs an algorithm: fedloom run NAME, or algorithm = NAME in the settings file [FL-CLI-007]"
    )


@pytest.mark.slow
def test_settings_json_is_a_settings_file(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "run fedntd --settings tiny.toml --set tau=2 --out a")
    done(capsys, "run --settings a/settings.json --out b")
    assert settings("a") == settings("b")
    assert Path("a/metrics.jsonl").read_bytes() == Path("b/metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_a_file_serves_algorithms_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text('algorithm = "own:Mine"\n' + TINY + '[Mine]\naggregation = "uniform"\n')
    done(capsys, "run --settings mine.toml --out a")
    done(capsys, "compare fedavg own:Mine --settings mine.toml --out b")
    assert settings("a")["Mine"]["aggregation"] == settings("b/Mine")["Mine"]["aggregation"] == "uniform"
    assert "Mine" not in settings("b/fedavg")
    assert done(capsys, "data show --settings mine.toml").startswith("arrays, 5 features; iid; ")
    Path("mine.toml").write_text('algorithm = "own:Mine"\n' + TINY + "[Mine]\nagregation = 1\n")
    assert refused(capsys, "run --settings mine.toml") == (
        "mine.toml: Mine has no setting 'agregation' (did you mean 'aggregation'?); it has aggregation, buffers, "
        "shared [FL-METHOD-005]"
    )


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\nround = 3", "run has no setting 'round' (did you mean 'rounds'?); it has rounds, cohort_size, "),
        ("[run]\nrounds = 2.5", "run.rounds must be of type int, got 2.5"),
        ("[run]\nrounds = true", "run.rounds must be of type int, got True"),
        ("[run]\nrounds = 0", "rounds must be >= 1, got 0"),
        (
            '[run]\nengine = "ray"',
            "run.engine must be one of auto, loop, stacked, workers, stacks, gloo, mpi, devices, got 'ray'",
        ),
        ("[local]\nlr = nan", "local.lr must be finite, got nan"),
        ("[dta]\nclients = 3", "there is no setting 'dta.clients' (did you mean 'data.clients'?); settings are "),
        ("[locl]", "there is no setting 'locl.' (did you mean 'local.lr'?); settings are "),
        ("[fedntd]\nbtea = 1", "fedntd has no setting 'btea' (did you mean 'beta'?); it has "),
        ("rounds = 3", "there is no setting 'rounds' (did you mean 'run.rounds'?)"),
        ("lr = 3", "there is no setting 'lr' (did you mean 'local.lr'?)"),
        ("batchsize = 3", "there is no setting 'batchsize' (did you mean 'local.batch_size'?)"),
        ("model = 3", "model must be of type str, got 3"),
        ("[model]\nname = 'mlp'", "there is no setting 'model.name'"),
    ],
)
def test_a_mistake_in_a_file_is_named(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text(text)
    assert refused(capsys, "run fedavg --settings bad.toml").startswith(f"bad.toml: {message}")


@pytest.mark.some(10)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.toml", None, "cannot read the settings file none.toml: No such file or directory"),
        ("a.yaml", b"", "a settings file is .toml or .json, got 'a.yaml'"),
        ("a.toml", b"[run", "a.toml is not well-formed: "),
        (
            "a.toml",
            b"model = mlp",
            "a.toml is not well-formed: Invalid value (at line 1, column 9); text stands in quotes, algorithm = ",
        ),
        (
            "a.toml",
            b".".join([b"a"] * 20_000) + b" = 1",
            "a.toml is not well-formed: a key has at most 32 parts, got a.a",
        ),
        (
            "a.toml",
            b'[" ".' + b" . ".join([b"'a'"] * 20_000) + b"]",
            "a.toml is not well-formed: a key has at most 32 ",
        ),
        (
            "a.toml",
            b"x = {" + b".".join([b'"\\""'] * 20_000) + b" = 1}",
            "a.toml is not well-formed: a key has at most ",
        ),
        ("a.toml", b"x = " + b"[" * 40 + b"]" * 40, "a.toml is not well-formed: TOML is nested too deeply"),
        ("a.toml", b"x = " + b"[" * 9_000 + b"]" * 9_000, "a.toml is not well-formed: "),
        (
            "a.toml",
            b"#" * (1 << 22) + b"\n",
            "a.toml is not well-formed: settings have at most 4,194,304 bytes, got more",
        ),
        (
            "a.json",
            b'{"a": "' + b"x" * (1 << 22) + b'"}',
            "a.json is not well-formed: settings have at most 4,194,304 ",
        ),
        ("a.json", b'{"a": ' * 9_000, "a.json is not well-formed: "),
        ("a.toml", b"\xff", "a.toml is not well-formed: "),
        ("a.json", b"[1]", "a.json is not well-formed: a JSON object is needed, got [1]"),
    ],
)
def test_a_file_that_is_none(
    name: str, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    assert refused(capsys, f"run fedavg --settings {name}").startswith(message)


def test_unknown_keys_of_a_file_are_named_before_a_missing_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.toml").write_text('algoritm = "fedavg"\nmodle = "mlp"\n[run]\nround = 3\n[local]\nlearning = 1\n')
    said = refused(capsys, "run --settings odd.toml")
    assert said.startswith(
        "odd.toml: there is no setting 'algoritm' (did you mean 'algorithm'?), 'modle' (did you mean"
    )
    assert "run has no setting 'round' (did you mean 'rounds'?); it has rounds, " in said
    assert "local has no setting 'learning'" in said
    assert refused(capsys, "run fedavg --settings odd.toml") == said
    Path("odd.toml").write_text("[run]\nrounds = 3\n")
    assert refused(capsys, "run --settings odd.toml").startswith("a run needs an algorithm: fedloom run NAME, or algo")


def test_names_that_modules_do_not_have(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert refused(capsys, "run nowhere:Mine --settings tiny.toml") == (
        "algorithm 'nowhere:Mine': cannot import 'nowhere': No module named 'nowhere'; modules are looked for in the "
        f"current folder ({folder}) and among installed packages [FL-METHOD-014]"
    )
    assert refused(capsys, "run own:Mini --settings tiny.toml") == (
        "algorithm 'own:Mini': own has no 'Mini' (did you mean 'Mine'?) [FL-METHOD-015]"
    )
    assert refused(capsys, "run own:network --settings tiny.toml").startswith(
        "algorithm 'own:network' must be a class derived from fedloom.Algorithm, got "
    )


def test_an_error_in_ones_own_code_is_placed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    Path("broken.py").write_text(BROKEN)
    said = refused(capsys, "run fedavg --settings tiny.toml --data broken:arrays")
    assert said == f"no arrays today ({folder / 'broken.py'}, line 8, in arrays)"
    for engine in ("loop", "stacked", "workers --workers 2"):
        said = refused(capsys, f"run broken:Mine --settings tiny.toml --engine {engine}")
        assert "round 1, batch 0: NameError: name 'nothing' is not defined" in said
        assert said.endswith(f"({folder / 'broken.py'}, line 5, in term)")


def test_debugging_shows_the_whole_traceback(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    Path("broken.py").write_text(BROKEN)
    debugs = ["run", "broken:Mine", "--settings", "tiny.toml", "--debug"]
    status, out, err = call(capsys, *debugs)
    assert (status, "loop engine (asked for)" in out) == (2, True)
    trace, _, said = without_warnings(err).partition("error: ")
    assert trace.startswith("Traceback (most recent call last):")
    assert f'File "{folder / "broken.py"}", line 5, in term' in trace
    assert said.strip().endswith(f"({folder / 'broken.py'}, line 5, in term)")
    status, out, err = call(capsys, *debugs, "--engine", "workers")
    assert "the clients one by one on the engine loop, got engine = 'workers': leave one of both out" in err


@pytest.mark.parametrize("stop", ["breakpoint()", "import pdb; pdb.Pdb().set_trace()", "input('now?')"])
def test_a_debugger_in_a_worker_is_told_of_the_flag(stop: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("stops.py").write_text(BROKEN.replace("return nothing", f"{stop}; return 0.0"))
    said = refused(capsys, "run stops:Mine --settings tiny.toml --engine workers --workers 2")
    assert "a debugger or input() needs a terminal, got a process of the engine workers, which has none: " in said
    assert "with --debug (fedloom.run(..., debug=True))" in said


def test_a_debugger_stops_in_the_process_of_a_run_that_is_debugged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stops.py").write_text(BROKEN.replace("return nothing", "breakpoint(); return 0.0"))
    stopped: list[object] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append(1))
    done(capsys, "run stops:Mine --settings tiny.toml --debug")
    assert stopped


KEPT = "what was written is kept in"


def test_a_debugger_that_is_left_ends_the_command_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stops.py").write_text(BROKEN.replace("return nothing", "breakpoint(); return 0.0"))

    def leave() -> None:
        raise bdb.BdbQuit

    monkeypatch.setattr(sys, "breakpointhook", leave)
    debugs = ["run", "stops:Mine", "--settings", "tiny.toml", "--debug"]
    status, _, err = call(capsys, *debugs)
    said = "the debugger was left; nothing is kept, since no folder was named (--out DIR)"
    assert (status, without_warnings(err).strip()) == (130, said)
    status, _, err = call(capsys, *debugs, "--out", "o")
    said = f"the debugger was left; {KEPT} o: the same command with --resume continues"
    assert (status, without_warnings(err).strip()) == (130, said)
    status, _, err = call(capsys, "compare", "fedavg", *debugs[1:])  # in the trial before the first run
    assert (status, without_warnings(err).startswith("the debugger was left; nothing is kept")) == (130, True)


def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text(
        "from torch import nn\ndef wide():\n    return nn.Linear(6, 3)\ndef narrow():\n    return nn.Linear(5, 2)\n"
    )
    about = "and task Classification do not take the data, 5 in 3 classes: "
    for name, why in (("wide", "RuntimeError: mat1 and mat2 shapes"), ("narrow", "IndexError: Target 2 is out of")):
        said = refused(capsys, f"run fedavg --settings tiny.toml --model broken:{name} --out o")
        assert said.startswith(f"model {name} {about}{why}")
    said = refused(capsys, "run fedavg --settings tiny.toml --task hinge --out o")
    assert said.startswith("model network and task Hinge do not take the data, 5 in 3 classes: ")
    assert not Path("o").exists()


def test_a_mistake_in_one_of_several_runs_shows_before_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "compare fedavg moon --settings tiny.toml --set moon.feature=nope --out o")
    assert "'nope'" in said
    assert not Path("o").exists()
    said = refused(capsys, "run moon --settings tiny.toml --set feature=nope --out o")
    assert "'nope'" in said
    assert not Path("o").exists()


def test_names_under_which_two_things_would_stand(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("import fedloom as fl\nclass Mine(fl.FedAvg):\n    pass\n")
    said = refused(capsys, "compare own:Mine broken:Mine --settings tiny.toml")
    assert said.endswith("got own:Mine and broken:Mine: drop the repeats, or rename your own")
    said = refused(capsys, "run own:run --settings tiny.toml")
    assert said == "tiny.toml: algorithm 'own:run' would have its settings under 'run', where others stand: rename it"


def test_an_algorithm_may_have_settings_without_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run own:Asks --settings tiny.toml --set mu=1")
    assert said == "Asks has settings without a default: give nu=VALUE (--set)"
    done(capsys, "run own:Asks --settings tiny.toml --set mu=1 --set nu=2 --out a")
    assert settings("a")["Asks"]["nu"] == 2.0


@pytest.mark.slow
def test_rows_that_the_source_holds_out_are_not_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{i % 7},{i % 5},{i % 2},{i % 4},{'test' if i % 4 == 3 else 'train'}" for i in range(80)]
    Path("t.csv").write_text("\n".join(["a,b,label,who,split", *rows]) + "\n")
    Path("lists.json").write_text(json.dumps([list(range(k, 80, 8)) for k in range(8)]))
    for partition in ("natural", "iid", "shards:4", "lists:lists.json"):
        text = f"t.csv?client=who&split=split --partition {partition} --clients 4 --cohort 1 --epochs 1 --rounds 1"
        done(capsys, f"run fedavg --model logistic --data {text} --out {partition[:3]}")
        federation = Experiment.from_directory(partition[:3]).federation()
        held_out = np.arange(80) % 4 == 3
        assert sorted(federation.train.y[held_out].tolist()) == [1] * 20
        assert not held_out[federation.partition.indices].any()
        assert federation.local_test is not None
        assert held_out[federation.local_test.indices].all()
    for more, what in (
        ("--public 5", "--public takes 5 rows out"),
        ("--set data.examples=40", "data.examples = 40 takes rows out"),
        ("--set data.classes=2", "data.classes = 2 takes rows out"),
    ):
        said = refused(capsys, f"run fedavg --model logistic --data {text} {more}")
        assert said.startswith(f"{what} and renumbers the others, so the rows in lists:lists.json would be others: ")


def test_lists_are_of_the_rows_that_a_table_has(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{i},{i % 2},{i % 4},{'test' if i % 4 == 3 else 'train'},train" for i in range(80)]
    Path("t.csv").write_text("\n".join(["a,label,who,some,all", *rows]) + "\n")
    Path("lists.json").write_text(json.dumps([list(range(k, 80, 8)) for k in range(8)]))
    few = "--partition lists:lists.json --cohort 1 --epochs 1 --rounds 1 --model logistic"
    for source in ("drop=who,some,all", "client=who&drop=some,all", "split=some&drop=who,all"):
        for more in ("", " --set data.merge=true"):
            said = refused(capsys, f"run fedavg --data t.csv?{source} {few}{more}")
            if "client" in source and more:
                assert said.startswith("to merge takes data without natural clients")
                continue
            assert said.startswith(f"--data 't.csv?{source}' has test rows, and to take them out of the table ")
            assert said.endswith("or name each row's client in one (client=NAME) and use the partition natural")
    done(capsys, f"run fedavg --data t.csv?split=all&drop=who,some {few} --out all")
    federation = Experiment.from_directory("all").federation()
    assert federation.train.x[:, 0].tolist() == list(range(80))
    assert {row % 8 for row in federation.partition.rows(5).tolist()} == {5}


def test_a_table_says_how_its_columns_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("a,b,kind\n" + "1,2,x\n3,4,y\n" * 30)
    said = refused(capsys, "run fedavg --data t.csv")
    assert said.startswith(
        "t.csv: there is no column 'label', got a, b, kind: say which column is the label: t.csv?label=NAME; "
    )
    assert refused(capsys, "run fedavg --data t.csv?drop=a").startswith(said.partition(";")[0])
    assert "no column 'kin' (did you mean 'kind'?), got a, b, kind: name " in refused(
        capsys, "run fedavg --data t.csv?label=kin"
    )
    assert said.endswith(
        "; what else columns may be is said as "
        "t.csv?label=y&client=c&split=s&group=g&drop=a,b&categories=d&gaps=none&prepare=standard, or target=y in the "
        "place of label, or text=t for a column of texts (tokens=words, length=128, most=10000) [FL-TABLE-009]"
    )
    few = "--clients 4 --cohort 2 --rounds 1 --partition iid --model logistic"
    assert "t, 40 training and 12 test" in done(capsys, f"run fedavg --data t.csv?label=kind {few}")


# ---- what goes on with a directory


@pytest.mark.slow
def test_several_seeds_are_several_runs(capsys: pytest.CaptureFixture[str]) -> None:
    out = done(capsys, "compare fedavg fedntd --settings tiny.toml --rounds 1 --seed 1,2 --out runs")
    for name in ("fedavg/seed-1", "fedavg/seed-2", "fedntd/seed-1", "fedntd/seed-2"):
        assert settings(f"runs/{name}")["run"]["seed"] == int(name[-1])
        assert f"\n{name} " in out
    shared = [History.read(f"runs/{n}/seed-1").manifest["federation"]["parts"] for n in ("fedavg", "fedntd")]
    assert shared[0] == shared[1] != History.read("runs/fedavg/seed-2").manifest["federation"]["parts"]
    said = refused(capsys, "run fedavg --settings tiny.toml --out runs/fedavg")
    assert said.startswith("runs/fedavg holds several runs (seed-1, seed-2), and one beside them would be lost among ")
    assert (
        refused(capsys, "run fedavg --settings tiny.toml --seed 1,1") == "each seed must be named once, got --seed 1,1"
    )


@pytest.mark.slow
def test_runs_go_on_and_missing_ones_start(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "compare fedavg scaffold --no-local-only --settings tiny.toml --out whole")
    done(capsys, "run fedavg --settings tiny.toml --rounds 2 --out cut/fedavg")
    assert "cut/fedavg already holds a run" in refused(capsys, "compare fedavg scaffold --settings tiny.toml --out cut")
    out = done(capsys, "compare fedavg scaffold --no-local-only --settings tiny.toml --out cut --resume")
    assert "fedavg: stacked engine" in out
    assert ", from round 2\n" in out
    for name in ("fedavg", "scaffold"):
        assert Path("cut", name, "metrics.jsonl").read_bytes() == Path("whole", name, "metrics.jsonl").read_bytes()
    out = done(capsys, "resume whole --rounds 4 --allow-code")
    assert out.count(", from round 3\n") == 2
    assert len(History.read("whole/scaffold").metrics) == 5
    done(capsys, "resume whole/fedavg --at 0 --rounds 1 --allow-code")
    assert len(History.read("whole/fedavg").metrics) == 2
    assert refused(capsys, "run fedavg --settings tiny.toml --resume") == (
        "--resume continues the runs of a directory: name it with --out DIR [FL-RUN-010]"
    )
    said = refused(capsys, "run fedavg --settings tiny.toml --lr 0.5 --resume --out cut/fedavg")
    assert "holds a run with other settings or data: hyper_parameters.local.optimiser.lr was 0.1 and is 0.5" in said


def test_an_interrupted_run_says_how_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Job, "run", interrupted)
        assert cli.main(["run", "fedavg", "--settings", "tiny.toml", "--out", "a"]) == 130
    assert capsys.readouterr().err == f"interrupted; {KEPT} a: the same command with --resume continues\n"
    done(capsys, "run fedavg --settings tiny.toml --out a --resume")
    assert len(History.read("a").metrics) == 4


@pytest.mark.slow
def test_a_comparison_that_cannot_go_on_is_refused_before_any_of_it_trains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "compare fedavg fedprox --settings tiny.toml --no-local-only --out both"
    done(capsys, f"{words} --set fedprox.mu=1")
    before = {path: path.read_bytes() for path in Path("both").rglob("*") if path.is_file()}
    said = refused(capsys, f"{words} --set fedprox.mu=2 --rounds 9 --resume")
    assert "both/fedprox holds a run with other settings or data: hyper_parameters.mu was 1.0 and is 2.0" in said
    said = refused(capsys, f"{words} --set fedprox.mu=1 --rounds 1 --resume")
    assert said.endswith("got 1: set more, or go back to a checkpoint (fedloom resume --at ROUND)")
    assert {path: path.read_bytes() for path in Path("both").rglob("*") if path.is_file()} == before


def test_a_run_from_python_has_no_words_but_an_experiment_has(capsys: pytest.CaptureFixture[str]) -> None:
    y = torch.arange(60) % 3
    train = Examples(torch.eye(3)[y], y, 3)
    federation = federate(train, iid(y, 5, seed=0))
    run(FedAvg(), federation, lambda: torch.nn.Linear(3, 3), RunSettings(rounds=1, cohort_size=2), directory="a")
    for command in ("resume a", "replay a 1", "export a m.pt"):
        said = refused(capsys, command)
        assert said.startswith("the run in a was started from Python with objects of its own: go on with it from there")
        assert said.endswith("fedloom.predict(..., job=...) or fedloom.export")
    words = {
        "model": "own:network",
        "data": {"source": "own:arrays", "partition": "iid", "clients": 4},
        "run": {"rounds": 1, "cohort_size": 2},
    }
    Experiment.of(words).job().run("b")
    done(capsys, "resume b --rounds 2 --allow-code")
    done(capsys, "export b m.pt --allow-code")
    assert len(History.read("b").metrics) == 3


def test_settings_within_settings_without_end() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"a": deep}
    with pytest.raises(SettingError, match=r"settings are nested at most 32 deep, got local\.a\.a"):
        Experiment.of({"local": deep})


def test_a_comparison_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "compare fedavg fedprox --settings tiny.toml --no-local-only --rounds 1 --out two")
    for command in ("replay two 1", "export two a.pt", "analyse two confusion", "evaluate two --client 0"):
        said = refused(capsys, command)
        assert said == "two holds 2 runs and is none itself: name one, such as two/fedavg or two/fedprox"


def test_a_folder_without_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert refused(capsys, "resume empty") == (
        "there is no run in empty; name the folder that --out named [FL-RUN-020]"
    )
    for command in ("replay empty 1", "export empty a.pt"):
        assert refused(capsys, command) == "empty holds no run; name a folder with a settings.json, as --out makes it"


@pytest.mark.slow
def test_a_round_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "run fedavg --settings tiny.toml --rounds 4 --out a")
    out = done(capsys, "replay a 3 --save local --allow-code")
    assert out.splitlines()[1].strip() == "Local models of round 3"
    agrees = "the same cohort, losses and bytes as in the log"
    assert out.splitlines()[-1] == f"{agrees}, and the same bits as the checkpoint of round 3"
    clients = History.read("a").metrics[3]["clients"]
    assert sorted(p.name for p in Path("local").iterdir()) == sorted(f"client-{k}.safetensors" for k in clients)
    out = done(capsys, "replay a 2 --allow-code")
    assert out.splitlines()[-1] == agrees  # round 2 has no checkpoint any more
    at = Path("a").absolute()
    assert refused(capsys, "replay a 5 --allow-code") == f"the run in {at} has the rounds 1 to 4 to replay, got 5"
    assert refused(capsys, "replay a 0 --allow-code") == f"the run in {at} has the rounds 1 to 4 to replay, got 0"
    done(capsys, "run centralised --settings tiny.toml --rounds 1 --out b")
    (row,) = (
        line.split() for line in done(capsys, "replay b 1 --allow-code").splitlines() if line.split()[:1] == ["all"]
    )
    assert int(row[1]) == sum(map(sum, History.read("b").federation["train"]))


@pytest.mark.slow
def test_models_are_exported(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "run pfedsd --settings tiny.toml --out a")
    assert done(capsys, "export a global.pt --allow-code").splitlines() == [
        f"a imports 'own:network' ({Path('own.py').resolve()}), 'own:arrays' ({Path('own.py').resolve()})",
        "global model (network) after round 3: global.pt",
    ]
    client = History.read("a").metrics[-1]["clients"][0]
    done(capsys, f"export a own.pt --client {client} --allow-code")
    done(capsys, "export a first.pt --at 0 --allow-code")
    found = [torch.load(f"{n}.pt", weights_only=True) for n in ("global", "own", "first")]
    assert all(sorted(f) == ["bias", "weight"] and f["weight"].shape == (3, 5) for f in found)
    assert not torch.equal(found[0]["weight"], found[1]["weight"])
    assert not torch.equal(found[0]["weight"], found[2]["weight"])
    assert "first.pt" in refused(capsys, "export a first.pt --allow-code")
    assert refused(capsys, "export a b.pt --client 6 --allow-code") == "client must be in 0..5, got 6"
    assert refused(capsys, "export a b.pt --client 0 --model network --allow-code") == (
        "a client has one model: give --client 0 or --model network, not both"
    )
    assert refused(capsys, "export a b.pt --model mlp --allow-code") == "the run has no model 'mlp'; it has network"
    shutil.rmtree("a")
    done(capsys, "run local_only --settings tiny.toml --out a")
    assert (
        refused(capsys, "export a b.pt --allow-code") == "LocalOnly has no global model; name a client with --client 0"
    )


def test_a_run_starts_from_exported_weights(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "run fedavg --settings tiny.toml --out a")
    done(capsys, "export a end.safetensors --allow-code")
    done(capsys, "run fedavg --settings tiny.toml --start end.safetensors --out b")
    first, last = History.read("b").metrics[0], History.read("a").metrics[-1]
    assert (first["global_loss"], first["global_accuracy"]) == (last["global_loss"], last["global_accuracy"])


def test_a_tracker_gets_every_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Listening:
        def __init__(self, target: str) -> None:
            self.target = target

        def start(self, settings: Any) -> None:
            seen.append((self.target, settings["algorithm"]))

        def log(self, round: int, metrics: Any) -> None:
            seen.append((self.target, round, "global_accuracy" in metrics))

        def finish(self, status: str) -> None:
            seen.append((self.target, status))

    monkeypatch.setitem(sys.modules["fedloom.experiments.trackers"]._TRACKERS, "tensorboard", (Listening, "DIR"))
    done(capsys, "compare fedavg fedntd --no-local-only --settings tiny.toml --rounds 1 --track tensorboard:tb")
    assert seen == [
        *[("tb/fedavg", "fedavg"), ("tb/fedavg", 0, True), ("tb/fedavg", 1, True), ("tb/fedavg", "finished")],
        *[("tb/fedntd", "fedntd"), ("tb/fedntd", 0, True), ("tb/fedntd", 1, True), ("tb/fedntd", "finished")],
    ]
    said = refused(capsys, "run fedavg --settings tiny.toml --track neptune:x --out o")
    assert said.startswith("a tracker is one of tensorboard:DIR, wandb:PROJECT, mlflow:EXPERIMENT, got 'neptune:x'")
    assert not Path("o").exists()


def test_data_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = done(capsys, "data show --settings tiny.toml --partition shards:1 --shown 3 --out held.svg")
    assert out.splitlines()[0] == "arrays, 5 features; shards s=1; training examples by class"
    assert out.splitlines()[-1] == "figure: held.svg"
    assert Path("held.svg").read_text().lstrip().startswith("<?xml")
    out = done(capsys, "data sources")
    named = {line.split("  ")[0]: line for line in out.splitlines()}
    assert [named[name].split()[-1] for name in ("mnist", "cinic10")] == ["yes", "-"]
    assert "needs no files" in named["fashion_mnist_small"]
    assert "Deal all examples in random order" in named["iid"]
    assert "lists:FILE.json" in named


@pytest.mark.slow
def test_local_only_stands_beside_a_comparison_unless_declined(capsys: pytest.CaptureFixture[str]) -> None:
    out = done(capsys, "compare fedavg fedprox --settings tiny.toml --rounds 1 --seed 1,2 --out runs")
    assert Path("runs/local_only/seed-2/metrics.jsonl").exists()
    assert "run 6 of 6, local_only/seed-2: stacked engine" in out
    assert "summary: runs/summary.tex, runs/summary.md, runs/summary.csv" in out
    said = done(capsys, "summary runs --against local_only --reading best --out paper")
    assert "personal minus" in " ".join(said.split())
    assert Path("paper/summary.tex").read_text(encoding="utf-8").startswith(r"\begin{table}")
    out = done(capsys, "compare fedavg fedprox --settings tiny.toml --rounds 1 --test-fraction 0")
    assert "local_only is left out: clients hold out no examples for evaluation" in out
    out = done(capsys, "compare fedavg fedprox --no-local-only --settings tiny.toml --rounds 1")
    assert "local_only" not in out
