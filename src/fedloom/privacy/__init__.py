"""Differential privacy of a run, by the setting `privacy`."""
