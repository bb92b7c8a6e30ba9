"""Answers of a model with harmony's channels, as gpt-oss, through the real queue, worker and engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models.call_templates import HARMONY, HARMONY_TOKENS
from support.models.spelling import spelling_checkpoint
from support.servers.servers import Server
from support.workers.counting_worker import REAL, worker_process
from transformers import PreTrainedTokenizerFast

from millstream import Client, JobFailed, Transcript

ASK = [{"role": "user", "content": "the quick brown fox"}]
ORDER = {"type": "object", "properties": {"sacks": {"type": "integer", "maximum": 99}}, "required": ["sacks"]}
TOOLS = [{"type": "function", "function": {"name": "order", "parameters": ORDER, "strict": True}}]


@pytest.mark.slow
@pytest.mark.xdist_group("answers")
def test_channels_are_told_apart(tmp_path: Path) -> None:
    """Plain, with a format, and with tools; the stream is its whole."""
    folder = spelling_checkpoint(
        tmp_path, words=True, more_words=HARMONY_TOKENS, template=HARMONY, max_position_embeddings=2048
    )
    end, message, final, call = PreTrainedTokenizerFast.from_pretrained(str(folder)).convert_tokens_to_ids(
        ["<|end|>", "<|message|>", "f", "c"]
    )
    few = {end: 9, message: -6, final: 4, call: 6}  # thoughts
    drawn: dict[str, Any] = {"logit_bias": few, "temperature": 1.5, "max_tokens": 600, "seed": 1}
    plate = {"structured_outputs": {"regex": "[A-C]{2}-[0-9]{3}"}}
    with (
        Server("valkey") as server,
        worker_process(server, str(folder), **REAL),
        Client(server.url) as client,
    ):
        formed = client.submit(messages=ASK, **drawn, **plate, n=4)
        called = client.submit(messages=ASK, **drawn, tools=TOOLS, tool_choice="required", n=4)
        either = client.submit(messages=ASK, **drawn, **plate, tools=TOOLS, n=4, stream=True)
        plain = client.submit(messages=ASK, **drawn, n=4)
        budget = client.submit(messages=ASK, thinking_token_budget=3)
        seen = Transcript()
        for event in client.stream(either.id):
            seen.add(event)
        results = [client.wait(job.id, timeout_s=60).choices for job in (formed, called, either, plain)]
        with pytest.raises(JobFailed, match="by the tokens <think> and </think>"):
            client.wait(budget.id, timeout_s=60)

    assert all(choice.complete for choices in results[:3] for choice in choices)
    assert any(choice.reasoning_content for choices in results[:3] for choice in choices)
    assert all(len(choice.text) == 6 for choice in results[0])
    for choice in results[1]:
        assert (choice.text, [call.function.name for call in choice.tool_calls]) == ("", ["order"])
    assert {(len(choice.tool_calls), len(choice.text)) for choice in results[2]} == {(0, 6), (1, 0)}
    assert [seen.text(place) for place in range(4)] == [choice.text for choice in results[2]]
    assert [seen.tool_calls(place) for place in range(4)] == [choice.tool_calls for choice in results[2]]
    shown = [choice.text + choice.reasoning_content for choices in results[:3] for choice in choices]
    assert not any(mark in text for text in shown for mark in HARMONY_TOKENS)
