"""Tables that are written by hand on the pages of the studies have the numbers of the runs in papers/docs/results."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import fedloom_papers
from fedloom.coordinator import Uniform
from fedloom.data import Window
from fedloom_papers import recipes
from fedloom_papers.apfl.claims import FORCED, measured
from fedloom_papers.reproduction.claims import FAILS, HOLDS, JUDGED, NOISE
from fedloom_papers.reproduction.results import Result, read

DOCS = Path(__file__).parents[1] / "docs"
PAPERS = "../../docs/papers.md"  # of fedloom, seen from there


def table(page: str, corner: str) -> list[dict[str, str]]:
    """Rows of the table whose first heading begins so; marks are left out, equal headings are numbered from 2 on."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith(f"| {corner}"))
    cells = [
        [re.sub(r"[*`]", "", cell).strip() for cell in line.strip("|").split("|")]
        for line in lines[start : next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), None)]
    ]
    heads = [
        f"{head} {cells[0][:i].count(head) + 1}" if head in cells[0][:i] else head for i, head in enumerate(cells[0])
    ]
    return [dict(zip(heads, row, strict=True)) for row in cells[2:]]


def results(study: str, name: str) -> Mapping[tuple[str, str], Result]:
    return {(r.recipe.column, r.recipe.row): r for r in read(recipes(name), [DOCS / "results" / study])}


def series(result: Result, seed: int, measure: str) -> list[float]:
    """In %, by round."""
    return [100 * float(value) for value in result.runs[seed].history.series(measure)]


def says(cell: str, value: float) -> bool:
    """Whether a cell has this number, rounded to the places that it prints."""
    return bool(abs(float(cell) - value) <= 0.5001 * 10 ** -len(cell.partition(".")[2]))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_personal_accuracies_of_ktpfl() -> None:
    found = results("ktpfl", "ktpfl-small")
    columns = {"letters a to j": "emnist20k", "Fashion-MNIST": "fmnist20k", "CIFAR-10": "cifar20k"}
    seen = set()
    for row in table("ktpfl.md", "personal accuracy in %"):
        data, setting, seed = re.fullmatch(r"(.+), (two|all) classes, seed (\d)", row.pop(next(iter(row)))).groups()
        for head, cell in row.items():
            method, column = head.partition(" ")[0], f"{columns[data]}-{setting}"
            if int(seed) in found[column, method].runs:
                assert says(cell, series(found[column, method], int(seed), "personal_accuracy")[-1]), (column, method)
                seen.add((column, method, int(seed)))
            else:
                assert cell == "-", (column, method)
    assert seen == {(*place, seed) for place, result in found.items() for seed in result.runs}


def line_with(page: str, words: str) -> str:
    """The first line of a page that has these words."""
    return next(line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if words in line)


def gains_are_said(said: str, gains: Mapping[str, np.ndarray], words: Mapping[str, str]) -> bool:
    """Whether a line has each method's mean gain over clients, with its standard error, behind the method's words."""
    error = {row: gains[row].std(ddof=1) / np.sqrt(len(gains[row])) for row in words}
    return all(f"{told} {gains[row].mean():.1f} ± {error[row]:.1f}" in said for row, told in words.items())


def own_accuracies(column: str) -> dict[str, np.ndarray]:
    """Accuracies in % of the clients of a column of `ktpfl-small` after the last round of seed 0, by method."""
    found, own = results("ktpfl", "ktpfl-small"), {}
    for row in ("kt_pfl", "fedmd_kt", "sim_pfl", "pfeddf", "feddf", "local_only"):
        last = found[column, row].runs[0].history.metrics[-1]["personal_by_client"]
        own[row] = np.array([100 * last[str(client)] for client in range(len(last))])
    return own


