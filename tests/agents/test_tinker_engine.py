"""The engine over a sampling client of Tinker, in the environment that has Tinker.

In an environment that has SkyRL too, an episode with clones is played through its server, which speaks Tinker. The
server is started by its own command. Its database has each request and each answer, and the ledger is counted again
from these.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from selfcest_agents.engine import Completion, FailedRequest, TokenRequest
from selfcest_agents.policy import EnginePolicy, SamplingConfig, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.errors import PolicyError
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import ROOT, Answer, CloneRequest, Delegate, FinishReason, Limits, Task
from selfcest_env.views import Observation

if find_spec("tinker") is not None:
    import tinker
    import torch
    from chat_models import CHATML, byte_level, chat_tokenizer, tiny_llama
    from transformers import AutoTokenizer

    from selfcest_agents.chat import ChatCodec
    from selfcest_agents.tinker_engine import TinkerEngine
    from selfcest_training.credit import make_assigner
    from selfcest_training.credit.offline import group_episodes
    from selfcest_training.export.stored import build_credited_samples
    from selfcest_training.export.tinker import build_datums
    from selfcest_training.learner.options import Denominator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("tinker") is None, reason="Tinker is not installed; docs/export.md says how, .ci/run does it"
    ),
]
STOP = 9


class ScriptedClient:
    """A sampling client that gives these answers in turn: ids with log-probs, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.sent: list[tuple[list[int], Any]] = []
        self.futures: list[Future[Any]] = []
        self._answers = list(answers)

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Future[Any]:
        assert num_samples == 1
        self.sent.append((prompt.to_ints(), sampling_params))
        future: Future[Any] = Future()
        self.futures.append(future)
        if self._answers:
            answer = self._answers.pop(0)
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                tokens, logprobs = answer
                future.set_result(SimpleNamespace(sequences=[SimpleNamespace(tokens=tokens, logprobs=logprobs)]))
        return future


def test_a_request_has_the_grant_and_its_answer_is_read() -> None:
    client = ScriptedClient(([5, STOP], [-0.5, -0.25]), ([5, 6, 7], [-0.5] * 3), ([STOP], [-0.5]))
    engine = TinkerEngine(client, stop_ids=[STOP], policy_version=3)
    engine.submit(
        [
            TokenRequest("stops", (1, 2), 3, seed=2**40 + 7),
            TokenRequest("is long", (1,), 3, seed=0, temperature=0.5),
            TokenRequest("is greedy", (1,), 3, seed=0, temperature=0.0),
        ]
    )
    completions = {completion.key: completion for completion in engine.poll()}
    assert engine.pending == 0
    assert engine.poll() == []
    assert completions["stops"] == Completion("stops", (5, STOP), (-0.5, -0.25), FinishReason.STOP, 3)
    assert completions["is long"].finish_reason is FinishReason.LENGTH
    assert completions["is greedy"].logprobs == (0.0,)
    ids, params = client.sent[0]
    assert ids == [1, 2]
    assert (params.max_tokens, params.seed, params.stop, params.temperature) == (3, 7, [STOP], 1.0)
    assert (params.top_k, params.top_p) == (-1, 1.0)
    assert client.sent[1][1].temperature == 0.5


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (([5, 6, 7, 8], [-0.5] * 4), "has 4 ids for max_tokens = 3"),
        (([], []), "has 0 ids for max_tokens = 3"),
        (([STOP, 5], [-0.5] * 2), "continues after a stop id"),
        (([5], None), "has no log-probs"),
    ],
)
def test_a_server_that_breaks_the_contract_is_refused(answer: Any, message: str) -> None:
    engine = TinkerEngine(ScriptedClient(answer), stop_ids=[STOP])
    engine.submit([TokenRequest("r", (1,), 3, seed=0)])
    with pytest.raises(PolicyError, match=message):
        engine.poll()


