"""What several processes save together is what one would have saved, and any number of them resumes from it."""

import json
import re

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from burnish.engine.dump import KEPT, read_dump
from burnish.errors import CheckpointError
from burnish.models.folder import safetensors_files, shard_names
from burnish.trainer.checkpoint import CheckpointStore, verify
from tests.engine import sharded_cases as cases

HF = {"config.json", "generation_config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def one(folder, model_folder):
    """A checkpoint of one process."""
    trainable = cases.make("plain", model_folder, None)
    cases.step(trainable)
    trainable.save(folder / "one")
    return cases.state_of(trainable)


@pytest.fixture(scope="module")
def seen(folder, model_folder, one, processes):
    """What four processes saw, by rank; two of them were a group before."""
    first = processes.call(2, cases.two, folder, model_folder)
    return [a | b for a, b in zip([*first, {}, {}], processes.call(4, cases.four, folder, model_folder), strict=True)]


@pytest.fixture
def alone(folder, model_folder, seen):
    """A model in one process that has resumed from a checkpoint."""

    def load(kind, place):
        trainable = cases.make(kind, model_folder, None)
        trainable.load(folder / place)
        return trainable

    return load


def close(one, other):
    return one.keys() == other.keys() and all(one[key] == pytest.approx(other[key], rel=1e-4) for key in one)


@pytest.mark.parametrize("kind", cases.KINDS)
def test_two_processes_four_and_one_resume_from_what_two_saved(seen, alone, kind):
    for of_rank in seen[:2]:  # bit for bit
        assert of_rank[f"{kind}/again"] and of_rank[f"{kind}/repeated"]
        assert of_rank[f"{kind}/later"], "what is captured is what a save writes, whatever happens before it is written"
    saved = seen[0][kind]
    assert {name.partition(".")[0] for name in saved} >= {"step", "exp_avg", "exp_avg_sq"}
    assert all(cases.same(of_rank[f"{kind}/four"], saved) for of_rank in seen)
    trainable = alone(kind, f"two/{kind}")
    assert cases.same(cases.state_of(trainable), saved) and trainable.step == 2
    again = cases.state_of(alone(kind, f"four/{kind}"))
    assert cases.same(again, saved), "from two to four and from four to one"
    expected = seen[0][f"{kind}/next"]
    if cases.KINDS[kind]["dtype"] == "float32":
        assert all(close(of_rank[f"{kind}/four/next"], expected) for of_rank in seen)
        assert close(cases.step(trainable), expected)
    else:  # gradients are rounded in another order
        assert seen[0][f"{kind}/four/next"]["loss"] == pytest.approx(expected["loss"], rel=0.05)


def test_several_processes_resume_from_the_files_of_one_and_compute_with_them(seen, alone, one):
    assert all(cases.same(of_rank["one/four"], one) for of_rank in seen)
    assert seen[0]["moved"]
    torch.testing.assert_close(seen[0]["log probs"], cases.log_probs(alone("plain", "two/plain")), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", cases.KINDS)
def test_what_transformers_reads_is_what_one_process_writes(seen, alone, folder, kind, tmp_path):
    alone(kind, f"two/{kind}").save(tmp_path)
    expected = {name: data for name, data in cases.content(tmp_path).items() if name in HF}
    for place in ("two", "four"):
        written = cases.content(folder / place / kind)
        assert {name: data for name, data in written.items() if name in HF} == expected
    assert ("adapter_model.safetensors" in expected) == ("lora" in kind)
    if "lora" not in kind:
        assert json.loads(expected["config.json"])["dtype"] == cases.KINDS[kind]["dtype"]


def test_the_folder_loads_in_transformers_and_peft(seen, folder, alone, model_folder):
    module = AutoModelForCausalLM.from_pretrained(folder / "two" / "rounded")
    assert module.dtype == torch.bfloat16 and type(module).__name__ == "Qwen2ForCausalLM"
    trained = alone("rounded", "two/rounded").module.state_dict()
    assert all(tensor.equal(trained[name]) for name, tensor in module.state_dict().items())
    module = AutoModelForTokenClassification.from_pretrained(folder / "four" / "value")
    trained = alone("value", "two/value").module.state_dict()
    assert all(tensor.equal(trained[name]) for name, tensor in module.state_dict().items())
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), folder / "two" / "lora")


