"""The generated pages of the reference: config keys, options of plug-ins, credit schemes, commands and the game.

Every table is read from the code: names and defaults from dataclasses and signatures, descriptions from docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Annotated, Any

import typer.main
import yaml

from selfcest_agents.language import LANGUAGES
from selfcest_agents.samplers import SAMPLERS
from selfcest_baselines.__main__ import app as baselines_app
from selfcest_baselines.learner import LEARNERS
from selfcest_cli.main import PANELS
from selfcest_cli.main import app as selfcest_app
from selfcest_env import delegation_v0, symbolic_v0
from selfcest_env.graders import GRADERS
from selfcest_env.plugin import PlugIn, Registry
from selfcest_env.record import Cost
from selfcest_env.reward import TERMS
from selfcest_env.structure import describe_type, to_builtins
from selfcest_env.symbolic import make_rules, optimal_return
from selfcest_env.symbolic.tasks import COUPLINGS, TASKS
from selfcest_env.tasks import SOURCES
from selfcest_env.text.protocols import PROTOCOLS
from selfcest_env.types import Fault, Limits, Status
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.costs import COSTS
from selfcest_eval.play.policies import POLICIES
from selfcest_eval.play.strategies import STRATEGIES
from selfcest_lab import GAMES
from selfcest_training.config import RunConfig
from selfcest_training.credit import SCHEMES, find_scheme
from selfcest_training.learner.losses import LOSSES
from selfcest_training.stages.registry import GROUP_FILTERS, REWARD_SCHEDULES, TASK_SAMPLERS
from studies.runner import DOCS, Study, joined, table

FOLDER = DOCS / "reference"
GENERATED = "*This page is generated from the code: `python -m studies reference --write`.*"
REQUIRED = "required"
DEPTHS = range(7)


@dataclass(frozen=True)
class Kind:
    """A kind of plug-in.

    Attributes:
        title: heading of its section.
        registry: its plug-ins.
        key: where a plug-in is named, in Markdown.
    """

    title: str
    registry: Registry[Any]
    key: str


KINDS = (
    Kind("Task sources", SOURCES, "Config key `tasks.FAMILY`."),
    Kind("Graders", GRADERS, "Config key `reward.options.grader`."),
    Kind("Reward terms", TERMS, "Config key `reward.options.NAME`."),
    Kind("Task samplers", TASK_SAMPLERS, "Config key `variants.VARIANT.rl.task_sampler`."),
    Kind("Group filters", GROUP_FILTERS, "Config key `variants.VARIANT.rl.group_filter`."),
    Kind("Reward schedules", REWARD_SCHEDULES, "Config key `variants.VARIANT.rl.reward_schedule`."),
    Kind("Losses", LOSSES, "Config keys `variants.VARIANT.rl.loss` and `variants.VARIANT.rl.loss.terms.NAME`."),
    Kind("Models", LANGUAGES, "Config key `model`."),
    Kind("Samplers", SAMPLERS, "Config key `sampler`."),
    Kind("Prompt formats", PROTOCOLS, "Config key `model.options.protocol`, and argument of `parallel_env`."),
    Kind("Strategies", STRATEGIES, "Key `strategies.NAME` of a study."),
    Kind("Policies", POLICIES, "Keys `policy` and `strategies.NAME.policy` of a study."),
    Kind("Costs", COSTS, "Keys `costs.NAME` of a study and `evaluation.costs.NAME` of a run."),
    Kind("Symbolic tasks", TASKS, "Argument of `symbolic_v0.parallel_env`."),
    Kind("MARL learners", LEARNERS, "`selfcest bench --learner NAME` and `python -m selfcest_baselines NAME`."),
)

_RL = "variants.NAME.rl"

# By config key: the section on the plug-ins that may stand there.
PLUGINS_OF_KEY = {
    "tasks": "plugins.md#task-sources",
    "reward": "plugins.md#reward-terms",
    "model": "plugins.md#models",
    "sampler": "plugins.md#samplers",
    "evaluation.costs": "plugins.md#costs",
    f"{_RL}.task_sampler": "plugins.md#task-samplers",
    f"{_RL}.group_filter": "plugins.md#group-filters",
    f"{_RL}.reward_schedule": "plugins.md#reward-schedules",
    f"{_RL}.credit": "credit.md",
    f"{_RL}.loss.name": "plugins.md#losses",
    f"{_RL}.loss.terms.NAME.name": "plugins.md#losses",
    "costs": "plugins.md#costs",
    "policy": "plugins.md#policies",
    "strategies.NAME.name": "plugins.md#strategies",
    "strategies.NAME.policy": "plugins.md#policies",
}


# Docstrings


def read_descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions of attributes and arguments by name, from the docstrings of a class and its bases."""
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docstring = inspect.cleandoc(vars(base).get("__doc__") or "")
        section = re.search(r"^(?:Attributes|Args):\n((?: {4}.*\n?|\n)*)", docstring, re.M)
        if section:
            for names, text in re.findall(r"^ {4}(\w[\w, ]*): (.*(?:\n {5,}.*)*)", section[1], re.M):
                for name in names.split(", "):
                    descriptions[name] = " ".join(text.split())
    return descriptions