def test_a_failure_of_the_service_fails_its_request_only() -> None:
    client = ScriptedClient(ConnectionError("no route"), ([STOP], [-0.5]))
    engine = TinkerEngine(client, stop_ids=[STOP])
    engine.submit([TokenRequest(key, (1,), 3, seed=0) for key in ("fails", "ends", "waits")])
    with pytest.raises(PolicyError, match="'waits'"):
        engine.submit([TokenRequest("waits", (1,), 3, seed=0)])
    failed, ended = engine.poll()
    assert isinstance(failed, FailedRequest)
    assert "fails got no answer from Tinker: ConnectionError: no route" in str(failed.error)
    assert ended.token_ids == (STOP,)
    engine.cancel(["waits", "unknown"])
    assert engine.pending == 0
    assert client.futures[2].cancelled()


# SkyRL's server

TASK = Task("sum", "What is 1+1+2+2?", "6", "by hand")
LIMITS = Limits(total_tokens=3000, turn_tokens=96, max_clones=2)
START_S = 900  # time for the imports of the server on a busy machine


class DelegatingActor:
    """The root starts two clones, which answer, and then it answers."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if observation.agent_id != ROOT:
            action: Any = Answer("2" if observation.agent_id == ROOT.child(0) else "4")
        elif observation.turn == 0:
            action = Delegate((CloneRequest("1+1?", (), None), CloneRequest("2+2?", (), None)))
        else:
            action = Answer("6")
        return HermesProtocol().render(action)


def play_script(codec: ChatCodec) -> EpisodeRecord:
    rules = Rules(LIMITS, HermesProtocol(), codec)
    return rollout([RolloutRequest("script", TASK, 0)], ScriptedPolicy(DelegatingActor(), codec), rules)[0]


def save_model(folder: Path) -> None:
    """Train a tiny Llama until it knows the script by heart, and save it with a tokenizer of its texts."""
    codec = ChatCodec(chat_tokenizer(CHATML))
    texts = [codec.decode(turn.generation.prompt_ids) for _, turn in play_script(codec).turns()]
    tokenizer = chat_tokenizer(CHATML, byte_level(texts, vocab_size=700))
    contexts = []
    for agent in play_script(ChatCodec(tokenizer)).agents:
        ids: list[int] = []
        is_sampled: list[bool] = []
        for turn in agent.turns:
            prompt_ids = turn.generation.prompt_ids
            token_ids = turn.generation.token_ids
            ids += [*prompt_ids, *token_ids]
            is_sampled += [False] * len(prompt_ids) + [True] * len(token_ids)
        contexts.append((torch.tensor([ids]), torch.tensor(is_sampled[1:])))
    model = tiny_llama(tokenizer, positions=4096, hidden_size=64).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(400):
        loss = torch.zeros(())
        for ids, mask in contexts:
            logprobs = model(ids).logits[0, :-1].log_softmax(-1)
            loss = loss - logprobs.gather(-1, ids[0, 1:, None])[mask].sum()
        if loss < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class Server:
    """A running server with its model and its database."""

    url: str
    model: Path
    database: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("skyrl")
    save_model(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"max_lora_adapters": 2, "max_lora_rank": 4, "train_micro_batch_size": 4, "sample_max_num_sequences": 2}
    command = [
        *(str(Path(sys.executable).with_name("uv")), "run", "--no-project", "--active", "-m", "skyrl.tinker.api"),
        *("--base-model", str(folder / "model"), "--backend", "jax", "--backend-config", json.dumps(options)),
        *("--host", "127.0.0.1", "--port", str(port), "--database-url", f"sqlite:///{folder}/tinker.db"),
        *("--checkpoints-base", str(folder / "checkpoints")),
    ]
    environment = {
        **os.environ,
        "VIRTUAL_ENV": sys.prefix,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),  # the server starts `uv` too
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        end = monotonic() + START_S
        while "Starting background engine" not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text(errors="replace")
            assert monotonic() < end, log.read_text(errors="replace")
            sleep(1)
        yield Server(f"http://127.0.0.1:{port}", folder / "model", folder / "tinker.db")
    finally:
        process.terminate()
        process.wait(60)


def read_samples(database: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each sampling request that the server has stored, with its answer, in the order of arrival."""
    query = "SELECT request_data, result_data FROM futures WHERE request_type = 'SAMPLE' ORDER BY request_id"
    with sqlite3.connect(database) as connection:
        return [(json.loads(request), json.loads(answer)) for request, answer in connection.execute(query)]


