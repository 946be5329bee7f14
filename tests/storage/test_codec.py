"""The codec: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings, strategies as st
from torch import Tensor

from fedloom.core import tree
from fedloom.core.errors import CodecError
from fedloom.core.types import Maybe, Weighted, Weights, state
from fedloom.storage.codec import blank, decode, describe, digest, encode

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


@state
class Pair:
    first: Any
    second: Any


def bits(t: Tensor) -> bytes:
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def assert_same(x: Any, y: Any) -> None:
    """Equal in structure and in every bit, NaN included."""
    assert tree.same_structure(x, y)
    assert all(bits(a) == bits(b) for a, b in zip(tree.leaves(x), tree.leaves(y), strict=True))


@st.composite
def tensors(draw: Any) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.randn(shape, generator=gen) * 50
    if dtype.is_floating_point and values.numel() and draw(st.booleans()):
        values.view(-1)[0] = draw(st.sampled_from([float("nan"), float("inf"), -0.0]))
    return values.to(dtype) if dtype != torch.bool else values > 0


def maybe(child: Any) -> Any:
    return st.one_of(child.map(Maybe.some), child.map(Maybe.none))


# Names that look like paths, dots, quotes and brackets must not confuse a codec that names tensors by path.
names = st.one_of(
    st.text(max_size=5), st.sampled_from(["a.value", "value", ".present", "['x']", "0", "__metadata__", ""])
)
trees = st.recursive(
    tensors(),
    lambda child: st.one_of(
        st.dictionaries(names, child, max_size=3),
        st.lists(child, max_size=3),
        st.tuples(child, child),
        st.builds(Pair, first=child, second=child),
        st.builds(Weighted, value=child, weight=tensors()),
        maybe(child),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(trees)
@example({"__metadata__": torch.ones(1)})
@example(())
@example(torch.tensor(2.5))
@example({"a": Maybe.none({"b": Maybe.some(torch.ones(2))}), "a.value": torch.ones(1)})
@example(Maybe.some(Maybe.none(torch.ones(3))))
def test_round_trip(value: Any) -> None:
    like = tree.map_tree(torch.zeros_like, value)
    assert_same(decode(encode(value), like), value)


def test_absent_values_do_not_travel() -> None:
    weights = Weights(params={"w": torch.ones(1000)})
    assert len(encode(Maybe.none(weights))) < 200 < 4000 < len(encode(Maybe.some(weights)))
    back = decode(encode(Maybe.none(weights)), Maybe.some(weights))
    assert not bool(back.present)
    assert not bool(back.value.params["w"].any())


def test_garbage_in_an_absent_maybe_does_not_travel() -> None:
    value = Maybe(present=torch.tensor(False), value=torch.full((3,), float("nan")))
    assert decode(encode(value), Maybe.some(torch.ones(3))).value.tolist() == [0, 0, 0]


def test_views_and_shared_storage_travel() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    value = {"rows": base[1:], "columns": base.T, "same": base, "again": base, "expanded": torch.ones(1).expand(5)}
    assert_same(decode(encode(value), value), value)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"w": torch.ones(2, dtype=torch.complex64)}, "complex64"),
        ({"w": 3.0}, "float"),
        ({"w": "text"}, "str"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, what: str) -> None:
    with pytest.raises(CodecError, match=rf"'w'.*{what}"):
        encode(value)


VALUE = {
    "w": torch.arange(6.0).reshape(2, 3),
    "n": torch.tensor(3),
    "m": Maybe.some(torch.ones(2)),
    "gone": Maybe.none(torch.ones(2)),
}
DATA = encode(VALUE)
SIZE = int.from_bytes(DATA[:8], "little")


def with_header(header: Any, body: bytes = DATA[8 + SIZE :]) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


HEADER = json.loads(DATA[8 : 8 + SIZE])
W = "['w']"

BAD: dict[str, bytes] = {
    "nothing": b"",
    "cut in the length": DATA[:7],
    "cut in the header": DATA[: 8 + SIZE // 2],
    "cut in the body": DATA[:-1],
    "padded": DATA + b"\0",
    "header longer than the message": (2**63 - 1).to_bytes(8, "little") + DATA[8:],
    "header as long as a huge number": b"\xff" * 8 + DATA[8:],
    "header that is no JSON": with_header(b"{" * SIZE),
    "header that is no mapping": with_header([1, 2]),
    "header nested beyond reason": with_header(b"[" * 100_000),
    "header that is no text": with_header(b"\xff\xfe" * 10),
    "entry without a type": with_header({**HEADER, W: {"shape": [2, 3], "data_offsets": HEADER[W]["data_offsets"]}}),
    "negative shape": with_header({**HEADER, W: {**HEADER[W], "shape": [-2, -3]}}),
    "shape that is text": with_header({**HEADER, W: {**HEADER[W], "shape": "23"}}),
    "huge shape": with_header({**HEADER, W: {**HEADER[W], "shape": [2**62, 2**62]}}),
    "infinite shape": with_header(json.dumps(HEADER).replace("[2, 3]", "[Infinity, 3]").encode()),
    "offsets beyond the end": with_header({**HEADER, W: {**HEADER[W], "data_offsets": [0, 10**9]}}),
    "offsets reversed": with_header({**HEADER, W: {**HEADER[W], "data_offsets": HEADER[W]["data_offsets"][::-1]}}),
    "offsets negative": with_header({**HEADER, W: {**HEADER[W], "data_offsets": [-24, 0]}}),
    "offsets missing": with_header({**HEADER, W: {"dtype": "F32", "shape": [2, 3]}}),
    "offsets overlapping": with_header({**HEADER, W: {**HEADER[W], "data_offsets": [8, 32]}}),
    "unexpected tensor": encode({**VALUE, "more": torch.ones(1)}),
    "missing tensor": encode({k: v for k, v in VALUE.items() if k != "w"}),
    "missing flag": encode({**{k: v for k, v in VALUE.items() if k != "m"}}),
    "wrong type": encode({**VALUE, "w": VALUE["w"].double()}),
    "wrong integer type": encode({**VALUE, "n": torch.tensor(3, dtype=torch.int32)}),
    "wrong shape": encode({**VALUE, "w": VALUE["w"].T}),
    "wrong number of axes": encode({**VALUE, "n": torch.tensor([3])}),
    "another structure": encode([torch.ones(2)]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_bytes_are_a_codec_error(case: str) -> None:
    with pytest.raises(CodecError):
        decode(BAD[case], VALUE)


def test_value_against_its_flag_is_refused() -> None:
    like = {"m": Maybe.some(torch.ones(2))}
    present = {"m": {"present": torch.tensor(True)}}
    absent = {"m": {"present": torch.tensor(False), "value": torch.ones(2)}}
    for lie in (present, absent):
        data = (
            encode(lie).replace(b"['m']['present']", b"['m'].present   ").replace(b"['m']['value']", b"['m'].value   ")
        )
        size = int.from_bytes(data[:8], "little")
        header = {name.strip(): entry for name, entry in json.loads(data[8 : 8 + size]).items()}
        with pytest.raises(CodecError, match="contradict the flag"):
            decode(with_header(header, data[8 + size :]), like)


@pytest.mark.parametrize("byte", [b"\x02", b"\x80", b"\xff"])
def test_flag_that_is_neither_true_nor_false(byte: bytes) -> None:
    at = 8 + SIZE + HEADER["['m'].present"]["data_offsets"][0]
    with pytest.raises(CodecError, match=rf"\['m'\].present. must hold bools, bytes of 0 or 1, got {byte[0]}"):
        decode(DATA[:at] + byte + DATA[at + 1 :], VALUE)


LITERAL = json.dumps(HEADER)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (LITERAL[:-1] + f', "{W}": {json.dumps(HEADER[W])}' + "}", "names must be unique"),
        (LITERAL.replace('"dtype": "F32",', '"dtype": "F64", "dtype": "F32",', 1), "names must be unique"),
        (LITERAL.replace("[2, 3]", "[NaN, 3]"), "numbers must be whole, got NaN"),
        (LITERAL.replace("[2, 3]", "[2.0, 3]"), r"numbers must be whole, got 2\.0"),
        (LITERAL.replace("[2, 3]", '["2", 3]'), "needs a dtype, a shape and two offsets"),
        (LITERAL.replace("[2, 3]", "[true, 3]"), "needs a dtype, a shape and two offsets"),
        (LITERAL.replace("[2, 3]", f"[{10**19}, 3]"), "needs a dtype, a shape and two offsets"),
        (LITERAL.replace("[2, 3]", f"[{'9' * 5000}, 3]"), "not a fedloom payload"),
        (LITERAL[:-1] + ', "__metadata__": {"a": "b"}}', "'__metadata__' needs a dtype"),
        (LITERAL.replace('"F32",', '"F32", "more": 1,', 1), "needs a dtype"),
        (json.dumps({**HEADER, W: {**HEADER[W], "data_offsets": [8, 32]}}), r"starts at \d+, after \d+ bytes"),
    ],
)
def test_headers_have_one_reading(header: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode(with_header(header.encode()), VALUE)


def test_swapped_offsets_are_refused() -> None:
    """Two tensors of one size, whose bytes overlap or lie in a gap, are told from tensors that follow one another."""
    value = {"a": torch.ones(2), "b": torch.zeros(2)}
    data = encode(value)
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    for name, offsets in (("['a']", header["['b']"]["data_offsets"]), ("['b']", [4, 12]), ("['b']", [16, 24])):
        lie = {**header, name: {**header[name], "data_offsets": offsets}}
        with pytest.raises(CodecError, match=r"tensors must follow one another|cut or padded"):
            decode(with_header(lie, body), value)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_damage_is_a_codec_error_or_only_other_values(data: Any) -> None:
    """Flipped bits are refused or give a tree of the same structure: never another exception, never another shape."""
    damaged = bytearray(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(damaged))))
    assume(cut is None or cut < len(damaged))
    try:
        back = decode(bytes(damaged[:cut]), VALUE)
    except CodecError:
        return
    assert tree.same_structure(back, VALUE)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data, VALUE)


# ---- structures


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(trees)
@example(OrderedDict(a=torch.ones(1)))
@example({1: torch.ones(1), False: torch.ones(2), None: torch.ones(3)})
@example(Weights(params={"w": torch.ones(2)}))
def test_a_structure_comes_back(value: Any) -> None:
    assert tree.same_structure(blank(json.loads(json.dumps(describe(value)))), value)


LEAF = {"type": None, "context": None, "children_spec": []}
KEY = {"__enum__": True, "fqn": "imported_by_name:Kind", "name": "one"}
NAMING = {  # structures of PyTorch that name a module
    "a default": {
        "type": "collections.defaultdict",
        "context": {"default_factory_module": "imported_by_name", "default_factory_name": "f", "dict_context": ["a"]},
        "children_spec": [LEAF],
    },
    "a key": {"type": "builtins.dict", "context": json.dumps([KEY]), "children_spec": [LEAF]},
    "a key of a key": {"type": "collections.OrderedDict", "context": json.dumps([[KEY]]), "children_spec": [LEAF]},
    "no key": {"type": "builtins.list", "context": json.dumps(KEY), "children_spec": [LEAF]},
    "a length": {"type": "collections.deque", "context": json.dumps(KEY), "children_spec": [LEAF]},
}


@pytest.mark.parametrize("naming", NAMING)
@pytest.mark.parametrize("deep", [False, True])
def test_a_structure_imports_nothing(naming: str, deep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_name.py").write_text("f = list\nKind = {'one': 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    found: Any = NAMING[naming]
    if deep:
        found = {"type": "builtins.list", "context": "null", "children_spec": [LEAF, found]}
    with pytest.raises(CodecError, match=r"is no such type|keys are text or numbers"):
        blank({"tree": json.dumps([1, found]), "leaves": [["F32", []]] * (1 + deep)})
    assert "imported_by_name" not in sys.modules


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[1]", "[2, {}]", "[1, null]", "[1, []]", '[1, {"type": 5}]', json.dumps([1, {**LEAF, "type": "a"}])],
)
def test_what_is_no_structure_is_a_codec_error(text: str) -> None:
    with pytest.raises(CodecError, match="not the structure of a payload"):
        blank({"tree": text, "leaves": []})


@pytest.mark.parametrize("value", [deque([torch.ones(1)]), defaultdict(list, a=torch.ones(1))])
def test_a_structure_that_nobody_takes_is_not_sent(value: Any) -> None:
    with pytest.raises(CodecError, match=f"a message holds .* 'collections.{type(value).__name__}' is no such type"):
        describe(value)


def test_of_a_stack_what_somebody_has_travels() -> None:
    """Client 0 has none, client 1 has one: zeros stand for the first; where nobody has one nothing travels."""
    mixed = Maybe(present=torch.tensor([False, True]), value=torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    again = decode(encode(mixed), mixed)
    assert again.present.tolist() == [False, True]
    assert again.value.tolist() == [[0, 0], [1, 2]]
    nobody = Maybe(present=torch.tensor([False, False]), value=torch.zeros(2, 1000))
    assert len(encode(nobody)) < 1000
    assert not decode(encode(nobody), nobody).present.any()


def test_a_digest_is_of_names_kinds_shapes_and_bits() -> None:
    one = {"a": torch.arange(4.0), "b": torch.ones(2, 3)}
    same = {"b": torch.ones(3, 2).T, "a": torch.arange(4.0)}
    assert digest(one) == digest(same)
    others = [
        {**one, "a": torch.tensor([0.0, 1, 2, 3.0000002])},
        {**one, "a": torch.arange(4.0).double()},
        {**one, "a": torch.arange(4.0).reshape(2, 2)},
        {**one, "c": torch.ones(())},
        {"a": one["b"], "b": one["a"]},
        {"a": one["a"], "c": one["b"]},
    ]
    assert len({digest(one), *map(digest, others)}) == 7
    kinds = {"t": torch.tensor(True), "h": torch.ones(2, dtype=torch.bfloat16), "e": torch.empty(0)}
    assert digest(kinds) == digest({name: t.clone() for name, t in kinds.items()})


def test_a_header_is_no_longer_than_what_is_asked_for() -> None:
    like = {"w": torch.zeros(2, 3), "a name of some length": torch.zeros(1, 1, 1, 1, 1, 1, 1, 1)}
    data = encode(like)
    size = int.from_bytes(data[:8], "little")
    assert tree.same_structure(decode(data, like), like)
    text = data[8 : 8 + size].rstrip() + b" " * 1000
    forged = len(text).to_bytes(8, "little") + text + data[8 + size :]
    with pytest.raises(CodecError, match=r"header of \d+ bytes in a message of \d+, expected at most \d+"):
        decode(forged, like)
    wide = {"x" * 5000: torch.zeros(1 << 20, 0, dtype=torch.bool), "\u00fc" * 90: torch.zeros(0)}
    assert tree.same_structure(decode(encode(wide), wide), wide)


def test_leaves_are_counted_before_tensors_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*args: Any, **settings: Any) -> Any:
        raise AssertionError("a tensor was made")

    told = describe([torch.zeros(1)])
    monkeypatch.setattr(torch, "empty", made)
    with pytest.raises(CodecError, match="9 leaves are described for a structure of 1"):
        blank({**told, "leaves": told["leaves"] * 9})