def test_what_all_classes_of_the_letters_gain_by_ktpfl() -> None:
    own, found = own_accuracies("emnist20k-all"), results("ktpfl", "ktpfl-small")
    gains = {row: values - own["local_only"] for row, values in own.items()}
    said = line_with("ktpfl.md", "all classes of the letters")
    words = {
        "kt_pfl": "on one seed: by", "fedmd_kt": "above it by", "sim_pfl": "Sim-pFL by", "pfeddf": "pFedDF by",
        "feddf": "FedDF's fused models by",
    }  # fmt: skip
    assert gains_are_said(said, gains, words)
    assert f"alone has {own['local_only'].min():.1f} % after the last" in said
    assert own["local_only"].argmin() % 4 == 2  # WRN-16-1
    over = [own[row].mean() - own["kt_pfl"].mean() for row in ("feddf", "pfeddf")]
    assert "are {:.1f} and {:.1f} points above it".format(*over) in said
    lasting = [
        mean(series(found["emnist20k-all", row], 0, "personal_accuracy")[-5:])
        for row in ("kt_pfl", "fedmd_kt", "local_only")
    ]
    assert "KT-pFL has {:.1f}, uniform mixing {:.1f} and local training {:.1f} %".format(*lasting) in said
    by_architecture = [own["feddf"][k::4].mean() for k in range(4)]
    assert "{:.1f}, {:.1f}, {:.1f} and {:.1f} % by architecture".format(*by_architecture) in said
    assert all(own["feddf"][k::4].mean() > own["kt_pfl"][k::4].mean() for k in range(4))


def test_two_classes_of_the_letters_of_ktpfl() -> None:
    own, found = own_accuracies("emnist20k-two"), results("ktpfl", "ktpfl-small")
    gains = {row: values - own["local_only"] for row, values in own.items()}
    said = line_with("ktpfl.md", "two classes of the letters")
    words = {"kt_pfl": "KT-pFL by", "fedmd_kt": "uniform mixing", "sim_pfl": "Sim-pFL", "pfeddf": "and pFedDF"}
    assert gains_are_said(said, gains, words)
    for row in words:  # level
        assert abs(gains[row].mean()) < 2 * gains[row].std(ddof=1) / np.sqrt(len(gains[row])), row
    curves = {row: series(found["emnist20k-two", row], 0, "personal_accuracy") for row in own}
    assert max(curves["pfeddf"]) == curves["pfeddf"][-1]
    lasting = [mean(curves[row][-5:]) for row in ("pfeddf", "kt_pfl")]
    assert "it has {:.1f}, as local training, KT-pFL {:.1f} %".format(*lasting) in said
    assert round(mean(curves["local_only"][-5:]), 1) == round(lasting[0], 1)
    by_architecture = [own["feddf"][k::4].mean() for k in range(4)]
    assert "{:.1f}, {:.1f}, {:.1f} and {:.1f} % by architecture".format(*by_architecture) in said


def test_what_all_classes_of_fashion_mnist_gain_by_ktpfl() -> None:
    """The bullet of the page: gains over local training by client, with their standard error, and by architecture."""
    own = own_accuracies("fmnist20k-all")
    gains = {row: values - own["local_only"] for row, values in own.items()}
    said = line_with("ktpfl.md", "With all classes of")
    words = {
        "kt_pfl": "training alone**, on one seed: by", "fedmd_kt": "above it by", "sim_pfl": "Sim-pFL by",
        "pfeddf": "pFedDF by",
    }  # fmt: skip
    assert gains_are_said(said, gains, words)
    better, worse = int((gains["kt_pfl"] > 0).sum()), int((gains["kt_pfl"] < 0).sum())
    assert (better, worse, "twelve better, six worse" in said) == (12, 6, True)
    by_architecture = [gains["kt_pfl"][k::4].mean() for k in range(4)]
    assert "KT-pFL gains {:.1f}, {:.1f}, {:.1f} and {:.1f} points".format(*by_architecture) in said
    fused, ours = ([own[row][k::4].mean() for k in range(4)] for row in ("feddf", "kt_pfl"))
    assert "fused models have {:.1f}, {:.1f}, {:.1f} and {:.1f} %".format(*fused) in said
    assert [high > low for high, low in zip(fused, ours, strict=True)] == [True, True, False, True]


