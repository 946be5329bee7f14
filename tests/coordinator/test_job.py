"""Runs: what they measure, write, repeat and refuse."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import (
    DENSE,
    KDNTD,
    SGD,
    Adam,
    Algorithm,
    APFLNi,
    Centralised,
    Classification,
    Digest,
    Distill,
    Examples,
    FedADI,
    FedAvg,
    FedBE,
    FedDAFL,
    FedDF,
    Federation,
    FedMDKT,
    FedNTD,
    FedNTDMSE,
    KTpFL,
    LocalOnly,
    Model,
    PFedDF,
    PFedSD,
    RunSettings,
    Scaffold,
    SimPFL,
    TopKPFL,
    Unreliable,
    federate,
    run,
    self_distilled,
)
from fedloom.coordinator import FixedList, History, SeededByRound
from fedloom.core import tree
from fedloom.core.errors import NonFiniteError, SettingError, SettingWarning
from fedloom.core.requires import Requires
from fedloom.data import by_lists
from fedloom.evaluate import classify, forgetting, in_local, out_local, rows_right
from tiny import LOCAL, examples, federation, linear, mlp

SETTINGS = RunSettings(rounds=3, cohort_size=3, engine="loop")
ENGINES = ("loop", "stacked")


def strict(line: str) -> Any:
    """JSON as the standard has it, without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {line}")

    return json.loads(line, parse_constant=refuse)


def lines(path: Path) -> list[Any]:
    return [strict(line) for line in path.read_text().splitlines()]


# ---- files


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_writes_what_it_measures(engine: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, engine=engine)
    history = run(FedNTD(local=LOCAL, beta=0.5), federation(), linear, settings, directory=tmp_path / "a" / "b")
    out = tmp_path / "a" / "b"
    files = ["federation.json", "manifest.json", "metrics.jsonl", "settings.json", "timing.jsonl"]
    assert sorted(p.name for p in out.iterdir()) == [".lock", "checkpoints", *files]
    assert lines(out / "metrics.jsonl") == history.metrics
    assert lines(out / "timing.jsonl") == history.timing
    assert [m["round"] for m in history] == [0, 1, 2, 3]
    assert [t["round"] for t in history.timing] == [0, 1, 2, 3]
    assert set(history.timing[2]["seconds"]) == {"sample", "train", "evaluate"}

    written = strict((out / "manifest.json").read_text())
    assert written["algorithm"] == "FedNTD"
    assert written["hyper_parameters"]["beta"] == 0.5
    assert written["hyper_parameters"]["local"]["optimiser"] == {"kind": "SGD", **vars(SGD(lr=0.1))}
    assert written["run"]["seed"] == 0
    assert (written["engine"], written["engine_reason"]) == (engine, "asked for")
    assert written["federation"]["parts"]["train"] == federation().train.fingerprint()
    assert written["models"] == {"Linear": 15}
    assert written["fixed"]["threads"] == torch.get_num_threads()
    assert written["task"]["kind"] == "Classification"
    assert written["sampler"] == {"kind": "Uniform", "seed": 0}


def test_settings_tell_optimisers_apart(tmp_path: Path) -> None:
    local = dataclasses.replace(LOCAL, optimiser=Adam(lr=0.01))
    run(FedAvg(local=local), federation(), linear, SETTINGS, sampler=SeededByRound(), directory=tmp_path)
    written = strict((tmp_path / "manifest.json").read_text())
    assert written["hyper_parameters"]["local"]["optimiser"]["kind"] == "Adam"
    assert written["sampler"] == {"kind": "SeededByRound"}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_seed_determines_every_byte_of_the_metrics(engine: Any, tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        settings = dataclasses.replace(SETTINGS, engine=engine, seed=seed)
        run(PFedSD(local=LOCAL), federation(), linear, settings, directory=tmp_path / name)
    a, b, c = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_the_global_generators_matter_not_and_are_left_alone() -> None:
    def metrics(seed: int) -> Any:
        torch.manual_seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state()
        found = run(FedAvg(local=LOCAL), federation(), mlp, SETTINGS).metrics
        assert torch.equal(torch.get_rng_state(), before)
        return found

    assert metrics(1) == metrics(2)


@pytest.mark.slow
def test_both_engines_measure_the_same_in_float64() -> None:
    settings = dataclasses.replace(SETTINGS, dtype="float64")
    a, b = (run(Scaffold(local=LOCAL), federation(), mlp, dataclasses.replace(settings, engine=e)) for e in ENGINES)
    for name in ("global_accuracy", "global_loss", "train_loss", "personal_accuracy", "bytes_up", "bytes_down"):
        np.testing.assert_allclose(a.series(name), b.series(name), atol=1e-9)
    assert [m.get("clients") for m in a] == [m.get("clients") for m in b]


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(SettingError, match="already holds a run; continue it"):
        run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    with pytest.raises(SettingError, match="is a file; name a directory"):
        run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path / "metrics.jsonl")


