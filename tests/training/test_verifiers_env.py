"""The game as an environment of verifiers, played by its own runners; in the environment that has verifiers.

Each ledger is counted again from the trace of verifiers and from the requests that arrived at the model's server.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_models import CHATML, chat_tokenizer

from selfcest_agents.chat import ChatCodec
from selfcest_agents.engine import Completion, TokenRequest
from selfcest_agents.policy import EnginePolicy, SamplingConfig
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import ROOT, Fault, FinishReason, Limits, Status
from selfcest_training.credit import make_assigner
from selfcest_training.learner.batch import build_samples
from selfcest_training.learner.options import Denominator

if find_spec("verifiers") is not None:
    import verifiers.v1 as vf
    from random_texts import random_limits
    from scripted_engine import ScriptedEngine
    from verifiers.v1.serve import EnvClient, EnvServer

    from selfcest_verifiers.credit import assign_credit
    from selfcest_verifiers.env import AGENT_ID, read_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("verifiers") is None, reason="verifiers is not installed; docs/export.md says how, .ci/run does it"
    ),
]
ROOT_FOLDER = Path(__file__).parents[2]
EPISODES = int(os.environ.get("SELFCEST_VERIFIERS_EPISODES", "40"))  # of each kind of client
PER_ENVIRONMENT = 20
RENDERER = {"name": "custom", "import_path": "selfcest_verifiers.renderer.DelegationRenderer"}
LIMITS = {"total_tokens": 9000, "turn_tokens": 400, "max_clones": 6, "max_depth": 2}
TASKSET = {"id": "selfcest-verifiers", "source_options": {"phrasing": "plain"}}
# `renderers` keeps a lock that belongs to the loop of its first request, so all tests share one loop.
LOOP = asyncio.Runner()
WORDS = WordCounter()
DELEGATES = '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": ["1+1?", "2+2?"]}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    chat_tokenizer(CHATML).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec(chat_tokenizer(CHATML))


def client(kind: str, url: str, tokenizer: Path) -> vf.ClientConfig:
    if kind == "train":
        return vf.TrainClientConfig(base_url=url, renderer=RENDERER, renderer_model_name=str(tokenizer))
    return vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")


def config(tasks: int = 1, seed: int = 0, limits: dict[str, Any] = LIMITS, **options: Any) -> vf.EnvConfig:
    return vf.resolve_env_config(
        {"taskset": {**TASKSET, "num_tasks": tasks, "seed": seed}, "limits": limits, "counter": "words", **options}
    )


async def play(
    engine: ScriptedEngine, kind: str, tokenizer: Path, environment: vf.EnvConfig, rollouts: int = 1
) -> list[vf.Episode]:
    """Play all tasks of an environment with the runner of verifiers."""
    env = vf.load_environment(environment)
    async with engine as url, env.serving():
        context = vf.ModelContext("scripted", client(kind, url, tokenizer), vf.SamplingConfig(temperature=1.0))
        slots = [slot for task in env.taskset for slot in env.slots(task, rollouts)]
        at_once = asyncio.Semaphore(16)
        return list(await asyncio.gather(*(env.run_slot(slot, context, at_once) for slot in slots)))


def recount(episode: vf.Episode, limits: Limits, kind: str) -> EpisodeRecord:
    """Count an episode again from its traces, and compare the sums with the limits and with the record."""
    record = read_record(episode)
    assert episode.ok, episode.errors
    played = {str(agent.agent_id): agent for agent in record.agents if agent.turns}
    assert {trace.info[AGENT_ID] for trace in episode.traces} == set(played)
    total, generated = 0, 0
    for trace in episode.traces:
        agent = played[trace.info[AGENT_ID]]
        assert len(trace.calls) == len(agent.turns) <= limits.max_turns
        for call, turn in zip(trace.calls, agent.turns, strict=True):
            assert call.sampling.max_tokens == turn.facts.max_new_tokens <= limits.turn_tokens
            assert call.usage.completion_tokens == turn.facts.generated_tokens <= call.sampling.max_tokens
            generated += call.usage.completion_tokens
        if kind == "eval":
            # The ledger prices the prompts by their words, and a chat server counts what it has generated.
            context = sum(call.usage.completion_tokens for call in trace.calls)
            index = trace.calls[-1].node
            while index is not None:
                message = trace.nodes[index].message
                if message.role != "assistant":
                    context += 1 + WORDS.count_text(message.content)
                index = trace.nodes[index].parent
        else:
            # No token is there twice, so the last context holds all tokens of the agent.
            context = trace.calls[-1].usage.total_tokens
            assert sum(len(node.token_ids) for node in trace.nodes) == context
            assert len(trace.branches) == 1
        assert limits.context_tokens is None or context <= limits.context_tokens
        total += context
    assert (total, generated) == (record.cost.total_tokens, record.cost.generated_tokens)
    assert total <= limits.total_tokens
    assert limits.generated_tokens is None or generated <= limits.generated_tokens
    assert len(episode.traces) - 1 <= record.cost.clones <= limits.max_clones
    assert record.cost.depth <= limits.max_depth
    return record


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_no_random_episode_is_over_a_limit(kind: str, tokenizer: Path, codec: ChatCodec) -> None:
    sums = {"episodes": 0, "agents": 0, "turns": 0, "tokens": 0, "requests": 0}
    for seed in range(max(1, EPISODES // PER_ENVIRONMENT)):
        limits = random_limits(np.random.default_rng(seed))
        engine = ScriptedEngine(seed, codec)
        episodes = LOOP.run(play(engine, kind, tokenizer, config(PER_ENVIRONMENT, seed, limits)))
        sums["requests"] += len(engine.requests)
        for episode in episodes:
            record = recount(episode, Limits(**limits), kind)
            sums["agents"] += len(episode.traces)
            sums["turns"] += record.cost.turns
            sums["tokens"] += record.cost.total_tokens
        sums["episodes"] += len(episodes)
        print(kind, sums, flush=True)
    assert sums["requests"] == sums["turns"] > sums["agents"] > sums["episodes"] > 0


class DirectEngine:
    """The texts of a `ScriptedEngine` for our own rollout, without a server."""

    policy_version = 0

    def __init__(self, scripted: ScriptedEngine) -> None:
        self._scripted = scripted
        self._waiting: list[TokenRequest] = []

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def cancel(self, keys: Sequence[str]) -> None:
        raise AssertionError("nothing is cancelled")

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        self._waiting += requests

    def poll(self) -> list[Completion]:
        waiting, self._waiting = self._waiting, []
        completions = []
        for request in waiting:
            ids, reason = self._scripted.draw("", list(request.context_ids), request.max_new_tokens)
            completions.append(
                Completion(request.key, tuple(ids), (-0.5,) * len(ids), FinishReason(reason), self.policy_version)
            )
        return completions


def test_the_record_is_that_of_our_own_rollout(tokenizer: Path, codec: ChatCodec) -> None:
    """All facts, ids and log-probs of every agent are equal, so nothing is lost or encoded again on the way."""
    environment = config(20, limits=LIMITS)
    found = [read_record(e) for e in LOOP.run(play(ScriptedEngine(5, codec), "train", tokenizer, environment))]
    policy = EnginePolicy(DirectEngine(ScriptedEngine(5, codec)), codec, SamplingConfig(1.0))
    rules = Rules(Limits(**LIMITS), HermesProtocol(), codec)
    requests = [RolloutRequest(record.episode_id, record.task, 0) for record in found]
    expected = rollout(requests, policy, rules)
    assert [record.agents for record in found] == [record.agents for record in expected]
    assert max(record.cost.depth for record in found) == 2
    assert {record.task.prompt for record in found} == {
        task.data.prompt for task in vf.load_environment(environment).taskset
    }


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_a_client_that_ignores_its_grant_is_charged_and_not_trained(
    kind: str, tokenizer: Path, codec: ChatCodec
) -> None:
    limits = {**LIMITS, "turn_tokens": 12, "answer_reserve": 4, "max_turns": 3}
    engine = ScriptedEngine(0, codec, obeys=False, write=lambda prompt: "Answer: " + "9 " * 40)
    (episode,) = LOOP.run(play(engine, kind, tokenizer, config(limits=limits)))
    assert episode.ok, episode.errors
    record = read_record(episode)
    assert [turn.facts.fault for turn in record.root.turns] == [Fault.OVER_GRANT] * 3
    assert [turn.facts.generated_tokens for turn in record.root.turns] == [12] * 3
    assert record.root.status is Status.OUT_OF_TURNS
    assert all(call.usage.completion_tokens > 12 for call in episode.traces[0].calls)
    assert episode.traces[0].agent.trainable is False
    # The dropped text is in no later request.
    assert not any("9 9 9" in json.dumps(request) for request in engine.requests)
    assert kind == "eval" or not any("9 9 9" in codec.decode(request["token_ids"]) for request in engine.requests)
    if kind == "train":
        with pytest.raises(RecordError, match="root/turn0 is over its grant, so this episode cannot be trained"):
            assign_credit([episode], make_assigner("rloo", {}, where="options"))


@pytest.mark.parametrize(
    ("scheme", "denominator"), [("rloo", Denominator.CONSTANT), ("gated", Denominator.EPISODE_MEAN)]
)
def test_credit_arrives_at_every_token(
    scheme: str, denominator: Denominator, tokenizer: Path, codec: ChatCodec
) -> None:
    """The sum of a trainer that divides by the tokens with a weight is that of our learner."""

    class Varied(ScriptedEngine):
        def draw(self, prompt: str, key: Any, max_tokens: int) -> tuple[list[int], str]:
            return super().draw(prompt, [key, len(self.requests)], max_tokens)  # rollouts of one task differ

    engine = Varied(1, codec)
    episodes = LOOP.run(play(engine, "train", tokenizer, config(reward="default"), rollouts=12))
    records = [read_record(episode) for episode in episodes]
    assert len({record.team_return for record in records}) > 2
    assigner = make_assigner(scheme, {}, where="options")
    assign_credit(episodes, assigner, denominator=denominator, constant=50.0)
    group = EpisodeGroup(records[0].task, tuple(records))
    samples = build_samples([group], [assigner.assign(group, {})], denominator=denominator, constant=50.0)
    expected = [s.advantages * np.broadcast_to(s.weight, len(s)) * s.loss_mask for s in samples]
    trained = sum(int(sample.loss_mask.sum()) for sample in samples)
    found = []
    for record, episode in zip(records, episodes, strict=True):
        for agent in record.agents:
            for trace in episode.traces:
                if trace.info[AGENT_ID] == str(agent.agent_id):
                    (branch,) = trace.branches
                    weights = branch.loss_weights("rl")
                    found.append(np.array(branch.advantages) * np.array(weights) / trained)
                    assert [w != 0 for w in weights] <= branch.sampled_mask
    found = [row for row in found if row.any()]
    expected = [row for row in expected if row.any()]
    assert len(found) == len(expected) > 12
    for row, sample in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, sample, rtol=1e-5)


def write_answer(prompt: str) -> str:
    """Delegate once, then answer."""
    if "1+1?" in prompt or "2+2?" in prompt:
        return "Answer: 2" if "clone 1" not in prompt else "Answer: 4"
    return DELEGATES


def test_vf_eval_plays_and_stores_a_tree(tokenizer: Path, codec: ChatCodec, tmp_path: Path) -> None:
    """The command of docs/export.md, against a server of ours."""

    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT_FOLDER, ROOT_FOLDER / "agents", ROOT_FOLDER / "training"))),
    }

    async def run() -> subprocess.CompletedProcess[str]:
        async with ScriptedEngine(0, codec, write=write_answer) as url:
            command = [
                str(Path(sys.executable).with_name("vf-eval")),
                *("selfcest-verifiers", "--env.limits.total_tokens", "6000", "--env.taskset.num_tasks", "2"),
                *("--env.taskset.source_options.phrasing", "plain", "--model", "scripted", "--no-push", "--no-rich"),
                *("--client.base_url", url, "--client.api_key_var", "NO_KEY", "--output_dir", str(tmp_path)),
            ]
            process = await asyncio.create_subprocess_exec(
                *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, env=environment
            )
            output, _ = await process.communicate()
            return subprocess.CompletedProcess(command, process.returncode or 0, output.decode())

    done = LOOP.run(run())
    assert done.returncode == 0, done.stdout
    (file,) = tmp_path.glob("*/traces.jsonl")
    episodes = [vf.WireEpisode.model_validate_json(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(episodes) == 2
    for episode in episodes:
        record = read_record(episode)
        assert [str(agent.agent_id) for agent in record.agents] == ["root", "root.0", "root.1"]
        assert {trace.info[AGENT_ID] for trace in episode.traces} == {"root", "root.0", "root.1"}
        assert {trace.reward for trace in episode.traces} == {record.team_return}
        assert record.cost.total_tokens <= 6000


def test_the_server_that_prime_rl_s_orchestrator_asks_sends_the_whole_episode(
    tokenizer: Path, codec: ChatCodec
) -> None:
    """It asks an `EnvServer` through an `EnvClient`, with tasks that it loads itself."""

    async def run() -> vf.WireEpisode:
        environment = config()
        server = EnvServer(environment, address="tcp://127.0.0.1:0")
        serving = asyncio.create_task(server.run())
        try:
            async with ScriptedEngine(0, codec, write=write_answer) as url:
                (task,) = vf.load_taskset(environment.taskset)
                return await EnvClient(server.address).run(
                    task_data=task.data.model_dump(),
                    client=client("train", url, tokenizer),
                    model="scripted",
                    sampling=vf.SamplingConfig(temperature=0.7),
                )
        finally:
            serving.cancel()

    episode = LOOP.run(run())
    record = recount(episode, Limits(**LIMITS), "train")
    assert record.cost.clones == 2
    assert {turn.generation.temperature for _, turn in record.turns()} == {0.7}
    assert all(trace.rewards["correct"].value == record.team_return for trace in episode.traces)
    (root,) = (trace for trace in episode.traces if trace.info[AGENT_ID] == str(ROOT))
    assert root.metrics["clones"] == 2


def test_the_clones_of_a_call_play_at_the_same_time(tokenizer: Path, codec: ChatCodec) -> None:
    class Slow(ScriptedEngine):
        now = most = 0

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._generate = self._wait

        async def _wait(self, request: Any) -> Any:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.2)
            self.now -= 1
            return await ScriptedEngine._generate(self, request)

    for bound, most in ((None, 2), (1, 1)):
        engine = Slow(0, codec, write=write_answer)
        options = {} if bound is None else {"max_concurrent_agents": bound}
        (episode,) = LOOP.run(play(engine, "train", tokenizer, config(**options)))
        assert recount(episode, Limits(**LIMITS), "train").cost.clones == 2
        assert engine.most == most


def test_a_failed_server_fails_the_episode(tokenizer: Path, codec: ChatCodec) -> None:
    class Broken(ScriptedEngine):
        def draw(self, *_: object) -> Any:
            raise RuntimeError("no memory")

    (episode,) = LOOP.run(play(Broken(0, codec), "train", tokenizer, config()))
    assert not episode.ok
    assert "root, turn 0 got no answer" in episode.errors[-1].message


def test_a_renderer_that_the_ledger_does_not_know_is_refused(tokenizer: Path, codec: ChatCodec) -> None:
    async def run() -> list[vf.Episode]:
        env = vf.load_environment(config())
        async with env.serving():
            context = vf.ModelContext("scripted", vf.TrainClientConfig(renderer={"name": "qwen3"}))
            return [await env.run_slot(slot, context) for task in env.taskset for slot in env.slots(task)]

    (episode,) = LOOP.run(run())
    assert "import_path to 'selfcest_verifiers.renderer.DelegationRenderer'" in episode.errors[-1].message
    with pytest.raises(ConfigError, match="env.limits.tokens is unknown"):
        vf.load_environment(config(limits={"tokens": 5}))


def test_a_task_does_not_depend_on_the_number_of_tasks() -> None:
    few, many = (list(vf.load_environment(config(count, seed=3)).taskset) for count in (2, 5))
    assert [task.key for task in few] == [task.key for task in many][:2]
    assert len({task.key for task in many}) == 5
    assert replace(many[0].game) == many[0].game