def recount(samples: list[tuple[dict[str, Any], dict[str, Any]]], record: EpisodeRecord) -> None:
    """Count an episode again from the server's requests, and compare the sums with the limits and with the record."""
    expected = {}
    for agent in record.agents:
        context: tuple[int, ...] = ()
        for turn in agent.turns:
            context += turn.generation.prompt_ids
            expected[context] = (agent.agent_id, turn)
            context += turn.generation.token_ids
    generated = 0
    context_by_agent = {}
    for request, answer in samples:
        (chunk,) = request["prompt"]["chunks"]
        (sequence,) = answer["sequences"]
        agent_id, turn = expected.pop(tuple(chunk["tokens"]))
        grant = request["sampling_params"]["max_tokens"]
        assert grant == turn.facts.max_new_tokens <= LIMITS.turn_tokens
        assert tuple(sequence["tokens"]) == turn.generation.token_ids
        assert len(sequence["tokens"]) <= grant
        assert sequence["logprobs"] == pytest.approx(turn.generation.behavior_logprobs, abs=1e-6)
        generated += len(sequence["tokens"])
        tokens = len(chunk["tokens"]) + len(sequence["tokens"])
        context_by_agent[agent_id] = max(tokens, context_by_agent.get(agent_id, 0))
    assert not expected
    total = sum(context_by_agent.values())
    assert (total, generated) == (record.cost.total_tokens, record.cost.generated_tokens)
    assert total <= LIMITS.total_tokens


@pytest.mark.skipif(find_spec("skyrl") is None, reason="SkyRL is not installed; docs/export.md says how")
def test_an_episode_with_clones_is_played_and_its_rows_are_trained(server: Server) -> None:
    codec = ChatCodec(AutoTokenizer.from_pretrained(server.model))
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-none")
    client = service.create_sampling_client(base_model=str(server.model))
    policy = EnginePolicy(TinkerEngine(client, stop_ids=codec.stop_ids), codec, SamplingConfig(1.0))
    (record,) = rollout([RolloutRequest("s0.g0.e0", TASK, 0)], policy, Rules(LIMITS, HermesProtocol(), codec))
    print(record.cost)
    assert [(str(agent.agent_id), agent.reply) for agent in record.agents] == [
        ("root", "6"),
        ("root.0", "2"),
        ("root.1", "4"),
    ]
    samples = read_samples(server.database)
    assert len(samples) == record.cost.turns == 4
    recount(samples, record)

    # The same episode with a wrong answer is the other half of a group, so that the advantages are not zero.
    right = make_reward("correct").score(record)
    assert right.team_return == 1.0
    wrong = replace(right, episode_id="s0.g0.e1", reward_terms={"correct": 0.0})
    credited = build_credited_samples(
        group_episodes([right, wrong], "the test"),
        make_assigner("rloo", {}, where="options"),
        denominator=Denominator.CONSTANT,
        constant=10.0,
    )
    datums = build_datums(credited)
    trainer = service.create_lora_training_client(base_model=str(server.model), rank=4)
    outputs = trainer.forward_backward(datums, "ppo").result().loss_fn_outputs
    for datum, sample, output in zip(datums, credited.samples, outputs, strict=True):
        trained = sample.loss_mask[1:]
        logprobs = np.asarray(output["logprobs"].data)
        assert logprobs[trained] == pytest.approx(sample.behavior_logprobs[1:][trained], abs=1e-3)
        # The ratio is 1, so the loss of a token is minus its advantage, and 0 where nothing is trained.
        losses = np.asarray(output["elementwise_loss"].data)
        assert losses == pytest.approx(-np.asarray(datum.loss_fn_inputs["advantages"].data), abs=1e-4)
        assert np.any(losses)