@pytest.mark.slow
def test_accuracies_of_pfedsd() -> None:
    columns = {
        "CIFAR-10, two classes a client": "cifar10-s2-r0.6", "CIFAR-10, Dirichlet 0.1": "cifar10-dir0.1-r0.6",
        "Fashion-MNIST, two classes": "fmnist14k-s2-r0.6", "Fashion-MNIST, Dirichlet 0.1": "fmnist14k-dir0.1-r0.6",
    }  # fmt: skip
    methods = {
        "FedAvg's global model": "fedavg", "FedProx's": "fedprox", "FedPer": "fedper", "LG-FedAvg": "lg_fedavg",
        "pFedMe": "pfedme", "FedFomo": "fedfomo", "local only": "local_only", "pFedSD": "pfedsd",
        "FedAvg, stored models": "fedavg_stored", "FedAvg, fine-tuned": "fedavg_ft",
    }  # fmt: skip
    found = results("pfedsd", "pfedsd-a")
    rows = {row.pop(next(iter(row))): row for row in table("pfedsd.md", "best round, personal accuracy in %")}
    assert rows.keys() == columns.keys()
    for name, row in rows.items():
        assert row.keys() == methods.keys()
        for head, cell in row.items():
            result = found[columns[name], methods[head]]
            assert set(result.runs) == {0, 1}
            if cell == "diverges":
                assert set(result.failures) == {0, 1}
                continue
            assert result.rounds == 40
            for said, value in zip(cell.split(" ± "), (result.accuracy, result.std), strict=True):
                assert value is not None
                assert says(said, value), (name, head)


def test_accuracies_of_pfedsd_where_examples_arrive() -> None:
    methods = {
        "FedAvg, stored models": "fedavg_stored", "pFedSD, past model": "pfedsd",
        "pFedSD, stored predictions": "pfedsd_predictions", "pFedSD, norm between weights": "pfedsd_weights",
    }  # fmt: skip
    found = results("pfedsd", "pfedsd-changing")
    rows = {row.pop(next(iter(row))): row for row in table("pfedsd.md", "last round, personal accuracy in %")}
    assert list(rows) == ["window", "growing"]
    for name, row in rows.items():
        assert row.keys() == methods.keys()
        for head, cell in row.items():
            result = found[f"fmnist14k-dir0.1-{name}", methods[head]]
            assert len(result.runs) == 1 + ("±" in cell)
            for said, value in zip(cell.split(" ± "), (result.accuracy, result.std), strict=False):
                assert value is not None
                assert says(said, value), head


def test_few_stored_predictions_are_left_where_examples_arrive() -> None:
    """Of the examples that a client trains on when it comes back, in the runs of docs/pfedsd.md."""
    n, clients = 560, 20
    since, until = Window(0.1, 40).times(np.arange(n), np.full(n, n))
    shares = []
    for seed in (0, 1):
        last: dict[int, int] = {}
        for t in range(40):
            there = (since <= t) & (t < until)
            for k in map(int, Uniform(seed)(t, np.full(clients, there.sum()), 4)):
                shares += [float((since[there] <= last[k]).mean())] if k in last else []
                last[k] = t
    assert f"{100 * mean(shares):.0f} % of the examples" in (DOCS / "pfedsd.md").read_text(encoding="utf-8")


