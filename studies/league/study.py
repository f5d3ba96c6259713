"""The league of credit: every scheme against the exact gradient of the same small games, in one table.

`--rerun pair` measures all schemes in a game, `--rerun pair/sharp` one of them, and `--rerun all` all games. A game is
one file of the evidence. `selfcest lab` computes the same figures for a scheme of one's own.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # before torch is imported

import numpy as np
import torch

from selfcest_env import __version__
from selfcest_lab import GAMES, LabConfig, Measurement, measure
from selfcest_lab.estimate import learn
from selfcest_lab.exact import SolvedGame, solve
from selfcest_lab.expectation import expected_gradient
from selfcest_lab.judge import MIN_EXACT_EFFECT
from selfcest_training.credit import CreditAssigner, make_assigner
from selfcest_training.yaml_text import read_option
from studies.league.audit import measure_fidelity, measure_influence
from studies.runner import DOCS, Rerun, Study, evidence_line, fold, git, joined, read_json, store_json, table

EVIDENCE = Path(__file__).parent / "evidence"
SEED = 0
NUM_GROUPS = 200
GROUP_SIZE = 2  # in games that set no size of their own
# Games in which the schemes can be enumerated within minutes. `quartet` has groups of four.
NAMES = ("pair", "series", "gated", "trio", "cells", "words", "quartet")
MIN_FIDELITY_GAP = 0.05  # smaller differences are noise with the 300 to 1,000 clones' turns of a game
FIDELITY_IN = ("pair", "trio", "cells")
# Games of one call, so that the turn after a clone's is the root's next one.
INFLUENCE_IN = ("pair", "pair_noisy", "dummy", "trio", "cells_misread")
BASELINE = "rloo"
# Schemes that divide by a deviation, in a game that is small enough for larger groups.
SIZES = (2, 3, 4)
SIZES_IN = "cells"
DIVIDING = (
    "grpo std_floor=0.0 epsilon=1e-06",
    "hierarchical_grpo clones=group scale=true",
    "gated_paper",
    "sharp",
)
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One scheme of the league.

    Attributes:
        scheme: its name and options, as `selfcest lab --scheme` takes them.
        field: who gives this credit.
        promise: what the source promises, in its own terms.
        verdict: says from the scheme's row and that of the baseline whether the laboratory agrees.
    """

    scheme: str
    field: str
    promise: str
    verdict: Callable[[Row, Row], str]


@dataclass(frozen=True)
class Row:
    """What was measured of one scheme, by game."""

    cells: Mapping[str, Cell]
    fidelity: Mapping[str, float | None]

    @property
    def exact_biases(self) -> list[float]:
        return [cell["bias"] for cell in self.cells.values() if cell["exact"]]

    @property
    def is_unbiased(self) -> bool:
        return all(bias < MIN_EXACT_EFFECT for bias in self.exact_biases)

    @property
    def worst_game(self) -> str:
        """The game with the smallest cosine."""
        return min(self.cells, key=lambda game: self.cells[game]["cosine"])

    @property
    def mean_fidelity(self) -> float | None:
        known = [value for value in self.fidelity.values() if value is not None]
        return math.fsum(known) / len(known) if known else None

    def compute_cost_ratio(self, baseline: Row) -> float:
        """Compute the geometric mean over games of the scaled variance x tokens, in those of the baseline."""
        logs = []
        for game, cell in self.cells.items():
            cost = get_scaled_cost(cell)
            if math.isinf(cost):
                return math.inf
            logs.append(math.log(cost / get_scaled_cost(baseline.cells[game])))
        return math.exp(math.fsum(logs) / len(logs))

    def list_blind(self, role: str) -> list[str]:
        """List the games in which the scheme is blind or opposed to the gradient at a location of a role."""
        return [game for game, cell in self.cells.items() if any(place.startswith(role) for place in cell["blind"])]


def judge_unbiased(row: Row, baseline: Row) -> str:
    if row.is_unbiased:
        return f"yes: bias 0 in {len(row.exact_biases)} of {len(row.exact_biases)} exact cells"
    return f"no: bias up to {max(row.exact_biases):.2g}"


def judge_cheaper(row: Row, baseline: Row) -> str:
    ratio = row.compute_cost_ratio(baseline)
    clones = [row.cells[game]["clone_variance"] < baseline.cells[game]["clone_variance"] for game in row.cells]
    answer = "yes" if ratio < 1 else "no"
    return (
        f"per token {answer}: x{ratio:.2g} of `{BASELINE}`; clones' variance is lower in {sum(clones)} of {len(clones)}"
    )


