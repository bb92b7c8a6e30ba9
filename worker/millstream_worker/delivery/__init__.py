"""From the engine's steps to what readers and pollers see."""

from millstream_worker.delivery.answers import Answers
from millstream_worker.delivery.handback import RetryDelay, hand_back
from millstream_worker.delivery.outgoing import Outgoing, Pace
from millstream_worker.delivery.settling import Settling
from millstream_worker.delivery.writer import Writer

__all__ = ["Answers", "Outgoing", "Pace", "RetryDelay", "Settling", "Writer", "hand_back"]
