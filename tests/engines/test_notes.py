"""Notes of clients, on every engine and over every wire."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.cli.main import main
from fedloom.coordinator.record_entries import noted_measures
from fedloom.coordinator.round_record import of_traffic
from fedloom.core.errors import CodecError, SettingError, StackingError
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import NOTES, Call, Request
from fedloom.engines.round_traffic import Traffic
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.experiments.trackers import scalars
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from tiny import LOCAL, federation, linear, population

ENGINES = {"loop": Loop, "stacked": Stacked, "workers": Workers, "messages": Messages, "devices": DevicesInProcess}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noting(fl.FedAvg):
    """FedAvg whose clients tell how far they went, and how many examples they have."""

    sometimes: bool = False
    within: bool = False
    whole: bool = False
    spread: bool = False

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], sent: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        upload = self.train(client, w := self.received(client, sent), loss=client.loss)
        if self.within:
            fl.fold(lambda c, batch, whose: (whose.note(step=1.0), c)[1], torch.zeros(()), client.train, client)
        gap = sum(((a - b) ** 2).sum() for a, b in zip(upload.params.values(), w.params.values(), strict=True))
        client.note(gap=gap, rows=client.num_examples, one=1)
        client.note(one=2)
        if self.sometimes and int(client.round) == 0:  # a rehearsal is of that round too
            client.note(rare=1.0)
        if self.whole:
            client.note(everything=torch.zeros(3))
        if self.spread:
            client.note(gap_std=1.0)
        return self.answer(client, upload)


def noted(engine: str, **settings: Any) -> dict[int, dict[str, float]]:
    made = ENGINES[engine](population(), Noting(local=LOCAL, **settings), Options())
    try:
        made.round(made.init(), (0, 2, 5), 0)
        return dict(made.traffic.notes)
    finally:
        made.close()


def test_notes_are_the_same_on_every_engine() -> None:
    loop = noted("loop")
    assert {k: sorted(found) for k, found in loop.items()} == {k: ["gap", "one", "rows"] for k in (0, 2, 5)}
    assert [found["rows"] for found in loop.values()] == [12.0, 12.0, 12.0]
    assert [found["one"] for found in loop.values()] == [2.0, 2.0, 2.0]  # the last number counts
    assert len({found["gap"] for found in loop.values()}) == 3
    assert noted("messages") == noted("devices") == loop
    for k, found in noted("stacked").items():
        np.testing.assert_allclose([found["gap"], found["rows"]], [loop[k]["gap"], loop[k]["rows"]], rtol=1e-4)


@pytest.mark.slow
def test_notes_of_workers_are_those_of_the_loop() -> None:
    assert noted("workers") == noted("loop")


def test_a_step_of_a_fold_cannot_note() -> None:
    with pytest.raises(StackingError, match="a step of fold or minimise cannot note"):
        noted("loop", within=True)


def test_a_note_is_one_number() -> None:
    with pytest.raises(StackingError, match=r"one number for each name, .* got everything of shape \[3\]"):
        noted("loop", whole=True)


def test_a_note_has_no_name_of_fedloom(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Noting.round

    def round(self: Noting, server: Any, cohort: Any) -> Any:
        cohort.note(loss=torch.tensor(1.0))
        return plain(self, server, cohort)

    monkeypatch.setattr(Noting, "round", round)
    with pytest.raises(SettingError, match=r"server_loss is a number of fedloom's: let cohort\.note name yours"):
        noted("loop")
    monkeypatch.setattr(Noting, "round", plain)
    with pytest.raises(StackingError, match="ends neither in _std nor in _by_client, got gap_std of shape"):
        noted("loop", spread=True)


@pytest.mark.parametrize("engine", ["loop", "devices"])
def test_a_note_that_a_client_lacks_is_absent(engine: str) -> None:
    run = ENGINES[engine](population(), Noting(local=LOCAL, sometimes=True), Options())
    try:
        run.round(run.init(), (0, 2), 0)
        assert all(found["rare"] == 1.0 for found in run.traffic.notes.values())
        run.round(run.init(), (0, 2), 1)
        assert [sorted(found) for found in run.traffic.notes.values()] == [["gap", "one", "rows"]] * 2
    finally:
        run.close()


def test_devices_may_leave_out_what_others_note_and_bring_nothing_else() -> None:
    run = DevicesInProcess(population(), Noting(local=LOCAL, sometimes=True), Options())
    try:
        run.round(run.init(), (0,), 0)
        call = Call("local_update", (run.init()["net"],), 0, 0, 0.1)
        request, one = Request.to(call, [0], 0), torch.zeros(1, dtype=torch.float64)
        whole = dict.fromkeys(("gap", "rows", "one", "rare"), one)
        run.shapes.check(request, "after", {NOTES: whole})
        run.shapes.check(request, "after", {NOTES: {"gap": one}})
        for other in ({**whole, "mine": one}, {"gap": one.float()}, {"gap": torch.zeros(2, dtype=torch.float64)}):
            with pytest.raises(CodecError, match="after is not what was asked for"):
                run.shapes.check(request, "after", {NOTES: other})
    finally:
        run.close()


def history(tmp_path: Path, **more: Any) -> fl.History:
    settings = fl.RunSettings(rounds=3, cohort_size=4, engine="loop", threads=1, **more)
    return fl.run(Noting(local=LOCAL), federation(), linear, settings, directory=tmp_path / "run")


def test_notes_are_in_records_and_proved(tmp_path: Path) -> None:
    run = history(tmp_path, per_client=True)
    for record in run.metrics[1:]:
        each = record["client_gap_by_client"]
        assert len(each) == len(record["clients"]) == 4
        assert record["client_gap"] == pytest.approx(np.mean(each), rel=1e-12)
        assert record["client_gap_std"] == pytest.approx(np.std(each), rel=1e-12)
        assert record["client_one"] == 2.0
        assert record["client_one_std"] == 0.0
    assert "client_gap" not in run.metrics[0]
    first, by_client = run.metrics[1], run.per_client[1]["noted"]
    places = [first["clients"].index(k) for k in by_client["clients"]]
    assert by_client["gap"] == [first["client_gap_by_client"][i] for i in places]
    assert fl.verify(tmp_path / "run").whole
    read = fl.History.read(tmp_path / "run")
    assert read.series("client_gap") == pytest.approx(run.series("client_gap"))
    assert read.measures["client_gap"].title == "Clients' gap"
    assert read.measures["client_gap_std"].title == "Spread of gap over clients"
    assert not read.lower_is_better("client_gap")
    assert scalars(read.metrics[1])["client_gap"] == read.metrics[1]["client_gap"]


@pytest.mark.slow
def test_a_page_plots_notes_and_the_summary_has_them(tmp_path: Path) -> None:
    history(tmp_path)
    main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page")])
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert "Clients&#x27; gap" in page or "Clients' gap" in page
    assert "client_gap" in (tmp_path / "page" / "tables" / "summary.csv").read_text(encoding="utf-8")
    assert "client_gap_std" in (tmp_path / "page" / "tables" / "rounds.csv").read_text(encoding="utf-8")


def test_a_loss_that_is_noted_is_better_when_it_is_low() -> None:
    found = noted_measures([{"server_ce_loss": 1.0, "client_gap": 2.0, "server_loss": 3.0}])
    assert {name: measure.better for name, measure in found.items()} == {"server_ce_loss": "low", "client_gap": None}


def test_a_number_that_is_not_finite_is_none() -> None:
    traffic = Traffic(asked={0, 1, 2}, notes={0: {"gap": 1.0}, 1: {"gap": float("nan")}})
    record = of_traffic(traffic, [0, 1, 2])
    assert record["client_gap_by_client"] == [1.0, None, None]
    assert (record["client_gap"], record["client_gap_std"]) == (1.0, 0.0)
