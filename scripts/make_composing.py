"""Make the tables of docs/composing.md: which features of a run stand together, tried two by two.

    python scripts/make_composing.py

Each pair is a run of four rounds, or of more where a round has few answers. It works if the run that is interrupted and
goes on ends in the same bits, and if what changes results alone changes them beside the other too: nothing is left out
in silence. Or it is refused before anything is trained, in a sentence, or warned of where one of both is of no use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import string
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core import tree
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.data import Growing, by_lists

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "composing.md"
BEGIN, END = "<!-- made by scripts/make_composing.py: from here -->\n", "<!-- to here -->\n"
ROUNDS, CLIENTS, EACH = 4, 6, 12
SETTINGS = fl.RunSettings(rounds=ROUNDS, cohort_size=4, engine="loop", compilation="none", threads=1)
CLOCK = "lognormal:example=0.01,spread=1,down=0.05,up=0.02"
LOCAL = fl.Local(epochs=1, batch_size=4, optimiser=fl.SGD(lr=0.1, momentum=0.5))


@dataclass(frozen=True, eq=False)
class Feature:
    """Feature of a run: what of a job it sets.

    Attributes:
        name: as the page says it.
        settings: of `RunSettings`.
        job: other arguments of `fl.Job`.
        change: of the algorithm.
        moves: whether it changes what is trained.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Any], Any] | None = None
    moves: bool = True


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def _with_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))


def _frozen() -> nn.Module:
    network = _network()
    network[0].requires_grad_(False)
    return network


def _federation(**more: Any) -> fl.Federation:
    g = torch.Generator().manual_seed(0)
    n = CLIENTS * EACH
    y = torch.arange(n) % 3
    centres = torch.tensor([[2.0, 0, 0, 1], [0, 2, 0, 1], [0, 0, 2, 1]])
    examples = fl.Examples(centres[y] + torch.randn(n, 4, generator=g), y, 3, name="clouds")
    lists = [list(range(k * EACH, (k + 1) * EACH)) for k in range(CLIENTS)]
    return fl.federate(examples, by_lists(lists), test=examples, **more)


def _optimiser_kept(algorithm: Any) -> Any:
    return dataclasses.replace(algorithm, local=dataclasses.replace(algorithm.local, keep_optimiser=True))


def _head_stays(algorithm: Any) -> Any:
    if not any(f.name == "shared" and f.init for f in dataclasses.fields(algorithm)):
        raise SettingError(f"{type(algorithm).__name__} has no setting shared")
    return dataclasses.replace(algorithm, shared="* !last:1")


PARTS = (
    Feature("rule of the mean", {"aggregator": "median"}),
    Feature("bound of uploads", {"bound": "clip:0.001"}),
    Feature("partial sums", {"partial_sums": 2}, moves=False),
    Feature("clients that lie", job={"attack": fl.Scale(-1.0, clients=(0, 1, 2))}),
    Feature("clients that are lost", job={"faults": fl.Unreliable(declined=0.2, lost=0.2, seed=1)}),
    Feature("spares", {"spares": 1}, moves=False),
    Feature("stateless clients", {"stateless": True}, moves=False),
    Feature("kept optimisers", change=_optimiser_kept),
    Feature("own heads", change=_head_stays),
    Feature("BatchNorm", job={"model": _with_statistics}),
    Feature("frozen layers", job={"model": _frozen}),
    Feature("two networks", job={"model": {"a": _network, "b": _wide}}),
    Feature("growing data", job={"federation": _federation(arrives=Growing(0.5, 3))}),
    Feature("privacy of clients", {"privacy": "central:noise=1,delta=1e-3,clip=0.5"}),
    Feature("privacy of examples", {"privacy": "examples:noise=1,delta=1e-3,clip=1"}),
    Feature("privacy of uploads", {"privacy": "local:noise=1,delta=1e-3,clip=1"}),
    Feature("noise by the clients", {
        "privacy": "distributed:noise=1,delta=1e-3,clip=0.5", "secure_aggregation": "range=8",
    }),
    Feature("masked sums", {"secure_aggregation": "range=8"}),
    Feature("fewer bits", {"compression": "bits:4"}),
    Feature("few numbers, with feedback", {"compression": "topk:0.2"}),
    Feature("small downloads", {"compression_down": "bits:8"}),
    Feature("virtual clock", {"clock": CLOCK}, moves=False),
    Feature("buffered rounds", {"clock": CLOCK, "asynchrony": "fedbuff:size=3", "rounds": 8}),
    Feature("models mixed as they come", {"clock": CLOCK, "asynchrony": "fedasync:alpha=0.6", "rounds": 16}),
)  # fmt: skip


METHODS = (
    *("fedavg", "fedntd", "scaffold", "fedadam", "fednova", "feddyn", "fedcurv", "pfedsd", "ditto", "fedrep"),
    *("apfl_deng", "per_fedavg", "ifca", "fedproto", "apfl_ni", "local_only"),
)
"""Methods that differ in what they send, keep and add up."""


