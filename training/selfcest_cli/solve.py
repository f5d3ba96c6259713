"""`selfcest solve`: a policy plays one question from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.policy import SamplingConfig
from selfcest_agents.server_counts import format_server_counts, tally_requests
from selfcest_cli.live_tree import LiveRequest, LiveTree
from selfcest_cli.trace import save_page
from selfcest_env.errors import ConfigError, DataError, RecordError, SelfcestError, did_you_mean
from selfcest_env.kernel import Kernel
from selfcest_env.plugin import PlugIn, only_trusted
from selfcest_env.record import EpisodeRecord, read_episodes, write_episode
from selfcest_env.render import render_record, shorten
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.tasks import make_source
from selfcest_env.tasks.files import read_text, shorten_repr
from selfcest_env.tasks.source import ExpertSource
from selfcest_env.types import ROOT, Boundary, Limits, Read, Status, Task
from selfcest_env.views import observe
from selfcest_eval.html.playing import Renderer
from selfcest_eval.html.viewer import EpisodeView, make_viewer_page
from selfcest_eval.play.digest import digest
from selfcest_eval.play.policies import (
    ModelPolicy,
    PolicySource,
    check_servers,
    make_policy,
    parse_policy,
    run_file,
    variant_of,
)
from selfcest_training.config_file import apply_overrides, load_stored_config, parse_as
from selfcest_training.files import check_output_file, open_for_append
from selfcest_training.printing import print_text
from selfcest_training.shipped import find_model_folder

LAST_WORDS = 400  # characters that are printed of the last turn of a root without an answer
_ADVICE_BY_STATUS = {
    Status.OUT_OF_TURNS: "the root has used all its turns; raise limits.max_turns",
    Status.OUT_OF_TOKENS: "the root has used up its tokens or its context; raise limits.total_tokens or another limit",
}


# The task


def make_task(question: str, documents: Mapping[str, str], answer: str | None) -> Task:
    """Return the question as a task. Without an `answer` the task has no ground truth, and its episodes are not graded.

    Raises:
        ConfigError: the question or the answer is empty, or a text has no UTF-8 form.
    """
    for name, text in (("the question", question), ("--answer", answer)):
        if text is not None and not text.strip():
            raise ConfigError(f"{name} is {text!r}; expected a text that is not empty")
    for text in (question, answer or "", *documents, *documents.values()):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{shorten_repr(text)} is not valid Unicode at character {error.start}; remove the character"
            ) from error
    # The id depends on the question and its documents only, so the same question has the same id in every file.
    return Task(digest(question, list(documents.items()))[:16], question, answer or "", "solve", dict(documents))


def read_documents(path: Path | None) -> dict[str, str]:
    """Return texts by key from a JSON object of strings, or from a folder.

    The key of a folder's file is its path in the folder without the suffix. Without a path there are no documents.

    Raises:
        DataError: the path holds no texts, or a value that is not a text, or two texts have the same key.
    """
    if path is None:
        return {}
    documents = _read_folder(path) if path.is_dir() else _read_file(path)
    if not documents:
        raise DataError(f"{path} holds no document; expected a JSON object of texts by key, or a folder of text files")
    return documents


def _read_folder(folder: Path) -> dict[str, str]:
    documents: dict[str, str] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_dir() or any(part.startswith(".") for part in name.parts):
            continue
        key = name.with_suffix("").as_posix()
        if key in documents:
            raise DataError(f"{file} has the same key {key!r} as another file; rename one of them")
        documents[key] = read_text(file)
    return documents


def _read_file(file: Path) -> dict[str, str]:
    text = read_text(file)
    try:
        documents = json.loads(text, object_pairs_hook=_object_with_unique_keys)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not valid JSON: {error}; expected an object of texts by key") from error
    if not isinstance(documents, dict):
        raise DataError(f"{file} holds {shorten_repr(documents)}; expected an object of texts by key")
    for key, document in documents.items():
        if not isinstance(document, str):
            raise DataError(f"{file}: {key!r} is {shorten_repr(document)}; expected a text")
    return documents


def _object_with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Of equal keys, `json` would silently keep only the last."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key!r} appears twice")
        values[key] = value
    return values


# The policy and its limits


@dataclass(frozen=True)
class SolveConfig:
    """A policy and its limits. Overrides name its fields like the keys `policy` and `limits` of a study."""

    policy: PlugIn
    limits: Limits


def make_solve_config(
    policy: str | None, server: str | None, name: str | None, overrides: Sequence[str]
) -> SolveConfig:
    """Return the policy and the limits that the command line names.

    Raises:
        ConfigError: options are missing, contradict each other, or have a wrong value; the message names the option.
    """
    if policy is not None and server is not None:
        raise ConfigError(f"--policy {policy} and --server {server} exclude each other; give one of them")
    if (server is None) != (name is None):
        raise ConfigError("--server and --name are needed together: the server's URL and its name for the model")
    if policy is not None:
        plug_in, limits = _find_policy(policy)
    elif server is not None and name is not None:
        plug_in = PlugIn("server", {"server": asdict(ServerConfig(server, name))})
        limits = Limits()
    else:
        raise ConfigError(
            "no policy given: pass --policy, as in --policy delegating or a model's folder, or --server and --name"
        )
    data: dict[str, Any] = {"policy": asdict(plug_in), "limits": asdict(limits)}
    apply_overrides(data, overrides)
    return parse_as(SolveConfig, data)


def _find_policy(policy: str) -> tuple[PlugIn, Limits]:
    """Return the policy of a name and its default limits. The model of a run has the limits of its variant."""
    folder = find_model_folder(policy)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(
            f"--policy {policy} is not a model: the folder has no config.json; expected the model folder of a run, as "
            "in runs/quick/delegating/seed0/model, or a folder written by save_pretrained"
        )
    plug_in = parse_policy(policy)
    # Only the policy of a run's model has the option `folder`.
    if "folder" not in plug_in.options:
        return plug_in, Limits()
    if not folder.exists():
        raise ConfigError(
            f"--policy {policy}: there is no such folder; train first (selfcest train), or name another; a model of "
            "the hub is hub:OWNER/NAME"
        )
    return plug_in, _load_variant_limits(folder)


def _load_variant_limits(folder: Path) -> Limits:
    file = run_file(folder)
    run = load_stored_config(file)
    variant = variant_of(folder)
    if variant not in run.variants:
        raise ConfigError(
            f"--policy {folder}: {file} has no variant '{variant}'.{did_you_mean(variant, run.variants)} "
            f"Its variants are {', '.join(run.variants)}; rename the folder of the variant back"
        )
    return run.limits_of(variant)


# Playing


def play_question(
    task: Task,
    config: SolveConfig,
    *,
    temperature: float,
    seed: int,
    out: Path | None = None,
    html: Path | None = None,
    console: Console | None = None,
    progress: Console | None = None,
) -> EpisodeRecord:
    """Play one episode, print it, and append it to the file `out`. It is scored if the task has a ground truth.

    Args:
        task: task from `make_task`.
        config: policy and limits from `make_solve_config`.
        temperature: sampling temperature; 0 is greedy.
        seed: random seed of sampling.
        out: JSON-lines file of episodes; `None` to store no episode.
        html: page of the episode to write, if any.
        console: output for the episode.
        progress: output for the live tree; by default the standard error.

    Raises:
        ConfigError: an argument is wrong. It is raised before any weights are loaded.
        SelfcestError: a server failed during the episode.
    """
    console = console or Console()
    progress = progress or Console(stderr=True)
    SamplingConfig(temperature)  # raises for a wrong temperature
    if html is not None:
        check_output_file("--html", html)
    source = make_policy(config.policy.name, config.policy.options, "policy")
    rules = source.rules(config.limits)
    _check_keys(task, rules)
    for line in describe_unknown_question(task, source, rules):
        print_text(progress, f"warning: {line}")
    episode_id = f"solve.{_count_episodes(out)}"
    with progress.status("loading the policy"):
        check_servers([source])
        player = source.load(seed)
    with closing(player), LiveTree(progress) as tree, tally_requests() as tally:
        request = LiveRequest(episode_id, task, seed, config.limits, tree)
        (record,) = player.play([request], temperature, wrap=tree.wrap)
    if task.answer:
        record = make_reward("correct").score(record)
    if out is not None:
        with open_for_append(out) as lines:
            lines.write(write_episode(record).encode())
    for line in (describe_episode(record, rules), *format_server_counts(tally.take())):
        print_text(console, line)
    if html is not None:
        page = make_viewer_page(shorten(task.prompt), [EpisodeView(record)], [Renderer(rules)], [])
        save_page(page, html, 1, console)
    return record


def describe_episode(record: EpisodeRecord, rules: Rules) -> str:
    """Return the tree with its cost, the answer or the reason why there is none, and the verdict of the grader."""
    root_tokens = record.root.prompt_tokens + record.root.generated_tokens
    clone_tokens = record.cost.total_tokens - root_tokens
    lines = [render_record(record), f"root: {root_tokens} tokens, clones: {clone_tokens} tokens"]
    if record.answer is None:
        status = record.root.status
        reason = (
            _explain_long_prompt(record.task, rules) if status is Status.PROMPT_TOO_LONG else _ADVICE_BY_STATUS[status]
        )
        lines.append(f"no answer: {status}, {reason}")
        if record.root.turns:
            lines.append(f"last words: {shorten(record.root.turns[-1].generation.text, LAST_WORDS)}")
    else:
        lines.append(f"answer: {shorten(record.answer, len(record.answer))}")
    if record.reward_terms is not None:
        lines.append(f"{'right' if record.team_return else 'wrong'}: expected {shorten(record.task.answer)}")
    return "\n".join(lines)


def _explain_long_prompt(task: Task, rules: Rules) -> str:
    """Return the prompt's length, the limits that are too low, and overrides that also leave room for a turn."""
    limits = rules.limits
    opening = rules.protocol.open(Kernel(task, rules).agents[ROOT].brief)
    prompt_tokens = rules.counter.count(opening, Boundary.OPENING)
    turn_tokens = max(rules.answer_tokens, limits.turn_tokens or 0)
    # A prompt counts for the first two limits. A limit on generated tokens only has to leave room for the turn.
    counted_tokens = {"total_tokens": prompt_tokens, "context_tokens": prompt_tokens, "generated_tokens": 0}
    causes = []
    overrides = []
    for name, tokens in counted_tokens.items():
        limit = getattr(limits, name)
        if limit is not None and limit <= tokens:
            causes.append(f"limits.{name} is {limit}")
            overrides.append(f"limits.{name}={tokens + turn_tokens}")
    return (
        f"the question with its documents is a prompt of {prompt_tokens} tokens, but {' and '.join(causes)}; "
        f"add {' '.join(overrides)}"
    )


