"""Vocabularies that clients count, token ids of texts, and tokenisers of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedloom.tables.vocabulary import (
    TextPreparation,
    Vocabulary,
    agreed,
    counted,
    narrow,
    padded,
    tokens_of,
)


def frame(*texts: Any) -> pd.DataFrame:
    return pd.DataFrame({"note": pd.Series(texts, dtype=object)})


def test_tokens_of_a_text() -> None:
    assert tokens_of("The Cat's 2 mats.", "words") == ["the", "cat", "'", "s", "2", "mats", "."]
    assert tokens_of("Größe!", "words") == ["größe", "!"]
    assert tokens_of("A b", "characters") == ["A", " ", "b"]


def test_counts_are_added_and_ties_stand_in_the_order_of_characters() -> None:
    clients = [{"b": 2, "c": 3}, {"a": 3}, {"z": 1}]
    assert agreed("words", clients, 10).tokens == ("a", "c", "b", "z")
    assert agreed("words", clients[::-1], 10).tokens == ("a", "c", "b", "z")
    assert agreed("words", clients, 2).tokens == ("a", "c")


def test_a_client_names_no_rare_token() -> None:
    texts = [["a", "b"], ["a", "c"], ["b"]]
    assert counted(texts, 1) == {"a": 2, "b": 2, "c": 1}
    assert counted(texts, 2) == {"a": 2, "b": 2}


def test_a_token_that_two_windows_share_counts_once() -> None:
    """The last token of a window is the first of the next, or the target of its last place."""
    windows = frame(("a", "b", "c"), ("c", "a", "b"))
    assert TextPreparation("note").counts(windows) == {"a": 2, "b": 1, "c": 1}
    assert TextPreparation("note").counts(frame("a b c", "c a")) == {"a": 2, "b": 1, "c": 2}


def test_a_token_that_each_client_has_once_is_withheld_by_all() -> None:
    """`least` is a rule of each client: that all together have a token often does not name it."""
    clients = [frame("x secret x"), frame("x secret x")]
    assert TextPreparation("note", least=2).fit(clients).vocabulary == Vocabulary("words", ("x",))
    assert TextPreparation("note").fit(clients).vocabulary == Vocabulary("words", ("x", "secret"))


def test_a_token_that_too_few_clients_have_is_left_out() -> None:
    """A client that claims huge counts adds no token, and does not put its own first."""
    honest = [{"x": 5, "y": 3}, {"x": 4, "y": 3}, {"x": 1, "y": 2, "z": 30}]
    liar = {"y": 1 << 39} | {f"invented{i}": 1 << 39 for i in range(10)}
    assert agreed("words", [liar, *honest], 3).tokens == ("y", "invented0", "invented1")
    assert agreed("words", [liar, *honest], 3, 2).tokens == ("y", "x")  # y counts 3 + 3 + 3 + 2, x 4 + 4 + 1
    assert agreed("words", [liar | {"y": 1}, *honest], 3, 2).tokens == ("x", "y")


def test_how_many_clients_must_have_a_token_is_described() -> None:
    clients = [frame("a b a"), frame("a c"), frame("b a a")]
    made = TextPreparation("note", least_clients=2).fit(clients)
    assert made.vocabulary == Vocabulary("words", ("a", "b"))
    assert made.described()["least_clients"] == 2
    assert TextPreparation.read(made.described()) == made
    usual = TextPreparation("note").fit(clients)
    assert "least_clients" not in usual.described()
    assert TextPreparation.read(usual.described()) == usual
    assert made.digest() != TextPreparation("note").agree([{"a": 2, "b": 1}]).digest()  # of the same tokens


def test_ids_are_padded_cut_and_unknown() -> None:
    made = TextPreparation("note", length=4).fit([frame("a a b")])
    x = made.transform(frame("b a", "a c a a a", "", np.nan))
    assert x.tolist() == [[3, 2, 0, 0], [2, 1, 2, 2], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert x.dtype == np.uint8
    assert (made.size, made.padding) == (4, 0)


def test_ids_are_stored_in_the_smallest_type() -> None:
    ids = np.array([[1]])
    assert [narrow(ids, n).dtype for n in (256, 257, 2**15, 2**15 + 1)] == [np.uint8, np.int16, np.int16, np.int32]
    assert padded([[1, 2, 3], [4]], 2, 9).tolist() == [[1, 2], [4, 9]]


def test_a_vocabulary_writes_what_it_has_read() -> None:
    characters = Vocabulary("characters", tuple("abc "))
    assert characters.written(characters.read("cab ab")) == "cab ab"
    assert characters.written([*characters.read("ax"), 0]) == "a�"
    assert Vocabulary("words", ("a", "cat")).written([3, 2]) == "cat a"


def test_a_description_makes_the_same_ids() -> None:
    made = TextPreparation("note", "characters", 5, 3, 2).fit([frame("abcabcdd")])
    again = TextPreparation.read(made.described())
    assert again == made
    assert again.digest() == made.digest() != TextPreparation("note", "characters", 5, 3, 2).digest()
    assert made.told() == "up to 5 characters, 3 with ids of their own: 'a', 'b', 'c'"


class Tokeniser:
    """As somebody has one: three ids, padding is the last."""

    size, padding = 3, 2

    def __call__(self, text: str) -> list[int]:
        return [len(word) % 2 for word in text.split()]


class Encoder:
    """As Hugging Face has them."""

    pad_token_id = None

    def __len__(self) -> int:
        return 300

    def encode(self, text: str) -> list[int]:
        return [299] * len(text)


def test_a_tokeniser_of_ones_own() -> None:
    made = TextPreparation("note", Tokeniser(), 4).fit([frame("never counted")])
    assert made.vocabulary is None
    assert made.transform(frame("a bb", "ccc")).tolist() == [[1, 0, 2, 2], [1, 2, 2, 2]]
    encoded = TextPreparation("note", Encoder(), 3)  # type: ignore[arg-type]
    assert encoded.transform(frame("ab")).tolist() == [[299, 299, 0]]
    assert made.described() == {"column": "note", "tokens": "own", "length": 4, "size": 3}
    with pytest.raises(ValueError, match="make the TextPreparation with that tokeniser"):
        TextPreparation.read(made.described())


class Wrong(Tokeniser):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, text: str) -> Any:
        return self.answer


def sizeless(text: str) -> list[int]:
    return [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TextPreparation("note", "letters"),
            "are 'words' or 'characters', or a tokeniser as module:name",
        ),
        (lambda: TextPreparation("note", length=0), "length of a text is a whole number from 1, got 0: length=128"),
        (lambda: TextPreparation("note", most=2.5), "most of a text is a whole number from 1, got 2.5: most=10000"),
        (lambda: TextPreparation("note", least=0), "least of a text is a whole number from 1, got 0: least=1"),
        (lambda: TextPreparation("note", 7), "a tokeniser is a function of a text that returns ids, got int"),
        (
            lambda: TextPreparation("note", sizeless),
            "many ids it has, padding among them, got none of sizeless",
        ),
        (lambda: TextPreparation("note", Tokeniser(), least=5), "got least=5 beside it: leave least out"),
        (lambda: TextPreparation("note", least_clients=0), "least_clients is a whole number from 1, got 0: 2 keeps"),
        (lambda: TextPreparation("note", Tokeniser(), least_clients=2), "least_clients=2 beside it: leave least_cli"),
        (
            lambda: TextPreparation("note", least=2, least_clients=2).fit([frame("a a"), frame("b b")]),
            "needs tokens that occur at least 2 times at a client and that at least 2 clients have, got none in the "
            "training texts of 'note': name another column (text=NAME) or a smaller least or a smaller least_clients",
        ),
        (lambda: TextPreparation("note").fit([frame("", np.nan)]), "got none in the training texts of 'note'"),
        (lambda: TextPreparation("note", least=3).fit([frame("a b a")]), "at least 3 times at a client, got none"),
        (
            lambda: TextPreparation("note", Wrong([5])).transform(frame("ab")),
            "a tokeniser's ids are 0 to 2 by its size, got 5 for 'ab'",
        ),
        (
            lambda: TextPreparation("note", Wrong("ab")).transform(frame("ab")),
            "a list of ids, got str for 'ab'",
        ),
        (lambda: TextPreparation("note", Wrong([])).transform(frame("ab")), "an id at least, got none for 'ab'"),
        (lambda: Vocabulary("words", ("a", "b", "a")), "a vocabulary has each token once, got 'a' twice"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        make()
    assert message in str(error.value)
