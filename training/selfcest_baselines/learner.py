"""The interface of every learner, and the options and checks that the policy-gradient learners share.

Each algorithm is one file that reads from its options to its update: `broadcast.py`, `value.py`, `coma.py`,
`difference.py`, `diff_loo.py` and `shapley.py`. This module holds nothing that distinguishes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from selfcest_baselines.counterfactual import check_replayable
from selfcest_baselines.games import Games, KernelGames
from selfcest_baselines.networks import ActorNetwork
from selfcest_baselines.progress import Examiner, Progress
from selfcest_baselines.rollout import Rollout
from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.plugin import Registry
from selfcest_env.stored import declared_name, stored_as, stored_fields, stored_text
from selfcest_env.structure import Above, AtLeast, Below, Checked, Count, NotEmpty, NotNegative, Positive, check_unused
from selfcest_env.symbolic.rules import SymbolicRules

ExplorationRate = Annotated[float, AtLeast(0), Below(1)]


class MarlLearner(ABC):
    """A learner that `train`, the command line and the benchmark can run. It may use any library."""

    def load(self) -> None:  # noqa: B027, most have nothing to do
        """Import what is slow to import, before the clock starts."""

    @abstractmethod
    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        """Learn until `examiner(decisions, act)` is true; call it before or after every update.

        `act` maps observations [B, F] and masks [B, A] of agents that may decide to actions [B], greedily. Decisions
        are those sampled so far, in replays too. CPU time counts from the making of the examiner on.
        """


LEARNERS = Registry(
    MarlLearner,
    "learner",
    "selfcest.marl_learner",
    {
        "broadcast": "selfcest_baselines.broadcast:BroadcastLearner",
        "value": "selfcest_baselines.value:ValueLearner",
        "coma": "selfcest_baselines.coma:ComaLearner",
        "difference": "selfcest_baselines.difference:DifferenceLearner",
        "diff_loo": "selfcest_baselines.diff_loo:DiffLooLearner",
        "shapley": "selfcest_baselines.shapley:ShapleyLearner",
        "maskable_ppo": "selfcest_baselines.bench.maskable_ppo:MaskablePPO",
    },
)


@stored_as(
    episodes="episodes",
    group_size="group_size",
    hidden="hidden",
    learning_rate="learning_rate",
    entropy="entropy",
    max_gradient="max_gradient",
    floor="floor",
    anneal="anneal",
    per="per",
    loss="loss",
    passes="passes",
    steps="steps",
    clip="clip",
)
@dataclass(frozen=True)
class PolicyGradientLearner(Checked, MarlLearner, ABC):
    """Options of the policy-gradient learners: one policy that the root and all clones share, trained with Adam.

    Attributes:
        episodes: episodes per update.
        group_size: neighbouring episodes that play the same problem.
        hidden: widths of the hidden layers of the policy and, if the learner has one, of the critic.
        learning_rate: step size of Adam for the policy.
        entropy: weight of the entropy bonus.
        max_gradient: norm to which each gradient of the policy and of the critic is clipped.
        floor: exploration ε at the first decision and after `anneal` decisions. The policy is
            (1 - ε) softmax + ε / number of legal actions. It is what COMA explores with (Foerster et al. 2018). Every
            learner has it, because the policy that plays must be the policy that is learned.
        anneal: decisions over which ε changes linearly.
        per: what the sum of the objective over decisions is divided by. `episode` is the constant number of episodes,
            so that no decision weighs less because its episode is long. `decision` is the mean over a minibatch, as in
            most PPO code.
        loss: `one_pass` is the policy gradient (REINFORCE, Williams 1992): one step per batch, on policy. `clipped` is
            the clipped surrogate of PPO (Schulman et al. 2017, arXiv 1707.06347): more steps out of the same decisions,
            biased from the second step on.
        passes: passes of `clipped` over each batch.
        steps: gradient steps of `clipped` in each pass.
        clip: how far the probability ratio of `clipped` may leave 1.
        least_group: smallest `group_size` with which the credit is defined.
        replays: whether the learner plays games again, which needs the batch kernel and games without `max_cycles`.
    """

    episodes: Count = 256
    group_size: Count = 8
    hidden: Annotated[tuple[Count, ...], NotEmpty()] = (128, 128)
    learning_rate: Positive = 1e-3
    entropy: NotNegative = 0.01
    max_gradient: Annotated[float, Above(0)] = 1.0
    floor: tuple[ExplorationRate, ExplorationRate] = (0.0, 0.0)
    anneal: Count = 100_000
    per: Literal["episode", "decision"] = "episode"
    loss: Literal["one_pass", "clipped"] = "clipped"
    passes: Count = 4
    steps: Count = 4
    clip: Positive = 0.2

    least_group: ClassVar[int] = 1
    replays: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < self.least_group:
            raise ConfigError(
                f"group_size is {self.group_size}; expected {self.least_group} or more episodes of the same problem, "
                f"which {type(self).__name__} compares"
            )
        if self.episodes % self.group_size:
            raise ConfigError(f"episodes is {self.episodes}; expected a multiple of group_size = {self.group_size}")
        if self.loss == "one_pass":
            check_unused(self, "loss is one_pass, which makes one step per batch", "passes", "steps", "clip")

    @abstractmethod
    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        """The algorithm: one entry per update, without end. `games` have been checked and reset."""

    def check(self, games: Games) -> None:
        """Raise `ConfigError` if these games do not fit this learner."""
        num_games = len(games.terminated)
        if (num_games, games.group_size) != (self.episodes, self.group_size):
            raise ConfigError(
                f"episodes and group_size are {self.episodes} and {self.group_size}; expected those of the games, "
                f"{num_games} and {games.group_size}"
            )
        if self.replays:
            check_replayable(games)

    def updates(
        self, games: Games, seed: int, *, prepare: Callable[[ActorNetwork], object] = lambda actor: None
    ) -> Iterator[Progress]:
        """One entry per update, without end.

        Args:
            games: `episodes` games in groups of `group_size`.
            seed: seed of the initial weights and of the sampling.
            prepare: called with the new policy before the first episode, to teach it something.

        Raises:
            ConfigError: at once, if the games do not fit.
        """
        self.check(games)
        games.reset()
        view = games.view()
        generator = torch.Generator().manual_seed(seed)
        actor = ActorNetwork(view.observations.shape[-1], view.masks.shape[-1], self.hidden, generator)
        prepare(actor)
        return self.train_actor(games, actor)

    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        games = KernelGames(rules, self.episodes, seed, group_size=self.group_size)
        for progress in self.updates(games, seed):
            if examiner(progress.decisions, progress.actor.best):
                return

    def exploration(self, decisions: int) -> float:
        """ε after so many decisions."""
        first, last = self.floor
        return last + (first - last) * max(0.0, 1 - decisions / self.anneal)

    def minibatches(self, rows: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """The rows of each gradient step, out of the learnable `rows` [B] of a batch; no step without rows."""
        if self.loss == "one_pass":
            if len(rows):
                yield rows
            return
        for _ in range(self.passes):
            order = rows[torch.randperm(len(rows), generator=generator)]
            yield from filter(len, order.tensor_split(self.steps))

    def objective_scale(self, rollout: Rollout) -> float:
        """The factor that turns the mean over a minibatch into what `per` says."""
        return rollout.decisions / self.episodes if self.per == "episode" else 1.0

    def check_advantages(self, advantages: Tensor, rollout: Rollout) -> None:
        """Raise `PlugInError` unless there is one finite number for each learnable decision of the rollout."""
        shape, expected = tuple(advantages.shape), tuple(rollout.actions.shape)
        name = type(self).__name__
        if shape != expected:
            raise PlugInError(f"{name} gave advantages of shape {shape}; expected one number per decision, {expected}")
        if bad := int((~advantages[rollout.learnable].isfinite()).sum()):
            raise PlugInError(
                f"{name} gave {bad} advantages that are not finite among those of {expected[0]} decisions"
            )

    def settings_text(self) -> str:
        """The options as stored results of the benchmark name them.

        Release 0.1.0 had the options in three groups, and its results are found again by that text.
        """
        if not declared_name(type(self)):  # a class of a user's own
            return stored_text(self)
        options = stored_fields(self)
        loss = "OnePass()"
        if self.loss == "clipped":
            loss = _call_text("Clipped", {name: options[name] for name in _CLIPPED_OPTIONS})
        learner = _call_text("Learner", {name: options[name] for name in _BATCH_OPTIONS})
        return f"OfTheGrid(credit={self.credit_text()}, loss={loss}, learner={learner})"

    def credit_text(self) -> str:
        """The options of the credit as stored results name them, without those that all learners share."""
        shared = (*_BATCH_OPTIONS, "loss", *_CLIPPED_OPTIONS)
        own = {name: value for name, value in stored_fields(self).items() if name not in shared}
        return _call_text(declared_name(type(self)), own)


_BATCH_OPTIONS = (
    "episodes",
    "group_size",
    "hidden",
    "learning_rate",
    "entropy",
    "max_gradient",
    "floor",
    "anneal",
    "per",
)
_CLIPPED_OPTIONS = ("passes", "steps", "clip")


def _call_text(name: str, options: dict[str, Any]) -> str:
    arguments = [f"{option}={stored_text(value)}" for option, value in options.items()]
    return f"{name}({', '.join(arguments)})"