def test_accuracies_of_dense() -> None:
    found = {
        row: result
        for name in ("dense-table1", "dense-ablation")
        for (column, row), result in results("dense", name).items()
        if column == "fmnist-a0.1-m5-cnn"
    }
    of = {
        "FedDF": "feddf", "Fed-DAFL": "fed_dafl", "Fed-ADI": "fed_adi", "DENSE": "dense",
        "without L_BN": "dense-without_bn", "without L_div": "dense-without_div", "without both": "dense-ce_only",
    }  # fmt: skip
    seen = set()
    for row in table("dense.md", "accuracy in %, Fashion-MNIST, alpha 0.1"):
        name, *numbers = row.values()
        for seed, cells in enumerate((numbers[:3], numbers[3:])):
            if name in ("one-shot FedAvg", "ensemble"):
                measure = "mean_accuracy" if name == "one-shot FedAvg" else "ensemble_accuracy"
                values = series(found["dense"], seed, measure)[:1]
            else:
                values = series(found[of[name.partition(" (")[0]]], seed, "global_accuracy")[1:]  # after the upload
            several = [max(values), mean(values[-10:])] if len(values) > 1 else []
            assert cells[1 + len(several) :] == [""] * (2 - len(several))
            for cell, value in zip(cells, [values[-1], *several], strict=False):
                assert says(cell, value), (name, seed)
        seen.add(name.partition(" (")[0])
    assert seen == {*of, "one-shot FedAvg", "ensemble"}


def test_weights_of_the_statistics_of_dense() -> None:
    found = results("dense", "dense-lambda1")
    columns = {
        "two layers, alpha 0.1": "fmnist10k-a0.1-m5-cnn", "eight layers, alpha 0.1": "fmnist10k-a0.1-m5-deep",
        "two layers, alpha 0.5": "fmnist10k-a0.5-m5-cnn",
    }  # fmt: skip
    told = {(column, r.recipe.row, seed) for (column, _), r in found.items() for seed in r.runs}
    for corner in ("student in %", "`server_bn`"):
        seen = set()
        for row in table("dense.md", corner):
            name, _, seed = row.pop(next(iter(row))).partition(", seed ")
            for head, cell in row.items():
                key = columns[name], f"dense-lambda{0 if 'e' in head else head}"
                if cell == "-":
                    assert (*key, int(seed)) not in told
                    continue
                run, until = found[key].runs[int(seed)], found[key].rounds
                if head in ("ensemble", "one-shot FedAvg"):
                    said = [100 * run.after(1, "ensemble_accuracy" if head == "ensemble" else "mean_accuracy")]
                else:
                    seen.add((*key, int(seed)))
                    measure = "global_accuracy" if corner == "student in %" else "server_bn"
                    values = [run.after(t, measure) for t in range(2, until + 1)]
                    said = [mean(values)] if measure == "server_bn" else [100 * values[-1], 100 * mean(values[-5:])]
                for number, value in zip(cell.split(" / "), said, strict=True):
                    assert says(number, value), (name, seed, head)
        assert seen == told


def test_personal_accuracies_of_ktpfl_before_and_after_distillation() -> None:
    """What a client receives is what it had after distillation in the round before; later rounds are of another."""
    found = results("ktpfl", "ktpfl-useful") | results("ktpfl", "ktpfl-groups")
    short, long, alone = (
        found["cifar20k-groups", row].runs[0] for row in ("kt_pfl", "kt_pfl-rho0.1", "local_only")
    )  # fmt: skip
    rows = table("ktpfl.md", "two groups of ten, CIFAR-10, seed 0, after round")
    assert [row.pop(next(iter(row))) for row in rows] == [
        "kt_pfl, before distillation", "kt_pfl, after distillation", "local_only",
    ]  # fmt: skip
    before, after, local = rows
    assert list(before) == ["1", "2", "3", "4", "5", "10", "15", "20"]
    for t in map(int, before):
        told = short.after(t, "trained_accuracy")
        assert before[str(t)] == "-" if told is None else says(before[str(t)], 100 * told)
        evaluated = short.after(t + 1, "received_accuracy") or long.after(t, "personal_accuracy")
        assert says(after[str(t)], 100 * evaluated)
        assert says(local[str(t)], 100 * alone.after(t, "trained_accuracy"))


