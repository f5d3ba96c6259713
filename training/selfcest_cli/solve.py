"""`selfcest solve`: a policy on one question of one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.policy import SamplingConfig
from selfcest_agents.server_counts import server_lines, tallied
from selfcest_cli.live_tree import LiveRequest, LiveTree
from selfcest_cli.trace import check_place, save_page
from selfcest_env.errors import ConfigError, DataError, RecordError, did_you_mean
from selfcest_env.kernel import Kernel
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeRecord, read_episodes, write_episode
from selfcest_env.render import render_record, shorten
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.tasks.files import read_text, shorten_repr
from selfcest_env.types import ROOT, Boundary, Limits, Read, Status, Task
from selfcest_eval.html.playing import Renderer
from selfcest_eval.html.viewer import EpisodeView, viewer_page
from selfcest_eval.play.digest import digest
from selfcest_eval.play.policies import check_servers, make_policy, policy_named, run_file, variant_of
from selfcest_training.config_file import apply_override, load_stored_config, parse_as
from selfcest_training.files import open_for_append
from selfcest_training.shipped import model_folder

LAST_WORDS = 400  # characters of what a root without an answer said last
_ENDINGS = {
    Status.OUT_OF_TURNS: "the root has had its turns (limits.max_turns)",
    Status.OUT_OF_TOKENS: "the root's account or context is used up (limits.total_tokens and others)",
}


# What is asked


def task_of(question: str, documents: Mapping[str, str], answer: str | None) -> Task:
    """The question as a task. Without an `answer` its ground truth is empty, and its episodes are never graded.

    Raises `ConfigError` for an empty question or answer, or a text that UTF-8 cannot write.
    """
    for what, text in (("the question", question), ("--answer", answer)):
        if text is not None and not text.strip():
            raise ConfigError(f"{what} is {text!r}; expected a text that is not empty")
    for text in (question, answer or "", *documents, *documents.values()):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{shorten_repr(text)} is no valid Unicode at character {error.start}") from error
    return Task(digest(question, list(documents.items()))[:16], question, answer or "", "solve", dict(documents))


def read_documents(path: Path | None) -> dict[str, str]:
    """Texts by key: a JSON object of strings, or a folder's files by their paths in it, without suffix.

    Raises:
        DataError: nothing there, no such object, a file that is no text, or two texts with one key.
    """
    if path is None:
        return {}
    documents = _of_folder(path) if path.is_dir() else _of_file(path)
    if not documents:
        raise DataError(f"{path} holds no document; expected a JSON object of texts by key, or a folder of text files")
    return documents


def _of_folder(folder: Path) -> dict[str, str]:
    documents: dict[str, str] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_dir() or any(part.startswith(".") for part in name.parts):
            continue
        key = name.with_suffix("").as_posix()
        if key in documents:
            raise DataError(f"{file}: another file's key is {key!r} too; rename one of them")
        documents[key] = read_text(file)
    return documents


def _of_file(file: Path) -> dict[str, str]:
    text = read_text(file)
    try:
        documents = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not valid JSON: {error}; expected an object of texts by key") from error
    if not isinstance(documents, dict):
        raise DataError(f"{file} holds {shorten_repr(documents)}; expected an object of texts by key")
    for key, document in documents.items():
        if not isinstance(document, str):
            raise DataError(f"{file}: {key!r} is {shorten_repr(document)}; expected a text")
    return documents


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which Python would keep the last of equal keys and say nothing."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


# Who plays


@dataclass(frozen=True)
class SolveConfig:
    """Who plays under which limits: the keys `policy` and `limits` of a study, which overrides change."""

    policy: PlugIn
    limits: Limits


def solve_config(policy: str | None, server: str | None, name: str | None, overrides: Sequence[str]) -> SolveConfig:
    """What the command line names. Raises `ConfigError` that says which option cannot be right, and why."""
    if policy is not None and server is not None:
        raise ConfigError(f"both --policy {policy} and --server {server} would play; give one of them")
    if (server is None) != (name is None):
        raise ConfigError("--server and --name belong together: the server's URL, and its name for the model")
    if policy is not None:
        who, limits = _named(policy)
    elif server is not None and name is not None:
        who, limits = PlugIn("server", {"server": asdict(ServerConfig(server, name))}), Limits()
    else:
        raise ConfigError("nobody plays; give --policy, as delegating or a model's folder, or --server and --name")
    data: dict[str, Any] = {"policy": asdict(who), "limits": asdict(limits)}
    for override in overrides:
        apply_override(data, override)
    return parse_as(SolveConfig, data)


def _named(policy: str) -> tuple[PlugIn, Limits]:
    """The policy, and the limits that it plays under unless told otherwise: a run's model those of its variant."""
    place = model_folder(policy)
    if place.is_dir() and not (place / "config.json").is_file():
        raise ConfigError(
            f"--policy {policy} is no model: the folder has no config.json; expected the model folder of a run, as "
            "runs/quick/delegating/seed0/model, or what save_pretrained writes"
        )
    named = policy_named(policy)
    if "folder" not in named.options:
        return named, Limits()
    if not place.exists():
        raise ConfigError(
            f"--policy {policy}: there is no such folder; train first (selfcest train), or name another; a model of "
            "the hub is hub:OWNER/NAME"
        )
    return named, _variant_limits(place)


