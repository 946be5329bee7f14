"""What words can set, they write down again: for every setting of every algorithm, and of a run."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from fedloom import SGD, Adam, Algorithm, FedAvg, Local
from fedloom.algorithms import ALGORITHMS
from fedloom.cli.main import main
from fedloom.coordinator.descriptions import plain
from fedloom.core.choices import field_types
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.local_training import Distill
from fedloom.core.optimiser import OPTIMISERS, AdamW
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.nested_settings import parts, with_parts
from fedloom.experiments.settings_file import flat, read_settings
from fedloom.experiments.trials import Sweep

FORMS = {
    "clients.attack": "labels",
    "clients.attackers": "0.25",
    "run.aggregator": "median",
    "run.bound": "clip:sent:2",
}


def others(value: Any, kind: Any, key: str) -> list[Any]:
    """Values unlike a default, likely ones first."""
    if key.rpartition(".")[2] == "optimiser":
        return [word for word in OPTIMISERS if word != value]
    if key.endswith("schedule") and kind is str:  # by rounds, or by steps
        return ["cosine:9", "cosine:9?by=step"]
    if key in FORMS:
        return [FORMS[key]]
    several = [k for k in get_args(kind) if k is not type(None)]
    if get_origin(kind) is Literal:
        return [k for k in several if k != value]
    if get_origin(kind) is tuple:
        if int in several:
            return [tuple(v + 3 for v in value)]
        if not value:  # of measures
            return [("auc", "log_loss")]
        return [value[:1] if isinstance(value[0], str) else tuple(v / 2 if v else 3 for v in value)]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [v for v in (value + 1, value / 2 if isinstance(value, float) else value - 1, 0.5) if v != value]
    if value is None:
        return ["3"] if str in several else [3, 0.7]
    return ["* !classifier.*", "x"]


def algorithm_of(experiment: Experiment) -> Algorithm[Any, Any]:
    own = experiment.settings.get(experiment.algorithm, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)
        return catalogue.algorithm(experiment.algorithm, experiment.local, own)


def read_again(experiment: Experiment) -> Experiment:
    """As settings.json has it."""
    return Experiment.of(json.loads(json.dumps(plain(experiment.described()))))


def keys(name: str) -> list[str]:
    described = Experiment(algorithm=name).described()
    return [key for key in flat(described) if "." in key and key != "run.device"]


def kind_of(experiment: Experiment, key: str) -> Any:
    *path, name = key.split(".")
    whole: Any = algorithm_of(experiment) if path[0] == experiment.algorithm else getattr(experiment, path[0])
    for part in path[1:]:
        whole = getattr(whole, part)
    kinds = field_types(type(whole))
    return kinds.get(name) or field_types(type(whole.optimiser))[name]


ALL = [(name, key) for name in ALGORITHMS for key in keys(name) if name == "fedavg" or key.startswith(f"{name}.")]


@pytest.mark.some(11)
@pytest.mark.parametrize(("name", "key"), ALL)
def test_every_setting_comes_back_as_it_was_written(name: str, key: str) -> None:
    base = Experiment(algorithm=name)
    if key.endswith("nesterov"):
        base = base.changed(key.replace("nesterov", "momentum"), 0.5)
    if key == "clients.joins":
        base = base.changed("clients.new", "2")
    if key.startswith("clients.attack"):  # one takes the other
        base = base.with_all({"clients.attack": "sign_flip", "clients.attackers": "0.5"})
    default = flat(base.described())[key]
    for value in others(default, kind_of(base, key), key):
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        try:
            changed = base.changed(key, text)
        except SettingError:
            continue
        break
    assert flat(changed.described())[key] == value != default
    again = read_again(changed)
    assert again.described() == changed.described() != base.described()
    assert algorithm_of(again) == algorithm_of(changed)
    if key.startswith(f"{name}."):
        assert algorithm_of(changed) != algorithm_of(base)


def test_the_algorithm_may_stand_after_its_settings() -> None:
    own = f"{__name__}:Own"
    for given in ({"algorithm": own, "Own.aggregation": "uniform"}, {"Own.aggregation": "uniform", "algorithm": own}):
        assert Experiment().with_all(given).settings == {"Own": {"aggregation": "uniform"}}


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if "distill" in vars(ALGORITHMS[n]())])
def test_the_kind_of_an_optimiser_is_a_word(name: str) -> None:
    for word, kind, own in (("sgd", SGD, "momentum"), ("adam", Adam, "eps")):
        # whatever the order: `own` is a part of this optimiser only
        own_first = {f"{name}.distill.{own}": "0.25", f"{name}.distill.optimiser": word}
        changed = Experiment(algorithm=name).with_all(own_first)
        distill: Any = algorithm_of(changed).distill  # type: ignore[attr-defined]
        assert type(distill.optimiser) is kind
        assert getattr(distill.optimiser, own) == 0.25
        assert distill.optimiser.lr == ALGORITHMS[name]().distill.optimiser.lr  # type: ignore[attr-defined]
        assert algorithm_of(read_again(changed)) == algorithm_of(changed)
        known = Experiment.of({"algorithm": name, name: {"distill": {own: 0.25, "optimiser": word}}})
        assert algorithm_of(known) == algorithm_of(changed)


def test_parts_of_another_optimiser_are_refused() -> None:
    with pytest.raises(SettingError) as error:
        Experiment().with_all({"local.optimiser": "adam", "local.momentum": "0.5"})
    assert str(error.value) == (
        "local has no setting 'momentum' with the optimiser adam; it has epochs, batch_size, optimiser, decay, steps, "
        "keep_optimiser, lr, clip, clip_value, micro_batch, schedule, betas, eps, weight_decay [FL-RUN-006]"
    )
    with pytest.raises(
        SettingError, match=r"local\.optimiser must be one of sgd, .*, got 'rms' \(did you mean 'rmsprop'\?\)"
    ):
        Experiment().changed("local.optimiser", "rms")
    with pytest.raises(SettingError, match=r"local\.betas must be a list of 2, with commas between them, got '0.9'"):
        Experiment().with_all({"local.optimiser": "adam", "local.betas": "0.9"})
    with pytest.raises(SettingError, match=r"local\.betas must be of type float, got 'x'"):
        Experiment().with_all({"local.optimiser": "adam", "local.betas": "0.9,x"})


def test_another_optimiser_keeps_what_both_have() -> None:
    local = Local(optimiser=SGD(lr=0.3, momentum=0.5, weight_decay=0.1, clip=2.0))
    found = with_parts(local, "local", {"optimiser": "adam", "betas": [0.8, 0.9]})
    assert found.optimiser == Adam(lr=0.3, weight_decay=0.1, clip=2.0, betas=(0.8, 0.9))
    assert with_parts(local, "local", {"optimiser": "sgd"}) == local
    assert parts(found)["betas"] == (0.8, 0.9)


class Mine(SGD):
    """Of somebody's own."""


