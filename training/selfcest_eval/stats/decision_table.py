"""The section of a report on when a policy delegates: wherever a study plays both choices forced on its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.forced import AlwaysDelegates, NeverDelegates
from selfcest_eval.play.results import Result
from selfcest_eval.play.strategies import DelegatingStrategy, Strategy, find_strategy
from selfcest_eval.stats.decision import Choice, Decisions, InstanceOutcome, choices, judge, means

MEANING = (
    "An instance is worth delegating if the forced choice *always* earns more on it than *never*, from the same "
    "weights. The best threshold is the size from which on to delegate that earns most on these very instances; regret "
    "is how much more it earns than the policy; F1 is that of delegating where it is worth it, with every instance on "
    "which both earn the same left out. The numbers of one line are of one seed."
)


@dataclass(frozen=True)
class ForcedTriple:
    """Strategies of a study with the same weights: the policy's own choice, and both forced."""

    free: str
    always: str
    never: str


def find_forced_triples(config: StudyConfig) -> list[ForcedTriple]:
    """Every strategy that decides by itself and whose policy plays both forced choices as well."""
    found: dict[str, dict[type[Strategy], str]] = {}
    explicit: list[tuple[str, str]] = []
    for label, spec in config.strategies.items():
        key = f"{config.policy_of(label)} {config.temperature_of(label)} {dict(spec.limits)} {spec.families}"
        kind = find_strategy(spec.name or label)
        found.setdefault(key, {})[Strategy if kind is DelegatingStrategy else kind] = label
        explicit += [(key, label)] if kind.decides_first else []
    free = [(key, same[Strategy]) for key, same in found.items() if Strategy in same] + explicit
    return [
        ForcedTriple(label, found[key][AlwaysDelegates], found[key][NeverDelegates])
        for key, label in free
        if {AlwaysDelegates, NeverDelegates} <= found[key].keys()
    ]


@dataclass(frozen=True)
class Decided:
    """What one policy decided on one family under one budget.

    Attributes:
        triple, family, budget: which.
        sizes: choices by size, as the study's cells have them, of all seeds.
        seeds: what they were worth, by seed.
    """

    triple: ForcedTriple
    family: str
    budget: int | None
    sizes: dict[str, list[Choice]]
    seeds: dict[int, Decisions]

    @property
    def shares(self) -> list[float]:
        """Delegated, by size."""
        return [means([choice.free for choice in played]).delegated for played in self.sizes.values()]


def decided(config: StudyConfig, results: Iterable[Result]) -> list[Decided]:
    """Every triple on every family whose tasks have a size. `results` are whole: with their episodes."""
    results, found = list(results), []
    for triple in find_forced_triples(config):
        names = (triple.free, triple.always, triple.never)
        own = [r for r in results if r.place.strategy in names and r.place.style is None]
        places = dict.fromkeys((result.place.family, result.place.budget) for result in own)
        for family, budget in places:
            here = [r for r in own if (r.place.family, r.place.budget) == (family, budget)]
            if all(isinstance(r.episodes[r.chosen].task.metadata.get("size"), int) for r in here):
                sizes = {
                    size: choices([r for r in here if r.place.size == size], triple.free, triple.always, triple.never)
                    for size in dict.fromkeys(r.place.size for r in here)
                }
                seeds = {
                    seed: judge(
                        choices([r for r in here if r.place.seed == seed], triple.free, triple.always, triple.never)
                    )
                    for seed in sorted({r.place.seed for r in here})
                }
                found.append(Decided(triple, family, budget, sizes, seeds))
    return found


def decision_section(found: Sequence[Decided]) -> str:
    """As Markdown; empty if no policy's choices were forced."""
    blocks = [_block(item) for item in found]
    return "\n\n".join([MEANING, *blocks]) if blocks else ""


def _block(item: Decided) -> str:
    budget = "" if item.budget is None else f", at most {item.budget}"
    lines = [
        f"**{item.family}{budget}: {item.triple.free}.** Share delegated / accuracy / total tokens / reward.",
        "",
        "| size | by itself | always | never |",
        "|---|---|---|---|",
    ]
    for size, played in item.sizes.items():
        ways = ([getattr(choice, way) for choice in played] for way in ("free", "always", "never"))
        lines.append(f"| {size} | " + " | ".join(map(_shown, ways)) + " |")
    lines += [
        "",
        "| seed | reward | - always | - never | best threshold | regret | precision | recall | F1 |",
        "|" + "---|" * 9,
    ]
    for seed, judged in item.seeds.items():
        reward = judged.free.reward
        figures = [reward, reward - judged.always.reward, reward - judged.never.reward]
        threshold = "never" if math.isinf(judged.threshold) else f"{judged.threshold:.0f}"
        rates = ["–" if rate is None else f"{rate:.2f}" for rate in (judged.precision, judged.recall, judged.f1)]
        cells = [str(seed), *(f"{figure:.3f}" for figure in figures), threshold, f"{judged.regret:.3f}", *rates]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(outcomes: Sequence[InstanceOutcome]) -> str:
    mean = means(outcomes)
    return f"{mean.delegated:.2f} / {mean.accuracy:.2f} / {mean.tokens:.0f} / {mean.reward:.2f}"
