"""The one table of the fields of chat/completions and completions that OpenAI, vLLM, SGLang, llama.cpp, TGI
and OpenRouter have, and of those of messages. A field is done; or it cannot change an answer, and is passed
over with a sign; or it is refused by name. What a done field becomes is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.format_fields import FORMAT_FIELDS


class Treatment(StrEnum):
    DONE = "done"
    IGNORED = "ignored"  # named in the answer's headers, and counted
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FieldRule:
    """`nothing`: the values that ask for nothing, which are taken without a word; `remedy`: for others."""

    treatment: Treatment
    nothing: tuple[Any, ...] = ()
    remedy: str = ""

    def asks(self, value: Any) -> bool:
        """True if the value asks for something; JSON's true is not its 1."""
        return not any(
            value == nothing and isinstance(value, bool) is isinstance(nothing, bool)
            for nothing in (None, *self.nothing)
        )


def _done(names: str) -> dict[str, FieldRule]:
    return {name: FieldRule(Treatment.DONE) for name in names.split()}


def _ignored(names: str, *nothing: Any) -> dict[str, FieldRule]:
    return {name: FieldRule(Treatment.IGNORED, nothing) for name in names.split()}


def _refused(names: str, remedy: str, *nothing: Any) -> dict[str, FieldRule]:
    return {name: FieldRule(Treatment.REFUSED, nothing, remedy) for name in names.split()}


_OUT = "leave it out"
_TO_CHATS = "send it to /v1/chat/completions"

_DONE = _done(
    "min_tokens temperature top_p top_k min_p seed ignore_eos repetition_penalty presence_penalty n stop "
    "frequency_penalty stop_token_ids max_tokens logprobs logit_bias metadata model chat_template_kwargs "
    "cache prediction bad_words allowed_token_ids include_stop_str_in_output skip_special_tokens "
    "return_token_ids truncate_prompt_tokens thinking_token_budget"
) | _done(" ".join(FORMAT_FIELDS))

# They name, route, meter or log a request, hint at a cache, a backend or a pace, describe media that are not
# taken, or tune a method that is refused itself: none can change an answer.
_IGNORED = (
    _ignored("user safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options")
    | _ignored("verbosity", "medium")
    | _ignored("store", False)
    | _ignored("spaces_between_special_tokens", True)
    | _ignored("service_tier", "auto", "default")  # of a file, whose lane is the run's; a POST's is done
    | _ignored("stream_options")  # of a file; a POST's are done
    | _ignored("priority", 0)
    | _ignored("request_id rid session_id cache_salt extra_key custom_labels trace timeout keep_alive")
    | _ignored("kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port bootstrap_room")
    | _ignored("routed_dp_rank disagg_prefill_dp_rank data_parallel_rank stream_interval ngram_corpus_id")
    | _ignored("guided_decoding_backend backend_sampling")
    | _ignored("vllm_xargs", {})  # for plugins: vLLM passes over those of a plugin that it does not have
    | _ignored("provider route image_config images_config media_io_kwargs mm_processor_kwargs mm_payload")
    | _ignored("max_dynamic_patch min_dynamic_patch")
    | _ignored("use_audio_in_video return_mm_kwargs return_token_offsets return_meta_info", False)
    | _ignored("return_cached_tokens_details timings_per_token return_progress verbose debug", False)
    | _ignored("reasoning_control", False)
    | _ignored("usage cache_control sse_ping_interval")
    | _ignored("cache_prompt id_slot n_cache_reuse n_keep n_discard")
    | _ignored("routed_experts_prompt_start routed_experts_start_len", 0)
    | _ignored("length_penalty", 1)
    | _ignored("early_stopping", False)
    | _ignored("dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold")
    | _ignored("mirostat_tau mirostat_eta dynatemp_exponent adaptive_decay")
    | _ignored("reasoning_budget_start_tag reasoning_budget_end_tag reasoning_budget_end_tags")
    | _ignored("reasoning_budget_message preserved_tokens grammar_triggers grammar_type")
    | _ignored("grammar_lazy", False)
)