def test_a_refused_run_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        run(KTpFL(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- what is measured


def test_global_numbers_are_those_of_the_final_model() -> None:
    parts = federation()
    history = run(FedAvg(local=LOCAL), parts, mlp, SETTINGS)
    model, last = Model(mlp), history.metrics[-1]
    assert parts.test is not None
    found = classify(model, history.server["Sequential"], Classification(), parts.test)
    assert last["global_accuracy"] == found.accuracy
    assert last["global_loss"] == pytest.approx(found.loss, abs=1e-6)
    assert last["class_accuracy"] == found.per_class.tolist()
    assert history.per_class.shape == (3, 3)  # rounds, classes; not that of before training
    assert last["forgetting"] == pytest.approx(forgetting(history.per_class).mean())
    counts = parts.counts()[last["clients"]]
    share = counts / counts.sum(1, keepdims=True)
    assert last["in_local_accuracy"] == pytest.approx(in_local(share, found.per_class).mean())
    assert last["out_local_accuracy"] == pytest.approx(out_local(share, found.per_class).mean())


def test_the_first_round_has_nothing_to_forget() -> None:
    history = run(FedAvg(local=LOCAL), federation(), linear, SETTINGS)
    assert "forgetting" not in history.metrics[0]
    assert history.metrics[1]["forgetting"] is None
    assert len(history.series("forgetting")) == 2


@pytest.mark.slow
def test_training_teaches() -> None:
    history = run(FedAvg(local=LOCAL), federation(), linear, dataclasses.replace(SETTINGS, rounds=10))
    assert history.last("global_accuracy") > 0.75
    assert history.last("global_accuracy") > history.metrics[0]["global_accuracy"] + 0.2
    assert history.metrics[-1]["train_loss"] < 0.7 * history.metrics[1]["train_loss"]


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [FedAvg, PFedSD, LocalOnly])
def test_personal_numbers_are_by_client(engine: Any, algorithm: Any) -> None:
    settings = dataclasses.replace(SETTINGS, engine=engine)
    last = run(algorithm(local=LOCAL), federation(), linear, settings).metrics[-1]
    rates = [last["personal_by_client"][str(k)] for k in range(6)]
    assert last["personal_accuracy"] == pytest.approx(np.mean(rates))
    assert last["personal_std"] == pytest.approx(np.std(rates))
    assert last["personal_worst_tenth"] == min(rates)
    assert all(round(r * 3) == pytest.approx(r * 3) for r in rates)  # of 3 held-out examples each


@pytest.mark.slow
def test_the_panel_limits_who_is_judged() -> None:
    def evaluated(seed: int, panel: int) -> set[str]:
        settings = dataclasses.replace(SETTINGS, rounds=1, panel=panel, seed=seed)
        return set(run(FedAvg(local=LOCAL), federation(), linear, settings).metrics[-1]["personal_by_client"])

    assert len(evaluated(0, 2)) == 2
    assert evaluated(0, 2) == evaluated(0, 2)
    assert len({frozenset(evaluated(s, 2)) for s in range(4)}) > 1
    assert evaluated(0, 100) == set(map(str, range(6)))


@pytest.mark.slow
def test_eval_every_spares_personal_models_only() -> None:
    history = run(PFedSD(local=LOCAL), federation(), linear, dataclasses.replace(SETTINGS, rounds=5, eval_every=2))
    assert [m["round"] for m in history if "personal_accuracy" in m] == [0, 2, 4, 5]
    assert len(history.series("global_accuracy")) == 6


@pytest.mark.slow
def test_evaluation_has_no_consequences() -> None:
    runs = [
        run(PFedSD(local=LOCAL), federation(), mlp, dataclasses.replace(SETTINGS, eval_every=n)).server for n in (1, 9)
    ]
    for a, b in zip(tree.leaves(runs[0]), tree.leaves(runs[1]), strict=True):
        assert torch.equal(a, b)


def test_without_test_sets_there_is_nothing_to_measure() -> None:
    history = run(FedAvg(local=LOCAL), federation(test=None, test_fraction=0), linear, SETTINGS)
    sent = {"bytes_down", "bytes_up", "bytes_down_model", "bytes_up_model"}
    assert set(history.metrics[-1]) == {"round", "clients", "failed", "train_loss", *sent}
    assert np.isnan(history.last("global_accuracy"))
    assert history.per_class.size == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:personal accuracy is measured on what")
@pytest.mark.parametrize("algorithm", [FedAvg, PFedSD])
def test_clients_too_small_to_hold_anything_out(algorithm: Any) -> None:
    train = examples(12)
    mixed = federate(train, by_lists([[0], [1], list(range(2, 12))]), test=examples(9, 1))
    last = run(algorithm(local=LOCAL), mixed, linear, SETTINGS).metrics[-1]
    assert set(last["personal_by_client"]) == {"2"}
    none = federate(train, by_lists([[0], [1], [2]]), test=examples(9, 1))
    last = run(algorithm(local=LOCAL), none, linear, SETTINGS).metrics[-1]
    assert "personal_accuracy" not in last


def test_a_class_without_test_examples_is_null_in_the_metrics(tmp_path: Path) -> None:
    # Clients 0 and 1 hold nothing but the class that is not tested.
    train, test = examples(60), examples(60, 1)
    rows = [np.flatnonzero(train.y.numpy() == c) for c in range(3)]
    seen = test.select(np.flatnonzero(test.y.numpy() != 0))
    lists = [rows[0][:10], rows[0][10:], np.concatenate([rows[1], rows[2]])]
    history = run(
        FedAvg(local=LOCAL), federate(train, by_lists(lists), test=seen), linear, SETTINGS, directory=tmp_path
    )
    last = lines(tmp_path / "metrics.jsonl")[-1]
    assert last["class_accuracy"][0] is None
    assert None not in last["class_accuracy"][1:]
    share = history.metrics[-1]["in_local_accuracy"]
    both = np.array(last["class_accuracy"][1:])
    assert share == pytest.approx(both.mean())  # of client 2 alone: half of either class
    assert last["forgetting"] == pytest.approx(np.nanmean(forgetting(history.per_class)))


def test_bytes_are_those_of_the_model_for_each_client() -> None:
    last = run(FedAvg(local=LOCAL), federation(), linear, SETTINGS).metrics[-1]
    assert last["bytes_down"] == last["bytes_up"] == 3 * 15 * 4


# ---- algorithms of different shapes


def test_a_client_never_asked_is_judged_by_the_global_model() -> None:
    def sampler(round: int, num_clients: int, cohort_size: int) -> list[int]:
        return [0, 1, 2]

    parts = federation()
    history = run(PFedSD(local=LOCAL), parts, mlp, SETTINGS, sampler=sampler)
    model, server, rates = Model(mlp), history.server["Sequential"], history.metrics[-1]["personal_by_client"]
    assert parts.local_test is not None
    for k in range(6):
        held_out = parts.train.select(parts.local_test.rows(k).copy())
        judged_by = history.clients[k].v.value if k < 3 else server
        assert rates[str(k)] == rows_right(model, judged_by, Classification(), held_out).mean()
    assert sorted(history.clients) == [0, 1, 2]  # the others occupy nothing
    own = history.clients[0].v.value.params
    assert not all(torch.equal(own[n], server.params[n]) for n in own)


def test_centralised_takes_as_many_steps_as_a_cohort() -> None:
    # 3 of 6 clients with 12 examples: 3 batches of 4 twice, so 18 steps.
    parts = federation()
    centralised = run(Centralised(local=LOCAL), parts, mlp, SETTINGS)
    one = RunSettings(rounds=3, cohort_size=1, engine="loop")
    same = run(FedAvg(local=dataclasses.replace(LOCAL, steps=18)), parts.pooled(), mlp, one)
    other = run(FedAvg(local=dataclasses.replace(LOCAL, steps=17)), parts.pooled(), mlp, one)
    a, b, c = (tree.leaves(h.server) for h in (centralised, same, other))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(a, c, strict=True))
    last = centralised.metrics[-1]
    assert len(last["personal_by_client"]) == 6  # evaluated by every client, as the others are
    assert (last["bytes_down"], last["bytes_up"]) == (0, 0)


