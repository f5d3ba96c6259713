"""What a run or a study says in five lines of plain words, each by a rule from numbers that stand on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfcest_eval.play.costs import cost_name
from selfcest_eval.report.learning import first_and_last, returns
from selfcest_eval.report.pathologies import Count
from selfcest_eval.report.sources import Source
from selfcest_eval.report.study_report import (
    SOLVED,
    find_cheap_failures,
    find_weak_baselines,
    unbegun,
    weak_baseline_lines,
)
from selfcest_eval.stats.decision_table import Decided
from selfcest_eval.stats.frontier import MIN_INSTANCES, FrontierComparison, Match, Verdict, compare_frontiers, match
from selfcest_eval.stats.statistics import Estimate, over_seeds
from selfcest_eval.stats.table import Curves, TableRow, by_family, rows_of

COMMON, FEW = 0.1, 5  # share and count from which on a pathology of episodes or groups is worth a line
MOSTLY = 0.5  # of groups that teach nothing
SEEDS = 3  # with fewer the weights' luck is not told from the method
SAID = 3  # failures in the verdict; all of them stand above it
REGRET = 0.01  # in reward; below it choosing better is worth nothing

_CURES = {
    "serial collapse": "show calls with several objectives in the warm start, or reward a short critical path",
    "redundant objectives": "price clones (reward.options.clone_cost) or show plans without repetition",
    "ignored replies": "check that replies fit (limits.reply_tokens) and show joins in the warm start",
    "refused without recovery": "raise limits.total_tokens, or show smaller calls in the warm start",
    "refused reads": "raise limits.max_reads, or show more documents in the warm start",
}


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        question: that it answers.
        text: in plain words.
        see: sections of the page that have the numbers.
    """

    question: str
    text: str
    see: tuple[str, ...]


@dataclass(frozen=True)
class BestBaseline:
    """The subject of a report against the best other strategy on one family, all sizes together.

    Attributes:
        over: by cost.
        at: under the largest budget.
    """

    family: str
    subject: str
    rival: str
    over: Mapping[str, FrontierComparison]
    at: Match


def findings(source: Source) -> list[Finding]:
    """Five: what was learned, who wins on which cost, how sure that is, what failed, what to try next."""
    found = rivals(source)
    following = _join(list(_next(source, found))[:2])
    return [
        Finding("What was learned", _plain(source, _learned(source)), ("learning", "results")),
        Finding("Who wins on which cost", _plain(source, _wins(source, found)), ("frontier", "decisions")),
        Finding("How sure", _sure(source, found), ("results",)),
        Finding("What failed", _failed(source), ("failures", "pathologies")),
        Finding("What to try next", _plain(source, following), ("failures", "pathologies", "decisions")),
    ]


def rivals(source: Source) -> list[BestBaseline]:
    """By family. Oracles, forced choices and the subject's own weights before RL are no rivals."""
    found, reading = [], source.reading
    for curves in by_family(source.cells):
        subject = next((name for name in reading.subjects if name in curves.strategies), None)
        others = [n for n in source.final if n in curves.strategies and n != subject and reading.labels[n] == n]
        if subject is None or not others:
            continue
        rival = max(others, key=lambda name: _accuracy(curves, name))
        own, other = curves.strategies[subject], curves.strategies[rival]
        resampler, least = reading.resampler(curves), reading.min_difference
        over = {cost: compare_frontiers(own, other, cost, resampler, least) for cost in reading.compared}
        at = match(own[-1], other[-1], resampler, reading.compared, least)
        found.append(BestBaseline(curves.family, subject, rival, over, at))
    return found


def _failed(source: Source) -> str:
    said = failures(source)
    more = [f"and {len(said) - SAID} more"] if len(said) > SAID else []
    return _join([*said[:SAID], *more]) or "Nothing that this page counts."


