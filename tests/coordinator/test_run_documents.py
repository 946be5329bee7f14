"""Records that no run writes are refused by their entry and the type that it is declared with."""

from __future__ import annotations

from typing import Any

import pytest

import fedloom as fl
from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.record_entries import Entries, entries_of

ACCURACY, RMSE = (
    entries_of({}),
    entries_of({"measures": [{"name": "rmse", "title": "RMSE", "meaning": "An error.", "better": "low", "unit": ""}]}),
)
LISTS = {"clients": [0, 2], "examples": [3, None], "own": [True, False], "personal_right": [3, None]}


@pytest.mark.parametrize(
    ("log", "record", "message"),
    [
        ("metrics", {"personal_worst_tenth": 3.5}, r"personal_worst_tenth must be a number in 0\.\.1 or null, got 3.5"),
        ("metrics", {"drop": -1.5}, r"drop must be a number in -1\.\.1 or null, got -1.5"),
        ("metrics", {"personal_std": -0.1}, r"personal_std must be a number in 0\.\.1"),
        ("metrics", {"upload_accuracy": {"0": 2}}, "upload_accuracy must be a number or null, or one for each client"),
        ("metrics", {"server_agree": "much"}, "server_agree must be a number that an algorithm notes"),
        ("metrics", {"bytes_up_model": 0.5}, "bytes_up_model must be an integer >= 0, got 0.5"),
        ("metrics", {"personal_auc_undefined": None}, "personal_auc_undefined must be an integer >= 0, got None"),
        ("metrics", {"declined": {"0": None}}, "declined must be a mapping of clients to reasons"),
        ("metrics", {"new_by_client": {"global": {"0": 2}}}, r"new_by_client must be .* numbers in 0\.\.1 or null"),
        ("metrics", {"new_others_by_client": {"global": {"auc": [1]}}}, "new_others_by_client must be a mapping of wa"),
        ("timing", {"seconds": {"train": -1}}, "seconds must be a mapping of phases to numbers >= 0"),
        ("timing", {"peak_rss_mib": "much"}, "peak_rss_mib must be a number or null, got 'much'"),
        ("clients", {"judged": {**LISTS, "own": [0, 1]}}, r"judged\.own must be a list of truths"),
        ("clients", {"judged": {**LISTS, "personal_right": [0.5, 1]}}, r"judged\.personal_right must be a list of co"),
        ("clients", {"judged": {**LISTS, "personal_loss": ["0", 1]}}, r"judged\.personal_loss must be a list of num"),
        ("clients", {"judged": {**LISTS, "examples": [3]}}, r"judged\.examples must be as long as clients, got \[3\]"),
        ("clients", {"noted": {"clients": [0], "rows": ["3"]}}, r"noted\.rows must be a list of numbers or null"),
        ("clients", {"judged": {"own": []}}, "judged must be a mapping of names to lists, clients among them"),
        ("clients", {"trained": {"clients": []}}, "trained must be a mapping of names to lists, clients and trained"),
    ],
)  # fmt: skip
def test_what_no_run_writes_is_refused(log: str, record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reading.checker(f"{log}.jsonl", ACCURACY)({"round": 0, **record})


def test_what_runs_write_is_read_and_what_nobody_declares_is_left() -> None:
    reading.checker("clients.jsonl", ACCURACY)({"round": 0, "judged": {**LISTS, "personal_loss": [0.5, None]}})
    record = {"round": 0, "upload_accuracy": {"0": 0.5, "1": None}, "server_ce": [0.5, 1], "mine": "whatever"}
    reading.checker("metrics.jsonl", ACCURACY)(record)
    reading.checker("timing.jsonl", ACCURACY)(record := {"round": 0})
    assert record["seconds"] == {}


def test_the_headline_of_the_run_says_what_its_numbers_are() -> None:
    record = {"round": 0, "personal_worst_tenth": 3.5, "global_on_clients": 40.0, "personal_by_client": {"0": 3.5}}
    reading.checker("metrics.jsonl", RMSE)(record)
    for name in ("personal_worst_tenth", "global_on_clients", "personal_by_client"):
        with pytest.raises(ValueError, match=f"{name} must be .* in 0"):
            reading.checker("metrics.jsonl", ACCURACY)({"round": 0, name: record[name]})


@pytest.mark.parametrize(
    "measures", ["rmse", [1], [{"name": "rmse"}], [{"name": 1, "title": 2, "meaning": 3}], {"a": 1}]
)
def test_a_manifest_with_other_measures_is_refused(measures: Any) -> None:
    with pytest.raises(ValueError, match="measures must be a list of mappings of better, chance, meaning, name"):
        entries_of({"measures": measures})


def test_names_go_before_patterns() -> None:
    column = fl.Measure("server_share", "Share", "share", "A share.")
    entries = Entries([*fl.Part().columns, column])
    assert entries.kind("metrics.jsonl", "server_share") is column.kind
    assert ACCURACY.kind("metrics.jsonl", "server_loss") is not ACCURACY.kind("metrics.jsonl", "server_ce_loss")
    assert ACCURACY.kind("timing.jsonl", "global_loss") is None
