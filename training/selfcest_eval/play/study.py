"""A study: every strategy plays every instance, at every budget and with every seed. Nothing is played twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path

from selfcest_agents.player import Player
from selfcest_agents.retries import drop_failed
from selfcest_agents.server_counts import tally_requests
from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_env.graders.qa import Overlap
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Brief, ControlsTurns, find_capability
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import Reward, make_reward
from selfcest_env.rules import Rules
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import to_stored
from selfcest_env.tasks import Style, TaskSource
from selfcest_env.tasks.support import SUPPORT, says_support, support_overlap
from selfcest_env.types import ROOT, Boundary, Fault, Role, Scalar, Status, Task
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.costs import WALL, check_costs, costs_of
from selfcest_eval.play.digest import digest
from selfcest_eval.play.instances import instances_of, source_of, source_spec
from selfcest_eval.play.perfect_execution import PerfectPlay, play_perfect_execution, styles_on
from selfcest_eval.play.policies import MINIMAL_LIMITS, PolicySource, check_servers, make_policy
from selfcest_eval.play.reports import grade_reports
from selfcest_eval.play.results import Result, ResultKey
from selfcest_eval.play.store import Store
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy, check_played, make_strategy
from selfcest_eval.play.unplayable import RetryingPlayer
from selfcest_training.config import EvalSet
from selfcest_training.servers import store_counts

# Called with the number of instances that were finished since the last call, and the name of their cell.
OnPlayed = Callable[[int, str], None]


@dataclass(frozen=True)
class EvalItem:
    """An instance of a cell, with the keys of its stored result.

    Attributes:
        instance: the instance.
        place: place of the result in the study.
        key: digest of everything that the result follows from.
        played: digest of everything that the episodes follow from.
    """

    instance: Instance
    place: ResultKey
    key: str
    played: str


@dataclass(frozen=True)
class EvalCell:
    """One strategy on one eval set, at one budget and with one seed.

    Attributes:
        eval_set: eval set that is played.
        strategy: label of the strategy in the config.
        budget: swept limit in tokens; `None`: the limits of the study.
        seed: seed of the study.
        style: style of the perfect player that plays instead of the policy; `None`: the policy plays.
    """

    eval_set: EvalSet
    strategy: str
    budget: int | None
    seed: int
    style: Style | None = None

    def __str__(self) -> str:
        budget = "" if self.budget is None else f", budget {self.budget}"
        player = f"seed {self.seed}" if self.style is None else f"perfect execution, {self.style}"
        return f"{self.eval_set.family} {self.eval_set.size}: {self.strategy}{budget}, {player}"


class Study:
    """A study whose sources, reward, strategies and policies are built and checked. No model has been loaded yet.

    Raises:
        SelfcestError: something in the config cannot be built, played or found; the message names its config key.
    """

    def __init__(self, config: StudyConfig) -> None:
        self.config = config
        check_costs(config.costs)
        self.reward: Reward = make_reward(config.reward.name, **config.reward.options)
        self.sources: dict[tuple[str, str], TaskSource] = {}
        self.tasks: dict[tuple[str, str], list[Task]] = {}
        for eval_set in config.eval_sets:
            source = source_of(config, eval_set)
            tasks = instances_of(config, eval_set, source)
            self.sources[eval_set.family, eval_set.size] = source
            self.tasks[eval_set.family, eval_set.size] = tasks
            self.reward.check(tasks, f"eval set {eval_set.family} {eval_set.size}")
        # Eval set, task and cause of each instance that could not be played, by `EvalItem.played`.
        self._unplayable: dict[str, tuple[EvalSet, str, str]] = {}
        self.strategies: dict[str, Strategy] = {}
        self._policies: dict[str, PolicySource] = {}
        for label, spec in config.strategies.items():
            self.strategies[label] = make_strategy(spec.name or label, spec.options, f"strategies.{label}")
            self.policy_of(label)
        for cell in self.cells():
            if cell.style is None:
                self._check(cell)
        self._fingerprints: dict[tuple[str, int], str] = {}
        for name, policy in self._policies.items():
            for seed in config.seeds:
                self._fingerprints[name, seed] = policy.fingerprint(seed)

    @property
    def policies(self) -> tuple[PolicySource, ...]:
        """The policies of all strategies, each once."""
        return tuple(self._policies.values())

    def policy_of(self, label: str) -> PolicySource:
        """Return the policy that plays a strategy. Strategies with equal policy configs share one."""
        name = self._policy_name(label)
        if name not in self._policies:
            spec = self.config.policy_of(label)
            has_own_policy = self.config.strategies[label].policy is not None
            where = f"strategies.{label}.policy" if has_own_policy else "policy"
            self._policies[name] = make_policy(spec.name, spec.options, where)
        return self._policies[name]

    def _policy_name(self, label: str) -> str:
        return digest(to_stored(self.config.policy_of(label)))

    @property
    def crossed(self) -> bool:
        """Whether seeds have different weights, so that they are crossed with instances; see `Resampler`."""
        return any(policy.seeded for policy in self._policies.values())

    @property
    def size(self) -> int:
        """The number of results of the complete study."""
        return sum(len(self._tasks_of(cell)) for cell in self.cells())

    def count_stored(self, store: Store) -> int:
        """Count the study's results whose episodes are stored. Some of them may have to be graded again."""
        count = 0
        for cell in self.cells():
            count += sum(not self._must_be_played(item, store) for item in self.items_of(cell))
        return count

    @staticmethod
    def _must_be_played(item: EvalItem, store: Store) -> bool:
        return item.key not in store and not store.has_episodes(item.played)

    def cells(self) -> Iterator[EvalCell]:
        """Yield every cell in the order of the results."""
        for eval_set, budget, strategy in product(self.config.eval_sets, self.config.budgets, self.strategies):
            if eval_set not in self.config.eval_sets_of(strategy):
                continue
            for seed in self.config.seeds:
                yield EvalCell(eval_set, strategy, budget, seed)
            for style in self._styles(eval_set, strategy, budget):
                # A perfect player plays the same whatever the seed, so it plays with one of them.
                yield EvalCell(eval_set, strategy, budget, self.config.seeds[0], style)

    def _styles(self, eval_set: EvalSet, label: str, budget: int | None) -> tuple[Style, ...]:
        """Return the styles of the strategy's perfect players on an eval set.

        Raises:
            ConfigError: the config names a style whose tool the limits forbid.
        """
        tasks = self.tasks[eval_set.family, eval_set.size]
        named = self.config.strategies[label].styles
        limits = self.strategies[label].limits(self.config.limits_at(budget, label), tasks[0])
        for style, is_allowed in ((Style.DELEGATE, limits.delegation), (Style.READ, limits.reading)):
            if style in (named or ()) and not is_allowed:
                raise ConfigError(
                    f"strategies.{label}.styles has '{style}', which its limits do not allow; remove it, or raise "
                    f"{'max_reads' if style is Style.READ else 'max_depth, max_clones and max_clones_per_call'}"
                )
        return styles_on(self.strategies[label].styles() if named is None else named, limits, tasks)

    def order(self) -> Iterator[tuple[str, ResultKey]]:
        """Yield the key and the place of every result, in the order of the results."""
        for cell in self.cells():
            for item in self.items_of(cell):
                yield item.key, item.place

    def play(self, store: Store, report: OnPlayed, player: Player | None = None) -> Path:
        """Play the instances that the store lacks, and return the file of all results.

        Args:
            store: store of the results.
            report: called after each batch, see `OnPlayed`.
            player: player that is used instead of the study's policies, for example if the weights are loaded already.

        Raises:
            ConfigError: a policy with instances left to play has a server that does not answer.
            InfrastructureError: more than `max_failed_fraction` of an eval set's instances cannot be played.
        """
        with tally_requests() as tally:

            def report_counted(done: int, line: str) -> None:
                store_counts(store.folder, tally.take())
                report(done, line)

            try:
                return self._play(store, report_counted, player)
            finally:
                store_counts(store.folder, tally.take())

    def _play(self, store: Store, report: OnPlayed, player: Player | None) -> Path:
        policy_cells = [cell for cell in self.cells() if cell.style is None]
        if player is None:
            check_servers(policy for policy in self._policies.values() if self._must_play(policy, store))
        # One model after the other, so that no two are loaded at once.
        for policy in self._policies.values():
            # A policy whose weights depend on the seed is loaded once per seed.
            seed_groups = [(seed,) for seed in self.config.seeds] if policy.seeded else [self.config.seeds]
            for seeds in seed_groups:
                cells = [c for c in policy_cells if c.seed in seeds and self.policy_of(c.strategy) is policy]
                self._play_cells(cells, policy, seeds[0], store, report, player)
        for cell in self.cells():
            if cell.style is not None:
                self._play_perfect_execution(cell, cell.style, store, report)
        # Grading stored episodes may also fail, so eval sets on which nothing was played are checked too.
        for eval_set in self.config.eval_sets:
            self._check_unplayable(eval_set)
        return store.finish(self.order(), self._unplayable_causes())

    def _unplayable_causes(self) -> dict[str, str]:
        """Return the last failure of every unplayable result, by the key of the result."""
        causes: dict[str, str] = {}
        if not self._unplayable:
            return causes
        for cell in self.cells():
            for item in self.items_of(cell):
                if item.played in self._unplayable:
                    _, _, cause = self._unplayable[item.played]
                    causes[item.key] = cause
        return causes

    def _must_play(self, policy: PolicySource, store: Store) -> bool:
        """Return whether the policy has an instance left to play."""
        cells = [cell for cell in self.cells() if cell.style is None and self.policy_of(cell.strategy) is policy]
        items = chain.from_iterable(map(self.items_of, cells))
        return any(self._must_be_played(item, store) for item in items)

    # One cell

    def _play_cells(
        self,
        cells: Sequence[EvalCell],
        policy: PolicySource,
        seed: int,
        store: Store,
        report: OnPlayed,
        loaded: Player | None,
    ) -> None:
        missing_by_cell: list[tuple[EvalCell, list[EvalItem]]] = []
        for cell in cells:
            items = self.items_of(cell)
            missing = self._regrade_stored(items, cell, store)
            if len(missing) < len(items):
                report(len(items) - len(missing), str(cell))
            if missing:
                missing_by_cell.append((cell, missing))
        if not missing_by_cell:
            return  # the model need not be loaded
        with closing(policy.load(seed)) if loaded is None else nullcontext(loaded) as player:
            for cell, missing in missing_by_cell:
                for start in range(0, len(missing), self.config.batch):
                    batch = missing[start : start + self.config.batch]
                    # A cell of another strategy may have played the same episodes in this loop. For example,
                    # `self_consistency` and `best_of_n` judge the same samples.
                    new = self._regrade_stored(batch, cell, store)
                    new = [item for item in new if item.played not in self._unplayable]
                    start_time = time.perf_counter()
                    played = self._play_items(new, cell, player)
                    seconds = (time.perf_counter() - start_time) / max(1, len(new))
                    store.add(self._grade_items(cell, [(item, episodes, seconds) for item, episodes in played]))
                    report(len(batch), str(cell))
                    self._check_unplayable(cell.eval_set)

    def _play_items(self, items: Sequence[EvalItem], cell: EvalCell, player: Player) -> list[tuple[EvalItem, Episodes]]:
        """Return the episodes of the instances that can be played, and note the others as unplayable."""
        strategy = self.strategies[cell.strategy]
        context = self.context(cell)
        retrying = RetryingPlayer(player, self.config.max_retries)

        def play(items: Sequence[EvalItem]) -> list[Episodes]:
            if not items:
                return []
            played = strategy.play([item.instance for item in items], context, retrying)
            check_played(cell.strategy, played, len(items), context.limits)
            return played

        # The id of an episode is the name of its instance, a dot and the number of the sample.
        played, remaining, dropped = drop_failed(
            items, play, lambda item, episode: episode.rpartition(".")[0] == item.instance.name
        )
        for item, failure in dropped:
            self._note_unplayable(item, cell, str(failure.cause))
        return list(zip(remaining, played, strict=True))

    def _grade_items(
        self, cell: EvalCell, played: Sequence[tuple[EvalItem, Sequence[EpisodeRecord], float]]
    ) -> Iterator[Result]:
        """Yield the results of the episodes that can be graded, and note the others as unplayable.

        Args:
            cell: cell of the items.
            played: items, each with its episodes and wall-clock seconds.
        """
        self.reward.prepare(list(chain.from_iterable(episodes for _, episodes, _ in played)))
        for item, episodes, seconds in played:
            try:
                yield self._make_result(item, cell, episodes, seconds)
            except InfrastructureError as error:
                self._note_unplayable(item, cell, str(error))

    def _note_unplayable(self, item: EvalItem, cell: EvalCell, why: str) -> None:
        self._unplayable[item.played] = cell.eval_set, item.place.task_id, why

    def _check_unplayable(self, eval_set: EvalSet) -> None:
        """Raise `InfrastructureError` if more of an eval set's instances failed than the config allows."""
        causes = {task_id: why for failed_on, task_id, why in self._unplayable.values() if failed_on == eval_set}
        num_instances = len(self.tasks[eval_set.family, eval_set.size])
        max_fraction = self.config.max_failed_fraction
        if len(causes) > max_fraction * num_instances:
            *_, last = causes.values()
            raise InfrastructureError(
                f"{eval_set.family} {eval_set.size}: {len(causes)} of {num_instances} instances could not be played, "
                f"and max_failed_fraction is {max_fraction:g}; the last failure: {last}. Check the server, then "
                "continue with --resume"
            )

    def _play_perfect_execution(self, cell: EvalCell, style: Style, store: Store, report: OnPlayed) -> None:
        """Let the expert play a cell. Its episodes are not stored, since the same script can play them again."""
        items = self.items_of(cell)
        strategy = self.strategies[cell.strategy]
        rules = self.policy_of(cell.strategy).rules(MINIMAL_LIMITS)
        for start in range(0, len(items), self.config.batch):
            batch = items[start : start + self.config.batch]
            shared_results: list[Result] = []
            missing: list[EvalItem] = []
            for item in batch:
                if item.key in store:
                    continue
                result = store.find_episodes(item.played)
                # Another strategy may choose differently among the same samples. A result with costs has only right
                # samples, so there the choice does not matter.
                if result is not None and result.costs is not None:
                    shared_results.append(replace(result, key=item.key, place=item.place))
                else:
                    missing.append(item)
            store.add(shared_results)
            plays = play_perfect_execution(
                strategy, style, [item.instance for item in missing], self.context(cell), rules, self.reward
            )
            store.add(self._make_expert_result(item, play, strategy) for item, play in zip(missing, plays, strict=True))
            report(len(batch), str(cell))

    def _make_expert_result(self, item: EvalItem, play: PerfectPlay, strategy: Strategy) -> Result:
        chosen = strategy.choose(play.episodes, play.grades)
        costs = None
        if play.is_perfect:
            costs = costs_of(play.episodes, 0.0, self.config.measures, in_series=strategy.ran_in_series(play.episodes))
        if costs is not None:
            # The wall-clock time of a script cannot be compared with that of a policy.
            costs = {name: cost for name, cost in costs.items() if name != WALL}
        return Result(
            item.key,
            item.played,
            item.place,
            (),
            chosen,
            play.grades[chosen],
            ending=play.episodes[chosen].root.status,
            costs=costs,
            lifted=play.lifted,
        )

    def _regrade_stored(self, items: Sequence[EvalItem], cell: EvalCell, store: Store) -> list[EvalItem]:
        """Store the results that follow from stored episodes, and return the items that must still be played.

        These episodes were played for another strategy, or graded by another grader.
        """
        missing = []
        regraded = []
        for item in items:
            if item.key in store:
                continue
            result = store.find_episodes(item.played)
            if result is None:
                missing.append(item)
            else:
                regraded.append((item, result.episodes, (result.costs or {}).get(WALL, 0.0)))
        store.add(self._grade_items(cell, regraded))
        return missing

    def _make_result(self, item: EvalItem, cell: EvalCell, episodes: Sequence[EpisodeRecord], seconds: float) -> Result:
        # Episodes from the store were scored by another reward, perhaps with another answer key.
        unscored = [
            replace(
                episode, task=_with_truth(episode.task, item.instance.task), reward_terms=None, parts={}, by_turn={}
            )
            for episode in episodes
        ]
        grades = [self.reward.grade(episode) for episode in unscored]
        scored = tuple(self.reward.score(episode, grade=grade) for episode, grade in zip(unscored, grades, strict=True))
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
            costs=costs_of(scored, seconds, self.config.measures, in_series=strategy.ran_in_series(scored)),
            executed=strategy.executed(scored),
            support=self._compare_support(scored[chosen], cell),
            reports=grade_reports(scored, self.context(cell).source) if self.config.grade_reports else None,
        )

    def _compare_support(self, episode: EpisodeRecord, cell: EvalCell) -> Overlap | None:
        if not says_support(episode.task):
            return None
        return support_overlap(episode, self.policy_of(cell.strategy).rules(episode.limits).protocol)

    # Keys

    def _tasks_of(self, cell: EvalCell) -> list[Task]:
        return self.tasks[cell.eval_set.family, cell.eval_set.size]

    def context(self, cell: EvalCell) -> PlayContext:
        """Return the context of the cell's strategy."""
        return PlayContext(
            self.config.limits_at(cell.budget, cell.strategy),
            self.config.temperature_of(cell.strategy),
            self.sources[cell.eval_set.family, cell.eval_set.size],
            self.policy_of(cell.strategy).rules(MINIMAL_LIMITS).protocol,
        )

    def items_of(self, cell: EvalCell) -> list[EvalItem]:
        """Return the cell's instances with the keys of their results.

        Stored results are found by these digests: a change of their parts or order plays every study again.
        """
        strategy = self.strategies[cell.strategy]
        context = self.context(cell)
        eval_set = cell.eval_set
        is_perfect_player = cell.style is not None
        needs_expert = strategy.uses_expert or is_perfect_player
        shared_parts = digest(
            strategy.recipe,
            to_stored(context.limits),
            context.temperature,
            self._fingerprints[self._policy_name(cell.strategy), cell.seed],
            to_stored(source_spec(self.config, eval_set)) if needs_expert else None,
            *protocol_texts(strategy, context),
            *([cell.style] if is_perfect_player else []),
        )
        choice = [strategy.identity, self._reward_digest, self._costs_digest]
        items = []
        for task in self._tasks_of(cell):
            facts = dict(task.metadata)
            # A file's gold decomposition is in the metadata, and only an expert plays by it.
            plan = facts if needs_expert else None
            if is_perfect_player:
                # It plays the same whatever the policy's seed. The stream keeps the name of the first stored studies.
                seed = stream_seed("errorless", task.task_id)
            else:
                seed = stream_seed("study", cell.seed, task.task_id)
            context_items = list(task.context.items())
            played = digest(shared_parts, seed, task.task_id, task.source, task.prompt, context_items, plan)
            measured = []
            if is_perfect_player:
                # No episode is stored that could be graded or measured again.
                played = digest(played, self._reward_digest, self._costs_digest, task.answer, list(task.aliases))
            else:
                if says_support(task):
                    measured.append("support")
                if self.config.grade_reports:
                    measured.append("reports")
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
    def _reward_digest(self) -> str:
        return digest(to_stored(self.config.reward))

    @cached_property
    def _costs_digest(self) -> str:
        price = [] if self.config.price is None else [to_stored(self.config.price)]
        return digest({name: to_stored(spec) for name, spec in self.config.costs.items()}, *price)

    def _check(self, cell: EvalCell) -> None:
        """Raise `ConfigError` if the strategy cannot be played in this cell."""
        strategy = self.strategies[cell.strategy]
        context = self.context(cell)
        tasks = self._tasks_of(cell)
        policy = self.policy_of(cell.strategy)
        try:
            strategy.check(context)
            strategy.check_tasks(tasks, context.source)
            for player in strategy.players():
                rules = policy.rules(player.limits(context.limits, tasks[0]))
                rules = rules.with_variant(player.prompt_variant(context))
                # Each raises for a protocol that cannot write an opening: the first that of the root, the second that
                # of a clone.
                Kernel(tasks[0], rules)
                rules.protocol.open(rules.clone_brief(1, "", {}, 1))
                if player.must_fit:
                    _check_prompts_fit(tasks, rules)
        except ConfigError as error:
            place = f"strategies.{cell.strategy}, {cell.eval_set.family}"
            if cell.budget is not None:
                place += f", budget {cell.budget}"
            raise ConfigError(f"{place}: {error}") from error


