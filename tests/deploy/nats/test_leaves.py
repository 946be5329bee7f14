"""Leave to send: as much as there is room for comes at a time, and who does not use it holds nobody up."""

from __future__ import annotations

from collections.abc import Callable

from fedloom.deploy.nats.leaves import Leaves


def asking(most: int) -> tuple[Leaves, list[int], Callable[[int, int], bool], list[float]]:
    """Leaves, the ranks that have one, a question, and the time."""
    now, given = [0.0], list[int]()
    leaves = Leaves(most, 30.0, lambda: now[0])
    return leaves, given, lambda rank, size: leaves.ask(rank, size, lambda: given.append(rank)), now


def test_as_much_as_there_is_room_for_comes_at_a_time_in_order() -> None:
    leaves, given, ask, _ = asking(10)
    for rank in (3, 1, 2, 4):
        assert ask(rank, 4)
    assert (given, leaves.held) == ([3, 1], 8)
    leaves.arrived(3)
    assert given == [3, 1]  # it has come, and waits to be taken
    leaves.free(3)
    assert (given, leaves.held) == ([3, 1, 2], 8)
    leaves.free(1)
    leaves.free(2)
    assert (given, leaves.held) == ([3, 1, 2, 4], 4)


def test_an_answer_larger_than_the_room_comes_alone() -> None:
    leaves, given, ask, _ = asking(10)
    for rank in (1, 2):
        ask(rank, 50)
    assert given == [1]
    leaves.free(1)
    assert given == [1, 2]


def test_who_is_gone_or_does_not_use_its_leave_holds_nobody_up() -> None:
    leaves, given, ask, now = asking(10)
    for rank in (1, 2, 3, 4):
        ask(rank, 9)
    leaves.free(2)  # it is gone while it waits
    now[0] = 29.0
    leaves.look()
    assert given == [1]
    now[0] = 30.0
    leaves.look()
    assert given == [1, 3]
    leaves.arrived(3)
    now[0] = 90.0
    leaves.look()
    assert given == [1, 3]


def test_one_device_has_one_leave_at_a_time() -> None:
    """Who asks again and again costs no memory, and is told from those that ask once."""
    leaves, given, ask, _ = asking(10)
    assert [ask(1, 9), ask(1, 9), ask(2, 9), ask(2, 9)] == [True, False, True, False]
    leaves.free(1)
    leaves.free(2)
    assert (given, leaves.held) == ([1, 2], 0)
