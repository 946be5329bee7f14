"""What figures of analyses show, read back from them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from fedloom.analyses import (
    class_accuracy,
    class_preference,
    consistency,
    label_distributions,
    landscape_hessian,
    local_accuracy as local_accuracy_analysis,
    local_epochs,
    panels,
    personalised,
    tsne,
    weight_divergence,
)
from fedloom.analyses.measures import correlation, local_accuracy
from fedloom.report.style import drawing


@pytest.mark.parametrize(
    "rounds", [[1], [1, 2, 3], list(range(1, 31)), list(range(2, 201)), [1, 50, 100, 200], [7, 9], list(range(9))]
)
def test_ticks_of_round_axes_are_whole_and_evenly_spaced(rounds: list[int]) -> None:
    with drawing():
        _, (axes,) = panels.panels(1)
        axes.plot(rounds, rounds)
        panels.whole_ticks(axes, rounds)
    ticks = axes.get_xticks()
    assert rounds[0] <= ticks[0]
    assert ticks[-1] <= rounds[-1]
    assert (ticks == np.round(ticks)).all()
    assert min(len(rounds), 2) <= len(ticks) <= 8
    assert len(set(np.diff(ticks))) <= 1


def test_accuracies_stand_at_their_rounds() -> None:
    per_class = np.array([[0.1, np.nan], [0.2, 0.6], [0.9, 0.0]])
    figure = class_accuracy.draw([1, 2, 6], per_class, per_class)
    mesh = figure.axes[0].collections[0]
    np.testing.assert_allclose(np.ma.filled(mesh.get_array(), np.nan), 100 * per_class.T)
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0.5, 1.5, 4.0, 6.5]
    assert figure.axes[0].get_ylim() == (1.5, -0.5)  # class 0 on top


def test_marks_at_zero_are_whole() -> None:
    (_, line) = consistency.draw([2, 3], np.array([0.0, 0.4])).axes[0].get_lines()
    assert not line.get_clip_on()


def test_aggregated_values_are_drawn() -> None:
    found = local_accuracy([[2, 1], [1, 1]], [0.5, 0.25])
    names = [f"{w}_{s}" for s in ("before_mean", "after_mean", "aggregated") for w in ("in", "out")]
    curves = {name: np.array([0.1 * i, 0.1 * i + 0.05]) for i, name in enumerate([*names, "accuracy_aggregated"], 1)}
    for count, panel in ((2, 1), (1, 0)):
        some = {"round": np.array([3, 4][-count:])} | {n: c[-count:] for n, c in curves.items()}
        lines = local_accuracy_analysis.draw([0, 5], found, found, some).axes[panel].get_lines()
        drawn = {line.get_label(): np.asarray(line.get_ydata()) for line in lines}
        assert count == 1 or {line.get_marker() for line in lines} == {"o"}  # rounds that lie far from each other
        for where in ("in", "out"):
            np.testing.assert_allclose(drawn[f"{where}-local, aggregated"][-1], 100 * curves[f"{where}_aggregated"][-1])
    assert len(local_accuracy_analysis.draw([0, 5], found, found, {"round": np.array([3, 4])} | curves).axes) == 2


def test_before_is_seen_where_after_is_the_same() -> None:
    (axes,) = personalised.draw([0, 5], np.full((2, 4), 0.5)).axes
    for dot, ring in zip(axes.get_lines()[::2], axes.get_lines()[1::2], strict=True):
        assert (dot.get_markerfacecolor(), ring.get_markerfacecolor()) == (ring.get_markeredgecolor(), "none")
        assert ring.get_markersize() - 2 * ring.get_markeredgewidth() > dot.get_markersize()


def test_a_correlation_of_few_pairs_is_a_dash() -> None:
    table = np.array([[1, 0, 0.5, 0.6, 3, 4]], float)
    title = weight_divergence.draw(table, correlation(table[:, 3], table[:, 5])).axes[0].get_title(loc="left")
    assert title.startswith("Pearson –, Spearman –;")


def test_clients_that_are_not_known_give_no_warning_and_no_mark() -> None:
    table = np.array([[1, 0, 0.5, 0.6, 3, 4], [2, 1, np.nan, np.nan, 9, 9], [2, 0, 0.2, 0.3, 1, 2]], float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = weight_divergence.draw(table, correlation(table[:, 3], table[:, 5]))
        local_epochs.draw(np.full((3, 1), np.nan), np.ones((3, 1)))
    assert figure.axes[0].collections[0].get_offsets().tolist() == [[0.6, 4.0], [0.3, 2.0]]
    assert figure.axes[1].get_lines()[0].get_ydata().tolist() == [1.0, 0.5]


def test_the_expansion_has_the_slope_that_it_is_given() -> None:
    grid = np.linspace(-1, 1, 5)
    a, b = np.meshgrid(grid, grid, indexing="ij")
    slopes, values = np.array([0.7, -0.2]), np.array([6.0, 2.0])
    loss = 3 + slopes[0] * a + slopes[1] * b + values[0] * a**2 / 2 + values[1] * b**2 / 2 + 9 * a**3
    figure = landscape_hessian.draw(grid, loss, slopes, values)
    lines = figure.axes[1].get_lines()
    assert not legend(figure, 1)  # below: within, curves and the line at 0 run through it
    assert [text.get_text()[:13] for text in figure.legends[0].get_texts()] == ["eigenvector 1", "eigenvector 2"]
    for i, line in enumerate((lines[1], lines[3])):
        expected = 3 + slopes[i] * grid + values[i] * grid**2 / 2  # without the third order, which bends the loss alone
        np.testing.assert_allclose(line.get_ydata(), expected)
        np.testing.assert_allclose(lines[2 * i].get_ydata(), (loss[:, 2], loss[2])[i])


def legend(figure: Any, panel: int) -> list[str]:
    found = figure.axes[panel].get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def test_a_global_model_and_twenty_others_have_a_legend() -> None:
    names = ["global", *(f"a {k}" for k in range(10)), *(f"b {k}" for k in range(10))]
    where = np.arange(21).astype(np.int64)
    figure = tsne.draw(np.zeros((21, 2)), where % 3, where, names, [name.split(" ")[0] for name in names])
    assert legend(figure, 1) == names
    colours = {tuple(c) for c in figure.axes[1].collections[0].get_facecolors()}
    assert len(colours) == 21


def test_the_share_of_neighbours_leaves_out_the_point_itself() -> None:
    line = np.stack([np.arange(24.0), np.zeros(24)], 1)
    assert tsne._neighbours(line, np.arange(24)) == 0
    assert tsne._neighbours(line, np.zeros(24, np.int64)) == 1


@pytest.mark.parametrize(("runs", "named"), [(2, 5), (3, 7), (11, 12)])
def test_points_show_the_run_of_their_model(runs: int, named: int) -> None:
    """Of eleven runs, whose models are too many for a legend, the legend names the runs."""
    names = ["global", *(f"{run} {k}" for run in range(runs) for k in (0, 1))]
    where = np.arange(len(names), dtype=np.int64)
    at = np.stack([where, where], 1).astype(float)
    figure = tsne.draw(at, where % 3, where, names, [name.split(" ")[0] for name in names])
    points = figure.axes[1].collections[0]
    shapes = {
        int(x): path.vertices.tobytes() for (x, _), path in zip(points.get_offsets(), points.get_paths(), strict=True)
    }
    assert all(shapes[1 + 2 * run] == shapes[2 + 2 * run] for run in range(runs))
    assert len({shapes[1 + 2 * run] for run in range(runs)}) == min(runs, 6)
    assert legend(figure, 1) == (names if named < 12 else ["global", *map(str, range(11))])
    keys = figure.axes[1].get_legend().legend_handles
    assert len({handle.get_paths()[0].vertices.tobytes() for handle in keys}) == min(runs, 6)


def test_both_distributions_of_a_client_are_one_column() -> None:
    inside = np.array([[0.75, 0.25, 0.0], [0.0, 0.0, 1.0]])
    figure = label_distributions.draw([4, 7], inside, (1 - inside) / 2)
    left, right = (axes.images[0] for axes in figure.axes[:2])
    np.testing.assert_allclose(np.asarray(left.get_array()), [[75, 0], [25, 0], [0, 100]])
    np.testing.assert_allclose(np.asarray(right.get_array()), [[12.5, 50], [37.5, 50], [50, 0]])
    assert (left.get_clim(), right.get_clim()) == ((0, 100), (0, 50))  # no class has more than 1 / (C - 1) out-local
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["4", "7"]


def test_neurons_are_sorted_by_their_class_in_the_received_model() -> None:
    found = {
        "received": np.array([2, 0, -1, 1]),
        "client 3": np.array([2, 2, 0, -1]),
        "aggregated": np.array([2, 0, 1, 1]),
    }
    (axes, *_) = class_preference.draw({"layer a": found}, 3).axes
    assert np.ma.filled(axes.images[0].get_array(), -1).tolist() == [[0, 1, 2, -1], [2, -1, 2, 0], [0, 1, 2, 1]]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["received", "client 3, 50.0 %", "aggregated, 100.0 %"]


def test_classes_have_colours_of_their_own_and_dead_neurons_grey() -> None:
    from matplotlib.colors import to_hex

    for classes in (10, 26, 100):
        found = {"received": np.arange(-1, classes), "aggregated": np.arange(-1, classes)}
        image = class_preference.draw({"layer a": found}, classes).axes[0].images[0]
        shades = image.cmap(image.norm(np.ma.masked_equal(np.array([*range(classes), -1]), -1)))
        assert len({tuple(shade) for shade in shades}) == classes + 1
        assert to_hex(shades[-1]) == "#e5e7eb"
