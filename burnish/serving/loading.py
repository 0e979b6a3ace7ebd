"""From what was typed after `burnish serve` or `burnish chat` to a model that answers: `ModelOptions` → `ServedModel`.
What can be checked without torch or weights (folder, engine, context) is checked first.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.engines import engine_spec
from burnish.config.model import DTYPES, ModelConfig
from burnish.config.rollout import RolloutConfig
from burnish.errors import ConfigError, ModelError
from burnish.models.facts import read_model_facts
from burnish.models.folder import resolve_path
from burnish.rollout import load_engine

if TYPE_CHECKING:
    import torch

    from burnish.data.chat import ChatRenderer
    from burnish.rollout.base import RolloutEngine

CHOICE = "--engine "  # of an engine, with its name


@dataclass(frozen=True)
class ModelOptions:
    folder: str
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    engine: str = "native"
    trust_remote_code: bool = False
    escape_special_tokens: bool = False


@dataclass
class ServedModel:
    name: str
    tokenizer: Any
    engine: "RolloutEngine"
    renderer: "ChatRenderer"
    special_ids: frozenset[int]
    longest_token: int  # characters
    device: str
    dtype: str
    engine_name: str

    @property
    def context(self) -> int:
        return self.engine.context

    def facts(self) -> str:
        return f"{self.name} on {self.device} in {self.dtype}, context {self.context} tokens"


def temperature_problem(engine_name: str, temperature: float) -> str | None:
    """Why an engine cannot sample at a temperature, or None."""
    problem = engine_spec(engine_name).temperature_problem(temperature)
    return problem and f"temperature {problem}"


def check(options: ModelOptions) -> None:
    engine_spec(options.engine, CHOICE).check_installed(f"{CHOICE}{options.engine}", CHOICE)
    if options.dtype not in DTYPES:
        raise ConfigError(f"--dtype {options.dtype}: choose one of {', '.join(DTYPES)}")
    own = read_model_facts(resolve_path(options.folder)).context
    if own is not None and (options.max_model_len or 0) > own:
        raise ConfigError(f"--max-model-len {options.max_model_len}: the model's context is {own} tokens; lower it")


def load(options: ModelOptions, name: str | None = None) -> ServedModel:
    """The model behind `options`, called `name` or else after its folder."""
    check(options)
    from burnish.data.chat import ChatRenderer, special_ids
    from burnish.models.device import pick_device
    from burnish.models.loading import load_tokenizer

    device = pick_device(options.device, key="--device")
    dtype = pick_dtype(options, device)
    model = ModelConfig(
        path=options.folder, trust_remote_code=options.trust_remote_code, enable_gradient_checkpointing=False
    )
    rollout = RolloutConfig(name=options.engine, max_model_len=options.max_model_len, max_num_seqs=options.max_num_seqs)
    tokenizer = load_tokenizer(options.folder, options.trust_remote_code)
    return ServedModel(
        name=name or own_name(options.folder),
        tokenizer=tokenizer,
        renderer=ChatRenderer(tokenizer, escape=options.escape_special_tokens),
        special_ids=special_ids(tokenizer),
        # As the vocabulary writes them: no shorter than the text they stand for.
        longest_token=max(map(len, tokenizer.get_vocab())),
        device=str(device),
        dtype=dtype,
        engine_name=options.engine,
        engine=load_engine(model, tokenizer, rollout, device, dtype, CHOICE),  # last: what fails leaves no program
    )


def pick_dtype(options: ModelOptions, device: "torch.device") -> str:
    """What was asked for; `auto` is the folder's own on a GPU and float32 elsewhere."""
    if options.dtype != "auto":
        return options.dtype
    if device.type == "cpu":
        return "float32"
    file = resolve_path(options.folder, weights=False) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    text = config | config.get("text_config", {})
    own = str(text.get("dtype") or text.get("torch_dtype") or "float32").removeprefix("torch.")
    if own not in DTYPES:
        raise ModelError(f"{file}: its dtype is {own}, which cannot be run as it is; choose with --dtype bfloat16")
    return own


def own_name(folder: str) -> str:
    """A hub id as it is, a folder by its last part; `…/global_step_30/actor` is called global_step_30."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        return folder
    path = path.resolve()
    return path.parent.name if path.name == "actor" else path.name
