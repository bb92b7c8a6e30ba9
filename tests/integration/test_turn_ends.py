"""A chat never runs into the user's next turn, whatever names the end of one: real workers, tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from support.models.chains import TURN, chain_checkpoint, chain_file
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_chat_ends_by_the_end_of_a_turn_in_gguf(valkey: Server, tmp_path: Path, kind: str) -> None:
    model = chain_file(
        tmp_path / "turn.gguf", ["first", TURN, "second turn"], gguf.GGMLQuantizationType[kind]
    )
    # A cache of its own, for the converted file; no native code is compiled into it.
    options = REAL | {"cache_dir": str(tmp_path / "cache"), "dtype": "auto", "attention": "torch"}
    with Client(valkey.url) as client, worker_process(valkey, str(model), **options):
        chat, plain = client.submit(**CHAT), client.submit("T", temperature=0, max_tokens=60)
        choice = client.wait(chat.id, timeout_s=60).choices[0]
        assert (choice.text, choice.finish_reason, len(choice.token_ids)) == ("first", "stop", 2)
        assert client.wait(plain.id, timeout_s=60).text == "first"
