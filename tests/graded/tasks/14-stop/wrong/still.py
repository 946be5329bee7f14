import fedloom as fl


class Still(fl.Part):
    columns = (
        fl.Measure(
            "moved", "Movement", "moved", "Norm of the change of the model.", unit="", better=None, range=(0, None)
        ),
    )

    def __init__(self, least):
        self.least = least

    def model(self, run):
        (state,) = run.server.values()
        return run.algorithm.global_weights(state).params

    def begin(self, run):  # also where the run goes on: server and records are those of the checkpoint
        self.last, self.quiet = self.model(run), 0

    def count(self, moved):
        self.quiet = self.quiet + 1 if moved < self.least else 0

    def after(self, run):
        if run.done == 0:
            return {}
        now = self.model(run)
        moved = float((now - self.last).sq_norm().sqrt())
        self.last = now
        self.count(moved)
        return {"moved": moved}

    def stop(self, run, record):
        return "the model stands still" if self.quiet >= 2 else None