def read_members(enum: type[Enum]) -> str:
    """Return the values of an enum with the descriptions that its docstring gives, or nothing without any."""
    return "; ".join(f"{value}: {text}" for value, text in list_members(enum))


def list_members(enum: type[Enum]) -> list[tuple[str, str]]:
    """Return the values of an enum as code, each with the description that its docstring gives."""
    docstring = inspect.cleandoc(enum.__doc__ or "")
    members = re.findall(r"^( *)([A-Z_]+): (.*(?:\n\1 +.*)*)", docstring, re.M)
    return [(f"`{enum[name].value}`", " ".join(text.split()).rstrip(".")) for _, name, text in members]


def first_sentence(docstring: str | None) -> str:
    paragraph = inspect.cleandoc(docstring or "").partition("\n\n")[0]
    return re.split(r"(?<=\.)\s", " ".join(paragraph.split()), maxsplit=1)[0]


def describe_plugin(name: str, cls: type) -> str:
    """Return what a plug-in is in one sentence: of its module if the module is about it, else of its class."""
    of_module = first_sentence(sys.modules[cls.__module__].__doc__)
    is_about_it = of_module.startswith(f"`{name}`") or cls.__module__.endswith(f".tasks.{name}")
    return of_module if is_about_it else first_sentence(cls.__doc__)


# Options


@dataclass(frozen=True)
class Option:
    """An option of a class, as a table shows it.

    Attributes:
        name: its name.
        type_: its annotation.
        value: its default, or `dataclasses.MISSING`.
        meaning: its description.
    """

    name: str
    type_: Any
    value: Any
    meaning: str

    @property
    def default(self) -> str:
        return REQUIRED if self.value is dataclasses.MISSING else f"`{format_default(self.value)}`"

    @property
    def expected(self) -> str:
        """The values that it takes, in words."""
        found = find_block(self.type_)
        if found is not None and found[1] is PlugIn and not found[0]:
            return "`name` and `options`"
        text = describe_type(self.type_).replace(str(2**63), "2^63").replace("; rename it", "")
        # A protocol of the task sources; a config names one of them.
        text = re.sub(r"\b(Task|Expert|Finite|Story)Source\b", "task source", text)
        return re.sub(r"^an? ", "", text)


def list_options(cls: type) -> Iterator[Option]:
    """List the options of a plug-in or config, in the order of its constructor."""
    described: Any = getattr(cls, "Options", cls)
    descriptions = {**read_descriptions(cls), **read_descriptions(described)}
    is_config = dataclasses.is_dataclass(described)
    fields = {item.name: item for item in dataclasses.fields(described)} if is_config else {}
    hints = typing.get_type_hints(described if is_config else described.__init__, include_extras=True)
    for name, parameter in inspect.signature(described).parameters.items():
        value = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        make_default: Any = fields[name].default_factory if name in fields else dataclasses.MISSING
        if make_default is not dataclasses.MISSING:
            value = make_default()
        type_ = hints.get(name, Any)
        meaning = descriptions.get(name, "")
        if not meaning:
            raise ValueError(f"{described.__module__}:{described.__qualname__} has no description of its {name}")
        members = read_members(type_) if isinstance(type_, type) and issubclass(type_, Enum) else ""
        # In a config, `None` is written as null.
        meaning = meaning.replace("`None`", "`null`")
        yield Option(name, type_, value, f"{meaning} {members}" if members else meaning)


