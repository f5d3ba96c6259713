"""An extension of vLLM's worker, which may run in another process. vLLM adds the class to its own worker class by name.

This module does not import vLLM at its top, because vLLM imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from selfcest_agents.engine import check_weights

if TYPE_CHECKING:
    from torch import Tensor

# This logger warns at every update of layers that no tensor names. `_check_selfcest_weights` checks the tensors.
_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


class WeightReceiver:
    """Replaces all weights of the worker's model in place, or none of them."""

    if TYPE_CHECKING:  # attributes of vLLM's worker, which must not be assigned in this class
        model_runner: Any
        vllm_config: Any
        _selfcest_shapes: Mapping[str, tuple[int, ...]]

        def reload_weights(self, *, weights_iterator: Any) -> None: ...

    def note_selfcest_checkpoint(self) -> None:
        """Store the names and shapes of the checkpoint's tensors. Its folder may be deleted later."""
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(self.vllm_config.load_config)
        stored = loader.get_all_weights(self.vllm_config.model_config, self.model_runner.get_model())
        self._selfcest_shapes = {name: tuple(tensor.shape) for name, tensor in stored if not self._is_tied(name)}

    def receive_selfcest_weights(self, weights: Mapping[str, Tensor] | str) -> None:
        """Replace all tensors of the checkpoint.

        Args:
            weights: tensors with their names in the checkpoint, or the path of a safetensors file with them.

        Raises:
            PolicyError: a tensor is missing, unknown or of another shape. The old weights are then unchanged.
        """
        if isinstance(weights, str):
            from safetensors.torch import load_file

            weights = load_file(weights)
        self._check_selfcest_weights(weights)
        logging.getLogger(_RELOAD_LOGGER).setLevel(logging.ERROR)
        # `model.load_weights` would fail on CPUs, where the loaded weights have been packed for oneDNN.
        self.reload_weights(weights_iterator=iter(weights.items()))
        self._repack_tied_head()

    def _check_selfcest_weights(self, weights: Mapping[str, Tensor]) -> None:
        # vLLM only warns of missing tensors, and would sample with a mixture of old and new weights.
        shapes = {name: tensor.shape for name, tensor in weights.items() if not self._is_tied(name)}
        check_weights(shapes, self._selfcest_shapes)

    def _is_tied(self, name: str) -> bool:
        tied = self.vllm_config.model_config.hf_text_config.tie_word_embeddings
        return bool(tied) and name.endswith("lm_head.weight")

    def _repack_tied_head(self) -> None:
        """Pack a tied output layer on a CPU. A reload does not pack it, because no tensor has its name."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