def _variant_limits(folder: Path) -> Limits:
    file = run_file(folder)
    run, variant = load_stored_config(file), variant_of(folder)
    if variant not in run.variants:
        raise ConfigError(
            f"--policy {folder}: {file} has no variant '{variant}' ({', '.join(run.variants)})."
            f"{did_you_mean(variant, run.variants)}"
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
    """Play one episode, print it, and add it to the file `out`. It is scored if the task has a ground truth.

    Args:
        html: where the page of the episode goes, if anywhere.
        console: where the episode is printed.
        progress: where it is shown while it is played; by default the standard error.

    Raises:
        SelfcestError: before any weights are loaded, for whatever cannot be right; later, what a server does wrong.
    """
    console, progress = console or Console(), progress or Console(stderr=True)
    SamplingConfig(temperature)  # which raises
    if html is not None:
        check_place("--html", html)
    source = make_policy(config.policy.name, config.policy.options, "policy")
    rules = source.rules(config.limits)
    _check_keys(task, rules)
    episode_id = f"solve.{_count(out)}"
    with progress.status("loading the policy"):
        check_servers([source])
        player = source.load(seed)
    with closing(player), LiveTree(progress) as tree, tallied() as tally:
        request = LiveRequest(episode_id, task, seed, config.limits, tree)
        (record,) = player.play([request], temperature, wrap=tree.over)
    if task.answer:
        record = make_reward("correct").score(record)
    if out is not None:
        with open_for_append(out) as lines:
            lines.write(write_episode(record).encode())
    for line in (describe(record, rules), *server_lines(tally.take())):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if html is not None:
        page = viewer_page(shorten(task.prompt), [EpisodeView(record)], [Renderer(rules)], [])
        save_page(page, html, 1, console)
    return record


def describe(record: EpisodeRecord, rules: Rules) -> str:
    """The tree with its cost, the answer or why there is none, and whether it is right if that can be known."""
    root = record.root.prompt_tokens + record.root.generated_tokens
    lines = [render_record(record), f"root: {root} tokens, clones: {record.cost.total_tokens - root} tokens"]
    if record.answer is None:
        status = record.root.status
        why = _too_long(record.task, rules) if status is Status.PROMPT_TOO_LONG else _ENDINGS[status]
        lines.append(f"no answer: {status}, {why}")
        lines += [f"last words: {shorten(turn.generation.text, LAST_WORDS)}" for turn in record.root.turns[-1:]]
    else:
        lines.append(f"answer: {shorten(record.answer, len(record.answer))}")
    if record.reward_terms is not None:
        lines.append(f"{'right' if record.team_return else 'wrong'}: expected {shorten(record.task.answer)}")
    return "\n".join(lines)


def _too_long(task: Task, rules: Rules) -> str:
    """What the root's prompt needs, which limits it is over, and overrides that also leave room for a turn."""
    limits, opening = rules.limits, rules.protocol.open(Kernel(task, rules).agents[ROOT].brief)
    tokens = rules.counter.count(opening, Boundary.OPENING)
    turn = max(rules.answer_tokens, limits.turn_tokens or 0)
    prompts = {"total_tokens": tokens, "context_tokens": tokens, "generated_tokens": 0}  # that each limit counts
    over = {name: limit for name in prompts if (limit := getattr(limits, name)) is not None and limit <= prompts[name]}
    found = " and ".join(f"limits.{name} is {limit}" for name, limit in over.items())
    lifted = " ".join(f"limits.{name}={prompts[name] + turn}" for name in over)
    return f"the question with its documents is a prompt of {tokens} tokens, but {found}; add {lifted}"


def _check_keys(task: Task, rules: Rules) -> None:
    """A key that the protocol cannot write names other documents, or none."""
    if not (rules.limits.delegation or rules.limits.reading):
        return  # the root sees all texts
    for key in task.context:
        if rules.protocol.parse(rules.protocol.render(Read((key,)))) != Read((key,)):
            raise ConfigError(
                f"--documents: an agent of this policy cannot name the key {key!r}; rename it, for the embedded model "
                "to one character"
            )


def _count(out: Path | None) -> int:
    """Episodes that the file holds. Raises `ConfigError` if nothing could be added to it."""
    if out is None:
        return 0

    def refuse(cut: str) -> None:  # what is added to half a line is lost with it
        raise RecordError(cut)

    try:
        open_for_append(out).close()
        return sum(1 for _ in read_episodes(out, on_cut=refuse))
    except RecordError as error:
        raise ConfigError(f"--out: {error}; name a file of episodes or a new one") from error
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error.strerror or error}); name another file") from error
