"""What people get wrong first, and what they are told: the rule, the value and the remedy, before any work starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.cli.main import main
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.experiments import catalogue


class Mistake(NamedTuple):
    """What is done, and three parts of what is said of it."""

    done: Callable[[], Any] | str
    rule: str
    value: str
    remedy: str


X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = np.arange(24) % 2
TORCH = TensorDataset(torch.tensor(X), torch.tensor(Y))


def train(x: Any = X, y: Any = Y, **more: Any) -> fl.Examples:
    return fl.from_arrays(x, y, **more)


def clients(examples: fl.Examples | None = None, **more: Any) -> fl.Federation:
    examples = train() if examples is None else examples
    return fl.federate(examples, fl.iid(examples.y, 4, seed=0), **more)


def run(**changed: Any) -> fl.History:
    settings = fl.RunSettings(rounds=1, cohort_size=2, threads=1, engine="loop", compilation="none")
    arguments = {"algorithm": fl.FedAvg(), "federation": clients(), "model": nn.Linear(4, 2), "settings": settings}
    return fl.run(**(arguments | changed))


class Tokens(nn.Module):
    """Looks up four ids of an example."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(300, 3), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.table(x.long()).flatten(1))
        return out


class PlainMean(fl.Classification):
    """The loss as a loop over batches without padding has it."""

    def loss(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, batch.y)


def sized(width: int) -> nn.Module:
    """A network as a function that wants to know its width."""
    return nn.Linear(width, 2)


def new_rows(**columns: Any) -> Any:
    """Other rows of a prepared table of ages and towns."""
    table = pd.DataFrame({"age": [30.0, None, 50.0], "town": ["Oslo", "Rome", "Rome"], "kind": ["a", "b", "a"]})
    preparation = fl.from_frame(table, label="kind", prepare="standard", test_fraction=0).train.preparation
    assert preparation is not None
    return preparation.new_rows(pd.DataFrame(columns))


