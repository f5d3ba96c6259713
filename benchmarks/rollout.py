"""What the game costs: a whole delegation rollout against a bare loop that sends an engine the same requests.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/rollout.py [--engine vllm] [--model tiny] [--peer]

Ledger tasks with keyed documents. An untrained model would call nobody, so a script plays: the engine generates as many
ids as the script wrote, and these are then replaced by the script's. The bare loop has the requests of that rollout
ready, contexts, lengths and seeds, and sends each as soon as those it waited for are done. Both start with nothing
cached. Rates are generated ids per second of CPU time of this process; their ratio is the median over repeats, rollout
and bare loop in turn. Of the same rollouts the share of CPU time outside of the engine is printed too, which other work
on the machine moves less. Ends with status 1 where the ratio is below what is asked for.

`--peer` adds transformers' own `generate` on the same prompts, as TRL's GRPOTrainer calls it: batches padded on the
left, of all requests that wait for equally many others, each decoded to its longest; only what was asked for counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import PreTrainedModel

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agents")]  # the environment of vLLM does not install the project

from selfcest_agents.codec import Codec, TerseCodec  # noqa: E402
from selfcest_agents.engine import Completion, FailedRequest, TokenRequest, TrainableEngine  # noqa: E402
from selfcest_agents.policy import EnginePolicy, SamplingConfig, ScriptedPolicy  # noqa: E402
from selfcest_agents.pretrained import ChatLanguage  # noqa: E402
from selfcest_agents.rollout import RolloutRequest, rollout  # noqa: E402
from selfcest_agents.scripted import OracleActor  # noqa: E402
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny  # noqa: E402
from selfcest_agents.transformers.engine import TransformersEngine  # noqa: E402
from selfcest_agents.vllm_engine import VllmEngine, VllmOptions  # noqa: E402
from selfcest_env.record import EpisodeRecord  # noqa: E402
from selfcest_env.rules import Rules  # noqa: E402
from selfcest_env.tasks.ledger_qa import LedgerQA  # noqa: E402
from selfcest_env.text.terse import TerseProtocol  # noqa: E402
from selfcest_env.types import FinishReason, Limits, TurnKey  # noqa: E402

ASKED = {"transformers": 0.90, "vllm": 0.95}  # of a language model; the tiny one is reported only
SOURCE = LedgerQA(min_documents=8, max_documents=8, min_named=3, max_named=3)
LIMITS = Limits(total_tokens=4000, context_tokens=1500, turn_tokens=256)


@dataclass(frozen=True)
class Game:
    """What is played, and with which model."""

    source: LedgerQA
    codec: Codec
    rules: Rules
    model: PreTrainedModel

    @classmethod
    def tiny(cls) -> Game:
        codec = TerseCodec(TinyTokenizer())
        limits = replace(LIMITS, context_tokens=TinyConfig().max_positions, turn_tokens=64)
        return cls(SOURCE, codec, Rules(limits, TerseProtocol(), codec), build_tiny(TinyConfig(), 0))

    @classmethod
    def smollm2(cls, language: ChatLanguage) -> Game:
        return cls(replace(SOURCE, phrasing="plain"), language.codec, language.rules(LIMITS), language.load(0))


@dataclass(frozen=True)
class Plan:
    """What the script wrote, and what waits for what.

    Attributes:
        token_ids: of every turn, by its key.
        waits_for: keys of the turns that must be over before a turn begins.
    """

    token_ids: Mapping[str, tuple[int, ...]]
    waits_for: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, records: Iterable[EpisodeRecord]) -> Plan:
        token_ids: dict[str, tuple[int, ...]] = {}
        waits_for: dict[str, set[str]] = {}
        for record in records:
            for key, turn in record.turns():
                token_ids[str(key)] = turn.generation.token_ids
                before = waits_for.setdefault(str(key), set())
                if key.turn:
                    before.add(str(TurnKey(key.episode_id, key.agent_id, key.turn - 1)))
            for agent in record.agents:
                if agent.parent_id is None or agent.born_at is None or not agent.turns:
                    continue
                first, last = (TurnKey(record.episode_id, agent.agent_id, t) for t in (0, len(agent.turns) - 1))
                waits_for[str(first)].add(str(TurnKey(record.episode_id, agent.parent_id, agent.born_at)))
                joined = str(TurnKey(record.episode_id, agent.parent_id, agent.born_at + 1))
                waits_for.setdefault(joined, set()).add(str(last))
        assert waits_for.keys() == token_ids.keys()
        return cls(token_ids, {key: frozenset(before) for key, before in waits_for.items()})

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_ids.values()))


class Prompted:
    """An `Engine` that lets another do the work and then says what was planned; it keeps the requests it sent.

    Attributes:
        sent: requests by their keys.
        seconds: CPU time of the other engine.
    """

    def __init__(self, engine: TrainableEngine, plan: Plan) -> None:
        self.sent: dict[str, TokenRequest] = {}
        self.seconds = 0.0
        self._engine = engine
        self._plan = plan
        self.policy_version = engine.policy_version

    @property
    def pending(self) -> int:
        return self._engine.pending

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        planned = self._plan.token_ids
        sent = [replace(request, max_new_tokens=len(planned[request.key])) for request in requests]
        self.sent |= {request.key: request for request in sent}
        start = time.process_time()
        self._engine.submit(sent)
        self.seconds += time.process_time() - start

    def poll(self) -> list[Completion]:
        start = time.process_time()
        results = self._engine.poll()
        self.seconds += time.process_time() - start
        completions: list[Completion] = []
        for result in results:
            if isinstance(result, FailedRequest):
                raise result.error
            planned = self._plan.token_ids[result.key]
            completions.append(replace(result, token_ids=planned, finish_reason=FinishReason.STOP))
        return completions

    def cancel(self, keys: Iterable[str]) -> None:
        self._engine.cancel(keys)


def bare(
    engine: TrainableEngine, requests: Mapping[str, TokenRequest], waits_for: Mapping[str, frozenset[str]]
) -> None:
    """Send every request as soon as it may go."""
    left = {key: len(before) for key, before in waits_for.items()}
    followers: dict[str, list[str]] = {key: [] for key in waits_for}
    for key, before in waits_for.items():
        for each in before:
            followers[each].append(key)
    engine.submit([requests[key] for key, count in left.items() if not count])
    while engine.pending:
        free = []
        for completion in engine.poll():
            for key in followers[completion.key]:
                left[key] -= 1
                if not left[key]:
                    free.append(requests[key])
        if free:
            engine.submit(free)


def generate(model: PreTrainedModel, requests: Mapping[str, TokenRequest], plan: Plan) -> None:
    """transformers' own generation, wave by wave."""
    done: set[str] = set()
    while wave := [key for key, before in plan.waits_for.items() if key not in done and before <= done]:
        contexts = [requests[key].context_ids for key in wave]
        width = max(map(len, contexts))
        new = max(requests[key].max_new_tokens for key in wave)
        ids = torch.tensor([[*[0] * (width - len(context)), *context] for context in contexts])
        mask = torch.tensor([[*[0] * (width - len(context)), *[1] * len(context)] for context in contexts])
        sampling = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "use_cache": True}
        # Transformers types `generate` for a class that exists in type checks only.
        output = model.generate(  # type: ignore[operator]
            ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, pad_token_id=0, **sampling
        )
        assert output.shape == (len(wave), width + new)
        done.update(wave)


