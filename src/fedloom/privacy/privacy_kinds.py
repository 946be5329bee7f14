"""The setting `privacy`: its kinds by name, each the part of a run in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.coordinator.part import Brief, Part
from fedloom.coordinator.record_entries import named
from fedloom.coordinator.settings import RunSettings
from fedloom.core.grammar import arguments, by_name, find
from fedloom.engines.links import Encoder


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
