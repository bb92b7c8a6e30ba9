"""A chat never runs into the user's next turn, whatever names the end of one: real workers, tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models.chains import TURN, chain_checkpoint
from support.servers.servers import Server
from support.workers.counting_worker import REAL, worker_process

from millstream import Client

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"pick": "T"},
    "temperature": 0, "max_tokens": 60,
}  # fmt: skip
CHAIN = ["first answer", TURN, "user says", "<|im_start|>", "second answer"]


@pytest.mark.slow
def test_a_chat_ends_where_tokenizer_and_template_end_it(valkey: Server, tmp_path: Path) -> None:
    """A plain prompt ends where `generate` ends it."""
    model = chain_checkpoint(tmp_path / "end", CHAIN)
    with Client(valkey.url) as client, worker_process(valkey, str(model), **REAL):
        chat = client.submit(**CHAT)
        on = client.submit(**CHAT | {"ignore_eos": True, "max_tokens": 9})
        asked = client.submit(**CHAT, structured_outputs={"regex": "(first answer)+"})
        plain = client.submit("T", temperature=0, max_tokens=60)
        begun = [*CHAT["messages"], {"role": "assistant", "content": "Once T"}]
        more = client.submit(**CHAT | {"messages": begun}, continue_final_message=True)
        assert client.wait(more.id, timeout_s=60).text == "first answer"
        choice = client.wait(chat.id, timeout_s=60).choices[0]
        assert (choice.text, choice.finish_reason, len(choice.token_ids)) == ("first answer", "stop", 2)
        choice = client.wait(on.id, timeout_s=60).choices[0]
        assert (choice.text[:21], choice.finish_reason) == ("first answeruser says", "length")
        choice = client.wait(asked.id, timeout_s=60).choices[0]
        assert (choice.text, choice.finish_reason, choice.complete) == ("first answer", "stop", True)
        assert client.wait(plain.id, timeout_s=60).text == "first answeruser sayssecond answer"
