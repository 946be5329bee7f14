"""Numbers that a run tells of its clients beside what its epsilon is of, by its settings."""

from __future__ import annotations

from fedloom.coordinator.part import Brief
from fedloom.core.task import ChoosesThreshold


def told_beside(job: Brief, *, losses: bool) -> str:
    """Return what a run tells that no noise protects, as the end of a sentence on its epsilon.

    Args:
        job: the run.
        losses: whether clients tell their training losses.
    """
    s, f, task = job.settings, job.federation, job.task
    watched = s.monitor if s.target is not None or s.patience is not None else ""
    told = {
        "who was asked": True,
        f"how many examples{' of each class' * f.train.has_classes} clients have": True,
        "training losses": losses,
        "losses of personal models on training examples": s.evaluate_training,
        "numbers of personal models on held-out examples": f.local_test is not None,
        "numbers on validation examples": f.local_val is not None,
        "the round that was kept by them": s.keep_best,
        "a threshold that they chose": isinstance(task, ChoosesThreshold) and task.chosen_by is not None,
        f"when {watched} ended the run": watched and not watched.startswith("global_"),  # that is of common examples
        "numbers of each client (clients.jsonl)": s.per_client,
        "numbers of new clients": job.new is not None,
        "the statistics that prepared the tables": f.train.preparation is not None,
    }
    said = [what for what, is_told in told.items() if is_told]
    return (
        f"not of what this run tells beside them ({', '.join(said)}), nor of other runs on these clients, such as "
        "those of a sweep"
    )
