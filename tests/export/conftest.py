"""Things to export: a run folder with real checkpoints, adapters with random weights; and `export` without flags."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.export import ExportReport, ExportRequest, export
from burnish.models.loading import load_causal_lm, load_tokenizer, load_value_model
from burnish.trainer.checkpoint import CheckpointStore, link_model_files
from tests.models.helpers import shaken

IDS = torch.randint(3, 250, (2, 31), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def run(tiny_model, tmp_path_factory) -> Path:
    """A run folder as training leaves it: steps 10 and 20, actor and critic, weights unlike the model's. Read-only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    store, tokenizer = CheckpointStore(folder), load_tokenizer(tiny_model)

    def save(step: int) -> None:
        def write(checkpoint: Path) -> None:
            for role, load in (("actor", load_causal_lm), ("critic", load_value_model)):
                module = shaken(load(tiny_model, ModelConfig()), seed=step)
                Trainable(module, OptimConfig(), total_steps=1).save(checkpoint / role)
                tokenizer.save_pretrained(checkpoint / role)
            link_model_files(checkpoint, "actor")
            (checkpoint / "data").mkdir()
            (checkpoint / "data" / "trainer.json").write_text("{}")

        store.save(step, write)

    save(10)
    save(20)
    return folder


@pytest.fixture
def make_adapter(tiny_model, tmp_path):
    """Write an adapter with random weights and return its folder; options go to LoraConfig."""

    def make(name: str = "adapter", base: Path = tiny_model, *, values: bool = False, **options: Any) -> Path:
        kind = AutoModelForTokenClassification if values else AutoModelForCausalLM
        task = "TOKEN_CLS" if values else "CAUSAL_LM"
        settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": task} | options
        module = kind.from_pretrained(base, **({"num_labels": 1} if values else {}))
        shaken(get_peft_model(module, LoraConfig(**settings)), seed=5, width=0.1).save_pretrained(tmp_path / name)
        return tmp_path / name

    return make


@pytest.fixture
def go(tmp_path):
    """Export into a folder `out`; the lines that were told are in `go.told`."""

    def run_export(source: Path | str, name: str = "out", **options: Any) -> ExportReport:
        return export(ExportRequest(str(source), tmp_path / name, **options), run_export.told.append)  # type: ignore[attr-defined]

    run_export.told = []  # type: ignore[attr-defined]
    return run_export


@pytest.fixture(scope="session")
def logits():
    """Logits of a folder as a user gets them: `AutoModelForCausalLM.from_pretrained(folder)`, an adapter on top."""

    def compute(folder: Path, adapter: Path | None = None, kind: Any = AutoModelForCausalLM, **options: Any) -> Any:
        module = kind.from_pretrained(folder, **options).eval()
        if adapter:
            module = PeftModel.from_pretrained(module, adapter).eval()
        with torch.no_grad():
            return module(IDS).logits

    return compute
