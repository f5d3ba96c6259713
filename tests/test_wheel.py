"""A release, installed away from the checkout: the game alone from a tag, each extra of the tag's wheel, used once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import selfcest_env

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
GAME = """
import importlib.util, selfcest_env
from selfcest_env import delegation_v0, symbolic_v0

env = delegation_v0.parallel_env("arithmetic")
env.reset(seed=42)
while env.agents:
    env.step({agent: "Answer: 42" for agent in env.agents})
print(env.team_return, selfcest_env.__version__, importlib.util.find_spec("torch"), selfcest_env.__file__)
"""


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """What a command prints, from another folder and without what this environment tells Python."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    found = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


TAG = f"v{selfcest_env.__version__}"


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed, with the tag that its release would have."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    folder = tmp_path_factory.mktemp("tagged")
    run(folder, "git", "clone", "--quiet", ROOT, "clone")
    run(folder / "clone", "git", "tag", "--force", TAG)
    return folder / "clone"


@pytest.fixture(scope="module")
def wheel(tagged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(tagged, "git", "checkout", "--quiet", TAG)
    run(tagged, sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (built,) = folder.glob("*.whl")
    assert f"-{selfcest_env.__version__}-" in built.name
    return built


def test_the_game_alone_from_a_tag_in_an_empty_environment(tagged: Path, tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-m", "venv", "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "requirements" / "dev.in")
    run(tmp_path, *pip, f"selfcest @ git+file://localhost{tagged}@{TAG}")  # older pips want a host
    team_return, version, torch, file = run(tmp_path, python, "-c", GAME).split()
    assert float(team_return) == 0.0
    assert f"v{version}" == TAG
    assert torch == "None"
    assert Path(file).is_relative_to(tmp_path)
    traced = run(
        tmp_path, python.with_name("selfcest"), "trace", ROOT / "studies" / "gallery" / "evidence" / "pays.jsonl"
    )
    assert "root" in traced
    assert "reward: " in traced


# What each extra exists for, used once. gguf and lora are of the trainer and stand on its extra; gguf is given a file
# without a model. benchmarl, cluster, rllib, trl and vllm take environments of their own, where CI has their tests;
# bench and dev are the checkout's.
EXTRAS = {
    "openai": (
        """
import json, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from selfcest_agents.openai_client import Client, ServerConfig

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.dumps({"said": 42}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = Client(ServerConfig(f"http://127.0.0.1:{server.server_port}/v1", "m"))
client.submit("asked", "chat/completions", {}, lambda answer: answer["said"])
print(client.poll())
""",
        "[('asked', 42)]",
    ),
    "math": (
        r"""
from selfcest_env.graders.math import MathMatch
from selfcest_env.types import Task

if __name__ == "__main__":  # it judges in a worker process
    print(MathMatch().grade(Task("t", "?", r"\frac{x^2 - 1}{x - 1}", "mine"), "Answer: $x + 1$").correct)
""",
        "True",
    ),
    "reasoning-gym": (
        """
import numpy as np
from selfcest_env.tasks import make_source

print(make_source("reasoning_gym", generator="spell_backward").draw(np.random.default_rng(0)).source)
""",
        "reasoning_gym",
    ),
    "hub": (
        """
from pathlib import Path
from selfcest_env.tasks.files import read_records

Path("mine/rows").mkdir(parents=True)
Path("mine/rows/data.jsonl").write_text('{"q": "1 + 1?", "a": "2"}\\n')
print([record.data for record in read_records("hub:mine/rows")])
""",
        "[{'q': '1 + 1?', 'a': '2'}]",
    ),
    "sb3": (
        """
from sb3_contrib import MaskablePPO
from selfcest_env.adapters.sb3 import SymbolicVecEnv
from selfcest_env.symbolic import make_rules

env = SymbolicVecEnv(make_rules("noisy"), 4)
print(MaskablePPO("MlpPolicy", env, n_steps=4, batch_size=8, n_epochs=1).learn(16).num_timesteps)
""",
        "16",
    ),
    "torchrl": (
        """
from selfcest_env.adapters.torchrl import SymbolicTorchEnv
from selfcest_env.symbolic import make_rules

print(tuple(SymbolicTorchEnv(make_rules("noisy"), 4).rollout(1).batch_size))
""",
        "(4, 1)",
    ),
    "train,lora,gguf,prime-rl": (
        """
import subprocess, sys
from pathlib import Path
import gguf
from selfcest_agents.lora import add_lora, has_lora
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.pretrained import convert_gguf
from selfcest_agents.tiny import load_pretrained
from selfcest_env.errors import ConfigError
from selfcest_training.export.prime_rl import read_samples, write_samples
from selfcest_training.shipped import find_model_folder

command = Path(sys.executable).with_name("selfcest")
with open("ledgers.json", "w") as file:
    file.write('{"C": "k3a7q0", "E": "k1a5q9", "F": "k8a2q4"}')
asked = [command, "solve", "?[1]C[2]E[3]F;09,20,3", "--policy", "deciding", "--documents", "ledgers.json"]
asked += ["--html", "solved.html"]
print("129" in subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout)
model, _ = load_pretrained(find_model_folder("deciding"))
add_lora(model, LoraOptions(rank=2), 0)
print(has_lora(model))
writer = gguf.GGUFWriter("empty.gguf", "llama")
for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
    write()
try:
    convert_gguf(Path("empty.gguf"), Path("cache"))
except ConfigError as error:
    print("could not be loaded by AutoTokenizer" in str(error))
write_samples(Path("samples.bin"), [])
print(read_samples(Path("samples.bin")))
""",
        "True\nTrue\nTrue\n[]",
    ),
}
OF_TORCH = ("torch", "torch-*.dist-info", "torchgen", "functorch", "nvidia*", "triton*")


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_does_its_one_thing(wheel: Path, tmp_path: Path, extra: str) -> None:
    """Torch is lent by this environment where an extra needs it, as it would be gigabytes; all else is installed."""
    run(tmp_path, sys.executable, "-m", "venv", "--without-pip", "venv")
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    if extra in ("sb3", "torchrl", "train,lora,gguf,prime-rl"):
        for pattern in OF_TORCH:
            for part in Path(sysconfig.get_path("purelib")).glob(pattern):
                (site / part.name).symlink_to(part)
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    run(tmp_path, *pip, "--constraint", ROOT / "requirements" / "dev.in", f"{wheel}[{extra}]")
    script, said = EXTRAS[extra]
    (tmp_path / "use.py").write_text(script, encoding="utf-8")
    where = run(
        tmp_path, python, "-c", "import selfcest_env, sys; print(selfcest_env.__file__, 'torch' in sys.modules)"
    )
    assert where.split() == [str(site / "selfcest_env" / "__init__.py"), "False"]
    assert run(tmp_path, python, "use.py").strip() == said


# The methods of the literature stand in the same wheel. Here they are taken out of it and packed as a package of their
# own, as if somebody else had written them.
METHODS = "selfcest_methods"
OTHER_PACKAGE = "published_methods"


def is_of_methods(line: str) -> bool:
    """Whether a line of RECORD or of the entry points is about the package of methods."""
    return line.startswith(f"{METHODS}/") or re.search(rf"= {METHODS}[.:]", line) is not None


def without_methods(wheel: Path, folder: Path) -> Path:
    """The wheel with neither the package of methods nor its entry points."""
    smaller = folder / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(smaller, "w") as rest:
        for name in whole.namelist():
            if name.startswith(f"{METHODS}/"):
                continue
            content = whole.read(name)
            if name.endswith(("/RECORD", "/entry_points.txt")):
                lines = content.decode().splitlines(keepends=True)
                content = "".join(line for line in lines if not is_of_methods(line)).encode()
            rest.writestr(name, content)
    return smaller


def methods_alone(wheel: Path, folder: Path) -> Path:
    """A wheel with another name, which has the package of methods and its entry points and nothing else."""
    other = folder / f"{OTHER_PACKAGE}-1.0-py3-none-any.whl"
    info = f"{OTHER_PACKAGE}-1.0.dist-info"
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(other, "w") as package:
        (entry_points,) = (name for name in whole.namelist() if name.endswith("/entry_points.txt"))
        modules = [name for name in whole.namelist() if name.startswith(f"{METHODS}/")]
        for name in modules:
            package.writestr(name, whole.read(name))
        lines = whole.read(entry_points).decode().splitlines(keepends=True)
        package.writestr(
            f"{info}/entry_points.txt", "".join(line for line in lines if line.startswith("[") or is_of_methods(line))
        )
        package.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {OTHER_PACKAGE}\nVersion: 1.0\n")
        package.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files = [*modules, *(f"{info}/{name}" for name in ("entry_points.txt", "METADATA", "WHEEL", "RECORD"))]
        package.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))
    return other


