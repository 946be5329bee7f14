"""Accuracy by class and round, and the lowest classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from made import made_run, methods

from fedloom.report import sentences
from fedloom.report.class_maps import class_accuracy, class_maps, describe_weakest, weakest_table


def test_maps_of_classes_are_means_over_seeds(tmp_path: Path) -> None:
    tables = {0: [[0.0, 0.2, None], [0.4, 0.9, None]], 1: [[0.2, 0.4, None], [0.6, 0.1, None], [1.0, 1.0, None]]}
    for seed, table in tables.items():
        folder = made_run(tmp_path / str(seed), seed=seed, rounds=1)
        lines = [{"round": t, "class_accuracy": row} for t, row in enumerate(table)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (method,) = methods(tmp_path)
    rounds, mean = class_accuracy(method)
    assert rounds == [0, 1]
    np.testing.assert_allclose(mean, [[0.1, 0.3, np.nan], [0.5, 0.5, np.nan]])
    figure = class_maps([method])
    assert figure is not None
    np.testing.assert_allclose(figure.axes[0].images[0].get_array().filled(np.nan), mean.T * 100)
    assert describe_weakest(method) == "Lowest after round 1, the last that all seeds have: 2 classes (0, 1), 50.0 %."
    assert "A line ends in the last round that all seeds of a method have." in sentences.describe_bands([method])


def test_classes_far_below_their_best_are_counted_by_hand(tmp_path: Path) -> None:
    """Class 0 was better before training, class 1 was 15 points better after round 1, class 2 was 25."""
    table = [[0.9, 0.0, 0.0, None], [0.3, 0.65, 0.75, None], [0.4, 0.5, 0.5, None]]
    folder = made_run(tmp_path / "run", rounds=2)
    lines = [{"round": t, "class_accuracy": row} for t, row in enumerate(table)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (method,) = methods(tmp_path)
    far = "1 of 3 classes are more than 20 points below their best"
    assert describe_weakest(method) == f"Lowest at the end: class 0, 40.0 %; {far}."


def test_maps_are_small_multiples_with_one_scale(tmp_path: Path) -> None:
    for name in ("fedavg", "fedrep", *(f"m{i}" for i in range(8))):
        made_run(tmp_path / name, name, without=("class_accuracy",) if name == "fedrep" else ())
    of = methods(tmp_path)
    figure = class_maps(of)
    assert figure is not None
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title("left") for axes in maps] == [m.label for m in of if m.label != "fedrep"]
    assert {axes.images[0].get_clim() for axes in maps} == {(0.0, 100.0)}
    rows = [round(axes.get_subplotspec().rowspan.start) for axes in maps]  # type: ignore[union-attr]
    assert rows == [0] * 8 + [1]
    assert [bool(axes.get_yticks().size) for axes in maps] == [True, *[False] * 7, True]
    assert [row[0] for row in weakest_table(of).rows] == [m.label for m in of if m.label != "fedrep"]
    assert class_maps([m for m in of if m.label == "fedrep"]) is None