def judge_unbiased_and_cheaper(row: Row, baseline: Row) -> str:
    return f"{judge_unbiased(row, baseline)}; {judge_cheaper(row, baseline)}"


def judge_individual(row: Row, baseline: Row) -> str:
    worst = row.cells[row.worst_game]["cosine"]
    return f"{compare_fidelity(row, baseline)}; cosine down to {worst:.2f}"


def judge_construction(row: Row, baseline: Row) -> str:
    return "yes, by construction; the first table has the direction"


def judge_fidelity_by_game(row: Row, baseline: Row) -> str:
    pairs = [f"`{game}` {row.fidelity[game]:.2f} against {baseline.fidelity[game]:.2f}" for game in FIDELITY_IN]
    return f"open, since groups have {GROUP_SIZE} episodes here; fidelity beside `{BASELINE}`: {', '.join(pairs)}"


def judge_role_baseline(row: Row, baseline: Row) -> str:
    return f"{judge_unbiased_and_cheaper(row, baseline)}; not compared with one average for both roles"


def judge_c3(row: Row, baseline: Row) -> str:
    return f"{judge_unbiased_and_cheaper(row, baseline)}; higher: {compare_fidelity(row, baseline)}"


def compare_fidelity(row: Row, baseline: Row) -> str:
    own = row.mean_fidelity
    other = baseline.mean_fidelity
    assert own is not None
    assert other is not None
    answer = "no clear difference" if abs(own - other) < MIN_FIDELITY_GAP else "yes" if own > other else "no"
    return f"{answer}: fidelity {own:.2f}, that of `{BASELINE}` {other:.2f}"


def judge_nothing(row: Row, baseline: Row) -> str:
    return "not judged: it is about training"


ENTRIES = (
    Entry("rloo", "leave-one-out of RLOO, [2402.14740](https://arxiv.org/abs/2402.14740)", "unbiased", judge_unbiased),
    Entry(
        "grpo std_floor=0.0 epsilon=1e-06",
        "verl and SkyRL (step-wise): every turn of a trajectory; GRPO, [2402.03300](https://arxiv.org/abs/2402.03300)",
        "stable training without a critic",
        judge_nothing,
    ),
    Entry(
        "hierarchical_grpo clones=group scale=true",
        "rLLM: trajectories of one name are a group",
        "a baseline for each role",
        judge_construction,
    ),
    Entry(
        "hierarchical_grpo",
        "prime-rl, one reward for the team",
        "no comparison across roles or problems",
        judge_construction,
    ),
    Entry(
        "hierarchical_grpo own=true",
        "prime-rl, with a reward of this project: the team's return without the turn costs of other agents",
        "no comparison across roles or problems",
        judge_construction,
    ),
    Entry(
        "rae",
        "prime-rl; SPIRAL, [2506.24119](https://arxiv.org/abs/2506.24119)",
        "less variance than without a baseline by role",
        judge_role_baseline,
    ),
    Entry("wideseek", "WideSeek-R1, [2602.04634](https://arxiv.org/abs/2602.04634)", "stable training", judge_nothing),
    Entry("gated", "this trainer's default", "no reward for a failed clone", judge_construction),
    Entry(
        "gated_paper",
        "SELFCEST, [2602.13262](https://arxiv.org/abs/2602.13262), its released code",
        "stable training",
        judge_nothing,
    ),
    Entry(
        "sharp",
        "SHARP, [2602.08335](https://arxiv.org/abs/2602.08335)",
        "precise credit for each agent",
        judge_fidelity_by_game,
    ),
    Entry(
        "ccpo",
        "CCPO, [2603.21563](https://arxiv.org/abs/2603.21563)",
        "finer credit, less free-riding",
        judge_fidelity_by_game,
    ),
    Entry(
        "branches",
        "C3, [2603.06859](https://arxiv.org/abs/2603.06859)",
        "unbiased, low variance, higher fidelity",
        judge_c3,
    ),
    Entry(
        "difference",
        "difference rewards, Wolpert and Tumer 2002",
        "credit for one's own part",
        judge_unbiased_and_cheaper,
    ),
    Entry("diff_loo", "the same against leave-one-out", "unbiased, less variance", judge_unbiased_and_cheaper),
    Entry(
        "coma",
        "COMA, [1705.08926](https://arxiv.org/abs/1705.08926)",
        "unbiased, less variance",
        judge_unbiased_and_cheaper,
    ),
    Entry("shapley", "Shapley 1953, sampled orders", "fair shares of a call", judge_individual),
    Entry("parts", "factored rewards, Guestrin et al. 2002", "less variance where grades have parts", judge_cheaper),
)


