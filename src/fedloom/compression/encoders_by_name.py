"""The settings `compression` and `compression_down`: encoders by the names that people type, and their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fedloom.compression.compressed_uploads import Compressed, CompressedDown
from fedloom.compression.fewer_bits import Bits, Float16, Rounding, Signs
from fedloom.compression.fewer_numbers import Fewer, LowRank, RandK, TopK
from fedloom.coordinator.part import Brief, Part
from fedloom.coordinator.settings import RunSettings
from fedloom.coordinator.trial_round import try_round
from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named, arguments, by_name, find
from fedloom.core.naming import by_python_name, is_python_name
from fedloom.engines.links import Encoder, Link

Scope = Literal["tensor", "whole"]
STAGES = by_name(
    (
        Named(("topk:SHARE",), TopK, (float,)),
        Named(("randk:SHARE",), RandK, (float,)),
        Named(("lowrank:RANK",), LowRank, (int,)),
        Named(("bits:BITS",), Bits, (int,)),
        Named(("sign",), Signs),
        Named(("float16",), Float16),
    )
)
_NOUN, _OWN = "compression", "module:name"
_ARGUMENTS: dict[str, Any] = {"feedback": bool, "scope": Scope}


def compressed(text: str) -> Compressed:
    """Return the encoder that a text names.

    Raises:
        SettingError: there is none of this name, or a value is missing, malformed or out of range.
    """
    chain, question, said = text.partition("?")
    stages = []
    for word in chain.split("+"):
        found = find(_NOUN, word, STAGES, before="none", behind=_OWN)
        stages.append(found.made(_NOUN, text, *found.values(_NOUN, word, text)))
    fewer: list[Fewer] = [stage for stage in stages if isinstance(stage, Fewer)]
    rounding: list[Rounding] = [stage for stage in stages if isinstance(stage, Rounding)]
    if stages != [*fewer, *rounding] or len(fewer) > 1 or len(rounding) > 1:
        raise SettingError(
            f"a chain of encoders is one that leaves numbers out (topk, randk, lowrank), then one that writes them in "
            f"fewer bits (bits, sign, float16), got {text!r}: write it as in topk:0.01+bits:4"
        )
    asked = arguments(_NOUN, said, _ARGUMENTS, "feedback=true&scope=tensor") if question else {}
    scope: Scope = asked.get("scope", "whole" if fewer and fewer[0].whole else "tensor")
    if fewer and isinstance(fewer[0], LowRank) and scope == "whole":
        raise SettingError(f"lowrank is of matrices, each by itself, got {text!r}: leave scope=whole out")
    return Compressed(
        fewer=fewer[0] if fewer else None, rounding=rounding[0] if rounding else None, whole=scope == "whole",
        feedback=asked.get("feedback", any(stage.by_feedback for stage in stages)),
    )  # fmt: skip


def _own(text: str) -> Encoder:
    """Return an encoder of one's own, an object or a class that is made without arguments.

    Raises:
        SettingError: there is none of this name.
    """
    found = by_python_name(text, "an encoder of compression")
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Encoder):
        raise SettingError(
            f"an encoder of compression is an object or a class derived from fedloom.Encoder, got {text!r}: derive it "
            "from fedloom.Encoder"
        )
    return made


class Smaller(Link):
    """The way of uploads that an encoder has made smaller."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder


class Compression(Part):
    """Part that `RunSettings.compression` names."""

    def __init__(self, encoder: Encoder) -> None:
        self.links = (Smaller(encoder),)

    @classmethod
    def of(cls, job: Brief) -> Compression:
        """Return the part of a run.

        Raises:
            SettingError: the setting names no encoder.
        """
        text, simulated = job.settings.compression, job.federation.train.remote is None
        return cls(_own(text)) if simulated and is_python_name(text) else cls(*cls.encoders(job.settings))

    @classmethod
    def encoders(cls, settings: RunSettings) -> tuple[Encoder, ...]:
        if is_python_name(settings.compression):
            raise SettingError(
                f"devices know a run by its settings and import no code that a server names, got compression = "
                f"{settings.compression!r}: name one of {', '.join(STAGES)}, or simulate it with fedloom run"
            )
        return (compressed(settings.compression),)

    def check(self, job: Any) -> None:
        settings = job.settings
        if settings.secure_aggregation != "none":
            raise SettingError(
                f"compression = {settings.compression!r} is read upload by upload, and masked ones are added up unread,"
                f" got secure_aggregation = {settings.secure_aggregation!r}: leave one of them out"
            )
        _check_travels(job, f"compression = {settings.compression!r}", self.links)


class DownCompression(Part):
    """Part that `RunSettings.compression_down` names."""

    def __init__(self, encoder: Encoder) -> None:
        self.links = (Smaller(encoder),)

    @classmethod
    def of(cls, job: Brief) -> DownCompression:
        return cls(*cls.encoders(job.settings))

    @classmethod
    def encoders(cls, settings: RunSettings) -> tuple[Encoder, ...]:
        """Return the encoder of what all clients are sent.

        Raises:
            SettingError: the setting names none, or one that leaves most of a model out.
        """
        text = settings.compression_down
        made = compressed(text)
        if made.fewer is not None or made.feedback or isinstance(made.rounding, Signs):
            raise SettingError(
                f"clients are sent whole models, of which nothing is left, got compression_down = {text!r}: write "
                "bits:8 or float16"
            )
        return (CompressedDown(rounding=made.rounding, whole=made.whole),)

    def check(self, job: Any) -> None:
        _check_travels(job, f"compression_down = {job.settings.compression_down!r}", self.links)


def _check_travels(job: Any, said: str, links: Sequence[Link]) -> None:
    """Raise SettingError where nothing travels that is encoded, or a round with one batch for each client fails."""
    sums, name = job.settings.partial_sums, type(job.algorithm).__name__
    if sums is not None:
        raise SettingError(f"{said} is of single messages, and partial_sums = {sums} sends sums: leave one of them out")
    if job.algorithm.requires.one_place:
        raise SettingError(f"{said} is of what travels, got {name}, which has all examples in one place: leave it out")
    trial = Part()
    trial.links = links
    others = dict.fromkeys(("compression", "compression_down", "privacy", "secure_aggregation"), "none")
    plain = replace(job.settings, **others)  # whose parts would try, too
    try:
        try_round(replace(job, settings=plain), [trial])
    except SettingError as error:
        raise (error.__cause__ if isinstance(error.__cause__, SettingError) else error) from None