_REFUSED = (
    # OpenAI's
    _refused("functions", "use tools", [])
    | _refused("function_call", "use tool_choice", "none", "auto")
    | _refused("audio web_search_options moderation", _OUT)
    | _refused("modalities", "answers are text", ["text"])
    | _refused("stream", "the rows of a file are whole answers", False)
    | _refused("best_of", "use n, and choose among the choices by their logprobs", 1)
    | _refused("echo", "the prompt is no part of an answer here", False)
    | _refused("suffix", "write the prompt as the model has been taught to fill in", "")
    # one limit, one name
    | _refused("max_new_tokens n_predict max_output_tokens max_length", "use max_tokens")
    | _refused("min_new_tokens min_length", "use min_tokens", 0)
    | _refused("stop_sequences", "use stop", [])
    | _refused("random_seed sampling_seed", "use seed")
    | _refused("n_cmpl num_return_sequences", "use n", 1)
    | _refused("repeat_penalty", "use repetition_penalty", 1)
    | _refused("truncate max_input_tokens", "use truncate_prompt_tokens")
    | _refused("truncation_side", "the end of the prompt is kept", "left")
    | _refused("no_stop_trim", "use include_stop_str_in_output", False)
    | _refused("do_sample", "use temperature 0", True)
    # formats
    | _refused("regex", "use structured_outputs.regex")
    | _refused("ebnf grammar", "use structured_outputs.grammar", "")
    | _refused("json_schema", "use structured_outputs.json")
    | _refused("format", "use response_format", "")
    | _refused("stop_regex", "use stop, or structured_outputs.regex")
    # thoughts
    | _refused("reasoning thinking think", "use reasoning_effort")
    | _refused("enable_thinking", 'use chat_template_kwargs, as {"enable_thinking": false}')
    | _refused("thinking_budget reasoning_budget_tokens", "use thinking_token_budget", -1)
    | _refused("include_reasoning separate_reasoning stream_reasoning", "pass over reasoning_content", True)
    | _refused("reasoning_format", "thoughts are in reasoning_content", "auto", "deepseek")
    # the prompt
    | _refused(
        "chat_template generation_prompt", "the model's own template is used; see chat_template_kwargs"
    )
    | _refused("documents guideline tool_prompt system instructions", "write it into messages", [], "")
    | _refused("inputs input", "use prompt, or messages")
    | _refused("input_ids", "send them as the prompt of /v1/completions")
    | _refused("prompt_embeds", "use prompt")
    | _refused("safe_prompt", "write it into messages", False)
    | _refused("transforms", "use truncate_prompt_tokens", [])
    | _refused("parameters options extra_body", "write its fields into the body itself", {})
    # numbers beside the answer
    | _refused("prompt_logprobs decoder_input_details", "log-probabilities are of answers only", False)
    | _refused("logprob_token_ids n_probs top_n_tokens", "use top_logprobs", [], 0)
    | _refused("return_tokens return_prompt_token_ids", "use return_token_ids", False)
    | _refused("return_tokens_as_token_ids", "use return_token_ids", False)
    | _refused("return_hidden_states return_routed_experts return_prompt_text details", _OUT, False)
    | _refused("post_sampling_probs return_full_text", _OUT, False)
    | _refused("response_fields", _OUT, [])
    # ways of sampling
    | _refused("use_beam_search", "use n, and choose among the choices by their logprobs", False)
    | _refused("num_beams", "use n, and choose among the choices by their logprobs", 1)
    | _refused("typical_p tfs_z", "use top_p", 1)
    | _refused("top_a", "use min_p", 0)
    | _refused("top_n_sigma adaptive_target", "use min_p", -1)
    | _refused("xtc_probability dynatemp_range mirostat", "use temperature, top_p and min_p", 0)
    | _refused("dry_multiplier", "use repetition_penalty", 0)
    | _refused("repeat_last_n", "penalties count the whole answer and prompt", -1)
    | _refused("repetition_detection", "use repetition_penalty")
    | _refused("min_keep n_indent", _OUT, 0)
    | _refused("samplers", "the order is temperature, top_k, top_p, min_p")
    | _refused("t_max_predict_ms", "use max_tokens", 0, -1)
    | _refused("watermark watermarking", _OUT, False)
    | _refused("logits_processors", "use logit_bias, bad_words or allowed_token_ids", [])
    | _refused("custom_logit_processor custom_params", "use logit_bias, bad_words or allowed_token_ids")
    # the model, and what is around it
    | _refused("models", "name one model", [])
    | _refused("lora lora_path adapter_id", "name a model that has it", [], "")
    | _refused("preset task session_params chat_format chat_parser", _OUT)
    | _refused("plugins", _OUT, [])
    | _refused("parse_tool_calls", "calls are always read", True)
)

