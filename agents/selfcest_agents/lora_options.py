"""Options of LoRA. They are in a module without torch, so that a config can be read quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from selfcest_env.errors import ConfigError
from selfcest_env.structure import AtLeast, AtMost, Checked, OneOf

_Rank = Annotated[int, AtLeast(1), AtMost(2**16)]


@dataclass(frozen=True)
class LoraOptions(Checked):
    """Options of LoRA: a layer computes W x + (alpha / rank) B A x, and only A and B train (arXiv 2106.09685).

    Attributes:
        rank: number of rows of A and columns of B.
        alpha: factor of the added term. A new B is zero, so alpha acts like a factor of the learning rate.
        target_modules: names of linear layers, or ends of these names, such as `q_proj` or `mlp.up_proj`. If it is
            empty, all linear layers except the output layer get an adapter.
        per_role: whether roots and clones have separate adapters, which are equal at first.
        dropout: must be 0. With dropout the learner's log-probs would differ from the sampler's.
    """

    rank: _Rank = 16
    alpha: _Rank = 32
    target_modules: tuple[str, ...] = ()
    per_role: bool = False
    dropout: Annotated[float, OneOf(0.0), "with dropout the log-probs would differ from the sampler's"] = 0.0

    def check_roles(
        self, place: str, *, on_cluster: bool, on_ranks: bool, sampler: str, max_staleness: int, compiled: bool
    ) -> None:
        """Raise `ConfigError` if there are adapters per role, and an option supports only one policy for all agents.

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
