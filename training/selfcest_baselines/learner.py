"""The interface of learners, and the options and checks that the policy-gradient learners share.

Each algorithm is one file that reads from top to bottom: `broadcast.py`, `value.py`, `coma.py`, `difference.py`,
`diff_loo.py` and `shapley.py`.
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
    """Base class of learners that `train`, the command line and the benchmark can run; it may use any library."""

    def load(self) -> None:  # noqa: B027, most learners import nothing slow
        """Import slow libraries before the clock starts."""

    @abstractmethod
    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        """Learn until `examiner(decisions, act)` returns true.

        Args:
            rules: rules of the games.
            seed: seed of problems, initial weights and sampling.
            examiner: must be called before or after every update. `decisions` is the number of decisions sampled so
                far, replays included. `act` is the greedy policy: it maps observations [B, F] and masks [B, A] of
                decisions to actions [B].
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
    """Options of the policy-gradient learners, which train one policy for the root and all clones with Adam.

    Attributes:
        episodes: episodes per update.
        group_size: number of neighbouring episodes that play the same problem.
        hidden: widths of the hidden layers of the policy and of the critic.
        learning_rate: learning rate of Adam for the policy.
        entropy: coefficient of the entropy bonus.
        max_gradient: maximum gradient norm of the policy and of the critic.
        floor: exploration rate ε at the first decision, and after `anneal` decisions. The policy is
            (1 - ε) softmax + ε / number of legal actions, as in COMA (Foerster et al. 2018).
        anneal: number of decisions over which ε changes linearly.
        per: denominator of the objective. `episode` divides the sum over decisions by the number of episodes, so a
            decision weighs the same in short and long episodes. `decision` is the mean over a minibatch, as in most PPO
            code.
        loss: `one_pass` is the policy gradient (REINFORCE, Williams 1992), one on-policy step per batch. `clipped` is
            the clipped surrogate of PPO (Schulman et al. 2017, arXiv 1707.06347), with several steps per batch, which
            are biased from the second one on.
        passes: epochs of `clipped` per batch.
        steps: minibatches of `clipped` per epoch.
        clip: clipping range of the probability ratio of `clipped`.
        least_group: smallest `group_size` for which the credit is defined.
        replays: whether the learner replays games, which needs the batch kernel and games without `max_cycles`.
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
                f"because {type(self).__name__} compares them"
            )
        if self.episodes % self.group_size:
            raise ConfigError(f"episodes is {self.episodes}; expected a multiple of group_size = {self.group_size}")
        if self.loss == "one_pass":
            check_unused(self, "loss is one_pass, which makes one step per batch", "passes", "steps", "clip")

    @abstractmethod
    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        """Run the algorithm and yield after each update, without end.

        Args:
            games: games that were checked and reset.
            actor: the policy, which is trained in place.
        """

    def check_games(self, games: Games) -> None:
        """Raise `ConfigError` if these games do not fit this learner."""
        num_games = len(games.terminated)
        if (num_games, games.group_size) != (self.episodes, self.group_size):
            raise ConfigError(
                f"there are {num_games} games with group_size {games.group_size}; expected {self.episodes} games with "
                f"group_size {self.group_size}, which are the learner's episodes and group_size"
            )
        if self.replays:
            check_replayable(games)

    def updates(
        self, games: Games, seed: int, *, prepare: Callable[[ActorNetwork], object] = lambda actor: None
    ) -> Iterator[Progress]:
        """Return an endless iterator that makes one update per step.

        Args:
            games: `episodes` games in groups of `group_size`.
            seed: seed of the initial weights and of the sampling.
            prepare: called with the new policy before the first episode, for example to pretrain it.

        Raises:
            ConfigError: the games do not fit; raised by the call itself, before the first update.
        """
        self.check_games(games)
        games.reset()
        view = games.view()
        generator = torch.Generator().manual_seed(seed)
        actor = ActorNetwork(view.observations.shape[-1], view.masks.shape[-1], self.hidden, generator)
        prepare(actor)
        return self.train_actor(games, actor)

    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        games = KernelGames(rules, self.episodes, seed, group_size=self.group_size)
        for progress in self.updates(games, seed):
            if examiner(progress.decisions, progress.actor.greedy):
                return

    def exploration_rate(self, decisions: int) -> float:
        """Return ε after this number of decisions."""
        first, last = self.floor
        return last + (first - last) * max(0.0, 1 - decisions / self.anneal)

    def minibatches(self, rows: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the rows of each gradient step; a batch without rows has no step.

        Args:
            rows: learnable rows of a batch.
            generator: source of the shuffles.
        """
        if self.loss == "one_pass":
            if len(rows):
                yield rows
            return
        for _ in range(self.passes):
            order = rows[torch.randperm(len(rows), generator=generator)]
            # A split is empty if there are fewer rows than steps, and its mean would be nan.
            yield from filter(len, order.tensor_split(self.steps))

    def objective_scale(self, rollout: Rollout) -> float:
        """Return the factor from the mean over a minibatch to the denominator that `per` names."""
        return rollout.decisions / self.episodes if self.per == "episode" else 1.0

    def check_advantages(self, advantages: Tensor, rollout: Rollout) -> None:
        """Raise `PlugInError` unless there is one finite number for each learnable decision of the rollout."""
        shape = tuple(advantages.shape)
        expected = tuple(rollout.actions.shape)
        name = type(self).__name__
        if shape != expected:
            raise PlugInError(
                f"{name} returned advantages of shape {shape}; expected one number per decision, {expected}"
            )
        num_bad = int((~advantages[rollout.learnable].isfinite()).sum())
        if num_bad:
            raise PlugInError(
                f"{name} returned {num_bad} advantages that are nan or infinite, for {expected[0]} decisions; expected "
                "finite numbers"
            )

    def settings_text(self) -> str:
        """Return the options as text, in the form in which stored benchmark results hold them."""
        if not declared_name(type(self)):  # a class outside this package
            return stored_text(self)
        # Release 0.1.0 had the options in three groups. Stored results are matched by this text, so it must not change.
        options = stored_fields(self)
        loss = "OnePass()"
        if self.loss == "clipped":
            loss = _format_call("Clipped", {name: options[name] for name in _CLIPPED_OPTIONS})
        learner = _format_call("Learner", {name: options[name] for name in _BATCH_OPTIONS})
        return f"OfTheGrid(credit={self.credit_text()}, loss={loss}, learner={learner})"

    def credit_text(self) -> str:
        """Return the options that this learner does not share with the others, as text of stored results."""
        shared = (*_BATCH_OPTIONS, "loss", *_CLIPPED_OPTIONS)
        credit_options = {name: value for name, value in stored_fields(self).items() if name not in shared}
        return _format_call(declared_name(type(self)), credit_options)


# Groups of options in stored results, in their stored order.
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


def _format_call(name: str, options: dict[str, Any]) -> str:
    arguments = [f"{option}={stored_text(value)}" for option, value in options.items()]
    return f"{name}({', '.join(arguments)})"
