"""Parts of a run from outside are the equal of fedloom's own: in records, pages, checkpoints and refusals."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_resume import interrupted, same_end

import fedloom as fl
from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.part import Parts
from fedloom.coordinator.rounds import Coordinator
from fedloom.core.errors import DamageError
from fedloom.engines.loop import Loop
from fedloom.report import write_report
from tiny import LOCAL, federation, linear

SETTINGS = fl.RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1, eval_every=2)


class Spread(fl.Part):
    """How far the clients' losses lie apart, and the sum over rounds, which it keeps."""

    columns = (
        fl.Measure(
            "loss_spread", "Spread of losses", "spread", "Standard deviation of the training loss over clients.",
            unit="loss", better="low", tunable="partition",
        ),
        fl.Measure("total_spread", "Total spread", "total", "Sum of the spreads so far.", unit="loss", better="low"),
    )  # fmt: skip

    def __init__(self) -> None:
        self.state = torch.zeros((), dtype=torch.float64)

    def after(self, run: fl.Running) -> dict[str, Any]:
        losses = list(run.engine.traffic.losses.values())
        if not losses:
            return {}
        spread = float(np.std(losses))
        self.state = self.state + spread
        return {"loss_spread": spread, "total_spread": float(self.state)}


def job(*parts: Any, algorithm: Any = None, **more: Any) -> fl.Job:
    return fl.Job(
        algorithm=algorithm or fl.FedAvg(local=LOCAL), federation=federation(val_fraction=0.2), model=linear,
        settings=dataclasses.replace(SETTINGS, **more), parts=parts,
    )  # fmt: skip


@pytest.mark.slow
def test_its_columns_are_numbers_of_the_run(tmp_path: Path) -> None:
    part = Spread()
    history = job(part).run(tmp_path)
    assert [m.get("loss_spread") is not None for m in history.metrics] == [False, True, True, True, True]
    assert history.series("total_spread")[-1] == pytest.approx(history.series("loss_spread").sum())
    assert float(part.state) == 0  # the run has parts of its own
    made = job(Spread())
    assert made.run().metrics == made.run().metrics == history.metrics
    read = fl.History.read(tmp_path)
    assert read.metrics == history.metrics
    assert read.measures["loss_spread"] == history.measures["loss_spread"] == Spread.columns[0]
    assert read.lower_is_better("total_spread")
    assert read.summaries("loss_spread").best == history.series("loss_spread").min()
    assert fl.verify(tmp_path).whole


def test_a_run_without_it_is_the_same_run() -> None:
    plain, spread = job().run(), job(Spread()).run()
    names = {column.name for column in Spread.columns}
    assert [{k: v for k, v in m.items() if k not in names} for m in spread.metrics] == plain.metrics


@pytest.mark.slow
def test_its_state_goes_on(tmp_path: Path) -> None:
    whole = job(Spread()).run(tmp_path / "whole")
    interrupted(job(Spread()), tmp_path / "cut", after=2)
    assert same_end(whole, job(Spread()).run(tmp_path / "cut", resume=True))
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    with pytest.raises(fl.SettingError, match="parts was"):
        job().run(tmp_path / "cut", resume=True)
    replayed = fl.coordinator.RoundReplay(job(Spread()), tmp_path / "whole").replay(3)
    assert replayed.clients == whole.metrics[3]["clients"]


def test_a_run_stops_by_its_column_and_by_its_word() -> None:
    stopped = job(Spread(), monitor="loss_spread", target=100.0).run()
    assert len(stopped.metrics) == 2
    assert stopped.stopped is not None
    assert "loss spread reached" in stopped.stopped

    class Enough(fl.Part):
        def stop(self, run: fl.Running, record: dict[str, Any] | None) -> str | None:
            return "enough" if record is not None and record["round"] == 3 else None

    stopped = job(Enough()).run()
    assert stopped.stopped == "enough"
    assert "personal_accuracy" in stopped.metrics[3]  # the last round is measured as one
    assert len(stopped.metrics) == 4


def test_each_moment_comes_once_in_its_order() -> None:
    seen = []

    class Looks(fl.Part):
        def begin(self, run: fl.Running) -> None:
            seen.append(("begin", run.done))

        def before(self, run: fl.Running) -> None:
            seen.append(("before", run.done, len(run.clients)))

        def after(self, run: fl.Running) -> dict[str, Any]:
            seen.append(("after", run.round, run.done))
            return {}

        def due(self, run: fl.Running) -> dict[str, Any]:
            seen.append(("due", run.done))
            return {}

        def end(self, run: fl.Running) -> dict[str, Any]:
            seen.append(("end", run.done))
            return {}

    job(Looks(), rounds=2).run()
    assert seen == [
        ("begin", 0), ("after", 0, 0), ("due", 0),
        ("before", 0, 3), ("after", 0, 1),
        ("before", 1, 3), ("after", 1, 2), ("due", 2), ("end", 2),
    ]  # fmt: skip


