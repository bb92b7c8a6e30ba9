"""A text model of a multimodal one's body, for the types whose body transformers has no text model of."""

from __future__ import annotations

from typing import Any, cast

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import WeightConverter
from transformers.modeling_outputs import CausalLMOutputWithPast


def headed_body(whole: PretrainedConfig) -> type[PreTrainedModel]:
    """Returns the class of a model with the body that continues text in the whole, and a head; made from the
    whole's text configuration."""
    with init_empty_weights():
        body = AutoModelForImageTextToText.from_config(whole).get_decoder()
    kind = type(body)
    # transformers looks into the source of a class' module for what its mixtures can be told
    members = {"body": kind, "__module__": kind.__module__}
    made: Any = type(f"{kind.__name__}WithHead", (_HeadedBody, kind.__mro__[1]), members)
    # `text_names` stands for the whole's renamings; experts are merged as the whole's are
    stored_as = get_checkpoint_conversion_mapping(whole.model_type) or []
    merged = [one for one in stored_as if isinstance(one, WeightConverter)]
    register_checkpoint_conversion_mapping(made.__name__, merged, overwrite=True)
    return cast("type[PreTrainedModel]", made)


class _HeadedBody(PreTrainedModel):  # type: ignore[misc]  # transformers is not typed here
    """Logits are scaled and capped as the configuration says."""

    body: type[PreTrainedModel]
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - transformers' own form

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.model = self.body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._scale: float = getattr(config, "output_multiplier", 1.0)
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        use_cache: bool = False,
        logits_to_keep: int | Tensor = 0,
    ) -> CausalLMOutputWithPast:
        """Takes token ids and positions [1, T]; the logits are of the last `logits_to_keep` tokens, 0: of
        all, or of those places."""
        hidden = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache)[0]
        kept: Any = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept]) * self._scale
        if self._cap is not None:
            logits = torch.tanh(logits / self._cap) * self._cap
        return CausalLMOutputWithPast(logits=logits)
