"""Fields about the drawing of tokens and the end of an answer, which chat and completions share."""

from __future__ import annotations

from conformance.requests.rows import BOTH, CHAT, COMPLETIONS, NOBODY, OPENAI, VLLM, on_both, rows

DRAWN = {"temperature": 1}
DEFAULT = "the value is the default"

SAMPLING = (
    *on_both(BOTH, {"temperature 0.5": 0.5, "temperature 1": 1, "temperature 2": 2}),
    *on_both(BOTH, {"temperature 0": 0}, holds="the rows beside it have it, too"),
    *on_both(BOTH, {"top_p 0.5": 0.5}, DRAWN),
    *on_both(BOTH, {"top_p 1": 1}, DRAWN, DEFAULT),
    *on_both(OPENAI, {"top_p 0": 0}, DRAWN),
    *on_both(VLLM, {"top_k": 5, "min_p": 0.1}, DRAWN),
    *on_both(VLLM, {"top_k 0": 0, "top_k -1": -1, "min_p 0": 0}, DRAWN, DEFAULT),
    *on_both(BOTH, {"seed": 7, "seed 0": 0, "seed -5": -5, "seed above 53 bits": 2**60}, DRAWN),
    *on_both(BOTH, {"n": 2, "n 8": 8}, DRAWN),
    *on_both(BOTH, {"n 1": 1}, holds=DEFAULT),
    *on_both(BOTH, {"n 20": 20}, DRAWN | {"max_tokens": 1}),
    *on_both(BOTH, {"presence_penalty": 0.5, "presence_penalty -2": -2}),
    *on_both(BOTH, {"frequency_penalty": 0.5, "frequency_penalty 2": 2}),
    *on_both(BOTH, {"presence_penalty 0": 0, "frequency_penalty 0": 0}, holds=DEFAULT),
    *on_both(VLLM, {"repetition_penalty": 1.2}),
    *on_both(VLLM, {"repetition_penalty 1.0": 1.0}, holds=DEFAULT),
    *on_both(
        BOTH, {"logit_bias": {"5": 10}, "logit_bias -100": {"5": -100}, "logit_bias halves": {"5": 0.5}}
    ),
    *on_both(BOTH, {"logit_bias empty": {}}, holds=DEFAULT),
)

ENDS = (
    *on_both(BOTH, {"max_tokens": 2, "max_tokens 1": 1}),
    *on_both(VLLM, {"max_tokens as 5.0": 5.0}),
    *on_both(VLLM, {"n as 2.0": 2.0, "top_k as 5.0": 5.0, "seed as 7.0": 7.0}, DRAWN),
    *on_both(VLLM, {"min_tokens as 2.0": 2.0}),
    *on_both(BOTH, {"stop text": "zz", "stop list": ["zz", "yy"], "stop line feed": "\n"}),
    *on_both(BOTH, {"stop of 4": ["a", "b", "c", "d"]}),
    *on_both(VLLM, {"stop of 5": ["a", "b", "c", "d", "e"], "stop of 20": [f"s{n}" for n in range(20)]}),
    *on_both(VLLM, {"stop of 300 characters": "z" * 300}),
    *on_both(BOTH, {"stop null": None, "stop of none": []}, holds=DEFAULT),
    *on_both(NOBODY, {"stop of no characters": ""}, holds="an empty text ends nothing"),
    *on_both(VLLM, {"stop_token_ids": [5, 6], "min_tokens": 2, "ignore_eos": True}),
    *on_both(
        VLLM, {"stop_token_ids of none": [], "min_tokens 0": 0, "ignore_eos false": False}, holds=DEFAULT
    ),
    *on_both(VLLM, {"include_stop_str_in_output": True}, {"stop": ["zz"]}),
    *on_both(VLLM, {"include_stop_str_in_output false": False}, {"stop": ["zz"]}, DEFAULT),
    *on_both(VLLM, {"skip_special_tokens false": False}),
    *on_both(VLLM, {"skip_special_tokens": True}, holds=DEFAULT),
    *on_both(VLLM, {"bad_words": ["zz"], "allowed_token_ids": [10, 11, 12, 13]}),
    *on_both(VLLM, {"bad_words of none": []}, holds=DEFAULT),
    *rows(CHAT, VLLM, {"thinking_token_budget": 3}),
    *rows(COMPLETIONS, VLLM, {"thinking_token_budget of a prompt": 3}),
    *on_both(VLLM, {"repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 3}}),
    *on_both(VLLM, {"use_beam_search": True}, {"n": 2}),
    *on_both(VLLM, {"use_beam_search false": False, "length_penalty 1": 1.0}, holds=DEFAULT),
    *on_both(VLLM, {"length_penalty": 0.5}, {"use_beam_search": True, "n": 2}),
    *on_both(VLLM, {"watermarking false": False}, holds=DEFAULT),
)

SENT = (
    *on_both(BOTH, {"stream": True}),
    *on_both(BOTH, {"stream false": False, "stream null": None}, holds=DEFAULT),
    *on_both(BOTH, {"stream_options.include_usage": {"include_usage": True}}, {"stream": True}),
    *on_both(
        BOTH, {"stream_options": {}, "stream_options.include_usage false": {"include_usage": False}},
        {"stream": True}, DEFAULT,
    ),
    *on_both(OPENAI, {"stream_options.include_obfuscation": {"include_obfuscation": False}}, {"stream": True},
             "no event is padded"),
    *on_both(VLLM, {"stream_options.continuous_usage_stats": {"continuous_usage_stats": True}},
             {"stream": True}),
    *on_both(VLLM, {"stream_interval": 2}, {"stream": True}),
    *on_both(BOTH, {"stream with choices": True}, {"n": 2, "temperature": 1}),
    *on_both(VLLM, {"model of none": None}, holds="one queue is served"),
)  # fmt: skip
