"""Make what the command line and editors know of settings without importing PyTorch, and tables of the docs.

    python scripts/make_index.py

Made from the declarations in the classes are `fedloom/cli/index.json` (algorithms, flags, defaults),
`fedloom/cli/settings.schema.json` (by which editors complete and check settings files), the tables of docs/settings.md,
that of docs/measures.md, those of sources, partitions, networks and tasks on the pages of these, of samplers in
docs/runs.md, of words in docs/tables.md, of analyses in docs/analyses.md, those of families in README.md and
docs/algorithms.md, and the list of algorithms in mkdocs.yml. A page of docs/algorithms is made from the docstring of an
algorithm's file, its class, the rows of docs/papers.md that test it and its rows of docs/results/sixteen.csv.
Run it where these have changed; `tests/cli/test_index.py` says when.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter

from fedloom.algorithms import ALGORITHMS, FAMILIES
from fedloom.analyses import ANALYSES
from fedloom.coordinator.record_entries import measures_for
from fedloom.coordinator.settings import RunSettings
from fedloom.core.averaging import Averaging
from fedloom.core.choices import field_types, grids, settable, without_none
from fedloom.core.entry_points import ANALYSES as OFFERED, offers
from fedloom.core.local_training import Local
from fedloom.core.optimiser import OPTIMISERS, Optimiser
from fedloom.core.setting import flag_of, sentences
from fedloom.engines.aggregators import AGGREGATORS
from fedloom.evaluate.measure import VALIDATION, Measure
from fedloom.experiments import catalogue
from fedloom.experiments.catalogue import ARRIVING, ATTACKS, PARTITIONS, SAMPLERS, TASKS
from fedloom.experiments.catalogue.partitions import NamedPartition
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.nested_settings import parts, with_parts
from fedloom.experiments.settings_file import flat
from fedloom.experiments.settings_sections import ClientSettings, DataSettings
from fedloom.models import MODELS
from fedloom.models.registry import Network
from fedloom.sources.sources_by_name import SOURCES
from fedloom.tables.table_words import TableWords, kinds_of_words
from fedloom.tasks import Classification

ROOT = Path(__file__).parents[1]
INDEX, SCHEMA = (ROOT / "src/fedloom/cli" / name for name in ("index.json", "settings.schema.json"))
PAGE, MEASURED, README = ROOT / "docs/settings.md", ROOT / "docs/measures.md", ROOT / "README.md"
METHODS, NAVIGATION, OF_METHODS = ROOT / "docs/algorithms.md", ROOT / "mkdocs.yml", ROOT / "docs/algorithms"
DATA, PARTITIONED, NETWORKS, LEARNT, RUNS, STUDIED, COLUMNS = (
    ROOT / "docs" / f"{name}.md" for name in ("data", "partitions", "networks", "tasks", "runs", "analyses", "tables")
)
Schema = dict[str, Any]


@dataclass(frozen=True)
class Declared:
    """A setting as its class declares it."""

    kind: Any  # its type, without bounds
    default: Any
    flag: str
    value: str  # what stands for the value in the help
    group: str  # of flags
    sentence: str  # Markdown, with links from docs/


def declared() -> Iterator[tuple[str, Declared]]:
    """Yield all settings that have a place in a file, by their keys, in the order of docs/settings.md."""
    experiment, local = Experiment(), Local()
    adam = with_parts(local, "local", {"optimiser": "adam"}).optimiser
    for section, group, of in (
        ("", "data and clients", [experiment]),
        ("data", "data and clients", [experiment.data]),
        ("clients", "data and clients", [experiment.clients]),
        ("local", "training", [local, local.optimiser, adam]),
        ("run", "", [experiment.run]),
    ):
        for one in of:
            kinds, said = field_types(type(one)), sentences(type(one))
            for field in dataclasses.fields(one):
                name, value = field.name, getattr(one, field.name)
                if name not in said:
                    continue
                kind = kinds[name]
                if isinstance(value, Optimiser):
                    kind, value = Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"], "sgd"
                flag, metavar, own = flag_of(type(one), name)
                key = f"{section}.{name}" if section else name
                yield key, Declared(kind, value, flag, metavar, own or group, said[name])


DECLARED = dict(declared())
MEASURES = measures_for(*Classification().measures[:1])
COSTS = json.loads(Path(__file__).with_name("costs.json").read_text())  # of `scripts/measure_costs.py`


def index() -> dict[str, Any]:
    """Return what the command line knows."""
    return {
        "algorithms": {name: _listed(name) for name in ALGORITHMS},
        "settings": {key: _indexed(key, one) for key, one in DECLARED.items() if one.flag},
        "downloads": [source.name for source in SOURCES.values() if source.download],
        "partitions": list(PARTITIONS),
        "samplers": list(SAMPLERS),
        "attacks": ["none", *ATTACKS],
        "aggregators": list(AGGREGATORS),
        "models": {name: _network(network) for name, network in MODELS.items()},
        "tasks": list(TASKS),
        "analyses": ["all", *ANALYSES],
        "measures": [name for name, measure in MEASURES.items() if measure.tunable],
        "validation": VALIDATION,
    }


def plain(sentence: str) -> str:
    """Return a sentence without marks and links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence).replace("`", "")


