"""Epsilon in every record, a budget that ends a run, and runs that go on with the same bits and the same count."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedloom as fl
import launching
from fedloom.cli.main import main
from fedloom.core import tree
from fedloom.privacy import accountant
from fedloom.report import comparison_table, summary, write_report
from fedloom.testing.in_process import InProcess
from site_devices import members, serve, settings as site_settings, source_of_server, write_sites
from tiny import LOCAL, federation, linear

SETTINGS = fl.RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1)
NOISE = "central:noise=1,delta=1e-5,clip=0.5"
SAMPLER = {"kind": "Poisson", "rate": 0.5, "seed": 0, "entropy": "of the run's seed"}
BUDGET = "central:epsilon=6,delta=1e-5,clip=adaptive:0.5"


def job(privacy: str = NOISE, **more: Any) -> fl.Job:
    of_job = {name: more.pop(name) for name in ("sampler", "schedule", "algorithm", "model") if name in more}
    given = {"algorithm": fl.FedAvg(local=LOCAL), "model": linear} | of_job
    return fl.Job(federation=federation(), settings=dataclasses.replace(SETTINGS, privacy=privacy, **more), **given)


def test_epsilon_so_far_is_in_every_record() -> None:
    history = job().run()
    assert history.series("epsilon").tolist() == [accountant.epsilon(t, 0.5, 1.0, 1e-5) for t in range(5)]
    assert history.stopped is None
    assert "clip_norm" not in history.metrics[1]
    epsilon = history.measures["epsilon"]
    assert (epsilon.title, epsilon.better) == ("Epsilon of a simulation", "low")
    assert "(epsilon, 1e-05)-differential privacy of clients so far, of the means of their uploads" in epsilon.meaning
    assert "with noise of the run's seed; not of what this run tells beside them (who was asked, " in epsilon.meaning


def shown(table: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    return out.getvalue()


@pytest.mark.slow
def test_epsilon_stands_on_page_terminal_and_in_summaries(tmp_path: Path) -> None:
    of_run = job().run(tmp_path / "fedavg")
    epsilon = f"{of_run.metrics[-1]['epsilon']:.2f}"
    told = " ".join(shown(comparison_table([("fedavg", of_run)])).split())
    assert f"{of_run.metrics[-1]['epsilon']:.4f}" in told
    assert "epsilon of a simulation: (epsilon, 1e-05)-differential privacy of clients so far, of the means" in told
    tables = summary(tmp_path)
    for text in (tables.markdown(), tables.latex()):
        assert f"Epsilon of a simulation after the last round: FedAvg {epsilon}. (epsilon, 1e-05)-diff" in text
    page = write_report([tmp_path], tmp_path / "report").read_text()
    assert "Epsilon of a simulation</h3>" in page
    assert f">{epsilon}<" in page
    for text in (told, tables.markdown(), tables.latex(), page):
        assert "not of what this run tells beside them (who was asked, " in text


def test_what_uploads_nothing_costs_nothing() -> None:
    history = job(algorithm=fl.LocalOnly(local=LOCAL)).run()
    assert history.series("epsilon").tolist() == [0] * 5


@pytest.mark.slow
def test_clients_are_drawn_each_by_itself() -> None:
    history = job(rounds=8, per_client=True).run()
    assert history.manifest["sampler"] == SAMPLER
    assert len({len(m["clients"]) for m in history.metrics[1:]}) > 1
    assert job(sampler=fl.Uniform(7)).run().manifest["sampler"] == SAMPLER


@pytest.mark.slow
def test_noise_is_found_for_the_rounds_of_the_run() -> None:
    history = job("central:epsilon=6,delta=1e-5,clip=0.5").run()
    assert len(history.metrics) == 5
    assert 5.98 < history.metrics[-1]["epsilon"] <= 6


def test_noise_is_another_one_in_each_round(tmp_path: Path) -> None:
    """Nobody learns anything, so that each round adds noise alone."""
    still = fl.FedAvg(local=dataclasses.replace(LOCAL, optimiser=fl.SGD(lr=1e-9)))
    made = job(algorithm=still, rounds=2)
    made.run(tmp_path / "run")
    servers = [tree.leaves(made.restore(tmp_path / "run", t).server)[0] for t in range(3)]
    first, second = servers[1] - servers[0], servers[2] - servers[1]
    assert not torch.allclose(first, second, rtol=0.1)
    assert 0.5 * 0.5 / 3 < float(first.std()) < 2 * 0.5 / 3


def test_the_seed_draws_all_and_another_one_draws_else() -> None:
    one, again, other = (job(seed=seed, rounds=2).run() for seed in (0, 0, 1))
    assert one.metrics[-1]["global_loss"] == again.metrics[-1]["global_loss"] != other.metrics[-1]["global_loss"]


@pytest.mark.some(1)
@pytest.mark.parametrize("privacy", [NOISE, BUDGET])
def test_a_run_that_goes_on_has_the_same_bits_and_the_same_epsilon(privacy: str, tmp_path: Path) -> None:
    whole = job(privacy).run(tmp_path / "whole")

    def killed(history: fl.History) -> None:
        if len(history.metrics) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(privacy).run(tmp_path / "killed", on_round=killed)
    again = job(privacy).run(tmp_path / "killed", resume=True)
    assert [dict(m) for m in again.metrics] == [dict(m) for m in whole.metrics]
    for a, b in zip(tree.leaves(again.server), tree.leaves(whole.server), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_a_budget_ends_a_run_that_is_prolonged(tmp_path: Path) -> None:
    """Its noise stays that of the first rounds, which it was found for."""
    first = job(BUDGET).run(tmp_path / "run")
    longer = job(BUDGET, rounds=9).run(tmp_path / "run", resume=True)
    assert len(longer.metrics) == 5
    assert longer.stopped is not None
    assert longer.stopped.startswith("epsilon is ")
    assert longer.stopped.endswith(" after 4 rounds, and one more would pass the 6 that were asked for")
    assert longer.metrics[-1]["epsilon"] == first.metrics[-1]["epsilon"]
    go_on = job(NOISE).run(tmp_path / "other")
    more = job(NOISE, rounds=6).run(tmp_path / "other", resume=True)
    assert go_on.metrics[-1]["epsilon"] < more.metrics[-1]["epsilon"] == accountant.epsilon(6, 0.5, 1.0, 1e-5)


def test_a_round_is_replayed_with_its_noise(tmp_path: Path) -> None:
    job(BUDGET).run(tmp_path / "run")
    replayed = job(BUDGET).replay(tmp_path / "run", 3)
    after = job(BUDGET).restore(tmp_path / "run", 3)
    for a, b in zip(tree.leaves(replayed.after), tree.leaves(after.server), strict=True):
        assert torch.equal(a, b)


def test_an_adaptive_clip_norm_is_a_column_and_moves() -> None:
    found = job("central:noise=1,delta=1e-5,clip=adaptive:0.5").run().series("clip_norm").tolist()
    assert found[0] == 0.1
    assert len(set(found)) == 5


class Own(fl.Schedule):
    """A schedule of one's own."""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sampler": fl.BySize(0)}, r"draws each client by itself with the same probability, .*got sampler = BySize"),
        ({"schedule": Own()}, "counts rounds that it draws, got schedule = Own: leave one of them out"),
        ({"spares": 1}, "so nobody has a place, got spares = 1"),
        ({"aggregator": "median"}, "makes the mean itself, got aggregator = 'median'"),
        ({"bound": "refuse:median:5"}, "and a median is of all, got bound = 'refuse:median:5'"),
        ({"algorithm": fl.FedExP(local=LOCAL)}, "FedExP uploads single numbers beside named tensors"),
    ],
)
def test_what_does_not_go_with_it_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.SettingError, match=message):
        job(**more)


