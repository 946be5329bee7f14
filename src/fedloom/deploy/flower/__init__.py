"""Devices over Flower, whose processes carry the bytes."""
