"""Who holds which classes: numbers by hand, and what is drawn of ten clients and of very many."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedloom.core.errors import SettingError
from fedloom.report import FederationTable, draw_federation, heterogeneity, sentences


def shown(counts: np.ndarray, width: int = 80, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(FederationTable(counts, **more))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_of_many_clients_what_is_said_is_of_those_that_are_known() -> None:
    """federation.json has the classes of the first hundred, and the sizes of all."""
    told = {"clients": 200, "shown": [*range(100)], "sizes": {"min": 5, "median": 5.0, "max": 5}}
    said = sentences.describe_holders(told, heterogeneity(np.array([[5, 0]] * 100)))
    assert said == (
        "Training examples by client, the first ones and class: 200 clients with 5 each; the first 100 have examples "
        "of 1 class. Distance between a client's classes and those of all of these (total variation): 0.00 on average; "
        "0 is alike, 1 disjoint."
    )
    said = sentences.describe_holders(told | {"clients": 100}, heterogeneity(np.array([[5, 0]] * 100)))
    assert said.startswith("Training examples by client and class: 100 clients with 5 each, of 1 class. Distance ")
    assert "those of all (total variation)" in said


def test_heterogeneity_by_hand() -> None:
    facts = heterogeneity(np.array([[8, 0], [2, 2], [0, 4], [0, 0]]))
    assert facts.sizes == (0, 4.0, 8)
    assert facts.clients_by_classes.tolist() == [1, 2, 1]
    assert facts.entropy == pytest.approx(1 / 3)  # 0, 1 and 0 bits; the empty client has no distribution
    # all examples are 10/16 and 6/16: |1 - 10/16|, |1/2 - 10/16| and |0 - 10/16|
    assert facts.distance == pytest.approx((6 / 16 + 2 / 16 + 10 / 16) / 3)


def test_alike_and_disjoint_clients_are_the_ends_of_the_scale() -> None:
    alike = heterogeneity(np.full((5, 4), 3))
    assert (alike.distance, alike.entropy) == (0, 2)
    disjoint = heterogeneity(np.eye(4, dtype=np.int64))
    assert (disjoint.distance, disjoint.entropy) == (0.75, 0)


def test_blocks_of_clients_are_summed() -> None:
    few = np.random.default_rng(0).integers(0, 5, (1000, 3))
    many, once = heterogeneity(np.tile(few, (200, 1))), heterogeneity(few)
    assert many.clients_by_classes.tolist() == [200 * n for n in once.clients_by_classes]
    assert math.isclose(many.entropy, once.entropy)
    assert math.isclose(many.distance, once.distance)


def test_a_small_federation_shows_every_number() -> None:
    lines = shown(np.array([[12, 0, 3], [0, 1200, 4]])).splitlines()
    assert lines[0].split() == ["client", "0", "1", "2", "all"]
    assert lines[1].split() == ["0", "12", "·", "3", "15"]
    assert lines[2].split() == ["1", "·", "1,200", "4", "1,204"]
    assert "2 clients, 1,219 examples, 3 classes" in lines
    assert "more clients" not in shown(np.ones((2, 3), np.int64), shown=2)
    assert "examples a client: 15 to 1,204, median 609.5" in lines


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("clients", "classes"), [(10, 10), (25, 26), (30, 62), (5, 100), (3, 1000), (1, 1)])
def test_nothing_is_wider_than_the_terminal(width: int, clients: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 9, (clients, classes))
    out = shown(counts, width)
    lines = out.splitlines()
    rows = [line for line in lines if line[:6].strip().isdigit() and line[6] == " "]
    assert len(rows) == min(clients, 20)
    assert len({len(line) for line in [lines[0], *rows]}) == 1  # all columns stand under their heading
    assert max(map(len, lines)) <= width
    assert "…" not in out


def test_clients_have_their_names() -> None:
    counts = np.array([[30, 0], [5, 5], [1, 1]])
    lines = shown(counts, 60, shown=2, names=("Köln\x1b[31m", "St. Anna und St. Elisabeth", "Ulm")).splitlines()
    assert [line.split()[-3:] for line in lines[1:3]] == [["30", "·", "30"], ["5", "5", "10"]]
    assert lines[1].strip().startswith("Köln\ufffd[31m ")
    assert lines[2].startswith("St. Anna und St. El… ")


def test_of_many_classes_neighbours_share_a_cell() -> None:
    counts = np.zeros((2, 200), np.int64)
    counts[0, 0] = counts[0, 1] = 4
    counts[1, 199] = 4
    out = shown(counts)
    assert "█: 8 examples, 4 neighbouring classes a cell" in out
    assert out.splitlines()[1].split()[1].startswith("█··")
    assert out.splitlines()[2].split()[1].endswith("·▒")


def test_a_million_clients_are_summed_up() -> None:
    counts = np.ones((1_000_000, 2), np.int64)
    counts[:500_000, 1] = 0
    out = shown(counts, shown=3)
    assert "... and 999,997 more clients" in out
    assert "classes a client: 1 to 2, median 1  ██" in out


@pytest.mark.parametrize("counts", [np.zeros((0, 3), int), np.zeros(3, int), np.zeros((2, 2)), np.array([[1, -1]])])
def test_what_is_no_table_of_counts_is_refused(counts: np.ndarray) -> None:
    with pytest.raises(SettingError, match=r"counts must be integers >= 0 by client and class"):
        heterogeneity(counts)


def test_circles_have_areas_like_numbers_of_examples() -> None:
    figure = draw_federation(np.array([[4, 0, 1], [0, 2, 0]]), clients=np.array([7, 9]))
    (circles,) = figure.axes[0].collections
    assert circles.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]]  # type: ignore[union-attr]
    sizes = circles.get_sizes()  # type: ignore[attr-defined]
    assert (sizes / sizes[0]).tolist() == [1, 0.25, 0.5]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["7", "9"]


def test_many_classes_are_shades_and_clients_at_most_a_hundred() -> None:
    figure = draw_federation(np.ones((300, 62), np.int64))
    (image,) = figure.axes[0].images
    assert image.get_array().shape == (62, 100)  # type: ignore[union-attr]
