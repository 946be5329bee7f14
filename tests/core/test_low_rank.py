"""Low-rank adapters: which factor is trained, what a mean of factors is, and adapters of a client's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl
from fedloom.core import tree
from fedloom.core.model import Model
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from tiny import federation

LOCAL = fl.Local(epochs=2, batch_size=4, optimiser=fl.SGD(lr=0.1))
SCALE = 2.0


class Adapted(nn.Module):
    """x W + s B A x, by the names that peft gives."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3).requires_grad_(not frozen)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 3, bias=False)})
        nn.init.normal_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + SCALE * self.lora_B["default"](self.lora_A["default"](x))  # type: ignore[no-any-return]


A, B = "lora_A.default.weight", "lora_B.default.weight"


def product(model: Model, w: fl.Weights) -> Tensor:
    whole = {**model.frozen, **w.params}
    return SCALE * whole[B] @ whole[A]


def test_the_second_factor_is_trained_alone_unless_both_are_asked_for() -> None:
    assert Model(Adapted).params == (B,)
    assert Model(Adapted, factors="both").params == (A, B)
    assert Model(Adapted, frozen=B, factors="second").params == (A,)  # whose B is not trained
    assert (Model(Adapted).num_params, Model(Adapted).num_frozen) == (6, 23)
    assert Model(Adapted).counted == "6 trained of 29 parameters"
    assert A in Model(Adapted).bind(0).frozen


class AdaptedTable(nn.Module):
    """A table W + s B A of rows, by the names that peft gives."""

    def __init__(self, zero: str = "A", head: bool = False) -> None:
        super().__init__()
        self.base, self.head = nn.Embedding(9, 4).requires_grad_(False), nn.Linear(4, 3).requires_grad_(head)
        self.lora_embedding_A = nn.ParameterDict({"default": torch.randn(2, 9)})
        self.lora_embedding_B = nn.ParameterDict({"default": torch.randn(4, 2)})
        if zero:
            getattr(self, f"lora_embedding_{zero}")["default"].data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.lora_embedding_A["default"], self.lora_embedding_B["default"]
        return self.head((self.base(x) + F.embedding(x, a.T) @ b.T).mean(1))  # type: ignore[no-any-return]


EA, EB = "lora_embedding_A.default", "lora_embedding_B.default"


def begun(a: float, b: float) -> Model:
    """A linear layer's adapter whose factors are all `a` and `b`."""

    def make() -> nn.Module:
        module = Adapted()
        with torch.no_grad():
            module.lora_A["default"].weight.fill_(a)
            module.lora_B["default"].weight.fill_(b)
        return module

    return Model(make)


def test_the_factor_that_begins_at_zero_is_trained() -> None:
    assert Model(AdaptedTable).params == (EA,)  # as peft begins
    assert Model(lambda: AdaptedTable("B")).params == (EB,)  # with A trained, B would stay zero and A learn nothing
    assert Model(lambda: AdaptedTable("")).params == (EA,)  # by its name
    assert Model(AdaptedTable, factors="both").params == (EA, EB)
    assert Model(AdaptedTable, frozen=EB).params == (EA,)
    assert (begun(1, 0).params, begun(0, 1).params) == ((B,), (A,))
    assert (begun(1, 2).params, begun(0, 0).params) == ((B,), (B,))


def words(n: int = 60) -> fl.Federation:
    x = torch.randint(1, 9, (n, 1), generator=torch.Generator().manual_seed(0))
    y = x[:, 0] % 3
    return fl.federate(fl.from_arrays(x.numpy(), y.numpy()), fl.iid(y, 3, seed=0), test=None, test_fraction=0.2)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_an_adapter_of_a_table_learns(engine: Any) -> None:
    history = fl.run(
        fl.FedAvg(local=fl.Local(epochs=10, batch_size=8, optimiser=fl.Adam(lr=0.1))), words(),
        Model(AdaptedTable, name="net"), fl.RunSettings(rounds=3, cohort_size=3, engine=engine),
    )  # fmt: skip
    losses = history.series("train_loss")
    assert losses[-1] < 0.9 * losses[1]


