"""Credit that any implementation must give: on matrix games, and on a small delegation game listed in full."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from marl_games import (
    ANSWER_0,
    ANSWER_1,
    SPLIT,
    TWO_CLONES,
    action_values,
    actor,
    advantages_of,
    after,
    first_state,
    games,
    gradient,
    joint_log_prob,
    kernel_at,
    log_probs,
    steps,
    value,
)
from torch import Tensor

from selfcest_baselines.broadcast import BroadcastLearner
from selfcest_baselines.coma import compute_coma_advantages
from selfcest_baselines.counterfactual import Recording, ReplayCost, record_episodes, replay_without
from selfcest_baselines.diff_loo import DiffLooLearner, subtract_same_clones
from selfcest_baselines.difference import DifferenceLearner, compute_difference_returns
from selfcest_baselines.games import KernelGames
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import (
    ILLEGAL,
    ActorNetwork,
    compute_entropy,
    gather_actions,
    mix_with_uniform,
    sample_actions,
)
from selfcest_baselines.rollout import collect_rollout, compute_row_targets, lambda_returns
from selfcest_baselines.shapley import (
    ShapleyLearner,
    compute_shapley_credit,
    iter_calls_by_size,
    needed_coalitions,
    sample_orders,
    shapley_values,
)
from selfcest_env.symbolic import make_rules
from selfcest_env.symbolic.rules import WAIT
from selfcest_env.symbolic.vectors import OBSERVATION_FEATURES, get_replies, get_segments

DEPTH = OBSERVATION_FEATURES.index("depth")
JOINTS = list(itertools.product(range(3), repeat=3))


def matrix_game(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three agents with three actions: rewards [3, 3, 3] and log-probabilities [3, 3]."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(3, 3, 3))), torch.from_numpy(rng.normal(size=(3, 3))).log_softmax(-1)


def matrix_advantage(rewards: Tensor, logs: Tensor, joint: tuple[int, ...], agent: int) -> Tensor:
    values = rewards.movedim(agent, -1)[joint[:agent] + joint[agent + 1 :]]
    return compute_coma_advantages(values[None], logs[agent][None], torch.tensor([joint[agent]]))[0]


def coalition_values(rewards: Tensor, joint: tuple[int, ...], default: int = 0) -> Tensor:
    """Of every coalition as a bit set [1, 8]: whoever is outside plays the default."""
    played = [tuple(u if c >> i & 1 else default for i, u in enumerate(joint)) for c in range(8)]
    return torch.stack([rewards[joint] for joint in played])[None]


ALL_ORDERS = torch.tensor([list(itertools.permutations(range(3)))])


def split_games(num_games: int, rules=TWO_CLONES):
    """Games in which the root splits first, and who plays after that is asked."""
    splitting = rules.first_call

    def with_split(act):
        def play(observations: Tensor, masks: Tensor) -> Tensor:
            may_split = masks[:, splitting]
            return torch.where(may_split, splitting, act(observations, masks))

        return play

    return KernelGames(rules, num_games, 3, group_size=num_games), with_split


# 1


def test_advantages_have_mean_zero_given_what_others_do() -> None:
    rewards, logs = matrix_game()
    for agent in range(3):
        for others in itertools.product(range(3), repeat=2):
            each = [(*others[:agent], a, *others[agent:]) for a in range(3)]
            mean = sum(logs[agent, j[agent]].exp() * matrix_advantage(rewards, logs, j, agent) for j in each)
            assert abs(float(mean)) < 1e-15
    policy, state = actor(), after(first_state(), (SPLIT, WAIT, WAIT))
    logs = log_probs(policy, state).detach()
    for a in (ANSWER_0, ANSWER_1):
        values = action_values(policy, state, (WAIT, a, a), agent=2).expand(4, -1)
        advantages = compute_coma_advantages(values, logs[2].expand(4, -1), torch.arange(4))
        assert abs(float((logs[2].exp() * advantages).sum())) < 1e-15
        assert advantages[ANSWER_0].abs() > 1e-3


# 2


def test_the_expected_coma_gradient_is_the_exact_gradient() -> None:
    policy = actor()
    exact = gradient(policy, value(policy, first_state()))
    surrogate = torch.tensor(0.0)
    for probability, state, joint in steps(policy, first_state()):
        logs = log_probs(policy, state)
        for agent in range(3):
            values = action_values(policy, state, joint, agent)[None]
            one = logs[agent][None]
            advantage = compute_coma_advantages(values, one.detach(), torch.tensor([joint[agent]]))[0]
            surrogate = surrogate + probability * advantage * logs[agent, joint[agent]]
    assert exact.norm() > 1e-2
    torch.testing.assert_close(gradient(policy, surrogate), exact, rtol=0, atol=1e-12)


# 3


def test_coma_is_aristocrat_utility_and_brute_force_resimulation() -> None:
    rewards, logs = matrix_game()
    for joint, agent in itertools.product(JOINTS, range(3)):
        changed = [rewards[(*joint[:agent], a, *joint[agent + 1 :])] * logs[agent, a].exp() for a in range(3)]
        aristocrat = rewards[joint] - sum(changed)
        torch.testing.assert_close(matrix_advantage(rewards, logs, joint, agent), aristocrat, rtol=0, atol=1e-15)

    policy, state, joint = actor(6), after(first_state(), (SPLIT, WAIT, WAIT)), (WAIT, ANSWER_0, ANSWER_1)
    logs, copies = log_probs(policy, state).detach(), 20_000
    exact = compute_coma_advantages(
        action_values(policy, state, joint, 1)[None], logs[1][None], torch.tensor([joint[1]])
    )[0]
    returns = {}
    for action in (ANSWER_0, ANSWER_1):  # played from the snapshot: this action, the other clone's, then the policy
        kernel = kernel_at(state, copies)
        kernel.step(np.tile([WAIT, action, joint[2]], (copies, 1)))
        seen, legal = kernel.observations()[:, 0], kernel.action_masks()[:, 0]
        last = policy.sample(torch.from_numpy(seen).double(), torch.from_numpy(legal))
        kernel.step(np.stack([last, np.zeros(copies, int), np.zeros(copies, int)], axis=1))
        assert kernel.done.all()
        returns[action] = kernel.state.team_return.mean()
    probs = logs[1].exp()
    resimulated = returns[ANSWER_0] - sum(float(probs[action]) * mean for action, mean in returns.items())
    assert abs(resimulated - float(exact)) < 4 * 2 * 0.5 / copies**0.5
    assert abs(float(exact)) > 0.2


# 4


def test_a_dummy_gets_nothing() -> None:
    rewards, logs = matrix_game()
    rewards = rewards[:, :, :1].expand(3, 3, 3)  # the third agent does not matter
    for joint in JOINTS:
        assert abs(float(matrix_advantage(rewards, logs, joint, 2))) < 1e-15
        values = coalition_values(rewards, joint)
        assert values[0, 0b111] - values[0, 0b011] == 0
        assert abs(float(shapley_values(values, ALL_ORDERS)[0, 2])) < 1e-15

    arena, with_split = split_games(64)
    policy = actor().float()

    def deaf(observations: Tensor, masks: Tensor) -> Tensor:  # a root that does not listen: its clones are dummies
        return torch.where(observations[:, DEPTH] == 0, ANSWER_1, policy.sample(observations, masks))

    recording = record_episodes(arena, with_split(deaf))
    assert (recording.moments[-1].num_born == 3).all()
    assert not compute_difference_returns(recording, deaf, 2)[0].any()
    assert not compute_shapley_credit(recording, deaf, 2, np.random.default_rng(0))[0].any()
    policy, state = actor(), after(first_state(), (SPLIT, WAIT, WAIT))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()  # a root that answers at random, whatever it is told
    values = action_values(policy, state, (WAIT, ANSWER_0, ANSWER_0), 1)[None]
    assert compute_coma_advantages(values, log_probs(policy, state)[1][None].detach(), torch.tensor([ANSWER_0])) == 0


# 5


def test_shapley_is_efficient_and_symmetric() -> None:
    # A left glove and two right ones, a pair is worth 1. Player 0 completes the pair unless it comes first: 2/3.
    # Player 1 does only in the order 0, 1, 2: 1/6; so does player 2 in 0, 2, 1.
    pair = torch.tensor([[float((c & 1) and (c >> 1) > 0) for c in range(8)]], dtype=torch.float64)
    expected = torch.tensor([[2 / 3, 1 / 6, 1 / 6]], dtype=torch.float64)
    torch.testing.assert_close(shapley_values(pair, ALL_ORDERS), expected)
    rewards, _ = matrix_game()
    for joint in JOINTS:
        values = coalition_values(rewards, joint)
        assert abs(float(shapley_values(values, ALL_ORDERS).sum() - (values[0, 7] - values[0, 0]))) < 1e-15
    some = torch.from_numpy(sample_orders(1, 3, 2, np.random.default_rng(0)))
    values = coalition_values(rewards, (1, 2, 1))
    torch.testing.assert_close(shapley_values(values, some).sum(), values[0, 7] - values[0, 0])  # any orders will do
    symmetric = rewards + rewards.transpose(1, 2)
    credit = shapley_values(coalition_values(symmetric, (1, 2, 2)), ALL_ORDERS)[0]
    assert credit[1] == pytest.approx(float(credit[2]))

    # In the delegation game with a root that adds up what it is told: every call shares out R - R(no clone at all).
    arena, with_split = split_games(64)
    recording = record_episodes(arena, with_split(adding(actor().float())))
    credit, _ = compute_shapley_credit(recording, adding(actor().float()), 2, np.random.default_rng(0))
    births = recording.births()
    both = np.isin(np.arange(3), [1, 2])[None].repeat(64, axis=0)
    nobody = replay_without(recording, np.arange(64), births.cycle[::2], both, adding(actor().float())).returns
    torch.testing.assert_close(credit.sum(1), recording.rollout.returns - nobody)
    assert credit.abs().sum() > 0


def adding(policy: ActorNetwork):
    """A root that answers the sum of the replies it got, and clones that play a policy."""

    def act(observations: Tensor, masks: Tensor) -> Tensor:
        ones = observations[:, -4:].view(-1, 2, 2)[:, :, 1].sum(1).long()
        return torch.where(observations[:, DEPTH] == 0, ANSWER_0 + ones % 2, policy.sample(observations, masks))

    return act


# 6


def test_the_recursion_is_the_forward_view() -> None:
    rng = torch.Generator().manual_seed(0)
    rewards, values = torch.rand(2, 6, 3, generator=rng, dtype=torch.float64)
    gamma, lam = 0.9, 0.7
    for terminates in (True, False):
        discounts = torch.full((6, 3), gamma, dtype=torch.float64)
        discounts[-1] *= not terminates
        lambdas = torch.full((6, 3), lam, dtype=torch.float64)
        for t in range(6):
            n_step = []
            for n in range(1, 7 - t):
                within = sum(gamma**k * rewards[t + k] for k in range(n))
                ends = terminates and t + n == 6
                n_step.append(within + (0 if ends else gamma**n * values[t + n - 1]))
            weights = [(1 - lam) * lam ** (n - 1) for n in range(1, len(n_step))] + [lam ** (len(n_step) - 1)]
            forward = sum(w * g for w, g in zip(weights, n_step, strict=True))
            actual = lambda_returns(rewards, discounts, values, lambdas)[t]
            torch.testing.assert_close(actual, forward, rtol=0, atol=1e-14)


# 7


def test_the_terminal_reward_reaches_the_last_target_and_only_truncation_is_bootstrapped() -> None:
    # Three steps, reward 1 at the last, value 0.5 everywhere, γ = 1, λ = 0.5.
    rewards, values = torch.tensor([0.0, 0, 1]), torch.full((3,), 0.5)
    # terminated: 1; 0.5 * 0.5 + 0.5 * 1 = 0.75; 0.25 + 0.5 * 0.75 = 0.625
    ended = lambda_returns(rewards, torch.tensor([1.0, 1, 0]), values, torch.full((3,), 0.5))
    assert ended.tolist() == [0.625, 0.75, 1.0]
    # truncated: 1 + 0.5; 0.25 + 0.75 = 1; 0.25 + 0.5 = 0.75
    cut = lambda_returns(rewards, torch.ones(3), values, torch.tensor([0.5, 0.5, 0]))
    assert cut.tolist() == [0.75, 1.0, 1.5]

    policy = actor().float()
    rollout = collect_rollout(games(256), policy.sample)
    noise = torch.rand(len(rollout.actions), generator=policy.generator)
    targets = compute_row_targets(rollout, noise, gamma=1.0, lambda_=1.0)
    assert torch.equal(targets, rollout.returns[rollout.game])
    ends = ~rollout.continues[rollout.cycle, rollout.game]
    targets = compute_row_targets(rollout, noise, gamma=1.0, lambda_=0.0)
    assert torch.equal(targets[ends], rollout.returns[rollout.game][ends])
    assert not torch.equal(targets[~ends], rollout.returns[rollout.game][~ends])

    _, with_split = split_games(32)
    cut_games = KernelGames(TWO_CLONES, 32, 3, max_cycles=1)
    rollout = collect_rollout(cut_games, with_split(policy.sample))
    assert cut_games.truncated.all()
    assert not rollout.learnable.all()  # the clones' moment, which is valued and not learned from
    noise = torch.rand(len(rollout.actions), generator=policy.generator)
    targets = compute_row_targets(rollout, noise, gamma=0.5, lambda_=0.9)
    clones = noise[~rollout.learnable].view(32, 2).mean(1)
    torch.testing.assert_close(targets[rollout.learnable], 0.5 * clones)


# 8


def test_an_agent_that_can_only_wait_has_no_gradient_and_no_entropy() -> None:
    policy = actor().float()
    seen = torch.rand(5, policy.logits[0].in_features)
    only_wait = (torch.arange(4) == WAIT).expand(5, 4)
    logs = policy(seen, only_wait)
    assert torch.equal(logs[:, WAIT], torch.zeros(5))
    assert torch.equal(compute_entropy(logs), torch.zeros(5))
    assert not gradient(
        policy, (3.7 * gather_actions(logs, torch.zeros(5, dtype=torch.long)) + compute_entropy(logs)).sum()
    ).any()
    rollout = collect_rollout(games(32), policy.sample)
    assert (rollout.masks.sum(1) > 1).all()


# 9


def test_illegal_actions_have_no_part_in_baselines_and_log_probabilities() -> None:
    policy = actor().float()
    masks = torch.tensor([[False, True, True, False]])
    logs = policy(torch.rand(1, policy.logits[0].in_features), masks).detach()
    assert torch.equal(logs.exp()[~masks], torch.zeros(2))
    assert float(logs.exp().sum()) == pytest.approx(1)
    values = torch.tensor([[0.0, 0.3, 0.8, 0.0]])
    absurd = torch.tensor([[1e6, 0.3, 0.8, -1e6]])
    for floor in (0.0, 0.2):
        mixed = mix_with_uniform(logs, masks, floor)
        assert torch.equal(mixed.exp()[~masks], torch.zeros(2))
        assert float(mixed.exp().sum()) == pytest.approx(1)
        assert float(mixed.exp()[masks].min()) >= floor / 2
        chosen = torch.tensor([1])
        torch.testing.assert_close(
            compute_coma_advantages(absurd, mixed, chosen), compute_coma_advantages(values, mixed, chosen)
        )
    # Two legal actions with logits 1 and 2: log probability of the first is -log(1 + e).
    two = torch.tensor([[ILLEGAL, 1.0, 2.0, ILLEGAL]]).log_softmax(-1)
    assert float(two[0, 1]) == pytest.approx(-np.log(1 + np.e))
    draws = sample_actions(logs.exp().expand(10_000, 4), policy.generator)
    assert set(draws.tolist()) == {1, 2}


# 10


def test_replay_trap_recorded_later_actions_are_biased_and_resampled_ones_are_not() -> None:
    """Of clone 1's share of the gradient, with every expectation listed in full."""
    policy = actor()
    called = after(first_state(), (SPLIT, WAIT, WAIT))
    share = float(log_probs(policy, first_state())[0, SPLIT].detach().exp())
    logs = log_probs(policy, called)
    absent = kernel_at(called)
    absent.remove(np.array([0]), np.array([1]))
    exact = resampled = recorded = torch.tensor(0.0)
    baselines = {}
    for mine, other, last in itertools.product((ANSWER_0, ANSWER_1), repeat=3):
        joined = after(called, (WAIT, mine, other))
        end = after(joined, (last, WAIT, WAIT))
        without = after(absent.get_snapshot(), (WAIT, WAIT, other))
        baselines[other] = value(policy, without).detach()
        replayed = after(without, (last, WAIT, WAIT)).team_return[0]
        before = joint_log_prob(logs, (WAIT, mine, other)).detach()
        weight = share * (before + log_probs(policy, joined).detach()[0, last]).exp() * logs[1, mine]
        exact = exact + weight * end.team_return[0]
        resampled = resampled + weight * (end.team_return[0] - baselines[other])
        recorded = recorded + weight * (end.team_return[0] - replayed)
    truth = gradient(policy, exact)
    assert truth.norm() > 1e-3
    torch.testing.assert_close(gradient(policy, resampled), truth, rtol=0, atol=1e-14)
    # The root's recorded answer is right or wrong whatever clone 1 is said to have replied: no credit at all.
    assert not gradient(policy, recorded).any()

    # The baseline that is played is this one, given what the sibling did.
    arena, with_split = split_games(20_000)
    single = actor().float()
    recording = record_episodes(arena, with_split(single.sample))
    credit, cost = compute_difference_returns(recording, single.sample, 1)
    assert cost == ReplayCost(2 * 20_000, 2 * 20_000)  # the root answers anew, the sibling keeps what it said
    sibling = get_replies(recording.moments[-1])[:, 2] + ANSWER_0
    for other, baseline in baselines.items():
        played = (recording.rollout.returns - credit[:, 1])[torch.from_numpy(sibling == other)]
        assert len(played) > 1000
        assert abs(float(played.mean() - baseline)) < 4 * 0.5 / len(played) ** 0.5


