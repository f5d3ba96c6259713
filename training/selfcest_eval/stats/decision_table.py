"""When each policy of a study delegates, if the study also forces both choices on its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.forced import AlwaysDelegates, NeverDelegates
from selfcest_eval.play.results import Result
from selfcest_eval.play.strategies import STRATEGIES, DelegatingStrategy, Strategy
from selfcest_eval.stats.decision import Choice, Decisions, judge_choices, pair_choices

DECISIONS_MEANING = (
    "An instance is worth delegating if the forced choice *always* earns more on it than *never*, with the same "
    "weights. The best threshold policy delegates all sizes from the threshold up, and earns most on these same "
    "instances. Regret is its reward minus that of the policy. F1 compares the instances that the policy delegates "
    "with those worth delegating; instances on which both forced choices earn the same are left out. Each line is of "
    "one seed."
)


@dataclass(frozen=True)
class ForcedTriple:
    """The labels of three strategies with the same weights: the policy's own choice, and both forced choices."""

    free: str
    always: str
    never: str


def find_forced_triples(config: StudyConfig) -> list[ForcedTriple]:
    """Return every strategy that chooses by itself and whose weights also play both forced choices."""
    # Strategies with the same weights, sampling, limits and families are comparable.
    label_by_kind: dict[str, dict[type[Strategy], str]] = {}
    choosing: list[tuple[str, str]] = []
    deciding_first: list[tuple[str, str]] = []
    for label, spec in config.strategies.items():
        key = f"{config.policy_of(label)} {config.temperature_of(label)} {dict(spec.limits)} {spec.families}"
        kind = STRATEGIES.load(spec.name or label)
        label_by_kind.setdefault(key, {})[kind] = label
        if kind in (Strategy, DelegatingStrategy):
            choosing.append((key, label))
        if kind.decides_first:
            deciding_first.append((key, label))
    triples = []
    for key, label in [*choosing, *deciding_first]:
        labels = label_by_kind[key]
        if AlwaysDelegates in labels and NeverDelegates in labels:
            triples.append(ForcedTriple(label, labels[AlwaysDelegates], labels[NeverDelegates]))
    return triples


@dataclass(frozen=True)
class FamilyDecisions:
    """The choices of one policy on one family at one budget.

    Attributes:
        triple: the three strategies.
        family: family of the tasks.
        budget: swept limit in tokens; `None`: the limits of the study.
        sizes: choices of all seeds, by the size of the eval set.
        seeds: value of the choices, by seed.
    """

    triple: ForcedTriple
    family: str
    budget: int | None
    sizes: dict[str, list[Choice]]
    seeds: dict[int, Decisions]

    @property
    def shares(self) -> list[float]:
        """The share of instances that the policy delegated, by size."""
        shares = []
        for played in self.sizes.values():
            shares.append(sum(choice.free.delegated for choice in played) / len(played))
        return shares


def find_decisions(config: StudyConfig, results: Iterable[Result]) -> list[FamilyDecisions]:
    """Return the decisions of every triple on every family whose tasks have a size.

    Args:
        config: of the study.
        results: the study's results with their episodes.
    """
    results = list(results)
    decisions = []
    for triple in find_forced_triples(config):
        names = (triple.free, triple.always, triple.never)
        of_triple = [r for r in results if r.place.strategy in names and r.place.style is None]
        for family, budget in dict.fromkeys((r.place.family, r.place.budget) for r in of_triple):
            played = [r for r in of_triple if (r.place.family, r.place.budget) == (family, budget)]
            if not all(isinstance(r.episodes[r.chosen].task.metadata.get("size"), int) for r in played):
                continue
            choices_by_size = {}
            for size in dict.fromkeys(r.place.size for r in played):
                choices_by_size[size] = pair_choices([r for r in played if r.place.size == size], *names)
            decisions_by_seed = {}
            for seed in sorted({r.place.seed for r in played}):
                choices = pair_choices([r for r in played if r.place.seed == seed], *names)
                decisions_by_seed[seed] = judge_choices(choices)
            decisions.append(FamilyDecisions(triple, family, budget, choices_by_size, decisions_by_seed))
    return decisions