@pytest.mark.slow
def test_numbers_of_a_method_bear_the_name_of_their_architecture() -> None:
    """Each has a round of its own, and writes its own numbers."""
    algorithm = APFLNi(local=LOCAL, z=0, forced_rounds=(0,))
    one = run(algorithm, federation(), mlp, SETTINGS).metrics[-1]
    two = run(algorithm, federation(), {"a": mlp, "b": linear}, SETTINGS).metrics[-1]
    assert "server_window_mean" in one
    assert "server_window_mean" not in two
    assert two["server_window_mean_a"] != two["server_window_mean_b"]


def test_what_is_in_one_place_is_not_lost_on_the_way() -> None:
    """Client 0 stands for all of them there, and what becomes of clients becomes of it."""
    alone, other = (
        run(Centralised(local=LOCAL), federation(), mlp, SETTINGS, faults=faults)
        for faults in (None, Unreliable(lost=1.0))
    )
    assert alone.metrics == other.metrics


def test_centralised_takes_the_steps_of_each_client_of_a_cohort(tmp_path: Path) -> None:
    """`local.steps` is shared by the methods of a comparison: 2 steps of 3 clients are 6 in one place."""
    models = {"a": linear, "b": mlp}
    run(Centralised(local=dataclasses.replace(LOCAL, steps=2)), federation(), models, SETTINGS, directory=tmp_path)
    manifest = strict((tmp_path / "manifest.json").read_text())
    assert manifest["hyper_parameters"]["local"]["steps"] == 2 * SETTINGS.cohort_size == 6
    assert [*manifest["initial"]] == ["a"]  # the network that is trained