# 11


def test_permuting_clones_permutes_advantages() -> None:
    rewards, logs = matrix_game()
    order = (2, 0, 1)
    moved, moved_logs = rewards.permute(order), logs[list(order)]
    for joint in JOINTS:
        there = tuple(joint[i] for i in order)
        for new, old in enumerate(order):
            same = matrix_advantage(rewards, logs, joint, old)
            torch.testing.assert_close(matrix_advantage(moved, moved_logs, there, new), same)
        credit = shapley_values(coalition_values(rewards, joint), ALL_ORDERS)[0]
        torch.testing.assert_close(shapley_values(coalition_values(moved, there), ALL_ORDERS)[0], credit[list(order)])

    # Clones that hold (0, 1) and clones that hold (1, 0); only who holds the 0 answers right.
    arena = KernelGames(TWO_CLONES, 64, 0)
    act = adding(actor().float())

    def always_zero(observations: Tensor, masks: Tensor) -> Tensor:
        split = masks[:, SPLIT]
        clone = observations[:, DEPTH] > 0
        return torch.where(split, SPLIT, torch.where(clone, ANSWER_0, act(observations, masks)))

    recording = record_episodes(arena, always_zero)
    items = get_segments(recording.moments[0], TWO_CLONES)[:, 0]
    zero_one, one_zero = (torch.from_numpy((items == pair).all(1)) for pair in ([0, 1], [1, 0]))
    for credit in (
        compute_difference_returns(recording, always_zero, 1)[0],
        compute_shapley_credit(recording, always_zero, 2, np.random.default_rng(0))[0],
    ):
        assert zero_one.any()
        assert one_zero.any()
        assert (credit[zero_one][:, 1:] == credit[one_zero][0, [2, 1]]).all()


