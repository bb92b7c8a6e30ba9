"""One choice of a live job, from the sampled tokens to the published text.

`ids` grows with every step; they are detokenized only when a flush or a stop string needs the text. A
published delta is never taken back: `logged` only grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.errors import ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice, ChoiceDelta, FinishReason
from millstream_worker.jobs import encoding
from millstream_worker.jobs.call_output import CallOutput
from millstream_worker.jobs.encoding import Plain
from millstream_worker.text.channels import Channels
from millstream_worker.text.detokenizer import Detokenizer
from millstream_worker.text.reasoning import Thought

PIECE_BYTES = 256 * 1024  # about, of ids and logprobs in one delta: after an outage there may be many
ID_BYTES = 5  # of a token id as msgpack, at most


@dataclass(slots=True, eq=False)
class ChoiceOutput:
    index: int  # of the choice
    detokenizer: Detokenizer
    thought: Thought | Channels | None = None  # before the answer, and not part of its text
    calling: CallOutput | None = None
    watched: bool = False  # its text may end it, as stop strings do: it is detokenized after every step
    constrained: bool = False  # has to fit a grammar
    piece_bytes: int = PIECE_BYTES
    # filled by the engine's steps
    begun: bool = False  # a token was sampled in this attempt
    ids: list[int] = field(default_factory=list)
    logprobs: list[bytes] | None = None  # packed, one per id, where they were asked for
    logprob_bytes: int = 0  # of all those
    reason: FinishReason | None = None
    end_token: bool = False  # the last id ended it: it counts as output, and is text only with stop strings
    fits: bool = False  # it is a whole sentence of its grammar
    # at its end
    # True if the answer satisfies its grammar; None without one, or for free text beside optional tools
    complete: bool | None = None
    schema_error: str = ""  # why its calls do not fit
    calls: list[Plain] = field(default_factory=list)
    # the number of ids in each stage
    fed: int = 0  # ids given to the detokenizer
    stable_ids: int = 0  # ids that no stop string can take back any more
    logged: int = 0  # ids in deltas
    finish_logged: bool = False  # the finish reason is in a delta, too
    # text
    fresh: str = ""  # detokenized, in no delta yet
    stable_chars: int = 0  # of `fresh`: the text of stable ids (a delta's text never goes beyond its ids)
    stable_marks: list[int] = field(default_factory=list)  # the same of the calls' arguments
    parts: list[str] = field(default_factory=list)  # texts of deltas
    logged_chars: int = 0  # of those texts
    fresh_thought: str = ""
    thoughts: list[str] = field(default_factory=list)  # thoughts of deltas

    def resume(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Resume from the deltas that earlier attempts have logged for this choice."""
        for delta in deltas:
            self.ids += delta.token_ids
            if self.logprobs is not None and delta.logprobs:
                for logprob in delta.logprobs:
                    self.add_logprob(codec.encode(logprob))
            self.parts.append(delta.text)
            self.logged_chars += len(delta.text)
            self.thoughts.append(delta.reasoning_content)
            self.reason = delta.finish_reason or self.reason
            self.complete = delta.complete
            self.calls = [one.model_dump(exclude_defaults=True) for one in delta.tool_calls]
            self.schema_error = delta.schema_error
        self.fed = self.stable_ids = self.logged = len(self.ids)
        self.finish_logged = self.reason is not None
        if not self.finish_logged:
            answer = self._take_thought(self.ids)
            self.fresh_thought = self.fresh_thought[sum(map(len, self.thoughts)) :]
            if self.calling is None:
                self.fresh = self.detokenizer.resume(answer, self.logged_chars)
            else:
                self.fresh = self.calling.resume(deltas, self.detokenizer.resume(answer, 0))
            self._look_for_stop()

    def follow(self, leader: ChoiceOutput) -> None:
        """Take the new ids of an equal choice, which has not ended."""
        if self.logprobs is not None and leader.logprobs is not None:
            for packed in leader.logprobs[len(self.logprobs) :]:
                self.add_logprob(packed)
        self.ids += leader.ids[len(self.ids) :]

    def check_kept(self, choice: Choice) -> None:
        """Raises ProtocolError for what no equal choice has kept: the server may have anything."""
        wanted = len(choice.token_ids) if self.logprobs is not None else 0
        if choice.index != self.index or choice.finish_reason is None:
            raise ProtocolError(f"a kept answer has no end of choice {self.index}")
        if (choice.finish_reason == "tool_calls" or choice.tool_calls) and self.calling is None:
            raise ProtocolError("a kept answer calls tools, of which its job has none")
        if len(choice.logprobs or ()) != wanted:
            raise ProtocolError("a kept answer has other log-probabilities than tokens")

    def adopt(self, choice: Choice) -> None:
        """Take the whole answer of an equal choice; this one has no output yet."""
        self.ids += choice.token_ids
        for logprob in choice.logprobs or ():
            self.add_logprob(codec.encode(logprob))
        self.fed = self.stable_ids = len(self.ids)
        self.fresh, self.fresh_thought = choice.text, choice.reasoning_content
        self.stable_chars = len(self.fresh)
        if self.calling is not None:
            self.calling.adopt(choice.tool_calls)
        self.reason, self.fits = choice.finish_reason, choice.complete is True

    @property
    def size(self) -> int:
        """Approximate bytes of the choice in the result."""
        text = self.logged_chars + len(self.fresh)
        thought = sum(map(len, self.thoughts)) + len(self.fresh_thought)
        calls = self.calling.size if self.calling is not None else 0
        return self.logprob_bytes + ID_BYTES * len(self.ids) + text + thought + calls

    def told(self, token_id: int, logprob: float) -> Plain:
        """One token with its log-probability, as this choice's text has it."""
        text, own_bytes = self.detokenizer.token_bytes.shown(token_id)
        return encoding.top_logprob(token_id, text, logprob, own_bytes)

    def add_logprob(self, packed: bytes) -> None:
        assert self.logprobs is not None, "only where they were asked for"
        self.logprobs.append(packed)
        self.logprob_bytes += len(packed)

    def feed(self) -> bool:
        """Detokenize new ids. True if a stop string was found just now, which ended the choice."""
        end = len(self.ids) - (self.end_token and not self.detokenizer.with_stop)
        if self.fed < end:
            self._add_text(self.detokenizer.feed(self._take_thought(self.ids[self.fed : end])))
            self.fed = end
        return self._look_for_stop()

    def _add_text(self, text: str) -> None:
        self.fresh += text if self.calling is None else self.calling.feed(text)

    def _take_thought(self, ids: list[int]) -> Sequence[int]:
        """The ids behind the thought."""
        if self.thought is None or not ids:
            return ids
        taken = self.thought.feed(ids)
        self.fresh_thought += taken.text
        if taken.skipped:
            self.detokenizer.skip(taken.skipped)
        return taken.answer

    def take(self) -> Plain | None:
        """The choice's part of the next delta; None if nothing is new. A long one is split: call it again."""
        if self.finish_logged:
            return None
        self.feed()
        if self.reason is not None:
            self._add_text(self.detokenizer.flush())
            self.fresh_thought += self.thought.flush() if self.thought is not None else ""
            self._conclude()
        whole = self.reason is not None or not self.watched
        if whole:
            self._settle(len(self.ids))
        if self.stable_ids == self.logged and not self.stable_chars and self.reason is None:
            return None
        piece_end = self._piece_end(self.stable_ids)
        if piece_end < self.stable_ids:  # the text comes with the last piece: it may lag its ids, never lead
            return self._delta(piece_end, None, None)
        self.finish_logged = self.reason is not None
        return self._delta(self.stable_ids, self.stable_chars, self.reason)

    def _settle(self, ids: int) -> None:
        """All text so far is that of so many ids, which no stop string can take back."""
        self.stable_ids, self.stable_chars = ids, len(self.fresh)
        if self.calling is not None:
            self.stable_marks = self.calling.marks()

    def _conclude(self) -> None:
        """Say whether the answer is whole, and which calls it has."""
        if not self.constrained:
            return
        self.complete = self.fits
        if (calling := self.calling) is None:
            return
        self.fresh += calling.finish(is_cut=not self.fits)
        self.calls = calling.calls()
        if calling.mode.free and not calling.begun:
            self.complete = None
        if not self.calls or not self.fits:  # of a cut answer it is not said
            self.schema_error = ""
        elif self.schema_error:
            self.complete = False
        if self.calls and self.fits:
            self.reason = calling.mode.reason

    def _piece_end(self, end: int) -> int:
        if self.logprobs is None:
            return min(end, self.logged + self.piece_bytes // ID_BYTES)
        size = 0
        for place, packed in enumerate(self.logprobs[self.logged : end], start=self.logged):
            size += ID_BYTES + len(packed)
            if size > self.piece_bytes:
                return place + 1
        return end

    def _delta(self, end: int, chars: int | None, reason: FinishReason | None) -> Plain:
        """`chars` of the fresh text; None: a piece that comes before all text."""
        text = self.fresh[: chars or 0]
        thought = "" if chars is None else self.fresh_thought
        marks = () if chars is None else self.stable_marks
        ends = reason is not None
        delta = encoding.part(
            ChoiceDelta,
            index=self.index,
            token_ids=self.ids[self.logged : end],
            text=text,
            logprobs=self.logprobs[self.logged : end] if self.logprobs is not None else None,
            reasoning_content=thought,
            finish_reason=reason,
            complete=self.complete if ends else None,
            tool_calls=self.calls if ends else (),
            tool_call_deltas=self.calling.take(marks) if self.calling is not None else (),
            schema_error=self.schema_error if ends else "",
        )
        if chars:
            self.parts.append(text)
            self.logged_chars += chars
            self.fresh = self.fresh[chars:]
            self.stable_chars = 0
        if thought:
            self.thoughts.append(thought)
            self.fresh_thought = ""
        self.logged = end
        return delta

    def choice(self) -> Plain:
        """The choice in the result: the concatenation of all its deltas."""
        is_cut_off = not self.finish_logged  # by a cancel, or a deadline
        return encoding.part(
            Choice,
            index=self.index,
            text="".join(self.parts),
            token_ids=self.ids[: self.logged],
            finish_reason=self.reason,
            logprobs=self.logprobs[: self.logged] if self.logprobs is not None else None,
            reasoning_content="".join(self.thoughts),
            complete=self.complete,
            tool_calls=self.calling.given() if self.calling is not None and is_cut_off else self.calls,
            schema_error=self.schema_error,
        )

    def _look_for_stop(self) -> bool:
        if self.thought is not None and self.thought.answer_is_over:
            self._add_text(self.detokenizer.end())
        if not self.detokenizer.stopped:
            if not self.detokenizer.undecided:
                self._settle(self.fed)
            return False
        kept = max(self.detokenizer.kept_tokens, self.logged)
        del self.ids[kept:]
        if self.logprobs is not None:
            self.logprob_bytes -= sum(map(len, self.logprobs[kept:]))
            del self.logprobs[kept:]
        self.fed = self.stable_ids = kept
        self.reason, self.end_token, self.fits = "stop", False, False
        return True
