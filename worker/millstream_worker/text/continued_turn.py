"""The last message as the beginning of the answer: the prompt ends behind its text, and not behind its turn.

A mark behind the text shows where a template puts its end; what the template strips is not in the prompt.
"""

from __future__ import annotations

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import ChatMessage, Request
from millstream_worker.text.reasoning import THINK_BEGIN, THINK_END, ThoughtStart

_MARK = "probe_end_of_text "  # the space is gone where ends are stripped


def marked(message: ChatMessage) -> ChatMessage:
    """With the mark behind its text; behind its thought, where it has nothing else. Raises InvalidRequest."""
    if message.tool_calls:
        raise _refused("the last message ends with calls of tools, and no text goes on there; leave it out")
    field = "reasoning_content" if message.reasoning_content and not message.content.strip() else "content"
    return message.model_copy(update={field: getattr(message, field) + _MARK})


def cut_behind(text: str) -> str:
    """The rendered text up to the mark. Raises InvalidRequest."""
    place = text.rfind(_MARK.rstrip())
    if place < 0:
        raise _refused(
            "the model's chat template does not show the end of the last message; leave it out, or let the "
            "last message be an answer"
        )
    return text[:place] if text.startswith(_MARK, place) else text[:place].rstrip()


def goes_on(request: Request) -> bool:
    """True if the last message has begun the answer's text or thought."""
    last = request.messages[-1] if request.continue_final_message and request.messages else None
    return last is not None and bool(last.content.strip() or last.reasoning_content)


def thought_in(request: Request) -> ThoughtStart | None:
    """The state of a thought behind the last message's text; None: that has begun nothing."""
    if not goes_on(request) or not request.messages:
        return None
    said = request.messages[-1].content.strip()
    thinks = THINK_END not in said if said.startswith(THINK_BEGIN) else not said
    return ThoughtStart.AMID if thinks else ThoughtStart.NONE


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest("continue_final_message", True, problem)