def test_what_a_group_of_like_clients_gives_ktpfl() -> None:
    found, columns = (
        results("ktpfl", "ktpfl-useful"),
        {"Fashion-MNIST": "fmnist20k-groups", "CIFAR-10": "cifar20k-groups"},
    )
    rows = table("ktpfl.md", "two groups of ten, 10 rounds, accuracy in %")
    assert len(rows) == 3
    for row in rows:
        data, seed = row.pop(next(iter(row))).split(", seed ")
        runs = [found[columns[data], name].runs[int(seed)] for name in ("kt_pfl", "fedmd_kt", "local_only")]
        told = [run.after(10, measure) for measure in ("personal_accuracy", "trained_accuracy") for run in runs]
        for (head, cell), value in zip(row.items(), told, strict=True):
            assert says(cell, 100 * value), (data, seed, head)


APFL_METHODS = {
    "FedAvg": "fedavg", "FedProx": "fedprox", "FedCurv (Ni)": "fedcurv_ni", "FedMeta": "fedmeta", "APFL": "apfl_ni",
}  # fmt: skip


def over_rounds(result: Result, seeds: set[int], rounds: int | None = None) -> float:
    """The paper's measure after so many rounds, or as many as the result says, mean over seeds."""
    end = (rounds or result.rounds) + 1
    return mean([mean(series(result, seed, "personal_accuracy_by_samples")[:end]) for seed in seeds])


@pytest.mark.slow
def test_sweeps_of_apfl() -> None:
    columns = {"E": "{}-e{}", "rate": "{}-lr{}"}
    found = {name: results("apfl", table) for name, table in (("E", "apfl-epochs"), ("rate", "apfl-rate"))}
    paper, seen = results("apfl", "apfl-comparison"), set()
    for row in table("apfl.md", "mean over all rounds, two seeds"):
        data, swept, value, own = re.fullmatch(
            r"(\w+), (\w+) ([\d.]+)( \(the paper's\))?", next(iter(row.values()))
        ).groups()
        seen.add((data, swept, value))
        for head, method in APFL_METHODS.items():
            column = columns[swept].format(data.lower(), value)
            result = paper[data.lower(), method] if own else found[swept][column, method]
            assert set(result.runs) == {0, 1}
            assert says(row[head], over_rounds(result, {0, 1})), (column, method)
    assert len(seen) == 18


@pytest.mark.slow
def test_local_epochs_of_apfl_on_cifar10() -> None:
    """One seed and part of the rounds: each row has the same number of them. FedMeta has no local epochs."""
    found, paper = results("apfl", "apfl-epochs"), results("apfl", "apfl-comparison")

    def of(epochs: int, method: str) -> Result:
        return paper["cifar10", method] if epochs == 5 or method == "fedmeta" else found[f"cifar10-e{epochs}", method]

    rows = table("apfl.md", "CIFAR-10, mean over 30 rounds, seed 0")
    assert [next(iter(row.values())) for row in rows] == ["E 1", "E 5 (the paper's)", "E 10", "E 20"]
    for row in rows:
        epochs = int(next(iter(row.values())).split()[1])
        for head, cell in list(row.items())[1:]:
            assert says(cell, over_rounds(of(epochs, APFL_METHODS[head]), {0}, 30)), (epochs, head)
    ours = {epochs: [of(epochs, "apfl_ni"), of(epochs, "fedavg")] for epochs in (1, 5, 10, 20)}
    means = {epochs: [over_rounds(result, {0}, 30) for result in pair] for epochs, pair in ours.items()}
    gains = [apfl - avg for apfl, avg in means.values()]
    told = (
        r"is above FedAvg by ([\d.]+), ([\d.]+), ([\d.]+) and ([\d.]+) points for E = 1, 5, 10 and 20, .* help APFL "
        r"\(([\d.]+) to ([\d.]+)\) and FedAvg \(([\d.]+) to ([\d.]+)\)\. APFL has ([\d.]+), ([\d.]+), ([\d.]+) and "
        r"([\d.]+) % after round 30\."
    )
    ends = [series(apfl, 0, "personal_accuracy_by_samples")[30] for apfl, _ in ours.values()]
    swept = [means[epochs][i] for i in (0, 1) for epochs in (1, 20)]
    assert page_says("apfl.md", told, [*gains, *swept, *ends])
    late = [[t for t in measured(apfl.runs[0], 30) or [] if t > FORCED] for apfl, _ in ours.values()]
    assert list(map(len, late)) == [0, 1, 1, 1]