def test_an_optimiser_of_ones_own_is_named_by_its_module() -> None:
    local = Local(optimiser=Mine(lr=0.2))
    assert parts(local)["optimiser"] == f"{__name__}:Mine"
    assert read_again(Experiment(local=local)).local == local
    found = Experiment().with_all({"local.optimiser": f"{__name__}:Mine", "local.momentum": "0.5"})
    assert found.local.optimiser == Mine(lr=0.01, weight_decay=1e-5, momentum=0.5)
    with pytest.raises(SettingError, match=r"must be a class derived from fedloom\.Optimiser, got <function parts"):
        Experiment().changed("local.optimiser", "fedloom.experiments.nested_settings:parts")


def test_optimisers_without_a_name_stay_as_they_are() -> None:
    class Inner(SGD):
        """Of a function."""

    assert parts(Local(optimiser=Inner())) == {
        "epochs": 5, "batch_size": 50, "decay": 1.0, "steps": None, "keep_optimiser": False,
    }  # fmt: skip
    assert parts(Distill(batch_size=4, optimiser=Inner())) == {"batch_size": 4}
    with pytest.raises(SettingError, match=r"the optimiser of an experiment has a name, sgd, .* or module:Class"):
        Experiment(local=Local(optimiser=Inner()))


@pytest.mark.parametrize("form", ["table", "text"])
def test_an_optimiser_is_a_table_of_its_kind_and_fields(form: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        """algorithm = "fedbe"
[local]
optimiser = {kind = "adam", lr = 0.002, betas = [0.8, 0.9]}
[fedbe.distill]
optimiser = {kind = "adam", lr = 0.5, schedule = "cosine:7?by=step"}
"""
    )
    given = {
        "local.optimiser.kind": "adam", "local.optimiser.lr": "0.002", "local.optimiser.betas": "0.8,0.9",
        "fedbe.distill.optimiser.kind": "adam", "fedbe.distill.optimiser.lr": "0.5",
        "fedbe.distill.optimiser.schedule": "cosine:7?by=step",
    }  # fmt: skip
    base = Experiment(algorithm="fedbe")
    found = Experiment.of(read_settings(file)) if form == "table" else base.with_all(given)
    assert found.local.optimiser == Adam(lr=0.002, betas=(0.8, 0.9), weight_decay=1e-5)
    made: Any = algorithm_of(found)
    assert made.distill == Distill(batch_size=128, optimiser=Adam(lr=0.5, schedule="cosine:7?by=step"))
    described = found.described()
    assert described["local"]["optimiser"] == "adam"  # with its fields beside it, as flags have them
    assert described["local"]["lr"] == 0.002
    assert described["fedbe"]["distill"]["schedule"] == "cosine:7?by=step"
    assert algorithm_of(read_again(found)) == made
    assert read_again(found).described() == described
    back = with_parts(made.distill, "distill", {"optimiser": "sgd"})  # with what both have
    assert back == Distill(batch_size=128, optimiser=SGD(lr=0.5, schedule="cosine:7?by=step"))