@pytest.mark.parametrize("change", [{"buffers": "local"}, {"shared": "*.weight"}])
def test_what_pools_its_clients_has_no_personal_parts(change: Any) -> None:
    class Pooled(FedAvg):
        requires = Requires(one_place=True)

    with pytest.raises(SettingError, match=r"Pooled trains one model for all.*use shared = '\*'"):
        run(Pooled(local=LOCAL, **change), federation(), mlp, SETTINGS)


def test_local_only_has_personal_models_and_no_global_one() -> None:
    history = run(LocalOnly(local=LOCAL), federation(), linear, SETTINGS)
    last = history.metrics[-1]
    assert not {"global_accuracy", "class_accuracy", "forgetting", "in_local_accuracy"} & set(last)
    assert last["personal_accuracy"] > 0.5
    assert (last["bytes_down"], last["bytes_up"]) == (0, 0)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_three_architectures_at_once(engine: Any) -> None:
    models = {"linear": linear, "narrow": mlp, "wide": lambda: mlp(11)}
    settings = dataclasses.replace(SETTINGS, engine=engine, cohort_size=6)
    parts = federation()
    history = run(FedAvg(local=LOCAL), parts, models, settings)
    assert set(history.server) == set(models)
    assert parts.test is not None
    own = [classify(Model(m), history.server[n], Classification(), parts.test) for n, m in models.items()]
    assert history.last("global_accuracy") == pytest.approx(np.mean([f.accuracy for f in own]))
    np.testing.assert_allclose(history.per_class[-1], np.mean([f.per_class for f in own], axis=0))
    assert len(history.metrics[-1]["personal_by_client"]) == 6


def test_the_global_accuracy_weights_architectures_by_their_clients() -> None:
    parts = federation(clients=5)  # 3 linear, 2 narrow
    history = run(FedAvg(local=LOCAL), parts, {"linear": linear, "narrow": mlp}, SETTINGS)
    assert parts.test is not None
    a, b = (
        classify(Model(m), history.server[n], Classification(), parts.test)
        for n, m in (("linear", linear), ("narrow", mlp))
    )
    assert a.accuracy != b.accuracy
    assert history.last("global_accuracy") == pytest.approx((3 * a.accuracy + 2 * b.accuracy) / 5)
    assert history.last("global_loss") == pytest.approx((3 * a.loss + 2 * b.loss) / 5)
    np.testing.assert_allclose(history.per_class[-1], (3 * a.per_class + 2 * b.per_class) / 5)