_OF_CHATS = _done(
    "messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls reasoning_effort "
    "continue_final_message add_generation_prompt"
)
_NOT_OF_CHATS = _refused("prompt", "send it to /v1/completions, or as a message") | _refused(
    "add_special_tokens", "the chat template writes them", False
)
_OF_COMPLETIONS = _done("prompt")
_NOT_OF_COMPLETIONS = (
    _refused("messages", _TO_CHATS)
    | _refused("max_completion_tokens", "use max_tokens")
    | _refused("top_logprobs", "use logprobs, the number of alternatives")
    | _refused("tools", _TO_CHATS, [])
    | _refused("tool_choice", _TO_CHATS, "none", "auto")
    | _refused("parallel_tool_calls", _TO_CHATS, False, True)
    | _refused("continue_final_message", "a prompt is always gone on with", False)
    | _refused("add_generation_prompt", _TO_CHATS, False, True)
    | _refused("reasoning_effort", _TO_CHATS, "none")
    | _refused("add_special_tokens", "send token ids, which are taken as they are", True)
)

FIELDS: Mapping[ApiEndpoint, Mapping[str, FieldRule]] = {
    ApiEndpoint.CHAT: _DONE | _IGNORED | _REFUSED | _OF_CHATS | _NOT_OF_CHATS,
    ApiEndpoint.COMPLETIONS: _DONE | _IGNORED | _REFUSED | _OF_COMPLETIONS | _NOT_OF_COMPLETIONS,
}
MESSAGE_FIELDS: Mapping[str, FieldRule] = (
    _done("role content tool_calls tool_call_id name reasoning_content reasoning refusal function_call")
    | _ignored("annotations", [])
    | _ignored("id index object created weight cache_control provider_specific_fields status")
    | _refused("audio", "content is text and images")
    | _refused("images", "use image_url parts")
    | _refused("prefix partial", "use continue_final_message", False)
    | _refused("thinking thinking_blocks reasoning_details thought", "use reasoning_content", [], "")
    | _refused("tools", "use tools, beside messages", [])
)
STREAM_OPTION_FIELDS: Mapping[str, FieldRule] = _done("include_usage") | _ignored(
    "include_obfuscation continuous_usage_stats", False
)
IGNORED_INSIDE = {  # of fields, by their paths
    "tools.cache_control", "tools.defer_loading", "tools.function.cache_control",
    "tools.function.defer_loading", "messages.content.cache_control",
    "messages.content.detail", "messages.content.image_url.detail",
    "stream_options.include_obfuscation", "stream_options.continuous_usage_stats",
}  # fmt: skip
OF_GATEWAY = ("model", "stream", "stream_options", "service_tier")  # what it does itself with a POST


@cache
def names_of(treatment: Treatment, endpoint: ApiEndpoint) -> frozenset[str]:
    return frozenset(name for name, rule in FIELDS[endpoint].items() if rule.treatment is treatment)
