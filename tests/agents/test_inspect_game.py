"""The game as a task of Inspect, run by its own `eval`; in the environment that has Inspect.

Each ledger is counted again from the events of Inspect's log.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.parse import quote

import numpy as np
import pytest

from selfcest_env.errors import RecordError
from selfcest_env.record import EpisodeRecord
from selfcest_env.seeding import stream_seed
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import Fault, Limits, Status

if find_spec("inspect_ai") is not None:
    import inspect_ai
    from inspect_ai.event import ModelEvent, SpanBeginEvent
    from inspect_ai.log import EvalSample, read_eval_log
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from random_texts import random_limits, random_text

    from selfcest_agents.inspect_game import read_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("inspect_ai") is None, reason="Inspect is not installed; docs/export.md says how, .ci/run does it"
    ),
]
EPISODES = int(os.environ.get("SELFCEST_INSPECT_EPISODES", "40"))
PER_TASK = 20
ROOT_FOLDER = Path(__file__).parents[2]
TASK = ROOT_FOLDER / "agents" / "selfcest_agents" / "inspect_game.py"
WORDS = WordCounter()
CHARS = 4  # of a token of the scripted model


class ScriptedModel:
    """Texts for the mock model of Inspect: random ones, or those that `write` writes from the prompt.

    A random text depends only on the seed and on the messages, since Inspect plays several samples at the same time.
    """

    def __init__(self, seed: int, *, obeys: bool = True, write: Any = None) -> None:
        self._seed = seed
        self._obeys = obeys
        self._write = write
        self.requests = 0

    def __call__(self, messages: list[Any], tools: Any, choice: Any, config: Any) -> ModelOutput:
        self.requests += 1
        if self._write is None:
            conversation = stream_seed("inspect-test", self._seed, *(message.text for message in messages))
            text = random_text(np.random.default_rng(conversation))
        else:
            text = self._write(messages[-1].text)
        reason = "stop"
        if self._obeys and len(text) > CHARS * config.max_tokens:
            text = text[: CHARS * config.max_tokens]
            reason = "max_tokens"
        tokens = math.ceil(len(text) / CHARS)
        output = ModelOutput.from_content("mockllm", text, stop_reason=reason)
        output.usage = ModelUsage(input_tokens=1, output_tokens=tokens, total_tokens=1 + tokens)
        return output


def play(model: ScriptedModel, folder: Path, limits: dict[str, Any], tasks: int = 1) -> list[EvalSample]:
    """Play tasks with Inspect's `eval`, and return the samples of the log that it has written."""
    options = {"source_options": {"phrasing": "plain"}, "num_tasks": tasks, "limits": limits, "counter": "words"}
    mock = get_model("mockllm/model", custom_outputs=model)
    # Inspect loads the file by its path, as `inspect eval` does.
    (log,) = inspect_ai.eval(f"{TASK}@delegation", task_args=options, model=mock, log_dir=str(folder), display="none")
    assert log.status == "success", log.error
    return list(read_eval_log(log.location, resolve_attachments=True).samples or [])


def recount(sample: EvalSample, limits: Limits) -> EpisodeRecord:
    """Count a sample again from the events of its log, and compare the sums with the limits and with the record."""
    record = read_record(sample.store)
    assert sample.error is None
    played = {str(agent.agent_id): agent for agent in record.agents if agent.turns}
    agent_by_span = {e.id: e.name for e in sample.events if isinstance(e, SpanBeginEvent) and e.type == "agent"}
    events_by_agent: dict[str, list[ModelEvent]] = {}
    for event in sample.events:
        if isinstance(event, ModelEvent):
            events_by_agent.setdefault(agent_by_span[event.span_id], []).append(event)
    assert set(events_by_agent) == set(played)
    total = 0
    generated = 0
    for name, events in events_by_agent.items():
        turns = played[name].turns
        assert len(events) == len(turns) <= limits.max_turns
        # The last request of an agent holds all its blocks, which the ledger prices by their words.
        blocks = [message.text for message in events[-1].input if message.role != "assistant"]
        context = sum(1 + WORDS.count_text(text) for text in blocks)
        for event, turn in zip(events, turns, strict=True):
            grant = event.config.max_tokens
            assert grant == turn.facts.max_new_tokens <= limits.turn_tokens
            # A turn over its grant is charged its grant.
            charged = min(event.output.usage.output_tokens, grant)
            assert charged == turn.facts.generated_tokens
            assert (event.output.usage.output_tokens > grant) == (turn.facts.fault is Fault.OVER_GRANT)
            generated += charged
            context += charged
        assert limits.context_tokens is None or context <= limits.context_tokens
        total += context
    assert (total, generated) == (record.cost.total_tokens, record.cost.generated_tokens)
    assert total <= limits.total_tokens
    assert limits.generated_tokens is None or generated <= limits.generated_tokens
    assert len(events_by_agent) - 1 <= record.cost.clones <= limits.max_clones
    assert record.cost.depth <= limits.max_depth
    assert sample.scores["team_return"].metadata["total_tokens"] == total
    return record


