"""A checkpoint of a model holds the parts that were asked for, reads back to the bit, and trusts no file."""

import logging
import os
import pickle
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from burnish.algorithms.tally import part_of_sum
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.trainable import Trainable
from burnish.errors import CheckpointError
from burnish.models.lora import add_adapter
from tests.engine.updating import update as update_of
from tests.models.helpers import edit_json

TENSOR_FILES = ("masters.safetensors", "optimizer.safetensors", "rng.safetensors")
STATE_FILES = {*TENSOR_FILES, "engine.json"}


@pytest.fixture
def make(model_folder):
    def make(dtype=torch.float32, lora=False, device="cpu", **settings):
        module = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
        if lora:
            add_adapter(module, ModelConfig(**{"path": str(model_folder), "lora_rank": 2} | settings), seed=1)
        return Trainable(module, OptimConfig(lr=1e-2), total_steps=6, device=device)

    return make


@pytest.fixture
def step(batch):
    """One update that needs no forward pass: every weight moves towards 0.1."""

    def update(trainable):
        def loss_fn(rows):
            loss = sum((p.float() - 0.1).square().sum() for p in trainable.parameters.values())
            return loss, {"n": part_of_sum(torch.ones(()))}

        return update_of(trainable, batch, loss_fn, MicroBatch())

    return update


@pytest.fixture
def unchanged(make, step, tmp_path):
    """A trainable with a checkpoint in tmp_path and an update past it; afterwards that update must still be there."""
    trainable = make()
    step(trainable)
    trainable.save(tmp_path)
    step(trainable)
    masters = {name: p.clone() for name, p in trainable.masters.items()}
    moments = {name: trainable.optimizer.state[p]["exp_avg"].clone() for name, p in trainable.masters.items()}
    noise = torch.get_rng_state()
    yield trainable
    assert all(m.equal(masters[name]) for name, m in trainable.masters.items()) and trainable.step == 2
    assert all(trainable.optimizer.state[p]["exp_avg"].equal(moments[n]) for n, p in trainable.masters.items())
    assert noise.equal(torch.get_rng_state())


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_part_has_its_files(make, step, tmp_path):
    trainable = make()
    step(trainable)
    expected = {
        ("model", "optimizer", "extra"): STATE_FILES,
        ("model", "optimizer", "extra", "hf_model"): STATE_FILES,
        ("model",): {"masters.safetensors", "engine.json"},
        ("model", "optimizer"): STATE_FILES - {"rng.safetensors"},
        ("model", "extra"): STATE_FILES - {"optimizer.safetensors"},
        ("hf_model",): {"engine.json"},
    }
    for contents, files in expected.items():
        folder = tmp_path / "-".join(contents)
        trainable.save(folder, contents)
        assert {path.name for path in folder.iterdir()} & STATE_FILES == files
        loaded = AutoModelForCausalLM.from_pretrained(folder)  # the model itself is always there
        assert all(p.equal(trainable.parameters[name]) for name, p in loaded.named_parameters())
    moments = load_file(tmp_path / "model-optimizer" / "optimizer.safetensors")
    assert {key.partition(".")[0] for key in moments} == {"step", "exp_avg", "exp_avg_sq"}


