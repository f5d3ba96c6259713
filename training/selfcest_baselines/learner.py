"""The one loop of all learners: play, give credit, step; any credit with any loss.

    batch       one episode of every game, by the policy as it is
    credit      one advantage per decision
    loss        gradient steps on sum over decisions of (gain + entropy bonus) / number of episodes

A sum over decisions divided by a constant: long episodes count in full, and how many decisions an episode has does not
change the weight of any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from selfcest_baselines.counterfactual import Recording, check_replayable, record
from selfcest_baselines.credit.base import Assign, Batch, Credit, Credited, Start
from selfcest_baselines.games import Games
from selfcest_baselines.loss.base import Loss
from selfcest_baselines.networks import Actor, descend, entropy, taken
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Rollout, collect
from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Above, AtLeast, Below, Checked, Count, NotEmpty, NotNegative, Positive

Floor = Annotated[float, AtLeast(0), Below(1)]


@stored_as(
    "Learner",
    episodes="episodes",
    group_size="group_size",
    hidden="hidden",
    learning_rate="learning_rate",
    entropy="entropy",
    max_gradient="max_gradient",
    floor="floor",
    anneal="anneal",
    per="per",
)
@dataclass(frozen=True)
class Learner(Checked):
    """Settings that say nothing of credit or loss.

    Attributes:
        episodes: per update.
        group_size: episodes that play the same problem.
        hidden: widths of the hidden layers, the policy's and a critic's.
        entropy: weight of the entropy bonus.
        max_gradient: norm to which every gradient is cut, the policy's and a critic's.
        floor: ε at first and at last, `anneal` decisions between; the policy is (1 - ε) softmax + ε / number of legal
            actions. COMA's exploration; it is the policy's and not the credit's, since what is played, learned and put
            into baselines must be the same policy, and so that every credit can be compared with it.
        per: what the gain is divided by; `decision`, the mean over a minibatch, is that of most PPO code.
    """

    episodes: Count = 256
    group_size: Count = 8
    hidden: Annotated[tuple[Count, ...], NotEmpty()] = (128, 128)
    learning_rate: Positive = 1e-3
    entropy: NotNegative = 0.01
    max_gradient: Annotated[float, Above(0)] = 1.0
    floor: tuple[Floor, Floor] = (0.0, 0.0)
    anneal: Count = 100_000
    per: Literal["episode", "decision"] = "episode"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes % self.group_size:
            raise ConfigError(f"episodes is {self.episodes}; expected a multiple of group_size = {self.group_size}")

    def learn(
        self,
        games: Games,
        credit: Credit,
        loss: Loss,
        seed: int,
        *,
        prepare: Callable[[Actor], object] = lambda actor: None,
    ) -> Iterator[Progress]:
        """One entry per update, without end.

        Args:
            games, credit, loss: what is played, who is thanked, what the policy does with it.
            seed: of the initial weights and the sampling.
            prepare: is called with the new policy, to teach it something first.

        Raises:
            ConfigError: at once, if credit, games and settings do not fit.
        """
        self._check(games, credit)
        games.reset()
        view = games.view()
        generator = torch.Generator().manual_seed(seed)
        actor = Actor(view.observations.shape[-1], view.masks.shape[-1], self.hidden, generator)
        prepare(actor)
        assign = credit.start(Start(games, self.hidden, self.max_gradient, generator))
        return self._loop(games, actor, credit, assign, loss)

    def _loop(self, games: Games, actor: Actor, credit: Credit, assign: Assign, loss: Loss) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        decisions = episodes = 0
        while True:
            first, last = self.floor
            actor.floor = last + (first - last) * max(0.0, 1 - decisions / self.anneal)
            rollout, recording = _play(games, actor, credit)
            credited = assign(Batch(rollout, actor, self.group_size, recording))
            _check_credited(credit, credited, rollout)
            with torch.no_grad():
                behavior = taken(actor(rollout.observations, rollout.masks), rollout.actions)
            learnable = rollout.learnable_rows
            for rows in loss.minibatches(learnable, actor.generator):
                log_probs = actor(rollout.observations[rows], rollout.masks[rows])
                new = taken(log_probs, rollout.actions[rows])
                gain = loss.gain(new, behavior[rows], credited.advantages[rows]) + self.entropy * entropy(log_probs)
                scale = len(learnable) / self.episodes if self.per == "episode" else 1.0
                descend(optimizer, -gain.mean() * scale, self.max_gradient)
            decisions += rollout.decisions + credited.cost.decisions
            episodes += self.episodes + credited.cost.replays
            yield Progress(decisions, episodes, actor)

    def _check(self, games: Games, credit: Credit) -> None:
        name, played = type(credit).__name__, (len(games.terminated), games.group_size)
        if self.group_size < credit.least_group:
            raise ConfigError(
                f"group_size is {self.group_size}; expected {credit.least_group} or more episodes of the same problem, "
                f"which {name} compares"
            )
        if played != (self.episodes, self.group_size):
            raise ConfigError(
                f"episodes and group_size are {self.episodes} and {self.group_size}; expected those of the games, "
                f"{played[0]} and {played[1]}"
            )
        if credit.replays:
            check_replayable(games)


def _check_credited(credit: Credit, credited: Credited, rollout: Rollout) -> None:
    found, expected = tuple(credited.advantages.shape), tuple(rollout.actions.shape)
    who = type(credit).__name__
    if found != expected:
        raise PlugInError(f"{who} gave advantages of shape {found}; expected one number per decision, {expected}")
    if bad := int((~credited.advantages[rollout.learnable].isfinite()).sum()):
        raise PlugInError(f"{who} gave {bad} advantages that are not finite among those of {expected[0]} decisions")


def _play(games: Games, actor: Actor, credit: Credit) -> tuple[Rollout, Recording | None]:
    if credit.replays:
        recording = record(games, actor.sample)
        return recording.rollout, recording
    return collect(games, actor.sample, central=credit.central), None
