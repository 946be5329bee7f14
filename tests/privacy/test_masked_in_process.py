"""A masked sum is exact whoever is lost at whichever message, or there is none; no message shows single numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedloom.core.errors import NobodyAnswered, RefusedError
from fedloom.privacy.masked_in_process import masked_sum
from fedloom.privacy.masked_terms import bytes_beside, graph_of

STAGES = ("advertise", "share", "mask", "unmask")


def vectors(clients: int, words: int = 7, bits: int = 32, seed: int = 0) -> dict[int, Any]:
    rng = np.random.default_rng(seed)
    return {5 * k + 1: rng.integers(0, 2**bits, words, dtype=f"u{bits // 8}") for k in range(clients)}


def plain(numbers: Mapping[int, Any], among: Any) -> Any:
    return sum((numbers[k] for k in among), np.zeros_like(next(iter(numbers.values()))))


def losing(lost: Mapping[int, str]) -> Any:
    """A network on which each of these clients vanishes at this message: before it comes, or before it answers."""
    order = {f"{way} {stage}": i for i, stage in enumerate(STAGES) for way in ("up", "down")}

    def watch(message: str, client: int, content: bytes) -> bytes | None:
        at = lost.get(client)
        late = at is not None and order[message] >= STAGES.index(at) and (message != f"down {at}" or client % 2 == 0)
        return None if late else content

    return watch


@given(st.integers(3, 9), st.sampled_from((32, 64)), st.data())
@settings(max_examples=60, deadline=None)
def test_whoever_is_lost_the_sum_is_exact_or_there_is_none(clients: int, bits: int, data: st.DataObject) -> None:
    numbers = vectors(clients, bits=bits)
    at = data.draw(st.lists(st.sampled_from((None, *STAGES)), min_size=clients, max_size=clients))
    lost = {k: stage for k, stage in zip(numbers, at, strict=True) if stage}
    there = [k for k in numbers if lost.get(k) in (None, "unmask")]
    t = (clients - 1) // 2 + 1  # of all other clients
    needed = {k for k in numbers if lost.get(k) not in ("advertise", "share")}
    enough = all(len([j for j in numbers if j not in lost and j != k]) >= t for k in needed) and len(there) >= 3
    try:
        total = masked_sum(numbers, watch=losing(lost))
    except NobodyAnswered:
        assert not enough
    else:
        assert enough
        assert np.array_equal(total, plain(numbers, there))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("neighbours", [None, 6])
def test_two_of_nine_are_lost(stage: str, neighbours: int | None) -> None:
    numbers, lost = vectors(9), {6: stage, 41: stage}
    total = masked_sum(numbers, neighbours=neighbours, watch=losing(lost))
    assert np.array_equal(total, plain(numbers, [k for k in numbers if k not in lost or stage == "unmask"]))


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.4))
@settings(max_examples=15, deadline=None)
def test_neighbours_alone_give_the_same(seed: int, share: float) -> None:
    numbers, rng = vectors(24, 3), np.random.default_rng(seed)
    lost = {k: str(rng.choice(STAGES)) for k in numbers if rng.random() < share}
    there = [k for k in numbers if lost.get(k) in (None, "unmask")]
    try:
        total = masked_sum(numbers, neighbours=8, watch=losing(lost))
    except NobodyAnswered:
        assert lost
    else:
        assert np.array_equal(total, plain(numbers, there))


def test_the_sum_does_not_depend_on_secrets() -> None:
    numbers = vectors(5)
    assert np.array_equal(masked_sum(numbers), masked_sum(numbers))


def test_no_message_shows_what_one_client_has() -> None:
    """Neither its numbers nor any of their words, nor a mask twice: what is sent is new each time."""
    numbers = {k: np.full(64, 0x01020304 + k, np.uint32) for k in range(6)}
    seen: list[tuple[str, int, bytes]] = []

    def watch(message: str, client: int, content: bytes) -> bytes:
        seen.append((message, client, content))
        return content

    masked_sum(numbers, watch=watch)
    masked_sum(numbers, watch=watch)
    everything = b"|".join(content for _, _, content in seen)
    for one in numbers.values():
        assert one.tobytes()[:4] not in everything
        assert one.tobytes()[:4][::-1] not in everything
    sent = [np.frombuffer(content, np.uint32) for message, _, content in seen if message == "up mask"]
    assert len(sent) == 12
    assert all(len(set(one.tolist())) == 64 for one in sent)
    assert len({tuple(one.tolist()) for one in sent}) == 12


def test_masked_words_are_spread_evenly() -> None:
    """Of zeros in 200,000 words each byte is as frequent as any other: chi-square of 255 degrees below 400."""
    sent: list[bytes] = []
    masked_sum(
        {k: np.zeros(50_000, np.uint32) for k in range(4)},
        watch=lambda message, client, content: sent.append(content) or content if message == "up mask" else content,
    )
    counts = np.bincount(np.frombuffer(b"".join(sent), np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400


@pytest.mark.parametrize("message", [f"{way} {stage}" for stage in STAGES for way in ("up", "down")][1:])
@pytest.mark.parametrize("change", ["cut", "longer", "empty"])
def test_a_damaged_message_is_that_of_a_client_that_is_lost(message: str, change: str) -> None:
    numbers = vectors(6)
    if message == "down advertise":
        return

    def watch(name: str, client: int, content: bytes) -> bytes:
        if (name, client) != (message, 1):
            return content
        return {"cut": content[:-1], "longer": content + b"\0", "empty": b""}[change]

    total = masked_sum(numbers, watch=watch)
    there = [k for k in numbers if k != 1 or message in ("up unmask", "down unmask")]
    assert np.array_equal(total, plain(numbers, there))


@pytest.mark.parametrize("lost", [{}, {26: "mask"}])
def test_a_false_share_gives_no_sum(lost: dict[int, str]) -> None:
    """A client that sends another share than it was given would make the sum wrong: it is refused."""
    numbers, drop = vectors(6), losing(lost)

    def watch(message: str, client: int, content: bytes) -> bytes | None:
        if (message, client) == ("up unmask", 1):
            content = bytes(255 - b for b in content)
        return drop(message, client, content)  # type: ignore[no-any-return]

    with pytest.raises(RefusedError, match="do not give its secret: some client has sent another share"):
        masked_sum(numbers, watch=watch)


def test_parts_that_no_mask_joins_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ring of which two opposite stretches are lost, the sums of what is between would show."""
    numbers = {k: np.ones(1, np.uint32) for k in range(20)}
    monkeypatch.setattr("fedloom.privacy.masked_server.SystemRandom.shuffle", lambda self, order: order.sort())
    monkeypatch.setattr("fedloom.privacy.masked_server._enough", lambda *of: None)
    graph = graph_of(range(20), 4)
    assert graph[0] == (1, 2, 18, 19)
    lost = dict.fromkeys((4, 5, 14, 15), "mask")
    with pytest.raises(NobodyAnswered, match="in parts that no mask joins, whose sums would show"):
        masked_sum(numbers, neighbours=4, watch=losing(lost))


@pytest.mark.parametrize("clients", [3, 10, pytest.param(60, marks=pytest.mark.slow)])
def test_bytes_beside_the_numbers(clients: int) -> None:
    sent = dict.fromkeys(("up", "down"), 0)

    def watch(message: str, client: int, content: bytes) -> bytes:
        way, stage = message.split()
        sent[way] += len(content) * (client == 1 and (way, stage) != ("up", "mask"))
        return content

    masked_sum(vectors(clients), watch=watch)
    assert (sent["up"], sent["down"]) == bytes_beside(clients)
