import json

import fedloom as fl

if __name__ == "__main__":
    base = fl.Experiment.of(
        {
            "algorithm": "fedprox",
            "model": "logistic",
            "data": {
                "source": "fashion_mnist_small", "examples": 1000, "clients": 10, "partition": "dirichlet:0.5",
                "partition_seed": 3, "val_fraction": 0.2,
            },
            "local": {"epochs": 1, "batch_size": 10},
            "run": {"rounds": 4, "cohort_size": 4},
        }
    )  # fmt: skip
    sweep = fl.Sweep(base, {"mu": [0.01, 1.0], "local.lr": [0.01, 0.1]}, seeds=[0, 1])
    best = sweep.ranked(sweep.run("runs/mu"))[0]
    chosen = {
        "mu": best.settings["fedprox.mu"],
        "lr": best.settings["local.lr"],
        "score": best.score,
        "test": best.measures["global_accuracy"],
    }
    with open("chosen.json", "w") as file:
        json.dump(chosen, file)
