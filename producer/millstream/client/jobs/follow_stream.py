"""A job's events as they come: performs the reads that StreamReader wants."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace

from millstream.client.session.ended_job import result_without_choices
from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.session import Session
from millstream.client.streaming.cursor import Cursor
from millstream.client.streaming.events import EndEvent, Event
from millstream.client.streaming.mailbox import Mailbox
from millstream.client.streaming.reader import StreamReader, Want
from millstream.errors import ProtocolError
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.record import parse_event
from millstream.wire.messages.script_replies import LogEntry

POLLS_PER_S = 200  # at most, of all silent streams of a client: published messages wake them anyway


async def follow(jobs: QueueJobs, name: str, cursor: str | None) -> AsyncGenerator[Event, None]:
    """The events after `cursor`, to the end of the job `name` (a full or an own id). Raises what StreamReader
    and the server raise.
    """
    place = Cursor.parse(cursor)
    job_id = await jobs.session.outlast(lambda: jobs.full_id(name))
    reader = StreamReader(job_id, place)
    keys = await jobs.keys(job_id)
    dispatcher = jobs.session.dispatcher((await jobs.info()).pubsub)
    mailbox = Mailbox(jobs.session.options.stream_buffer, jobs.session.mailroom)
    with contextlib.closing(mailbox), dispatcher.subscription([keys.events(job_id)], mailbox):
        await mailbox.ready(jobs.session.options.timeout_s)  # without success, the stream polls
        heard_s = time.monotonic()
        while reader.want is not Want.NOTHING:
            try:
                events = await _step(jobs, job_id, reader, mailbox)
            except ProtocolError as error:
                raise await jobs.unreadable(job_id, error) from error
            if events:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s >= jobs.session.looks.after_s:
                await jobs.look([job_id])
            for event in events:
                yield await _explained(jobs, event) if isinstance(event, EndEvent) else event


def _turn_s(session: Session) -> float:
    """Seconds between a stream's polls, by the client's number of streams; jittered, so that these spread."""
    return session.mailroom.streams / POLLS_PER_S * random.uniform(0.75, 1.25)


async def _step(jobs: QueueJobs, job_id: str, reader: StreamReader, mailbox: Mailbox) -> list[Event]:
    match reader.want:
        case Want.TAIL:
            return reader.tail(*await jobs.session.outlast(lambda: jobs.tail(job_id, reader.place)))
        case Want.WHOLE:
            return reader.whole(*await jobs.session.outlast(lambda: jobs.whole(job_id)))
    mail = await mailbox.take(max(reader.patience_s, _turn_s(jobs.session)))
    if mail is None:
        reader.silence()
        return []
    if mail.rejoined:
        reader.lost()
    elif mail.lost:
        reader.silence()
    return reader.messages(_parsed(mail.payloads, reader))


def _parsed(payloads: Iterable[bytes], reader: StreamReader) -> Iterator[LogEntry]:
    """Published entries; an unreadable message counts as lost: anybody may publish."""
    for payload in payloads:
        try:
            yield parse_event(payload)
        except ProtocolError:
            reader.silence()


async def _explained(jobs: QueueJobs, event: EndEvent) -> EndEvent:
    """A failed job's end with its error, which is in the result and not in the log."""
    if event.state is not State.FAILED or event.error is not None:
        return event
    [record] = await jobs.session.outlast(lambda: jobs.read([event.job_id]))
    result = record and result_without_choices(record)
    return replace(event, error=result.error) if result else event
