"""Shapes of messages: roles, contents, and what conversations have that came from other servers."""

from __future__ import annotations

from typing import Any

from support.wire.image_files import data_url, png

from conformance.requests.rows import BOTH, CHAT, NOBODY, OPENAI, VLLM, rows

EMPTY = "it says nothing"
THOUGHT = "They greet."
USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "Be brief."}
AGAIN = {"role": "user", "content": "and now?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "mill"}'}}
OTHER = {"id": "call_2", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "wind"}'}}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def asked(*content: Any, role: str = "user", **more: Any) -> list[dict[str, Any]]:
    """One message, whose content is a list of parts."""
    return [{"role": role, "content": list(content), **more}]


def after(**answer: Any) -> list[dict[str, Any]]:
    """A conversation in which the model has spoken once."""
    return [USER, {"role": "assistant", **answer}, AGAIN]


def called(*calls: Any, outcome: Any = "a house with a wheel", **answer: Any) -> list[dict[str, Any]]:
    """A conversation in which the model has called functions."""
    outcomes = [{"role": "tool", "tool_call_id": call["id"], "content": outcome} for call in calls]
    return [USER, {"role": "assistant", "tool_calls": list(calls), **answer}, *outcomes]


ROLES = (
    *rows(CHAT, BOTH, {"messages with a system": [SYSTEM, USER]}),
    *rows(CHAT, BOTH, {"messages with a developer": [{"role": "developer", "content": "Be brief."}, USER]}),
    *rows(CHAT, BOTH, {"messages with two users": [USER, AGAIN]}),
    *rows(CHAT, BOTH, {"messages with a late system": [*after(content="hi"), SYSTEM]}),
    *rows(CHAT, BOTH, {"messages with an answer last": [USER, {"role": "assistant", "content": "hi"}]}),
    *rows(CHAT, BOTH, {"messages with an answer alone": [{"role": "assistant", "content": "hi"}]}),
    *rows(CHAT, BOTH, {"messages with a role of its own": [{"role": "critic", "content": "hi"}, USER]}),
    *rows(CHAT, OPENAI, {"messages with a function": [
        USER, {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "function", "name": "look_up", "content": "a house"}]}),
    *rows(CHAT, BOTH, {"messages[0].name": [{**USER, "name": "Ann"}]}),
    *rows(CHAT, BOTH, {"messages[1].name": after(content="hi", name="bot")}),
    *rows(CHAT, VLLM, {"continue_final_message": True}, {
        "messages": [USER, {"role": "assistant", "content": "I am"}], "add_generation_prompt": False}),
    *rows(CHAT, VLLM, {"continue_final_message after parts": True}, {
        "messages": [USER, *asked(text("I am"), role="assistant")], "add_generation_prompt": False}),
)  # fmt: skip

CONTENTS = (
    *rows(CHAT, BOTH, {"messages of a text part": asked(text("you"))}),
    *rows(CHAT, BOTH, {"messages of text parts": asked(text("hel"), text("lo, you"))}),
    *rows(CHAT, BOTH, {"messages of a system's parts": [*asked(text("Be brief."), role="system"), USER]}),
    *rows(CHAT, BOTH, {"messages of no characters": [{"role": "user", "content": ""}]}),
    *rows(CHAT, BOTH, {"messages of other scripts": [{"role": "user", "content": "Mühle 磨坊 🌬️"}]}),
    *rows(CHAT, VLLM, {"messages of null": [{"role": "user", "content": None}]}),
    *rows(CHAT, VLLM, {"messages without content": [{"role": "user"}]}),
    *rows(CHAT, VLLM, {"messages of no parts": [{"role": "user", "content": []}]}),
    *rows(CHAT, VLLM, {"messages of a bare text in a list": asked("hello, you")}),
    *rows(CHAT, BOTH, {"messages after a null": after(content=None)}),
    *rows(CHAT, BOTH, {"messages after an empty answer": after(content="")}),
    *rows(CHAT, VLLM, {"messages after no content": after()}),
    *rows(CHAT, VLLM, {"messages after no parts": after(content=[])}),
    *rows(CHAT, BOTH, {"messages after parts": after(content=[text("hi")])}),
    *rows(CHAT, BOTH, {"messages after a refusal part": after(
        content=[{"type": "refusal", "refusal": "no"}])}),
    *rows(CHAT, BOTH, {"messages[1].refusal": after(content=None, refusal="I will not.")}),
    *rows(CHAT, BOTH, {"messages[1].refusal null": after(content="hi", refusal=None)}, holds=EMPTY),
    *rows(CHAT, BOTH, {"messages[1].annotations": after(content="hi", annotations=[])}, holds=EMPTY),
    *rows(CHAT, BOTH, {"messages[1].tool_calls of none": after(content="hi", tool_calls=[])}, holds=EMPTY),
    *rows(CHAT, OPENAI, {"messages[1].audio null": after(content="hi", audio=None)}, holds=EMPTY),
    *rows(CHAT, OPENAI, {"messages[1].audio": after(content="hi", audio={"id": "audio_1"})}),
    *rows(CHAT, VLLM, {"messages[1].reasoning_content": after(content="hi", reasoning_content=THOUGHT)}),
    *rows(CHAT, VLLM, {"messages[1].reasoning": after(content="hi", reasoning=THOUGHT)}),
    *rows(CHAT, VLLM, {"messages after a thought alone": after(content=None, reasoning_content=THOUGHT)}),
    *rows(CHAT, NOBODY, {"messages[0].cache_control": [{**USER, "cache_control": {"type": "ephemeral"}}]}),
    *rows(CHAT, NOBODY, {"messages[0].content[0].cache_control": asked(
        text("hello", cache_control={"type": "ephemeral"}))}),
    *rows(CHAT, OPENAI, {"messages with an image": asked(
        text("see"), {"type": "image_url", "image_url": {"url": data_url(png())}})}),
    *rows(CHAT, OPENAI, {"messages with a sound": asked(
        text("hear"), {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}})}),
    *rows(CHAT, OPENAI, {"messages with a file": asked(
        text("read"), {"type": "file", "file": {"file_id": "file-1"}})}),
    *rows(CHAT, NOBODY, {"messages of input_text": asked({"type": "input_text", "text": "you"})}),
    *rows(CHAT, NOBODY, {"messages after output_text": after(
        content=[{"type": "output_text", "text": "hi"}])}),
)  # fmt: skip