def test_only_the_parts_that_are_asked_for_are_read_and_a_missing_one_is_named(make, step, tmp_path, caplog):
    trainable = make()
    step(trainable)
    trainable.save(tmp_path)
    for name in ("optimizer.safetensors", "rng.safetensors"):
        (tmp_path / name).write_bytes(b"not read")
    other = make()
    torch.manual_seed(3)
    expected = torch.random.get_rng_state()
    with caplog.at_level(logging.WARNING):
        other.load(tmp_path, ["model"])
    assert all(m.equal(trainable.masters[name]) for name, m in other.masters.items())
    assert not other.optimizer.state and other.step == 0 and torch.random.get_rng_state().equal(expected)
    assert "part optimizer (checkpoint.load_contents): the optimiser's moments start from scratch" in caplog.text
    assert "without its part extra" in caplog.text
    step(other)
    assert {float(moments["step"]) for moments in other.optimizer.state.values()} == {1.0}
    other.load(tmp_path, ["model"])
    assert not other.optimizer.state, "moments that are not read are forgotten"
    trainable.save(tmp_path / "weights", ["model", "extra"])
    with pytest.raises(CheckpointError) as error:
        trainable.load(tmp_path / "weights")
    assert "has no part optimizer, which checkpoint.load_contents=[model,optimizer,extra] asks for" in str(error.value)
    assert "Set checkpoint.load_contents=[model,extra]: the optimiser's moments start from scratch" in str(error.value)
    trainable.load(tmp_path / "weights", ["model", "extra"])

    trainable.save(tmp_path / "hf", ["hf_model"])
    with pytest.raises(CheckpointError, match=r"no part model .*save_contents=\[hf_model\].*trainer.experiment_name"):
        trainable.load(tmp_path / "hf", ["model"])


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_captured_is_written_while_training_continues(make, step, tmp_path, dtype, lora, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # it needs no room on a disk
    trainable = make(dtype, lora)
    step(trainable)
    trainable.save(tmp_path / "now")
    captured = trainable.capture()
    if not lora:  # each weight is held once
        weights = captured.write_model.args[1]
        assert weights["lm_head.weight"] is weights["model.embed_tokens.weight"]  # tied
        assert weights["model.norm.weight"].data_ptr() != trainable.parameters["model.norm.weight"].data_ptr()
        master = captured.files["masters.safetensors"]["model.norm.weight"]
        assert (weights["model.norm.weight"] is master) == (dtype == torch.float32)
    step(trainable)
    torch.rand(3)
    thread = threading.Thread(target=captured.write, args=(tmp_path / "later",))
    thread.start()
    thread.join()
    assert content(tmp_path / "now") == content(tmp_path / "later")
    trainable.save(tmp_path / "after")
    assert content(tmp_path / "after") != content(tmp_path / "later")


def test_with_an_adapter_nothing_of_the_base_is_written(make, step, tmp_path):
    trainable = make(torch.bfloat16, lora=True)
    before = {name: p.clone() for name, p in trainable.module.named_parameters() if not p.requires_grad}
    step(trainable)
    trainable.save(tmp_path)
    models = {path.name for path in tmp_path.iterdir()} - STATE_FILES
    assert {"adapter_config.json", "adapter_model.safetensors"} <= models
    assert not models & {"config.json", "model.safetensors"}
    assert all("lora_" in name for name in load_file(tmp_path / "masters.safetensors"))
    other = make(torch.bfloat16, lora=True)
    other.load(tmp_path)
    assert step(other) == step(trainable)
    assert all(p.equal(other.parameters[name]) for name, p in trainable.parameters.items())
    assert all(p.equal(before[n]) for n, p in other.module.named_parameters() if n in before)


@pytest.mark.parametrize(("writer", "reader"), [("fused", "foreach"), ("foreach", "fused"), ("fused", "fused")])
def test_moments_move_between_implementations(make, step, tmp_path, writer, reader):
    def with_optimizer(kind):
        trainable = make()
        trainable.optimizer = torch.optim.AdamW(trainable.masters.values(), lr=1e-2, **{kind: True})
        return trainable

    first, second = with_optimizer(writer), with_optimizer(reader)
    for _ in range(2):
        step(first)
    first.save(tmp_path)
    second.load(tmp_path)
    for path in tmp_path.iterdir():  # a file may be written over or removed while its moments are in use
        path.write_bytes(bytes(path.stat().st_size))
    steps = {float(moments["step"]) for moments in second.optimizer.state.values()}
    assert steps == {2.0} and second.step == 2
    one, other = step(first), step(second)
    for name, master in first.masters.items():
        assert torch.allclose(master, second.masters[name], rtol=0, atol=1e-6)
        if writer == reader:
            assert master.equal(second.masters[name]) and one == other


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "where"), [("fused", "cuda"), ("foreach", "cpu")])
def test_step_counts_go_where_the_optimiser_keeps_them(make, step, tmp_path, kind, where):
    trainable = make(device="cuda")
    step(trainable)
    trainable.capture().write(tmp_path)
    trainable.optimizer = torch.optim.AdamW(trainable.masters.values(), lr=1e-2, **{kind: True})
    trainable.load(tmp_path)
    assert {moments["step"].device.type for moments in trainable.optimizer.state.values()} == {where}
    assert {moments["exp_avg"].device.type for moments in trainable.optimizer.state.values()} == {"cuda"}
    step(trainable)


