"""What runs inside vLLM's worker, which may be another process. vLLM mixes the class into its own by its name.

This module imports nothing heavy: vLLM imports it, not the other way round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from selfcest_agents.engine import check_weights

if TYPE_CHECKING:
    from torch import Tensor

# At every push it warns of layers that no tensor names; what matters of that is checked here.
_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


class WeightReceiver:
    """Takes new weights in place, whole or not at all."""

    if TYPE_CHECKING:  # what vLLM's worker has; names bound here would clash with it
        model_runner: Any
        vllm_config: Any
        _selfcest_shapes: Mapping[str, tuple[int, ...]]

        def reload_weights(self, *, weights_iterator: Any) -> None: ...

    def note_selfcest_checkpoint(self) -> None:
        """Remember what the checkpoint holds, while it is sure to be there."""
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(self.vllm_config.load_config)
        stored = loader.get_all_weights(self.vllm_config.model_config, self.model_runner.get_model())
        self._selfcest_shapes = {name: tuple(tensor.shape) for name, tensor in stored if not self._is_tied(name)}

    def receive_selfcest_weights(self, weights: Mapping[str, Tensor] | str) -> None:
        """Load every tensor of the checkpoint anew.

        Args:
            weights: tensors by the names of the checkpoint's files, or the path of a safetensors file with them.

        Raises:
            PolicyError: a tensor is missing, unknown or of another shape; the old weights then still stand.
        """
        if isinstance(weights, str):
            from safetensors.torch import load_file

            weights = load_file(weights)
        self._check_selfcest_weights(weights)
        logging.getLogger(_RELOAD_LOGGER).setLevel(logging.ERROR)
        # Straight to `model.load_weights` fails on CPUs, where the loaded weights have been packed for oneDNN.
        self.reload_weights(weights_iterator=iter(weights.items()))
        self._repack_tied_head()

    def _check_selfcest_weights(self, weights: Mapping[str, Tensor]) -> None:
        # vLLM only warns of what is missing, and samples on with a mixture of old and new.
        found = {name: tensor.shape for name, tensor in weights.items() if not self._is_tied(name)}
        check_weights(found, self._selfcest_shapes)

    def _is_tied(self, name: str) -> bool:
        tied = self.vllm_config.model_config.hf_text_config.tie_word_embeddings
        return bool(tied) and name.endswith("lm_head.weight")

    def _repack_tied_head(self) -> None:
        """Pack a tied output layer again: a reload packs every linear layer but this one, which no tensor names."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
