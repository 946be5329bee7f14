"""A client tells nobody more than the protocol does, whatever a server asks."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import RefusedError
from fedloom.privacy import masked_client, masked_server
from fedloom.privacy.masked_terms import ENTRY, Terms

TERMS = Terms.of(bytes(range(16)), 3, 32, 5)  # all mask with the four others, of whom 3 must stay
NUMBERS = np.arange(3, dtype=np.uint32)


def advertised() -> tuple[dict[int, Any], Any, Any]:
    made = {k: masked_client.advertise(TERMS, k) for k in range(5)}
    introduced, sent = masked_server.introduce(TERMS, {k: message for k, (_, message) in made.items()})
    return {k: state for k, (state, _) in made.items()}, introduced, sent


def shared() -> tuple[dict[int, Any], Any, Any]:
    states, introduced, sent = advertised()
    made = {k: masked_client.share(states[k], sent[k]) for k in states}
    return (
        {k: s for k, (s, _) in made.items()},
        introduced,
        masked_server.forward(introduced, {k: m for k, (_, m) in made.items()}),
    )


def masked() -> Any:
    states, _, sent = shared()
    return masked_client.mask(states[0], sent[0], NUMBERS)[0]


def named(there: list[int], gone: list[int]) -> bytes:
    return struct.pack(f"<{1 + len(there) + len(gone)}I", len(there), *there, *gone)


@pytest.mark.parametrize(
    ("there", "gone", "why"),
    [
        ([1, 2, 3, 4], [4], "both secrets of a client would show its numbers"),
        ([1, 2, 3, 3], [], "both secrets"),
        ([1, 2, 3, 0], [], "clients that are no neighbours"),
        ([1, 2, 3], [9], "clients that are no neighbours"),
        ([1, 2], [3, 4], "3 neighbours must stay, and 2 are said to be there"),
        ([], [], "3 neighbours must stay, and 0 are said to be there"),
    ],
)
def test_a_server_that_asks_for_too_much_gets_nothing(there: list[int], gone: list[int], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        masked_client.unmask(masked(), named(there, gone))


def test_what_is_asked_for_is_sent_and_no_more() -> None:
    state = masked()
    sent = masked_client.unmask(state, named([1, 2, 3], [4]))
    assert sent == b"".join([state.shares[1][1], state.shares[2][1], state.shares[3][1], state.shares[4][0]])


@pytest.mark.parametrize("message", [b"", b"\0", b"\0\0\0\0\0"])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(RefusedError, match="neighbours are named by 4 bytes each, got"):
        masked_client.unmask(masked(), message)


def test_too_few_neighbours_are_refused() -> None:
    """A server that introduces a client to two others alone could be told by them what hides its numbers."""
    states, _, sent = advertised()
    entry = ENTRY
    for wrong in (sent[0][: 2 * entry], sent[0] + sent[0][:entry], sent[1], b""):
        with pytest.raises(RefusedError, match="a client has 3 to 4 neighbours other than itself, got"):
            masked_client.share(states[0], wrong)
    with pytest.raises(RefusedError, match="keys of neighbours are 68 bytes each, got 5 bytes"):
        masked_client.share(states[0], b"12345")


def test_a_key_that_is_none_is_refused() -> None:
    states, _, sent = advertised()
    with pytest.raises(RefusedError, match="a public key is none with which a secret can be agreed on"):
        masked_client.share(states[0], sent[0][:4] + bytes(32) + sent[0][36:])


def test_shares_of_another_client_or_sum_are_refused() -> None:
    """Among them those that the client has itself sealed for the neighbour whose they are said to be."""
    states, _, sent = shared()
    size = len(sent[0]) // 4
    swapped = sent[0][:4] + sent[0][size + 4 : 2 * size] + sent[0][size:]
    for wrong, why in (
        (sent[0][:4] + sent[1][4:size] + sent[0][size:], "the shares of client 1 were not sealed by it for client 0"),
        (swapped, "the shares of client 1 were not sealed by it for client 0"),
        (sent[1], "client 0 is no neighbour, or is there twice"),
        (sent[0] + sent[0][:size], "client 1 is no neighbour, or is there twice"),
        (sent[0][: 2 * size], "3 neighbours must stay, and 2 are there"),
        (sent[0][:-1], "sealed shares are 54 bytes each"),
        (shared()[2][0], "were not sealed by it for client 0"),
    ):
        with pytest.raises(RefusedError, match=why):
            masked_client.mask(states[0], wrong, NUMBERS)


@pytest.mark.parametrize("numbers", [np.arange(4, dtype=np.uint32), np.arange(3, dtype=np.uint64)])
def test_other_words_than_the_terms_say_are_a_defect(numbers: Any) -> None:
    states, _, sent = shared()
    with pytest.raises(ValueError, match="3 words of 32 bits are added, got"):
        masked_client.mask(states[0], sent[0], numbers)


def test_secrets_are_in_no_text() -> None:
    """What is kept may come into a message of an error or a log by its repr."""
    state = advertised()[0][0]
    for one in (state, shared()[0][0], masked()):
        assert "bytes" not in repr(one)
        assert "seed" not in repr(one)
