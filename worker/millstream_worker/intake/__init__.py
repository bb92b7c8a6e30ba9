"""From lanes and expired leases to prepared jobs, as many as the engine can hold."""

from millstream_worker.intake.admission import Admission
from millstream_worker.intake.lanes import LaneReader, ReadTimes
from millstream_worker.intake.lookup import Lookup
from millstream_worker.intake.loop import Intake, ShardSource
from millstream_worker.intake.preparation import JobBounds
from millstream_worker.intake.preparer import JobPreparer
from millstream_worker.intake.reading import Reading
from millstream_worker.intake.starting import Starting

__all__ = [
    "Admission",
    "Intake",
    "JobBounds",
    "JobPreparer",
    "LaneReader",
    "Lookup",
    "ReadTimes",
    "Reading",
    "ShardSource",
    "Starting",
]
