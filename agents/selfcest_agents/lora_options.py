"""What a config says of LoRA; apart from `lora`, so that reading it imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from selfcest_env.errors import ConfigError
from selfcest_env.structure import AtLeast, AtMost, Checked, OneOf

_Rank = Annotated[int, AtLeast(1), AtMost(2**16)]


@dataclass(frozen=True)
class LoraOptions(Checked):
    """A layer computes W x + alpha / rank * B A x, of which A and B train (arXiv 2106.09685).

    Attributes:
        rank: rows of A and columns of B.
        alpha: strength of the addition; a new B is zero, so it acts as a factor of the learning rate.
        target_modules: linear layers, by their names or the ends of these, as `q_proj` or `mlp.up_proj`; none named:
            all but the output layer.
        per_role: the root of an episode and its clones have an adapter each, new and equal at first.
        dropout: 0, as in every forward pass of the learner: with dropout its log-probs would not be the sampler's.
    """

    rank: _Rank = 16
    alpha: _Rank = 32
    target_modules: tuple[str, ...] = ()
    per_role: bool = False
    dropout: Annotated[float, OneOf(0.0), "with dropout the log-probs would not be those of what was sampled from"] = (
        0.0
    )

    def check_roles(
        self, place: str, *, on_cluster: bool, on_ranks: bool, sampler: str, max_staleness: int, compiled: bool
    ) -> None:
        """Raise `ConfigError` if adapters per role meet an option that supports only one policy for all agents.

        Args:
            place: the config key of the block that holds `max_staleness`.
            on_cluster: workers of a cluster play.
            on_ranks: several processes train the weights.
            sampler: the name of the sampler.
            max_staleness: the number of steps that rollouts run ahead of the learner.
            compiled: the learner compiles its model.
        """
        if not self.per_role:
            return
        for option, is_set, remedy in (
            ("cluster is set", on_cluster, "set cluster=null"),
            ("the learner runs over ranks", on_ranks, "train in one process, without ranks"),
            (f"sampler.name is {sampler}", sampler == "vllm", "set sampler.name=transformers"),
            (f"{place}.max_staleness is {max_staleness}", max_staleness > 0, f"set {place}.max_staleness=0"),
            ("forward.compile is true", compiled, "set forward.compile=false"),
        ):
            if is_set:
                raise ConfigError(
                    f"lora.per_role is true and {option}, which supports only one policy for all agents; {remedy}, or "
                    "set lora.per_role=false"
                )