def test_each_process_writes_its_own_rows(seen, folder):
    names = {path.name for path in (folder / "two" / "plain").iterdir()}
    state = {name for name in names if not name.startswith(("config", "generation", "model"))}
    assert state == {
        "masters-00001-of-00002.safetensors", "masters-00002-of-00002.safetensors",
        "optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors",
        "rng.safetensors", "engine.json",
    }  # fmt: skip
    saved = seen[0]["plain"]
    for number, name in enumerate(shard_names("masters.safetensors", 2)):
        for key, tensor in load_file(folder / "two" / "plain" / name).items():
            assert tensor.equal(saved[key].chunk(2)[number]), key
    facts = json.loads((folder / "two" / "plain" / "engine.json").read_text())
    assert (facts["format"], facts["shards"], facts["moments"]) == (3, 2, len(saved) * 3 // 4)
    head = load_file(folder / "four" / "value" / "masters-00004-of-00004.safetensors")
    assert "score.weight" not in head, "it has one row, which is another process's"
    assert [path.name for path in safetensors_files(folder / "two" / "plain")] == ["model.safetensors"]
    names = {path.name for path in (folder / "weights").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "engine.json"}
    assert json.loads((folder / "weights" / "engine.json").read_text())["format"] == 2, "without state, no parts"


def test_of_copies_the_first_writes(seen, folder, alone, tmp_path):
    """Two copies of two shards: the files are those that two processes wrote; of whole copies, those of one."""
    assert cases.content(folder / "copies") == cases.content(folder / "two" / "plain")
    assert all(close(of_rank["copies/next"], seen[0]["plain/next"]) for of_rank in seen)
    alone("plain", "two/plain").save(tmp_path)
    assert cases.content(folder / "alone") == cases.content(tmp_path)


@pytest.mark.parametrize("name", cases.DAMAGE)
def test_damage_is_named_and_changes_nothing_anywhere(seen, name):
    said = {of_rank[f"damage/{name}"] for of_rank in seen}
    assert len(said) == 1 and re.search(cases.DAMAGE[name][1], said.pop())
    assert all(of_rank["unchanged"] for of_rank in seen)


def test_what_one_process_finds_stops_all(seen):
    said = {of_rank["one sees it"] for of_rank in seen}
    assert len(said) == 1
    assert re.search(r"nowhere is not a training checkpoint: .* \(so process 2 of 4, on .+\)", said.pop())
    assert {of_rank["one breaks"].partition(" (")[0] for of_rank in seen} == {"MemoryError: no more of it"}


def test_a_worker_s_folder_has_one_tokenizer(seen, folder):
    assert cases.content(folder / "run" / "now") == cases.content(folder / "run" / "captured")
    assert AutoTokenizer.from_pretrained(folder / "run" / "now").vocab_size
    assert [of_rank["has written"] for of_rank in seen[:2]] == [["_write_tokenizer"], []]
    for of_rank in seen[:2]:
        assert re.search(r"elsewhere, which the run created, does not exist on .*default_lo", of_rank["elsewhere"])
    assert not (folder / "elsewhere").exists()


def test_a_bad_update_is_dumped_once(seen, folder, model_folder):
    dumps = sorted((folder / "dumps" / "bad_steps").iterdir())
    assert [path.name for path in dumps] == [f"step_3_sft_{number}" for number in range(KEPT)]
    assert read_dump(dumps[0]).update.number == 0
    written = AutoModelForCausalLM.from_pretrained(dumps[0] / "model").state_dict()
    start = AutoModelForCausalLM.from_pretrained(model_folder).state_dict()
    assert all(tensor.equal(start[name]) for name, tensor in written.items())


def test_a_checkpoint_without_the_files_of_a_process_is_none(tmp_path):
    store = CheckpointStore(tmp_path)

    def write(folder, count):
        (folder / "actor").mkdir()
        (folder / "actor" / "engine.json").write_text(json.dumps({"parts": ["model", "optimizer"], "shards": 2}))
        for kind in ("masters.safetensors", "optimizer.safetensors"):
            for name in list(shard_names(kind, 2))[:count]:
                save_file({"a": torch.zeros(1)}, folder / "actor" / name)

    verify(store.save(1, lambda folder: write(folder, 2)))
    with pytest.raises(CheckpointError, match=r"masters-00002-of-00002.safetensors was written by another process"):
        store.save(2, lambda folder: write(folder, 1))
    assert store.latest() == store.folder(1)
    (store.folder(1) / "actor" / "optimizer-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"is truncated: actor/optimizer-00002-of-00002.safetensors is missing"):
        verify(store.folder(1))
