"""Configuration: one dataclass tree holds every key and default; Hydra composes command line and recipe into it.

`key.py` says what a key is; `data.py`, `model.py`, `actor.py`, `rollout.py`, … hold the keys of their section, and
`ppo.py`, `supervised.py` and `generation.py` the roots. On the way from a command line to a configuration:

    command.py   our own flags, the recipe that is meant; Hydra: the keys that were set, for each job
    build.py     other spellings and refused keys (aliases.py, nearest.py), types (values.py); and back to text: what is
                 printed and kept, and the recipe of a run
    load.py      the way in: `run`, `load_ppo`, `load_sft`, `load_rm`
    finalise.py  derived defaults and cross-checks (rules/), once the estimator's needs (needs.py) are known
    checks.py    files and model against the configuration
    plan.py      the arithmetic of a step and micro-batches that fit; memory.py estimates what a run takes, passes.py
                 what a pass through a model does
No file here imports torch; Hydra is imported by the functions that call it.
"""

from burnish.config.build import Loaded, explain
from burnish.config.finalise import finalise, finalise_generation, finalise_rm, finalise_sft
from burnish.config.generation import EvalConfig, GenerationConfig
from burnish.config.load import EVAL, GENERATION, PPO, RM, SFT, Schema, load, load_ppo, load_rm, load_sft, run
from burnish.config.needs import Needs
from burnish.config.ppo import PPOConfig
from burnish.config.supervised import RMConfig, SFTConfig

__all__ = [
    "EVAL",
    "GENERATION",
    "PPO",
    "RM",
    "SFT",
    "EvalConfig",
    "GenerationConfig",
    "Loaded",
    "Needs",
    "PPOConfig",
    "RMConfig",
    "SFTConfig",
    "Schema",
    "explain",
    "finalise",
    "finalise_generation",
    "finalise_rm",
    "finalise_sft",
    "load",
    "load_ppo",
    "load_rm",
    "load_sft",
    "run",
]
