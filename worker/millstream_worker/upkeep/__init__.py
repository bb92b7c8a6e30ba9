"""The queue's maintenance, which every worker does for all."""

from millstream_worker.upkeep.heartbeats import Heartbeats
from millstream_worker.upkeep.lost_entries import LostEntries
from millstream_worker.upkeep.maintenance import Maintenance
from millstream_worker.upkeep.periodic_tasks import PeriodicTask, Upkeep
from millstream_worker.upkeep.queue_metrics import QueueFigures
from millstream_worker.upkeep.reclaim import LeaseTimes, Reclaimer
from millstream_worker.upkeep.shards import on_all

__all__ = [
    "Heartbeats",
    "LeaseTimes",
    "LostEntries",
    "Maintenance",
    "PeriodicTask",
    "QueueFigures",
    "Reclaimer",
    "Upkeep",
    "on_all",
]
