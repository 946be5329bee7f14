"""Devices over NATS, whose server carries the bytes."""