@pytest.fixture(scope="module")
def trainer_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel without the methods, and beneath it the libraries of this one."""
    folder = tmp_path_factory.mktemp("alone")
    run(folder, sys.executable, "-m", "venv", "--without-pip", "venv")
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    # Python ignores the .pth files of these folders, so that the checkout's editable install is not found through them.
    libraries = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    (site / "beneath.pth").write_text("\n".join(libraries), encoding="utf-8")
    install(python, without_methods(wheel, folder))
    return python


def install(python: Path, wheel: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", "--no-index")
    run(wheel.parent, *pip, "--no-deps", "--force-reinstall", wheel)


CELLS = """[
{family: ledgers, size: small, options: {min_named: 1, max_named: 1, min_length: 2, max_length: 2}},
{family: priced, size: small, options: {sizes: [3], missing: 0, wrong: 0}}]"""
SMALL_RUN = [
    *(
        f"variants.{variant}.warmstart.phases.{i}.{change}"
        for variant, phases in {"delegating": 5, "reading": 6, "deciding": 5}.items()
        for i in range(phases)
        for change in ("tokens=1600", "min_accuracy=null")
    ),
    *(
        f"variants.{variant}.warmstart.{change}"
        for variant in ("delegating", "reading", "deciding")
        for change in ("pool_tokens=1000", "tasks_at_once=1")
    ),
    *(f"variants.deciding.rl.{change}" for change in ("steps=2", "tasks_per_step=2", "group_size=2")),
    "evaluation.episodes=1",
    f"evaluation.eval_sets={CELLS}",
]


def test_the_default_run_trains_without_the_methods(trainer_alone: Path, tmp_path: Path) -> None:
    look = f"import importlib.util as u, selfcest_training as t; print(t.__file__, u.find_spec('{METHODS}'))"
    file, methods = run(tmp_path, trainer_alone, "-c", look).split()
    assert Path(file).is_relative_to(trainer_alone.parents[1])
    assert methods == "None"
    printed = run(tmp_path, trainer_alone.with_name("selfcest"), "train", *SMALL_RUN, OMP_NUM_THREADS="1")
    trained = tmp_path / "runs" / "quick"
    assert "deciding, after RL" in printed
    assert {path.parts[-3] for path in trained.glob("*/seed0/model")} == {"delegating", "reading", "deciding"}
    assert (trained / "deciding" / "seed0" / "checkpoints" / "rl_000002").is_dir()
    assert "deciding, after RL" in (trained / "table.md").read_text(encoding="utf-8")


LOAD = """
import importlib.metadata, json, sys
from selfcest_env.errors import ConfigError
from selfcest_env.reward import TERMS
from selfcest_env.tasks import SOURCES
from selfcest_eval.play.strategies import STRATEGIES
from selfcest_training.credit import SCHEMES
from selfcest_training.stages.registry import GROUP_FILTERS, REWARD_SCHEDULES, TASK_SAMPLERS