def test_kt_pfl_needs_public_examples() -> None:
    with pytest.raises(SettingError, match=r"KTpFL needs public examples, got none: .*\(\.\.\., public=examples\)"):
        run(KTpFL(local=LOCAL), federation(), linear, SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_kt_pfl_runs_with_public_examples_and_three_architectures(engine: Any) -> None:
    models = {"linear": linear, "narrow": mlp, "wide": lambda: mlp(11)}
    settings = dataclasses.replace(SETTINGS, engine=engine)
    distill = Digest(epochs=1, batch_size=8, optimiser=SGD(lr=0.02))
    algorithm = KTpFL(local=LOCAL, distill=distill, num_public=10)
    history = run(algorithm, federation(public=examples(20, 2)), models, settings)
    last = history.metrics[-1]
    assert "global_accuracy" not in last
    assert last["personal_accuracy"] > history.metrics[0]["personal_accuracy"]
    # down: 10 indices, twice, and 10 x 3 targets; up: 10 x 3 predictions
    assert (last["bytes_down"], last["bytes_up"]) == (3 * (2 * 10 * 8 + 30 * 4), 3 * 30 * 4)
    coefficients = history.server[""]
    torch.testing.assert_close(coefficients.sum(1), torch.ones(6))


# ---- what must not matter


def test_measures_do_not_depend_on_the_order_of_a_cohort() -> None:
    orders = [((0, 1, 2, 4),), ((4, 1, 0, 2),), ((2, 4, 1, 0),)]
    settings = dataclasses.replace(SETTINGS, rounds=1, cohort_size=4)
    records = [run(FedAvg(local=LOCAL), federation(), mlp, settings, sampler=FixedList(o)).metrics[1] for o in orders]
    for record in records:
        del record["clients"]
    assert records[0] == records[1] == records[2]


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "algorithm", [Scaffold(local=LOCAL), KTpFL(local=LOCAL, num_public=10)], ids=lambda a: type(a).__name__
)
def test_a_run_does_not_depend_on_the_default_dtype(engine: Any, algorithm: Any) -> None:
    class Doubling(nn.Module):
        """A network that makes tensors of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scaled: torch.Tensor = self.layer(x * torch.full((4,), 0.1))
            return scaled

    settings, before = dataclasses.replace(SETTINGS, engine=engine), torch.get_default_dtype()
    data = federation(public=examples(20, 2), test_fraction=0.2)
    want = run(algorithm, data, Doubling, settings)
    torch.set_default_dtype(torch.float64)
    try:
        found = run(algorithm, data, Doubling, settings)
    finally:
        torch.set_default_dtype(before)
    assert found.metrics == want.metrics


# ---- servers that diverge


def test_a_refused_server_is_in_the_record(tmp_path: Path) -> None:
    distill = Distill(batch_size=8, optimiser=SGD(lr=1e30, weight_decay=1.0))
    algorithm = FedDF(local=LOCAL, steps=5, distill=distill)
    settings = dataclasses.replace(SETTINGS, rounds=2, on_nonfinite="refuse")
    history = run(algorithm, federation(public=examples(20, 2)), mlp, settings, directory=tmp_path)
    assert "server_refused" not in history.metrics[0]
    for record in history.metrics[1:]:
        assert re.fullmatch(r"the loss is (nan|inf) in its own training at batch \d", record["server_refused"])
        assert (record["failed"], record["global_loss"]) == ({}, history.metrics[0]["global_loss"])
    assert History.read(tmp_path).metrics == history.metrics
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join([*lines[:-1], json.dumps({**record, "server_refused": 3})]) + "\n"
    )
    with pytest.raises(SettingError, match="line 3: server_refused must be a text, got 3"):
        History.read(tmp_path)
    with pytest.raises(NonFiniteError, match="the server, round 1, batch"):
        run(algorithm, federation(public=examples(20, 2)), mlp, dataclasses.replace(settings, on_nonfinite="stop"))


# ---- what is refused


@pytest.mark.parametrize(
    ("layer", "who"),
    [
        (nn.RReLU, "RReLU"),
        (nn.AlphaDropout, "alpha_dropout"),
    ],
)
def test_ungoverned_dropout_is_refused_before_the_run(layer: Any, who: str, tmp_path: Path) -> None:
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = layer(), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x[:, None])
            logits: torch.Tensor = self.head((out[0] if isinstance(out, tuple) else out)[:, 0])
            return logits

    with pytest.raises(SettingError, match=rf"^({who}) draws random numbers.*set that layer's dropout to 0"):
        run(FedAvg(local=LOCAL), federation(), Draws, SETTINGS, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"rounds": 0}, "rounds must be >= 1, got 0 [FL-RUN-008]"),
        ({"cohort_size": 0}, "cohort_size must be >= 1, got 0 [FL-RUN-008]"),
        ({"eval_every": 0}, "eval_every must be >= 1, got 0 [FL-RUN-008]"),
        ({"panel": -1}, "panel must be >= 1, got -1 [FL-RUN-008]"),
        ({"threads": 0}, "threads must be >= 1 and <= 4096, got 0 [FL-RUN-008]"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64, got 'float16' [FL-RUN-008]"),
        ({"compilation": "jit"}, "compilation must be one of auto, none, trace, compile, got 'jit' [FL-RUN-008]"),
        ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of stop, refuse, got 'ignore' [FL-RUN-008]"),
        ({"device": "gpu"}, "device must be 'cpu', 'cuda' or 'cuda:0', ..., got 'gpu'"),
    ],
)
def test_settings_out_of_range(setting: Any, message: str) -> None:
    with pytest.raises(SettingError) as error:
        RunSettings(**setting)
    assert str(error.value) == message


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingError, match="device = 'cuda', but this machine has no CUDA GPU; use device = 'cpu'"):
        RunSettings(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SettingError, match="device = 'cuda:2', but the GPUs here are cuda:0 to cuda:1"):
        RunSettings(device="cuda:2")


def test_a_cohort_larger_than_the_federation() -> None:
    with pytest.raises(SettingError) as error:
        run(FedAvg(local=LOCAL), federation(), linear, RunSettings(cohort_size=7))
    assert str(error.value) == (
        "cohort_size = 7 is larger than the federation of 6 clients; set cohort_size <= 6 "
        "(--cohort 6 asks all of them) [FL-RUN-002]"
    )


def test_floating_point_targets_are_not_classes() -> None:
    train = Examples(torch.zeros(20, 4), torch.rand(20), num_classes=1)
    parts = federate(train, by_lists([range(10), range(10, 20)]))
    with pytest.raises(
        SettingError,
        match=r"Classification are class numbers \(integers\), got float32 of shape \(N,\)",
    ):
        run(FedAvg(local=LOCAL), parts, linear, RunSettings(cohort_size=1))


@pytest.mark.slow
def test_threads_are_set_for_the_run_alone() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    settings = dataclasses.replace(SETTINGS, rounds=1, threads=before + 1)
    run(FedAvg(local=LOCAL), federation(), linear, settings, on_round=lambda _: seen.append(torch.get_num_threads()))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_an_unknown_engine() -> None:
    with pytest.raises(
        SettingError, match="engine must be one of auto, loop, stacked, workers, stacks, gloo, mpi, devices, got 'ray'"
    ):
        run(FedAvg(local=LOCAL), federation(), linear, RunSettings(cohort_size=2, engine="ray"))  # type: ignore[arg-type]


@pytest.mark.parametrize("clients", [[0, 0], [5, 6], [-1]])
def test_a_sampler_that_names_impossible_clients(clients: list[int]) -> None:
    with pytest.raises(ValueError, match=r"a sampler must name distinct clients of 0\.\.5, got .* in round 1"):
        run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, sampler=lambda *_: clients)


def test_a_sampler_may_answer_with_numpy_integers(tmp_path: Path) -> None:
    run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, sampler=lambda *_: np.array([4, 1]), directory=tmp_path)  # type: ignore[arg-type, return-value]
    assert lines(tmp_path / "metrics.jsonl")[1]["clients"] == [4, 1]


def test_a_round_that_asks_nobody() -> None:
    history = run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, sampler=lambda *_: [])
    assert len(history.metrics) == 4
    assert len(set(history.series("global_accuracy"))) == 1
    assert history.metrics[-1]["train_loss"] is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedNTD(beta=0), "FedNTD with beta = 0 is FedAvg"),
        (lambda: PFedSD(lam=0), "PFedSD with lam = 0 is FedAvg"),
    ],
)
def test_a_degenerate_setting_is_warned_of_by_name(make: Any, message: str) -> None:
    with pytest.warns(SettingWarning, match=message):
        make()


# ---- losses that are not finite, clients that are lost


@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverging_client_is_named_with_round_and_batch(engine: Any, tmp_path: Path) -> None:
    # Client 4 diverges in its second batch at this rate; who comes first in the cohort does so as well.
    wild = dataclasses.replace(LOCAL, optimiser=SGD(lr=1e38))
    settings = dataclasses.replace(SETTINGS, engine=engine)
    with pytest.raises(NonFiniteError) as error:
        run(FedAvg(local=wild), federation(), linear, settings, sampler=lambda *_: [4, 5], directory=tmp_path)
    assert (error.value.client, error.value.round) == (4, 1)
    assert error.value.batch in (1, 2)
    assert str(error.value).startswith(f"client 4, round 1, batch {error.value.batch}: the loss is ")
    assert str(error.value).endswith(
        "; a lower rate (local.lr, or rates of the method's own) or clipping (local.clip) may help [FL-RUN-016]"
    )
    assert len(lines(tmp_path / "metrics.jsonl")) == 1  # what was measured before is there


def test_a_global_model_that_overflows_has_no_loss_to_record(tmp_path: Path) -> None:
    # One step: the loss before it and the upload after it are finite, the model is useless all the same.
    wild = dataclasses.replace(LOCAL, steps=1, optimiser=SGD(lr=1e38))
    settings = dataclasses.replace(SETTINGS, rounds=1)
    history = run(FedAvg(local=wild), federation(), linear, settings, directory=tmp_path)
    written = lines(tmp_path / "metrics.jsonl")
    assert written == history.metrics
    assert written[1]["global_loss"] is None
    assert written[1]["failed"] == {}
    assert len(history.series("global_loss")) == 1


def poisoned(value: float = 3e38) -> Federation:
    """Client 1's values overflow float32, at once or when multiplied by a rate."""
    parts = federation()
    x = parts.train.x.clone()
    x[parts.partition.rows(1).copy()] = value
    return dataclasses.replace(parts, train=Examples(x, parts.train.y, 3))


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore:features of sizes far from 1")
@pytest.mark.parametrize("engine", ENGINES)
def test_refuse_goes_on_without_the_client_and_records_why(engine: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, engine=engine, on_nonfinite="refuse")
    everyone = run(
        FedAvg(local=LOCAL), poisoned(), linear, settings, sampler=lambda *_: [0, 1, 2], directory=tmp_path / "a"
    )
    without = run(FedAvg(local=LOCAL), poisoned(), linear, settings, sampler=lambda *_: [0, 2])
    for m in lines(tmp_path / "a" / "metrics.jsonl")[1:]:
        assert list(m["failed"]) == ["1"]
        assert m["failed"]["1"] in ("the loss is nan at batch 0", "the loss is inf at batch 0")
        assert np.isfinite(m["train_loss"])
    for a, b in zip(tree.leaves(everyone.server), tree.leaves(without.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    np.testing.assert_allclose(everyone.series("train_loss"), without.series("train_loss"), rtol=1e-6)
    with pytest.raises(NonFiniteError, match=r"client 1, round 1, batch 0: the loss is (nan|inf)"):
        run(FedAvg(local=LOCAL), poisoned(), linear, dataclasses.replace(settings, on_nonfinite="stop", cohort_size=6))


@pytest.mark.filterwarnings("ignore:features of sizes far from 1")
@pytest.mark.parametrize("engine", ENGINES)
def test_an_upload_that_is_not_finite_is_refused_and_its_loss_not_counted(engine: Any) -> None:
    wild = dataclasses.replace(LOCAL, steps=1, optimiser=SGD(lr=1e30))
    settings = dataclasses.replace(SETTINGS, rounds=1, engine=engine, on_nonfinite="refuse")
    with pytest.warns(SettingWarning, match="global_loss of round 1 is .* it diverged"):
        last = run(FedAvg(local=wild), poisoned(1e20), linear, settings, sampler=lambda *_: [0, 1, 2]).metrics[-1]
    assert last["failed"] == {"1": "the upload is not finite"}
    assert last["train_loss"] < 10  # client 1's is about 1e20
    with pytest.raises(NonFiniteError, match="client 1, round 1: the upload is not finite; a lower rate"):
        run(
            FedAvg(local=wild),
            poisoned(1e20),
            linear,
            dataclasses.replace(settings, on_nonfinite="stop", cohort_size=6),
        )


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold, LocalOnly])
def test_lost_clients_are_recorded_and_leave_the_others_alone(engine: Any, algorithm: Any) -> None:
    settings = dataclasses.replace(SETTINGS, engine=engine, dtype="float64")

    def faults(round: int, exchange: int, client: int) -> str | None:
        return "battery empty" if client == 2 and round == 1 else None

    def sampler(round: int, num_clients: int, cohort_size: int) -> list[int]:
        return [0, 1, 2]

    def fewer(round: int, num_clients: int, cohort_size: int) -> list[int]:
        return [0, 1] if round == 1 else [0, 1, 2]

    lossy = run(algorithm(local=LOCAL), federation(), linear, settings, sampler=sampler, faults=faults)
    clean = run(algorithm(local=LOCAL), federation(), linear, settings, sampler=fewer)
    assert [m["failed"] for m in lossy.metrics[1:]] == [{}, {"2": "battery empty"}, {}]
    assert lossy.series("bytes_up").tolist() == clean.series("bytes_up").tolist()
    states = [(h.server, [h.clients.get(k) for k in range(3)]) for h in (lossy, clean)]
    for a, b in zip(tree.leaves(states[0]), tree.leaves(states[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_round_that_everybody_misses_changes_nothing() -> None:
    history = run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, faults=lambda t, e, k: "network down")
    assert len(set(history.series("global_accuracy"))) == 1
    assert [len(m["failed"]) for m in history.metrics[1:]] == [3, 3, 3]
    assert history.last("bytes_up") == 0


# ---- callbacks and models


def test_callbacks_see_the_run_grow() -> None:
    seen: list[int] = []
    started: list[History] = []
    history = run(
        FedAvg(local=LOCAL), federation(), linear, SETTINGS,
        on_start=started.append, on_round=lambda h: seen.append(len(h.metrics) - 1),
    )  # fmt: skip
    assert seen == [1, 2, 3]
    assert started == [history]


@pytest.mark.slow
def test_a_module_brings_its_own_weights_and_is_not_touched() -> None:
    module = mlp()
    before = {n: p.clone() for n, p in module.named_parameters()}
    runs = [run(FedAvg(local=LOCAL), federation(), module, dataclasses.replace(SETTINGS, seed=s)) for s in (0, 1)]
    assert runs[0].metrics[0]["global_loss"] == runs[1].metrics[0]["global_loss"]
    assert all(torch.equal(p, before[n]) for n, p in module.named_parameters())
    made = [run(FedAvg(local=LOCAL), federation(), mlp, dataclasses.replace(SETTINGS, seed=s)) for s in (0, 1)]
    assert made[0].metrics[0]["global_loss"] != made[1].metrics[0]["global_loss"]


@pytest.mark.slow
def test_a_model_with_batch_norm_and_dropout_runs() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    histories = [
        run(FedAvg(local=LOCAL), federation(), build, dataclasses.replace(SETTINGS, engine=e, dtype="float64"))
        for e in ENGINES
    ]
    np.testing.assert_allclose(histories[0].series("train_loss"), histories[1].series("train_loss"), atol=1e-9)


class AnyLogits(Classification):
    """A task for any number of logits."""

    def loss(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        return batch.mean(logits.square().sum(-1))


BATCHES: dict[str, Any] = {"distill": Digest(epochs=1, batch_size=4, optimiser=SGD(lr=0.1)), "num_public": 6}


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("algorithm", "fewest"),
    [
        (FedNTD(), 3), (KDNTD(lam=1.0), 3), (KDNTD(lam=0.1), 3), (KDNTD(lam=0.0), 2), (FedNTDMSE(), 2),
        (PFedSD(), 2), (self_distilled(FedNTD)(), 3),
        (FedDF(steps=1), 2), (PFedDF(steps=1), 2), (FedBE(steps=1, num_sampled=1), 2),
        *((kind(**BATCHES), 2) for kind in (KTpFL, FedMDKT, SimPFL, TopKPFL)),
        (DENSE(), 2), (FedDAFL(), 2), (FedADI(), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else str(value),
)  # fmt: skip
def test_logits_of_which_too_few_are_compared_are_refused(algorithm: Any, fewest: int) -> None:
    """A softmax over one logit is 1 whatever a network says: distillation by it would be silently without effect."""
    from fedloom.coordinator.job import Job

    assert algorithm.requires.logits == fewest
    data = federation(public=examples(12))
    for logits in (fewest - 1, fewest):
        job = Job(
            algorithm=algorithm, federation=data, model=lambda n=logits: nn.Linear(4, n), task=AnyLogits(),
            settings=RunSettings(rounds=1, cohort_size=2, engine="loop"),
        )  # fmt: skip
        try:
            job.check()
        except SettingError as refused:
            about_logits = f"at least {fewest} logits" in str(refused)
        else:
            about_logits = False
        assert about_logits == (logits < fewest)


def test_a_job_that_was_checked_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module = importlib.import_module("fedloom.coordinator.job")  # the name `run` is the function

    tried: list[None] = []
    plain = module.try_model
    monkeypatch.setattr(module, "try_model", lambda *args: (tried.append(None), plain(*args))[1])
    job = module.Job(
        algorithm=FedAvg(local=LOCAL),
        federation=federation(),
        model=linear,
        settings=RunSettings(rounds=1, cohort_size=2),
    )
    job.check()
    job.run()
    assert len(tried) == 1