def test_replays_know_agents_by_their_place_in_the_tree() -> None:
    """Without clone 1 the clones of clone 2 take the seats of those of clone 1; they still play what they played."""
    rules = make_rules(
        "chain",
        {"items": 4, "modulus": 5, "window": 2, "splits": [2]},
        max_clones=6,
        max_depth=2,
        max_turns=2,
        total_tokens=None,
    )
    arena, with_split = split_games(32, rules)
    rng = torch.Generator().manual_seed(0)
    recording = record_episodes(arena, with_split(lambda seen, masks: sample_actions(masks.float(), rng)))
    assert (recording.moments[-1].num_born == 7).all()
    asked: list[Tensor] = []

    def watched(seen: Tensor, masks: Tensor) -> Tensor:
        asked.append(seen)
        return sample_actions(masks.float(), rng)

    births = recording.births()
    first = births.agent == 1
    absent = np.arange(7) == births.agent[first][:, None]
    outcome = replay_without(recording, births.game[first], births.cycle[first], absent, watched)
    seen = torch.cat(asked)
    assert (seen[:, DEPTH] == 0).all()  # only the root is asked anew
    assert len(seen) == 32
    told = seen[:, -5 * rules.width :].view(32, rules.width, 5)
    assert not told[:, 0].any()  # clone 1 is missing
    assert (told[:, 1].argmax(-1).numpy() == get_replies(recording.moments[-1])[:, 2]).all()
    # the root's answer alone: clone 2's split, its own answer and those of its clones are kept
    assert outcome.cost == ReplayCost(32, 32)
    sizes = {clones.shape[1]: len(game) for game, clones, _ in iter_calls_by_size(recording)}
    assert sizes == {2: 3 * 32}


