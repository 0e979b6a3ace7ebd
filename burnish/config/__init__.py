"""Configuration: one dataclass tree holds every key and default; Hydra composes command line and recipe into it.

`key.py` says what a key is; `data.py`, `model.py`, `actor.py`, `rollout.py`, … hold the keys of their section, and
`ppo.py`, `sft.py`, `rm.py`, `generation.py` and `evaluation.py` the roots. On the way from a command line to a
configuration:

    command.py   our own flags, the recipe that is meant, overrides as Hydra takes them
    compose.py   Hydra: the keys that were set, for each job
    build.py     other spellings (aliases.py), refused keys (unsupported.py, nearest.py), types (values.py)
    load.py      the way in: `run`, `load_ppo`, `load_sft`, `load_rm`
    finalise.py  derived defaults and cross-checks (rules/), once the estimator's needs (needs.py) are known
    checks.py    files and model against the configuration
    plan.py      the arithmetic of a step and micro-batches that fit; memory.py estimates what a run takes, passes.py
                 what a pass through a model does
    explain.py   what is printed and kept, and the recipe of a run

No file here imports torch; Hydra is imported by the functions that call it.
"""

from burnish.config.checks import check_files, check_model
from burnish.config.evaluation import EvalConfig
from burnish.config.explain import explain, to_recipe, to_yaml
from burnish.config.finalise import finalise, finalise_generation, finalise_rm, finalise_sft
from burnish.config.generation import GenerationConfig
from burnish.config.load import (
    EVAL,
    GENERATION,
    PPO,
    RM,
    SFT,
    Flags,
    Loaded,
    Schema,
    load,
    load_ppo,
    load_rm,
    load_sft,
    run,
)
from burnish.config.memory import estimate_memory
from burnish.config.needs import Needs
from burnish.config.plan import plan_micro_batch, plan_micro_batches, plan_numbers, plan_table, total_steps
from burnish.config.ppo import PPOConfig
from burnish.config.rm import RMConfig
from burnish.config.sft import SFTConfig

__all__ = [
    "EVAL",
    "GENERATION",
    "PPO",
    "RM",
    "SFT",
    "EvalConfig",
    "Flags",
    "GenerationConfig",
    "Loaded",
    "Needs",
    "PPOConfig",
    "RMConfig",
    "SFTConfig",
    "Schema",
    "check_files",
    "check_model",
    "estimate_memory",
    "explain",
    "finalise",
    "finalise_generation",
    "finalise_rm",
    "finalise_sft",
    "load",
    "load_ppo",
    "load_rm",
    "load_sft",
    "plan_micro_batch",
    "plan_micro_batches",
    "plan_numbers",
    "plan_table",
    "run",
    "to_recipe",
    "to_yaml",
    "total_steps",
]
