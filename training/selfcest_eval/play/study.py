"""Playing a study: every strategy on every instance at every budget with every seed, and nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from selfcest_agents.player import Player
from selfcest_agents.retries import drop_failed
from selfcest_agents.server_counts import tallied
from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_env.graders.qa import Overlap
from selfcest_env.kernel import Kernel
from selfcest_env.plugin import PlugIn
from selfcest_env.protocol import Brief, ControlsTurns, find_capability
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import Reward, make_reward
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import to_stored
from selfcest_env.tasks import Style, TaskSource
from selfcest_env.tasks.support import says_support, support_overlap
from selfcest_env.types import Fault, Role, Task
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.costs import WALL, costs_of
from selfcest_eval.play.digest import digest
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.perfect_execution import PerfectPlay, play_perfect_execution, styles_on
from selfcest_eval.play.policies import LEAST, PolicySource, check_servers, make_policy
from selfcest_eval.play.results import Result, ResultKey
from selfcest_eval.play.store import Store
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy, make_strategy, shown_name
from selfcest_eval.play.unplayable import RetryingPlayer
from selfcest_training.config import EvalSet
from selfcest_training.servers import store_counts

OnPlayed = Callable[[int, str], None]  # instances done since the last report, and which


@dataclass(frozen=True)
class EvalItem:
    """An instance with the names of what will come of it."""

    instance: Instance
    place: ResultKey
    key: str
    played: str


@dataclass(frozen=True)
class EvalCell:
    """The instances of an eval set for one strategy, budget and seed; with a style those of its perfect player."""

    eval_set: EvalSet
    strategy: str
    budget: int | None
    seed: int
    style: Style | None = None

    def __str__(self) -> str:
        budget = "" if self.budget is None else f", budget {self.budget}"
        who = f"seed {self.seed}" if self.style is None else f"perfect execution, {self.style}"
        return f"{self.eval_set.family} {self.eval_set.size}: {self.strategy}{budget}, {who}"


class Study:
    """A config with everything built from it and found right; nothing has been played or loaded yet.

    Raises:
        SelfcestError: whatever in the config cannot be built, played or found, with its place.
    """

    def __init__(self, config: StudyConfig) -> None:
        self.config = config
        self.reward: Reward = make_reward(config.reward.name, **config.reward.options)
        self.sources: dict[tuple[str, str], TaskSource] = {}
        self.tasks: dict[tuple[str, str], list[Task]] = {}
        for eval_set in config.eval_sets:
            self.sources[eval_set.family, eval_set.size] = source = source_of(config, eval_set)
            self.tasks[eval_set.family, eval_set.size] = tasks = instances_of(config, eval_set, source)
            self.reward.check(tasks, f"eval set {eval_set.family} {eval_set.size}")
        self._unplayable: dict[
            str, tuple[EvalSet, str, str]
        ] = {}  # eval set, task and cause by what would have been played
        self.strategies: dict[str, Strategy] = {}
        self._policies: dict[str, PolicySource] = {}
        for label, spec in config.strategies.items():
            self.strategies[label] = make_strategy(spec.name or label, spec.options, f"strategies.{label}")
            self.policy_of(label)
        for cell in self.cells():
            if cell.style is None:
                self._check(cell)
        self._prints = {
            (name, seed): policy.fingerprint(seed) for name, policy in self._policies.items() for seed in config.seeds
        }

    @property
    def policies(self) -> tuple[PolicySource, ...]:
        """Each once."""
        return tuple(self._policies.values())

    def policy_of(self, label: str) -> PolicySource:
        spec, name = self.config.policy_of(label), self._policy_name(label)
        if name not in self._policies:
            own = self.config.strategies[label].policy is not None
            self._policies[name] = make_policy(
                spec.name, spec.options, f"strategies.{label}.policy" if own else "policy"
            )
        return self._policies[name]

    def _policy_name(self, label: str) -> str:
        return digest(to_stored(self.config.policy_of(label)))

    @property
    def crossed(self) -> bool:
        """Whether seeds are other weights, the same for all instances, and not only other samples."""
        return any(policy.seeded for policy in self._policies.values())

    @property
    def size(self) -> int:
        return sum(len(self._tasks(cell)) for cell in self.cells())

    def found(self, store: Store) -> int:
        """How many of the study's results are in the store, or need only be judged again."""
        items = (item for cell in self.cells() for item in self._items_of(cell))
        return sum(item.key in store or store.has_episodes(item.played) for item in items)

    def label(self, strategy: str) -> str:
        return shown_name(strategy, self.strategies[strategy])

    def cells(self) -> Iterator[EvalCell]:
        """In the order of the results."""
        for eval_set in self.config.eval_sets:
            for budget in self.config.budgets:
                for strategy in self.strategies:
                    if eval_set in self.config.eval_sets_of(strategy):
                        for seed in self.config.seeds:
                            yield EvalCell(eval_set, strategy, budget, seed)
                        for style in self._styles(eval_set, strategy, budget):
                            yield EvalCell(eval_set, strategy, budget, self.config.seeds[0], style)

    def _styles(self, eval_set: EvalSet, label: str, budget: int | None) -> tuple[Style, ...]:
        """Of the strategy's perfect players on an eval set. Raises `ConfigError` for one whose tool is forbidden."""
        tasks, named = self.tasks[eval_set.family, eval_set.size], self.config.strategies[label].styles
        limits = self.strategies[label].limits(self.config.limits_at(budget, label), tasks[0])
        for style, able in ((Style.DELEGATE, limits.delegation), (Style.READ, limits.reading)):
            if style in (named or ()) and not able:
                raise ConfigError(
                    f"strategies.{label}.styles has '{style}', which its limits do not allow; remove it, or raise "
                    f"{'max_reads' if style is Style.READ else 'max_depth, max_clones and max_clones_per_call'}"
                )
        return styles_on(self.strategies[label].styles() if named is None else named, limits, tasks)

    def order(self) -> Iterator[tuple[str, ResultKey]]:
        """Keys and places of all results."""
        for cell in self.cells():
            for item in self._items_of(cell):
                yield item.key, item.place

    def play(self, store: Store, report: OnPlayed, player: Player | None = None) -> Path:
        """Play what the store lacks. Returns the file of all results.

        Args:
            store: where results are.
            report: told of progress.
            player: plays instead of the one that the study's policy would load, as when its weights are here already.

        Raises:
            ConfigError: nobody answers where a policy that has something left to play has its server.
            InfrastructureError: more than `max_failed_fraction` of an eval set's instances cannot be played.
        """
        with tallied() as tally:

            def report_counted(done: int, line: str) -> None:
                store_counts(store.folder, tally.take())
                report(done, line)

            try:
                return self._play(store, report_counted, player)
            finally:
                store_counts(store.folder, tally.take())

    def _play(self, store: Store, report: OnPlayed, player: Player | None) -> Path:
        waiting = [cell for cell in self.cells() if cell.style is None]
        if player is None:
            check_servers(policy for policy in self._policies.values() if self._lacks(policy, waiting, store))
        # One model after the other, so that no two are loaded at once.
        for policy in self._policies.values():
            for seeds in [(seed,) for seed in self.config.seeds] if policy.seeded else [self.config.seeds]:
                cells = [b for b in waiting if b.seed in seeds and self.policy_of(b.strategy) is policy]
                self._play_cells(cells, policy, seeds[0], store, report, player)
        for cell in self.cells():
            if cell.style is not None:
                self._play_perfect_execution(cell, cell.style, store, report)
        for eval_set in self.config.eval_sets:  # what was found may have been lost to a judge
            self._check_unplayable(eval_set)
        lost = self._unplayable
        items = (item for cell in self.cells() if lost for item in self._items_of(cell) if item.played in lost)
        return store.finish(self.order(), {item.key: lost[item.played][-1] for item in items})

    def _lacks(self, policy: PolicySource, cells: Sequence[EvalCell], store: Store) -> bool:
        """Whether something is to be played by it."""
        items = (item for b in cells if self.policy_of(b.strategy) is policy for item in self._items_of(b))
        return any(item.key not in store and not store.has_episodes(item.played) for item in items)

    # One cell

    def _play_cells(
        self,
        cells: Sequence[EvalCell],
        policy: PolicySource,
        seed: int,
        store: Store,
        report: OnPlayed,
        here: Player | None,
    ) -> None:
        missing: list[tuple[EvalCell, list[EvalItem]]] = []
        for cell in cells:
            items = self._items_of(cell)
            lacking = self._not_found(items, cell, store)
            if len(lacking) < len(items):
                report(len(items) - len(lacking), str(cell))
            if lacking:
                missing.append((cell, lacking))
        if not missing:
            return
        with closing(policy.load(seed)) if here is None else nullcontext(here) as player:
            for cell, lacking in missing:
                strategy, context = self.strategies[cell.strategy], self.context(cell)
                for start in range(0, len(lacking), self.config.batch):
                    batch = lacking[start : start + self.config.batch]
                    new = self._not_found(batch, cell, store)  # another strategy may have played some meanwhile
                    new = [item for item in new if item.played not in self._unplayable]
                    clock = time.perf_counter()
                    played = self._played(new, cell, strategy, context, player)
                    seconds = (time.perf_counter() - clock) / max(1, len(new))
                    store.add(self._judged(cell, [(item, episodes, seconds) for item, episodes in played]))
                    report(len(batch), str(cell))
                    self._check_unplayable(cell.eval_set)

    def _played(
        self, items: Sequence[EvalItem], cell: EvalCell, strategy: Strategy, context: PlayContext, player: Player
    ) -> list[tuple[EvalItem, Episodes]]:
        """The episodes of those instances that can be played; the others are noted."""
        retrying = RetryingPlayer(player, self.config.max_retries)

        def play(items: Sequence[EvalItem]) -> list[Episodes]:
            return strategy.play([item.instance for item in items], context, retrying) if items else []

        played, left, dropped = drop_failed(
            items, play, lambda item, episode: episode.rpartition(".")[0] == item.instance.name
        )
        for item, failure in dropped:
            self._lose(item, cell, str(failure.cause))
        return list(zip(left, played, strict=True))

    def _judged(
        self, cell: EvalCell, played: Sequence[tuple[EvalItem, Sequence[EpisodeRecord], float]]
    ) -> Iterator[Result]:
        """The results of those episodes, with their seconds, that can be judged; the others are noted."""
        self.reward.prepare([episode for _, episodes, _ in played for episode in episodes])
        for item, episodes, seconds in played:
            try:
                yield self._result(item, cell, episodes, seconds)
            except InfrastructureError as error:
                self._lose(item, cell, str(error))

    def _lose(self, item: EvalItem, cell: EvalCell, why: str) -> None:
        self._unplayable[item.played] = cell.eval_set, item.place.task_id, why

    def _check_unplayable(self, eval_set: EvalSet) -> None:
        lost = {task: why for of, task, why in self._unplayable.values() if of == eval_set}
        asked, most = len(self.tasks[eval_set.family, eval_set.size]), self.config.max_failed_fraction
        if len(lost) > most * asked:
            raise InfrastructureError(
                f"{eval_set.family} {eval_set.size}: {len(lost)} of {asked} instances could not be played, and "
                f"max_failed_fraction is {most:g}; the last: {[*lost.values()][-1]}. Look at that server, then go on "
                "with --resume"
            )

    def _play_perfect_execution(self, cell: EvalCell, style: Style, store: Store, report: OnPlayed) -> None:
        """No model plays, so what is lacking is played again and no episode is stored."""
        items = self._items_of(cell)
        rules, strategy = self.policy_of(cell.strategy).rules(LEAST), self.strategies[cell.strategy]
        for start in range(0, len(items), self.config.batch):
            batch = items[start : start + self.config.batch]
            lacking = [item for item in batch if item.key not in store]
            found = {item.key: result for item in lacking if (result := store.find_episodes(item.played)) is not None}
            # Of another choice among the same samples, which are all right.
            shared = {key: result for key, result in found.items() if result.costs is not None}
            new = [item for item in lacking if item.key not in shared]
            played = play_perfect_execution(
                strategy, style, [item.instance for item in new], self.context(cell), rules, self.reward
            )
            store.add(
                replace(shared[item.key], key=item.key, place=item.place) for item in lacking if item.key in shared
            )
            store.add(self._perfect_execution(item, made, strategy) for item, made in zip(new, played, strict=True))
            report(len(batch), str(cell))

    def _perfect_execution(self, item: EvalItem, found: PerfectPlay, strategy: Strategy) -> Result:
        chosen = strategy.choose(found.episodes, found.grades)
        together = costs_of(found.episodes, 0.0, self.config.measures, in_series=strategy.waited(found.episodes))
        costs = together if found.is_perfect else None
        return Result(
            item.key,
            item.played,
            item.place,
            (),
            chosen,
            found.grades[chosen],
            ending=found.episodes[chosen].root.status,
            costs=costs and {name: cost for name, cost in costs.items() if name != WALL},  # a script's seconds
            lifted=found.lifted,
        )

    def _not_found(self, items: Sequence[EvalItem], cell: EvalCell, store: Store) -> list[EvalItem]:
        """What must be played. Episodes that were played for another strategy or grader are judged again and stored."""
        missing = [(item, store.find_episodes(item.played)) for item in items if item.key not in store]
        found = [(item, result) for item, result in missing if result is not None]
        again = [(item, result.episodes, (result.costs or {}).get(WALL, 0.0)) for item, result in found]
        store.add(self._judged(cell, again))
        return [item for item, result in missing if result is None]

    def _result(self, item: EvalItem, cell: EvalCell, episodes: Sequence[EpisodeRecord], seconds: float) -> Result:
        unscored = [
            replace(episode, task=item.instance.task, reward_terms=None, parts={}, by_turn={}) for episode in episodes
        ]
        grades = [self.reward.grade(episode) for episode in unscored]
        scored = tuple(self.reward.score(e, grade=grade) for e, grade in zip(unscored, grades, strict=True))
        strategy = self.strategies[cell.strategy]
        chosen = strategy.choose(scored, grades)
        return Result(
            item.key,
            item.played,
            item.place,
            scored,
            chosen,
            grades[chosen],
            ending=scored[chosen].root.status,
            costs=costs_of(scored, seconds, self.config.measures, in_series=strategy.waited(scored)),
            executed=strategy.executed(scored),
            support=self._support(scored[chosen], cell),
        )

    def _support(self, episode: EpisodeRecord, cell: EvalCell) -> Overlap | None:
        if not says_support(episode.task):
            return None
        return support_overlap(episode, self.policy_of(cell.strategy).rules(episode.limits).protocol)

    # Names

    def _tasks(self, cell: EvalCell) -> list[Task]:
        return self.tasks[cell.eval_set.family, cell.eval_set.size]

    def context(self, cell: EvalCell) -> PlayContext:
        return PlayContext(
            self.config.limits_at(cell.budget, cell.strategy),
            self.config.temperature_of(cell.strategy),
            self.sources[cell.eval_set.family, cell.eval_set.size],
            self.policy_of(cell.strategy).rules(LEAST).protocol,
        )

    def _items_of(self, cell: EvalCell) -> list[EvalItem]:
        strategy, context, eval_set = self.strategies[cell.strategy], self.context(cell), cell.eval_set
        expert = strategy.uses_expert or cell.style is not None
        fixed = digest(
            strategy.recipe,
            to_stored(context.limits),
            context.temperature,
            self._prints[self._policy_name(cell.strategy), cell.seed],
            to_stored(_changed(self.config.tasks[eval_set.family], eval_set)) if expert else None,
            *said_by(strategy, context),
            *([] if cell.style is None else [cell.style]),
        )
        choice = [strategy.identity, self._judge, self._costs]
        items = []
        for task in self._tasks(cell):
            seed = stream_seed("study", cell.seed, task.task_id)
            if cell.style is not None:  # the same whatever weights it stands beside
                seed = stream_seed("errorless", task.task_id)
            facts = dict(task.metadata)
            plan = facts if expert else None  # a file's gold decomposition stands there
            played = digest(fixed, seed, task.task_id, task.source, task.prompt, list(task.context.items()), plan)
            measured = ["support"] if cell.style is None and says_support(task) else []
            if cell.style is not None:  # no episode is there to be judged or measured again
                played = digest(played, self._judge, self._costs, task.answer, list(task.aliases))
            key = digest(played, choice, task.answer, list(task.aliases), facts, *measured)
            place = ResultKey(
                eval_set.family,
                eval_set.size,
                eval_set.shift,
                cell.strategy,
                cell.budget,
                cell.seed,
                task.task_id,
                cell.style,
            )
            items.append(EvalItem(Instance(task, seed), place, key, played))
        return items

    @cached_property
    def _judge(self) -> str:
        return digest(to_stored(self.config.reward))

    @cached_property
    def _costs(self) -> str:
        price = [] if self.config.price is None else [to_stored(self.config.price)]
        return digest({name: to_stored(spec) for name, spec in self.config.costs.items()}, *price)

    def _check(self, cell: EvalCell) -> None:
        strategy, context = self.strategies[cell.strategy], self.context(cell)
        try:
            strategy.check(context)
            strategy.check_tasks(self._tasks(cell), context.source)
            for player, task in product(strategy.players(), self._tasks(cell)[:1]):
                rules = self.policy_of(cell.strategy).rules(player.limits(context.limits, task))
                rules = rules.with_variant(player.prompt_variant(context))
                Kernel(task, rules)  # a protocol that cannot say it says so here
                rules.protocol.open(rules.clone_brief(1, "", {}, 1))
        except ConfigError as error:
            place = f"strategies.{cell.strategy}, {cell.eval_set.family}"
            place += "" if cell.budget is None else f", budget {cell.budget}"
            raise ConfigError(f"{place}: {error}") from error


def said_by(strategy: Strategy, context: PlayContext) -> list[list[str]]:
    """What agents read that a strategy tells something: their openings, and what is said of their turns.

    Return a list for each player with a prompt variant. Stored names of players without one do not change. The list
    differs when the sentences differ; how a prompt variant parses what agents write is in `Strategy.version`.
    """
    root = Brief(Role.ROOT, "[1] + 2?", keys=("B",), can_delegate=True, total_tokens=64, clones=2)
    briefs = (root, replace(root, role=Role.CLONE), replace(root, can_delegate=False))
    found = []
    for prompt_variant in (player.prompt_variant(context) for player in strategy.players()):
        if prompt_variant is not None:
            protocol = prompt_variant(context.protocol)
            told = [message for brief in briefs for message in protocol.open(brief)]
            if (control := find_capability(protocol, ControlsTurns)) is not None:
                told += [control.remind(protocol.fault(Fault.CUT_BY_LENGTH), left) for left in (1, 2)]
            found.append([message.content for message in told])
    return found


def _changed(spec: PlugIn, eval_set: EvalSet) -> PlugIn:
    return PlugIn(spec.name, {**spec.options, **eval_set.options})