def test_fields_of_a_table_may_be_changed_one_by_one() -> None:
    base = Experiment.of({"algorithm": "fedbe", "fedbe": {"distill": {"optimiser": {"kind": "adamw", "eps": 1e-6}}}})
    assert algorithm_of(base).distill.optimiser == AdamW(lr=1e-3, eps=1e-6, weight_decay=0.0)  # type: ignore[attr-defined]
    changed = base.changed("fedbe.distill.optimiser.eps", "0.5")
    assert algorithm_of(changed).distill.optimiser == AdamW(lr=1e-3, eps=0.5, weight_decay=0.0)  # type: ignore[attr-defined]
    both = Experiment().with_all({"local.optimiser.kind": "adam", "local.lr": "0.1"})
    assert both.local.optimiser == Adam(lr=0.1, weight_decay=1e-5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptimiser(FedAvg):
    """With an optimiser that is no part of anything."""

    server: Any = dataclasses.field(default_factory=lambda: SGD(lr=1.0))


def test_an_optimiser_may_be_a_setting_itself() -> None:
    base = Experiment(algorithm=f"{__name__}:ServerOptimiser")
    assert base.described()["ServerOptimiser"]["server"]["kind"] == "sgd"
    changed = base.with_all({"ServerOptimiser.server.kind": "adam", "ServerOptimiser.server.betas": "0.5,0.9"})
    own = changed.settings["ServerOptimiser"]
    made: Any = catalogue.algorithm(changed.algorithm, changed.local, own)
    assert made.server == Adam(lr=1.0, betas=(0.5, 0.9))
    assert read_again(changed).described() == changed.described()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"local.optimiser.kind": "cosine"},
            "local.optimiser must be one of sgd, adam, adamw, rmsprop, adagrad, or module:Class of your own, got "
            "'cosine'",
        ),
        (
            {"local.optimiser.beta": "1"},
            "local.optimiser of kind sgd has no field 'beta'; it has kind, lr, clip, clip_value, micro_batch, "
            "schedule, momentum, weight_decay, nesterov",
        ),
        (
            {"local.optimiser.lr": "fast"},
            "local.optimiser.lr must be of type float, got 'fast': write one number, such as 0.1 [FL-RUN-008]",
        ),
        ({"local.optimiser.lr": "-1"}, "lr must be > 0, got -1.0 [FL-RUN-008]"),
        (
            {"fedbe.distill.optimiser.kind": "rmspro"},
            "FedBE.distill.optimiser must be one of sgd, adam, adamw, rmsprop, adagrad, or module:Class of your own, "
            "got 'rmspro' (did you mean 'rmsprop'?)",
        ),
        (
            {"fedbe.distill.schedule": "cosine:9"},
            "training on public examples has a schedule of its steps, got schedule = 'cosine:9', by rounds: write "
            "cosine:9?by=step",
        ),
    ],
)
def test_what_an_optimiser_has_not_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as error:
        Experiment(algorithm="fedbe").with_all(given)
    assert str(error.value).lower() == message.lower()