def page(text: str) -> str:
    """Return docs/settings.md with the tables of its sections made anew."""
    for section in ("", "data", "clients", "local", "run"):
        rows = [_row(key, one) for key, one in DECLARED.items() if key.rpartition(".")[0] == section]
        table = "\n".join(["| key | flag | type | default | meaning |", "|---|---|---|---|---|", *rows])
        head = rf"^## {re.escape(f'`[{section}]`') if section else 'At the top'}.*\n\n"
        text, count = re.subn(rf"({head})(?:\|.*\n)+", lambda m, t=table: f"{m[1]}{t}\n", text, flags=re.MULTILINE)
        assert count == 1, section
    return text


def _range(measure: Measure) -> str:
    """Return a range as tables have it."""
    low, high = ("" if end is None else f"{end:g}" for end in measure.range)
    return f"{low} to {high}" if low and high else f"from {low}" if low else ""


def measures_page(text: str) -> str:
    """Return docs/measures.md with its table of measures made anew."""
    measures = [(f"`{m.name}`", m.unit, _range(m), m.better, m.meaning) for m in MEASURES.values()]
    return _with_table(text, ("measure", "unit", "range", "better", "meaning"), measures)


def readme(text: str) -> str:
    """Return README.md with its number of methods and its table of families made anew."""
    text = re.sub(r"\*\*\d+ methods\*\*", f"**{len(ALGORITHMS)} methods**", text)
    names = {kind: name for name, kind in ALGORITHMS.items()}
    rows = [(family, " ".join(f"`{names[kind]}`" for kind in kinds)) for family, kinds in FAMILIES.items()]
    return _with_table(text, ("family", "names"), rows)


def navigation(text: str) -> str:
    """Return mkdocs.yml with the pages of all algorithms by family."""
    names, lines = {kind: name for name, kind in ALGORITHMS.items()}, ""
    for family, kinds in FAMILIES.items():
        lines += f'      - "{family.capitalize()}":\n'
        lines += "".join(f"          - {kind.__name__}: algorithms/{names[kind]}.md\n" for kind in kinds)
    mark = "      # made by scripts/make_index.py: from here\n", "      # to here\n"
    before, rest = text.split(mark[0])
    return before + mark[0] + lines + mark[1] + rest.split(mark[1])[1]