TABLE = pd.DataFrame({"age": [30.0, None], "town": ["Oslo", "Rome"], "kind": ["a", "b"]})
PYTHON = {
    # data
    "a data set of PyTorch": Mistake(
        lambda: fl.federate(TORCH, fl.iid(Y, 4, 0)),
        "must be fedloom.Examples",
        "got TensorDataset",
        "fedloom.from_torch",
    ),
    "a loader of PyTorch": Mistake(
        lambda: fl.from_torch(DataLoader(TORCH)), "must be map-style", "got DataLoader", "into a list of pairs"
    ),
    "an array": Mistake(
        lambda: fl.federate(X, fl.iid(Y, 4, 0)), "must be fedloom.Examples", "got ndarray", "fedloom.from_arrays(x, y)"
    ),
    "a Dataset": Mistake(
        lambda: fl.federate(fl.Dataset(train(), None), fl.iid(Y, 4, 0)),
        "must be fedloom.Examples",
        "got Dataset",
        "dataset.train",
    ),
    "a test set of PyTorch": Mistake(
        lambda: clients(test=TORCH), "test must be fedloom.Examples", "got TensorDataset", "fedloom.from_torch"
    ),
    "lists as partition": Mistake(
        lambda: fl.federate(train(), [[0, 1], [2]]), "must be a fedloom.Partition", "got list", "Partition.from_lists"
    ),
    "lists as arrays": Mistake(
        lambda: train(X.tolist()), "must be NumPy arrays or tensors", "got list", "numpy.array(values, numpy.float32)"
    ),
    "a frame as array": Mistake(
        lambda: train(pd.DataFrame(X)), "must be NumPy arrays or tensors", "got DataFrame", "fedloom.from_frame"
    ),
    "labels as text": Mistake(
        lambda: train(y=np.array(["cat", "dog"] * 12)),
        "must hold real numbers",
        "got text such as 'cat'",
        "classes=names",
    ),
    "labels from 1": Mistake(
        lambda: train(y=Y + 1), "must be 0..C-1", "got 2 different ones up to 2", "renumber the labels"
    ),
    "labels 0, 5, 10": Mistake(
        lambda: train(y=Y * 5), "must be 0..C-1", "up to 5", "numpy.unique(y, return_inverse=True)"
    ),
    "labels beyond num_classes": Mistake(
        lambda: train(num_classes=1), "labels must be in 0..0", "got 0..1", "raise num_classes"
    ),
    "NaN": Mistake(lambda: train(np.where(X > 1, np.nan, X)), "x must be finite", "examples with NaN", "impute"),
    "whole numbers as token ids": Mistake(
        lambda: train((X * 9).astype(int)), "token ids are 0 or more", "got -", "number tokens from 0"
    ),
    "more clients than examples": Mistake(lambda: fl.iid(Y, 99, 0), "must be in 1..24", "got 99", "fewer clients"),
    "examples as labels": Mistake(
        lambda: fl.iid(train(), 4, 0), "must be a list of integers", "got Examples", "train.y"
    ),
    "shards that do not divide": Mistake(
        lambda: fl.shards(Y, 5, 3, seed=0), "must be a multiple", "got 3 * 5 = 15", "num_clients = 4 or 6"
    ),
    "alpha of 0": Mistake(lambda: fl.dirichlet(Y, 4, 0.0, seed=0), "greater than 0", "got 0", "0.1 is strong skew"),
    "a fraction in percent": Mistake(
        lambda: clients(test_fraction=20), "must be in [0, 1)", "got 20", "0.2 holds out one example in five"
    ),
    "words and gaps in a table": Mistake(
        lambda: fl.from_frame(TABLE, label="kind"),
        "must be numbers",
        "'age' with 1 missing, first in row 1; 'town' with 'Oslo' in row 0",
        "prepare=standard",
    ),
    "a misspelt column": Mistake(
        lambda: fl.from_frame(TABLE, label="kin"),
        "no column 'kin'",
        "got age, town, kind",
        "did you mean 'kind'",
    ),
    "new rows without a column": Mistake(
        lambda: new_rows(age=[30.0]),
        "must have the names 'age', 'town'",
        "got no 'town' in the new rows",
        "name columns as in",
    ),
    "new rows with words for numbers": Mistake(
        lambda: new_rows(age=["1.030,5"], town=["Oslo"]), "'age' must hold numbers", "got '1.030,5'", "decimal=','"
    ),
    # training
    "an optimiser's class": Mistake(
        lambda: fl.Local(optimiser=torch.optim.Adam),
        "must be one of fedloom's",
        "the class torch.optim.Adam",
        "write fedloom.Adam(lr=...)",
    ),
    "an optimiser of PyTorch": Mistake(
        lambda: fl.Local(optimiser=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)),
        "must be one of fedloom's",
        "a torch.optim.SGD",
        "write fedloom.SGD(lr=...)",
    ),
    "an optimiser's name": Mistake(
        lambda: fl.Local(optimiser="adam"), "must be one of fedloom's", "got 'adam'", "Adam(lr=0.001)"
    ),
    "our optimiser's class": Mistake(
        lambda: fl.Local(optimiser=fl.Adam), "must be one of fedloom's", "got Adam, a class", "write Adam(lr=0.01)"
    ),
    "a loss as task": Mistake(
        lambda: run(task=nn.CrossEntropyLoss()),
        "methods loss(logits, batch)",
        "got CrossEntropyLoss()",
        "fedloom.Classification() for cross-entropy",
    ),
    "a loss's class as task": Mistake(
        lambda: run(task=nn.CrossEntropyLoss),
        "methods loss(logits, batch)",
        "CrossEntropyLoss",
        "fedloom.Classification()",
    ),
    "the plain mean of a batch": Mistake(
        lambda: run(task=PlainMean()),
        "must be a mean over the real rows",
        "task PlainMean counts rows of padding",
        "batch.mean(F.cross_entropy(logits, batch.y, reduction='none'))",
    ),
    "an algorithm's class": Mistake(
        lambda: run(algorithm=fl.FedAvg), "must be a fedloom.Algorithm", "the class FedAvg", "FedAvg()"
    ),
    "an algorithm's name": Mistake(
        lambda: run(algorithm="fedavg"), "must be a fedloom.Algorithm", "got str 'fedavg'", "fedloom.FedAvg()"
    ),
    "examples as federation": Mistake(
        lambda: run(federation=train()), "must be a fedloom.Federation", "got Examples", "fedloom.federate"
    ),
    "settings as a dict": Mistake(
        lambda: run(settings={"rounds": 3}),
        "must be a fedloom.RunSettings",
        "got dict",
        "fedloom.RunSettings(rounds=30",
    ),
    "a model's name": Mistake(
        lambda: run(model="mlp"), "must be a module or a function", "got str 'mlp'", "fedloom.models.build('mlp'"
    ),
    "a class that needs arguments": Mistake(
        lambda: run(model=nn.Linear),
        "without arguments",
        "got Linear, which needs in_features, out_features",
        "lambda: Linear(...)",
    ),
    "a function that needs arguments": Mistake(
        lambda: run(model=sized), "without arguments", "got sized, which needs width", "lambda: sized(...)"
    ),
    "a model of another width": Mistake(
        lambda: run(model=nn.Linear(5, 2)), "do not take the data, 4 in 2 classes", "2x4 and 5x2", "logits (N, 2)"
    ),
    "a model with too few outputs": Mistake(
        lambda: run(model=nn.Linear(4, 1)),
        "do not take the data",
        "out of bounds",
        "logits (N, 2), and this one to (N, 1)",
    ),
    "FedNTD of two classes": Mistake(
        lambda: run(algorithm=fl.FedNTD()),
        "compares what models say",
        "at least 3 logits, and model Linear has 2",
        "more classes",
    ),
    "pFedSD of one logit": Mistake(
        lambda: run(algorithm=fl.PFedSD(), model=nn.Linear(4, 1), task=fl.SVM()),
        "compares what models say",
        "at least 2 logits, and model Linear has 1",
        "an algorithm that compares none",
    ),
    "alpha dropout": Mistake(
        lambda: run(model=nn.Sequential(nn.Linear(4, 2), nn.AlphaDropout())),
        "alpha_dropout draws random numbers",
        "no seed of a client governs",
        "Use nn.Dropout",
    ),
    "token ids of uint8": Mistake(
        lambda: run(model=Tokens, federation=clients(train((X * 0 + 200).astype(np.uint8)))),
        "as they are stored",
        "200 becomes",
        "normalise=fedloom.data.Tokens()",
    ),
    "regression": Mistake(
        lambda: run(federation=fl.federate(train(y=X[:, 0]), fl.iid(Y, 4, 0))),
        "are class numbers (integers)",
        "got float32 of shape (N,)",
        "--task regression",
    ),
    "too large a cohort": Mistake(
        lambda: run(settings=fl.RunSettings(rounds=1)),
        "larger than the federation",
        "cohort_size = 10",
        "set cohort_size <= 4",
    ),
    "public examples that are missing": Mistake(
        lambda: run(algorithm=fl.FedDF()), "needs public examples", "FedDF", "federate(..., public=examples)"
    ),
    "a misspelt setting": Mistake(
        lambda: fl.RunSettings(round=3), "RunSettings has no setting", "'round'", "did you mean 'rounds'"
    ),
    "a misspelt setting of training": Mistake(
        lambda: fl.Local(epoch=3), "Local has no setting", "'epoch'", "did you mean 'epochs'"
    ),
    "another algorithm's setting": Mistake(lambda: fl.FedAvg(mu=0.1), "FedAvg has no setting", "'mu'", "it has local"),
    "percent as target": Mistake(
        lambda: run(settings=fl.RunSettings(rounds=1, cohort_size=2, target=90)),
        "is a share in [0, 1]",
        "got 90",
        "write 0.9 for 90 %",
    ),
    "a misspelt measure": Mistake(
        lambda: run().to_target("global_acuracy", 0.5), "no round has measured", "'global_acuracy'", "measured: "
    ),
    "a measure that is not there": Mistake(lambda: run().plot("loss"), "no round has measured", "'loss'", "train_loss"),
    "new clients as a number": Mistake(
        lambda: run(new=2), "must be a fedloom.NewClients", "got int 2", "NewClients(5)"
    ),
    "several watchers": Mistake(
        lambda: run(on_round=[print]),
        "on_round must be a function of the history",
        "got list",
        "pass one that calls all",
    ),
}
WARNED = {
    "unscaled features": Mistake(
        lambda: run(federation=clients(train(X * [1, 1, 1e5, 1]))),
        "features of sizes far from 1",
        "column 2 (mean",
        "standardise them",
    ),
    "one class alone": Mistake(
        lambda: run(federation=clients(train(y=Y * 0, num_classes=2))),
        "all training examples have label",
        "label 0",
        "give examples of two classes",
    ),
    "a test label that nobody trains on": Mistake(
        lambda: run(
            federation=clients(
                train(y=Y * 0 + np.arange(24) % 3 % 2, num_classes=3), test=train(y=Y * 2, num_classes=3)
            ),
            model=nn.Linear(4, 3),
        ),
        "no client has training examples",
        "class 2",
        "number the labels of both alike",
    ),
    "a class that most examples have": Mistake(
        lambda: run(federation=clients(train(y=(np.arange(24) > 20).astype(int)), test_fraction=0)),
        "accuracy says little",
        "87.5% of those that train in class 0",
        "--headline auc",
    ),
    "a penalty of 0": Mistake(lambda: fl.FedProx(mu=0.0), "mu = 0", "mu = 0", "FedAvg"),
}
COMMANDS = {
    "a misspelt command": Mistake("runn fedavg", "invalid choice", "'runn'", "did you mean 'run'"),
    "a misspelt flag": Mistake(
        "run fedavg --roundss 3", "unrecognized arguments", "--roundss 3", "did you mean '--rounds'"
    ),
    "two algorithms to run": Mistake("run fedavg fedprox", "unrecognized arguments", "fedprox", "fedloom compare"),
    "a misspelt choice": Mistake("run fedavg --engine staked", "invalid choice", "'staked'", "did you mean 'stacked'"),
    "a misspelt algorithm": Mistake("run fedavgg", "unknown algorithm", "'fedavgg'", "did you mean 'fedavg'"),
    "a settings file for an algorithm": Mistake(
        "run mine.toml", "one that `fedloom algorithms` lists", "'mine.toml'", "--settings mine.toml"
    ),
    "a figure of no clients": Mistake("data show --shown 0", "number of at least 1", "'0'", "--shown"),
    "an algorithm by another library's name": Mistake(
        "run PerAvg", "unknown algorithm", "'PerAvg'", "did you mean 'per_fedavg'"
    ),
    "an algorithm of another library": Mistake(
        "run FedAMP", "one that `fedloom algorithms` lists", "got 'FedAMP'", "docs/algorithms.md says how to write it"
    ),
    "half an algorithm": Mistake(
        "run mistaken:Half", "must say what init", "'mistaken:Half' without init", "derive it from fedloom.FedAvg"
    ),
    "a file's name as module": Mistake(
        "run parts/mistaken.py:Half", "is module:name, without .py", "'parts/mistaken.py:Half'", "parts.mistaken:Half"
    ),
    "a network that needs arguments": Mistake(
        "run fedavg --data own.npz --partition iid --clients 4 --model mistaken:Sized",
        "without arguments",
        "got Sized, which needs num_classes",
        "name a function that returns one",
    ),
    "a share as cohort": Mistake(
        "run fedavg --cohort 0.5", "--cohort must be of type int", "got '0.5'", "not a share of it"
    ),
    "a client in the place of a probability": Mistake(
        "run fedavg --lost list:3", "--lost must be of type float", "got 'list:3'", "such as 0.1"
    ),
    "clients of PFLlib": Mistake(
        "run fedavg --data 0.npz", "must hold x_train", "is missing among data", "are read as pfllib:"
    ),
    "a folder as data": Mistake("run fedavg --data several", "is read as NAME:FOLDER", "'several'", "images:several"),
    "a partition cut short": Mistake(
        "run fedavg --data own.npz --partition dir:0.1", "unknown partition", "'dir:0.1'", "did you mean 'dirichlet'"
    ),
    "a word for gaps, and dates": Mistake(
        "run fedavg --data visits.csv?label=kind&prepare=standard",
        "must be numbers, or a few different words",
        "'age' with 'k.A.' in line 5; 'day' with 30 different dates such as '01.02.2020', more than 20",
        "name words that mean a gap (gaps=k.A.), name those that hold categories (categories=NAME), make numbers of "
        "dates",
    ),
    "a misspelt model": Mistake(
        "run fedavg --data own.npz --clients 4 --partition iid --model lenett",
        "unknown model",
        "'lenett'",
        "did you mean 'lenet'",
    ),
    "a misspelt partition": Mistake(
        "run fedavg --data own.npz --partition dirichlt:0.1",
        "unknown partition",
        "'dirichlt:0.1'",
        "did you mean 'dirichlet'",
    ),
    "a misspelt data set": Mistake(
        "run fedavg --data mnst:files", "unknown data", "'mnst:files'", "did you mean 'mnist'"
    ),
    "files that are not there": Mistake(
        "run fedavg --data mnist:nowhere",
        "needs all its files in one folder",
        "train-images-idx3-ubyte",
        "fedloom data download mnist nowhere",
    ),
    "a data set without a folder": Mistake(
        "run fedavg --data mnist", "needs the folder with its files", "'mnist'", "mnist:FOLDER"
    ),
    "a table's label": Mistake(
        "run fedavg --data table.csv", "no column 'label'", "got age, kind", "table.csv?label=NAME"
    ),
    "a misspelt key of a table": Mistake(
        "run fedavg --data table.csv?labl=kind", "of a table one says", "'labl=kind'", "did you mean 'label'"
    ),
    "a misspelt key in a file": Mistake(
        "run fedavg --settings bad.toml", "run has no setting", "'round'", "did you mean 'rounds'"
    ),
    "another algorithm's flag": Mistake("run fedavg --set mu=3", "fedavg has no setting", "'mu'", "it has aggregation"),
    "percent as a flag": Mistake("run fedavg --target 90", "is a share in [0, 1]", "got 90", "write 0.9 for 90 %"),
    "a run among several": Mistake(
        "run fedavg --out several", "holds several runs", "fedavg, fedprox", "choose another directory"
    ),
    "no seed's folder": Mistake("run fedavg --resume", "continues the runs of a directory", "--resume", "--out DIR"),
    "no run": Mistake("report nowhere", "is no folder", "nowhere", "name one that holds runs"),
    "a misspelt analysis": Mistake(
        "analyse several/fedavg tnse", "there is no analysis", "'tnse'", "did you mean 'tsne'"
    ),
    "a misspelt table": Mistake(
        "reproduce fedntd-tabel1", "unknown table", "'fedntd-tabel1'", "did you mean 'fedntd-table1'"
    ),
    "a misspelt method": Mistake(
        "summary several --against FedAvgg", "must be one of the methods", "got 'FedAvgg'", "did you mean 'FedAvg'"
    ),
    "no validation examples": Mistake(
        "sweep fedavg --data own.npz --over local.lr=0.1,1 --out s",
        "measured on validation examples",
        "--val-fraction is 0",
        "--val-fraction 0.2",
    ),
}


