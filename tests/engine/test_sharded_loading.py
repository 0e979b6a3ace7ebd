"""What each process has after a model was loaded for a mesh, bit for bit against the model in one process; and how much
of the files it has read for that."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.mesh import Mesh
from burnish.engine.sharding import local, slices_of
from burnish.engine.trainable import Trainable, frozen
from burnish.models.loading import load_causal_lm, load_reward_model, load_value_model
from burnish.models.tiny import write_tiny_model

FOLDERS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "half": {"dtype": "bfloat16"},
    "of another kind": {"model_type": "gpt2", "n_inner": 128},
}
# The folder, settings of the model, and whether it is a policy, a critic or frozen.
CASES = {
    "tied": ("tied", {}, "policy"),
    "several files": ("in parts", {}, "policy"),
    "of another kind": ("of another kind", {}, "policy"),
    "rounded": ("untied", {"dtype": "bfloat16"}, "policy"),
    "half": ("half", {"dtype": "bfloat16"}, "policy"),
    "widened": ("half", {"dtype": "float32"}, "policy"),
    "adapter": ("half", {"dtype": "bfloat16", "lora_rank": 3}, "policy"),
    "critic": ("half", {"dtype": "bfloat16"}, "critic"),
    "critic, adapter": ("untied", {"lora_rank": 3}, "critic"),
    "reference": ("half", {"dtype": "bfloat16"}, "reference"),
    "reward model": ("tied", {}, "reward model"),
}
LARGE = {"hidden_size": 1024, "layers": 1}  # 70 MB


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """259 tokens and layers of 32 × 128, which 3 processes share unevenly."""
    parent = tmp_path_factory.mktemp("loading")
    found = {name: write_tiny_model(parent / name, **keys) for name, keys in FOLDERS.items()}
    found["in parts"] = parent / "in parts"
    AutoModelForCausalLM.from_pretrained(found["untied"]).save_pretrained(found["in parts"], max_shard_size="40KB")
    assert len(list(found["in parts"].glob("*.safetensors"))) > 2
    return found


def load(case, folder, device, mesh):
    _, keys, kind = CASES[case]
    model = ModelConfig(**({"path": str(folder), "dtype": "float32"} | keys))
    if kind == "reward model":
        module = load_reward_model(folder, model, device, new_head_seed=1)
    else:
        module = (load_value_model if kind == "critic" else load_causal_lm)(folder, model, device, seed=1)
    if kind in ("policy", "critic"):
        return Trainable(module, OptimConfig(), total_steps=1, model=model, mesh=mesh).masters, module
    frozen(module, model, mesh=mesh)
    return dict(module.named_parameters()), module


def shares(case, folder):
    """Rows of each tensor, the frozen ones too, with the whole buffers."""
    mesh = Mesh.of(torch.device("cpu"))
    masters, module = load(case, folder, None, mesh)
    tensors = dict(module.named_parameters()) | masters
    held = slices_of(dict(module.named_parameters()), mesh)
    tied = len({id(p) for _, p in module.named_parameters(remove_duplicate=False)}) == len(held)
    return {name: (held[name], local(tensor)) for name, tensor in tensors.items()}, dict(module.named_buffers()), tied


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("world", [2, 3])
def test_each_process_has_its_rows_of_what_one_process_has(case, world, processes, folders):
    _, keys, _ = CASES[case]
    if "lora_rank" in keys:
        pytest.importorskip("peft")
    folder = folders[CASES[case][0]]
    masters, module = load(case, folder, "cpu", None)
    wanted = dict(module.named_parameters()) | masters
    for found, buffers, tied in processes.call(world, shares, case, folder):
        assert found.keys() == wanted.keys() and tied
        for name, (held, rows) in found.items():
            assert rows.dtype == wanted[name].dtype and torch.equal(rows, wanted[name][held.start : held.stop]), name
        assert buffers.keys() == dict(module.named_buffers()).keys()
        assert all(torch.equal(buffer, module.get_buffer(name)) for name, buffer in buffers.items())


def read_of(folder, dtype):
    """The share of its file that a process has read when it has its rows."""
    model = ModelConfig(path=str(folder), dtype=dtype)
    module = load_causal_lm(folder, model, None)
    mapped = module.get_input_embeddings().weight.detach()  # as long as it is there, so is the rest
    Trainable(module, OptimConfig(), total_steps=1, model=model, mesh=Mesh.of(torch.device("cpu")))
    file = folder / "model.safetensors"
    maps = re.findall(rf"{re.escape(str(file))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    assert maps and mapped.numel()
    return sum(map(int, maps)) * 1024 / file.stat().st_size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_process_reads_the_rows_of_others(dtype, processes, tmp_path):
    """Of a folder in float32."""
    shares_read = processes.call(3, read_of, write_tiny_model(tmp_path / "large", **LARGE), dtype)
    assert max(shares_read) < 0.9, "a third each, and what the system reads ahead"
