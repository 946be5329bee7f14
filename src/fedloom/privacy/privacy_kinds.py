"""The setting `privacy`: its kinds by name, each the part of a run in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.coordinator.part import Brief, Part
from fedloom.coordinator.record_entries import named
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import SettingError
from fedloom.core.grammar import arguments, by_name, find
from fedloom.engines.links import Encoder

Rule = tuple[Callable[[Any], bool], str]  # of a value, and its words
POSITIVE: Rule = (lambda value: value > 0, "above 0")
NOT_NEGATIVE: Rule = (lambda value: value >= 0, "0 or more")
SHARE: Rule = (lambda value: 0 < value < 1, "above 0 and below 1")


@dataclass(frozen=True)
class Kind:
    """A kind of privacy: how it is written, and the class of its part, by `module:Class`."""

    form: str
    part: str


KINDS = by_name(
    (Kind("central:epsilon=4,delta=1e-5,clip=0.5 or central:noise=1,delta=1e-5,clip=adaptive:0.5",
          "fedloom.privacy.central:Central"),
     Kind("examples:epsilon=4,delta=1e-5,clip=1 or examples:noise=1,delta=1e-5,clip=1",
          "fedloom.privacy.private_examples:Examples"),
     Kind("distributed:epsilon=4,delta=1e-5,clip=0.5 or distributed:noise=1,delta=1e-5,clip=0.5,lost=2",
          "fedloom.privacy.distributed:Distributed"),
     Kind("local:epsilon=8,delta=1e-5,clip=1 or local:noise=4,delta=1e-5,clip=1",
          "fedloom.privacy.private_uploads:Uploads"))
)  # fmt: skip


def said(text: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands behind the name of a kind, KEY=VALUE,KEY=VALUE, by key.

    Args:
        text: the setting.
        kinds: of the values, by key, as of `fedloom.wording.value_of`.

    Raises:
        SettingError: a key is unknown, or there twice, or a value is missing or of another kind.
    """
    name, _, rest = text.partition(":")
    return arguments(f"privacy = {name!r}", rest.replace(",", "&"), kinds, KINDS[name].form)


def wanted(text: str, kinds: Mapping[str, Any], form: str, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return what is said: one of epsilon and noise, delta and clip, and what else there is, by key.

    Args:
        text: the setting.
        kinds: of the values, as of `said`.
        form: how it may be written.
        rules: what a value fits, in words too, by key.

    Raises:
        SettingError: as of `said`; something is missing, or out of range.
    """
    found = said(text, kinds)
    if ("epsilon" in found) == ("noise" in found) or not {"delta", "clip"} <= found.keys():
        raise SettingError(f"privacy is epsilon or noise, and delta and clip, got {text!r}: write {form}")
    for name, (fits, rule) in rules.items():
        if name in found and not fits(found[name]):
            raise SettingError(f"{name} of privacy is {rule}, got {found[name]:g} in {text!r}: correct it")
    return found


def check_delta(delta: float, clients: int) -> None:
    """Raise SettingError where a client could be published whole within delta."""
    if delta >= 1 / clients:
        raise SettingError(
            f"delta is below one over the number of clients, 1 / {clients}, or one of them could be published whole, "
            f"got {delta:g}: lower delta"
        )


def _part(text: str) -> type[Any]:
    kind: type[Any] = named(find("kind of privacy", text, KINDS, before="none").part)
    return kind


class Privacy(Part):
    """Part that `RunSettings.privacy` names: `of` makes that of its kind."""

    @classmethod
    def of(cls, job: Brief) -> Part:
        """Return the part of a run.

        Raises:
            SettingError: the setting names none, or is written otherwise.
        """
        part: Part = _part(job.settings.privacy).of(job)
        return part

    @classmethod
    def encoders(cls, settings: RunSettings) -> tuple[Encoder, ...]:
        found: tuple[Encoder, ...] = _part(settings.privacy).encoders(settings)
        return found

    @classmethod
    def gradients_of(cls, settings: RunSettings) -> Any:
        return _part(settings.privacy).gradients_of(settings)