def _with_table(text: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a page with the rows of the table that has these columns made anew."""
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    before, after = text.split(head)
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    _, gap, rest = after.partition("\n\n")
    return before + head + lines + (f"\n{rest}" if gap else "")


# ---- what the docstring of an algorithm's file says

_TOLD = ("name", "class", "paper", "what it is", "down", "up", "client keeps", "FedAvg", "cost")
_IN_CONTENTS = ("what it is", "paper", "cost")  # of the page of algorithms; what travels stands in each section
_CITED = re.compile(r"([A-Z][^.*:]*)\. \*[^*]+\*[^\d*]*?([A-Z][\w() ]*?)?,? ?((?:19|20)\d\d)")
_TRAVELS = re.compile(r"Down: (.*?)\. Up: (.*?)\. Kept by the client: (.*?)\.(?= |$)(.*)")
_KINDS = {
    "mixed": "several architectures", "public": "public data", "validation": "validation examples",
    "targets": "classes", "everyone": "one-shot", "one_place": "not federated",
}  # fmt: skip


_NEEDS = {"public": "public", "validation": "validation", "targets": "classes"}


def told(name: str) -> dict[str, str]:
    """Return what the docstring of an algorithm's file says of it, and what its class does, by `_TOLD`.

    Raises:
        ValueError: it does not end with what goes down, what comes up and what the client keeps.
    """
    made = ALGORITHMS[name]()
    text = " ".join(_docstring(name).split())
    travels, cited = _TRAVELS.search(text), _CITED.search(text)
    if travels is None:
        raise ValueError(f"the file of {name} must say: Down: ... . Up: ... . Kept by the client: ... .")
    down, up, kept, rest = travels.groups()
    sentences = [s for s in re.split(r"\. ", rest.strip().rstrip(".")) if "FedAvg" in s]
    paper = "-"
    if cited is not None:
        authors, venue, year = cited[1].removeprefix("After ").split(", "), cited[2], cited[3]
        who = f"{authors[0]} and {authors[1]}" if len(authors) == 2 else f"{authors[0]} et al."
        paper = f"{who}, {venue} {year}" if venue else f"{who}, {year}"
    first = plain(_first_line(name)).rstrip(".")
    kinds = [word for need, word in _KINDS.items() if getattr(made.requires, need)]
    what = "; ".join([first, *["personal"] * made.personalises, *kinds])
    neutral = sentences[0] if sentences else "-"
    values = (f"`{name}`", f"`{type(made).__name__}`", paper, what, down, up, kept, neutral, _cost(name))
    return dict(zip(_TOLD, values, strict=True))


def _cost(name: str) -> str:
    """Return bytes down and up and work on the clients in a round, as multiples of FedAvg's; "-" where unmeasured."""
    found = COSTS.get(name)
    return "-" if found is None else " / ".join(f"{found[part]:.3g}" for part in ("down", "up", "work"))


def _docstring(name: str) -> str:
    """Return the docstring of an algorithm's file; of its class, where the file has several algorithms."""
    kind = ALGORITHMS[name]
    alone = kind.__module__.endswith(f".{name}")
    return inspect.cleandoc((sys.modules[kind.__module__] if alone else kind).__doc__ or "")


def _first_line(name: str) -> str:
    return _docstring(name).splitlines()[0]


# ---- data, networks, tasks, samplers and analyses


def data_page(text: str) -> str:
    """Return docs/data.md with its tables of sources and downloads made anew."""
    sources = [(f"`{s.name}`", s.what, s.files or "none", s.tried) for s in SOURCES.values()]
    text = _with_table(text, ("name", "what", "files, below the folder", "run on"), sources)
    offered: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source in SOURCES.values():
        if source.download is not None:
            offered[source.download.publisher, source.download.checksums_by].append(f"`{source.name}`")
    downloads = [(", ".join(names), *by) for by, names in offered.items()]
    return _with_table(text, ("name", "from", "SHA-256 as published by"), downloads)


def partitions_page(text: str) -> str:
    """Return docs/partitions.md with its table made anew."""
    return _with_table(
        text,
        ("on the command line", "unless given", "in Python", "what", "from"),
        [
            (
                f"`{p.form}`".replace("|", "\\|"),
                f"`{values}`" if (values := ":".join(map(str, p.values.values()))) else "-",
                f"`{_called(p)}`",
                p.sentence,
                p.paper,
            )
            for p in PARTITIONS.values()
        ],
    )


def networks_page(text: str) -> str:
    """Return docs/networks.md with its table made anew."""
    networks = [
        (f"`{n.name}`", n.what, f"{n.parameters:,}", n.inputs, _written(n) and f"`{_written(n)}`")
        for n in MODELS.values()
    ]
    return _with_table(text, ("name", "what", "parameters", "for", "settings"), networks)


def tasks_page(text: str) -> str:
    """Return docs/tasks.md with its table made anew."""
    return _with_table(text, ("name", "loss"), [(f"`{task.name}`", task.what) for task in TASKS.values()])


def tables_page(text: str) -> str:
    """Return docs/tables.md with its table of words made anew."""
    read, told = kinds_of_words(), sentences(TableWords)
    rows = [
        (f"`{each.name}`", "yes" if each.name in read else "in Python", told[each.name])
        for each in dataclasses.fields(TableWords)
    ]
    return _with_table(text, ("word", "behind the path", "meaning"), rows)


def runs_page(text: str) -> str:
    """Return docs/runs.md with its table of samplers made anew."""
    rows = [
        (("any of these " if one is ARRIVING else "") + f"`{one.form}`", f"`{_made(one.make)}`", _first(one.make))
        for one in (*SAMPLERS.values(), ARRIVING)
    ]
    return _with_table(text, ("`clients.sampler`", "in Python, from `fedloom.coordinator`", "selects"), rows)


def analyses_page(text: str) -> str:
    """Return docs/analyses.md with its tables of analyses made anew."""
    offered = offers(OFFERED)
    rows = [(f"`{name}`", _whole(measure)) for name, measure in ANALYSES.items()]
    text = _with_table(text, ("name", "what it measures"), rows)
    own = [
        (f"`{name}`", offer.value.split(".")[1], _whole(offer.load()))
        for name, offer in offered.items()
        if offer.value.startswith("fedloom_papers.")
    ]
    return _with_table(text, ("name", "study", "what it measures"), own)


def _network(network: Network) -> dict[str, Any]:
    """Facts of a network for `fedloom models`."""
    about = {"what": plain(network.what), "inputs": network.inputs}
    return {**about, "parameters": network.parameters, "settings": _written(network)}


def _written(network: Network) -> str:
    """The settings of a network with their defaults, as they are written behind its name."""
    return "&".join(f"{name}={value}" for name, value in network.settings.items())


def _called(partition: NamedPartition) -> str:
    """Call that makes a partition in Python."""
    takes = inspect.signature(partition.function).parameters
    names = [name for name, one in takes.items() if one.default is one.empty or name in partition.values]
    seed = takes["seed"].default if "seed" in takes else inspect.Parameter.empty
    more = {} if seed is inspect.Parameter.empty else {"seed": seed}
    return _call(partition.function.__name__, names, more | dict(partition.fixed))


def _made(kind: Any) -> str:
    """Call that makes an object of a dataclass in Python."""
    return _call(kind.__name__, [field.name for field in dataclasses.fields(kind)], {})


def _call(name: str, arguments: Iterable[str], fixed: Mapping[str, Any]) -> str:
    return f"{name}({', '.join([*arguments, *(f'{key}={value}' for key, value in fixed.items())])})"


def _first(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((thing.__doc__ or "").partition("\n\n")[0].split())


def _whole(thing: Any) -> str:
    return " ".join((thing.__doc__ or "").split())


def written(found: Schema) -> str:
    """Return JSON as text."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def made() -> dict[Path, str]:
    """Return all files and what they must hold."""
    pages = {PAGE: page, MEASURED: measures_page, README: readme, METHODS: methods}
    pages |= {
        DATA: data_page,
        PARTITIONED: partitions_page,
        NETWORKS: networks_page,
        LEARNT: tasks_page,
        COLUMNS: tables_page,
        RUNS: runs_page,
        STUDIED: analyses_page,
        NAVIGATION: navigation,
    }
    texts = {path: make(path.read_text(encoding="utf-8")) for path, make in pages.items()}
    return {INDEX: written(index()), SCHEMA: written(schema()), **texts, **method_pages()}


# ---- the page of algorithms, and one for each

_FROM, _TO = (f"<!-- made by scripts/make_index.py: {mark} here -->\n" for mark in ("from", "to"))


def methods(text: str) -> str:
    """Return docs/algorithms.md with its tables of all algorithms made anew."""
    before, rest = text.split(_FROM)
    _, after = rest.split(_TO)
    names = {kind: name for name, kind in ALGORITHMS.items()}
    contents = [_family(family, [names[kind] for kind in kinds]) for family, kinds in FAMILIES.items()]
    return f"{before}{_FROM}{''.join(contents)}{_TO}{after}"


def _family(family: str, names: Sequence[str]) -> str:
    """Return the table of a family's algorithms, with links to their pages."""
    rows = [(f"[{name}](algorithms/{name}.md)", *(told(name)[column] for column in _IN_CONTENTS)) for name in names]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"**{family.capitalize()}**\n\n| name | {' | '.join(_IN_CONTENTS)} |\n|---|---|---|---|\n{lines}\n"


def method_pages() -> dict[Path, str]:
    """Return the page of each algorithm."""
    places = dict[tuple[Any, ...], str]()
    return {OF_METHODS / f"{name}.md": method_page(name, places) for name in ALGORITHMS}


def below(text: str) -> str:
    """Return text whose links are those of a page of docs/, for a page in a folder of docs/."""
    return re.sub(r"\]\((?!https?://|mailto:|#)", "](../", text)


def linked(text: str, name: str) -> str:
    """Return what the file of an algorithm says, with links to the other algorithms and pages that it names."""
    text = re.sub(r"`(\w+)`", lambda m: f"[{m[0]}]({m[1]}.md)" if m[1] in {*ALGORITHMS} - {name} else m[0], below(text))
    text = re.sub(r"(?<!/)\bdocs/([\w-]+\.md)", r"[docs/\1](../\1)", text)
    return re.sub(r"\bpapers/docs/([\w-]+\.md)", r"[papers/docs/\1](../../papers/docs/\1)", text)


_PUBLIC = {"public": "public examples", "validation": "validation examples"}
_HELD = "| numbers of | agrees to | by | tests |\n|---|---|---|---|\n"
_EXPLAINED = (
    "*Engines*: whole rounds on the loop and on the stack; *functions*: the functions alone. "
    "[Papers](../papers.md) explains the columns."
)


def method_page(name: str, places: dict[tuple[Any, ...], str]) -> str:
    """Return the page of an algorithm. `places`: settings of a class, and the algorithm whose page explains them."""
    kind, facts = ALGORITHMS[name], _listed(name)
    first, *others = _docstring(name).split("\n\n")
    title = re.split(r"[:,] ", first)[0] if ":" in first else kind.__name__
    body = "\n\n".join(p if p.startswith("    ") else linked(" ".join(p.split()), name) for p in others)
    declared = facts["facts"]
    rows = {
        "on the command line": f"`{name}`",
        "in Python": f"`fl.{kind.__name__}` ([source](../../src/{kind.__module__.replace('.', '/')}.py))",
        "paper": "" if declared["paper"] == "-" else declared["paper"],
        "family": str(facts["family"]) + (", a model for each client" if facts["personal"] else ""),
        "needs": ", ".join(_PUBLIC.get(word, word) for word in facts["needs"] if word != "state"),
        "download": declared["down"],
        "upload": declared["up"],
        "client state": declared["client keeps"],
        "cost of a round, as a multiple of FedAvg's": ""
        if declared["cost"] == "-"
        else f"{declared['cost']} (bytes down / bytes up / work of clients)",
        "values that `--tuned` tries": "; ".join(f"`{k}`: {', '.join(map(str, v))}" for k, v in facts["tried"].items()),
    }
    table = "".join(f"| {key} | {value} |\n" for key, value in rows.items() if value)
    settings, held, found = "\n".join(_settings(name, kind, places)), tests_of(name, title), measured(name)
    parts = [
        "<!-- made by scripts/make_index.py, all of it -->",
        f"# {title}\n\n{linked(first, name)}\n\n| | |\n|---|---|\n{table}",
        f"## Use it\n\n    fedloom run {name} --partition dirichlet:0.3 --clients 20 --rounds 10 --out runs/{name}",
        f"```python\nalgorithm = fl.{kind.__name__}(local=fl.Local(epochs=2, batch_size=20))\n```",
        f"## Method\n\n{body}",
        f"## Settings\n\n{settings}" if settings else "",
        f"## Tests that hold it\n\n{_HELD}{held}\n{_EXPLAINED}" if held else "",
        f"## Results so far\n\n{found}" if found else "",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def tests_of(name: str, title: str) -> str:
    """Return the rows of docs/papers.md that speak of an algorithm, without their first cell."""
    rows = re.findall(r"^\| (.+) \|$", (ROOT / "docs/papers.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = ""
    for row in rows:
        cells = row.split(" | ")
        if len(cells) != 6:
            continue
        named = re.split(r", | as | on top of | and ", cells[0].replace("also ", ""))
        if title in named or f"/test_{name}.py" in cells[5]:
            numbers, agrees, by, _, tests = cells[1:]
            links = re.sub(r"`([\w/]+\.py)(::\w+)`", r"[`\1\2`](../tests/\1)", tests)
            links = links.replace("(../tests/papers/", "(../papers/tests/")
            found += below(f"| {numbers} | {agrees} | {by} | {links} |\n")
    return found


def measured(name: str) -> str:
    """Return what an algorithm reached beside others, by docs/results/sixteen.csv; "" where it has no row."""
    with (ROOT / "docs/results/sixteen.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == name]
    if not rows:
        return ""
    columns = {"global": "global_accuracy", "personal": "personal_accuracy", "worst decile": "personal_worst_tenth"}
    lines = "| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns) + "\n"
    for row in rows:
        cells = [f"{100 * float(row[key]):.1f}" if row[key] else "-" for key in columns.values()]
        how = "as given" if row["settings"] == "given" else f"tuned: {row['chosen']}"
        lines += f"| {row['partition']}, {how}, seed {row['seed']}, round {row['rounds']} | {' | '.join(cells)} |\n"
    return f"Accuracy in %, on the problem of [sixteen methods](../sixteen.md), which lists the others:\n\n{lines}\n"


def _settings(name: str, kind: type, places: dict[tuple[Any, ...], str]) -> Iterator[str]:
    """Yield a line for each setting, and one for those that docs/algorithms.md or an earlier page explains."""
    beneath, elsewhere = sentences(kind), dict[str, list[str]]()
    head = {f.name: (f.default, sentences(Averaging).get(f.name)) for f in dataclasses.fields(Averaging)}
    for key, value in catalogue.hyper_parameters(name).items():
        owner = next(c for c in kind.__mro__ if key in inspect.get_annotations(c))
        place = places.setdefault((owner, key), name)
        if head.get(key) == (value, beneath[key]):
            elsewhere.setdefault("[averages](../algorithms.md#averages)", []).append(key)
        elif place != name:
            elsewhere.setdefault(f"[{place}]({place}.md#settings)", []).append(key)
        else:
            yield f"- `{key}={expression(value)}`: {linked(beneath[key], name)}"
    for where, keys in elsewhere.items():
        yield f"- {', '.join(f'`{key}`' for key in keys)}: as in {where}."


def expression(value: object) -> str:
    """Return a default as Python writes it, with `fl`; an optimiser's defaults beside its rate are left out."""
    if isinstance(value, str):
        return json.dumps(value)
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    inner = [
        f"{f.name}={expression(getattr(value, f.name))}"
        for f in dataclasses.fields(value)
        if f.init and (f.name == "lr" or getattr(value, f.name) != f.default)
    ]
    return f"fl.{type(value).__name__}({', '.join(inner)})"


# ---- the index


def _indexed(key: str, one: Declared) -> dict[str, Any]:
    """Entry of the parser for a setting that has a flag."""
    choices = {"choices": list(get_args(one.kind))} if get_origin(one.kind) is Literal else {}
    about = {"flag": one.flag, "value": one.value, "group": one.group, "what": _described(key, one)}
    return {"default": one.default, **choices, **about}


_FORMS = {
    "model": [*MODELS],
    "task": [*TASKS],
    "data.partition": [partition.form for partition in PARTITIONS.values()],
    "clients.attack": ["none", *(form for one in ATTACKS.values() for form in one.forms)],
    "run.aggregator": [form for one in AGGREGATORS.values() for form in one.forms],
    "clients.sampler": [*(sampler.form for sampler in SAMPLERS.values()), f"each with {ARRIVING.form}"],
}


def _described(key: str, one: Declared) -> str:
    """The sentence of a setting, and the names that it may have."""
    text = plain(one.sentence)
    return f"{text.rstrip('.')}: {', '.join(_FORMS[key])}." if key in _FORMS else text


def _listed(name: str) -> dict[str, Any]:
    """The first line of its file, its settings with their defaults, and the facts that its class and file declare."""
    settings = []
    for key, value in catalogue.hyper_parameters(name).items():
        inner = parts(value) if is_dataclass(value) else {}
        settings += [f"{key}.{part}={_said(its)}" for part, its in inner.items() if its is not None]
        settings += [] if inner else [f"{key}={_said(value)}"]
    made, said = ALGORITHMS[name](), told(name)
    family = next(family for family, kinds in FAMILIES.items() if type(made) in kinds)
    facts = {word: plain(said[word]) for word in ("paper", "down", "up", "client keeps", "FedAvg", "cost")}
    needs = [word for need, word in _NEEDS.items() if getattr(made.requires, need)]
    return {
        "what": _first_line(name),
        "settings": "  ".join(settings),
        "family": family,
        "personal": made.personalises,
        "one-shot": made.requires.everyone,
        "needs": [*needs, *["state"] * (facts["client keeps"] != "nothing")],
        "tried": {key: list(values) for key, values in grids(type(made)).items()},
        "facts": facts,
    }


def _said(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# ---- the schema


def schema() -> Schema:
    """Return the schema of settings files: JSON Schema, draft 2020-12."""
    defaults = flat(Experiment().described())
    keys = {f"{section}.{name}": found for section, found in _sections().items() for name, found in found.items()}
    for key, said in DECLARED.items():
        text: Schema = {"type": "string"}
        several = isinstance(defaults.get(key), list | tuple)
        of_kind = {"items": text, "type": "array"} if several else text
        keys.setdefault(key, of_kind)["description"] = _described(key, said)
    for key, value in defaults.items():
        if key in keys:
            keys[key]["default"] = value
    for key, names, others in (
        ("algorithm", ALGORITHMS, ":"),
        ("model", MODELS, "[:,?]"),
        ("task", TASKS, ":"),
        ("data.partition", PARTITIONS, f"^({'|'.join(PARTITIONS)}):"),
        ("clients.sampler", SAMPLERS, f"^({'|'.join(SAMPLERS)})[:+]"),
        ("clients.attack", ["none", *ATTACKS], f"^({'|'.join(ATTACKS)}):"),
        ("run.aggregator", AGGREGATORS, f"^({'|'.join(AGGREGATORS)}):"),
    ):
        keys[key]["anyOf"] = [{"enum": list(names)}, {"pattern": others}]
    top = {key: found for key, found in keys.items() if "." not in key}
    sections = {
        name: _table({key.partition(".")[2]: found for key, found in keys.items() if key.startswith(f"{name}.")})
        for name in _sections()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of a fedloom run",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, **top, **sections, **{n: _algorithm(n) for n in ALGORITHMS}},
        "additionalProperties": {"type": "object", "description": "settings of an algorithm of your own"},
        "$defs": {"optimiser": _optimiser()},
    }


def _sections() -> dict[str, dict[str, Schema]]:
    kinds = {"data": DataSettings, "clients": ClientSettings, "local": Local, "run": RunSettings}
    return {name: _fields(kind) for name, kind in kinds.items()}


def _algorithm(name: str) -> Schema:
    """The table of an algorithm; what it trains beside local training is a table in it."""
    kind, found = ALGORITHMS[name], {}
    types, beneath = field_types(kind, bounds=True), sentences(kind)
    for key, value in catalogue.hyper_parameters(name).items():
        about = {"description": plain(beneath[key])} if key in beneath else {}
        if dataclasses.is_dataclass(value):
            found[key] = _table(_fields(type(value))) | about
        elif settable(types[key]):
            found[key] = _value(types[key]) | about | {"default": value}
    return _table(found) | {"description": _first_line(name)}


def _fields(kind: type) -> dict[str, Schema]:
    """The settings of a class; those of an optimiser stand beside them."""
    types, out = field_types(kind, bounds=True), {}
    for field in dataclasses.fields(kind):
        its = types[field.name]
        if field.init and isinstance(its, type) and issubclass(its, Optimiser):
            for one in OPTIMISERS.values():
                out |= {name: said for name, said in _fields(one).items() if name not in types}
            out[field.name] = {"anyOf": [_KIND, {"$ref": "#/$defs/optimiser"}]}
        elif field.init and settable(its):
            out[field.name] = _value(its)
    return out


def _optimiser() -> Schema:
    """An optimiser as a table of its kind and its fields."""
    every = {name: said for one in OPTIMISERS.values() for name, said in _fields(one).items()}
    return _table({"kind": _KIND, **every})


_KIND: Schema = {"anyOf": [{"enum": list(OPTIMISERS)}, {"type": "string", "pattern": ":"}]}


def _value(kind: Any) -> Schema:
    """One setting: pydantic's schema of its type; TOML has no null, and "none" is one."""
    found = TypeAdapter(kind).json_schema()
    if {"type": "null"} in found.get("anyOf", ()):
        found["anyOf"].append({"const": "none"})
    return found


def _table(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


# ---- the page


def _row(key: str, one: Declared) -> str:
    flag = {"algorithm": "fedloom run NAME", "run.seed": "--seed"}.get(key, one.flag)
    cells = [f"`{key}`", f"`{flag}`" if flag else "", _word(one.kind), _default(one.default), one.sentence]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _word(kind: Any) -> str:
    """Form in which the page writes a type."""
    if without_none(kind) is not kind:
        return f"{_word(without_none(kind))} or none"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{k}`" for k in get_args(kind))
    several = get_args(kind)
    if ... in several:
        return _word(several[0]).replace("one of", "some of")
    if several:
        return f"{len(several)} {_word(several[0])}s"
    return {int: "integer", float: "number", bool: "true or false", str: "text"}[kind]


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`"
    return f"`{str(value).lower() if value is None or isinstance(value, bool) else value}`"


if __name__ == "__main__":
    for path, text in made().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
