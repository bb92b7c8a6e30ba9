"""Estimates what a request takes, without a tokenizer or a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from millstream.wire.messages.job_messages import ChatMessage, Request, RequestKind

BYTES_PER_TOKEN = 4  # of text, approximately, with most tokenizers
FRAME_TOKENS = 4  # that a chat template writes around a message, a call or a tool, at least
IMAGE_TOKENS = 1500  # of one, approximately, with most models: its file's bytes say nothing about them
USUAL_OUTPUT = 256  # tokens, for a request without a bound: an unset bound must not be cheap


def cost_of(request: Request) -> int:
    """Tokens of prompt and output, estimated: the unit of the queue's fairness among tenants, and of the
    gateway's limits. All that a chat template may write is counted.
    """
    prompt = len(request.token_ids or ())
    if request.prompt is not None:
        prompt = _bytes([request.prompt]) // BYTES_PER_TOKEN
    elif request.messages is not None:
        prompt = _chat_cost(request, request.messages)
    if (most := request.sampling.truncate_prompt_tokens) is not None:
        prompt = min(prompt, most)
    if request.kind is RequestKind.COUNT:
        return max(1, prompt)
    output = request.sampling.max_tokens
    return max(1, prompt + (USUAL_OUTPUT if output is None else output) * request.sampling.n)


def _chat_cost(request: Request, messages: Sequence[ChatMessage]) -> int:
    calls = [call for message in messages for call in message.tool_calls]
    tools = request.tools or ()
    functions = {call.id: call.function.name for call in calls}  # an outcome's message has its name, too
    texts: list[str] = []
    for message in messages:
        texts += message.role, message.content, message.name, message.reasoning_content
        if name := message.tool_call_id:
            texts += name, functions.get(name, "")
        texts += [part.text for part in message.parts if part.text is not None]
    texts += [text for call in calls for text in (call.id, call.function.name, call.function.arguments)]
    texts += [text for tool in tools for text in (tool.name, tool.description, tool.parameters)]
    if request.chat_template_kwargs:
        texts.append(json.dumps(request.chat_template_kwargs, ensure_ascii=False))
    frames = len(messages) + len(calls) + len(tools)
    images = sum(part.image is not None for message in messages for part in message.parts)
    return frames * FRAME_TOKENS + images * IMAGE_TOKENS + _bytes(texts) // BYTES_PER_TOKEN


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
