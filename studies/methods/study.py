"""Learning signals compared on delegation: the middle of docs/methods.md, from what their runs left behind.

What stands between the page's two marks is a function of the stored cells alone; the rest of the page stays as it is.
`studies/trained.py` says what a cell is. `--rerun methods_when/seed10` trains all variants of a seed again, from one
warm start, `--rerun sweep/seed10` plays the policies of budgets.yaml of a seed, and `--rerun play` plays the
strategies of play_frontier.yaml.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from textwrap import TextWrapper

import numpy as np
import yaml

from selfcest_env.palette import INK, MUTED, SERIES, SURFACE
from selfcest_eval.play.results import read_results
from selfcest_eval.stats.statistics import over_seeds
from selfcest_training.config_file import read_config
from studies.figures import style_axis
from studies.methods.effort import judge_effort, make_effort_table, rerun_effort
from studies.methods.play import make_table, rerun_play, summarize
from studies.runner import (
    CONFIGS,
    DOCS,
    Cell,
    Rerun,
    Study,
    cells_in,
    each,
    evidence_line,
    fold,
    of,
    provenance,
    read_json,
    selfcest,
    shown,
    store_json,
    table,
    tuning_table,
)
from studies.trained import EXPERIMENTS, rerun

Sweeps = Mapping[int, Mapping[str, Mapping[str, float]]]  # by seed, policy and budget
FOLDER, PAGE = Path(__file__).parent / "evidence", DOCS / "methods.md"
SWEEP = CONFIGS / "methods" / "budgets_frontier.yaml"
BEGIN, END = "<!-- compared: by studies/methods/study.py -->", "<!-- end of what is compared -->"


HEAD = """![No method is told apart from its baseline: what each variant earned less it, every seed](methods.png)

The embedded model of 0.17 M parameters on made tasks; nothing follows for a large model. In the picture a stroke is a
seed, the line a 95 % interval over seeds.

{evidence}

- **No method is told apart from its baseline** at equal compute: {apart} of {compared} intervals leave out 0. Of
  {sided} predictions of *better* or *worse* {confirmed} came true.
- **Whether RL helps the baseline is undecided.** It brought `default` {default_gain} over seeds 10 to 12 and
  {fresh_gain} over five fresh ones; with seed {worst_seed} it fell. A perfect player who calls where it pays earns
  {room:.3f}. Of {intervals} intervals of the gain by RL, those that leave out 0 are of {decided} on the three seeds,
  and of {fresh_decided} on the five.
- **The defaults stay.** `salt` with the multiplier of `lagrangian`, which had been written down, is {combined} less
  `default` on five fresh seeds.