class Loud:
    """Unpickling it fails the test."""

    def __reduce__(self):
        return pytest.fail, ("a file of a checkpoint was unpickled",)


@pytest.mark.parametrize("name", sorted(STATE_FILES))
def test_pickles_are_refused_and_never_loaded(unchanged, tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Loud()))
    with pytest.raises(CheckpointError, match=name):
        unchanged.load(tmp_path)
    torch.save({"master": Loud()}, tmp_path / name)
    with pytest.raises(CheckpointError, match=name):
        unchanged.load(tmp_path)


def test_damaged_tensors_are_named_and_change_nothing(unchanged, tmp_path):
    file = tmp_path / "optimizer.safetensors"
    whole = load_file(file)
    norm, count = whole["exp_avg.model.norm.weight"], len(whole)
    one = {f"{kind}.model.norm.weight": None for kind in ("step", "exp_avg", "exp_avg_sq")}
    kind = {name: None for name in whole if name.startswith("exp_avg_sq.")}
    for change, words in (
        ({"exp_avg.model.norm.weight": None}, "it has no exp_avg of model.norm.weight"),
        ({"exp_avg.model.norm.weight": torch.zeros(3)}, "exp_avg.model.norm.weight belongs to no parameter"),
        ({"step.model.norm.weight": torch.zeros(2)}, "step.model.norm.weight belongs to no parameter"),
        ({"exp_avg.nowhere": torch.zeros(3)}, "exp_avg.nowhere belongs to no parameter"),
        ({"exp_avg.model.norm.weight": norm.long()}, "exp_avg.model.norm.weight is of type torch.int64"),
        ({"exp_avg.model.norm.weight": norm.bfloat16()}, "exp_avg.model.norm.weight is of type torch.bfloat16"),
        ({"step.model.norm.weight": torch.tensor(1)}, "step.model.norm.weight is of type torch.int64"),
        (one, f"it has {count - 3} tensors, and {count} were written"),
        (kind, f"it has {count - count // 3} tensors, and {count} were written"),
        (dict.fromkeys(whole), f"it has 0 tensors, and {count} were written"),
    ):
        save_file({name: tensor for name, tensor in (whole | change).items() if tensor is not None}, file)
        with pytest.raises(CheckpointError, match=f"optimizer.safetensors is damaged: {words}"):
            unchanged.load(tmp_path)
    file = tmp_path / "masters.safetensors"
    save_file(load_file(file) | {"model.norm.weight": torch.ones(32, dtype=torch.int64)}, file)
    with pytest.raises(CheckpointError, match="masters.safetensors is damaged: model.norm.weight is of type torch.int"):
        unchanged.load(tmp_path)


DEEP = b"[" * 100_000 + b"]" * 100_000


def rng(change):
    return lambda file: save_file({"cpu": change(load_file(file)["cpu"])}, file)


