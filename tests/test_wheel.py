"""A release, installed away from the checkout: the game alone from a tag, each extra of the tag's wheel, used once."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
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
from selfcest_training.shipped import model_folder

command = Path(sys.executable).with_name("selfcest")
asked = [command, "solve", "5:[40]-[59];[20]", "--policy", "deciding", "--html", "solved.html"]
print("139" in subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout)
model, _ = load_pretrained(model_folder("deciding"))
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
