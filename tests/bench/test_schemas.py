"""Answers by schema: the tokens that bring them to their end."""

from types import SimpleNamespace

from ops.bench.schemas import part


def test_tokens_that_close_a_string_a_list_or_an_object() -> None:
    vocabulary = ['"', '",', '"}', '"]},', "}", "]", "]}", "}},", ","]
    others = ["", '""', '","', ":", '":', "{", '"a', "a,", " }", ",,", '},"']
    numbered = {text: number for number, text in enumerate([*others, *vocabulary])}
    tokenizer = SimpleNamespace(get_vocab=lambda: numbered)
    assert part.closing(tokenizer) == [numbered[text] for text in vocabulary]