def make_scheme(text: str) -> CreditAssigner:
    name, *options = shlex.split(text)
    return make_assigner(name, dict(map(read_option, options)), where="--scheme")


# Measuring


def rerun(cell: str, how: Rerun) -> Iterable[Path]:
    """Measure the cells of a name: all, influence, sizes, GAME, or GAME/SCHEME."""
    torch.set_num_threads(1)  # the tables are too small for several threads
    if cell in ("all", "influence"):
        influences = {name: measure_influence(solve(GAMES[name])) for name in INFLUENCE_IN}
        yield store_json(how.folder / "influence.json", {**_provenance(), "values": influences})
    if cell in ("all", "sizes"):
        solved = solve(GAMES[SIZES_IN])
        cosines = {text: [measure_roots(text, solved, size) for size in SIZES] for text in DIVIDING}
        yield store_json(how.folder / "sizes.json", {**_provenance(), "values": cosines})
    if cell in ("influence", "sizes"):
        return
    game, _, scheme = cell.partition("/")
    games = NAMES if cell == "all" else (game,)
    texts = [entry.scheme for entry in ENTRIES if not scheme or entry.scheme == scheme]
    if not set(games) <= set(NAMES) or not texts:
        sys.exit(
            f"no cell is named {cell}; expected all, influence, sizes, GAME or GAME/SCHEME, with a game of "
            f"{', '.join(NAMES)} and a scheme of {'; '.join(entry.scheme for entry in ENTRIES)}"
        )
    for name in games:
        yield measure_game(name, texts, how)


def measure_game(name: str, texts: Sequence[str], how: Rerun) -> Path:
    """Measure schemes in one game, and write them into its file in place of what it has of them."""
    file = how.folder / f"{name}.json"
    stored = read_json(how.input(file.name)) if how.input(file.name).exists() else {"cells": []}
    solved = solve(GAMES[name])
    cell_by_scheme = {cell["scheme"]: cell for cell in stored["cells"]}
    for text in texts:
        cell_by_scheme[text] = measure_cell(text, solved)
        cells = [cell_by_scheme[entry.scheme] for entry in ENTRIES if entry.scheme in cell_by_scheme]
        # After every scheme, because a game takes minutes.
        store_json(file, {"game": name, "cells": cells})
    return file


def _provenance() -> dict[str, Any]:
    """Return seed, version and commit of what is measured now."""
    code = ("studies/league", "training", "selfcest_env", "agents", ":(exclude)studies/league/evidence")
    changed = git("status", "--porcelain", "--", *code)
    return {
        "seed": SEED,
        "version": __version__,
        "commit": git("rev-parse", "HEAD") + (" and changes" if changed else ""),
    }


def measure_roots(text: str, solved: SolvedGame, group_size: int) -> float:
    """Return the cosine between the exact expectation of a scheme and the gradient, over the roots' parameters."""
    mean = expected_gradient(make_scheme(text), solved, group_size=group_size)
    assert mean is not None, f"{text} cannot be enumerated in groups of {group_size}"
    is_root = ~solved.parameters.is_clone
    estimate = mean[is_root]
    gradient = solved.gradient[is_root]
    return float(estimate @ gradient / (np.linalg.norm(estimate) * np.linalg.norm(gradient)))


def measure_cell(text: str, solved: SolvedGame) -> dict[str, Any]:
    """Measure one scheme in one game."""
    start = time.process_time()
    config = LabConfig((solved.game.name,), GROUP_SIZE, NUM_GROUPS, SEED)
    assigner = make_scheme(text)
    measured = measure(assigner, solved, config)
    fidelity = None
    if solved.game.name in FIDELITY_IN:
        size = solved.game.group_size or GROUP_SIZE
        learned = learn(assigner, solved, group_size=size, num_groups=NUM_GROUPS, seed=SEED)
        fidelity = measure_fidelity(learned, solved, group_size=size, num_groups=NUM_GROUPS, seed=SEED)
    return {
        "scheme": text,
        **_flatten(measured),
        "fidelity": fidelity,
        "groups": NUM_GROUPS,
        "group_size": solved.game.group_size or GROUP_SIZE,
        **_provenance(),
        "cpu_seconds": round(time.process_time() - start, 2),
    }


