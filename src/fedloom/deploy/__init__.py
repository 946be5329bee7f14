"""Runs of devices: their server, a device's side, the list of who may connect, and a room for each transport."""