def facts(**changes):
    return lambda file: edit_json(file, **changes)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        *((name, lambda file: os.truncate(file, 100), f"{name}.* is truncated or damaged") for name in TENSOR_FILES),
        *(
            ("masters.safetensors", lambda file, head=head: file.write_bytes(head), "masters.safetensors")
            for head in ((2**62).to_bytes(8, "little") + b"{}", len(DEEP).to_bytes(8, "little") + DEEP)
        ),
        ("optimizer.safetensors", Path.unlink, "incomplete: optimizer.safetensors is missing"),
        ("rng.safetensors", rng(torch.Tensor.float), "rng.safetensors is damaged: .*ByteTensor"),
        ("rng.safetensors", rng(lambda state: state[:100].clone()), "rng.safetensors is damaged: .*size"),
        ("rng.safetensors", rng(torch.zeros_like), "rng.safetensors is damaged: .*Invalid"),
        ("rng.safetensors", lambda f: save_file({"other": torch.zeros(1)}, f), "it has no random state of the CPU"),
        ("engine.json", Path.unlink, "is not a training checkpoint: engine.json is missing"),
        *(
            ("engine.json", lambda file, text=text: file.write_bytes(text), "engine.json: not readable as JSON")
            for text in (b"", b"{", DEEP)
        ),
        ("engine.json", lambda file: file.write_text("[]"), "engine.json: expected an object"),
        ("engine.json", facts(format=99), "engine.json is not of a format this version reads"),
        ("engine.json", facts(optimizer="Lion"), "written with optim.optimizer=Lion, this run has AdamW"),
        ("engine.json", facts(parts=[[], {}]), "has no part model"),
        *(("engine.json", facts(format=value), "engine.json is not of a format") for value in ([2], {})),
        *(("engine.json", facts(step=n), f"damaged: step={n} is no number of updates") for n in (-4, True, 10**30)),
        *(
            ("engine.json", facts(**{part: value}), f"engine.json is damaged: it has no valid {part}")
            for value in (None, {}, 3.5)
            for part in ("parts", "step", "optimizer")
        ),
        *(("engine.json", facts(adapter=value), "damaged: it has no valid adapter") for value in (3, [])),
    ],
)
def test_a_damaged_file_is_named_and_changes_nothing(unchanged, tmp_path, name, damage, words):
    damage(tmp_path / name)
    with pytest.raises(CheckpointError, match=words):
        unchanged.load(tmp_path)


@pytest.mark.gpu
def test_a_damaged_random_state_of_the_device_is_named(make, tmp_path):
    trainable = make(device="cuda")
    trainable.save(tmp_path)
    file = tmp_path / "rng.safetensors"
    save_file(load_file(file) | {"cuda": torch.zeros(3, dtype=torch.uint8)}, file)
    with pytest.raises(CheckpointError, match="rng.safetensors is damaged: cuda is no random state"):
        trainable.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lora_alpha": 128}, "saved with lora_alpha=16 of its adapter, and this run has lora_alpha=128"),
        ({"lora_rank": 4}, "saved with lora_rank=2 of its adapter, and this run has lora_rank=4"),
        ({"target_modules": ["q_proj"]}, r"saved with target_modules=\[.*'v_proj'\] .* this run has .*=\['q_proj'\]"),
    ],
)
def test_an_adapter_with_other_settings_is_refused(make, tmp_path, change, words):
    """The weights may fit all the same, and the policy would jump."""
    make(lora=True).save(tmp_path)
    other = make(lora=True, **change)
    with pytest.raises(CheckpointError, match=f"{words}.*trainer.resume_mode=disable"):
        other.load(tmp_path)
    with pytest.raises(CheckpointError, match="saved with lora_rank=2 .* this run has lora_rank=0"):
        make().load(tmp_path)
    for name, value in (("use_rslora", True), ("alpha_pattern", {"q_proj": 4})):  # only an adapter's folder sets these
        trainable = make(lora=True)
        setattr(trainable.module.peft_config["default"], name, value)
        with pytest.raises(CheckpointError, match=f"saved with {name}=.* of its adapter, and this run has {name}="):
            trainable.load(tmp_path)
