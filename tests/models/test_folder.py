"""From model.path to a folder: our checkpoints, hub ids, hdfs, what is missing. Manifests: export/test_source.py."""

import json
import os

import pytest

from burnish.errors import ModelError
from burnish.models.folder import resolve_path


def folder_with(path, *names):
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).write_text("{}")
    return path


def test_a_plain_folder_also_below_home(tmp_path, monkeypatch):
    model = folder_with(tmp_path / "m", "config.json", "model.safetensors")
    assert resolve_path(model) == model
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_path("~/m") == model
    monkeypatch.chdir(tmp_path)
    assert resolve_path("m").resolve() == model


def test_our_checkpoints_and_a_hint_at_those_that_were_probably_meant(tmp_path):
    actor = folder_with(tmp_path / "run" / "global_step_30" / "actor", "config.json", "model.safetensors")
    assert resolve_path(actor) == resolve_path(actor.parent) == actor
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("30\n")
    assert resolve_path(tmp_path / "run") == actor
    (actor.parent / "manifest.json").write_text("{}")
    with pytest.raises(ModelError, match=r"a checkpoint or a run \(.* has run\)"):
        resolve_path(tmp_path)
    with pytest.raises(ModelError, match=r"no such folder \(.*run has global_step_30\)"):
        resolve_path(tmp_path / "run" / "global_step_29")
    folder_with(actor.parent, "config.json", "model-00001-of-00002.safetensors")
    assert resolve_path(actor.parent) == actor.parent


def test_run_folders_without_a_pointer_or_without_a_checkpoint(tmp_path, caplog):
    run = folder_with(tmp_path / "run", "config.yaml", "metrics.jsonl")
    with pytest.raises(ModelError, match=r"run: a run folder without a checkpoint; .*trainer\.save_freq"):
        resolve_path(run)
    for step in (9, 10):
        folder_with(run / f"global_step_{step}" / "actor", "config.json", "model.safetensors")
    assert resolve_path(run) == resolve_path(run) == run / "global_step_10" / "actor"
    assert caplog.messages == [
        f"{run}: no latest_checkpointed_iteration.txt with a step in it; global_step_10 is used, the newest there; "
        "it has no manifest.json, so it may be incomplete"
    ]
    caplog.clear()
    folder_with(run / "global_step_11", "config.json", "model.safetensors", "manifest.json")
    assert resolve_path(run) == run / "global_step_11"
    (run / "latest_checkpointed_iteration.txt").write_text("../elsewhere")
    assert resolve_path(run) == run / "global_step_11"
    (message,) = caplog.messages
    assert message.endswith(
        "no latest_checkpointed_iteration.txt with a step in it; global_step_11 is used, the newest there"
    )


@pytest.mark.parametrize("path", ["/no/such/folder", "outputs/stage1/checkpoint-7", "./m", "~/nothing here", ".."])
def test_missing_folders(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = r"\.\.: no config\.json" if path == ".." else f"the model path {path}: there is no such folder"
    with pytest.raises(ModelError, match=expected):
        resolve_path(path)


def test_hub_ids(tmp_path, monkeypatch):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(folder_with(tmp_path / "snapshot", "config.json", "model.safetensors"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_path("Qwen/Qwen2.5-0.5B-Instruct") == tmp_path / "snapshot"
    assert (asked["name"], asked["allow_patterns"]) == ("Qwen/Qwen2.5-0.5B-Instruct", None)
    assert asked["revision"] is None
    resolve_path("gpt2", weights=False, revision="v2")
    assert (asked["name"], asked["revision"]) == ("gpt2", "v2") and "*.json" in asked["allow_patterns"]
    monkeypatch.undo()  # without a connection
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    said = r"path Qwen/Qwen2.5-0.5B-Instruct: there is no such folder .* could not be fetched from the hub as a model "
    with pytest.raises(ModelError, match=said + r"id .*Give the folder of a downloaded model, or connect to the hub"):
        resolve_path("Qwen/Qwen2.5-0.5B-Instruct")


def test_folders_that_lack_a_part(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json; the model path must name a Hugging Face model folder"):
        resolve_path(folder_with(tmp_path / "a", "model.safetensors"))
    bare = folder_with(tmp_path / "b", "config.json")
    with pytest.raises(ModelError, match=r"has config\.json but no weights \(looked for \*\.safetensors"):
        resolve_path(bare)
    assert resolve_path(bare, weights=False) == bare
    with pytest.raises(ModelError, match=r"has config\.json but no weights"):  # training state is no model
        resolve_path(folder_with(bare, "optimizer.safetensors", "rng.safetensors"))
    folder = folder_with(tmp_path / "shards", "config.json", "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ModelError, match=r"names model-00002-of-00002\.safetensors, which is missing; copy"):
        resolve_path(folder)
    folder_with(folder, "model-00002-of-00002.safetensors")
    assert resolve_path(folder) == folder


@pytest.fixture
def hdfs(tmp_path, monkeypatch):
    """An `hdfs` command that copies from a folder, or fails where there is none; counts its calls."""
    store = tmp_path / "store"
    command = tmp_path / "bin" / "hdfs"
    command.parent.mkdir()
    command.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/calls\n"
        f'[ "$1 $2" = "dfs -get" ] || exit 9\n'
        f'cp -r "{store}/${{3#hdfs://}}" "$4" 2>/dev/null || {{ echo "get: no such file" >&2; exit 1; }}\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    return store


def test_hdfs_is_copied_once_and_failures_are_reported(hdfs, tmp_path, monkeypatch):
    folder_with(hdfs / "models" / "m", "config.json", "model.safetensors")
    first = resolve_path("hdfs://models/m")
    assert first.is_relative_to(tmp_path / "cache") and (first / "model.safetensors").is_file()
    assert resolve_path("hdfs://models/m") == first
    assert (tmp_path / "calls").read_text().count("x") == 1
    with pytest.raises(ModelError, match=r"path hdfs://models/none: `hdfs dfs -get` failed: get: no such file"):
        resolve_path("hdfs://models/none")
    assert list((tmp_path / "cache" / "hdfs").iterdir()) == [first]
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ModelError, match=r"hdfs://models/other: copying it needs the `hdfs` command"):
        resolve_path("hdfs://models/other")
