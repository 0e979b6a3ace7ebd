"""From what was typed to the model, and what is wrong with it; the folder that appears whole or not at all."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.export.place import check_apart, check_out, new_folder, writing
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
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"global_step_20 is truncated: actor/model\.safetensors has \d+ bytes"):
        find(copy / typed)
    find(copy / "global_step_20", role="critic")
    (copy / "global_step_20" / "critic" / "optimizer.safetensors").write_bytes(b"")  # which is not exported
    find(copy / "global_step_20", role="critic")
    file.write_bytes(bytes(size))
    with pytest.raises(CheckpointError, match=r"actor/model\.safetensors is not what was written"):
        find(copy / typed)
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


def write(out: Path, text: str = "new", overwrite: bool = False) -> None:
    with new_folder(out, 0, overwrite=overwrite) as folder:
        (folder / "config.json").write_text(text)
        assert not (out / "config.json").exists() or (out / "config.json").read_text() != text


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_appears_when_it_is_done_whatever_a_killed_export_left(tmp_path):
    out = tmp_path / "models" / "mine"
    umask = os.umask(0o022)
    try:
        write(out)
    finally:
        os.umask(umask)
    assert (out / "config.json").read_text() == "new" and names(out.parent) == {"mine"}
    assert (out / "config.json").stat().st_mode & 0o777 == 0o644 and out.stat().st_mode & 0o777 == 0o755
    out, left = tmp_path / "mine", tmp_path / ".mine.exporting" / "new"
    out.mkdir()
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "model-00001.safetensors").write_text("half")
    write(check_out(out, overwrite=False))
    assert names(tmp_path) == {"mine", "models"} and names(out) == {"config.json"}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_is_left_of_one_that_failed(tmp_path, error):
    with pytest.raises(type(error)), new_folder(tmp_path / "mine", 0, overwrite=False) as folder:
        (folder / "config.json").write_text("half")
        raise error
    assert names(tmp_path) == set()


def test_a_folder_that_is_there_is_replaced_only_when_asked_and_stays_where_that_fails(tmp_path, monkeypatch):
    out = tmp_path / "mine"
    write(out, "old")
    for name in ("model-00002-of-00002.safetensors", "additional_chat_templates/x.jinja", "modeling_x.py"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("of the old one")
    with pytest.raises(ConfigError, match=r"--out .*/mine exists and is not empty; .* replace it with --overwrite"):
        check_out(out, overwrite=False)
    write(check_out(out, overwrite=True), "new", overwrite=True)
    assert (out / "config.json").read_text() == "new" and names(out) == {"config.json"} and names(tmp_path) == {"mine"}

    def fail(self, target, rename=Path.rename):
        if self.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="cannot write .*/mine: Input/output error"):
        write(out, "newer", overwrite=True)
    assert (out / "config.json").read_text() == "new" and names(tmp_path) == {"mine"}


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (["notes.txt"], "it is not a model folder"),
        (["config.json", "global_step_3/manifest.json"], "it holds global_step_3, which no export writes; move that"),
        (["config.json", "engine.json"], "it holds engine.json"),
        (["config.json", "notes.txt", "data/y"], "it holds data, which no export writes"),
        (["config.json", "model.safetensors", "optimizer.safetensors"], "it holds optimizer.safetensors"),
        (["config.json", "additional_chat_templates/mine.txt"], "it holds additional_chat_templates/mine.txt"),
        (["config.json", "additional_chat_templates/deep/x.jinja"], "it holds additional_chat_templates/deep"),
        (["config.json", "train.py"], "it holds train.py"),
    ],
)
def test_overwriting_takes_no_other_folders(tmp_path, inside, words):
    for name in inside:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=f"is not replaced: {words}"):
        check_out(tmp_path, overwrite=True)


def test_two_exports_at_a_time_and_what_is_put_there_meanwhile_is_not_removed(tmp_path):
    out = tmp_path / "mine"
    with new_folder(out, 0, overwrite=False) as folder:
        (folder / "config.json").write_text("first")
        with pytest.raises(ConfigError, match=rf"--out={out}: process {os.getpid()} on .* is writing there\. Wait"):
            write(out, "second")
        assert (folder / "config.json").read_text() == "first"
    assert (out / "config.json").read_text() == "first"
    with pytest.raises(ConfigError, match=r"it holds notes\.txt"), new_folder(out, 0, overwrite=True) as folder:
        (folder / "config.json").write_text("new")
        (out / "notes.txt").write_text("mine")
    assert (out / "config.json").read_text() == "first" and names(tmp_path) == {"mine"}


@pytest.mark.parametrize(("overwrite", "words"), [(True, "not yet done"), (False, "mine exists and is not empty")])
def test_an_export_killed_while_it_replaces_another(tmp_path, overwrite, words):
    """Killed between the two renames: the old folder is moved aside, and nothing has its name."""
    out, aside = tmp_path / "mine", tmp_path / ".mine.exporting"
    write(out, "old")
    aside.mkdir()
    out.rename(aside / "replaced")
    (aside / "new").mkdir()
    (aside / "new" / "config.json").write_text("killed")
    with (
        pytest.raises(RuntimeError if overwrite else ConfigError, match=words),
        new_folder(out, 0, overwrite=overwrite) as folder,
    ):
        assert not names(folder)
        raise RuntimeError("not yet done")
    assert (out / "config.json").read_text() == "old" and names(tmp_path) == {"mine"}


def test_files_in_its_place_and_sources_are_not_touched(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match=r"mine is a file; name a folder"):
        check_out(tmp_path / "mine", overwrite=True)
    with pytest.raises(CheckpointError, match="cannot write .*below: (Not a directory|File exists)"):
        write(tmp_path / "mine" / "below")
    source = tmp_path / "run" / "global_step_3"
    for out, words in ((source, "is the source"), (source / "x", "is inside"), (tmp_path, "holds the source")):
        with pytest.raises(ConfigError, match=f"--out {out} {words}.*choose a folder outside of it"):
            check_apart(out, [source])
    check_apart(tmp_path / "run" / "export", [source])


def test_a_disk_that_is_too_small_or_fills_up_or_knows_no_locks(tmp_path, monkeypatch, caplog):
    too_small = pytest.raises(CheckpointError, match=r"needs 1000000\.0 GB, and .* are free there; free some space")
    with too_small, new_folder(tmp_path / "mine", 10**15, overwrite=False):
        raise AssertionError("not reached")
    assert names(tmp_path) == set()
    wrapped = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error in (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), wrapped):
        full = pytest.raises(CheckpointError, match=r"cannot write mine: .*No space left on device.* with --out")
        with full, writing(Path("mine")):
            raise error

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    write(tmp_path / "mine")
    assert names(tmp_path / "mine") == {"config.json"} and "this file system knows no locks" in caplog.text