def context_ids(record: EpisodeRecord) -> list[Sequence[int]]:
    return [agent.context_ids for agent in record.agents]


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def forget(engine: TrainableEngine, model: PreTrainedModel) -> None:
    """Leave nothing cached, and everything else warm."""
    engine.load_weights(model.named_parameters(), engine.policy_version + 1)
    engine.submit([TokenRequest("warm", (1, 2, 3), 2, 0)])
    while engine.pending:
        engine.poll()


def compare(engine: TrainableEngine, game: Game, num_episodes: int, group_size: int, repeats: int, peer: bool) -> float:
    """Print rates, and return the median ratio of the rollout's to the bare loop's."""
    rng = np.random.default_rng(0)
    tasks = [game.source.draw(rng) for _ in range(-(-num_episodes // group_size))]
    work = [RolloutRequest(f"e{i}", tasks[i // group_size], i) for i in range(num_episodes)]
    script = ScriptedPolicy(OracleActor(game.source, game.rules.protocol), game.codec)
    played = rollout(work, script, game.rules)
    plan = Plan.of(played)
    num_turns = len(plan.token_ids)
    tokens = plan.num_tokens
    print(f"{num_episodes} episodes, {num_turns} turns, {tokens} ids to generate", flush=True)
    ratios = []
    requests: dict[str, TokenRequest] = {}
    for repeat in range(repeats):
        forget(engine, game.model)
        prompted = Prompted(engine, plan)
        policy = EnginePolicy(prompted, game.codec, SamplingConfig(1.0))
        records: list[EpisodeRecord] = []
        seconds = cpu_seconds(lambda: records.extend(rollout(work, policy, game.rules)))  # noqa: B023
        ours = tokens / seconds
        assert list(map(context_ids, records)) == list(map(context_ids, played)), "another game was played"
        requests = prompted.sent
        forget(engine, game.model)
        plain = tokens / cpu_seconds(lambda: bare(engine, requests, plan.waits_for))  # noqa: B023
        ratios.append(ours / plain)
        outside = 1 - prompted.seconds / seconds
        print(
            f"repeat {repeat}: rollout {ours:.0f}, bare {plain:.0f} ids per CPU-second, ratio {ratios[-1]:.3f}; "
            f"{outside:.2%} of the rollout outside of the engine",
            flush=True,
        )
    if peer:
        rate = tokens / cpu_seconds(lambda: generate(game.model, requests, plan))
        print(f"transformers' generate, as TRL calls it: {rate:.0f} ids per CPU-second")
    return median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(ASKED), default="transformers")
    parser.add_argument("--model", choices=["smollm2", "tiny"], default="smollm2")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="dtype of SmolLM2")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=1, help="episodes per task, as in a step of RL")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", action="store_true", help="also measure the generate of transformers")
    options = parser.parse_args()
    if options.model == "tiny" and options.engine == "vllm":
        parser.error("the tiny model has no folder for vLLM to load; use --engine transformers")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    language = ChatLanguage("smollm2", dtype=options.dtype) if options.model == "smollm2" else None
    game = Game.tiny() if language is None else Game.smollm2(language)
    engine: TrainableEngine
    if options.engine == "vllm":
        assert language is not None
        asked = VllmOptions(options.dtype, max_positions=LIMITS.context_tokens, block_size=32)
        engine = VllmEngine(language.checkpoint, stop_ids=(), options=asked)
    else:
        engine = TransformersEngine(game.model, stop_ids=(), prefix_tokens=16384 if language else 0)
    ratio = compare(engine, game, options.episodes, options.group_size, options.repeats, options.peer)
    if isinstance(engine, VllmEngine):
        engine.close()
    asked_for = ASKED[options.engine] if language else None
    print(f"median ratio {ratio:.3f}" + (f", asked for: at least {asked_for}" if asked_for else ""))


if __name__ == "__main__":
    main()