def test_a_bound_of_each_upload_goes_with_it() -> None:
    assert job(bound="refuse:100").run().metrics[-1]["epsilon"] > 0


def words(privacy: str, rounds: int) -> dict[str, Any]:
    """Five devices, of which three are asked on average."""
    return site_settings(
        "fedavg",
        **{"run.rounds": rounds, "run.cohort_size": 3, "run.eval_every": 9, "run.privacy": privacy},
    )


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    write_sites(tmp_path)
    return tmp_path


def serving(folder: Path, privacy: str = "central:noise=1,delta=1e-3,clip=0.5", rounds: int = 2) -> fl.Job:
    return serve(folder, words(privacy, rounds), InProcess(members(folder)), source_of_server(folder))


def stops(at: int) -> Any:
    """What a process does that is killed in the round after `at`, which has begun."""

    def killed(history: fl.History) -> None:
        if len(history.metrics) == at + 1:
            raise KeyboardInterrupt

    return killed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Kiel")
def test_with_devices_noise_is_of_the_system(sites: Path) -> None:
    one, other = (serving(sites).run(sites / f"out{i}") for i in range(2))
    assert one.measures["epsilon"].title == "Epsilon"
    assert "with noise of the system's entropy" in one.measures["epsilon"].meaning
    assert one.manifest["sampler"] == {"kind": "Poisson", "rate": 0.6, "seed": None, "entropy": "of the system"}
    assert one.series("epsilon").tolist() == other.series("epsilon").tolist()
    assert not torch.equal(tree.leaves(one.server)[0], tree.leaves(other.server)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Kiel")
def test_with_devices_rounds_that_are_lost_count_too(sites: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        serving(sites, rounds=3).run(sites / "out", on_round=stops(1))
    (sites / "out/rounds_begun.txt").write_text("1\n2\n")  # what a process leaves that is killed in round 2
    again = serving(sites, rounds=3).run(sites / "out", resume=True)
    assert again.series("epsilon").tolist() == [accountant.epsilon(t, 0.6, 1.0, 1e-3) for t in (0, 1, 3, 4)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Kiel")
def test_with_devices_no_round_begins_beyond_the_budget(sites: Path) -> None:
    budget = "central:epsilon=6,delta=1e-3,clip=0.5"
    with pytest.raises(KeyboardInterrupt):
        serving(sites, budget, rounds=3).run(sites / "out", on_round=stops(1))
    (sites / "out/rounds_begun.txt").write_text("1\n2\n2\n")
    with pytest.raises(fl.SettingError, match=r"round 2 would be the 4th with epsilon = .*, beyond the 6 "):
        serving(sites, budget, rounds=3).run(sites / "out", resume=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
def test_ranks_have_the_noise_of_one_process(tmp_path: Path) -> None:
    settings = ["run", "fedavg", "--model", "logistic", "--clients", "20", "--cohort", "5", "--rounds", "3"]
    settings += ["--set", "data.examples=300", "--epochs", "1", "--privacy", BUDGET, "--threads", "1"]
    assert main([*settings, "--engine", "loop", "--out", str(tmp_path / "loop")]) == 0
    of_ranks = ["-m", "fedloom", *settings, "--engine", "gloo", "--out", str(tmp_path / "ranks")]
    found = launching.ended(launching.gloo([of_ranks] * 2))
    assert {status for status, _ in found} == {0}, found
    assert (tmp_path / "ranks/metrics.jsonl").read_bytes() == (tmp_path / "loop/metrics.jsonl").read_bytes()