def _check_keys(task: Task, rules: Rules) -> None:
    """Raise `ConfigError` if the protocol cannot write a document's key, so that no agent could name it."""
    if not (rules.limits.delegation or rules.limits.reading):
        return  # the root sees all texts, so no agent needs a key
    for key in task.context:
        if rules.protocol.parse(rules.protocol.render(Read((key,)))) != Read((key,)):
            raise ConfigError(
                f"--documents: an agent of this policy cannot name the key {key!r}; rename it (a key of the embedded "
                "model has one character)"
            )


def describe_unknown_question(task: Task, policy: PolicySource, rules: Rules) -> list[str]:
    """Return a line if no task family that an embedded model was trained on has such questions; else no line."""
    if not isinstance(policy, ModelPolicy):
        return []
    trained_on = policy.trained_on()
    if not trained_on:
        return []
    run = load_stored_config(run_file(find_model_folder(policy.folder)))
    if run.model.name != "tiny":
        return []  # another model may understand questions that it was not trained on
    kernel = Kernel(task, rules)
    if ROOT not in kernel.ready():
        return []  # the limits leave the root no turn, which the episode itself reports
    observation = observe(kernel, ROOT)
    examples: dict[str, str] = {}
    for name, plug_in in trained_on.items():
        try:
            # The config comes with the model, and a warning is no reason to run code that it names.
            with only_trusted([]):
                source = make_source(plug_in.name, **plug_in.options)
        except (SelfcestError, OSError):
            return []  # a source whose files or code are not here may have such questions
        if not isinstance(source, ExpertSource) or source.understands(observation):
            return []
        examples[name] = shorten(source.draw(np.random.default_rng(0)).prompt)
    # Families that only prepare for those of the evaluation would make the line long.
    evaluated = {eval_set.family for eval_set in run.evaluation.eval_sets} & set(examples)
    shown = " or ".join(f"{examples[name]} ({name})" for name in examples if name in (evaluated or examples))
    return [
        f"the question {shorten(task.prompt)} is in no language that this policy has learned, so its answer means "
        f"nothing; expected a question as {shown}"
    ]


def _count_episodes(out: Path | None) -> int:
    """Return the number of episodes in the file. Raises `ConfigError` if no episode can be appended to it."""
    if out is None:
        return 0

    def refuse_cut_line(warning: str) -> None:
        # An episode that is appended to a cut line would be unreadable too.
        raise RecordError(warning)

    try:
        open_for_append(out).close()
        return sum(1 for _ in read_episodes(out, on_cut=refuse_cut_line))
    except RecordError as error:
        raise ConfigError(f"--out: {error}; name a file of episodes or a new one") from error
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error.strerror or error}); name another file") from error