@pytest.mark.slow
def test_means_over_rounds_of_apfl() -> None:
    columns = {
        "MNIST": "mnist", "letters": "letters", "letters with copies": "letters-overlapping", "CIFAR-10": "cifar10",
        "Vehicle": "vehicle-part", "Vehicle-like": "vehicle-like",
    }  # fmt: skip
    methods = {**APFL_METHODS, "IID reference": "iid"}
    found, rows = results("apfl", "apfl-comparison"), table("apfl.md", "mean over all rounds, in %")
    for row in rows:
        words = row["mean over all rounds, in %"].partition(" (")[0].split(", ")
        column = columns[words[0]]
        told = [int(word.split()[0]) for word in words if word.endswith(" rounds")]
        rounds = told[0] if told else found[column, "apfl_ni"].recipe.rounds
        ours = {}
        for head, method in methods.items():
            result = found[column, method]
            enough = {s for s, run in result.runs.items() if run.rounds >= rounds}
            asked = enough & {0} if words[-1] == "seed 0" else enough
            if asked:
                ours[method] = over_rounds(result, asked, rounds)
                assert says(row[head], ours[method]), (words, method)
            else:
                assert row[head] == "-", (words, method)
        assert says(row["its gain over FedAvg"], ours["apfl_ni"] - ours["fedavg"]), words
    assert {row["mean over all rounds, in %"].partition(" (")[0].partition(",")[0] for row in rows} == columns.keys()


def both(cell: str, accuracy: float, forgetting: float) -> bool:
    """Whether a cell, "45.9 (0.52)", has these numbers."""
    said, of_it = re.fullmatch(r"([\d.]+) \(([\d.]+)\)", cell).groups()
    return says(said, accuracy) and says(of_it, forgetting)


FEDNTD = {"MOON": "moon", "FedNova": "fednova-released", "FedAvg": "fedavg", "FedProx": "fedprox",
          "FedCurv": "fedcurv", "SCAFFOLD": "scaffold", "FedNTD": "fedntd"}  # fmt: skip


@pytest.mark.parametrize(
    ("corner", "column", "count"),
    [("two shards a client | round 40", "cifar10-s2", 7), ("LDA, alpha = 0.1 | round 40", "cifar10-lda0.1", 4)],
)
def test_first_rounds_of_fedntd(corner: str, column: str, count: int) -> None:
    found = results("fedntd", "fedntd-table1")
    rows = table(PAPERS, corner)
    assert len(rows) == count
    for row in rows:
        name, *cells = row.values()
        result = found[column, FEDNTD[re.split(r",| ", name)[0]]]
        for seed in (0, 1):
            runs = result.runs[seed]
            last = [100 * float(runs.after(40, "global_accuracy") or 0), float(runs.after(40, "forgetting") or 0)]
            assert both(cells[0].split(", ")[seed], *last), (name, seed)
            late = [
                [runs.after(t, measure) or 0 for t in range(31, 41)] for measure in ("global_accuracy", "forgetting")
            ]
            assert both(cells[1].split(", ")[seed], 100 * mean(late[0]), mean(late[1])), (name, seed)