def _flatten(measured: Measurement) -> dict[str, Any]:
    return {
        "promise": str(measured.promise),
        "exact": measured.exact,
        "bias": measured.bias.value,
        "bias_half": measured.bias.half_width,
        "cosine": measured.cosine,
        "scale": measured.scale,
        "variance": measured.variance.value,
        "variance_half": measured.variance.half_width,
        "clone_variance": measured.clone_variance.value,
        "tokens": measured.tokens,
        "replayed_tokens": measured.replayed_tokens,
        "blind": dict(measured.blind),
        "evidence": asdict(measured.evidence) if measured.evidence else None,
    }


def get_scaled_cost(cell: Cell) -> float:
    """Return variance x tokens after a division by the scale; infinite if the scheme does not follow the gradient."""
    if cell["scale"] <= MIN_EXACT_EFFECT:
        return math.inf
    return float(cell["variance"] * cell["tokens"] / cell["scale"] ** 2)


# The page


@cache
def stored() -> dict[str, Any]:
    """Return the evidence by game."""
    return {name: read_json(EVIDENCE / f"{name}.json") for name in NAMES}


def collect_rows(evidence: Mapping[str, Any]) -> dict[str, Row]:
    """Return what was measured of each scheme."""
    rows: dict[str, Row] = {}
    for entry in ENTRIES:
        cells: dict[str, Cell] = {}
        for game, values in evidence.items():
            cells[game] = next(cell for cell in values["cells"] if cell["scheme"] == entry.scheme)
        rows[entry.scheme] = Row(cells, {game: cells[game]["fidelity"] for game in FIDELITY_IN})
    return rows


def format_number(bias: float) -> str:
    return "0" if bias < MIN_EXACT_EFFECT else f"{bias:.2g}"


def format_bias(cell: Cell) -> str:
    if cell["exact"]:
        return format_number(cell["bias"])
    return f"{cell['bias']:.2g} ± {cell['bias_half']:.2g}"


def format_ratio(ratio: float) -> str:
    return "–" if math.isinf(ratio) else f"x{ratio:.2g}"


def format_blind(row: Row) -> str:
    parts = []
    for role, noun in (("root", "roots"), ("clone", "clones")):
        games = row.list_blind(role)
        if len(games) == len(row.cells):
            parts.append(f"{noun}: all")
        elif games:
            parts.append(f"{noun}: {', '.join(f'`{game}`' for game in games)}")
    return "; ".join(parts) or "none"


def league_table(rows: Mapping[str, Row]) -> str:
    """Return the table of the page, in the order of `ENTRIES`."""
    lines = []
    for entry in ENTRIES:
        row = rows[entry.scheme]
        ends = [f(row.cells.values(), key=lambda cell: cell["bias"])["bias"] for f in (min, max)]
        spread = "0" if row.is_unbiased else " to ".join(format_number(bias) for bias in ends)
        cosine = row.cells[row.worst_game]["cosine"]
        direction = "1" if row.is_unbiased else f"{cosine:.3f} (`{row.worst_game}`)"
        fidelity = "–" if row.mean_fidelity is None else f"{row.mean_fidelity:.2f}"
        lines.append(
            [
                *(f"`{entry.scheme}`", entry.field, spread, direction),
                *(format_ratio(row.compute_cost_ratio(rows[BASELINE])), format_blind(row), fidelity),
            ]
        )
    heads = ("scheme", "source", "bias", "least cosine", "variance x tokens", "blind", "fidelity")
    return table(heads, lines)


def promise_table(rows: Mapping[str, Row]) -> str:
    lines = []
    for entry in ENTRIES:
        verdict = entry.verdict(rows[entry.scheme], rows[BASELINE])
        lines.append([f"`{entry.scheme}`", entry.promise, verdict])
    return table(("scheme", "its source promises", "does the laboratory agree?"), lines)


def game_table(rows: Mapping[str, Row], show: Callable[[Row, str], str]) -> str:
    lines = [[f"`{scheme}`", *(show(row, game) for game in NAMES)] for scheme, row in rows.items()]
    return table(("scheme", *(f"`{game}`" for game in NAMES)), lines)


def sizes_table() -> str:
    lines = []
    for scheme, cosines in read_json(EVIDENCE / "sizes.json")["values"].items():
        lines.append([f"`{scheme}`", *("right" if cosine > 0 else "wrong" for cosine in cosines)])
    return table(("sign of the step at the root of `cells`", *(f"groups of {size}" for size in SIZES)), lines)