@pytest.mark.slow
def test_what_each_client_has_trained_is_evaluated_where_a_part_needs_it() -> None:
    class Trained(fl.Part):
        wants = fl.Wants(trained=("evaluation",))
        columns = (fl.Measure("mean_right", "Right answers", "right", "Mean right answers after training.", unit=""),)

        def after(self, run: fl.Running) -> dict[str, Any]:
            right = [int(of.sums["accuracy"]) for of in run.trained().values()]
            return {"mean_right": float(np.mean(right))} if right else {}

    loop, stack = (job(Trained(), engine=engine).run() for engine in ("loop", "stacked"))
    beside = job(per_client=True).run()
    assert loop.series("mean_right").tolist() == stack.series("mean_right").tolist()
    examples = [line["trained"]["examples"] for line in beside.per_client[1:]]
    assert all(n == examples[0][0] for each in examples for n in each)
    assert loop.series("mean_right") / examples[0][0] == pytest.approx(beside.series("trained_accuracy"))


def test_what_is_no_part_or_has_others_names_is_refused_before_work_starts() -> None:
    with pytest.raises(
        fl.SettingError, match=r"derived from fedloom.Part, got <class .*Spread'>: make one, Spread\(\)"
    ):
        job(Spread)
    with pytest.raises(fl.SettingError, match=r"got 3: derive its class from fedloom.Part"):
        job(3)
    for name, why in (
        ("global_accuracy", "a record has already"), ("clients", "a record has already"), ("two words", "is no word"),
    ):  # fmt: skip
        part = Spread()
        part.columns = (fl.Measure(name, "Title", "label", "Meaning."),)
        with pytest.raises(fl.SettingError, match=f"has a column '{name}', which {why}: name it otherwise"):
            job(part)
    part = Spread()
    part.columns = ("loss",)  # type: ignore[assignment]
    with pytest.raises(fl.SettingError, match=r"columns of Spread are fedloom.Measure objects, got 'loss'"):
        job(part)
    with pytest.raises(fl.SettingError, match="has a column 'loss_spread', which a record has already"):
        job(Spread(), Spread())

    class Refuses(fl.Part):
        def check(self, job: Any) -> None:
            raise fl.SettingError(f"needs more than {job.settings.rounds} rounds")

    with pytest.raises(fl.SettingError, match="needs more than 4 rounds"):
        job(Refuses())


def test_a_number_that_is_not_declared_ends_the_run() -> None:
    part = Spread()
    part.columns = Spread.columns[:1]
    with pytest.raises(
        fl.SettingError, match=r"Spread.after returned total_spread, and its columns are loss_spread: declare it"
    ):
        job(part).run()


