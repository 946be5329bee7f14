"""`fedloom compare --leave-one-site-out`: train without each site in turn, and evaluate on what it holds out."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.coordinator import History
from fedloom.coordinator.newcomers import WAYS
from fedloom.core.errors import SettingError
from fedloom.core.task_measures import TaskMeasure
from fedloom.data import Partition
from fedloom.display.terminal import Terminal, table
from fedloom.experiments.catalogue import label
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.experiments.mirrors import mirrored_below
from fedloom.report.number_table import with_unit
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
            out[below] = mirrored_below(dataclasses.replace(experiment, clients=clients), folder)
    return out


def _names(partition: Partition) -> list[str]:
    return list(partition.clients) or [str(k) for k in range(partition.num_clients)]


def _folders(partition: Partition) -> list[str]:
    """Return the name of each site's folder, which no two share."""
    names = [re.sub(r"[^\w.-]+", "-", name) for name in _names(partition)]
    return [f"without-{name}" + f"-{k}" * (names.count(name) > 1) for k, name in enumerate(names)]


def show_sites(results: Results, out: str | None, console: Terminal) -> None:
    """Print a table of sites and methods for each measure: means over seeds, and the mean of all sites.

    With `out`, write all numbers of single runs there.
    """
    rows = [row for place, history in results for row in _rows(place, history)]
    if not rows:
        return
    for measure in {row.measure.name: row.measure for row in rows}.values():
        _show_measure(measure, [row for row in rows if row.measure.name == measure.name], console)
    if out is not None:
        header = ("method", "site", "seed", "model", "measure", "value")
        lines = [
            (
                row.method,
                row.site,
                row.seed,
                row.way,
                row.measure.name,
                "" if math.isnan(row.value) else repr(row.value),
            )
            for row in rows
        ]
        publish(Path(out), _FILE, as_csv([header, *lines]).encode())
        console.print(f"single runs: {Path(out, _FILE)}")


@dataclasses.dataclass(frozen=True)
class _Row:
    """One measure of one model on one site that did not train; NaN where it is undefined."""

    method: str
    site: str
    seed: object
    way: str
    measure: TaskMeasure
    value: float


def _rows(place: str, history: History) -> list[_Row]:
    """Return the numbers of the site that a run left out, for each way of evaluating it and each measure."""
    last = history.metrics[-1] if history.metrics else {}
    method = label(str(history.settings.get("algorithm") or history.algorithm))
    seed = history.settings.get("run", {}).get("seed", 0)
    names = client_names(history.federation)
    main, *others = history.task_measures
    out = []
    for way in WAYS:
        found = {main.name: last.get("new_by_client", {}).get(way, {})}
        found |= last.get("new_others_by_client", {}).get(way, {})
        for measure in (main, *others):
            for client, value in found.get(measure.name, {}).items():
                number = math.nan if value is None else float(value)
                out.append(_Row(method, names.get(int(client), client), seed, way, measure, number))
    return out


def _show_measure(measure: TaskMeasure, rows: Sequence[_Row], console: Terminal) -> None:
    """Print the table of one measure."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row.site, row.method, row.way), []).append(row.value)
    means = {key: statistics.fmean(numbers) for key, numbers in values.items()}
    sites = list(dict.fromkeys(row.site for row in rows))
    columns = list(dict.fromkeys((row.method, row.way) for row in rows))
    undefined = [site for site in sites if any(math.isnan(row.value) for row in rows if row.site == site)]
    caption = "Held-out examples, averaged over seeds."
    if undefined:
        caption += f" Undefined, so in no mean: {', '.join(undefined)}."
    title = f"{measure.title[:1].upper()}{measure.title[1:]} on the left-out site"
    made = table(with_unit(title, measure.unit, ", "), caption)
    made.add_column("site")
    for method, way in columns:
        made.add_column(f"{method}\n{way.replace('_', '-')}", justify="right")
    for site in sites:
        made.add_row(site, *(_cell(means.get((site, *column)), measure) for column in columns))
    made.add_section()
    defined = [site for site in sites if site not in undefined]
    everywhere = [[means[site, *column] for site in defined if (site, *column) in means] for column in columns]
    whole = [statistics.fmean(numbers) if len(numbers) == len(defined) > 0 else None for numbers in everywhere]
    made.add_row("mean of sites", *(_cell(mean, measure) for mean in whole), style="bold")
    console.print()
    console.print(made)


def _cell(value: float | None, measure: TaskMeasure) -> str:
    if value is None:
        return "-"
    if math.isnan(value):
        return "undefined"
    return f"{100 * value:.1f}" if measure.unit == "%" else f"{value:.4g}"
