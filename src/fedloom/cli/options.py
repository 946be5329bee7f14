"""Experiments from flags and settings files."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.cli.flags import FLAGS
from fedloom.core.errors import SettingError
from fedloom.experiments import catalogue
from fedloom.experiments.coercion import coerce
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings


def experiments(args: argparse.Namespace, names: Sequence[str], sections: Sequence[str] = ()) -> list[Experiment]:
    """Return one experiment for each algorithm: the settings file (or `sections` of it), then flags, then --set."""
    described = {} if args.settings is None else read_settings(args.settings)
    if sections:
        described = {name: table for name, table in described.items() if name in sections}
    methods = list(names) or ([str(described["algorithm"])] if "algorithm" in described else [])
    if not methods:
        _of_file({}, described, args)  # an unknown key may be the reason
        raise SettingError(
            "a run needs an algorithm: fedloom run NAME, or algorithm = NAME in the settings file [FL-CLI-007]"
        )
    labels = [catalogue.label(name) for name in methods]
    if repeated := [name for name in methods if labels.count(catalogue.label(name)) > 1]:
        raise SettingError(
            f"each algorithm must be named once, since its name is that of its results, got {' and '.join(repeated)}: "
            "drop the repeats, or rename your own"
        )
    # Tables of external algorithms are recognised by these names alone.
    outside = {catalogue.label(name) for name in (*methods, str(described.get("algorithm", ""))) if ":" in name}
    out = []
    for name in methods:
        other_tables = outside - {catalogue.label(name)}
        settings = {key: value for key, value in described.items() if key not in other_tables}
        experiment = _of_file({"algorithm": name}, settings, args)
        flags = {key: getattr(args, key, None) for key in FLAGS}
        flags = {key: value for key, value in flags.items() if value is not None}
        experiment = experiment.with_all(flags | settings_of_method(args.set, catalogue.label(name), labels))
        debugs = getattr(args, "debug", False)
        out.append(dataclasses.replace(experiment, run=experiment.run.for_debugging()) if debugs else experiment)
    return out


def in_flags(text: str, args: argparse.Namespace) -> str:
    """Return a message about settings in words of the flags, where no settings file says something else.

    A flag that was typed stands for its setting in any case. A setting whose name is a word of English is known by its
    section (`run.rounds`), or where a message begins with it; those of `local` by it alone, since methods share names.
    What was typed as a setting (--set, --over) stays one.
    """
    typed = " ".join([*args.set, *getattr(args, "over", ())]) if hasattr(args, "set") else ""
    for key, declaration in FLAGS.items():
        is_typed = getattr(args, key, None) is not None
        if not is_typed and (args.settings is not None or not hasattr(args, key)):
            continue
        flag, (section, _, name) = declaration["flag"], key.rpartition(".")
        if key in typed:
            continue
        names = [re.escape(key)] * bool(section) + [name] * ("_" in name and section != "local")
        if is_typed and section != "local":
            text = re.sub(rf"^{name}(?= must )", flag, text)
        if names:
            word = rf"(?<![\w.'\"=-])(?:{'|'.join(names)})"
            text = re.sub(rf"{word} \(({flag}\b[^)]*)\)", r"\1", text)
            text = re.sub(rf"{word}, (?={flag}\b)", "", text)
            text = re.sub(rf"{word} = ", f"{flag} ", text)
            text = re.sub(rf"{word}(?=[\s,;:)]|$)", flag, text)
    return text


def _of_file(algorithm: Mapping[str, str], described: Mapping[str, Any], args: argparse.Namespace) -> Experiment:
    """Return the experiment that a settings file describes, with an algorithm in the place of its own."""
    try:
        return Experiment.of({**described, **algorithm})
    except SettingError as error:
        where = "" if args.settings is None else f"{args.settings}: "
        raise SettingError(f"{where}{error}") from None


def seeds_of(text: str | None, experiment: Experiment) -> list[int]:
    """Return the seeds of a flag, as in `0,1,2`; by default that of the experiment."""
    if text is None:
        return [experiment.run.seed]
    return seed_list(text)


def seed_list(text: str) -> list[int]:
    """Return the seeds of a text such as `0,1,2`."""
    if span := re.fullmatch(r"(\d{1,4})-(\d{1,4})", text):
        first, last = map(int, span.groups())
        listed = ",".join(map(str, range(first, last + 1))) if first <= last < first + 20 else "0,1,2"
        raise SettingError(f"--seed takes seeds with commas between them, got {text!r}: write --seed {listed}")
    parsed = [int(coerce(part, int, "--seed")) for part in text.split(",")]
    if len(set(parsed)) < len(parsed):
        raise SettingError(f"each seed must be named once, got --seed {text}")
    return parsed


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """Return the same experiment with another seed."""
    return dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, seed=seed))


def parse_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE of each --set; refuse a name that is given twice."""
    out: dict[str, str] = {}
    for pair in texts:
        key, equals, value = pair.partition("=")
        if not (equals and key and value):
            raise SettingError(f"--set takes NAME=VALUE, got {pair!r}: write as in --set mu=0.1 [FL-CLI-005]")
        if key in out:
            raise SettingError(f"--set gives {key} twice, {out[key]!r} and {value!r}: leave one out")
        out[key] = value
    return out


def settings_of_method(texts: Sequence[str], method: str, labels: Sequence[str]) -> dict[str, str]:
    """Return the settings that --set gives to `method`, one of `labels`, by their full names."""
    out: dict[str, str] = {}
    for key, value in parse_pairs(texts).items():
        owner, dot, _ = key.partition(".")
        if Experiment.knows(key):
            out[key] = value
        elif dot and owner in labels:
            out |= {key: value} if owner == method else {}
        elif len(labels) == 1:
            out[f"{method}.{key}"] = value
        else:
            raise SettingError(
                f"--set in a comparison needs ALGORITHM.NAME=VALUE, with one of {', '.join(labels)}, got "
                f"'{key}={value}' [FL-CLI-006]"
            )
    return out