def test_columns_of_a_manifest_that_was_changed_are_refused(tmp_path: Path) -> None:
    job(Spread(), rounds=1).run(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for wrong in ([{"name": "x"}], {"name": "x"}, [{**manifest["columns"][0], "unit": 3}]):
        del (changed := {**manifest, "columns": wrong})["digest"]
        path.write_bytes(reading.sealed(changed))
        with pytest.raises(DamageError, match="columns must be a list of mappings of better, label, meaning"):
            fl.History.read(tmp_path)


@pytest.mark.slow
def test_settings_name_parts_and_a_page_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    start = source.index("class Spread(")
    code = (
        "import fedloom as fl, numpy as np, torch\nfrom typing import Any\n"
        + source[start : source.index("\ndef job(")]
    )
    (tmp_path / "my_parts.py").write_text(
        code + "\n\nother = 3\n\n\nclass Asks(Spread):\n    def __init__(self, x):\n        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    described = {
        "algorithm": "fedavg", "model": "logistic", "parts": ["my_parts:Spread"], "clients.sampler": "uniform",
        "run.rounds": 2, "run.cohort_size": 2, "data.clients": 10, "run.threads": 1, "local.epochs": 1,
    }  # fmt: skip
    experiment = fl.Experiment.of(described)
    history = experiment.job().run(tmp_path / "run")
    assert "my_parts.py" in history.manifest["code"]
    assert history.has("loss_spread")
    for name, why in (
        ("my_parts:other", "must be a fedloom.Part, got 3"), ("Spread", "written module:name"),
        ("my_parts:Asks", "made without settings"),
    ):  # fmt: skip
        with pytest.raises(fl.SettingError, match=why):
            fl.Experiment.of({**described, "parts": [name]}).job()
    with pytest.raises(fl.SettingError, match="name code to import, 'my_parts:Spread'"):
        fl.Experiment.from_directory(tmp_path / "run")
    page = write_report(tmp_path / "run", tmp_path / "page").read_text(encoding="utf-8")
    assert page.count("Spread of losses") >= 2  # a figure over rounds, and what it shows
    assert ">spread<" in page  # a column of the summary


def test_an_engine_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With frozen fronts and poisoned examples too, which change what it computes with."""
    built = []
    original = Loop.__init__

    def counts(self: Any, *args: Any, **more: Any) -> None:
        built.append(self)
        original(self, *args, **more)

    monkeypatch.setattr(Loop, "__init__", counts)
    made = dataclasses.replace(job(), attack=fl.FlippedLabels(share=0.5))
    Coordinator(made)
    assert len(built) == 1


def test_parts_that_a_setting_asks_for_are_found_by_its_declaration() -> None:
    names = {type(part).__name__ for part in Parts(job(keep_best=True, per_client=True, evaluate_training=True)).all}
    assert {"BestRound", "PerClient", "TrainingLoss"} <= names
    assert not {"BestRound", "PerClient", "TrainingLoss"} & {type(p).__name__ for p in Parts(job()).all}


class Share(fl.Part):
    """A share of the round, whichever it is given."""

    columns = (fl.Measure("part_share", "Share", "share", "A share of the round.", range=(0.25, 1.0)),)

    def __init__(self, value: Any) -> None:
        self.value = value

    def after(self, run: fl.Running) -> dict[str, Any]:
        return {"part_share": self.value}


@pytest.mark.parametrize("value", [25, 0.2, "much", True, [0.5], np.float32(0.5)])
def test_a_value_beyond_its_declared_range_ends_the_run(value: Any) -> None:
    with pytest.raises(fl.SettingError, match=r"Share.after returned part_share = .*a number in 0.25\.\.1 or null"):
        job(Share(value), rounds=1).run()


def test_a_value_within_its_range_is_recorded_and_read(tmp_path: Path) -> None:
    for i, value in enumerate((0.25, 1, None, float("nan"))):
        history = job(Share(value), rounds=1).run(tmp_path / str(i))
        kept = None if value is None or value != value else value
        assert [m["part_share"] for m in fl.History.read(tmp_path / str(i)).metrics] == [kept] * 2
        assert history.measures["part_share"].range == (0.25, 1.0)
    path = tmp_path / "0/metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"part_share": 0.25', b'"part_share": 25.0', 1))
    with pytest.raises(fl.SettingError, match=r"line 1: part_share must be a number in 0.25\.\.1 or null, got 25.0"):
        fl.History.read(tmp_path / "0")


def test_a_column_of_another_kind_is_refused_when_it_is_declared() -> None:
    for wrong, message in (
        ({"unit": "percent"}, "unit must be one of %, points, loss, s, , got 'percent'"),
        ({"range": (1.0, 0.0)}, r"range of share is the least value before the greatest, got \(1.0, 0.0\): swap them"),
        ({"range": ("0", 1.0)}, "range must be of type float, got '0'"),
    ):
        with pytest.raises(fl.SettingError, match=message):
            fl.Measure("share", "Share", "share", "A share.", **wrong)  # type: ignore[arg-type]


def test_a_manifest_without_ranges_has_those_of_units(tmp_path: Path) -> None:
    job(Spread(), rounds=1).run(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["digest"]
    for column in manifest["columns"]:
        del column["range"]
    path.write_bytes(reading.sealed(manifest))
    assert fl.History.read(tmp_path).measures["loss_spread"] == Spread.columns[0]


def test_what_a_part_finds_when_it_is_checked_is_of_its_job_alone() -> None:
    class Cohort(fl.Part):
        columns = (fl.Measure("cohort", "Cohort", "cohort", "Clients that were asked for.", unit=""),)
        size = 0

        def check(self, job: Any) -> None:
            self.size = job.settings.cohort_size

        def after(self, run: fl.Running) -> dict[str, Any]:
            return {"cohort": self.size}

    part = Cohort()
    jobs = [job(part, cohort_size=size, rounds=1) for size in (2, 3)]
    assert [made.run().metrics[-1]["cohort"] for made in jobs] == [2, 3]
    assert part.size == 0
