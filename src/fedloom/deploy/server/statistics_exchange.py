"""Both exchanges of statistics with devices, by the server: their columns are compared, and a preparation is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedloom.core.errors import RefusedError, SettingError
from fedloom.data.schema import Schema, not_alike
from fedloom.deploy.device_statistics import MAX_BYTES, CommonTotals, FirstStatistics, SecondStatistics, to_bytes
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.fleet import RankFleet
from fedloom.deploy.statistics_fields import check_columns
from fedloom.storage.strict_json import parse
from fedloom.tables.client_counts import check_least_clients
from fedloom.tables.columns import most_words
from fedloom.tables.statistics import GAP, CommonPreparation, Spread, Summary, Total, UnlikeColumns
from fedloom.tasks.regression import mean_in_order

_TRIES = 4  # exchanges, where devices are lost in the middle of one


@dataclasses.dataclass(frozen=True)
class CommonStatistics:
    """Results of the statistics of all devices.

    Attributes:
        preparation: of their tables, as JSON has it; None: they are not prepared by common statistics.
        moments: mean and deviation of each target, by these names; None: no task asks for them.
    """

    preparation: Mapping[str, Any] | None = None
    moments: Mapping[str, Sequence[float]] | None = None


def exchange_statistics(
    fleet: RankFleet, firsts: Mapping[int, tuple[Registration, FirstStatistics]], wait: float | None
) -> tuple[CommonStatistics, dict[int, str]]:
    """Return what follows from the statistics of all devices, and the ranks that were left out, with the reasons.

    `firsts`: the registration and the first statistics of each rank. They are added in the order of ids, as clients are
    numbered. A rank without a right answer within `wait` seconds is left out, and the others are asked anew.

    Raises:
        SettingError: tables differ in their columns, a column has too many words, or ranks are lost again and again.
    """
    out = dict[int, str]()
    for _ in range(_TRIES):
        ranks = sorted(firsts.keys() - out.keys(), key=lambda rank: firsts[rank][0].id)
        if not ranks:
            return CommonStatistics(), out
        said = [(device.label, first) for device, first in map(firsts.__getitem__, ranks)]
        own = aligned(said)
        rows = sum(each.rows for each in own)
        means = _means([each.targets for each in own], rows)
        summaries = [each.summary for each in own if each.summary is not None]
        least_clients = own[0].least_clients if own[0].text is None else own[0].text.how.least_clients
        _check_enough(least_clients, len(own))
        common = Summary.added(summaries, least_clients) if summaries else Summary(rows, {}, {})
        _check_words(common)
        totals = CommonTotals(common.numbers, () if means is None else means)
        answers = fleet.converse(dict.fromkeys(ranks, to_bytes({"common": totals.described()})), wait)
        seconds = dict[int, SecondStatistics]()
        for rank, first in zip(ranks, own, strict=True):
            try:
                if rank not in answers:
                    raise RefusedError(
                        f"it has not counted its columns within {0 if wait is None else wait:g} s, or is gone: start "
                        "it again for the next run"
                    )
                seconds[rank] = SecondStatistics.read(_parsed(answers[rank]), first, totals)
            except RefusedError as error:
                out[rank] = str(error)
                fleet.audit("refused", firsts[rank][0].id, out[rank])
        if len(seconds) == len(ranks):
            return _followed(own, common, [*seconds.values()], means, _lacking(said, common)), out
    raise SettingError(
        f"statistics are of the same devices in both exchanges, got another device lost in each of {_TRIES}: start "
        "the devices again; the audit log has the reasons"
    )


def _means(sums: Sequence[tuple[float, ...] | None], rows: int) -> tuple[float, ...] | None:
    given = [np.array(each) for each in sums if each is not None]
    return tuple(map(float, mean_in_order(given, rows))) if given else None


def _followed(
    firsts: Sequence[FirstStatistics],
    common: Summary,
    seconds: Sequence[SecondStatistics],
    means: tuple[float, ...] | None,
    lacking: tuple[str, ...],
) -> CommonStatistics:
    """Return what follows from the statistics of both exchanges, in the order of clients."""
    preparation = moments = None
    if texts := [each.text for each in firsts if each.text is not None]:
        try:
            preparation = texts[0].how.agree([dict(each.counts) for each in texts]).described()
        except ValueError as error:
            raise SettingError(str(error)) from None
    if firsts[0].summary is not None:
        spreads = {name: Spread.added([each.numbers[name] for each in seconds]) for name in common.numbers}
        least_clients, columns = firsts[0].least_clients, firsts[0].columns
        how = CommonPreparation(firsts[0].least, least_clients=least_clients, columns=columns, lacking=lacking)
        preparation = how.of(common, spreads).described()
    if preparation is not None:
        try:
            to_bytes(preparation)
        except RefusedError as error:
            raise SettingError(f"a preparation travels to each device in one message, and {error}") from None
    rows = sum(each.rows for each in firsts)
    if means is not None:
        deviations = np.sqrt(mean_in_order([np.array(each.targets) for each in seconds], rows))
        moments = {"mean": [*means], "deviation": deviations.tolist()}
    return CommonStatistics(preparation, moments)


def aligned(firsts: Sequence[tuple[str, FirstStatistics]]) -> list[FirstStatistics]:
    """Return the statistics of devices, by id and name, with their columns in the order of the first device.

    A column without a value on a device is there of numbers or of words as on the others, and so is one of a union that
    a device lacks.

    Raises:
        SettingError: tables are not prepared alike, or differ in their columns or in what these hold.
    """
    of = {id: first.summary for id, first in firsts if first.summary is not None}
    _check_texts(firsts)
    if not of:
        return [first for _, first in firsts]
    if lacks := [id for id, first in firsts if first.summary is None]:
        raise SettingError(
            f"all tables or none are prepared by common statistics, got {next(iter(of))} with them and {lacks[0]} "
            "without: name all with prepare=federated"
        )
    first_id = firsts[0][0]
    for id, first in firsts:
        for rule in ("least", "least_clients", "columns"):
            if (theirs := getattr(first, rule)) != (ours := getattr(firsts[0][1], rule)):
                raise SettingError(
                    f"all devices leave out words and columns by the same rule, got {rule}={ours} on {first_id} and "
                    f"{rule}={theirs} on {id}: name the same"
                )
    schemas = [_schema(id, summary) for id, summary in of.items()]
    columns = _columns_of(schemas, firsts[0][1].columns)
    if (told := not_alike(schemas, [*columns])) is not None:
        raise SettingError(told)
    kinds = {name: "numbers" if name in one.numbers else "words"
             for one in reversed(of.values()) for name in (*one.numbers, *one.words)}  # fmt: skip
    kinds |= {name: kind for schema in schemas for name, (kind, _) in schema.holds.items()}
    numbers_first = dict.fromkeys(name for one in of.values() for name in (*one.numbers, *one.words))
    words_first = dict.fromkeys(name for one in of.values() for name in (*one.words, *one.numbers))
    numbers = [name for name in numbers_first if name in columns and kinds[name] == "numbers"]
    words = [name for name in words_first if name in columns and kinds[name] == "words"]
    return [
        dataclasses.replace(first, summary=_with_columns(of[id], numbers, words, first.least)) for id, first in firsts
    ]


def _columns_of(schemas: Sequence[Schema], unlike: UnlikeColumns | None) -> dict[str, None]:
    """Return the columns that are prepared, in the order of devices, of tables that may differ in them.

    Raises:
        SettingError: they differ where they may not, have none in common, or too many together.
    """
    if unlike is None:
        for schema in schemas[1:]:
            if (told := schema.lacks_of(schemas[0])) is not None:
                raise SettingError(told)
    together = dict.fromkeys(name for schema in schemas for name in schema.columns)
    if unlike == "union":
        try:
            check_columns([*together])
        except RefusedError as error:
            raise SettingError(f"columns=union takes the columns of all devices, and {error}") from None
        return together
    all_have = set.intersection(*({*schema.columns} for schema in schemas))
    if unlike == "shared" and not all_have:
        raise SettingError(
            f"columns=shared takes the columns that all devices have, got none of {len(together)}: call them alike on "
            "all devices (dictionary=FILE), or name columns=union on them"
        )
    return {name: None for name in together if name in all_have}


def _lacking(firsts: Sequence[tuple[str, FirstStatistics]], common: Summary) -> tuple[str, ...]:
    """Return the columns of a union that some devices lack."""
    each = [{*own.summary.numbers, *own.summary.words} for _, own in firsts if own.summary and own.columns == "union"]
    return tuple(name for name in (*common.numbers, *common.words) if not all(name in names for names in each))


def _check_texts(firsts: Sequence[tuple[str, FirstStatistics]]) -> None:
    """Raise SettingError where some devices count tokens and others none, or they make them in another way."""
    how = {id: None if first.text is None else first.text.how for id, first in firsts}
    first_id, first = next(iter(how.items()))
    for id, theirs in how.items():
        if theirs != first:
            one, other = (
                "none"
                if each is None
                else f"text={each.column:.80}&tokens={each.tokens}&length={each.length}&most="
                f"{each.most}&least={each.least}&least_clients={each.least_clients}"
                for each in (first, theirs)
            )
            raise SettingError(
                f"all devices count the tokens of one column of texts alike or none, got {one} on {first_id} and "
                f"{other} on {id}: name the same"
            )


def _schema(id: str, summary: Summary) -> Schema:
    """Return the columns of a device; what one holds is known where it has a value."""
    numbers = [name for name, total in summary.numbers.items() if total.count]
    words = [name for name in summary.words if not _is_empty(summary, name)]
    holds = dict.fromkeys(numbers, ("numbers", "")) | dict.fromkeys(words, ("words", ""))
    return Schema(f"on {id}", (*summary.numbers, *summary.words), holds=holds)


def _is_empty(summary: Summary, name: str) -> bool:
    return summary.words[name] == {GAP: summary.rows}


def _with_columns(summary: Summary, numbers: Sequence[str], words: Sequence[str], least: int) -> Summary:
    nothing, gaps = Total(0, 0.0, math.inf, -math.inf), {GAP: summary.rows} if summary.rows >= least else {}
    return Summary(
        summary.rows,
        {name: summary.numbers.get(name, nothing) for name in numbers},
        {name: summary.words.get(name, gaps) for name in words},
    )


def _check_enough(least_clients: int, devices: int) -> None:
    try:
        check_least_clients(least_clients, devices)
    except ValueError as error:
        raise SettingError(str(error)) from None


def _check_words(common: Summary) -> None:
    for name, counts in common.words.items():
        if len(counts.keys() - {GAP}) > (most := most_words(common.rows)):
            raise SettingError(
                f"columns of features must be numbers, or a few different words, got {name!r:.80} with {len(counts):,} "
                f"on all devices, more than {most:,}: leave it out on all of them (drop={name:.80})"
            )


def _parsed(data: bytes) -> Any:
    try:
        return parse(data, MAX_BYTES).get("spread")
    except ValueError as error:
        raise RefusedError(f"its counts of columns are no message: {error!s:.80}") from None