class Watched(fl.FedAvg):
    """Keeps what each client trained, in its state."""

    def init_client(self, initial: fl.Weights, model: Model, key: int) -> fl.Weights:
        return initial

    def received(self, client: fl.Client[Any], sent: fl.Weights) -> fl.Weights:
        return sent

    def answer(self, client: fl.Client[Any], w_k: fl.Weights) -> Any:
        return w_k, client.weigh(w_k, self.aggregation)


@pytest.mark.parametrize("factors", ["second", "both"])
def test_the_mean_of_factors_against_the_mean_of_products(factors: Any) -> None:
    """sum_k p_k B_k A_k by hand, of the clients' own ends: the server's product is that by default, and only then."""
    parts = federation(clients=3)
    p = Population(parts, {"net": Model(Adapted, name="net", factors=factors)}, dtype=torch.float64)
    engine = Loop(p, Watched(local=LOCAL), Options())
    server = engine.round(engine.init(), range(3), 0)["net"]
    model, sizes = p.models["net"], torch.tensor(p.sizes.tolist(), dtype=torch.float64)
    ends = [engine.states[k] for k in range(3)]
    mean = sum(n * product(model, w) for n, w in zip(sizes, ends, strict=True)) / sizes.sum()
    close = torch.allclose(product(model, server), mean, rtol=1e-12, atol=1e-14)
    assert close is (factors == "second")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("shared", ["* !*lora*", "*lora*"])
def test_adapters_of_ones_own_over_a_shared_network_and_the_other_way_round(shared: str, engine: str) -> None:
    model = Model(lambda: Adapted(frozen=False), name="net")
    algorithm = fl.FedAvg(local=LOCAL, shared=shared)
    history = fl.run(
        algorithm, federation(), model, fl.RunSettings(rounds=2, cohort_size=4, engine=engine, dtype="float64")
    )
    sent = {"base.weight", "base.bias"} if shared.startswith("* ") else {B}
    assert history.manifest["hyper_parameters"]["shared"] == shared
    assert history.metrics[1]["bytes_up"] == 4 * 8 * sum(
        p.numel() for n, p in model.init(0).params.items() if n in sent
    )
    assert set(model.params) == {"base.weight", "base.bias", B}
    assert len(tree.leaves(history.server)) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers
def test_peft_on_a_transformer_runs_alike_on_every_engine() -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = transformers.BertConfig(
                vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                max_position_embeddings=10, num_labels=3,
            )  # fmt: skip
            adapter = peft.LoraConfig(
                task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"], lora_dropout=0.1
            )
            self.net = peft.get_peft_model(transformers.BertForSequenceClassification(config), adapter)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(input_ids=x.long()).logits  # type: ignore[no-any-return]

    y = torch.arange(60) % 3
    x = torch.randint(3, 30, (60, 8), generator=torch.Generator().manual_seed(0)).float()
    x[:, 0] = y.float()
    parts = fl.federate(fl.Examples(x, y, 3), fl.iid(y, 3, seed=0), test=fl.Examples(x, y, 3))
    model = Model(Words, name="bert")
    ends = []
    for engine in ("loop", "stacked", "workers"):
        settings = fl.RunSettings(rounds=2, cohort_size=3, engine=engine, dtype="float64")
        history = fl.run(fl.FedAvg(local=LOCAL), parts, model, settings)
        assert history.engine == engine
        assert history.metrics[1]["bytes_up"] == 3 * 8 * model.num_params
        ends.append(history.server["bert"])
    assert all(name.rpartition(".lora_B")[1] or "classifier" in name for name in model.params)
    for other in ends[1:]:
        for a, b in zip(tree.leaves(ends[0]), tree.leaves(other), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