def job(*features: Feature, method: str = "fedavg") -> fl.Job:
    """Return the job with some features.

    Raises:
        SettingError: two of them are values of one setting, or they do not fit together.
    """
    settings: dict[str, Any] = {}
    more: dict[str, Any] = {}
    algorithm = dataclasses.replace(ALGORITHMS[method](), local=LOCAL)
    for taken in (settings, more):
        for one in features:
            given = one.settings if taken is settings else one.job
            if both := [name for name in given if name != "rounds" and taken.get(name, given[name]) != given[name]]:
                raise SettingError(f"both are values of {both[0]}")
            taken.update(given)
    for one in features:
        algorithm = algorithm if one.change is None else one.change(algorithm)
    more = {"federation": _federation(), "model": _network, **more}
    return fl.Job(algorithm=algorithm, settings=dataclasses.replace(SETTINGS, **settings), **more)


class NotWholeError(AssertionError):
    """Error of a pair that runs, and does not do what it says."""


def tried(*features: Feature, method: str = "fedavg") -> str | None:
    """Return why a run with some features is refused, or what it warns of where one is of no use; None: it works.

    Raises:
        NotWholeError: it does not go on as it was, or one feature is left out in silence.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", SettingWarning)
        try:
            whole = job(*features, method=method).run(Path(folder) / "whole")
        except SettingError as error:
            return str(error)
        told = [str(w.message) for w in warned if "changes nothing" in str(w.message)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cut = Path(folder) / "cut"
            with contextlib.suppress(KeyboardInterrupt):
                job(*features, method=method).run(cut, on_round=_stopping(whole.metrics[-1]["round"] // 2))
            again = job(*features, method=method).run(cut, resume=True)
            if whole.metrics != again.metrics or not _same(whole, again):
                raise NotWholeError(f"{_names(features, method)}: interrupted and resumed it is another run")
            for one in features:
                rest = tuple(other for other in features if other is not one)
                if one.moves and _same(whole, _without(rest, method)):
                    if not told:
                        raise NotWholeError(f"{_names(features, method)}: {one.name} changes nothing")
                    return told[0]
    return None


def _stopping(round: int) -> Callable[[fl.History], None]:
    def stop(history: fl.History) -> None:
        if history.metrics[-1]["round"] == round:
            raise KeyboardInterrupt

    return stop


def _names(features: Sequence[Feature], method: str) -> str:
    return f"{method}: " + " and ".join(feature.name for feature in features)


@functools.cache
def _without(features: tuple[Feature, ...], method: str) -> Any:
    try:
        return job(*features, method=method).run()
    except SettingError:
        return None


def _same(a: Any, b: Any) -> bool:
    """Return whether two runs ended with the same server and clients."""
    if b is None:
        return False
    ends = [tree.leaves((h.server, {k: h.clients[k] for k in sorted(h.clients)})) for h in (a, b)]
    return len(ends[0]) == len(ends[1]) and all(
        x.shape == y.shape and torch.equal(x, y) for x, y in zip(*ends, strict=True)
    )


def pairs() -> list[tuple[Feature, Feature]]:
    """Return features two by two, but for those of which one is a part of the other."""
    both = itertools.combinations(PARTS, 2)
    return [(a, b) for a, b in both if not (b.settings and b.settings.items() < a.settings.items())]


def cases() -> list[tuple[str, str]]:
    """Return what is tried: two features, or a method and a feature, by their names."""
    return [(a.name, b.name) for a, b in pairs()] + [(method, part.name) for method in METHODS for part in PARTS]


def case(names: tuple[str, str]) -> str | None:
    """Return what comes of two features, or of a method and a feature, as `tried` does."""
    first, second = names
    by_name = {part.name: part for part in PARTS}
    return tried(by_name[second], method=first) if first in METHODS else tried(by_name[first], by_name[second])


def page(found: Mapping[tuple[str, str], str | None]) -> str:
    """Return the tables, and the sentences that they number.

    Args:
        found: what came of each case; None where it works.
    """
    names = [part.name for part in PARTS]
    sentences = list(dict.fromkeys(why for why in found.values() if why is not None))
    number = {why: str(i + 1) for i, why in enumerate(sentences)}
    both = dict(found) | {(b, a): why for (a, b), why in found.items()}

    def cell(row: str, column: str) -> str:
        why = both.get((row, column), "")
        return "yes" if why is None else number.get(why, "")

    head = [f"| | {' | '.join(string.ascii_uppercase[: len(names)])} |", "|---" * (len(names) + 1) + "|"]
    letters = string.ascii_uppercase
    first = [f"| {letters[i]} {a} | {' | '.join(cell(a, b) for b in names)} |" for i, a in enumerate(names)]
    second = [f"| `{m}` | {' | '.join(cell(m, b) for b in names)} |" for m in METHODS]
    told = [f"{number[why]}. {_plain(why)}" for why in sentences]
    return "\n".join(
        [
            *head,
            *first,
            "",
            "By method:",
            "",
            *head,
            *second,
            "",
            "Refused, or warned of, in these words:",
            "",
            *told,
            "",
        ]
    )


def _plain(text: str) -> str:
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace("|", "\\|")


def main() -> None:
    """Try all pairs, and write the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    with ProcessPoolExecutor(2) as processes:
        made = page(dict(zip(cases(), processes.map(case, cases(), chunksize=4), strict=True)))
    PAGE.write_text(before + BEGIN + "\n" + made + "\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
