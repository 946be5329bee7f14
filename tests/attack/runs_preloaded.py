"""Imported by the process that forks those which are attacked: after a run, all that runs import is there."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings

import runs
import torch

torch.set_num_threads(1)  # a process with threads of its own could not be forked
with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
    warnings.simplefilter("ignore")
    runs.job("kt_pfl", "loop", 2).run(folder)