def _with_truth(played: Task, task: Task) -> Task:
    """Return the study's task with the prompt and the documents that an episode had.

    A strategy may play other ones, such as some of the documents. The study's supporting documents apply to
    the same question about documents with their keys. The number of all documents stays, since a router chose by it.
    """
    if (played.prompt, played.context) == (task.prompt, task.context):
        return task
    facts: dict[str, Scalar] = {"documents": len(task.context), **task.metadata}
    if played.prompt != task.prompt or not played.context.items() <= task.context.items():
        facts.pop(SUPPORT, None)
    return replace(task, prompt=played.prompt, context=played.context, metadata=facts)


def _check_prompts_fit(tasks: Sequence[Task], rules: Rules) -> None:
    """Raise `ConfigError` if the root's prompt of a task does not fit the limits."""
    for task in tasks:
        root = Kernel(task, rules).agents[ROOT]
        if root.status is Status.PROMPT_TOO_LONG:
            tokens = rules.counter.count(root.messages, Boundary.OPENING)
            raise ConfigError(
                f"the prompt of task {task.task_id} has {tokens} tokens, which do not fit limits.context_tokens = "
                f"{rules.limits.context_tokens} and limits.total_tokens = {rules.limits.total_tokens}; leave its "
                "family out of the strategy's families, or raise the limits up to the model's window, which the "
                "model's option rope_factor scales"
            )


def protocol_texts(strategy: Strategy, context: PlayContext) -> list[list[str]]:
    """Return the texts that a strategy adds to the policy's protocol, for keys of stored results.

    The texts are openings and reminders of sample observations, a list for each player with a prompt variant of its
    own. A strategy without one adds nothing to its keys. How a variant reads turns is in `Strategy.version`.
    """
    root = Brief(Role.ROOT, "[1] + 2?", keys=("B",), can_delegate=True, total_tokens=64, clones=2)
    briefs = [root, replace(root, role=Role.CLONE), replace(root, can_delegate=False)]
    texts = []
    for player in strategy.players():
        variant = player.prompt_variant(context)
        if variant is None:
            continue
        protocol = variant(context.protocol)
        messages = list(chain.from_iterable(protocol.open(brief) for brief in briefs))
        control = find_capability(protocol, ControlsTurns)
        if control is not None:
            messages += [control.remind(protocol.fault(Fault.CUT_BY_LENGTH), turns_left) for turns_left in (1, 2)]
        texts.append([message.content for message in messages])
    return texts
