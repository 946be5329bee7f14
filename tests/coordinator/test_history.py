"""A history: by hand, from a run, and from its files, whatever has happened to them."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from fedloom import FedAvg, NewClients, RunSettings, run
from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.chosen_rounds import Reached
from fedloom.coordinator.history import History
from fedloom.coordinator.run_folders import runs_below
from fedloom.core.errors import SettingError, StorageError
from fedloom.report.methods import evaluation_seconds, training_seconds


def record(t: int, **more: Any) -> dict[str, Any]:
    return {"round": t, "clients": [0, 1], "failed": {}, "bytes_down": 30, "bytes_up": 10, **more}


def timed(t: int, train: float = 2.0) -> dict[str, Any]:
    return {"round": t, "seconds": {"sample": 0.5, "train": train, "evaluate": 9.0}, "peak_rss_mib": 100.0}


def small() -> History:
    """Three rounds after the start; the accuracy falls in between, and the loss is measured from round 1."""
    metrics = [
        {"round": 0, "global_accuracy": 0.1, "class_accuracy": [0.0, None, 0.2]},
        record(1, global_accuracy=0.6, train_loss=2.0, class_accuracy=[0.5, None, 0.7], failed={"1": "gone"}),
        record(2, global_accuracy=0.4, train_loss=1.0, class_accuracy=[0.3, None, 0.5], forgetting=0.2),
        record(3, global_accuracy=0.8, train_loss=0.5, class_accuracy=[0.8, None, 0.8], forgetting=-0.2),
    ]
    return History("A", metrics=metrics, timing=[{"round": 0, "seconds": {"evaluate": 1.0}}, *map(timed, (1, 2, 3))])


def written(folder: Path, history: History | None = None, **documents: Any) -> Path:
    history = history or small()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("metrics", "timing"):
        lines = [json.dumps(line) + "\n" for line in getattr(history, name)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    for name, content in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


# ---- frame and targets


def test_a_frame_has_a_row_per_round_and_sums_of_costs() -> None:
    frame = small().frame()
    assert frame["round"].tolist() == [0, 1, 2, 3]
    assert frame["clients"].tolist() == [0, 2, 2, 2]
    assert frame["failed"].tolist() == [0, 1, 0, 0]
    assert frame["bytes"].tolist() == [0, 40, 80, 120]
    assert frame["seconds"].tolist() == [0.0, 2.5, 5.0, 7.5]  # evaluation is no part of it
    assert frame["seconds_evaluate"].tolist() == [1.0, 9.0, 9.0, 9.0]
    assert frame["class_accuracy_0"].tolist() == [0.0, 0.5, 0.3, 0.8]
    assert frame["class_accuracy_1"].isna().all()
    assert frame["train_loss"].isna().tolist() == [True, False, False, False]
    assert all(kind.kind in "if" for kind in frame.dtypes)
    assert list(frame.columns).index("bytes") < list(frame.columns).index("class_accuracy_0")


def test_a_frame_of_nothing_is_empty() -> None:
    assert History("A").frame().empty


def test_a_round_that_was_not_timed_makes_later_sums_unknown() -> None:
    history = small()
    del history.timing[2]
    assert [row["seconds"] for row in history.rows()] == [0.0, 2.5, None, None]
    reached = history.to_target("global_accuracy", 0.7)
    assert reached is not None
    assert (reached.rounds, reached.bytes, math.isnan(reached.seconds)) == (3, 120, True)


def test_the_first_round_that_reaches_a_target_counts() -> None:
    history = small()
    assert history.to_target("global_accuracy", 0.5) == Reached(1, 40, 2.5)
    assert history.to_target("global_accuracy", 0.6) == Reached(1, 40, 2.5)
    assert history.to_target("global_accuracy", 0.61) == Reached(3, 120, 7.5)
    assert history.to_target("global_accuracy", 0.05) == Reached(0, 0, 0.0)
    assert history.to_target("global_accuracy", 0.81) is None


def test_losses_and_forgetting_reach_a_target_from_above() -> None:
    history = small()
    assert history.to_target("train_loss", 1.0) == Reached(2, 80, 5.0)
    assert history.to_target("forgetting", 0.0) == Reached(3, 120, 7.5)
    assert history.to_target("train_loss", 0.1) is None


def test_a_target_of_what_was_not_measured_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"'accuracy' \(did you mean 'global_accuracy'\?\); measured: .*class"):
        small().to_target("accuracy", 0.5)


def test_a_misspelt_number_is_told_the_one_that_may_be_meant() -> None:
    """One that this run has not measured is NaN, or none."""
    history = small()
    for read in (history.last, history.series, history.summaries):
        with pytest.raises(SettingError, match=r"no round has measured 'global_acuracy' \(did you mean 'global_acc"):
            read("global_acuracy")
        read("personal_auc")
        read("server_moved")
    assert np.isnan(history.last("personal_auc"))
    assert len(history.series("server_moved")) == 0
    assert len(History("FedAvg").series("accuracy")) == 0  # nothing is there to be compared with


def test_a_number_over_rounds_goes_by_its_names_in_records_and_in_frames() -> None:
    history, frame = small(), small().frame()
    for name in ("global_accuracy", "bytes", "seconds", "seconds_train", "class_accuracy_0", "clients", "failed"):
        column = frame[name].dropna()
        np.testing.assert_array_equal(history.series(name), column)
        assert history.last(name, 2) == column.iloc[-2:].mean()
        assert history.summaries(name).mean == column.mean()
        (line,) = history.plot(name).lines
        assert list(line.get_xdata()) == frame["round"][column.index].tolist()


def test_several_numbers_a_round_are_no_number_over_rounds() -> None:
    history = History("A", metrics=[record(1, personal_by_client={"0": 0.5}, class_accuracy=[0.5, 1.0])])
    for ask in (history.series, history.last, history.summaries, history.plot):
        with pytest.raises(
            SettingError, match=r"is one a round, and 'personal_by_client' has several: read it in `met"
        ):
            ask("personal_by_client")
        with pytest.raises(SettingError, match=r"'class_accuracy' has several: class_accuracy_0, ... are numbers"):
            ask("class_accuracy")
    with pytest.raises(SettingError, match="'personal_by_client' has several"):
        history.to_target("personal_by_client", 0.5)


# ---- accuracies by class


def test_accuracies_by_class_follow_the_records() -> None:
    history = small()
    np.testing.assert_array_equal(history.per_class, [[0.5, np.nan, 0.7], [0.3, np.nan, 0.5], [0.8, np.nan, 0.8]])
    history.metrics.append(record(4, class_accuracy=[1.0, None, 0.0]))
    assert history.per_class[-1].tolist()[::2] == [1.0, 0.0]
    assert history.per_class is history.per_class  # read once
    history.metrics.append(record(5))
    assert len(history.per_class) == 4


def test_accuracies_by_class_notice_a_history_that_was_cut_back_and_went_on_otherwise() -> None:
    history = small()
    assert len(history.per_class) == 3
    history.metrics[:] = [*history.metrics[:2], record(2, class_accuracy=[0.9, None, 0.9])]
    np.testing.assert_array_equal(history.per_class, [[0.5, np.nan, 0.7], [0.9, np.nan, 0.9]])
    history.metrics[:] = [*history.metrics[:2], record(2, class_accuracy=[0.1, None, 0.1])]
    np.testing.assert_array_equal(history.per_class, [[0.5, np.nan, 0.7], [0.1, np.nan, 0.1]])
    history.metrics.clear()
    assert len(history.per_class) == 0


# ---- files


def test_what_a_run_has_written_is_read_back(tmp_path: Path) -> None:
    settings = RunSettings(rounds=3, cohort_size=2, engine="loop")
    ran = run(FedAvg(local=tiny.LOCAL), tiny.federation(), tiny.linear, settings, directory=tmp_path / "run")
    read = History.read(tmp_path / "run")
    assert read.metrics == ran.metrics
    assert read.timing == ran.timing
    assert (read.algorithm, read.engine, read.engine_reason) == ("FedAvg", "loop", ran.engine_reason)
    assert read.settings["run"]["rounds"] == 3
    assert read.federation["clients"] == 6
    assert read.manifest["models"]
    assert read.server is None
    assert read.frame().equals(ran.frame())


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    whole = (folder / "metrics.jsonl").read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole) - 1):
        (folder / "metrics.jsonl").write_bytes(whole[:end])
        assert len(History.read(folder).metrics) == 3
    (folder / "metrics.jsonl").write_bytes(whole[:-1])  # whole but for the end of the line
    assert len(History.read(folder).metrics) == 4


def test_only_the_metrics_are_needed(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "timing.jsonl").unlink()
    history = History.read(folder)
    assert (history.timing, history.settings, history.federation, history.algorithm) == ([], {}, {}, "")
    assert [row["seconds"] for row in history.rows()] == [0.0, None, None, None]


def test_facts_in_a_directory_that_somebody_made_are_read_and_prove_nothing(tmp_path: Path) -> None:
    history = History.read(written(tmp_path, manifest={"engine": "loop", "models": {"net": 7}}))
    assert (history.engine, history.manifest["models"], history.unproved) == ("loop", {"net": 7}, "")
    with pytest.raises(StorageError, match="holds a run of format 1, and format 2 is read"):
        History.read(written(tmp_path, manifest={"format": 1, "engine": "loop"}))


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"holds no run: metrics.jsonl is missing"):
        History.read(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", "line 2: Expecting value"),
        ("[1]", r"line 2: a JSON object is needed, got \[1\]"),
        ('{"round": 1, "global_loss": NaN}', "line 2: numbers must be finite, got NaN"),
        ('{"round": 1, "global_loss": 1e999}', "line 2: numbers must be finite, got 1e999"),
        ('{"round": 1, "bytes_up": %s}' % ("9" * 5000), "line 2: integers have at most 20 digits"),
        ("{" * 5 + "[" * 100_000, "line 2: "),
        ('{"round": 1, "x": %s}' % ("[" * 100_000 + "]" * 100_000), "line 2: JSON is nested too deeply"),
        ('{"global_accuracy": 0.5}', "line 2: round must be an integer >= 0, got None"),
        ('{"round": true}', "line 2: round must be an integer >= 0, got True"),
        ('{"round": 0}', "line 2: round must be larger than 0, the one before, got 0"),
        (
            '{"round": 1, "global_accuracy": 1.5}',
            r"line 2: global_accuracy must be a number in 0\.\.1 or null, got 1\.5",
        ),
        ('{"round": 1, "train_loss": "low"}', "line 2: train_loss must be a number or null, got 'low'"),
        ('{"round": 1, "bytes_up": -1}', "line 2: bytes_up must be an integer >= 0, got -1"),
        ('{"round": 1, "clients": {"0": 1}}', "line 2: clients must be a list of client numbers"),
        ('{"round": 1, "failed": {"0": 1}}', "line 2: failed must be a mapping of clients to reasons"),
        ('{"round": 1, "new_failed": {"0": 1}}', "line 2: new_failed must be a mapping of clients to reasons"),
        ('{"round": 1, "personal_by_client": {"0": null}}', "line 2: personal_by_client must be a mapping"),
        ('{"round": 1, "class_accuracy": [0.5]}', "line 2: class_accuracy must be as long as in the rounds before"),
        (
            '{"round": 1, "class_accuracy": [0.5, 2, null]}',
            r"line 2: class_accuracy must be a list of numbers in 0\.\.1",
        ),
    ],
)
def test_damaged_metrics_are_an_error_that_names_the_line(tmp_path: Path, line: str, message: str) -> None:
    folder = written(tmp_path)
    first = (folder / "metrics.jsonl").read_text().splitlines()[0]
    (folder / "metrics.jsonl").write_text(f"{first}\n{line}\n")
    with pytest.raises(SettingError, match=rf"metrics\.jsonl, {message}"):
        History.read(folder)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "metrics.jsonl").write_bytes(b'{"round": 0, "x": "\xff"}\n')
    with pytest.raises(SettingError, match=r"line 1: text must be UTF-8"):
        History.read(folder)


@pytest.mark.parametrize("seconds", ['{"train": -1}', '{"train": "1"}', "[1]"])
def test_damaged_timing_is_an_error(tmp_path: Path, seconds: str) -> None:
    folder = written(tmp_path)
    (folder / "timing.jsonl").write_text(f'{{"round": 0, "seconds": {seconds}}}\n')
    with pytest.raises(SettingError, match=r"timing\.jsonl, line 1: seconds must be a mapping of phases"):
        History.read(folder)


GOOD = {"clients": 3, "classes": 2, "shown": [0, 1], "train": [[1, 2], [3, 4]], "test": None, "sizes": {"min": 3}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "clients must be an integer >= 1, got 0"),
        ({"shown": [0, 1, 2, 3]}, "shown must be a list of client numbers"),
        ({"train": [[1, 2]]}, "train must be 2 lists of 2 integers >= 0"),
        ({"train": [[1, 2], [3, -4]]}, "train must be 2 lists of 2 integers >= 0"),
        ({"train": [[1, 2], [3, 4.5]]}, "train must be 2 lists of 2 integers >= 0"),
        ({"test": [[1], [2]]}, "test must be 2 lists of 2 integers >= 0"),
        ({"sizes": {"min": "few"}}, "sizes must be a mapping to numbers"),
        ({"class_names": ["a"]}, "class_names must be a list of 2 texts"),
        ({"client_names": ["a", 3]}, "client_names must be a list of 2 texts"),
    ],
)
def test_a_damaged_federation_is_an_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert History.read(written(tmp_path, federation=GOOD)).federation == GOOD
    written(tmp_path, federation={**GOOD, **change})
    with pytest.raises(SettingError, match=rf"federation\.json: {message}"):
        History.read(tmp_path)


def test_damaged_settings_are_an_error(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "settings.json").write_text("{")
    with pytest.raises(SettingError, match=r"settings\.json: Expecting .*; restore the file or remove it"):
        History.read(folder)


# ---- folders


def test_runs_are_found_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("b/seed-10", "b/seed-2", "a", "b/seed-2/checkpoints/old"):
        written(tmp_path / name)
    assert [p.relative_to(tmp_path).as_posix() for p in runs_below(tmp_path)] == ["a", "b/seed-2", "b/seed-10"]
    assert runs_below(tmp_path / "a") == [tmp_path / "a"]
    assert runs_below(tmp_path / "b/seed-2/checkpoints") == [tmp_path / "b/seed-2/checkpoints/old"]
    with pytest.raises(SettingError, match=r"nowhere is no folder"):
        runs_below(tmp_path / "nowhere")


def test_the_mean_of_the_last_rounds_is_of_those_rounds() -> None:
    """`eval_every=20` of 40 rounds: neither what was measured before training nor round 20 is among the last ten."""
    evaluated = {0: 0.278, 20: 0.944, 40: 0.889}

    def after(rounds: int) -> History:
        metrics = [
            {"round": t, **({"personal_accuracy": evaluated[t]} if t in evaluated else {})} for t in range(rounds + 1)
        ]
        return History("A", metrics=metrics)

    assert after(40).summaries("personal_accuracy").tail == 0.889
    assert after(40).last("personal_accuracy", 20) == 0.889  # rounds 21 to 40
    assert after(40).last("personal_accuracy", 21) == after(40).last("personal_accuracy", 90) == pytest.approx(0.9165)
    assert after(35).summaries("personal_accuracy").tail == 0.944  # none of the last ten has it: the newest of all
    assert after(15).summaries("personal_accuracy").tail == after(15).last("personal_accuracy") == 0.278


def test_measuring_is_no_training() -> None:
    """What clients receive and have trained is looked at within a round, new clients are evaluated after the last."""
    history = small()
    for t, laps in enumerate(({"evaluate": 70.0}, {}, {"look": 30.0}, {"look": 40.0, "new": 50.0})):
        history.timing[t]["seconds"] |= laps
    assert [row["seconds"] for row in history.rows()] == [0.0, 2.5, 5.0, 7.5]
    assert history.to_target("global_accuracy", 0.7) == Reached(3, 120, 7.5)
    assert training_seconds(history) == 2.5
    assert evaluation_seconds(history) == (9.0 + 39.0 + 99.0) / 3


@pytest.mark.slow
def test_each_evaluation_of_a_run_is_timed() -> None:
    settings = RunSettings(rounds=2, cohort_size=2, engine="loop", per_client=True)
    history = run(FedAvg(local=tiny.LOCAL), tiny.federation(), tiny.linear, settings, new=NewClients(1))
    phases = [list(t["seconds"]) for t in history.timing]
    during = ["sample", "look", "train", "evaluate"]
    assert phases == [["evaluate"], during, [*during, "new"]]
    row = history.rows()[-1]
    assert row["seconds"] == sum(t["seconds"][name] for t in history.timing[1:] for name in ("sample", "train"))


def test_what_a_client_lost_is_good_when_low() -> None:
    metrics = [{"round": t, "drop": d} for t, d in enumerate((0.3, 0.1, 0.2), 1)]
    history = History("A", metrics=metrics)
    assert history.summaries("drop").best == 0.1
    reached = history.to_target("drop", 0.2)
    assert reached is not None
    assert reached.rounds == 2


def test_the_best_round_is_the_first_of_equals_on_validation_data() -> None:
    def after(*values: float | None) -> History:
        metrics = [{"round": t, "global_accuracy": -t, "val_accuracy": v} for t, v in enumerate(values)]
        return History("A", metrics=metrics)

    assert after(0.1, 0.8, None, 0.7, 0.8).validated_round == 1
    assert after(0.3, 0.2).validated_round == 0  # the weights before training count
    assert after(None, None).validated_round is None
    assert History("A", metrics=[{"round": 0, "global_accuracy": 0.5}]).validated_round is None


def test_a_number_is_read_in_five_ways() -> None:
    found = [0.1, 0.6, None, 0.9, 0.5]
    val = [0.2, 0.7, 0.8, 0.4, 0.7]  # the best is in a round without the number, then two are equal
    metrics = [
        {"round": t, "val_accuracy": v} | ({} if a is None else {"global_accuracy": a})
        for t, (a, v) in enumerate(zip(found, val, strict=True))
    ]
    read = History(algorithm="A", metrics=metrics).summaries("global_accuracy")
    assert read == (0.5, pytest.approx(0.7), 0.6, 0.9, pytest.approx(2.1 / 4))
    assert read._fields == ("last", "tail", "validated", "best", "mean")
    assert History(algorithm="A", metrics=metrics).summaries("global_accuracy", tail=4).tail == pytest.approx(2 / 3)
    losses = [{"round": t, "global_loss": v} for t, v in enumerate((3.0, 1.0, 2.0))]
    read = History(algorithm="A", metrics=losses).summaries("global_loss")
    assert (read.last, read.mean, read.best) == (2.0, 2.0, 1.0)  # the lowest
    assert math.isnan(read.validated)
    assert all(map(math.isnan, History(algorithm="A", metrics=losses).summaries("personal_accuracy")))


def test_earlier_values_do_not_stand_for_an_undefined_end() -> None:
    """A loss that is not finite, a precision without predictions: `null`, as what was not measured has no key."""

    def read(*losses: float | None) -> History:
        vals = (0.1, 0.2, 0.9, 0.3, 0.3)
        records = [{"round": t, "global_loss": a, "val_accuracy": vals[t]} for t, a in enumerate(losses)]
        return History(algorithm="A", metrics=[*records, {"round": len(losses)}])  # which evaluates nothing

    diverged = read(3.0, 2.0, 1.0, None, None)
    last, tail, validated, best, mean = diverged.summaries("global_loss")
    assert all(map(math.isnan, (last, tail, mean, diverged.last("global_loss"), diverged.last("global_loss", 5))))
    assert (validated, best) == (1.0, 1.0)  # what is known of round 2 stays known
    assert math.isnan(read(3.0, 2.0, None, 1.0, 1.5).summaries("global_loss").validated)  # round 2 was chosen
    assert read(3.0, 2.0, None, 1.0, 1.5).summaries("global_loss", 3)[:2] == (1.5, 1.25)


def test_a_small_document_takes_little_memory_to_read(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text('{"a": 1}')
    tracemalloc.start()
    try:
        assert reading.mapping(path) == {"a": 1}
        assert tracemalloc.get_traced_memory()[1] < 2**20, "memory is taken for the largest file that may be read"
    finally:
        tracemalloc.stop()