def failures(source: Source) -> list[str]:
    """What must be known before any gap is read: policies that have not learned, and pathologies that are common."""
    rows = _rows(source)
    said = [*source.warnings, *weak_baseline_lines(rows, source.reading), *unbegun(source.cells, source.reading)]
    said += [
        f"{name} does not solve the smallest {c.family} ({_accuracy(c, name):.2f})" for name, c in unsolved(source)
    ]
    not_compared = {*source.before.values(), *source.reading.aside}
    cheap = dict.fromkeys(failure.strategy for failure in find_cheap_failures(source.cells, source.reading))
    said += [f"{source.reading.labels[name]} is cheap because it fails" for name in cheap if name not in not_compared]
    for (name, owner), count in common(source):
        said.append(f"{owner}: {name}, {count.found} of {count.possible}")
    return [_plain(source, line) for line in said]


def _plain(source: Source, text: str) -> str:
    """Variants that RL has trained by their own names: what they were before is said to be that."""
    for after in source.before:
        text = text.replace(after, after.removesuffix(", after RL"))
    return text


def unsolved(source: Source) -> list[tuple[str, Curves]]:
    """Trained policies that can delegate, hence no baselines, and do not solve the smallest size of a family."""
    found, seen = [], set()
    for curves in source.cells:
        for name in source.final if source.run else ():
            if name in curves.strategies and (name, curves.family) not in seen:
                seen.add((name, curves.family))
                if name not in source.reading.baselines and _accuracy(curves, name) < SOLVED:
                    found.append((name, curves))
    return found


def common(source: Source) -> list[tuple[tuple[str, str], Count]]:
    """Pathologies of final policies, and of training, from a share of `COMMON` on; the most frequent first."""
    owners = {*source.final, *(source.run.variants if source.run else ())}
    found = [
        (key, count) for key, count in source.pathologies.items() if key[1] in owners and _is_common(key[0], count)
    ]
    return sorted(found, key=lambda item: -item[1].found / item[1].possible)


def _is_common(name: str, count: Count) -> bool:
    """Who never delegates on a family is worth a line; who always does may be right to."""
    if name in ("never delegates", "always delegates"):
        return name == "never delegates" and count.found > 0
    return count.found >= max(FEW, COMMON * count.possible)


def _learned(source: Source) -> str:
    if source.run is None:
        policies = len({str(source.study.policy_of(name)) for name in source.final})
        return (
            f"Nothing is trained in a study: {len(source.final)} strategies were played by {policies} "
            f"polic{'y' if policies == 1 else 'ies'} on {len(source.cells)} cells."
        )
    said = []
    for curves in by_family(source.cells):
        smallest = next(cell for cell in source.cells if cell.family == curves.family)
        for name in source.final:
            if name in curves.strategies:
                said.append(_of_variant(source, curves, smallest, name))
    for series in returns(source.jobs):
        first, last = first_and_last(series)
        said.append(f"the return of {series.variant} in training went from {first.mean:.2f} to {last.mean:.2f}")
    return _join(said) or "Nothing has been evaluated yet."


def _of_variant(source: Source, curves: Curves, smallest: Curves, name: str) -> str:
    after, before = curves.strategies[name][-1], source.before.get(name)
    accuracy = f"{after.correct.mean():.2f}"
    if before is None or before not in curves.strategies:
        solved = _accuracy(smallest, name) >= SOLVED
        did = "solves" if solved else "does not solve"
        right = _by_shift(source, curves.family, name) or f"{accuracy} of all sizes"
        return f"{name} {did} the smallest {curves.family}, and is right on {right}, by imitation alone"
    earlier = curves.strategies[before][-1].correct
    gap = source.reading.resampler(curves).estimate(after.correct - earlier)
    moved = f"on {curves.family} accuracy went from {earlier.mean():.2f} to {accuracy} ({gap.signed})"
    if apart := _by_shift(source, curves.family, name):
        moved += f", which is {apart}"
    match _clear(gap, source.reading.min_difference):
        case 1:
            return f"RL made {name} more accurate: {moved}"
        case -1:
            return f"RL made {name} less accurate: {moved}"
        case _:
            return f"RL left the accuracy of {name} where it was, as far as these instances show: {moved}"