def format_default(value: Any) -> str:
    """Return a default as YAML in one line. A plug-in without options is its name."""
    if isinstance(value, PlugIn) and not value.options:
        return value.name
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value)  # YAML would need several lines, which end a row of the table
    text = yaml.safe_dump(to_builtins(value), default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...") or "''"


def escape(text: str) -> str:
    """Return a text as a cell of a table."""
    text = text.replace("|", "\\|")
    return text if "`" in text else text.replace("<", "&lt;")


def option_table(classes: Mapping[str, type], owner: str) -> str:
    """Return the options of plug-ins as a table. Equal options of several plug-ins are one row."""
    names_by_row: dict[tuple[str, ...], list[str]] = {}
    for name, cls in classes.items():
        for option in list_options(cls):
            row = (f"`{option.name}`", option.default, escape(option.expected), escape(option.meaning))
            names_by_row.setdefault(row, []).append(f"`{name}`")
    if not names_by_row:
        return "None of them has options."
    return table(
        [owner, "option", "default", "value", "meaning"],
        [[", ".join(names), *row] for row, names in names_by_row.items()],
    )


# Config keys


@dataclass(frozen=True)
class Block:
    """A block of a config: a dataclass at a path.

    Attributes:
        path: key of the block, empty for the whole config.
        cls: its dataclass.
        values: the defaults of its fields where they differ from those of the class; `None` if it has none.
    """

    path: str
    cls: type
    values: Any

    def rows(self) -> Iterator[list[str]]:
        for option in list_options(self.cls):
            if self.values is not None:
                option = dataclasses.replace(option, value=getattr(self.values, option.name))
            # A plug-in is a dataclass too, but its options are those of its class.
            is_block = dataclasses.is_dataclass(option.value) and not isinstance(option.value, PlugIn)
            default = "below" if is_block else option.default
            link = PLUGINS_OF_KEY.get(self.key_of(option.name))
            meaning = escape(option.meaning) + (f" [Plug-ins]({link})." if link else "")
            yield [f"`{option.name}`", default, escape(option.expected), meaning]

    def key_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def inner(self) -> Iterator[Block]:
        """List the blocks inside, and those inside of them."""
        for option in list_options(self.cls):
            found = find_block(option.type_)
            if found is None or found[1] is PlugIn:
                continue
            suffix, cls = found
            value = option.value if self.values is None else getattr(self.values, option.name)
            block = Block(self.key_of(option.name) + suffix, cls, value if isinstance(value, cls) else None)
            yield block
            yield from block.inner()


def find_block(type_: Any) -> tuple[str, type] | None:
    """Return the dataclass in an annotation, and the rest of the path to it, as in `.NAME` for a mapping."""
    origin = typing.get_origin(type_)
    args = typing.get_args(type_)
    if isinstance(type_, type) and dataclasses.is_dataclass(type_):
        return "", type_
    if origin is None or not args:
        return None
    if origin is Annotated:
        return find_block(args[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        found = find_block(args[1])
        return None if found is None else (f".NAME{found[0]}", found[1])
    if origin is tuple:
        found = find_block(args[0])
        return None if found is None else (f".N{found[0]}", found[1])
    for member in args:
        found = find_block(member)
        if found is not None:
            return found
    return None


def config_tables(cls: type, heading: str) -> Iterator[str]:
    """Return the tables of a config, one for each block."""
    whole = Block("", cls, None)
    for block in (whole, *whole.inner()):
        yield f"### {heading}{f': {block.path}' if block.path else ''}"
        yield first_sentence(block.cls.__doc__)
        yield table(["key", "default", "value", "meaning"], block.rows())


def config_page() -> str:
    return joined(
        [
            "# Config keys",
            GENERATED,
            "Every key of a config, with its default, for users who write one. In a path, `NAME` stands for a name of "
            "your choice and `N` for a number from 0. On the command line, a key is set as `key.path=value`. "
            "[Training](../training.md#configuration) explains how configs are read, and `selfcest train --dry-run` "
            "prints a whole one.",
            "## A run",
            "The config of `selfcest train`, `warmstart` and `plan`.",
            *config_tables(RunConfig, "Run"),
            "## A study",
            "The config of `selfcest evaluate`.",
            *config_tables(StudyConfig, "Study"),
        ]
    )


# Plug-ins


def plugins_page() -> str:
    parts = [
        "# Plug-ins and their options",
        GENERATED,
        "Every built-in part that a config can name, and every option of it, for users who write a config. "
        "Where a name stands, a class of yours can stand as `package.module:Class` "
        "([table](../architecture.md#to-add-something)). Credit schemes have [a page of their own](credit.md).",
    ]
    for kind in KINDS:
        classes = {name: kind.registry.load(name) for name in kind.registry}
        rows = [[f"`{name}`", escape(describe_plugin(name, cls))] for name, cls in classes.items()]
        parts += [f"## {kind.title}", f"{kind.key} Entry points: `{kind.registry.group}`."]
        parts += [table([kind.registry.what, "purpose"], rows), option_table(classes, kind.registry.what)]
    return joined(parts)


def credit_page() -> str:
    schemes = {name: find_scheme(name) for name in SCHEMES}
    rows = []
    for name, scheme in schemes.items():
        formula = " ".join(scheme.formula.split())
        rows.append([f"`{name}`", escape(formula), scheme.promise.value, escape(scheme.source)])
    return joined(
        [
            "# Credit schemes and their options",
            GENERATED,
            "Every built-in credit scheme, for users who choose one. [Credit](../credit.md) explains the notation and "
            "the promises, and how to write your own. Config key: `variants.VARIANT.rl.credit`.",
            "## Schemes",
            table(["scheme", "advantage", "promise", "source"], rows),
            "## Options",
            option_table(schemes, "scheme"),
            "## Games of the laboratory",
            "`selfcest lab --game NAME` measures schemes in these games ([The laboratory](../lab.md)).",
            table(["game", "what it has"], [[f"`{name}`", escape(game.about)] for name, game in GAMES.items()]),
        ]
    )


# The game


def rules_page() -> str:
    limits = [[f"`{option.name}`", option.default, escape(option.meaning)] for option in list_options(Limits)]
    costs = [[f"`{name}`", escape(text)] for name, text in read_descriptions(Cost).items()]
    return joined(
        [
            "# Limits, faults and costs",
            GENERATED,
            "Every limit, fault, status and cost of an episode, for users who set limits or read records. "
            "[Rules](../rules.md) explains how they work together.",
            "## Limits",
            "`null` means unlimited, and 0 means zero.",
            table(["limit", "default", "bounds"], limits),
            "## Faults",
            first_sentence(Fault.__doc__),
            table(["fault", "when"], list_members(Fault)),
            "## Statuses",
            first_sentence(Status.__doc__),
            table(["status", "meaning"], list_members(Status)),
            "## Costs",
            "Costs are computed from the record (`record.cost`) and never stored.",
            table(["cost", "meaning"], costs),
        ]
    )


def environment_page(module: ModuleType) -> str:
    """Return the docstring of a PettingZoo environment, which is a page in Markdown."""
    heading, _, text = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
    return joined([heading, GENERATED, text.partition("\n\n")[2] if text.startswith("#") else text])


def symbolic_page() -> str:
    return joined(
        [
            environment_page(symbolic_v0),
            "## Size of every task",
            "With all arguments at their defaults. Options: [symbolic tasks](plugins.md#symbolic-tasks).",
            table(["task", "agents", "actions", "observation", "state"], map(task_row, TASKS)),
            "## Value of the couplings",
            "Mean team return of `cells` with sixteen cells. Every episode costs 131 tokens.",
            table(["`coupling`", "random", "optimal", "optimal, `hidden=0.3`"], map(coupling_row, COUPLINGS)),
            "## Least limits of cells",
            table(["`cells`", "`max_clones`", "`total_tokens`", "observation", "state"], map(cells_row, (8, 16, 64))),
            "## Depth that the large deep needs",
            "Success of the best policy with 64 items, by `max_depth`. A success of 0.20 is a guess: the root may not "
            "answer its 64 items, but after a call it may answer replies that never came.",
            table(
                ["`max_clones`", "`total_tokens`", *map(str, DEPTHS)], map(depth_row, ((62, 665), (62, 664), (61, 665)))
            ),
        ]
    )


def task_row(name: str) -> list[str]:
    env = symbolic_v0.parallel_env(name, observation_mode="flat")
    agent = env.possible_agents[0]
    answers = env.rules.task.num_answers
    first, last = env.rules.first_call, env.rules.num_actions - 1
    calls = f"{first} to {last}" if last > first else f"{first}"
    actions = f"0 WAIT, 1 to {answers} ANSWER 0 to {answers - 1}, {calls} SPLIT or ASK"
    shapes = str(env.observation_space(agent).shape), str(env.state_space.shape)
    return [f"`{name}`", str(len(env.possible_agents)), actions, *shapes]


def coupling_row(coupling: str) -> list[str]:
    """Random replies are right one time in m, as the best are if all hidden parts are drawn."""
    values = []
    for hidden in (1.0, 0.0, 0.3):
        options = {"cells": 16, "coupling": coupling, "hidden": hidden}
        values.append(optimal_return(make_rules("cells", options, max_clones=16, total_tokens=131)).success)
    # Sums differ in the last bits between machines, and 0.7375 is one of them.
    rounded = [f"{round(value, 9):.3f}" if value > 0.0005 else f"{value:.1e}" for value in values]
    return [f"`{coupling}`", *rounded]


def cells_row(cells: int) -> list[str]:
    tokens = 8 * cells + 3
    env = symbolic_v0.parallel_env(
        "cells", task_options={"cells": cells}, max_clones=cells, total_tokens=tokens, observation_mode="flat"
    )
    shapes = str(env.observation_space("agent_0").shape), str(env.state_space.shape)
    return [str(cells), str(cells), str(tokens), *shapes]


def depth_row(limits: tuple[int, int]) -> list[str]:
    clones, tokens = limits
    rules = [
        make_rules("deep", {"items": 64}, max_depth=depth, max_clones=clones, total_tokens=tokens) for depth in DEPTHS
    ]
    return [str(clones), str(tokens), *(f"{optimal_return(rule).success:.2f}" for rule in rules)]


# Commands


def commands_page() -> str:
    group: Any = typer.main.get_command(selfcest_app)
    baselines: Any = typer.main.get_command(baselines_app)
    parts = [
        "# Commands",
        GENERATED,
        "Every command of `selfcest`, with an example and its options. `selfcest COMMAND --help` prints the same.",
    ]
    for panel, names in PANELS.items():
        parts.append(f"## {panel}")
        for name in names:
            command = group.commands[name]
            for path, member in list_commands(f"selfcest {name}", command):
                parts += describe_command(path, member)
    parts += ["## Without `selfcest`", *describe_command("python -m selfcest_baselines", baselines)]
    return joined(parts)


def list_commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, member in command.commands.items():
            yield from list_commands(f"{path} {name}", member)
    else:
        yield path, command


def describe_command(path: str, command: Any) -> list[str]:
    """Return the section of a command: purpose, example, arguments and options."""
    parts = [f"### {path}", inspect.cleandoc(command.help or "")]
    if command.epilog:
        parts.append(f"```bash\n{command.epilog.removeprefix('Example: ')}\n```")
    rows = []
    hints = typing.get_type_hints(command.callback)
    for parameter in command.params:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            names = f"`{parameter.name.upper()}`"
        text = parameter.help or ""
        type_ = hints[parameter.name]
        if isinstance(type_, type) and issubclass(type_, Enum):
            text += f" One of {', '.join(str(member.value) for member in type_)}."
        rows.append([names, format_parameter_default(parameter), escape(text)])
    if rows:
        parts.append(table(["option", "default", "meaning"], rows))
    return parts


def format_parameter_default(parameter: Any) -> str:
    if parameter.required:
        return REQUIRED
    # A flag is off by default, and the help of an option without a value says what that means.
    return "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"


STUDY = Study(
    page_file=FOLDER / "config.md",
    page=config_page,
    more_pages={
        FOLDER / "plugins.md": plugins_page,
        FOLDER / "credit.md": credit_page,
        FOLDER / "commands.md": commands_page,
        FOLDER / "rules.md": rules_page,
        FOLDER / "delegation_v0.md": lambda: environment_page(delegation_v0),
        FOLDER / "symbolic_v0.md": symbolic_page,
    },
)
