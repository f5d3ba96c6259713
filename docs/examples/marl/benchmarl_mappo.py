"""BenchMARL's MAPPO on the TorchRL adapter: masked shared policy, a critic that sees the whole state.

pip install -e ".[benchmarl]"    # in a checkout, in an environment of its own: BenchMARL wants an older TorchRL
python docs/examples/marl/benchmarl_mappo.py [SEED]

requirements/benchmarl.txt has the versions this was run with.
"""

import sys
import tempfile
from collections.abc import Callable

import torch
from benchmarl.algorithms import MappoConfig
from benchmarl.environments.common import TaskClass
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from torchrl.data import Composite
from torchrl.envs import EnvBase

from selfcest_env.adapters.torchrl import SymbolicTorchEnv
from selfcest_env.symbolic import make_rules


class SymbolicTask(TaskClass):
    """The symbolic game for BenchMARL; `config` holds the arguments of `make_rules`."""

    @staticmethod
    def env_name() -> str:
        return "symbolic"

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: torch.device | str
    ) -> Callable[[], EnvBase]:
        def make() -> EnvBase:
            env = SymbolicTorchEnv(make_rules(**self.config), num_envs, device=device)
            env.set_seed(seed)
            return env

        return make

    def supports_continuous_actions(self) -> bool:
        return False

    def supports_discrete_actions(self) -> bool:
        return True

    def has_render(self, env: EnvBase) -> bool:
        return False

    def max_steps(self, env: EnvBase) -> int:
        """In every joint step at least one agent plays a turn."""
        return env.rules.num_agents * env.rules.max_turns

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        return {"agents": [f"agent_{k}" for k in range(env.rules.num_agents)]}

    # BenchMARL's specs are those of one game, without the batch. What is left out is no input of a network.

    def observation_spec(self, env: EnvBase) -> Composite:
        return self._of_agents(env, "observation")

    def action_mask_spec(self, env: EnvBase) -> Composite:
        return self._of_agents(env, "action_mask")

    def action_spec(self, env: EnvBase) -> Composite:
        return env.full_action_spec_unbatched

    def state_spec(self, env: EnvBase) -> Composite:
        return Composite(state=env.full_observation_spec_unbatched["state"].clone())

    def info_spec(self, env: EnvBase) -> None:
        return None

    @staticmethod
    def _of_agents(env: EnvBase, key: str) -> Composite:
        spec = env.full_observation_spec_unbatched["agents", key].clone()
        return Composite(agents=Composite({key: spec}, shape=(env.rules.num_agents,)))


def main(seed: int = 0) -> float:
    """Train for about 30 s; returns the share of right answers in the last batch of games."""
    torch.set_num_threads(1)
    # Up to four numbers modulo three; nobody may answer for more than two of them.
    options = {"items": (2, 4), "window": 2, "modulus": 3, "splits": (2,)}
    game = {"task": "chain", "task_options": options, "max_clones": 2, "max_depth": 1}
    algorithm = MappoConfig.get_from_yaml()
    algorithm.entropy_coef, algorithm.lmbda = 0.01, 0.95
    model = MlpConfig(num_cells=[128, 128], layer_class=torch.nn.Linear, activation_class=torch.nn.ReLU)
    experiment = ExperimentConfig.get_from_yaml()
    experiment.gamma, experiment.lr, experiment.adam_eps = 1.0, 2e-3, 1e-5
    experiment.on_policy_n_envs_per_worker = 128
    experiment.on_policy_collected_frames_per_batch = 2048
    experiment.on_policy_minibatch_size, experiment.on_policy_n_minibatch_iters = 512, 4
    experiment.max_n_frames, experiment.max_n_iters = None, 60
    experiment.evaluation, experiment.loggers, experiment.create_json = False, [], False
    with tempfile.TemporaryDirectory() as folder:
        experiment.save_folder = folder
        run = Experiment(SymbolicTask("chain", game), algorithm, model, seed, experiment)
        run.run()
    # The mean over agents of what each earned, and so the team return, which is 1 for a right answer.
    return float(run.mean_return)


if __name__ == "__main__":
    print(f"success {main(*map(int, sys.argv[1:])):.3f}")