@dataclasses.dataclass(frozen=True)
class Schedule:
    start: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(FedAvg):
    """With a part of its own kind, and something that no word can set."""

    schedule: Schedule = Schedule()
    layers: tuple[str, ...] = ("a",)
    hook: Any = None


def test_settings_of_ones_own_come_back_too() -> None:
    base = Experiment(algorithm=f"{__name__}:Own")
    changed = base.with_all({"Own.schedule.start": "5", "Own.layers": "b,c"})
    assert changed.described()["Own"]["schedule"] == {"start": 5}
    assert changed.described()["Own"]["layers"] == ("b", "c")
    assert "hook" not in changed.described()["Own"]
    assert read_again(changed).described() == changed.described()
    with pytest.raises(SettingError, match=r"Own\.schedule has no setting 'stop'; it has start"):
        base.changed("Own.schedule.stop", 1)
    with pytest.raises(SettingError, match=r"Own\.schedule has parts: set schedule\.start"):
        base.changed("Own.schedule", 1)
    with pytest.raises(SettingError, match=r"Own\.hook cannot be set by its name; set it in Python"):
        base.changed("Own.hook", 1)


def test_a_sweep_tells_lists_and_optimisers_apart() -> None:
    base = Experiment.of({"algorithm": "feddf", "data": {"public": 50, "val_fraction": 0.2}})
    space = {"distill.betas": ["0.8,0.9", [0.9, 0.99]], "distill.optimiser": ["adam"]}
    trials = Sweep(base, space).trials
    assert [t.settings["feddf.distill.betas"] for t in trials] == [[0.8, 0.9], [0.9, 0.99]]


FAST = "--clients 20 --cohort 3 --epochs 1 --batch-size 100 --model logistic --threads 1 --rounds 2 --public 50"


@pytest.mark.slow
def test_a_run_with_lists_and_another_optimiser_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "--set steps=2 --set distill.betas=0.8,0.9 --optimiser adam --set local.betas=0.7,0.8"
    assert main(f"run feddf {FAST} {said} --out {tmp_path / 'a'}".split()) == 0
    assert main(f"run feddf {FAST} {said} --rounds 1 --out {tmp_path / 'b'}".split()) == 0
    assert main(["resume", str(tmp_path / "b"), "--rounds", "2"]) == 0
    assert main(f"run feddf --settings {tmp_path / 'a' / 'settings.json'} --out {tmp_path / 'c'}".split()) == 0
    logs = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in "abc"]
    assert logs[0] == logs[1] == logs[2]
    job = Experiment.from_directory(tmp_path / "b").job()
    assert job.algorithm.distill.optimiser.betas == (0.8, 0.9)
    assert job.algorithm.local.optimiser == Adam(lr=0.01, weight_decay=1e-5, betas=(0.7, 0.8))
    assert capsys.readouterr().err == ""
