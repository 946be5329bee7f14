"""The published numbers of DENSE (Zhang et al., NeurIPS 2022): top-1 accuracy in %, and where each table comes from.

The paper itself is not in the material that we hold. Table 1 is printed by two later papers, which agree; its row of
the ensemble and the table of numbers of clients by one of them (FuseFL) alone. The authors of Co-Boosting ran all
methods again. A column is DATA-aALPHA-mCLIENTS: the concentration of the Dirichlet partition, and how many clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

TABLES = {
    "dense-table1": """
              mnist-a0.1-m5 | mnist-a0.3-m5 | mnist-a0.5-m5 | fmnist-a0.1-m5 | fmnist-a0.3-m5 | fmnist-a0.5-m5
    fedavg    48.24 | 72.94 | 90.55 | 41.69 | 82.96 | 83.72
    feddf     60.15 | 74.01 | 92.18 | 43.58 | 80.67 | 84.67
    fed_dafl  64.38 | 74.18 | 93.01 | 47.14 | 80.59 | 84.02
    fed_adi   64.13 | 75.03 | 93.49 | 48.49 | 81.15 | 84.19
    dense     66.61 | 76.48 | 95.82 | 50.29 | 83.96 | 85.94
    ensemble  86.81 | 96.76 | 97.22 | 67.71 | 87.25 | 89.42

              cifar10-a0.1-m5 | cifar10-a0.3-m5 | cifar10-a0.5-m5 | svhn-a0.1-m5 | svhn-a0.3-m5 | svhn-a0.5-m5
    fedavg    23.93 | 27.72 | 43.67 | 31.65 | 61.51 | 56.09
    feddf     40.58 | 46.78 | 53.56 | 49.13 | 73.34 | 73.98
    fed_dafl  47.34 | 53.89 | 58.59 | 53.23 | 76.56 | 78.03
    fed_adi   48.59 | 54.68 | 59.34 | 53.45 | 77.45 | 78.85
    dense     50.26 | 59.76 | 62.19 | 55.34 | 79.59 | 80.03
    ensemble  57.5  | 77.35 | 79.91 | 65.29 | 88.31 | 85.7

              cifar100-a0.1-m5 | cifar100-a0.3-m5 | cifar100-a0.5-m5 | tiny-a0.1-m5 | tiny-a0.3-m5 | tiny-a0.5-m5
    fedavg    4.58  | 11.61 | 12.11 | 3.12  | 10.46 | 11.89
    feddf     28.17 | 30.28 | 36.35 | 15.34 | 18.22 | 27.43
    fed_dafl  28.89 | 34.89 | 38.19 | 18.38 | 22.18 | 28.22
    fed_adi   30.13 | 35.18 | 40.28 | 19.59 | 25.34 | 30.21
    dense     32.03 | 37.32 | 42.07 | 22.44 | 28.14 | 32.34
    ensemble  35.69 | 49.41 | 53.39 | 30.85 | 39.43 | 45.8
    """,
    "dense-clients": """
              cifar10-a0.5-m5 | cifar10-a0.5-m10 | cifar10-a0.5-m20 | cifar10-a0.5-m50
    fedavg    43.67   | 38.29 | 36.03 | 23.01
    feddf     53.56   | 54.44 | 43.15 | 29.52
    fed_dafl  55.46 a | 56.34 | 45.98 | 29.41
    fed_adi   58.59 a | 57.13 | 46.45 | 27.45
    dense     62.19   | 61.42 | 52.71 | 28.51
    ensemble  79.91   | 77.25 | 59.69 | 55.63

              svhn-a0.5-m5 | svhn-a0.5-m10 | svhn-a0.5-m20 | svhn-a0.5-m50
    fedavg    56.09 | 45.34 | 47.79 | 36.53
    feddf     73.98 | 62.12 | 60.45 | 51.44
    fed_dafl  78.03 | 63.34 | 62.19 | 54.23
    fed_adi   78.85 | 65.45 | 63.98 | 57.35
    dense     80.03 | 67.57 | 66.42 | 59.27
    ensemble  85.7  | 73.45 | 68.76 | 54.96 b
    """,
    "dense-coboosting": """
              cifar10-a0.05-m10 | cifar10-a0.1-m10 | cifar10-a0.3-m10
    fedavg    17.49 | 27.54 | 46.39
    feddf     37.53 | 49.63 | 67.18
    fed_adi   36.94 | 47.19 | 60.60
    fed_dafl  37.82 | 46.32 | 65.89
    dense     38.37 | 47.80 | 66.77

              cifar100-a0.05-m10 | cifar100-a0.1-m10 | cifar100-a0.3-m10
    fedavg    6.45  | 10.28 | 15.22
    feddf     16.07 | 22.07 | 30.71
    fed_adi   13.75 | 19.44 | 26.14
    fed_dafl  15.79 | 20.99 | 28.79
    dense     16.17 | 22.21 | 30.33
    """,
    "dense-readme": """
              cifar10-a0.5-m5
    fedavg    30.93
    dense     lost
    ensemble  71.81
    """,
}

NOTES = {  # a cell with one of these is no target
    "a": "Table 1 has 58.59 (Fed-DAFL) and 59.34 (Fed-ADI) for the same setting: a copy shifted by a row",
    "b": "lower than the student that it teaches (DENSE 59.27), which nothing explains",
}

ABOUT = {
    "dense-table1": "one round, five clients, six data sets",
    "dense-clients": "one round, 5 to 50 clients",
    "dense-coboosting": "the re-run by the authors of Co-Boosting, ten clients",
    "dense-readme": "the run of the released code's README, 400 local epochs",
    "dense-heterogeneous": "five architectures; the numbers are lost",
    "dense-ldam": "clients that train with LDAM; the numbers are lost",
    "dense-rounds": "one to five rounds of uploads; the numbers are lost",
    "dense-ablation": "without L_BN, without L_div, without both; the numbers are lost",
    "dense-lambda1": "L_BN by its weight, with 2 and with 8 BatchNorm layers; ours",
}


class Cell(NamedTuple):
    """One cell of a published table; None where the number is lost."""

    row: str
    column: str
    accuracy: float | None
    note: str | None


def cells(table: str) -> Iterator[Cell]:
    """Yield every cell of a published table, column after column in each of its parts."""
    for part in TABLES[table].strip().split("\n\n"):
        first, *lines = part.strip().splitlines()
        rows = [line.split(None, 1) for line in lines]
        for i, column in enumerate(first.split("|")):
            for row, values in rows:
                number, _, note = values.split("|")[i].strip().partition(" ")
                yield Cell(row, column.strip(), None if number == "lost" else float(number), note or None)
