"""The rows of a job that is prepared: they go on after the token log of its earlier attempts."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.choices import ChoiceDelta, Delta
from millstream.wire.messages.record import DELTA
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.script_replies import LogEntry, StartReply
from millstream_worker.intake.preparation.grammar_request import has_thought_in_text, tool_call_mode
from millstream_worker.jobs.call_output import CallOutput
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.text.continued_turn import goes_on
from millstream_worker.text.model import TextModel
from millstream_worker.text.reasoning import ThoughtStart


class LogDamaged(Exception):
    """The token log of earlier attempts has a gap, or an entry that no worker wrote."""


def resume_rows(job: Job, started: StartReply, text: TextModel, vocab_size: int, start: ThoughtStart) -> None:
    """Give the job its rows, and the log as it is written. Raises LogDamaged."""
    asked = job.request.sampling
    bodies, deltas = _logged(started)
    for delta in deltas:
        _check_logged(delta, asked, vocab_size)
    job.log.written = bodies
    job.log.acknowledged = len(bodies)
    mode, begun = tool_call_mode(job.request, job.id, text, start), goes_on(job.request)
    for index in range(asked.n):
        special = not asked.skip_special_tokens
        detokenizer = text.detokenizer(
            asked.stop,
            asked.min_tokens,
            calls=mode is not None,
            special=special,
            with_stop=asked.include_stop_str_in_output,
            begun=begun,
        )
        row = ChoiceOutput(index, detokenizer, watched=bool(asked.stop))
        row.constrained = job.input.grammar is not None
        row.calling = None if mode is None else CallOutput(mode, index)
        row.logprobs = [] if asked.logprobs else None
        own = [delta for delta in deltas if delta.index == index]
        if not has_thought_in_text(own, start, text):
            row.thought = text.thought(start, special=special, calls=mode is not None)
            row.watched |= row.thought is not None and row.thought.ends_answer
        try:
            row.resume(own)
        except ProtocolError as error:
            raise LogDamaged(str(error)) from error
        job.rows.append(row)


def _logged(started: StartReply) -> tuple[list[bytes], list[ChoiceDelta]]:
    """The log's bodies in order, and their deltas."""
    entries: Sequence[LogEntry] = [entry for entry in started.log if entry.kind == DELTA]
    if [entry.seq for entry in entries] != list(range(1, started.last_seq + 1)):
        raise LogDamaged(f"the token log should hold 1 to {started.last_seq}, but has {len(entries)} entries")
    try:
        bodies = [codec.decode(Delta, entry.body, codec.MAX_RESULT_BYTES) for entry in entries]
    except ProtocolError as error:
        raise LogDamaged(str(error)) from error
    return [entry.body for entry in entries], [part for body in bodies for part in body.choices]


def _check_logged(delta: ChoiceDelta, asked: SamplingParams, vocab_size: int) -> None:
    """Check the content as a worker would write it; invalid content would kill one engine after the other."""
    if not 0 <= delta.index < asked.n:
        raise LogDamaged(f"the token log has choice {delta.index}, and {asked.n} were asked for")
    if any(token >= vocab_size for token in delta.token_ids):
        raise LogDamaged(f"the token log holds a token beyond the vocabulary of {vocab_size}")
    if asked.logprobs and len(delta.logprobs or ()) != len(delta.token_ids):
        raise LogDamaged("the token log has other log-probabilities than tokens")