- **The lead of `salt` on keyed cells did not repeat**: {salt} less `rloo`, and {salt_fresh} on
  [fresh seeds](#keyed-cells-fresh-seeds), where *better* was predicted.
- With `knapsack`, `dots`, `v0` and `parl` the largest sums are right more often than with `default` ({largest}), but
  small ones are called for as well: of those of 6 to 10 terms {small}, `default` for
  {small_default:.2f}. `scaler` hardly calls for the largest sums: right {scaler} by seed.
- **One policy for five budgets was as good as five, to within {within:.3f}. So were single ones, and showing the
  budget did harm.** `every` less the five that were trained for one budget each: {own}, an interval wider than the 0.02
  predicted. `every` less `hidden`, which is not shown its budget: {hidden}, where *within 0.02* was predicted. The
  shown number costs a token in each context, which a perfect player pays {toll:.3f} for at 480 tokens. `hidden` has
  another warm start, which at 480 tokens earned {head_start} more before RL, by seed."""

WHEN = """\
`training/configs/methods/when.yaml`: sums of 2 to 24 terms under a window that holds 15, where the policy must find
out from which size on calls pay. All variants of a seed have one warm start and 2 M tokens of compute in RL. *Earned*
is right answers less token costs, greedily on 500 held-out instances, mean over five sizes. Then: the gain by RL, and
the difference to `default` at the end and over eight probes, with 95 % intervals over seeds (Student's t). *Times
fewer tokens*, by seed: to the score at which `default` ended (-: did not come there, x: `default` had fallen). `gated`
was run later, with other probes. Of fourteen variants that do nothing, one in two such tables has an interval that
leaves out 0.

`default` is the recipe of `budgets.yaml`: `grpo` with a floor of 0.05 under its std, a KL weight of 0.05, 8 rollouts of
16 tasks. `hypervolume` and `state_zero` are built on `rloo`, and `hypervolume` weighs all terms alike. `parl` has no
price of the critical path. `reinforce_ada` samples more and trains on less: as many tokens, and a fifth more CPU."""

CELLS = """\
`training/configs/methods/cells.yaml`: sixteen clones and a graded sum, the 26 conventions of [keyed cells](cells.md),
with the baseline that did best there, 1.65 M tokens of compute in RL. *Earned* is the share of right cells on 100
held-out instances."""

CONFIRM_WHEN = """\
`training/configs/methods/confirm_when.yaml`, five seeds that nothing had been run with. `salt` and `combined` (`salt`
with the multiplier of `lagrangian`) were written down with their predictions, dropped without being run, and taken up
again with `rloo`, whose seeds lay closest together, and `gated`, the trainer's default."""

CONFIRM_CELLS = """\
`training/configs/methods/confirm_cells.yaml`: `salt`, ahead with every seed above, on five seeds that nothing had been
run with, as written down before the first of them."""

BUDGETS = """### One policy for many budgets

`training/configs/methods/budgets.yaml`: `every` is trained under five budgets of total tokens, drawn for each group
and shown to every agent, `only_B` under one of them. Each has {compute} M tokens of compute in RL from one warm start.
`hidden` is `every` under the protocol that shows no budget, from a warm start of its own (`budgets_hidden.yaml`).
Earned as above, 40 held-out instances a size, mean over sizes and seeds. The best of a column is bold; a policy under
its own budget is in brackets. Then `every` less the others; the best of five is chosen by the same figures."""

EFFORT = """### Effort or a budget

`effort` of `methods/effort.yaml` is told a share of the usual tokens in percent and is not stopped there; `every` of
`methods/budgets.yaml` is told a budget. They have equal compute and warm starts of the same recipe; those of `effort`
state efforts at random. *Earned* is what `every` was trained on. The policy hardly follows its effort. Little follows
for the method: the warm start, four fifths of the compute, teaches that efforts say nothing, and a KL term holds RL to
that. A first version without efforts in demonstrations failed."""

PLAY = """### Strategies of play

`training/configs/methods/play_frontier.yaml`: `delegating` plays ledgers and `deciding` priced ledgers, one seed of
each, {instances} instances a family, all strategies under the same total tokens. `turns_N` and `threads_N` tell agents
their limit, a number that these policies were not trained with; `_untold` holds it silently. Rivals: `read` has no
clones (`reading` plays ledgers; the window of priced ledgers is often too small for it); `vote` and `best` (an oracle)
draw up to five such samples, as the budget allows. Differences are means over budgets, with 95 % intervals over
instances; *equal* is right on the same instances.

**Less plain play: {verdicts}.** Predictions that held: {held} of {strategies}.

**Not compared**: `turn_extension`, `decide_first`, `modes`, `scale`, `bandit`, `symphony_coord`, `planner`, `board` and
`playbook`. They need English, which these policies do not know, or refuse their protocol; SmolLM2 was not played."""

PREDICTED = """### Predictions

Written down before the first reported seed of their experiment; the last five after all else but seeds 11 and 12 of
the budgets. The worst fresh seed of `rloo` is {rloo:.3f}, that of `default` {default:.3f}."""

PROVENANCE = """### Where it comes from

`python -m studies methods --rerun methods_when/seed10` makes the cells of a seed again. CPU-s are of training, its warm
start included."""

TUNING = """### Tuning

All on seed 100. The baseline of *when* was tried with four settings; that of the cells was tuned for [another
page](cells.md). The options of the others are those of their sources or ours, not tuned."""


@dataclass(frozen=True)
class Family:
    """One of the comparisons.

    Attributes:
        experiment: of its cells.
        title: above its tables, and its part of the picture.
        baseline: the variant that the others are compared with.
        terms: of the reward, whose sum is compared.
        sizes: of the held-out instances that are shown by themselves.
        words: below the title.
        rivals: variants that are built on another variant than the baseline, and that one.
    """

    experiment: str
    title: str
    baseline: str
    terms: tuple[str, ...]
    sizes: tuple[str, ...]
    words: str
    rivals: Mapping[str, str] = field(default_factory=dict)


def final(cell: Cell, family: Family, when: str = "sizes") -> float:
    """Mean over the sizes of what a greedy policy earns on held-out instances."""
    return float(mean(sum(size["terms"][term] for term in family.terms) for size in cell[when].values()))


def warm(cell: Cell) -> int:
    """Compute tokens that the warm start used."""
    return int(cell["curves"]["warmstart"]["compute_tokens"][-1])


def probed(cell: Cell, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Compute tokens of RL at each probe, and what the policy earned there, mean over the families of its tasks."""
    found = cell["curves"]["probes"]
    tasks = {name.split("/")[1] for name in found if name.startswith("probe/")}
    earned = [np.sum([found[f"probe/{task}/term/{term}"] for term in family.terms], axis=0) for task in sorted(tasks)]
    return np.array(found["compute_tokens"], dtype=float) - warm(cell), np.mean(earned, axis=0)


def times_fewer(cell: Cell, baseline: Cell, family: Family) -> str:
    """How many times fewer tokens of compute than the baseline this cell needed to come to the score at which the
    baseline ended, both by their probes: "-" if it did not, "x" if the baseline had not risen at all."""
    (tokens, scores), (their_tokens, their_scores) = probed(cell, family), probed(baseline, family)
    if their_scores[-1] <= their_scores[0]:
        return "x"
    there, their_own = np.flatnonzero(scores >= their_scores[-1]), np.flatnonzero(their_scores >= their_scores[-1])
    return f"{their_tokens[their_own[0]] / tokens[there[0]]:.1f}" if len(there) else "-"


def gaps(variants: Mapping[str, Sequence[Cell]], variant: str, other: str, family: Family) -> list[float]:
    """What a variant earned more than another one, by seed that both were run with."""
    theirs = {cell["seed"]: final(cell, family) for cell in variants[other]}
    return [final(cell, family) - theirs[cell["seed"]] for cell in variants[variant] if cell["seed"] in theirs]


def gained(cells: Sequence[Cell], family: Family) -> list[float]:
    """What RL added to the warm start, by seed."""
    return [final(cell, family) - final(cell, family, "before_rl") for cell in cells]


def added(variants: Mapping[str, Sequence[Cell]], family: Family) -> dict[str, str]:
    """What RL added, of those variants with whom its interval leaves out 0."""
    found = {variant: gained(cells, family) for variant, cells in variants.items()}
    return {variant: signed(gains) for variant, gains in found.items() if over_seeds(gains).low > 0}


def perfect_execution(cell: Cell, *, chooses: bool) -> float:
    """What the expert earns, mean over sizes, who always calls, or who chooses the cheaper way where the window holds
    the instance."""
    price = read_config(EXPERIMENTS[cell["experiment"]])["reward"]["options"]["token_cost"]
    tokens = []
    for size in cell["errorless"].values():
        call, alone = size["delegate"], size["solve"]
        fits = (1 - alone["lifted"] / alone["n"]) * chooses
        tokens.append(call["total_tokens"] - fits * max(0.0, call["total_tokens"] - alone["total_tokens"]))
    return float(1 - price["price"] * mean(tokens) / price["scale"])


def signed(differences: Sequence[float]) -> str:
    """Their mean with its 95 % interval over seeds (Student's t)."""
    return shown(over_seeds(differences), 3, "+")


def verdict(differences: Sequence[float]) -> str:
    """Whether the interval of the mean leaves 0 out; on which side."""
    found = over_seeds(differences)
    if not (found.low > 0 or found.high < 0):
        return "undecided"
    return "**better**" if found.mean > 0 else "**worse**"


def in_order(family: Family, variants: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Those variants that there are, as their config has them: no order by what they earned."""
    return [variant for variant in read_config(EXPERIMENTS[family.experiment])["variants"] if variant in variants]


def compared(family: Family, variants: Mapping[str, Sequence[Cell]]) -> str:
    """What is there without any signal, and then the variants in the order of their config; each is compared with the
    cells of the baseline with the same seed, and so with the same warm start."""
    baseline = {cell["seed"]: cell for cell in variants[family.baseline]}
    first = variants[family.baseline]
    blank = [""] * 5
    lines = [
        [
            "before RL",
            each([final(cell, family, "before_rl") for cell in first], 3),
            *(f"{mean(cell['before_rl'][size]['accuracy'] for cell in first):.2f}" for size in family.sizes),
            *blank,
        ]
    ]
    if "token_cost" in family.terms:
        for words, chooses in (("always calls", False), ("calls where it pays", True)):
            earned = f"{perfect_execution(first[0], chooses=chooses):.3f}"
            lines.append([f"perfect execution, {words}", earned, *("1.00" for _ in family.sizes), *blank])
    for variant in in_order(family, variants):
        cells = variants[variant]
        pairs = [(cell, baseline[cell["seed"]]) for cell in cells if cell["seed"] in baseline]
        alike = [(cell, other) for cell, other in pairs if cell["commit"] == other["commit"]]
        risen = [mean(probed(cell, family)[1]) - mean(probed(other, family)[1]) for cell, other in alike]
        shown = [mean(cell["sizes"][size]["accuracy"] for cell in cells) for size in family.sizes]
        lines.append(
            [
                f"`{variant}`",
                each([final(cell, family) for cell in cells], 3),
                *(f"{value:.2f}" for value in shown),
                signed(gained(cells, family)),
            ]
        )
        if variant == family.baseline:
            lines[-1] += blank[1:]
            continue
        own = gaps(variants, variant, family.baseline, family)
        lines[-1] += [
            signed(own),
            signed(risen) if alike else "",
            " ".join(times_fewer(cell, other, family) for cell, other in alike),
            verdict(own),
        ]
    heads = [
        "variant",
        "earned, by seed",
        *(f"right at {size}" for size in family.sizes),
        "less before RL",
        f"less `{family.baseline}`",
        "the same, mean over probes",
        "times fewer tokens",
        "",
    ]
    return table(heads, lines)


def predicted(found: Mapping[tuple[str, str], str]) -> str:
    """What was written down before any reported seed was run, beside what came."""
    lines = [
        [experiment.removeprefix("methods_"), f"`{variant}`", words, found.get((experiment, variant), "not run")]
        for (experiment, variant), words in PREDICTIONS.items()
    ]
    return table(["", "variant", "predicted", "found"], lines)


# One policy for many budgets


def sweep(seed: int, how: Rerun) -> Path:
    """Play at every budget those policies of budgets.yaml and budgets_hidden.yaml that were trained here; store what
    they earned, beside what is stored of the others."""
    name, kept = f"methods_budgets_seed{seed}", how.folder / f"sweep-{seed}.json"
    stored = read_json(kept)["earned"] if kept.exists() else {}
    done = stored if how.resume else {}
    data = yaml.safe_load(SWEEP.read_text(encoding="utf-8").replace("seed10", f"seed{seed}"))
    strategies = {policy: given for policy, given in data["strategies"].items() if policy not in done}
    here = {policy: given for policy, given in strategies.items() if Path(given["policy"]).is_dir()}
    if not here:
        sys.exit(f"nothing to play: of {', '.join(strategies) or 'none'}, with seed {seed}, no policy is in runs/")
    config = Path("runs") / f"{name}_sweep.yaml"
    config.write_text(yaml.safe_dump({**data, "seeds": [seed], "strategies": here}), encoding="utf-8")
    study = Path("studies") / f"{name}_{'_'.join(here)}"
    how.check_new(study)
    selfcest("evaluate", "-c", str(config), "--resume", f"name={study.name}")
    earned: dict[str, dict[str, dict[str, list[float]]]] = {}
    for result in read_results(study / "results.jsonl", whole=True):
        place, episode = result.place, result.episodes[result.chosen]
        sizes = earned.setdefault(place.strategy, {}).setdefault(str(place.budget), {})
        sizes.setdefault(place.size, []).append(episode.team_return)
    means = {
        strategy: {
            budget: {size: round(mean(each), 4) for size, each in sizes.items()} for budget, sizes in row.items()
        }
        for strategy, row in earned.items()
    }
    return store_json(kept, {"seed": seed, "earned": stored | means})


def swept() -> Sweeps:
    """What policies earned, mean over sizes."""
    files = [read_json(file) for file in sorted(FOLDER.glob("sweep-*.json"))]
    return {
        file["seed"]: {
            policy: {budget: mean(sizes.values()) for budget, sizes in row.items()}
            for policy, row in file["earned"].items()
        }
        for file in files
    }


OWN, HIDDEN = "the policy trained for the budget", "`hidden`"


def beside(earned: Mapping[str, Mapping[str, float]], budget: str) -> dict[str, float]:
    """What `every` is put beside at a budget, and what that earned there."""
    single = {policy: row[budget] for policy, row in earned.items() if policy.startswith("only_")}
    best = {OWN: single[f"only_{budget}"], "the best of the five there": max(single.values())}
    return {**best, **{f"`{policy}`": value for policy, value in single.items()}, HIDDEN: earned["hidden"][budget]}


def distances(seeds: Sweeps) -> dict[str, list[list[float]]]:
    """`every` less each of those, by seed and budget."""
    found: dict[str, list[list[float]]] = {}
    for earned in seeds.values():
        less = {b: {words: v - other for words, other in beside(earned, b).items()} for b, v in earned["every"].items()}
        for words in next(iter(less.values())):
            found.setdefault(words, []).append([row[words] for row in less.values()])
    return found


def distances_table(seeds: Sweeps) -> str:
    """By budget, means over seeds; and over all budgets, with an interval over seeds."""
    lines = [
        [words, *(f"{mean(column):+.3f}" for column in zip(*rows, strict=True)), signed([mean(row) for row in rows])]
        for words, rows in distances(seeds).items()
    ]
    return table(["`every` less", *(f"{b} tokens" for b in next(iter(seeds.values()))["every"]), "mean"], lines)


def budgets_table(seeds: Sweeps) -> str:
    """A row per policy, a column per budget: means over seeds. The best of a column is bold, and what a policy earns
    under the budget it was trained for is in brackets."""
    policies = list(next(iter(seeds.values())))
    budgets = list(next(iter(seeds.values()))["every"])
    values = {policy: {b: mean(earned[policy][b] for earned in seeds.values()) for b in budgets} for policy in policies}
    best = {b: max(row[b] for row in values.values()) for b in budgets}
    lines = []
    for policy, row in values.items():
        said = {b: f"**{v:.3f}**" if v == best[b] else f"{v:.3f}" for b, v in row.items()}
        lines.append([f"`{policy}`", *(f"({v})" if policy == f"only_{b}" else v for b, v in said.items())])
    return table(["policy", *(f"{b} tokens" for b in budgets)], lines)


# The page


def page(cells: Sequence[Cell], text: str) -> str:
    """`text` with what stands between its marks made anew from the cells."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    found, seeds = found_of(cells), swept()
    used = [cell["compute_tokens"] - warm(cell) for cell in of(cells, "methods_budgets")["every"]]
    tables: list[str] = []
    for family in FAMILIES:
        tables += [f"### {family.title}", family.words, compared(family, of(cells, family.experiment))]
    parts = [summary(cells, found), fold("Every variant with every seed, in four comparisons", *tables)]
    parts += [
        BUDGETS.format(compute=f"{mean(used) / 1e6:.1f}"),
        fold("By budget", budgets_table(seeds), distances_table(seeds)),
    ]
    efforts = [read_json(file) for file in sorted(FOLDER.glob("effort-*.json"))]
    if efforts:
        parts += [EFFORT, evidence_line(efforts, "`--rerun effort/seed20`"), judge_effort(efforts)]
        parts.append(fold("At every budget and effort", make_effort_table(efforts)))
        earlier = read_json(FOLDER / "earlier_efforts.json")
        parts.append(fold("Earlier versions", tuning_table(earlier)))
    played = read_json(FOLDER / "play.json")
    families = played["families"]
    parts += [PLAY.format(**summarize(families)), evidence_line([played], "`--rerun play`"), make_table(families)]
    worst = {
        variant: min(final(cell, FAMILIES[1]) for cell in own)
        for variant, own in of(cells, "methods_confirm_when").items()
    }
    logs = [PREDICTED.format(**worst), predicted(found), PROVENANCE, provenance(cells)]
    logs += [TUNING, tuning_table(read_json(FOLDER / "tuning.json"), "earned by each probe")]
    parts.append(fold("Predictions, provenance and tuning runs", *logs))
    return "".join([before, BEGIN, "\n\n", "\n\n".join(part.strip() for part in parts), "\n\n", END, after])


def found_of(cells: Sequence[Cell]) -> dict[tuple[str, str], str]:
    """What came of each variant, beginning with its verdict; of the budgets the distance alone."""
    found: dict[tuple[str, str], str] = {}
    for family in FAMILIES:
        variants = of(cells, family.experiment)
        found |= {(family.experiment, variant): outcome(family, variants, variant) for variant in variants}
    for experiment, words in (("methods_budgets", OWN), ("methods_budgets_hidden", HIDDEN)):
        found[experiment, "every"] = f"{signed([mean(row) for row in distances(swept())[words]])} on average"
    return found


CHOOSERS = ("knapsack", "dots", "v0", "parl")  # of tasks with mixed outcomes; parl pays for calls at first


def summary(cells: Sequence[Cell], found: Mapping[tuple[str, str], str]) -> str:
    """What stands above the tables, every figure from the cells."""
    when, fresh, keyed, fresh_keyed = FAMILIES
    whens, freshs, keyeds = (of(cells, family.experiment) for family in (when, fresh, keyed))
    verdicts = [
        found[family.experiment, variant].split(",")[0]
        for family in FAMILIES
        for variant in of(cells, family.experiment)
        if variant != family.baseline
    ]
    sided = {place: words.split(":")[0].split(",")[0] for place, words in PREDICTIONS.items()}
    sided = {place: word for place, word in sided.items() if word in ("better", "worse")}
    largest = {variant: [cell["sizes"]["21-24"]["accuracy"] for cell in own] for variant, own in whens.items()}
    more = {
        variant: signed([a - b for a, b in zip(own, largest["default"], strict=True)])
        for variant, own in largest.items()
    }
    small = {variant: mean(cell["sizes"]["6-10"]["delegated"] for cell in own) for variant, own in whens.items()}
    own = [mean(row) for row in distances(swept())[OWN]]
    aware, untold = (of(cells, experiment)["every"][0] for experiment in ("methods_budgets", "methods_budgets_hidden"))
    told = {words: signed([mean(row) for row in rows]) for words, rows in distances(swept()).items()}
    said = HEAD.format(
        evidence=evidence_line(cells, "`--rerun`"),
        apart=sum(verdict != "undecided" for verdict in verdicts),
        compared=len(verdicts),
        sided=len(sided),
        confirmed=sum(found[place].startswith(word) for place, word in sided.items()),
        default_gain=signed(gained(whens["default"], when)),
        fresh_decided=", ".join(f"`{variant}` ({gain})" for variant, gain in added(freshs, fresh).items()),
        fresh_gain=signed(gained(freshs["default"], fresh)),
        worst_seed=whens["default"][int(np.argmin(gained(whens["default"], when)))]["seed"],
        room=perfect_execution(whens["default"][0], chooses=True),
        decided=", ".join(f"`{variant}` ({gain})" for variant, gain in added(whens, when).items()),
        combined=signed(gaps(freshs, "combined", fresh.baseline, fresh)),
        salt=signed(gaps(keyeds, "salt", keyed.baseline, keyed)),
        salt_fresh=signed(gaps(of(cells, fresh_keyed.experiment), "salt", fresh_keyed.baseline, fresh_keyed)),
        largest=", ".join(f"`{variant}` {more[variant]}" for variant in CHOOSERS),
        scaler=each(largest["scaler"]),
        intervals=len(whens) + len(freshs),
        small=", ".join(f"`{variant}` for {small[variant]:.2f}" for variant in CHOOSERS),
        small_default=small["default"],
        own=signed(own),
        within=over_seeds(own).high - over_seeds(own).mean,
        head_start=" ".join(
            f"{final(a, when, 'before_rl') - final(b, when, 'before_rl'):+.3f}"
            for a, b in zip(
                of(cells, "methods_budgets_hidden")["every"], of(cells, "methods_budgets")["every"], strict=True
            )
        ),
        hidden=told[HIDDEN],
        toll=perfect_execution(untold, chooses=True) - perfect_execution(aware, chooses=True),
    )
    before, *bullets = said.split("\n- ")
    wrapped = TextWrapper(118, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return "\n".join([before, *(wrapped.fill(f"- {' '.join(one.split())}") for one in bullets)])


def outcome(family: Family, variants: Mapping[str, Sequence[Cell]], variant: str) -> str:
    """The verdict on a variant, its difference, and its difference from the variant that it is built on."""
    own = gaps(variants, variant, family.baseline, family)
    said = f"{verdict(own).strip('*')}, {signed(own)}"
    if (rival := family.rivals.get(variant)) is None:
        return said
    own = gaps(variants, variant, rival, family)
    return f"{said}; less `{rival}` {verdict(own).strip('*')}, {signed(own)}"


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw the return minus that of the baseline: a mark for each seed, and the mean with its 95 % interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.9), layout="constrained", facecolor=SURFACE.light)
    verdicts: list[str] = []
    for axes, family in zip(np.atleast_1d(figure.subplots(1, len(FAMILIES), sharex=True)), FAMILIES, strict=True):
        variants = of(cells, family.experiment)
        shown = [variant for variant in in_order(family, variants) if variant != family.baseline]
        for row, variant in enumerate(shown):
            own = gaps(variants, variant, family.baseline, family)
            verdicts.append(verdict(own).strip("*"))
            found = over_seeds(own)
            axes.plot([found.low, found.high], [row, row], color=SERIES[0].light, linewidth=1.6)
            axes.plot(found.mean, row, "o", color=SERIES[0].light, markersize=6)
            axes.plot(own, [row] * len(own), "|", color=INK.light, markersize=9)
        axes.axvline(0, color=MUTED.light, linewidth=0.8)
        style_axis(axes, family.title)
        axes.set(xlabel=f"return minus {family.baseline}", ylim=(len(shown) - 0.5, -0.5))
        axes.set_yticks(range(len(shown)), shown)
        axes.spines["left"].set_visible(False)
        axes.tick_params(left=False)
        axes.grid(visible=False, axis="y")
    told_apart = sum(name != "undecided" for name in verdicts)
    figure.suptitle(
        f"In {told_apart} of {len(verdicts)} comparisons a method can be told from the baseline", fontsize=12
    )
    figure.savefig(path, dpi=130, metadata={"Software": None})


SIZES = ("11-15", "16-20", "21-24")
FAMILIES = (
    Family(
        "methods_when",
        "When to delegate",
        "default",
        ("correct", "token_cost"),
        SIZES,
        WHEN,
        {
            "hypervolume": "rloo",
            "state_zero": "rloo",
            "v0": "knapsack",
        },
    ),
    Family(
        "methods_confirm_when",
        "When to delegate, fresh seeds",
        "default",
        ("correct", "token_cost"),
        SIZES,
        CONFIRM_WHEN,
        {
            "combined": "salt",
        },
    ),
    Family("methods_cells", "Keyed cells", "rloo", ("score",), (), CELLS),
    Family("methods_confirm_cells", "Keyed cells, fresh seeds", "rloo", ("score",), (), CONFIRM_CELLS),
)


# Written down before any reported seed of the experiment was run.
PREDICTIONS = {
    ("methods_when", "knapsack"): "better: rollouts go where outcomes are mixed",
    ("methods_when", "dots"): "better: the same",
    ("methods_when", "v0"): "level with `knapsack`",
    ("methods_when", "parl"): "better: clones are paid for while nothing is known of them",
    ("methods_when", "lagrangian"): "better: right answers weigh more until 0.9 are right",
    ("methods_when", "reinforce_ada"): "undecided",
    ("methods_when", "state_zero"): "worse: what it misses of a task stays in the variance",
    ("methods_when", "scaler"): "undecided",
    ("methods_when", "d3s"): "undecided",
    ("methods_when", "hypervolume"): "undecided",
    ("methods_when", "salt"): "undecided",
    ("methods_when", "hapo"): "undecided",
    ("methods_cells", "state_zero"): "worse, as on seed 100",
    ("methods_cells", "d3s"): "worse, as on seed 100",
    ("methods_cells", "salt"): "undecided: equal steps have equal gradients",
    ("methods_cells", "hapo"): "undecided",
    ("methods_budgets", "every"): "within 0.02 of the five on average",
    ("methods_confirm_when", "salt"): "undecided, above 0",
    ("methods_confirm_when", "combined"): "level with `salt`",
    ("methods_confirm_cells", "salt"): "better",
    # Before their own first seed, when the rest was known but for seeds 11 and 12 of the budgets.
    ("methods_confirm_when", "rloo"): "undecided; its worst seed ends above the worst of `default`",
    ("methods_confirm_when", "gated"): "undecided",
    ("methods_when", "gated"): "undecided",
    ("methods_cells", "salt_thoughts"): "undecided: rounding alone",
    ("methods_budgets_hidden", "every"): "within 0.02 of `every` that is told: it hardly reads its budget",
}


def rerun_methods(name: str, how: Rerun) -> list[Path]:
    """Play `sweep/seedN`, `effort/seedN` or `play`, or train a cell."""
    if name == "play":
        return [rerun_play(how)]
    if name.startswith("effort/seed"):
        return [rerun_effort(int(name.removeprefix("effort/seed")), how)]
    if name.startswith("sweep/seed"):
        return [sweep(int(name.removeprefix("sweep/seed")), how)]
    return rerun(name, how)


STUDY = Study(
    page_file=PAGE,
    page=lambda: page(cells_in(FOLDER), PAGE.read_text(encoding="utf-8")),
    figures={DOCS / "methods.png": lambda file: draw(cells_in(FOLDER), file)},
    rerun=rerun_methods,
    cells="EXPERIMENT[/VARIANT]/seedN, sweep/seedN, effort/seedN or play",
)
