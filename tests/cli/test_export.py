"""`burnish export`: its flags, what it prints, and errors in one line before torch is imported."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.cli.main import main
from burnish.errors import ConfigError
from burnish.export.command import parser


def test_an_export_from_the_command_line(tiny_model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(tiny_model), "--out", "my model", "--dtype", "bf16", "--max-shard-size", "50KB"]) == 0
    out, told = capsys.readouterr()
    assert "exported my model\n" in out and "Qwen2ForCausalLM, 41,408 parameters, bfloat16" in out
    assert "(allowed: 0.01 and 0.001)" in out and "from the source in float32: max 0.0" in out
    assert out.endswith("next:\n  burnish chat 'my model'\n  burnish serve 'my model'\n")
    assert told.splitlines()[-1] == "burnish: reading the export again"
    module = AutoModelForCausalLM.from_pretrained("my model")
    assert module.dtype == torch.bfloat16 and len(list(Path("my model").glob("model-*"))) > 1


def test_an_adapter_from_the_command_line(tiny_model, tmp_path, capsys):
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    config = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(tmp_path / "a")
    moved = shutil.copytree(tiny_model, tmp_path / "base")
    words = ["export", str(tmp_path / "a"), "--base", str(moved), "--out"]
    assert main([*words, str(tmp_path / "alone"), "--adapter-only"]) == 0
    out, told = capsys.readouterr()
    assert f"LoRA adapter of {moved}" in out and f"burnish export {tmp_path / 'alone'} --out FOLDER" in out
    assert f"base model: {moved} (named by --base)" in told
    assert main([*words, str(tmp_path / "merged"), "--device", "auto"]) == 0
    assert "what the adapter changes: max" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500 mb", 5 * 10**8), ("2GiB", 2**31), ("1000", 1000)]
    + [(text, None) for text in ("", "GB", "5 apples", "-1GB", "0", "0.2")],
)
def test_sizes(text, size):
    words = ["m", "--out", "x", f"--max-shard-size={text}"]
    if size:
        assert parser().parse_args(words).max_shard_bytes == size
    else:
        with pytest.raises(ConfigError, match="--max-shard-size: .*is not a size; write for example 5GB"):
            parser().parse_args(words)


def test_the_long_form(tiny_model, tmp_path):
    words = [sys.executable, "-m", "burnish.export", str(tiny_model), "--out", str(tiny_model)]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 2 and "exists and is not empty" in done.stderr
