"""From lanes and expired leases to prepared jobs, as many as the engine can hold."""

from millstream_worker.intake.admission import Admission
from millstream_worker.intake.cached_results import CachedResults
from millstream_worker.intake.job_preparer import JobPreparer
from millstream_worker.intake.job_starter import JobStarter
from millstream_worker.intake.lanes import LaneReader, ReadTimes
from millstream_worker.intake.long_job_reader import LongJobReader
from millstream_worker.intake.loop import Intake, ShardSource
from millstream_worker.intake.prepare_job import JobBounds

__all__ = [
    "Admission",
    "CachedResults",
    "Intake",
    "JobBounds",
    "JobPreparer",
    "JobStarter",
    "LaneReader",
    "LongJobReader",
    "ReadTimes",
    "ShardSource",
]
