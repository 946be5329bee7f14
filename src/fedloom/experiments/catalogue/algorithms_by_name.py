"""Algorithms by the names that people type, with settings as they write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator.settings import RunSettings
from fedloom.core.algorithm import Algorithm
from fedloom.core.choices import field_types, settable
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.naming import by_python_name
from fedloom.experiments.coercion import coerce
from fedloom.experiments.nested_settings import parts, with_parts
from fedloom.experiments.settings_sections import SECTIONS, TOP, ClientSettings, DataSettings
from fedloom.wording import did_you_mean, plain, some_of

# Of other libraries, and often asked for: of these nothing is meant by a name that looks like theirs.
_NOT_HERE = {
    "fedamp", "fedphp", "feddistill",
    "fedgen", "fedkd", "fedgh", "fedpcl", "fedcp", "gpfl", "fedpac", "fedcac", "fedgc", "fedas",
    "feddbe", "fedavgdbe", "fedmtl", "mocha", "apple", "fedlaw",
}  # fmt: skip


def label(name: str) -> str:
    """Return the name of an algorithm's settings and results: its own, without the module of one from outside."""
    return name.rpartition(":")[2]


def kind(name: str) -> type[Algorithm[Any, Any]]:
    """Return the class of an algorithm, by its name or by `module:Class`."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name == "apfl":
        raise SettingError(
            "algorithm 'apfl' may mean that of Ni, Shen and Zhang (2022, decomposed weights), apfl_ni, or that of "
            "Deng, Kamani and Mahdavi (2020, mixed models), apfl_deng: write one of the two"
        )
    if plain(name) in _NOT_HERE:
        raise SettingError(
            f"an algorithm is one that `fedloom algorithms` lists or your own as module:Class, got {name!r}, which is "
            "not built in: docs/algorithms.md says how to write it [FL-METHOD-007]"
        )
    if "," in name:
        raise SettingError(
            f"an algorithm is one name, got {name!r}: put spaces between several, fedloom compare "
            f"{' '.join(name.split(','))}"
        )
    if name.endswith((".toml", ".json")):
        raise SettingError(
            f"an algorithm is one that `fedloom algorithms` lists, got {name!r}: --settings {name} [FL-METHOD-008]"
        )
    if ":" not in name:
        raise SettingError(
            f"unknown algorithm {name!r}{did_you_mean(name, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}, "
            "and your own as module:Class [FL-METHOD-006]"
        )
    found = by_python_name(name, "algorithm")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise SettingError(f"algorithm {name!r} must be a class derived from fedloom.Algorithm, got {found!r}")
    if lacks := sorted(getattr(found, "__abstractmethods__", ())):
        raise SettingError(
            f"an algorithm must say what init, a client's work and a round are, got {name!r} without "
            f"{', '.join(lacks)}: write {'it' if len(lacks) == 1 else 'them'}, or derive it from fedloom.FedAvg, which "
            "has them [FL-METHOD-009]"
        )
    return found


def setting_keys(sections: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of all settings that belong to no algorithm; `sections`: what has those of each, by its name."""
    yield from TOP
    for section, of in sections.items():
        yield from (f"{section}.{name}" for name in parts(of))


def algorithm(name: str, local: Local, settings: Mapping[str, Any]) -> Algorithm[Any, Any]:
    """Make an algorithm by name, with settings as typed or as in a file (`{"beta": "0.5"}`, `{"distill.lr": 0.01}`).

    Raises:
        SettingError: a setting is unknown or of another type, or has neither a value nor a default.
    """
    owner, known, types = label(name), _own(name), field_types(kind(name))
    defaults = hyper_parameters(name)
    values: dict[str, Any] = {}
    changed: dict[str, dict[str, Any]] = {}  # parts, for example lr of KT-pFL's distill
    for key, value in settings.items():
        field, _, part = key.partition(".")
        whole = defaults.get(field)
        if part and field in SECTIONS and field not in known:
            raise SettingError(
                f"{owner} has no setting {key!r}: settings of {field} are common to all methods, --set {key}={value}"
            )
        if field not in known:
            sections = {"data": DataSettings(), "clients": ClientSettings(), "local": local, "run": RunSettings()}
            others = [*(f"{owner}.{own}" for own in known), *setting_keys(sections)]
            meant = did_you_mean(key, known) or ("" if key in SECTIONS else did_you_mean(key, others))
            elsewhere = with_setting(field, name)
            raise SettingError(
                f"{owner} has no setting {key!r}{meant}; it has {', '.join(known) or 'none'}"
                + f"; one of this name is in {some_of(elsewhere, 5)}" * bool(elsewhere)
                + " [FL-METHOD-005]"
            )
        if dataclasses.is_dataclass(whole):
            if not part:
                raise SettingError(f"{owner}.{field} has parts: set {', '.join(f'{field}.{n}' for n in parts(whole))}")
            changed.setdefault(field, {})[part] = value
        elif part:
            raise SettingError(f"{owner}.{field} has no parts; give it as {field}=VALUE")
        else:
            values[field] = coerce(value, types[field], f"{owner}.{field}")
    values |= {field: with_parts(defaults[field], f"{owner}.{field}", given) for field, given in changed.items()}
    if missing := lacking(name, values):
        raise SettingError(
            f"{owner} has settings without a default: give {', '.join(f'{key}=VALUE' for key in missing)} (--set)"
        )
    return kind(name)(local=local, **values)


def lacking(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the names of an algorithm's settings that have neither a default nor a value in `settings`."""
    return [key for key in _own(name) if key not in settings and key not in hyper_parameters(name)]


def with_setting(key: str, name: str) -> list[str]:
    """Return the built-in algorithms with a setting of some name, first those whose other settings are most like.

    Args:
        key: of the setting.
        name: of the algorithm that lacks it.
    """
    mine = {*_own(name)}
    found = [other for other in ALGORITHMS if key in _own(other)]
    return sorted(found, key=lambda other: len(mine ^ {*_own(other)}))


def hyper_parameters(name: str) -> dict[str, Any]:
    """Return an algorithm's own settings that have a default, with their defaults."""
    out: dict[str, Any] = {}
    for key, field in _own(name).items():
        if field.default is not dataclasses.MISSING:
            out[key] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            out[key] = field.default_factory()
    return out


def _own(name: str) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind(name)) if field.init and field.name != "local"}


def written(algorithm: Algorithm[Any, Any]) -> dict[str, Any]:
    """Return an algorithm's own settings as a settings file has them: all that words can set."""
    out: dict[str, Any] = {}
    derived = {field.name for field in dataclasses.fields(algorithm) if not field.init}
    for key, its in field_types(type(algorithm)).items():
        if key in (own := vars(algorithm)) and key not in {"local", *derived}:
            if dataclasses.is_dataclass(own[key]):
                out[key] = parts(own[key])
            elif settable(its):
                out[key] = own[key]
    return out
