"""Copies of run folders at another address, by the setting `mirror`: a machine may be lost, and the run goes on."""
