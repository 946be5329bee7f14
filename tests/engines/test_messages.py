"""Requests and answers as bytes, each of which may be anybody's."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.algorithms import FedAvg, PFedSD, Scaffold
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Client, on_client
from fedloom.core.errors import ClientError, CodecError, FedloomError, NonFiniteError, StackingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Maybe, Params, Weighted, Weights, state
from fedloom.data import Federation
from fedloom.deploy.server.answer_shapes import AnswerShapes
from fedloom.engines.argument_checks import check_argument, parameters
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import EVALUATING, Call, Request
from fedloom.engines.message_bytes import pack, part, shapes_of, unpack, with_checksum
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import Service, answer_of, request_bytes
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from tiny import federation, linear, mlp

LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))


def population(parts: Federation | None = None, model: Any = linear) -> Population:
    return Population(parts or federation(), {"net": Model(model, name="net")})


def service(algorithm: Algorithm[Any, Any] | None = None, **more: Any) -> Service:
    return Service(Runtime(population(), algorithm or FedAvg(local=LOCAL)), **more)


def asked(method: str = "local_update", sent: Any = None, client: int = 2, round: int = 0, **more: Any) -> bytes:
    """The bytes of a request to one client, with its state, unless `state` is None."""
    weights = population().models["net"].init(0)
    call = Call(method, (weights,) if sent is None else sent, round, more.pop("exchange", 0), 0.1)
    own = tree.stack([Runtime(population(), FedAvg(local=LOCAL)).fresh(client)])
    return request_bytes(Request.to(call, [client], 0), 1, (1, part(call.broadcast)), more.get("state", own))


def problem(data: bytes) -> str:
    """What an answer says went wrong."""
    head = unpack(data).head
    assert head["problem"] is not None, "the request was answered"
    return f"{head['problem']['kind']}: {head['problem']['text']}"


# ---- downward


def test_a_request_is_answered() -> None:
    message = unpack(service()(asked()))
    states, answer = answer_of(message, Request.to(Call("local_update", (), 0, 0, 0.1), [2], 0))
    assert answer.steps == ((3,),)
    assert answer.losses[0].shape == (1, 3)
    assert isinstance(answer.upload, Weighted)
    assert answer.upload.value.params["weight"].shape == (1, 3, 4)
    assert not tree.leaves(states)


@pytest.mark.parametrize("method", ["init", "round", "__init__", "train", "nothing", "_travelling", "x" * 200])
def test_methods_that_are_not_for_clients_are_refused(method: str) -> None:
    assert problem(service()(asked(method))).startswith(f"StackingError: '{method[:70]}")


def test_arguments_have_the_shapes_of_the_client_s_own_model() -> None:
    w = population().models["net"].init(0)
    wide = Weights(params={**w.params, "weight": torch.zeros(3, 5)})
    whole = Weights(params={"weight": w.params["weight"].long()})
    for sent, words in (
        (
            (wide,),
            r"broadcast[0].params['weight'] must be torch.float32 [3, 4] as in this client's model, got",
        ),
        ((whole,), "got torch.int64 [3, 4]"),
        ((w.params["weight"],), "broadcast[0] must be Weights, got Tensor"),
        ((w, w), "'local_update' takes 1 arguments, got a part 'broadcast'"),
    ):
        assert words in problem(service()(asked(sent=sent)))
    assert unpack(service()(asked(sent=(w.select(lambda _: True),)))).head["problem"] is None


def test_a_part_of_a_model_may_be_sent() -> None:
    w = population().models["net"].init(0)
    data = service(FedAvg(local=LOCAL, shared="weight"))
    kept = tree.stack([Runtime(population(), FedAvg(local=LOCAL, shared="weight")).fresh(2)])
    sent = Weights(params={"weight": w.params["weight"]})
    assert unpack(data(asked(sent=(sent,), state=kept))).head["problem"] is None


def test_nothing_is_made_of_what_is_too_large() -> None:
    w = population().models["net"].init(0)
    big = Weights(params={**w.params, "more": torch.zeros(10_000)})
    assert "a message of" in problem(service(limit=20_000)(asked(sent=(big,))))
    # What is absent takes no bytes, but memory all the same.
    absent = Weights(params={**w.params, "more": torch.zeros(1).expand(10**9)})
    data = part((Maybe(present=torch.tensor(False), value=absent),))
    with pytest.raises(CodecError, match=r"broadcast asks for 40000000\d\d bytes, and at most 20000 are given"):
        unpack(pack({}, {"broadcast": data}), limit=20_000)


@pytest.mark.some(8)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": [99]}, "clients [99] are not here, only 0 to 5"),
        ({"clients": []}, "clients [] are not here"),
        ({"clients": "all"}, "clients must be a list of whole numbers"),
        ({"round": "first"}, "round must be a whole number"),
        ({"round": True}, "round must be a whole number, got True"),
        ({"broadcast": None}, "broadcast must be a whole number"),
        ({"exchange": "sometimes"}, "exchange must be a number or 'evaluate'"),
        ({"split": "train"}, "split must be 'val', 'test' or 'all'"),
        ({"keys": [[1, 2], [3, 4]]}, "a request to 1 clients has 2 keys"),
        ({"keys": "none"}, "not a request"),
        ({"rate": "fast"}, "not a request"),
        ({"accepted": [""]}, "not a request: IndexError"),
        ({"keys": [{}]}, "not a request"),
        ({"rate": 1 << 70}, "integers have at most 20 digits"),
        ({"more": [[[[[]]]]] * 10, "deep": {"a": 1}}, None),
    ],
)
def test_heads_that_are_none(change: dict[str, Any], words: str | None) -> None:
    message = unpack(asked())
    forged = pack({**message.head, **change}, message.parts)
    if words is None:
        assert unpack(service()(forged)).head["problem"] is None
    else:
        assert words in problem(service()(forged))


def test_heads_of_strangers_are_short_and_shallow() -> None:
    message = unpack(asked())
    long, deep = {"more": "x" * (1 << 20)}, {"more": functools.reduce(lambda inner, _: [inner], range(70), [])}
    for change, words in ((long, "not a message of fedloom: a head of"), (deep, "JSON is nested too deeply")):
        forged = pack({**message.head, **change}, message.parts)
        assert words in problem(service()(forged))
        assert unpack(forged).head.keys() >= {"more"}  # a part of this program may say so


def test_a_broadcast_that_was_not_sent_is_missed() -> None:
    message = unpack(asked())
    data = pack({**message.head, "broadcast": 7}, {"state": message.parts["state"]})
    assert "the request belongs to broadcast 7, which was not sent" in problem(service()(data))


@pytest.mark.slow
def test_any_bytes_get_an_answer() -> None:
    ours, rng, sound = service(), Random(0), asked()[4:]
    for _ in range(1500):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 1, 2, 8))):
            match rng.randrange(3):
                case 0:
                    data[rng.randrange(len(data))] = rng.randrange(256)
                case 1:
                    del data[rng.randrange(len(data)) :]
                    data += b"\0" * rng.randrange(4)
                case _:
                    at = rng.randrange(len(data))
                    data[at:at] = rng.randbytes(rng.randrange(1, 9))
            if not data:
                data = bytearray(b"\0")
        assert "problem" in unpack(ours(with_checksum(bytes(data)))).head


# ---- upward


@dataclass(frozen=True, kw_only=True)
class Uploads(FedAvg):  # type: ignore[misc]
    """Sends something of another shape, type or structure than a client without examples would."""

    how: str = "longer"

    @on_client
    def local_update(self, client: Client[Any], sent: Weights) -> tuple[Any, Any]:
        kept, up = FedAvg.local_update(self, client, sent)
        there = bool(client.train.num_steps)
        if there and self.how == "longer":
            up = Weighted(
                value=Weights(params={n: torch.cat([t, t]) for n, t in up.value.params.items()}), weight=up.weight
            )
        if there and self.how == "named":
            up = Weighted(value=Weights(params={f"{n}s": t for n, t in up.value.params.items()}), weight=up.weight)
        if there and self.how == "typed":
            up = Weighted(value=tree.map_tree(lambda t: t.double(), up.value), weight=up.weight)
        return kept, up


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["longer", "named", "typed"])
def test_an_upload_that_is_not_what_was_announced(how: str) -> None:
    engine = Messages(population(), Uploads(local=LOCAL, how=how))
    with pytest.raises(CodecError, match=r"upload is not what was asked for: 3 tensors \(.*asked for 3 tensors"):
        engine.round(engine.init(), [0, 1], 0)
    assert not engine.states
    engine.close()


def test_answers_are_nothing_but_answers() -> None:
    people, algorithm = population(), FedAvg(local=LOCAL)
    engine = Messages(people, algorithm)
    request = Request.to(Call("local_update", (people.models["net"].init(0),), 0, 0, 0.1), [2], 0)
    message = unpack(service()(asked()))
    assert engine.accept(pack(message.head, message.parts), request)[1].steps == ((3,),)
    for head, parts, words in (
        ({"steps": [[9]]}, {}, "counts the steps"),
        ({"steps": [[-1]]}, {}, "counts the steps"),
        ({"steps": []}, {}, "counts the steps"),
        ({"steps": None}, {}, "not an answer"),
        ({}, {"extra": torch.zeros(2)}, "has no part 'extra'"),
        ({}, {"losses": torch.zeros(2)}, "losses must be a list of floats"),
        ({}, {"losses": [torch.zeros(1, 3).long()]}, "losses must be a list of floats"),
        ({}, {"state": Weights(params={"w": torch.zeros(1)})}, "state is not what was asked for"),
        ({"problem": {"kind": "SystemExit", "what": "boo"}}, {}, "client 2, round 1: boo"),
        ({"problem": {"kind": "NonFiniteError", "what": "nan", "batch": 3}}, {}, "client 2, round 1, batch 3: nan"),
    ):
        with pytest.raises(FedloomError, match=words):
            engine.accept(pack({**message.head, **head}, {**message.parts, **parts}), request)
    without = {name: value for name, value in message.parts.items() if name != "state"}
    with pytest.raises(CodecError, match="a state comes with the answer to a request that brought one"):
        engine.accept(pack(message.head, without), request)


@pytest.mark.slow
def test_any_bytes_of_an_answer_are_refused_or_taken_whole() -> None:
    people, rng, taken = population(), Random(1), 0
    engine = Messages(people, FedAvg(local=LOCAL))
    request = Request.to(Call("local_update", (people.models["net"].init(0),), 0, 0, 0.1), [2], 0)
    sound = service()(asked())
    want = engine.accept(sound, request)[1].upload
    with pytest.raises(CodecError, match="the message was damaged on its way"):
        engine.accept(sound[:-1] + bytes([sound[-1] ^ 1]), request)
    sound = sound[4:]
    for _ in range(1500):
        data = bytearray(sound)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            got = engine.accept(with_checksum(bytes(data)), request)[1].upload
        except FedloomError:
            continue
        taken += 1
        assert tree.same_structure(want, got)
    assert taken  # a changed digit of a weight is what a digest or a secure channel sees


def test_a_limit_holds_upwards_as_well() -> None:
    class Small(Messages):
        limit = 400

    engine = Small(population(), FedAvg(local=LOCAL))
    with pytest.raises(CodecError, match=r"a message of \d+ bytes, and at most 400 are taken: raise the limit"):
        engine.round(engine.init(), [0], 0)
    engine.close()


def test_a_rehearsal_sees_nobody_s_examples() -> None:
    """What the server has of a client for a rehearsal is its registered number of examples, and zeros for these."""
    parts = federation()
    spoilt = dataclasses.replace(parts.train, x=torch.full_like(parts.train.x, 1e30))
    people = population(dataclasses.replace(parts, train=spoilt))
    request = Request.to(Call("local_update", (people.models["net"].init(0),), 0, 0, 0.1), [2], 0)
    rehearsals = AnswerShapes(people, Uploads(local=LOCAL))
    like = shapes_of(unpack(service()(asked())).parts["upload"])
    rehearsals.check(request, "upload", like)
    blank = rehearsals._blank("net", 12)
    assert blank.num_clients == 1
    assert blank.sizes.tolist() == [12]
    assert not blank.federation.train.x.any()


# ---- states that clients keep


@pytest.mark.slow
def test_what_the_server_did_not_accept_never_was() -> None:
    """Client 2 is refused, lost or neither: where clients keep their states, they hear of it with the next request."""

    def run(kind: type[Any], **more: Any) -> Any:
        engine = kind(population(model=mlp), PFedSD(local=LOCAL), Options(on_nonfinite="refuse", **more))
        server = engine.init()
        for t in range(4):
            server = engine.round(server, [1, 2, 3], t)
        states = engine.all_states() if kind is DevicesInProcess else engine.states
        found = server, dict(sorted(states.items())), engine.evaluate_counts(server, range(6), 3), engine.traffic
        engine.close()
        return found

    def late(round: int, exchange: int, client: int) -> str | None:
        return "late" if (round, client) == (1, 2) else None

    for more in ({}, {"faults": late}):
        assert len({json.dumps(str(run(kind, **more))) for kind in (Loop, Messages, DevicesInProcess)}) == 1


def test_a_process_that_dies_is_an_error() -> None:
    engine = Messages(population(), FedAvg(local=LOCAL))
    server = engine.round(engine.init(), [0], 0)
    assert engine.child is not None
    os.kill(engine.child.process.pid or 0, signal.SIGKILL)
    engine.child.process.join()
    with pytest.raises(ClientError, match=r"client 0, round 2: the process of the clients died \(killed by SIGKILL\)"):
        engine.round(server, [0], 1)
    engine.close()


def test_errors_of_a_client_come_back_as_they_were() -> None:
    engine = Messages(population(), FedAvg(local=dataclasses.replace(LOCAL, optimiser=SGD(lr=1e38))))
    with pytest.raises(NonFiniteError, match=r"client 0, round 1, batch \d: the loss is (nan|inf)"):
        engine.round(engine.init(), [0], 0)
    engine.close()


# ---- annotations


@state
class Pair:
    x: Weights
    c: Params


class Takes:
    def all(
        self, client: Any, pair: Pair, some: tuple[Tensor, ...], maybe: Maybe[Weights], table: dict[str, Pair]
    ) -> None: ...

    def untold(self, client: Any, something) -> None: ...  # type: ignore[no-untyped-def]

    def anything(self, client: Any, something: Any) -> None: ...


def test_annotations_say_what_is_let_in() -> None:
    own = population().models["net"].init(0)
    pair = shapes_of(Pair(x=own, c=own.params))
    kinds = parameters(Takes().all)
    good = (pair, (torch.zeros(2), torch.zeros(())), shapes_of(Maybe.none(own)), {"a": pair})
    for value, kind in zip(good, kinds, strict=True):
        check_argument(value, kind, own, "it")
    for value, kind, words in (
        (own, kinds[0], "it must be Pair, got Weights"),
        ((own,), kinds[1], r"it\[0\] must be Tensor, got Weights"),
        ([torch.zeros(2)], kinds[1], "it must be tuple"),
        (shapes_of(Maybe.none(own.params)), kinds[2], "it.value must be Weights, got Params"),
        ({"a": own}, kinds[3], r"it\['a'\] must be Pair"),
        (torch.zeros(2), Tensor | Weights, None),
        ((), tuple[Tensor, Tensor], "it must have 2 entries, got 0"),
    ):
        if words is None:
            check_argument(value, kind, own, "it")
            continue
        with pytest.raises(CodecError, match=words):
            check_argument(value, kind, own, "it")
    for method in (Takes().untold, Takes().anything):
        with pytest.raises(StackingError, match="needs an annotation of 'something': Weights"):
            parameters(method)


def test_scaffold_s_control_variates_are_those_of_the_model() -> None:
    people, algorithm = population(), Scaffold(local=LOCAL)
    engine = Messages(people, algorithm)
    server = engine.init()["net"]
    short = dataclasses.replace(server, c=Params(weight=torch.zeros(4, 3)))
    with pytest.raises(CodecError, match=r"broadcast\[1\]\['weight'\] must be .*, got torch.float32 \[4, 3\]"):
        engine.round({"net": short}, [0], 0)
    engine.close()


def test_judging_is_a_request_like_any_other() -> None:
    engine = Messages(population(), FedAvg(local=LOCAL))
    call = Call("personal", (population().models["net"].init(0),), 0, EVALUATING, 0.1)
    (request, states, answer), *rest = engine.answers(call, [3], lambda ids: ())
    assert not rest
    assert not tree.leaves(states)
    assert answer.upload.params["weight"].shape == (1, 3, 4)
    assert request.clients == (3,)
    engine.close()


def test_a_broadcast_is_sent_once_and_clients_have_no_test_set() -> None:
    f = federation()
    run = Messages(population(dataclasses.replace(f, test=f.train)), FedAvg(local=LOCAL))
    seen: list[bool] = []
    exchange = run.exchange

    def watched(request: Request, broadcast: Any) -> memoryview:
        seen.append(broadcast is not None)
        return exchange(request, broadcast)

    run.exchange = watched  # type: ignore[method-assign]
    server = run.init()
    for t in range(2):
        server = run.round(server, (0, 1, 2), t)
    assert seen == [True, False, False] * 2
    assert run.num_broadcasts == 2
    assert run.population.federation.test is not None
    assert run.service().runtime.population.federation.test is None
    run.close()
