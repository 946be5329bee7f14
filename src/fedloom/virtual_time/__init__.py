"""Virtual time of a simulated run: how long clients would take, by their devices and by what travels."""
