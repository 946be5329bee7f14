"""Who is under way, who comes and who starts: small timetables by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from fedloom.virtual_time.unwaited_versions import Ends, Events, UnderWay, Version, _read, _saved


class There:
    """Everybody is always there, but for some who are away up to a moment."""

    def __init__(self, until: Mapping[int, float] | None = None) -> None:
        self.until = until or {}

    def back(self, client: int, at: float) -> float:
        return max(at, self.until.get(client, 0.0))


def since(version: Version) -> dict[int, int]:
    """The version that each of the answers started from."""
    return {k: one.version for k, one in version.arrivals.items()}


def versions(ends: Ends, seconds: Mapping[int, float], places: int, count: int, clock: Any = None) -> list[Version]:
    """The first versions of a run whose clients start in the order of their numbers."""
    events = Events(ends, places, clock or There(), lambda client, version: seconds[client])
    found, under_way, now = list[Version](), dict[int, UnderWay](), 0.0
    for number in range(count):
        found.append(events.version(number, under_way, now, iter(seconds)))
        under_way, now = dict(found[-1].left), found[-1].now
    return found


def test_the_model_moves_when_enough_have_answered_and_others_start_in_free_places() -> None:
    """0 needs 1 s, 1 needs 4 s, 2 needs 2 s, 3 needs 9 s; two are under way, and two answers make a version.

    0 and 1 start. At 1 s comes 0, so 2 starts from version 0, and comes at 3 s: version 1 is of 0 and 2. Then 0 starts
    again, and comes at 4 s with 1, which has the age 1.
    """
    one, two = versions(Ends(size=2), {0: 1.0, 1: 4.0, 2: 2.0, 3: 9.0}, 2, 2)
    assert (one.started, since(one), one.now) == ((0, 1, 2), {0: 0, 2: 0}, 3.0)
    assert one.left == {1: UnderWay(0, 4.0, 0)}
    assert (two.started, since(two), two.now) == ((0,), {0: 1, 1: 0}, 4.0)
    assert two.ages == [0, 1]


def test_at_one_moment_answers_come_before_the_model_moves_and_clients_start_after_it() -> None:
    """Where all are equally fast, versions are rounds that wait: nobody starts from an old version at its end."""
    one, two = versions(Ends(size=2), dict.fromkeys(range(4), 1.0), 2, 2)
    assert (one.started, since(one), one.left) == ((0, 1), {0: 0, 1: 0}, {})
    assert (two.started, since(two), two.now) == ((0, 1), {0: 1, 1: 1}, 2.0)


def test_of_more_than_enough_at_one_moment_the_others_make_the_next_version_at_once() -> None:
    one, two = versions(Ends(size=2), dict.fromkeys(range(3), 1.0), 3, 2)
    assert (since(one), one.now) == ({0: 0, 1: 0}, 1.0)
    assert (two.started, since(two), two.now) == ((0, 1), {0: 1, 2: 0}, 2.0)


def test_more_than_enough_come_in_the_order_of_their_moments() -> None:
    """1 and 2 wait from 1 s and 0.5 s on for a version that ends at 9 s, and one answer makes the next."""
    clock = There()
    events = Events(Ends(size=1), 3, clock, lambda client, version: 5.0)
    under_way = {0: UnderWay(0, 3.0, 0), 1: UnderWay(0, 1.0, 1), 2: UnderWay(0, 0.5, 2)}
    found = events.version(3, under_way, 9.0, iter(range(3)))
    assert (since(found), found.now) == ({2: 0}, 9.0)


def test_a_client_starts_once_from_a_version_even_where_places_are_free() -> None:
    """Of two clients, 0 comes ten times while 1 computes: it waits in the buffer of three for a version."""
    (one,) = versions(Ends(size=2), {0: 1.0, 1: 10.0}, 2, 1)
    assert (one.started, since(one), one.now) == ((0, 1), {0: 0, 1: 0}, 10.0)


def test_with_a_deadline_what_has_come_counts_and_the_others_count_later() -> None:
    one, two, three = versions(Ends(seconds=3.0), {0: 1.0, 1: 2.5, 2: 4.0, 3: 7.0}, 4, 3)
    assert (one.started, since(one), one.now) == ((0, 1, 2, 3), {0: 0, 1: 0}, 3.0)
    assert (two.started, since(two), two.now) == ((0, 1), {0: 1, 1: 1, 2: 0}, 6.0)
    assert (three.started, since(three)) == ((0, 1, 2), {0: 2, 1: 2, 3: 0})
    assert three.ages == [0, 0, 2]


def test_a_round_with_a_deadline_ends_when_all_are_there_and_not_before_anybody_is() -> None:
    early, late = versions(Ends(seconds=5.0), {0: 1.0, 1: 2.0}, 2, 1), versions(Ends(seconds=5.0), {0: 8.0}, 1, 1)
    assert (since(early[0]), early[0].now) == ({0: 0, 1: 0}, 2.0)
    assert (since(late[0]), late[0].now) == ({0: 0}, 8.0)
    (just,) = versions(Ends(seconds=5.0), {0: 1.0, 1: 5.0, 2: 6.0}, 3, 1)
    assert since(just) == {0: 0, 1: 0}


def test_who_is_absent_does_not_start_and_answers_when_it_is_back() -> None:
    """0 is back at 5 s; 1 would come at 3 s, and is away up to 4 s from the beginning of its training on."""

    class Leaving(There):
        def back(self, client: int, at: float) -> float:
            return 4.0 if client == 1 and 1.0 <= at < 4.0 else super().back(client, at)

    one, two = versions(Ends(size=1), {0: 1.0, 1: 3.0}, 2, 2, Leaving({0: 5.0}))
    assert (one.started, since(one), one.now) == ((1,), {1: 0}, 4.0)
    assert (two.started, two.now) == ((1,), 7.0)


def test_where_all_are_absent_time_goes_on_to_the_first_who_is_back() -> None:
    (one,) = versions(Ends(size=2), {0: 1.0, 1: 1.0}, 2, 1, There({0: 9.0, 1: 5.0}))
    assert (one.started, since(one), one.now) == ((1, 0), {0: 0, 1: 0}, 10.0)
    (never,) = versions(Ends(size=1), {0: 1.0}, 1, 1, There({0: math.inf}))
    assert never.arrivals == {}


def test_a_version_is_of_fewer_answers_where_nobody_else_can_come() -> None:
    (one,) = versions(Ends(size=3), {0: 1.0, 1: 2.0}, 2, 1)
    assert (since(one), one.now) == ({0: 0, 1: 0}, 2.0)


@pytest.mark.parametrize("under_way", [{}, {4: UnderWay(1, 2.5, 0), 2: UnderWay(0, 0.1 + 0.2, 2)}])
def test_who_is_under_way_is_saved_to_the_bit_in_a_fixed_shape(under_way: dict[int, UnderWay]) -> None:
    saved = _saved(under_way, 1 / 3, 3)
    assert {name: tuple(t.shape) for name, t in saved.items()} == {
        "clients": (3,),
        "since": (3,),
        "due": (3,),
        "now": (),
    }
    assert _read(saved) == (under_way, 1 / 3)
