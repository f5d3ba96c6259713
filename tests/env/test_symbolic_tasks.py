"""`cells` and `deep`: by hand, against brute force over everything anybody could do, and what they need."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.symbolic import BatchDelegation, Cells, Chain, Deep, make_rules, observation_names
from selfcest_env.symbolic.optimum import Plan, optimal_return
from selfcest_env.symbolic.picture import render
from selfcest_env.symbolic.reference import OptimalPolicy, RandomPolicy, evaluate_policy
from selfcest_env.symbolic.rules import FIRST_ANSWER, WAIT
from selfcest_env.symbolic.state import ANSWERED, OUT_OF_TURNS, READY
from selfcest_env.symbolic.streams import draw_integers, fold_in
from selfcest_env.symbolic.tasks import COUPLINGS, CallKind, ProblemBatch

DEEP_64 = {"max_clones": 62, "max_depth": 6, "total_tokens": 665}


def started(rules, num_envs=1, seed=0):
    batch = BatchDelegation(rules, num_envs)
    batch.reset(seed)
    return batch


# Cells by hand


def test_cells_by_hand():
    """Four pairs. Prices in tokens: opening 1 + symbols, call 4, replies 1 + 4, handed in for 1."""
    rules = make_rules("cells", {"cells": 4}, max_clones=4, total_tokens=60, token_cost=0.01)
    batch = started(rules)
    batch.state.tape[0, 1:9], batch.state.target[0] = (1, 2, 3, 4, 5, 6, 7, 7), (3, 7, 3, 6)
    assert batch.observations().shape == (1, 5, 7 + 2 * 8)
    assert observation_names(rules)[7:] == tuple(f"place_{p}_is_{v}" for p in range(2) for v in range(8))
    # The root can do one thing, and sees its first pair.
    assert np.flatnonzero(batch.action_masks()[0, 0]).tolist() == [rules.first_call]
    assert (np.flatnonzero(batch.observations()[0, 0, 7:]) == [1, 8 + 2]).all()
    batch.step(np.array([[rules.first_call, 0, 0, 0, 0]]))
    assert batch.can_act[0].tolist() == [False, True, True, True, True]
    # 60 - 9 (opening) - 4 (call) - 5 (replies) - 1 (handed in) = 41, ten each; a clone's opening costs 3.
    assert batch.state.tokens_left[0].tolist() == [60 - 9 - 4 - 40, 7, 7, 7, 7]
    assert batch.state.segment_length[0, 1:].tolist() == [2, 2, 2, 2]
    assert (np.flatnonzero(batch.observations()[0, 4, 7:]) == [7, 8 + 7]).all()
    batch.step(FIRST_ANSWER + np.array([[0, 3, 7, 4, 6]]), np.array([[False, True, True, True, False]]))
    assert not batch.done[0]
    batch.step(FIRST_ANSWER + np.array([[0, 0, 0, 0, 6]]))
    # The last reply ends the game: three of four are right, for 9 + 4 + 5 + 1 and four times 3 + 1 tokens.
    assert batch.done[0]
    assert batch.total_tokens()[0] == 19 + 16
    assert batch.scores[0] == 0.75
    assert not batch.solved[0]
    assert batch.state.team_return[0] == pytest.approx(0.75 - 0.35)
    assert (batch.state.turns[0, 0], batch.state.generated_tokens[0, 0]) == (2, 4 + 1)
    assert batch.state.illegal.sum() == 0


@pytest.mark.parametrize(
    ("coupling", "scores"),
    [
        # Right are: none; all; the first; the last five; all but one; one of each group of four.
        ("additive", [0, 1, 1 / 9, 5 / 9, 8 / 9, 3 / 9]),
        ("zipf", [0, 9, 1, 5, 8, 3]),
        ("coverage", [0, 1, 1 / 3, 2 / 3, 1, 1]),
        ("threshold", [0, 1, 0, 0, 1, 0]),
        ("max", [0, 1, 1, 1, 1, 1]),
        ("and", [0, 1, 0, 0, 0, 0]),
    ],
)
def test_couplings_by_hand(coupling, scores):
    """Nine cells: groups of 4, 4 and 1, and seven are three quarters of them."""
    rows = [[], range(9), [0], range(4, 9), range(1, 9), [0, 4, 8]]
    right = np.array([[cell in row for cell in range(9)] for row in rows])
    if coupling == "zipf":
        harmonic = [1 / (j + 1) for j in range(9)]
        scores = [sum(harmonic[cell] for cell in row) / sum(harmonic) for row in rows]
    assert Cells(cells=9, coupling=coupling).grade(right).tolist() == pytest.approx(scores)
    assert Cells(cells=9, coupling=coupling).grade(right)[1] == 1  # exactly: `solved` asks for it


def test_the_hidden_part_is_as_frequent_as_said_and_uniform():
    rules = make_rules("cells", {"cells": 4, "modulus": 4, "hidden": 0.4})
    problem = started(rules, 50_000).problems()
    pairs = problem.segments.reshape(-1, 4, 2).astype(int)
    hidden = (problem.targets - pairs.sum(axis=2)) % 4
    error = 4 * (0.25 / len(hidden)) ** 0.5
    for cell in range(4):
        assert np.bincount(hidden[:, cell]) / len(hidden) == pytest.approx([0.7, 0.1, 0.1, 0.1], abs=error)
    assert np.corrcoef(hidden.T)[0, 1:] == pytest.approx(0, abs=0.03)
    assert abs(np.corrcoef(hidden[:, 0], pairs[:, 0, 0])[0, 1]) < 0.03


def test_problems_of_v0_stay():
    first = started(make_rules("cells", {"cells": 4, "hidden": 0.5}), seed=2026).problems()
    assert first.segments[0].tolist() == PINNED_PAIRS
    assert first.targets[0].tolist() == PINNED_TARGETS
    assert started(make_rules("deep"), seed=2026).problems().segments[0].tolist() == PINNED_ITEMS


PINNED_PAIRS = [5, 5, 7, 1, 3, 6, 6, 3]
PINNED_TARGETS = [2, 0, 1, 6]
PINNED_ITEMS = [3, 4, 1, 3, 4, 0, 0, 2]


def test_a_reply_that_never_came_is_wrong_and_the_rest_is_handed_in():
    rules = make_rules("cells", {"cells": 4, "coupling": "max"}, max_turns=2)
    batch = started(rules)
    batch.step(np.full((1, 9), rules.first_call))
    answers = np.array([[0, *(FIRST_ANSWER + batch.state.target[0]), 0, 0, 0, 0]])
    batch.step(answers, np.arange(9)[None] == 3)
    for _ in range(2):
        assert not batch.done[0]
        batch.step(np.full((1, 9), WAIT))
    assert batch.state.status[0, :5].tolist() == [ANSWERED, OUT_OF_TURNS, OUT_OF_TURNS, ANSWERED, OUT_OF_TURNS]
    assert batch.state.team_return[0] == 1
    assert "replied ? ? " in str(render(batch.state, rules, "ansi"))


def test_a_root_that_never_calls_hands_nothing_in():
    batch = started(make_rules("cells", {"coupling": "max"}))
    for _ in range(4):
        batch.step(np.full((1, 9), WAIT))
    assert batch.state.status[0, 0] == OUT_OF_TURNS
    assert batch.scores[0] == 0


def test_without_clones_the_join_ends_the_game_at_once():
    """As counterfactuals ask it: removed at birth, and nobody is left to play."""
    rules = make_rules("cells", token_cost=0.01)
    batch = started(rules, 2)
    batch.step(np.full((2, 9), rules.first_call))
    batch.remove(np.ones(8, int), np.arange(1, 9))
    assert batch.done.tolist() == [False, True]
    # 17 (opening), 8 (call), 9 (replies), 1 (handed in)
    assert batch.state.team_return[1] == pytest.approx(-0.35)
    batch.remove(np.zeros(1, int), np.array([4]))
    batch.step(FIRST_ANSWER + np.concatenate([np.zeros((2, 1), int), batch.state.target], axis=1))
    assert batch.state.team_return[0] == pytest.approx(7 / 8 - 0.01 * (35 + 7 * 4))


def test_the_picture_and_the_state_hold_what_was_handed_in():
    rules = make_rules("cells", {"cells": 2, "modulus": 3}, max_clones=2)
    batch = started(rules)
    batch.step(np.full((1, 3), rules.first_call))
    batch.state.target[0] = (1, 2)
    batch.step(FIRST_ANSWER + np.array([[0, 1, 0]]))
    picture = str(render(batch.state, rules, "ansi"))
    assert picture.startswith("Cells, the answer is 1 2, cycle 2\n")
    assert "replied 1 0\n├─ agent_1" in picture
    state = batch.states()[0]
    # over, spent, clones; then both right replies, one-hot over three symbols.
    assert state[3:9].tolist() == [0, 1, 0, 0, 0, 1]


def test_a_forced_join_is_for_every_task_that_grades():
    batch = started(make_rules(Oddness(cells=2, modulus=2), max_clones=2), 4)
    batch.step(np.full((4, 3), batch.rules.first_call))
    right = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    batch.step(FIRST_ANSWER + np.concatenate([np.zeros((4, 1), int), (batch.state.target + 1 - right) % 2], axis=1))
    assert batch.state.team_return.tolist() == [0, 1, 1, 0]


def test_a_forced_join_has_one_kind_of_call():
    with pytest.raises(ConfigError, match="Choosy has 2 kinds of calls; expected 1, as joins are forced"):
        make_rules(Choosy(cells=2), max_clones=2)


class Choosy(Cells):
    @property
    def calls(self):
        return super().calls * 2


@dataclass(frozen=True)
class Oddness(Cells):
    """A grade from outside: an odd number of right replies."""

    def grade(self, right):
        return (right.sum(axis=1) % 2).astype(float)


# Whatever anybody could do


def best_of_all(rules, segments, targets, weights):
    """The most that any policy can earn, whatever it remembers and however its agents talk: that of one mind that sees
    all that any agent sees, chooses for all of them, and may waste turns. By listing everything; `weights` are the
    probabilities of the problems."""
    batch = started(rules, len(weights))
    batch.state.tape[:, 1 : 1 + segments.shape[1]], batch.state.target[:] = segments, targets

    def value(state, weights):
        batch.set_snapshot(state)
        if batch.done.all():
            return weights @ batch.state.team_return
        seen = batch.observations().reshape(len(weights), -1)
        acting, masks = batch.can_act, batch.action_masks()
        total = 0.0
        for kind in np.unique(seen, axis=0):
            same = np.flatnonzero((seen == kind).all(axis=1))
            here, share = state.take(same), weights[same]
            agents = np.flatnonzero(acting[same[0]])
            choices = [{WAIT, *np.flatnonzero(masks[same[0], agent])} for agent in agents]
            values = []
            for joint in itertools.product(*choices):
                actions = np.zeros((len(same), batch.rules.num_agents), int)
                actions[:, agents] = joint
                batch.set_snapshot(here)
                batch.step(actions)
                values.append(value(batch.get_snapshot(), share))
            total += max(values)
        return total

    return value(batch.get_snapshot(), np.asarray(weights))


@pytest.mark.parametrize("hidden", [0.0, 0.4])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_nobody_beats_the_optimum_of_cells(coupling, hidden):
    """Two cells modulo 2: sixteen problems, each with four hidden parts, a part being 1 with probability hidden / 2."""
    options = {"cells": 2, "modulus": 2, "coupling": coupling, "hidden": hidden}
    rules = make_rules("cells", options, max_clones=2, max_turns=2, total_tokens=21)
    segments, targets, weights = [], [], []
    for pairs in itertools.product(range(2), repeat=4):
        for parts in itertools.product(range(2), repeat=2):
            segments.append(pairs)
            targets.append([(pairs[0] + pairs[1] + parts[0]) % 2, (pairs[2] + pairs[3] + parts[1]) % 2])
            weights.append(np.prod([hidden / 2 if part else 1 - hidden / 2 for part in parts]) / 16)
    optimum = optimal_return(rules)
    assert best_of_all(rules, np.array(segments), np.array(targets), weights) == pytest.approx(optimum.team_return)
    p = 1 - hidden / 2
    expected = {"additive": p, "zipf": p, "coverage": 1 - (1 - p) ** 2, "max": 1 - (1 - p) ** 2}.get(coupling, p**2)
    assert optimum.success == pytest.approx(expected)
    assert optimum.plans == {4: Plan(0, (Plan(), Plan()))}
    assert optimum.tokens == 5 + 2 + 3 + 1 + 2 * 4


def sums_of(task):
    items = np.array(list(itertools.product(range(task.modulus), repeat=task.items)))
    return items, items.sum(axis=1) % task.modulus, np.full(len(items), 1 / len(items))


@pytest.mark.parametrize(
    ("task", "limits", "best"),
    [
        # Half of eight items are seen by somebody at depth 1: luck, and nothing else.
        (Deep(items=8, modulus=2), {"max_clones": 2, "max_depth": 1, "total_tokens": None}, 0.5),
        (Deep(items=4, modulus=2), {"max_clones": 2, "max_depth": 1, "total_tokens": None}, 1.0),
        (Deep(items=4, modulus=2), {"max_clones": 2, "max_depth": 1, "total_tokens": 19}, 1.0),
        (Deep(items=4, modulus=2), {"max_clones": 2, "max_depth": 1, "total_tokens": 18}, 0.0),
        (Deep(items=4, modulus=3), {"max_clones": 2, "max_depth": 0, "total_tokens": None}, 0.0),
    ],
    ids=str,
)
def test_nobody_beats_the_optimum_of_deep(task, limits, best):
    rules = make_rules(task, max_turns=2, **limits)
    assert best_of_all(rules, *sums_of(task)) == pytest.approx(best)
    assert optimal_return(rules).success == pytest.approx(best)


def test_a_chain_of_one_split_can_be_got_round():
    """What `deep` is for: a root that sees its whole segment sums it, calls in vain, and answers what it knows."""
    chain = Chain(items=6, modulus=2, window=2, splits=(2,))
    rules = make_rules(chain, max_clones=2, max_depth=1, max_turns=2, total_tokens=None)
    assert best_of_all(rules, *sums_of(chain)) == 1
    assert optimal_return(rules).success == 0.5


# What deep needs


@pytest.mark.parametrize(("depth", "success"), [(0, 0.0), (1, 0.2), (4, 0.2), (5, 1.0), (6, 1.0)])
def test_sixty_four_items_need_depth_five(depth, success):
    for more in ({}, {"total_tokens": None}):
        rules = make_rules("deep", {"items": 64}, **{**DEEP_64, "max_depth": depth, **more})
        assert optimal_return(rules).success == pytest.approx(success)


@pytest.mark.parametrize(("limit", "needed"), [("total_tokens", 665), ("max_clones", 62)])
def test_the_budget_of_sixty_four_items_binds(limit, needed):
    """665 tokens: over the levels 71, 2 x 39, 4 x 23, 8 x 15, 16 x 11 and 32 x 4. Without one of them, luck."""
    enough = optimal_return(make_rules("deep", {"items": 64}, **{**DEEP_64, limit: needed}))
    assert (enough.success, enough.tokens) == (1.0, 665)
    short = optimal_return(make_rules("deep", {"items": 64}, **{**DEEP_64, limit: needed - 1}))
    assert short.success == pytest.approx(0.2)


def test_sixty_four_items_are_played():
    rules = make_rules("deep", {"items": 64}, **DEEP_64)
    best = evaluate_policy(OptimalPolicy(rules), rules, 50)
    assert (best.success, best.tokens) == (1.0, 665.0)
    random = evaluate_policy(RandomPolicy(), rules, 2_000)
    assert random.success == pytest.approx(0.2, abs=4 * (0.16 / 2_000) ** 0.5)


def test_nobody_sees_more_than_may_be_answered():
    rules = make_rules("deep", {"items": 64}, **DEEP_64)
    batch, rng, symbols = started(rules, 20), np.random.default_rng(0), []
    while not batch.done.all():
        seen = batch.observations()[..., 7:]
        assert seen.shape == (20, 63, 2 * 5)
        symbols.append(seen.sum(axis=-1))
        ready = batch.state.status == READY
        assert (symbols[-1][ready] <= np.minimum(batch.state.segment_length[ready], 2)).all()
        # Before they answer: whoever holds more than two items can do one thing.
        long = ready & (batch.state.segment_length > 2)
        assert (batch.action_masks()[long].sum(axis=-1) == 1).all()
        batch.step(batch.sample_actions(rng))
    assert np.max(symbols) == 2
    assert (batch.state.cycle == 11).all()  # five calls down, the leaves, five joins up


def test_the_largest_cells_are_played_and_seen_small():
    rules = make_rules("cells", {"cells": 64, "coupling": "and"}, max_clones=64, total_tokens=8 * 64 + 3)
    batch = started(rules, 3)
    assert batch.observations().shape == (3, 65, 23)
    assert batch.states().shape == (3, 3 + 64 * 8 + 65 * (5 + 23 + 8))
    assert evaluate_policy(OptimalPolicy(rules), rules, 20).success == 1
    with pytest.raises(ConfigError, match="total_tokens is 514; expected a whole number from 515"):
        make_rules("cells", {"cells": 64}, max_clones=64, total_tokens=514)


class Maximum:
    """The root answers the largest of 8 numbers, as a user may write it."""

    num_symbols = num_answers = 10
    num_facts = 0
    max_length = 8
    visible_symbols = None
    calls = (CallKind(2),)

    def answerable(self, length):
        return length <= 2

    def reliability(self, length):
        return 1.0

    def part_lengths(self, call, length):
        return (length - length // 2, length // 2) if length >= 2 else ()

    def draw(self, keys):
        segments = draw_integers(fold_in(keys, 0), 8, self.num_symbols).T.astype(np.int8)
        facts = np.empty((len(keys), 0), np.int8)
        return ProblemBatch(segments, np.full(len(keys), 8, np.int16), segments.max(1), facts)


def change(**members):
    return type("Changed", (Maximum,), members)()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        # The first three never ended: a part that cannot act, or one that was refused in another order.
        (
            {"part_lengths": lambda self, kind, n: (n,) if n >= 2 else ()},
            r"part_lengths\(0, 2\) is \(2,\)",
        ),
        (
            {"part_lengths": lambda self, kind, n: (n, 0) if n >= 2 else ()},
            r"part_lengths\(0, 2\) is \(2, 0\)",
        ),
        ({"part_lengths": lambda self, kind, n: (1, n - 1) if n >= 3 else ()}, r"\(0, 3\) is \(1, 2\)"),
        ({"part_lengths": lambda self, kind, n: (n, 1) if n >= 2 else ()}, r"\(0, 2\) is \(2, 1\)"),
        ({"num_symbols": 200, "num_answers": 200}, "Changed.num_symbols is 200"),
        ({"num_answers": 11}, "Changed.num_answers is 11"),
        ({"calls": [2]}, r"Changed.calls\[0\] is 2; expected a CallKind"),
        ({"reliability": lambda self, length: -1.0}, r"reliability\(0\) is -1.0"),
        ({"reliability": lambda self, length: None}, r"reliability\(0\) is None"),
        ({"part_lengths": lambda self, kind, n: None}, r"part_lengths\(0, 0\) is None; expected a tuple"),
        ({"calls": (CallKind(1, facts=3),)}, r"Changed.calls\[0\].facts is 3; expected a whole number from 0 to 0"),
    ],
)
def test_a_task_that_contradicts_itself_is_refused(members, words):
    with pytest.raises(ConfigError, match=words):
        make_rules(change(**members))


@pytest.mark.parametrize(
    ("column", "by", "words"),
    [
        ("lengths", -8, "lengths are from 0 to 0"),
        ("lengths", 1, "lengths are from 9 to 9"),
        ("segments", -3, "segments are from -3"),
        ("targets", 10, "targets are from 1"),
    ],
)
def test_problems_that_a_task_does_not_have_are_refused(column, by, words):
    def draw(self, keys):
        problems = Maximum.draw(self, keys)
        return problems._replace(**{column: getattr(problems, column) + by})

    game = BatchDelegation(make_rules(Maximum()), 4)
    game.reset(seed=0)
    while not game.done.all():
        game.step(game.sample_actions(np.random.default_rng(0)))
    with pytest.raises(TaskError, match=f"Changed.draw: {words}"):
        BatchDelegation(make_rules(change(draw=draw)), 4).reset(seed=0)


@pytest.mark.parametrize(
    ("change_problems", "words"),
    [
        (lambda problems: None, "draw returned NoneType; expected a ProblemBatch"),
        (lambda problems: problems._replace(targets=problems.targets + 0.5), r"targets are float\d\d \(\d+,\)"),
        (lambda problems: problems._replace(targets=problems.targets[:, None]), r"targets are int8 \(\d+, 1\)"),
        (lambda problems: problems._replace(lengths=list(problems.lengths)), "lengths are list; expected an array"),
        (lambda problems: problems._replace(segments=problems.segments[:, :3]), r"expected an array \(\d+, 8\)"),
    ],
)
def test_problems_of_other_types_and_shapes_are_refused(change_problems, words):
    """Fractions were cut, so that an answer of 1 was right where the target was 1.5."""
    task = change(draw=lambda self, keys: change_problems(Maximum.draw(self, keys)))
    with pytest.raises(TaskError, match=words):
        BatchDelegation(make_rules(task), 4).reset(seed=0)


def test_every_draw_of_a_task_of_ones_own_is_checked():
    def draw(self, keys):
        problems = Maximum.draw(self, keys)
        return problems._replace(targets=problems.targets + 9 * (problems.targets < 7).astype(np.int8))

    game = BatchDelegation(make_rules(change(draw=draw)), 1)
    game.reset(seed=0)
    with pytest.raises(TaskError, match=r"targets are from \d+ to 1\d; expected whole numbers from 0 to 9"):
        list(map(game.reset, range(1, 100)))
