"""From the engine's steps to the token log and the result."""

from millstream_worker.delivery.output_processor import OutputProcessor
from millstream_worker.delivery.release import RetryDelay, release_jobs
from millstream_worker.delivery.reply_handler import ReplyHandler
from millstream_worker.delivery.write_builder import FlushPolicy, WriteBuilder
from millstream_worker.delivery.writer import Writer

__all__ = [
    "FlushPolicy",
    "OutputProcessor",
    "ReplyHandler",
    "RetryDelay",
    "WriteBuilder",
    "Writer",
    "release_jobs",
]