def told(mistake: Mistake, said: str) -> None:
    for part in mistake[1:]:
        assert part in said, (part, said)


@pytest.mark.some(29)
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
@pytest.mark.parametrize("name", PYTHON)
def test_in_python(name: str) -> None:
    mistake = PYTHON[name]
    assert callable(mistake.done)
    with pytest.raises((SettingError, ValueError)) as error:
        mistake.done()
    told(mistake, str(error.value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", WARNED)
def test_what_is_legal_is_warned_of(name: str) -> None:
    mistake = WARNED[name]
    assert callable(mistake.done)
    with pytest.warns(SettingWarning) as found:
        mistake.done()
    told(mistake, " ".join(str(one.message) for one in found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of every kind, and a folder with two runs."""
    here = tmp_path_factory.mktemp("mistakes")
    np.savez(here / "own.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
    (here / "table.csv").write_text("age,kind\n30,a\n40,b\n")
    days = [f"{i + 4},{i + 1:02d}.02.2020,{'ab'[i % 2]}" for i in range(30)]
    days[3] = days[3].replace("7,", "k.A.,", 1)
    (here / "visits.csv").write_text("\n".join(["age,day,kind", *days]))
    np.savez(here / "0.npz", data=np.array({"x": X, "y": Y}, object))
    (here / "mistaken.py").write_text(
        "import fedloom as fl\nfrom torch import nn\n\n"
        "class Half(fl.Algorithm):\n    def train(self): ...\n\n"
        "class Sized(nn.Linear):\n    def __init__(self, num_classes): super().__init__(4, num_classes)\n"
    )
    (here / "bad.toml").write_text("[run]\nround = 3\n")
    for algorithm in (fl.FedAvg(), fl.FedProx(mu=0.1)):
        settings = fl.RunSettings(rounds=1, cohort_size=2, threads=1, engine="loop", compilation="none")
        place = here / "several" / type(algorithm).__name__.lower()
        fl.run(algorithm, clients(), nn.Linear(4, 2), settings, directory=place)
    return here


@pytest.mark.some(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_on_the_command_line(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake = COMMANDS[name]
    monkeypatch.chdir(folder)
    try:
        status: Any = main(str(mistake.done).split())
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2
    told(mistake, err)
    assert "Traceback" not in out + err
    assert len(err.splitlines()) <= 2


def test_there_are_many() -> None:
    assert len(PYTHON) + len(WARNED) + len(COMMANDS) >= 50


def test_what_is_built_in_is_not_said_to_be_missing() -> None:
    for name, kind in ALGORITHMS.items():
        for typed in (kind.__name__, name.replace("_", "-")):
            if typed not in ALGORITHMS:
                with pytest.raises(SettingError, match=f"did you mean '{name}'"):
                    catalogue.kind(typed)
