"""`fedloom compare --leave-one-site-out`: train without each site in turn, and evaluate on what it holds out."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedloom.coordinator import History
from fedloom.coordinator.newcomers import WAYS
from fedloom.core.errors import SettingError
from fedloom.data import Partition
from fedloom.display.terminal import table
from fedloom.experiments.catalogue import label
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.report.printable import client_names
from fedloom.storage.output import as_csv, publish

_MOST = 100  # sites, each of which takes a run
_FILE = "sites.csv"

Results = Sequence[tuple[str, History]]


def without_each_site(runs: Mapping[str, Experiment], federations: Federations) -> dict[str, Experiment]:
    """Return a run without each site for each of `runs`, by its folder: `fedavg` becomes `fedavg/without-Kiel`.

    Raises:
        SettingError: the clients are no natural ones, there are too few or too many, or others are held out already.
    """
    out: dict[str, Experiment] = {}
    for place, experiment in runs.items():
        d, c = experiment.data, experiment.clients
        if c.new is not None:
            raise SettingError(
                f"--leave-one-site-out holds out each site in turn, got clients.new = {c.new!r} too: leave --new out"
            )
        if d.partition != "natural":
            raise SettingError(
                f"sites are natural clients, got partition {d.partition}: write --partition natural, and name the "
                "column of sites (--data 'FILE.csv?client=NAME') or a file of each (--data 'sites/*.csv')"
            )
        partition = federations.of(experiment).partition
        if not 2 <= partition.num_clients <= _MOST:
            raise SettingError(
                f"--leave-one-site-out takes 2 to {_MOST} sites, a run for each, got {partition.num_clients}: hold out "
                "some of them once with --new"
            )
        for site, folder in enumerate(_folders(partition)):
            clients = dataclasses.replace(c, new=f"list:{site}")
            below = folder if place == "." else f"{place}/{folder}"
            out[below] = dataclasses.replace(experiment, clients=clients)
    return out


def _names(partition: Partition) -> list[str]:
    return list(partition.clients) or [str(k) for k in range(partition.num_clients)]


def _folders(partition: Partition) -> list[str]:
    """Return the name of each site's folder, which no two share."""
    names = [re.sub(r"[^\w.-]+", "-", name) for name in _names(partition)]
    return [f"without-{name}" + f"-{k}" * (names.count(name) > 1) for k, name in enumerate(names)]


def show_sites(results: Results, out: str | None, console: Console) -> None:
    """Print a table of sites and methods, and write it to `out`: means over seeds, and the mean of all sites.

    The rows of the file are single runs.
    """
    rows = [row for place, history in results for row in _rows(place, history)]
    if not rows:
        return
    sites = list(dict.fromkeys(row.site for row in rows))
    columns = list(dict.fromkeys((row.method, row.way) for row in rows))
    measure = rows[0].measure
    unit = ", %" if measure == "accuracy" else ""
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row.site, row.method, row.way), []).append(row.value)
    made = table(
        f"{_title(measure)} on the site that was left out{unit}", "On what each site holds out; mean of seeds."
    )
    made.add_column("site")
    for method, way in columns:
        made.add_column(f"{method}\n{way.replace('_', '-')}", justify="right")
    means = {key: statistics.fmean(found) for key, found in values.items()}
    for site in sites:
        made.add_row(escape(site), *(_cell(means.get((site, *column)), measure) for column in columns))
    made.add_section()
    everywhere = [[means[site, *column] for site in sites if (site, *column) in means] for column in columns]
    whole = [statistics.fmean(found) if len(found) == len(sites) else None for found in everywhere]
    made.add_row("mean of sites", *(_cell(mean, measure) for mean in whole), style="bold")
    console.print()
    console.print(made)
    if others := ",".join(one.name for one in results[0][1].task_measures[1:]):
        run = Path("DIR" if out is None else out, results[0][0])
        text = f"not measured on the site that was left out: {others}; fedloom evaluate {run} --data ITS_ROWS does it"
        console.print(text, markup=False, soft_wrap=True)
    if out is not None:
        header = ("method", "site", "seed", "model", "measure", "value")
        lines = [(row.method, row.site, row.seed, row.way, row.measure, repr(row.value)) for row in rows]
        publish(Path(out), _FILE, as_csv([header, *lines]).encode())
        console.print(f"single runs: {Path(out, _FILE)}", markup=False, soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class _Row:
    """How one model does on one site that did not train."""

    method: str
    site: str
    seed: object
    way: str
    measure: str
    value: float


def _rows(place: str, history: History) -> list[_Row]:
    """Return the numbers of the site that a run left out, one for each way of evaluating it."""
    last = history.metrics[-1] if history.metrics else {}
    method = label(str(history.settings.get("algorithm") or history.algorithm))
    seed = history.settings.get("run", {}).get("seed", 0)
    names = client_names(history.federation)
    return [
        _Row(method, names.get(int(client), client), seed, way, _measure(last, way), float(value))
        for way in WAYS
        for client, value in last.get("new_by_client", {}).get(way, {}).items()
    ]


def _measure(record: Mapping[str, object], way: str) -> str:
    """Return what the numbers of new clients are, by the name of their mean in a record."""
    prefix = f"new_{way}_"
    return next(k.removeprefix(prefix) for k in record if k.startswith(prefix) and not k.endswith("_by_samples"))


def _title(measure: str) -> str:
    return measure.upper() if len(measure) <= len("rmse") else measure.capitalize()


def _cell(value: float | None, measure: str) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if measure == "accuracy" else f"{value:.4g}"
