"""Runs by words: settings files and flags, sweeps, and what comes out, to files and trackers."""