def _by_shift(source: Source, family: str, name: str) -> str:
    """Accuracy on sizes that were trained on and beyond them, where a family has both; else nothing."""
    sizes: dict[bool, list[Curves]] = {False: [], True: []}
    for curves in source.cells:
        if curves.family == family:
            sizes[curves.shift == "out"].append(curves)
    if not all(sizes.values()):
        return ""
    trained, beyond = (
        np.concatenate([curves.strategies[name][-1].correct for curves in found]).mean() for found in sizes.values()
    )
    return f"{trained:.2f} on trained sizes, {beyond:.2f} beyond"


def _wins(source: Source, found: Sequence[BestBaseline]) -> str:
    said = []
    for item in found:
        apart = [f"{n}: {a}" for n in (item.subject, item.rival) if (a := _by_shift(source, item.family, n))]
        said.append(_against(item, source.reading.min_difference) + (f" ({'; '.join(apart)})" if apart else ""))
    largest = {(item.family, item.triple.free): item for item in source.decisions if item.triple.free in source.final}
    said += [_choice(item) for item in largest.values()]  # budgets rise
    return _join(said) or "There is nothing to compare: no family was played by two policies."


def _against(item: BestBaseline, least: float) -> str:
    kinds: dict[str, list[str]] = {}
    for cost, comparison in item.over.items():
        words = {
            Verdict.TOO_FEW: f"not judged, on fewer than {MIN_INSTANCES} instances, at equal",
            Verdict.AHEAD: "ahead at equal",
            Verdict.BEHIND: "behind at equal",
            Verdict.BOTH: "ahead at some and behind at other",
            Verdict.NO_COST: "without",
        }.get(comparison.verdict, "not told apart at equal")
        kinds.setdefault(words, []).append(cost_name(cost))
    if len(kinds) == 1 and (words := next(iter(kinds))).startswith("not "):
        text = f"{item.subject} and {item.rival} are {words.removesuffix(' at equal')} at any equal cost"
    else:
        text = f"{item.subject} against {item.rival} is " + "; ".join(
            f"{words} {_named(costs, item.over)}" for words, costs in kinds.items()
        )
    if item.at.equally_accurate(least):
        times: dict[str, list[str]] = {}
        for cost, ratio in item.at.ratios.items():
            if np.isfinite(ratio.mean):
                times.setdefault(f"{ratio.mean:.2f}", []).append(cost_name(cost))
        said = [f"{ratio} times the {_named(costs, item.at.ratios)}" for ratio, costs in times.items()]
        text += f" (as accurate, for {_and(said)})" if said else ""
    return f"on {item.family}, {text}"


def _named(costs: Sequence[str], of: Mapping[str, object]) -> str:
    """All of several costs are no list of names."""
    return "cost of every kind" if len(costs) == len(of) > 1 else _and(costs)


def _choice(item: Decided) -> str:
    free, always, never = (
        float(np.mean([getattr(judged, way).reward for judged in item.seeds.values()]))
        for way in ("free", "always", "never")
    )
    word, other = ("always", always) if always >= never else ("never", never)
    gap = _gap(item, word)
    said = {1: "more than", -1: "less than", 0: "not told apart from"}[_clear(gap, 0.0)]
    return (
        f"on {item.family}, {item.triple.free} earns {free:.3f} by its own choice, {said} the {other:.3f} of the "
        f"better forced choice, {word} ({gap.signed})"
    )


def _gap(item: Decided, forced: str) -> Estimate:
    """In reward, between a policy's own choice and a forced one: over seeds, or instances where there is one seed."""
    if len(item.seeds) > 1:
        return over_seeds([judged.free.reward - getattr(judged, forced).reward for judged in item.seeds.values()])
    played = [choice for choices in item.sizes.values() for choice in choices]
    return over_seeds([choice.free.reward - getattr(choice, forced).reward for choice in played])


