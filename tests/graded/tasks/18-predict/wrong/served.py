import fedloom as fl
from fedloom.cli.main import main

if __name__ == "__main__":
    job = fl.Experiment.of(
        {
            "algorithm": "pfedsd",
            "model": "logistic",
            "data": {"source": "clouds:examples", "clients": 6, "partition": "dirichlet:0.3"},
            "local": {"epochs": 2, "batch_size": 10, "lr": 0.1},
            "run": {"rounds": 4, "cohort_size": 6},
        }
    ).job()
    job.run("runs/served")
    main(["export", "runs/served", "global.safetensors", "--allow-code"])
    main(["export", "runs/served", "client2.safetensors", "--client", "2", "--allow-code"])
    fl.predict("runs/served", "new.npz", allow_code=True).csv("said.csv")