def test_only_needed_coalitions_are_played() -> None:
    # Orders 0 1 2 and 0 2 1: nobody, {0}, {0, 1}, {0, 2} and all.
    table = needed_coalitions(np.array([[[0, 1, 2], [0, 2, 1]]]))
    assert np.flatnonzero(table[0]).tolist() == [0b000, 0b001, 0b011, 0b101, 0b111]


# In expectation, with every pair of episodes and everything that their replays can draw listed in full.

SCRIPTS = [(ANSWER_0,), (ANSWER_1,), *itertools.product([SPLIT], *[(ANSWER_0, ANSWER_1)] * 3)]
SHARE = {"broadcast": 0.5, "difference": 1.0, "diff_loo": 1.0, "shapley": None}  # of the exact gradient; None: biased


def scripted(scripts: Sequence[tuple[int, ...]]) -> Recording:
    """Episodes of the same problem: the root's first turn, then each clone's, then the root's last."""
    splits = [script[1:] for script in scripts if script[0] == SPLIT]
    turns = [[script[0] for script in scripts], [a for split in splits for a in split[:2]], [s[2] for s in splits]]
    cycles = iter([torch.tensor(turn) for turn in turns if turn])
    return record_episodes(games(len(scripts)), lambda seen, masks: next(cycles))


