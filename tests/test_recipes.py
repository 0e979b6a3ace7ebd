"""Every recipe under recipes/ loads, fits together, says what it is, and sets nothing to its default."""

from pathlib import Path

import pytest

from burnish.algorithms.needs import needs_of
from burnish.config import RMConfig, SFTConfig, finalise, finalise_rm, finalise_sft, load_ppo, load_rm, load_sft
from burnish.config.key import keys_of, read

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
LOADERS = {"sft": load_sft, "rm": load_rm}  # by the folder of a recipe; others are for `burnish ppo`


def load(path: Path, *overrides: str):
    recipe = [f"--config-path={path.parent}", f"--config-name={path.stem}"]
    return LOADERS.get(path.parent.name, load_ppo)([*recipe, *overrides])


def test_there_are_recipes():
    names = {path.stem for path in RECIPES}
    assert {"grpo", "ppo_gae", "dr_grpo", "grpo_kl_loss", "curriculum", "chat"} <= names
    assert {"dapo", "rloo", "remax", "reinforce_plus_plus", "gspo", "cispo", "gdpo", "prime"} <= names


each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT / "recipes")))


@each_recipe
def test_a_recipe_loads_and_fits_together(path):
    model = "model.path" if path.parent.name in LOADERS else "actor_rollout_ref.model.path"
    loaded = load(path, "data.train_files=train.parquet", f"{model}=some/model")
    config = loaded.config
    if isinstance(config, SFTConfig):
        notices = finalise_sft(config, loaded.explicit)
    elif isinstance(config, RMConfig):
        notices = finalise_rm(config, loaded.explicit)
    else:
        notices = finalise(config, loaded.explicit, needs_of(config))
    unread = [notice for notice in [*loaded.notices, *notices] if notice.startswith(("no effect", "unused"))]
    assert not unread, "a recipe sets no key that nobody reads"


@each_recipe
def test_a_recipe_is_sparse_and_says_what_it_is_and_how_to_run_it(path):
    loaded = load(path)
    known = keys_of(type(loaded.config))
    assert loaded.explicit, "the recipe was not found, or is empty"
    same = [name for name in sorted(loaded.explicit) if read(loaded.config, name) == known[name].default]
    assert not same, f"{path.name} sets keys to their defaults; remove them"
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith("# ") and first.endswith("."), "the first line says what the recipe is, in a sentence"
    words = second.split()
    assert words[:2] == ["#", "burnish"] and words[2] == (path.parent.name if path.parent.name in LOADERS else "ppo")
    assert path.stem in second, "the second line is a command with the recipe"