def influence_table() -> str:
    lines = []
    for game, (exact, estimate) in read_json(EVIDENCE / "influence.json")["values"].items():
        lines.append([f"`{game}`", f"{exact:.3f}", f"{estimate:.3f}"])
    return table(("game", "influence, nats", "mean of C3's estimate"), lines)


def page(evidence: Mapping[str, Any]) -> str:
    """Return the text of `docs/league.md`."""
    rows = collect_rows(evidence)
    cells = [cell for row in rows.values() for cell in row.cells.values()]
    num_exact = sum(cell["exact"] for cell in cells)
    minutes = sum(cell["cpu_seconds"] for cell in cells) / 60
    return joined(
        [
            HEAD,
            league_table(rows),
            evidence_line(cells, "`--rerun all --store`"),
            READING.format(
                num_games=len(NAMES),
                exact=describe_exactness(num_exact, len(cells)),
                groups=NUM_GROUPS,
                minutes=minutes,
            ),
            describe_results(rows),
            GROUPS_OF_TWO,
            sizes_table(),
            PROMISES,
            promise_table(rows),
            BROADCASTS.format(trainers=table(("trainer", "advantage of a turn", "group", "here"), TRAINERS)),
            AUDIT.format(games=", ".join(f"`{game}`" for game in FIDELITY_IN)),
            influence_table(),
            ENTER.format(groups=NUM_GROUPS, games=" ".join(f"--game {game}" for game in NAMES)),
            fold("Bias by game", game_table(rows, lambda row, game: format_bias(row.cells[game]))),
            fold("Cosine by game", game_table(rows, lambda row, game: f"{row.cells[game]['cosine']:.3f}")),
            fold(
                "Variance x tokens by game, over the square of the scale",
                game_table(
                    rows,
                    lambda row, game: (
                        "–"
                        if math.isinf(get_scaled_cost(row.cells[game]))
                        else f"{get_scaled_cost(row.cells[game]):.0f}"
                    ),
                ),
            ),
            fold("Where each scheme is blind", blind_table(rows)),
        ]
    )


def describe_exactness(num_exact: int, num_cells: int) -> str:
    """Return a sentence on how many expectations are exact."""
    if num_exact == num_cells:
        return f"The expectations of all {num_cells} cells are exact."
    return (
        f"The expectations of {num_exact} of {num_cells} cells are exact, the others are means of the sampled groups."
    )


def describe_results(rows: Mapping[str, Row]) -> str:
    """Return what came out, as a list with the figures of the rows."""
    baseline = rows[BASELINE]
    unbiased = [scheme for scheme, row in rows.items() if row.is_unbiased]
    blind = [scheme for scheme, row in rows.items() if row.list_blind("root") or row.list_blind("clone")]
    costs = {scheme: rows[scheme].compute_cost_ratio(baseline) for scheme in unbiased if scheme != BASELINE}
    cheapest = min(costs, key=lambda scheme: costs[scheme])
    replayed = [scheme for scheme in costs if any(cell["replayed_tokens"] for cell in rows[scheme].cells.values())]
    cheapest_replayed = min(replayed, key=lambda scheme: costs[scheme])
    return joined(
        [
            "## What came out",
            "\n".join(
                [
                    f"- **Unbiased in every exact cell:** {_join_code(unbiased)}.",
                    f"- **{len(blind)} of {len(rows)} schemes are blind somewhere.** Siblings with one return have no "
                    "credit when they are compared with each other. A root whose reward leaves out what its clones' "
                    "turns cost (`own=true`) calls too often. `ccpo` adds the return of a replay without clones to "
                    "the root's reward, so a call is credited for a return that it did not cause.",
                    f"- **The cheapest unbiased scheme** is `{cheapest}`, at x{costs[cheapest]:.2f} of `{BASELINE}`; "
                    f"the {NUM_GROUPS} groups that its average was learned from are not counted, and the policy did "
                    f"not move. Of those with replays it is `{cheapest_replayed}`, at "
                    f"x{costs[cheapest_replayed]:.2f} as a geometric mean; single games differ.",
                    "- `parts` is unbiased here because no root misreads a reply; where one does, [it is "
                    "biased](lab.md#other-games).",
                ]
            ),
        ]
    )


def _join_code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def blind_table(rows: Mapping[str, Row]) -> str:
    lines = []
    for scheme, row in rows.items():
        for game, cell in row.cells.items():
            for place, cosine in cell["blind"].items():
                lines.append([f"`{scheme}`", f"`{game}`", place, "0" if not cosine else f"{cosine:.2f}"])
    return table(("scheme", "game", "where", "cosine there"), lines)