def test_whole_runs_of_fedntd() -> None:
    cells = {
        "CIFAR-10, E = 5, FedAvg": ("fedntd-table1", "cifar10-s2", "fedavg"),
        "CIFAR-10, E = 5, FedNTD": ("fedntd-table1", "cifar10-s2", "fedntd"),
        "CIFAR-10, E = 1, FedAvg": ("fedntd-table8", "cifar10-s2-e1", "fedavg"),
        "CIFAR-10, E = 1, FedNTD": ("fedntd-table8", "cifar10-s2-e1", "fedntd"),
        "MNIST, E = 3, FedAvg": ("fedntd-table1", "mnist-s2", "fedavg"),
    }
    rows = {next(iter(row.values())): row for row in table(PAPERS, "two shards a client | published")}
    assert rows.keys() == cells.keys()
    for name, (of, column, method) in cells.items():
        run = results("fedntd", of)[column, method].runs[0]
        assert both(
            rows[name]["round 200"], 100 * (run.after(200, "global_accuracy") or 0), run.after(200, "forgetting") or 0
        ), name
        assert says(rows[name]["smoothed"], 100 * (run.smoothed(200, "global_accuracy", 0.6) or 0)), name


def page_says(page: str, pattern: str, ours: list[float]) -> bool:
    """Whether the groups of a pattern, which a page has, are these numbers, in this order."""
    told = re.search(pattern, (DOCS / page).read_text(encoding="utf-8")).groups()
    return all(says(said, value) for said, value in zip(told, ours, strict=True))


@pytest.mark.slow
def test_fedprox_of_apfl_on_cifar10() -> None:
    found, measure = results("apfl", "apfl-comparison"), "personal_accuracy_by_samples"
    prox, avg = (found["cifar10", name] for name in ("fedprox", "fedavg"))
    text = (DOCS / "apfl.md").read_text(encoding="utf-8")
    mean_below, *by_seed, best = re.search(
        r"is ([\d.]+) points below FedAvg\*\* \(([\d.]+) and ([\d.]+) by seed; ([\d.]+) in the best round\)", text
    ).groups()
    assert says(mean_below, over_rounds(avg, {0, 1}, 40) - over_rounds(prox, {0, 1}, 40))
    for seed, said in enumerate(by_seed):
        assert says(said, over_rounds(avg, {seed}, 40) - over_rounds(prox, {seed}, 40))
    high = [mean([max(series(r, seed, measure)[:41]) for seed in (0, 1)]) for r in (avg, prox)]
    assert says(best, high[0] - high[1])
    whole = [series(r, 0, measure) for r in (avg, prox)]
    ours = [mean(whole[0]) - mean(whole[1]), max(whole[0]) - max(whole[1]), whole[0][-1] - whole[1][-1]]
    below = (
        r"After 100 rounds, seed 0, it is ([\d.]+) points below in the mean over rounds, ([\d.]+) in the best round "
        r"and ([\d.]+) in the last\."
    )
    assert page_says("apfl.md", below, ours)
    ends = [mean([r.runs[s].after(t, "train_loss") or 0 for s in (0, 1)]) for r in (prox, avg) for t in (1, 40)]
    falls = r"falls from ([\d.]+) to ([\d.]+) in 40 rounds, FedAvg's from ([\d.]+) to (\d\.\d+)"
    assert page_says("apfl.md", falls, ends)


def test_iid_reference_of_apfl_on_cifar10() -> None:
    found, measure = results("apfl", "apfl-comparison"), "personal_accuracy_by_samples"
    pattern = (
        r"the reference is at ([\d.]+) % after 10 rounds, .* and ends at ([\d.]+); APFL comes to ([\d.]+) in the last "
        r"of 100 rounds"
    )
    iid, apfl = (found["cifar10", name].runs[0] for name in ("iid", "apfl_ni"))
    ours = [iid.after(10, measure), iid.after(100, measure), apfl.after(100, measure)]
    assert page_says("apfl.md", pattern, [100 * (value or 0) for value in ours])


