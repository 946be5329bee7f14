"""JSON is read as it was written, or refused with what is wrong with it."""

from __future__ import annotations

import pytest

from fedloom.storage.strict_json import parse, pretty

DEEP = b'{"a": %s}'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[1]", r"a JSON object is needed, got \[1\]"),
        (b'{"a": 1, "a": 2}', "names must be unique, got 'a' twice"),
        (b'{"a": NaN}', "numbers must be finite, got NaN"),
        (b'{"a": 1e999}', "numbers must be finite, got 1e999"),
        (b'{"a": 123456789012345678901}', "integers have at most 20 digits"),
        (b'{"a": "\xff"}', "text must be UTF-8"),
        (DEEP % (b"[" * 64 + b"]" * 64), "JSON is nested too deeply"),
        (DEEP % (b"[" * 100_000 + b"]" * 100_000), "JSON is nested too deeply"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "JSON is nested too deeply"),
        (b'{"a": 1', "Expecting ',' delimiter"),
    ],
)
def test_what_is_no_document_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(data)


def test_what_is_one_is_read_up_to_its_bounds() -> None:
    assert parse(b'{"a": [1, 0.5, null], "b": {"a": true}}') == {"a": [1, 0.5, None], "b": {"a": True}}
    parse(DEEP % (b"[" * 63 + b"]" * 63))
    assert parse(b'{"a": 1}', 8) == {"a": 1}
    with pytest.raises(ValueError, match="at most 7 bytes of JSON are read, got more"):
        parse(b'{"a": 1}', 7)


def test_what_is_written_for_people_is_read_again() -> None:
    value = {"a": [1, 0.5, None], "b": {"c": [[], {"d": (1, 2)}], "e": {}}, "f": "\u00e4\n"}
    text = pretty(value)
    assert parse(text.encode()) == {**value, "b": {"c": [[], {"d": [1, 2]}], "e": {}}}
    assert text.splitlines()[:4] == ["{", '  "a": [1, 0.5, null],', '  "b": {', '    "c": [']
    with pytest.raises(ValueError, match="not JSON compliant"):
        pretty({"a": float("nan")})
