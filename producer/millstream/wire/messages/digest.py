"""The digest of a request, which tells a repeated submit from a conflict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.wire.messages.job_messages import ChatMessage, Request


def digest_of(request: Request) -> str:
    """Equal for equal submissions: covers the input, its rendering, the answer's format, the tools, and the
    sampling fields that were set explicitly. What a request does not have is not in it, so that digests stay
    what they were when a later version adds fields; nor is `strict`, which clients have always sent and older
    ones of ours dropped. In the place of an image is the SHA-256 of its file.
    """
    shown = [hashlib.sha256(image.data).hexdigest() for image in request.images]
    canonical: dict[str, object] = {
        "prompt": request.prompt,
        "messages": [_message(one, shown) for one in request.messages] if request.messages else None,
        "token_ids": request.token_ids,
        "sampling": request.sampling.model_dump(mode="json", exclude_unset=True),
    }
    if request.chat_template_kwargs:
        canonical["chat_template_kwargs"] = request.chat_template_kwargs
    if request.response_format is not None:
        canonical["response_format"] = request.response_format.model_dump(exclude_defaults=True)
    if request.tools is not None:
        canonical["tools"] = [
            tool.model_dump(exclude_defaults=True, exclude={"strict"}) for tool in request.tools
        ]
        chosen = request.tool_choice.name if request.tool_choice else ""
        canonical["tool_choice"] = [request.calling, chosen, request.parallel_tool_calls]
    if request.kind != "answer":
        canonical["kind"] = request.kind
    fields = type(request).model_fields
    for name in ("continue_final_message", "add_generation_prompt", "reasoning_effort", "return_token_ids"):
        if (value := getattr(request, name)) != fields[name].default:
            canonical[name] = value
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _message(message: ChatMessage, shown: Sequence[str]) -> list[object]:
    calls = [[call.id, call.function.name, call.function.arguments] for call in message.tool_calls]
    more: list[object] = [calls, message.tool_call_id] if calls or message.tool_call_id else []
    names = "name", "reasoning_content"
    said: dict[str, object] = {name: value for name in names if (value := getattr(message, name))}
    if message.parts:
        said["parts"] = [
            {"text": part.text} if part.image is None else {"image": shown[part.image]}
            for part in message.parts
        ]
    return [message.role, message.content, *more, *([said] if said else [])]
