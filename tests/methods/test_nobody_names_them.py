"""No module outside `selfcest_methods` names one of its plug-ins, in an import, a string or a comment.

So the package can be taken out, and a method of the literature has no privilege over one of a stranger. Documentation
and configs of experiments name methods; they are no modules.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "selfcest_methods"
FOLDERS = ("selfcest_env", "agents", "training", "benchmarks", "tests/stress")
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
NAMES = {name for group in GROUPS.values() for name, reference in group.items() if reference.startswith(f"{PACKAGE}.")}
# Names of plug-ins that are also names of something else; these are looked for only where a plug-in is named.
OTHER_MEANINGS = {
    "board": "an attribute of protocols",
    "budgets": "a config key of a study",
    "dots": "a spinner of Rich",
    "scale": "an option of rewards, credit and networks",
}
_NAME = "|".join(sorted(map(re.escape, NAMES), key=len, reverse=True))
# A name in quotes, with options behind it, or as the value of a key in YAML or on the command line.
_IN_TEXT = re.compile(
    rf"""(?:[`'"] | \b(?:name|scheme|credit|gate|group_filter|task_sampler|reward_schedule)(?:[:=]\s*|\s+)["']?)
         (?P<name>{_NAME})
         (?=[`'",}}] | \s+\w+= | \s*$)""",
    re.VERBOSE | re.MULTILINE,
)


def names_of_plug_ins(source: str) -> list[str]:
    """Every mention of a plug-in of the package in a module, as `line: name`."""
    mentions = set()
    nodes = list(ast.walk(ast.parse(source)))
    for line, text in _texts(source, nodes):
        mentions |= {(line, match["name"]) for match in _IN_TEXT.finditer(text) if match["name"] not in OTHER_MEANINGS}
        if PACKAGE in text:
            mentions.add((line, PACKAGE))
    for node in _values_of_names(nodes):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split(" ")[0] in NAMES:
            mentions.add((node.lineno, node.value.split(" ")[0]))
    return [f"{line}: {name}" for line, name in sorted(mentions)]


def _texts(source: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Each string of a module in quotes, each import and each comment, with its line."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, f"'{node.value}'"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, ast.unparse(node)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _values_of_names(nodes: Sequence[ast.AST]) -> Iterator[ast.expr | None]:
    """The expressions that stand where a plug-in is named."""
    for node in nodes:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "name":
                    yield value
        elif isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if re.fullmatch(r"PlugIn|load|make|(make|find)_\w+", function):
                yield from node.args[:1]
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "name")
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr == "name" for side in sides):
                for side in sides:
                    yield from side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else (side,)
        elif isinstance(node, ast.Subscript):
            registry = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if registry.isupper():
                yield node.slice
        elif isinstance(node, ast.MatchValue):
            yield node.value


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if PACKAGE not in path.parts:
                yield path


@pytest.mark.slow
def test_no_module_names_a_method() -> None:
    mentions = [
        f"{path.relative_to(ROOT)}:{mention}"
        for path in modules()
        for mention in names_of_plug_ins(path.read_text(encoding="utf-8"))
    ]
    assert mentions == []


def test_all_packages_are_looked_at() -> None:
    looked_at = {part for path in modules() for part in path.relative_to(ROOT).parts if part.startswith("selfcest_")}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    packages = {Path(package).name for package in wheel["wheel"]["packages"]}
    assert PACKAGE in packages
    assert packages - looked_at == {PACKAGE}


def test_words_with_another_meaning_are_names_of_plug_ins() -> None:
    assert OTHER_MEANINGS.keys() <= NAMES


@pytest.mark.parametrize(
    "source",
    [
        "from selfcest_methods.hapo import Hapo",
        "import selfcest_methods.hapo as method",
        "importlib.import_module('selfcest_' 'methods.hapo')",
        "# See selfcest_methods.",
        "credit = 'hapo'",
        "credit = 'ha' 'po'",
        "credit = f'{prefix}' 'hapo'",
        "choices = ['rloo', 'hapo']",
        "if scheme in {'grpo', \"hapo\"}: pass",
        "raise ConfigError('choose a scheme without memory, as `hapo`')",
        "help = 'a scheme by name, as in --scheme hapo'",
        "specification = 'hapo std_floor=0.0'",
        "override = 'variants.deciding.rl.credit=hapo'",
        "yaml = '''\ncredit: {name: hapo, options: {std_floor: 0.05}}\n'''",
        "yaml = '''\n      name: hapo\n      options: {}'''",
        "def f():\n    '''Like `hapo`, but without a floor.'''",
        "x = 1  # as 'hapo' does",
        "spec = PlugIn('scale')",
        "spec = {'name': 'scale', 'options': {}}",
        "spec = dict(name='board')",
        "cls = STRATEGIES['scale']",
        "cls = STRATEGIES.load('board', where)",
        "strategy = make_strategy('scale', {}, where)",
        "if spec.name == 'scale': pass",
        "if spec.name in ('rloo', 'scale'): pass",
        "match spec.name:\n    case 'scale': pass",
    ],
)
def test_a_name_is_noticed(source: str) -> None:
    assert len(names_of_plug_ins(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "critic = Critic()  # The critic learns before the credit is given.",
        "'''Rows are aligned by key; branches share a prompt.'''",
        "price = {'name': 'token_cost', 'price': 0.4, 'scale': 100.0}",
        "spinner = Spinner('dots')",
        "tag = 'scale'",
        "import selfcest_env.delegation_v0",
        "text = 'no budgets are left for this planner'",
        "credit = 'rloo'",
    ],
)
def test_a_word_is_no_name(source: str) -> None:
    assert names_of_plug_ins(source) == []
