"""The product with one safety taken out at a time, to see that the suite notices what each of them is for.

`python -m chaos.mutants NAME FLAGS…` runs a worker without that safety.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from support.workers import word_engine

from chaos.edits import CodeEdit, LuaEdit
from millstream.__main__ import main as millstream

ENGINE, GATEWAY = "--engine", "--gateway"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`without`: what is taken out."""

    name: str
    without: str
    edits: tuple[LuaEdit | CodeEdit, ...]
    clients: bool = False  # the safety is one of the clients, not of the workers
    engines: bool = False  # it is one of the engines
    gateways: bool = False  # it is one of the gateways

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """To this process. Raises Stale."""
        with contextlib.ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(edit.applied())
            yield

    @property
    def engine_command(self) -> str:
        return shlex.join((sys.executable, "-m", __spec__.name, self.name, ENGINE)) if self.engines else ""

    @contextlib.contextmanager
    def in_clients(self) -> Iterator[None]:
        """To this process where the safety is one of clients."""
        with self.applied() if self.clients else contextlib.nullcontext():
            yield


def main(arguments: Sequence[str]) -> int:
    """Without the safety that the first argument names: a worker, or the engine or gateway of the second."""
    with MUTANTS[arguments[0]].applied():
        if arguments[1] == ENGINE:
            return word_engine.main(arguments[2:])
        if arguments[1] == GATEWAY:
            sys.argv[1:] = arguments[2:]
            millstream()
            return 0
        from millstream_worker.__main__ import main as work

        return work(arguments[1:])


def _mutant(name: str, without: str, *edits: tuple[str, str, str], **of: bool) -> Mutant:
    """Each edit: a Lua file or `module:function`, the text that is there, and what stands there instead."""
    made = tuple((LuaEdit if edit[0].endswith(".lua") else CodeEdit)(*edit) for edit in edits)
    return Mutant(name, without, made, **of)


WORKER, CLIENT, DOOR = "millstream_worker.", "millstream.client.", "millstream.gateway."
RECLAIMER = f"{WORKER}upkeep.reclaim:Reclaimer."
READER = f"{CLIENT}streaming.reader:StreamReader."
BRAIN = f"{WORKER}engine.brain."
ENGINES = f"{WORKER}engine.engine:Engine."
ENDING = "parts/ending.lua"
DROP = "drop(lane, entry)\n"
LOG_REPAIR = (
    (f"{READER}lost", "self.silence()", "pass"),
    (f"{READER}messages",
     "if self._joins(entry) and (entry.kind == MARKER or entry.attempt == self._attempt):", "if True:"),
)  # fmt: skip

