"""The server of a run of devices: it receives them, asks them, and believes nothing that it cannot check."""
