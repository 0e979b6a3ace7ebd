"""From what was typed to the model: checkpoints, run folders, roles, and what is wrong with them."""

import json
import shutil
import subprocess
import sys

import pytest
from safetensors.numpy import load_file, save_file

from burnish.errors import CheckpointError, ModelError
from burnish.export.source import ExportRequest, find_source
from tests.models.helpers import edit_json


@pytest.fixture
def find(tmp_path):
    told = []

    def run(path, **options):
        return find_source(ExportRequest(str(path), tmp_path / "out", **options), told.append)

    run.told = told
    return run


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run folder that a test may break."""
    return shutil.copytree(run, tmp_path / "run", symlinks=True)


def test_every_way_to_name_a_checkpoint_also_without_a_pointer(run, find, copy):
    step = run / "global_step_20"
    assert find(run).folder == find(step).folder == find(step / "actor").folder == step / "actor"
    assert find(run, role="critic").folder == find(step / "critic", role="critic").folder == step / "critic"
    assert find(run / "global_step_10").folder == run / "global_step_10" / "actor"
    source = find(step)
    assert (source.dtype, source.values, source.adapter) == ("float32", False, None)
    assert source.elements == sum(a.size for a in load_file(step / "actor" / "model.safetensors").values())
    (copy / "latest_checkpointed_iteration.txt").unlink()
    (copy / "global_step_10").rename(copy / "global_step_100")
    assert find(copy).folder == copy / "global_step_100" / "actor"


def test_a_checkpoint_of_sft_has_no_actor(copy, find):
    step = copy / "global_step_10"
    for path in [*step.iterdir()]:
        if path.name not in ("actor", "manifest.json"):
            path.unlink() if not path.is_dir() else shutil.rmtree(path)
    for path in (step / "actor").iterdir():
        path.rename(step / path.name)
    (step / "actor").rmdir()
    (step / "manifest.json").write_text(json.dumps({"step": 10, "files": {"model.safetensors": 1}}))
    with pytest.raises(CheckpointError, match=r"truncated: model\.safetensors has \d+ bytes instead of 1\. Copy it"):
        find(step)
    size = (step / "model.safetensors").stat().st_size
    (step / "manifest.json").write_text(json.dumps({"step": 10, "files": {"model.safetensors": size}}))
    assert find(step).folder == step


@pytest.mark.parametrize("typed", [".", "global_step_20", "global_step_20/actor"])
@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"files": {}}', '{"files": {"data/trainer.json": 2}}', '{"files": ["actor"]}']
)
def test_a_checkpoint_without_a_manifest_of_its_model(copy, find, typed, text, monkeypatch):
    (copy / "latest_checkpointed_iteration.txt").unlink()
    manifest = copy / "global_step_20" / "manifest.json"
    manifest.unlink() if text is None else manifest.write_text(text)
    damaged = r"global_step_20 is not a complete checkpoint: manifest\.json is missing or damaged\. Copy it again, or"
    with pytest.raises(CheckpointError, match=damaged):
        find(copy / typed)
    monkeypatch.chdir(copy / typed)
    with pytest.raises(CheckpointError, match=damaged):
        find(".")


@pytest.mark.parametrize("typed", [".", "global_step_20", "global_step_20/actor"])
def test_a_truncated_checkpoint_is_named(copy, find, typed):
    file = copy / "global_step_20" / "actor" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"global_step_20 is truncated: actor/model\.safetensors has \d+ bytes"):
        find(copy / typed)
    find(copy / "global_step_20", role="critic")
    (copy / "global_step_20" / "critic" / "optimizer.safetensors").write_bytes(b"")  # which is not exported
    find(copy / "global_step_20", role="critic")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"actor/model\.safetensors is missing. Copy it again, or export an"):
        find(copy / typed)


def test_roles_that_do_not_fit(copy, tiny_model, find):
    value = r"a value model \(Qwen2ForTokenClassification\), not a policy; .*--role critic"
    with pytest.raises(ModelError, match=value):
        find(copy / "global_step_20" / "critic")
    with pytest.raises(ModelError, match=r"Qwen2ForCausalLM is not a value model; .*leave out --role critic"):
        find(tiny_model, role="critic")
    shutil.rmtree(copy / "global_step_20" / "critic")
    with pytest.raises(CheckpointError, match=r"global_step_20: this checkpoint has no critic; it has an actor"):
        find(copy, role="critic")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights cannot be exported"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, r"a reward model \(Qwen2ForSeq.*copy it as it is"),
        ("cut", r"m/model\.safetensors: damaged or cut off \(.*\); copy it again"),
        ("int8", "its weights are stored as I8; float32, bfloat16, float16 can be exported"),
        ("tokenizer", r"m: no tokenizer; save one there with tokenizer\.save_pretrained"),
    ],
)
def test_models_that_cannot_be_exported(tiny_model, find, tmp_path, change, message):
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    if isinstance(change, dict):
        edit_json(folder / "config.json", **change)
    elif change == "cut":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    elif change == "tokenizer":
        for path in folder.glob("tokenizer*"):
            path.unlink()
    else:
        tensors = {name: array.astype(change) for name, array in load_file(folder / "model.safetensors").items()}
        save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        find(folder)


def test_mixed_types_are_reported_and_the_source_is_found_without_torch(tiny_model, find, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    mixed = {name: array if "norm" in name else array.astype("float16") for name, array in tensors.items()}
    save_file(mixed, folder / "model.safetensors")
    assert find(folder).dtype == "float16" and not find(folder).is_exact_in("float16")
    assert "most weights are float16, some are float32 and become float16; --dtype float32 keeps them" in find.told[-1]
    find.told.clear()
    find(folder, dtype="float32")
    assert not find.told
    assert find(tiny_model).is_exact_in("float32") and not find(tiny_model).is_exact_in("float16")
    program = (
        "import sys\nfrom pathlib import Path\nfrom burnish.export import ExportRequest\n"
        "from burnish.export.source import find_source\n"
        f"find_source(ExportRequest({str(tiny_model)!r}, Path('x')), print)\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'peft')))\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