def test_fedmeta_of_apfl_on_cifar10() -> None:
    found, measure = results("apfl", "apfl-comparison"), "personal_accuracy_by_samples"
    pattern = (
        r"it is at ([\d.]+) % after 20 rounds, ([\d.]+) after 40 and ([\d.]+) in the last of 100 \(([\d.]+) in its "
        r"best round\), where FedAvg has ([\d.]+); in the mean over rounds it is ([\d.]+) points below FedAvg\."
    )
    meta, avg = (series(found["cifar10", name], 0, measure) for name in ("fedmeta", "fedavg"))
    ours = [meta[20], meta[40], meta[100], max(meta), avg[100], mean(avg) - mean(meta)]
    assert page_says("apfl.md", pattern, ours)


def test_the_literal_beginning_of_apfl_on_cifar10() -> None:
    found, measure = results("apfl", "apfl-comparison"), "personal_accuracy_by_samples"
    pattern = (
        r"its mean over rounds is ([\d.]+) % and its last round ([\d.]+) %, ([-\d.]+) points above FedAvg in the mean, "
        r"where `function_preserving` is ([\d.]+) above it"
    )
    literal, avg, ours = (series(found["cifar10", n], 0, measure) for n in ("apfl_ni-literal", "fedavg", "apfl_ni"))
    numbers = [mean(literal), literal[100], mean(literal) - mean(avg), mean(ours) - mean(avg)]
    assert page_says("apfl.md", pattern, numbers)


def test_local_models_and_the_global_one_of_pfedsd() -> None:
    found = results("pfedsd", "pfedsd-a")

    def drop(column: str, seeds: tuple[int, ...], rounds: int) -> float:
        local, received = (
            [series(found[column, row], seed, "personal_accuracy")[1 : rounds + 1] for seed in seeds]
            for row in ("fedavg_stored", "fedavg")
        )
        assert all(x > y for a, b in zip(local, received, strict=True) for x, y in zip(a, b, strict=True)), column
        assert {*map(len, local)} == {rounds}
        return mean([mean(a) - mean(b) for a, b in zip(local, received, strict=True)])

    pattern = (
        r"by (\d+) points on Fashion-MNIST and (\d+) on CIFAR-10 in the mean with two classes, by (\d+) and (\d+) "
        r"under Dirichlet 0\.1, and on Fashion-MNIST by (\d+) under Dirichlet 0\.5, (\d+) under Dirichlet 1 and (\d+) "
        r"with four classes \(one seed\)\. So it grows with heterogeneity; with fewer clients a round "
        r"by little, (\d+) points with 60 % of them under Dirichlet 0\.1 and (\d+) with all, in one seed"
    )
    both = [
        drop(f"{column}-r0.6", (0, 1), 40)
        for column in ("fmnist14k-s2", "cifar10-s2", "fmnist14k-dir0.1", "cifar10-dir0.1")
    ]
    one = ("dir0.5-r0.6", "dir1-r0.6", "s4-r0.6", "dir0.1-r0.6", "dir0.1-r1")
    assert page_says("pfedsd.md", pattern, [*both, *(drop(f"fmnist14k-{c}", (0,), 40) for c in one)])


def test_comparisons_that_hold() -> None:
    """As docs/papers.md says of those that could be judged."""
    told = json.loads(Path(fedloom_papers.__file__).with_name("claims.json").read_text(encoding="utf-8"))
    counts = sum((Counter[str](source["comparisons"]) for source in told["sources"].values()), Counter[str]())
    judged = sum(counts[verdict] for verdict in JUDGED)
    assert 100 < counts[HOLDS] < judged < counts.total()
    said = (
        f"our runs judge {judged} of {counts.total():,} comparisons, of which {counts[HOLDS]} hold, {counts[NOISE]} "
        f"are within noise and {counts[FAILS]} fail."
    )
    assert said in (DOCS / PAPERS).read_text(encoding="utf-8")