PAIRS: list[PolicyGradientLearner] = [
    BroadcastLearner(std_floor=None, group_size=2),
    DifferenceLearner(group_size=2),
    DiffLooLearner(group_size=2),
    ShapleyLearner(group_size=2),
]


@pytest.mark.parametrize("learner", PAIRS, ids=list(SHARE))
def test_the_expected_gradient_of_a_credit(learner: PolicyGradientLearner, request: pytest.FixtureRequest) -> None:
    policy = actor()
    recording = scripted([script for pair in itertools.product(SCRIPTS, repeat=2) for script in pair])
    rollout = recording.rollout
    logs = gather_actions(policy(rollout.observations.double(), rollout.masks), rollout.actions)
    per_game = torch.zeros(len(rollout.returns), dtype=torch.float64).index_add(0, rollout.game, logs)
    weight = per_game.detach().view(-1, 2).sum(1).exp()
    assert float(weight.sum()) == pytest.approx(1)

    # What the root can see in a replay. Advantages are linear in what each replay brings, so that one answer per
    # observation, weighed by its probability, stands for draws that are all independent.
    chances: dict[bytes, Tensor] = {}

    def look(seen: Tensor, masks: Tensor) -> Tensor:
        for one, mask in zip(seen, masks, strict=True):
            chances[one.numpy().tobytes()] = policy(one.double()[None], mask[None])[0].exp().detach()
        return masks.float().argmax(-1)

    advantages_of(learner, recording, look)
    assert len(chances) == {BroadcastLearner: 0, ShapleyLearner: 5}.get(type(learner), 4)
    expected, total = torch.zeros(len(rollout.actions), dtype=torch.float64), 0.0
    for answers in itertools.product((ANSWER_0, ANSWER_1), repeat=len(chances)):
        table = dict(zip(chances, answers, strict=True))
        chance = float(torch.stack([torch.tensor(1.0), *(chances[o][a] for o, a in table.items())]).prod())
        advantages = advantages_of(
            learner, recording, lambda seen, _, t=table: torch.tensor([t[one.numpy().tobytes()] for one in seen])
        )
        expected, total = expected + chance * advantages, total + chance
    assert total == pytest.approx(1)
    found = gradient(policy, (weight[rollout.game // 2] * expected * logs).sum() / 2)
    exact = gradient(policy, value(policy, first_state()))
    share = SHARE[request.node.callspec.id]
    if share is None:
        assert (found - exact).norm() > 1e-3  # the others are within 1e-6
    else:
        torch.testing.assert_close(found, share * exact, rtol=0, atol=1e-6)


def test_the_same_clone_of_other_episodes_by_hand() -> None:
    split = (SPLIT, ANSWER_0, ANSWER_0, ANSWER_0)
    recording = scripted([split, split, split, (ANSWER_0,), split, (ANSWER_0,), (ANSWER_1,), (ANSWER_1,)])
    credit = torch.zeros(8, 3)
    credit[:3, 1] = torch.tensor([0.6, 0.3, 0.0])
    credit[:3, 2] = torch.tensor([1.0, 0.0, 0.0])
    credit[4, 1:] = torch.tensor([0.7, 0.2])  # the group's only clones: nothing to compare with
    compared = subtract_same_clones(credit, recording, 4)
    # 0.6 less the mean of 0.3 and 0, 0.3 less that of 0.6 and 0, 0 less that of 0.6 and 0.3
    assert compared[:3, 1].tolist() == pytest.approx([0.45, 0.0, -0.45])
    assert compared[:3, 2].tolist() == pytest.approx([1.0, -0.5, -0.5])
    assert compared[4, 1:].tolist() == pytest.approx([0.7, 0.2])
    assert not compared[[3, 5, 6, 7]].any()