kinds = (SCHEMES, SOURCES, TASK_SAMPLERS, GROUP_FILTERS, REWARD_SCHEDULES, TERMS, STRATEGIES)
registries = {registry.group: registry for registry in kinds}
loaded = {}
for group, names in json.loads(sys.argv[1]).items():
    for name in names:
        try:
            cls = registries[group].load(name)
        except ConfigError as error:
            loaded[f"{group} {name}"] = str(error)
        else:
            (entry,) = importlib.metadata.entry_points(group=group, name=name)
            loaded[f"{group} {name}"] = f"{entry.dist.name} {entry.value == f'{cls.__module__}:{cls.__qualname__}'}"
print(json.dumps(loaded))
"""


def test_each_method_loads_from_a_package_of_its_own(trainer_alone: Path, wheel: Path, tmp_path: Path) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    plug_ins = {
        group: [name for name, reference in references.items() if reference.startswith(f"{METHODS}.")]
        for group, references in groups.items()
        if group.startswith("selfcest.")
    }
    assert any(plug_ins.values()), "no method is looked for"
    ask = (trainer_alone, "-c", LOAD, json.dumps(plug_ins))
    unknown = json.loads(run(tmp_path, *ask))
    assert [*unknown] == [f"{group} {name}" for group, names in plug_ins.items() for name in names]
    assert all(re.match(rf"unknown [a-z ]+ '{key.split()[1]}'[.;]", message) for key, message in unknown.items())
    install(trainer_alone, methods_alone(wheel, tmp_path))
    try:
        assert json.loads(run(tmp_path, *ask)) == dict.fromkeys(unknown, f"{OTHER_PACKAGE} True")
    finally:
        pip = (sys.executable, "-m", "pip", "--python", trainer_alone, "uninstall", "--quiet", "--yes")
        run(tmp_path, *pip, OTHER_PACKAGE)