_VERL = "`grpo std_floor=0.0 epsilon=1e-06`"
TRAINERS = (
    (
        "verl (b178a3c)",
        "R - mean R over std R + 1e-6, every turn of the conversation",
        "one task; a row is one agent",
        _VERL,
    ),
    (
        "SkyRL (a956457), step-wise",
        "the same from the last step, given to all steps; its recursive example puts the steps of children into "
        "the root's trajectory",
        "one task",
        _VERL,
    ),
    (
        "rLLM (9beb6e0)",
        "R - mean R over population std + 1e-6, every step",
        "trajectories of one name of one task",
        "`hierarchical_grpo clones=group scale=true`",
    ),
    ("prime-rl (559b447), `grpo`", "R - mean R", "all traces of a task, roots and clones", "not entered"),
    (
        "prime-rl, `hierarchical_grpo`, `rae`",
        "R - mean R of the peers; R - moving average of the role",
        "episode or task; role",
        "under these names",
    ),
)

HEAD = """# The league of credit

For reviewers of credit schemes for agents that call agents, and for authors who want to enter one. After this
page you know how far the expected step of 17 schemes, as written here, is from the gradient of the team's return.
The games are small enough for exact answers ([the laboratory](lab.md)). Nothing here says how a scheme trains a
large model."""

READING = """## How to read it

- **Bias** is the distance of the expected estimate from the exact gradient, in lengths of the gradient:
  smallest and largest over {num_games} games. For schemes that divide by a standard deviation most of it is the
  step size; for `wideseek` it is the denominator of its loss.
- **Least cosine** is the direction in the worst game. At 1 the expected step differs from the
  gradient only in length.
- **Variance x tokens** is that of `rloo` times this number, as a geometric mean over games, after each estimate
  is divided by its length along the gradient. For an unbiased scheme it is the cost
  of a given precision; a biased one does not reach it at any cost. "–" means that in some game
  the estimate does not point along the gradient.
- **Blind** names the games with a location (role, depth, turn) where the gradient is not 0, and a step along
  the expected estimate does not raise the return: the estimate is 0 there, or opposed.

{exact} Variances are of {groups} sampled groups. Groups have two episodes, and four in `quartet`. Schemes with
a history learned it from {groups} other groups, which are not counted, under a policy that does not move. All
cells took {minutes:.0f} CPU minutes."""

GROUPS_OF_TWO = """**A division by the deviation needs more than two episodes.** In groups of two it leaves only
which return is higher, so a rare large loss counts like a frequent small gain. In `cells` the step at
the root's one choice, to call or not, then has the wrong sign. In groups of three or four the sign is right. That says
nothing about its length, or about other games:"""

PROMISES = """## What the sources promise"""

BROADCASTS = """## What trainers broadcast

{trainers}

SHARP could be read in its abstract only, so its weights are ours.
[Methods](methods.md#which-reward-which-credit) says what else is open. C3 is `branches`: its released code also
divides by the siblings' deviation, and has a critic."""

AUDIT = """## Influence and fidelity

C3 reports two diagnostics. Their definitions are those of its released code; of the paper only the abstract
could be read.

**Fidelity** is the rank correlation of credit with Q - V. With the defaults of the released script, Q is a
candidate's return, V the mean of eight, and a leave-one-out or group-mean credit a multiple of their difference.
The correlation is then 1, whatever the credit is worth. In the table Q and V are exact, for clones' first turns
in {games}. One sample is noisy, so even unbiased credit has a low fidelity. Differences below 0.05 are noise.

**Influence** is the mutual information between a clone's turn and the root's next one, given the rest. The
estimate takes one next turn for each of eight candidates. It cannot tell influence from chance: where the root
misreads, it is too high."""

ENTER = """## Enter a scheme

Write it ([guide](credit.md#your-own-scheme)), and measure it in the same games:

```bash
selfcest lab --scheme my_credit:OneTurn --scheme rloo --samples {groups} {games} --out runs/league
```

`lab.json` has bias, cosine, scale and blind locations. To be listed, add a line to `ENTRIES` in
`studies/league/study.py`. `python -m studies league --rerun GAME/SCHEME --store` measures one cell, and
`--write` prints this page."""

STUDY = Study(
    page_file=DOCS / "league.md",
    page=lambda: page(stored()),
    rerun=rerun,
    cells="all, influence, sizes, GAME or 'GAME/SCHEME OPTIONS'",
)
