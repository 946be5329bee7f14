"""Imported by the process that forks servers and devices of masked sums over NATS: all that they import is there."""

from __future__ import annotations

import nats.aio.client
import runs_preloaded

import fedloom.deploy.device.device_masks
import fedloom.deploy.device.join
import fedloom.deploy.nats.nats_transport
import fedloom.deploy.server.masked_exchange
import fedloom.deploy.server.serve

__all__ = ["fedloom", "nats", "runs_preloaded"]
