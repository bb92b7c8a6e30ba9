"""Fields about all else that chat and completions share, those of one of them, and names that nobody has."""

from __future__ import annotations

from conformance.requests.rows import BOTH, CHAT, COMPLETIONS, NOBODY, OPENAI, VLLM, on_both, rows
from conformance.requests.sampling_rows import DEFAULT

NO_EFFECT = "the default has no effect"
DOCUMENT = {"title": "mills", "text": "Mills grind."}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"

SHARED = (
    *on_both(BOTH, {"user": "someone"}),
    *on_both(VLLM, {"priority": 1, "request_id": "r-1", "session_id": "s-1", "cache_salt": "salt"}),
    *on_both(VLLM, {"priority 0": 0}, holds=DEFAULT),
    *on_both(VLLM, {"prompt_logprobs": 1, "prompt_logprobs 0": 0}),
    *on_both(VLLM, {"logprob_token_ids": [5, 6]}),
    *on_both(
        VLLM, {"return_token_ids": True, "return_tokens_as_token_ids": True, "return_token_offsets": True}
    ),
    *on_both(VLLM, {"return_token_ids false": False, "return_token_offsets false": False}, holds=NO_EFFECT),
    *on_both(VLLM, {"truncate_prompt_tokens": 3, "truncate_prompt_tokens -1": -1}),
    *on_both(VLLM, {"truncation_side left": "left"}, {"truncate_prompt_tokens": 3}, "the end is kept"),
    *on_both(VLLM, {"truncation_side": "right"}, {"truncate_prompt_tokens": 3}),
    *on_both(VLLM, {"spaces_between_special_tokens": False}),
    *on_both(VLLM, {"spaces_between_special_tokens true": True}, holds=NO_EFFECT),
    *on_both(VLLM, {"mm_payload": "tensors", "return_mm_kwargs": True, "routed_experts_prompt_start": 1}),
    *on_both(VLLM, {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {"a": 1}, "vllm_xargs": {"a": 1}}),
    *on_both(NOBODY, {"temprature": 0.5, "max_token": 5}),
    *on_both(NOBODY, {"regex": "[ab]", "grammar": 'root ::= "a"', "ebnf": 'root ::= "a"', "top_a": 0.5}),
    *on_both(NOBODY, {"guided_choice": ["a", "b"], "guided_regex": "[ab]{2}"}),
    *on_both(NOBODY, {"guided_json": {"type": "object"}}, {"max_tokens": 60}),
)

CHAT_FIELDS = (
    *rows(CHAT, BOTH, {"max_completion_tokens": 3}, {"max_tokens": None}),
    *rows(CHAT, BOTH, {"logprobs": True}),
    *rows(CHAT, BOTH, {"logprobs false": False}, holds=DEFAULT),
    *rows(CHAT, BOTH, {"top_logprobs": 2, "top_logprobs 20": 20}, {"logprobs": True}),
    *rows(CHAT, BOTH, {"top_logprobs 0": 0}, {"logprobs": True}, DEFAULT),
    *rows(
        CHAT, OPENAI, {"metadata": {"team": "mills"}, "prediction": {"type": "content", "content": "hello"}}
    ),
    *rows(CHAT, OPENAI, {"store": True, "safety_identifier": "someone", "prompt_cache_key": "key"}),
    *rows(CHAT, OPENAI, {"store false": False}, holds=DEFAULT),
    *rows(CHAT, OPENAI, {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "auto"}}),
    *rows(CHAT, OPENAI, {"moderation": {"model": "default"}, "verbosity": "low", "web_search_options": {}}),
    *rows(CHAT, OPENAI, {"verbosity medium": "medium", "modalities text": ["text"]}, holds=DEFAULT),
    *rows(CHAT, OPENAI, {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}),
    *rows(CHAT, OPENAI, {"service_tier auto": "auto", "service_tier default": "default"}),
    *rows(CHAT, OPENAI, {"service_tier flex": "flex", "service_tier priority": "priority"}),
    *rows(CHAT, OPENAI, {"service_tier scale": "scale"}),
    *rows(CHAT, BOTH, {f"reasoning_effort {effort}": effort for effort in ("none", "low", "medium", "high")}),
    *rows(CHAT, BOTH, {"reasoning_effort minimal": "minimal", "reasoning_effort xhigh": "xhigh"}),
    *rows(CHAT, VLLM, {"include_reasoning false": False}),
    *rows(CHAT, VLLM, {"include_reasoning": True}, holds=DEFAULT),
    *rows(CHAT, VLLM, {"chat_template_kwargs": {"enable_thinking": False}}),
    *rows(CHAT, VLLM, {"chat_template": TEMPLATE, "documents": [DOCUMENT], "echo": True}),
    *rows(CHAT, VLLM, {"echo false": False, "add_generation_prompt": True}, holds=DEFAULT),
    *rows(CHAT, VLLM, {"add_generation_prompt false": False, "add_special_tokens": True}),
    *rows(CHAT, VLLM, {"add_special_tokens false": False}, holds=DEFAULT),
    *rows(CHAT, VLLM, {"return_prompt_text": True, "media_io_kwargs": {}, "mm_processor_kwargs": {}}),
)

COMPLETIONS_FIELDS = (
    *rows(COMPLETIONS, BOTH, {"logprobs": 1, "logprobs 0": 0, "logprobs 5": 5}),
    *rows(COMPLETIONS, BOTH, {"echo": True, "echo with log-probabilities": True}, {"logprobs": 1}),
    *rows(COMPLETIONS, BOTH, {"echo false": False}, holds=DEFAULT),
    *rows(COMPLETIONS, OPENAI, {"best_of": 2, "suffix": "end"}, {"temperature": 1}),
    *rows(COMPLETIONS, OPENAI, {"best_of 1": 1, "suffix of no characters": ""}, holds=DEFAULT),
    *rows(COMPLETIONS, BOTH, {"max_tokens 0": 0}, {"echo": True}),
    *rows(COMPLETIONS, BOTH, {"max_tokens null": None}),
    *rows(COMPLETIONS, VLLM, {"prompt_embeds": "AAAA", "add_special_tokens": False}),
    *rows(COMPLETIONS, VLLM, {"add_special_tokens true": True}, holds=DEFAULT),
)

PROMPTS = (
    *rows(COMPLETIONS, BOTH, {"prompt text": "mills", "prompt ids": [20, 21, 22]}),
    *rows(COMPLETIONS, BOTH, {"prompt list of one": ["mills"], "prompt list": ["mills", "and", "wind"]}),
    *rows(
        COMPLETIONS, BOTH, {"prompt lists of ids": [[20, 21], [22]], "prompt list of one list": [[20, 21]]}
    ),
    *rows(COMPLETIONS, BOTH, {"prompt list as a stream": ["mills", "wind"]}, {"stream": True}),
    *rows(COMPLETIONS, BOTH, {"prompt list with choices": ["mills", "wind"]}, {"n": 2, "temperature": 1}),
    *rows(COMPLETIONS, BOTH, {"prompt list with log-probabilities": ["mills", "wind"]}, {"logprobs": 1}),
    *rows(COMPLETIONS, BOTH, {"prompt list of 20": [f"mill {number}" for number in range(20)]}),
    *rows(COMPLETIONS, BOTH, {"prompt of other scripts": "Mühle 磨坊 🌬️", "prompt of blanks": "  \n "}),
)