def test_no_random_episode_is_over_a_limit(tmp_path: Path) -> None:
    sums = {"episodes": 0, "agents": 0, "turns": 0, "tokens": 0, "requests": 0}
    for seed in range(max(1, EPISODES // PER_TASK)):
        limits = random_limits(np.random.default_rng(seed))
        model = ScriptedModel(seed)
        samples = play(model, tmp_path, limits, PER_TASK)
        assert len(samples) == PER_TASK
        for sample in samples:
            record = recount(sample, Limits(**limits))
            sums["agents"] += sum(1 for agent in record.agents if agent.turns)
            sums["turns"] += record.cost.turns
            sums["tokens"] += record.cost.total_tokens
        sums["episodes"] += len(samples)
        sums["requests"] += model.requests
        print(sums, flush=True)
    assert sums["requests"] == sums["turns"] > sums["agents"] > sums["episodes"] > 0


def test_inspect_eval_finds_the_task_by_the_path_of_its_file(tmp_path: Path) -> None:
    """The command of docs/export.md in a process that has not imported the task.

    The root's prompt is over its limit, so that no text is needed: the default output of the mock model has no usage,
    and Inspect would download a tokenizer to count it.
    """
    folders = (ROOT_FOLDER, ROOT_FOLDER / "agents")
    command = [
        *(
            str(Path(sys.executable).with_name("inspect")),
            "eval",
            f"{TASK}@delegation",
            "-T",
            "num_tasks=2",
            "-T",
            "limits={'total_tokens': 50}",
        ),
        *("--model", "mockllm/model", "--log-dir", str(tmp_path), "--log-format", "json", "--display", "plain"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("*.json")
    records = [read_record(sample.store) for sample in read_eval_log(str(file)).samples or []]
    assert [(record.episode_id, record.root.status) for record in records] == [
        ("1.1", Status.PROMPT_TOO_LONG),
        ("2.1", Status.PROMPT_TOO_LONG),
    ]


def write_answer(prompt: str) -> str:
    """Delegate once, then answer."""
    if "clone 1" in prompt:
        return "Answer: 4"
    if prompt in ("1+1?", "2+2?"):
        return "Answer: 2"
    return '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": ["1+1?", "2+2?"]}}</tool_call>'


def test_a_tree_is_played_scored_and_logged(tmp_path: Path) -> None:
    (sample,) = play(ScriptedModel(0, write=write_answer), tmp_path, {"total_tokens": 3000})
    record = recount(sample, Limits(total_tokens=3000))
    assert [str(agent.agent_id) for agent in record.agents] == ["root", "root.0", "root.1"]
    assert [agent.reply for agent in record.agents] == ["4", "2", "2"]
    score = sample.scores["team_return"]
    assert score.value == float(record.task.answer == "4")
    assert score.answer == "4"
    assert record.team_return == score.value
    assert record.episode_id == "1.1"  # sample and epoch
    with pytest.raises(RecordError, match="no record of selfcest"):
        read_record({})
    assert score.metadata["clones"] == 2
    assert [message.role for message in sample.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert "2" in sample.messages[3].text


def test_the_viewer_of_inspect_shows_the_agents_of_a_tree(tmp_path: Path) -> None:
    """`inspect view` serves the log that it lists, with a span for each agent and the requests in it."""
    play(ScriptedModel(0, write=write_answer), tmp_path, {"total_tokens": 3000})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inspect = str(Path(sys.executable).with_name("inspect"))
    command = [inspect, "view", "start", "--log-dir", str(tmp_path), "--host", "127.0.0.1", "--port", str(port)]

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return json.load(answer)

    process = subprocess.Popen(command, cwd=tmp_path)
    try:
        end = monotonic() + 120
        while True:
            try:
                (file,) = get("/api/log-files")["files"]
                break
            except URLError:
                assert process.poll() is None
                assert monotonic() < end
                sleep(0.5)
        (sample,) = get(f"/api/logs/{quote(file['name'], safe='')}")["samples"]
    finally:
        process.terminate()
        process.wait(30)
    agent_by_span = {event["id"]: event["name"] for event in sample["events"] if event.get("type") == "agent"}
    requests = [agent_by_span[event["span_id"]] for event in sample["events"] if event["event"] == "model"]
    assert sorted(requests) == ["root", "root", "root.0", "root.1"]


def test_a_model_that_ignores_its_grant_is_charged(tmp_path: Path) -> None:
    limits = {"turn_tokens": 12, "answer_reserve": 4, "max_turns": 3}
    model = ScriptedModel(0, obeys=False, write=lambda prompt: "Answer: " + "9 " * 40)
    (sample,) = play(model, tmp_path, limits)
    record = recount(sample, Limits(**limits))
    assert [turn.facts.fault for turn in record.root.turns] == [Fault.OVER_GRANT] * 3
    assert record.cost.generated_tokens == 36
    assert not any("9 9" in message.text for message in sample.messages[:-1])
