"""Ranks: processes that were launched together over Gloo or MPI, and compute one run."""