HISTORIES = (
    *rows(CHAT, BOTH, {"messages with a call": called(CALL, content=None)}),
    *rows(CHAT, BOTH, {"messages with a call and no content": called(CALL)}),
    *rows(CHAT, BOTH, {"messages with a call and an empty text": called(CALL, content="")}),
    *rows(CHAT, BOTH, {"messages with a call and a text": called(CALL, content="I look.")}),
    *rows(CHAT, BOTH, {"messages with two calls": called(CALL, OTHER, content=None)}),
    *rows(CHAT, BOTH, {"messages with an outcome in parts": called(CALL, outcome=[text("a house")])}),
    *rows(CHAT, BOTH, {"messages with an outcome of no characters": called(CALL, outcome="")}),
    *rows(CHAT, VLLM, {"messages with an outcome of null": called(CALL, outcome=None)}),
    *rows(CHAT, BOTH, {"messages with an answer after a call": [
        *called(CALL), {"role": "assistant", "content": "A house."}, AGAIN]}),
    *rows(CHAT, NOBODY, {"messages[2].name": [
        USER, {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "a house"}]}),
    *rows(CHAT, BOTH, {"messages with a call of no arguments": called(
        {**CALL, "function": {"name": "look_up", "arguments": "{}"}})}),
    *rows(CHAT, NOBODY, {"messages with a call of empty arguments": called(
        {**CALL, "function": {"name": "look_up", "arguments": ""}})}),
    *rows(CHAT, BOTH, {"messages[1].function_call": after(content=None, function_call=CALL["function"])}),
)  # fmt: skip