def _sure(source: Source, found: Sequence[BestBaseline]) -> str:
    if not source.cells:
        return "Not at all: nothing has been evaluated yet."
    seeds, instances = len(source.cells[0].seeds), sorted({len(curves.task_ids) for curves in source.cells})
    many = f"{instances[0]}" if len(instances) == 1 else f"{instances[0]} to {instances[-1]}"
    halves = [_half(row) for row in _rows(source) if row.strategy in source.final]
    undecided = sum(c.verdict in (Verdict.NO_DIFFERENCE, Verdict.TOO_FEW) for item in found for c in item.over.values())
    of = sum(len(item.over) for item in found)
    said = [f"{many} instances a cell and {seeds} seed{'s' if seeds > 1 else ''}"]
    said += [f"an accuracy on one cell is known to within {max(halves):.2f} at worst"] if halves else []
    said += [f"{undecided} of {of} comparisons of families are undecided"] if of else []
    if seeds == 1 and source.reading.crossed:
        said.append("the weights are those of one seed, and another may say otherwise")
    return _join(said)


def _next(source: Source, found: Sequence[BestBaseline]) -> Iterator[str]:
    """What to do, the most urgent first; there always is something."""
    rows, reading = _rows(source), source.reading
    if not source.cells:
        yield "let the run finish, or evaluate what it has: selfcest train --resume"
    weak = dict.fromkeys(reading.labels[row.strategy] for row in find_weak_baselines(rows, reading))
    weak |= dict.fromkeys(name for name, _ in unsolved(source))
    if weak:
        more = "more tokens in its warm start" if source.run else "a policy that was trained for it"
        yield f"before any gap is read, give {_and(list(weak))} {more}, until the smallest size is solved"
    names = {name: owner for (name, owner), _ in common(source)}
    regrets = {
        item.family: float(np.mean([judged.regret for judged in item.seeds.values()]))
        for item in source.decisions
        if item.triple.free in source.final
    }
    if "never delegates" in names:
        yield (
            f"{names['never delegates']} never delegates: show both ways half and half in the warm start, or lower "
            "the price of tokens, so that RL sees what clones earn"
        )
    if "equal groups" in names:
        count = source.pathologies["equal groups", names["equal groups"]]
        if count.found > MOSTLY * count.possible:
            yield (
                f"most groups of {names['equal groups']} earn the same and teach nothing: choose tasks that it "
                "sometimes fails, a higher temperature or larger groups"
            )
    for family, regret in regrets.items():
        if regret > REGRET:
            yield f"on {family} a mere threshold of size would earn {regret:.3f} more: train longer on sizes around it"
    for name, cure in _CURES.items():
        if name in names:
            yield f"against {name} of {names[name]}: {cure}"
    seeds = len(source.cells[0].seeds) if source.cells else SEEDS
    if seeds < SEEDS and reading.crossed:
        yield f"more seeds, as seeds={list(range(SEEDS))}: {seeds} cannot tell the method from luck"
    if any(c.verdict in (Verdict.NO_DIFFERENCE, Verdict.TOO_FEW) for item in found for c in item.over.values()):
        where = "evaluation.episodes" if source.run else "episodes"
        yield f"four times as many instances ({where}) to halve the intervals of what is undecided"
    hardest = min(
        ((_accuracy(curves, name), curves.name) for curves in source.cells for name in source.final
         if name in curves.strategies), default=None,
    )  # fmt: skip
    if hardest is not None:
        yield f"harder tasks: the hardest here is {hardest[1]}, with an accuracy of {hardest[0]:.2f} at worst"


def _rows(source: Source) -> list[TableRow]:
    return [row for curves in source.cells for row in rows_of(curves, source.reading.resampler(curves))]


def _half(row: TableRow) -> float:
    """Half of the interval of an accuracy, as far as it can be from the mean on one side."""
    width = min(1.0, row.accuracy.high) - max(0.0, row.accuracy.low)
    return width / 2 if 0 < row.accuracy.mean < 1 else width


def _accuracy(curves: Curves, name: str) -> float:
    """At the largest budget."""
    return float(curves.strategies[name][-1].correct.mean())


def _clear(gap: Estimate, least: float) -> int:
    return 0 if abs(gap.mean) < least else int(gap.low > 0) - int(gap.high < 0)


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _join(clauses: Sequence[str]) -> str:
    """Clauses as one text, that begins with a capital letter and ends with a stop."""
    text = "; ".join(clause.rstrip(".") for clause in clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""