_ALL = (
    _mutant(
        "no fence",
        "the check that a write comes from the attempt that the job belongs to",
        ("parts/job.lua", "return job.attempt == attempt and job.owner == owner and job.entry == entry",
         "return true"),
    ),
    _mutant(
        "no marker",
        "the resume marker that begins an attempt's part of the log",
        ("start.lua", "redis.call('XADD', tokens, marker, 'k', 'm', 'b', digest)", ""),
    ),
    _mutant(
        "one log for two models",
        "the new beginning of a job whose output another model has begun",
        ("start.lua", "local anew = is_other_model(job.model_digest, digest)", "local anew = false"),
    ),
    _mutant(
        "one sighting",
        "the second look at an overdue entry, one renewal later",
        (f"{RECLAIMER}_ripe", "now - sighting.since >= _SURE * self.renew_s", "True"),
    ),
    _mutant(
        "no idle time",
        "the lease itself: an entry is taken over however short ago it was renewed",
        (f"{RECLAIMER}_is_overdue", "idle_ms >= self._lease_ms", "True"),
        ("reclaim.lua", "held[3] >= min_idle_ms", "true"),
    ),
    _mutant(
        "end after entry",
        "the order of an end's writes: those that a full server refuses come first, unlooked at",
        (ENDING, "redis.call('PERSIST', k.job)\n", ""),
        (ENDING, "redis.call('HSET', k.job, 'state'", "redis.pcall('HSET', k.job, 'state'"),
        (ENDING, "redis.call('HSET', k.job, 'result'", "redis.pcall('HSET', k.job, 'result'"),
        ("finish.lua", f"{DROP}if has_delta", "if has_delta"),
        ("finish.lua", "return 'ok'", f"{DROP}return 'ok'"),
    ),
    _mutant(
        "entry before fence",
        "the order of an end's writes: the entry goes before it is looked at whose it is",
        ("finish.lua", "local mine = belongs", f"{DROP}local mine = belongs"),
    ),
    _mutant(
        "no log repair",
        "the reader's look into the log where messages were lost",
        *LOG_REPAIR,
        clients=True,
    ),
    _mutant(
        "no log repair in gateways",
        "the same, of the streams that gateways pass on",
        *LOG_REPAIR,
        gateways=True,
    ),
    _mutant(
        "no renewal",
        "the renewal of leases",
        (f"{WORKER}leases.renewal:Leases.renew", "self._pages()", "[]"),
    ),
    _mutant(
        "blame in company",
        "the rule that only who dies alone is to blame",
        (f"{WORKER}engine_link.death_charges:Blame._charge",
         "if self._queue.isolated is job and self._queue.engine_proved:", "if True:"),
    ),
    _mutant(
        "no net",
        "the net around the reading of messages",
        (f"{WORKER}intake.job_preparer:JobPreparer.prepare", "with self.net.around(job):", "if True:"),
    ),
    _mutant(
        "look in the lane alone",
        "the check that a job without an entry is neither parked nor waiting for a retry",
        ("look.lua", "if redis.call('ZSCORE', delayed, id) then return 'kept' end\n", ""),
        ("look.lua",
         "if job.place and redis.call('ZSCORE', KEYS[k + 1], job.place) then return 'kept' end\n", ""),
    ),
    _mutant(
        "no idempotency",
        "the look whether an id was submitted before",
        ("submit.lua", "if job.state then", "if false then"),
        clients=True,
    ),
    _mutant(
        "no grammar after a resume",
        "the grammar of a job that another attempt has begun",
        (f"{ENGINES}add", "if request.grammar is None:",
         "if request.grammar is None or any(request.outputs):"),
        engines=True,
    ),
    _mutant(
        "calls told twice",
        "the count of what earlier attempts have told of a call's arguments",
        (f"{WORKER}jobs.call_output:CallOutput.resume",
         "self._given[piece.index] += len(piece.arguments)", "pass"),
    ),
    _mutant(
        "drafts unverified",
        "the comparison of draft tokens with what the model samples",
        (f"{BRAIN}speculation.verification:_counted",
         "counting[index] and right[index]", "counting[index]"),
        engines=True,
    ),
    _mutant(
        "no grammar in drafts",
        "the masks of what follows draft tokens",
        (f"{BRAIN}running.constrained_rows:ConstrainedRows.masks",
         "ahead.consume([int(follows.tokens[index])])", "pass"),
        engines=True,
    ),
    _mutant(
        "no digest of images",
        "the digest of images in the hashes of KV blocks",
        (f"{BRAIN}waiting.row_factory:RowFactory.rows",
         "added = within.to_bytes(4, \"little\") + placed.image.key[1]",
         "added = within.to_bytes(4, \"little\")"),
        engines=True,
    ),
    _mutant(
        "features of another place",
        "the number of the feature with which a piece of an image begins",
        (f"{BRAIN}batch.planner:_images",
         "start + place - begin, feature, count", "start + place - begin, 0, count"),
        engines=True,
    ),
    _mutant(
        "engine without images",
        "the second sending of images to jobs whose engine died",
        (f"{WORKER}jobs.engine_queue:EngineQueue.engine_lost", "self.images.engine_lost()", "pass"),
    ),
    _mutant(
        "equal texts",
        "the digest of images in what equal jobs have in common",
        (f"{WORKER}jobs.equal_jobs.cache_key:cache_key",
         "whole.update(options.digest() + b\"\".join(job.input.images.digests))", "pass"),
    ),
    _mutant(
        "refused in silence",
        "the report of a format that cannot be compiled",
        (f"{ENGINES}take_compiled", "reports.append(done.matchers)", "pass"),
        engines=True,
    ),
    _mutant(
        "cut is whole",
        "the word that an answer is not whole",
        (f"{WORKER}jobs.output:ChoiceOutput._conclude", "self.complete = self.fits", "self.complete = True"),
    ),
    _mutant(
        "part is a file",
        "the difference between a form that ends and a client that goes",
        (f"{DOOR}files.routes.multipart_body:multipart_parts",
         "raise ClientDisconnected from None\n    if not pushed.ended:", "return\n    if False:"),
        gateways=True,
    ),
    _mutant(
        "file unconfirmed",
        "the wait until the server has a file's record",
        (f"{DOOR}files.routes.file_routes:FileRoutes._add",
         "outcome, id = await self.gateway.files.add(record, once)\n    if outcome is OnceOutcome.NEW:",
         "__import__('asyncio').ensure_future(self.gateway.files.add(record, once))\n    if True:"),
        gateways=True,
    ),
    _mutant(
        "key of an upload unread",
        "the look whether there is a file of an Idempotency-Key",
        ("add_file.lua", "if known and its_file ~= file_id then", "if false then"),
        gateways=True,
    ),
    _mutant(
        "no sweep",
        "the sweep of objects without a file, and of unfinished ones",
        (f"{DOOR}files.store.orphans:Orphans.sweep",
         "await self._delete(batch) + await self.store.delete_unfinished(age_s)", "0"),
        clients=True,
    ),
    _mutant(
        "key unread",
        "the look at the Idempotency-Key",
        (f"{DOOR}auth.idempotency:Idempotency.begin",
         "if own := idempotency_digest(tenant, headers):", "if False:"),
        gateways=True,
    ),
    _mutant(
        "an end for every stream",
        "the difference between a stream that ends and one that is cut off",
        (f"{DOOR}completions.responders:StreamResponder.respond",
         "except (MillstreamError, ApiError) as error:",
         "except BaseException as error:\n"
         "        if stream.begun:\n            return await stream.end(DONE)"),
        gateways=True,
    ),
    _mutant(
        "joined without a job",
        "the submit of a repeated request, whose first gateway may have died before its own",
        (f"{DOOR}completions.completion_job:CompletionJob._submit",
         "kept = request",
         "if self._post.joined:\n        return f'0-{self._post.own_id}'\n    kept = request"),
        gateways=True,
    ),
)  # fmt: skip
MUTANTS = {mutant.name: mutant for mutant in _ALL}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
