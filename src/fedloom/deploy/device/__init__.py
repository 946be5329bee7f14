"""Device side: the modules of section 3.2 of pFedSD that live on a device, as parts of one process."""

from fedloom.deploy.device.controller import Controller
from fedloom.deploy.device.data_manager import DataManager
from fedloom.deploy.device.membership import Membership
from fedloom.deploy.device.model_manager import ModelManager
from fedloom.deploy.device.monitor import Limits, Reading, SystemMonitor, system_monitor
from fedloom.deploy.participation import take_part

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
