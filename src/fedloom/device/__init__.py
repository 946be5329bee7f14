"""Device side: the modules of section 3.2 of pFedSD that live on a device, as parts of one process."""

from fedloom.device.controller import Controller
from fedloom.device.data_manager import DataManager
from fedloom.device.membership import Membership, take_part
from fedloom.device.model_manager import ModelManager
from fedloom.device.monitor import Limits, Reading, SystemMonitor, system_monitor

__all__ = [
    "Controller",
    "DataManager",
    "Limits",
    "Membership",
    "ModelManager",
    "Reading",
    "SystemMonitor",
    "system_monitor",
    "take_part",
]
