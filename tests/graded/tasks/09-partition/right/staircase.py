import numpy as np

import fedloom as fl


def staircase(labels, num_clients, seed):
    labels = np.asarray(labels)
    n, total = len(labels), num_clients * (num_clients + 1) // 2
    if n < total:
        raise fl.SettingError(f"{num_clients} stairs need {total} rows, got {n}: take fewer clients")
    rows = np.argsort(labels, kind="stable")
    ends = np.cumsum([n * (j + 1) // total for j in range(num_clients)])[:-1]
    order = np.random.default_rng(seed).permutation(num_clients)
    lists = [[]] * num_clients
    for j, stretch in enumerate(np.split(rows, ends)):
        lists[order[j]] = stretch
    return fl.data.by_lists(lists)
