"""Models spread over several processes (FSDP2, hybrid sharding, Ulysses) against the same in one process.

Processes add up in another order than one does, and nothing else differs: in float32 losses, norms and outputs agree to
1e-5, gradients to 1e-4 of the largest of their tensor, and weights after two steps to 2% of a step's length. Where
several processes compute in bfloat16, outputs agree to its 8 bits.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from burnish.algorithms.tally import largest, mean_over_tokens, spread
from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.mesh import Mesh
from burnish.engine.packing import pack
from burnish.engine.sharding import whole_buckets
from burnish.engine.trainable import Trainable, frozen, infer
from burnish.errors import ConfigError
from burnish.models.loading import load_causal_lm, load_reward_model, load_value_model
from burnish.models.lora import adapter_off
from burnish.models.tiny import write_tiny_model
from burnish.protocol import DataProto
from tests.engine.updating import uneven_rows

pytestmark = pytest.mark.slow  # the file as a whole; each test takes a second

LR = 1e-3
MICROS = MicroBatch(max_sequences=2), MicroBatch(max_tokens=40)  # of one update each


@dataclass(frozen=True)
class Case:
    """A model, and how many processes hold it in which way."""

    world: int = 4
    mesh: dict[str, Any] = field(default_factory=dict)
    fsdp: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    kind: str = "policy"
    folder: str = "untied"
    rows: int = 7


CASES = {
    "two": Case(world=2),
    "four": Case(),
    "hybrid": Case(mesh={"fsdp_size": 2}),
    "neighbours": Case(mesh={"even": False}),
    "fewer rows than processes": Case(rows=3),
    "ulysses, 2 of 2": Case(world=2, mesh={"ulysses": 2}),
    "ulysses, 2 of 4": Case(mesh={"ulysses": 2}),
    "ulysses, 4 of 4, 2 heads of keys": Case(mesh={"ulysses": 4}),
    "ulysses, hybrid": Case(mesh={"ulysses": 2, "fsdp_size": 2}),
    "ulysses, one row": Case(mesh={"ulysses": 2}, rows=1),
    "adapter, of fewer rows than processes": Case(model={"lora_rank": 3}),
    "adapter, ulysses": Case(world=2, mesh={"ulysses": 2}, model={"lora_rank": 3}),
    "values": Case(kind="critic"),
    "values, adapter": Case(world=2, kind="critic", model={"lora_rank": 3}),
    "values, ulysses": Case(mesh={"ulysses": 2}, kind="critic"),
    "tied": Case(world=2, folder="tied"),
    "tied, ulysses": Case(mesh={"ulysses": 4}, folder="tied"),
    "host memory": Case(world=2, fsdp={"offload_policy": True}),
    "kept whole after the forward pass": Case(world=2, fsdp={"reshard_after_forward": False}),
    "prefetched": Case(world=2, fsdp={"forward_prefetch": True}),
    "activations kept": Case(world=2, model={"enable_gradient_checkpointing": False}),
    "activations kept, ulysses": Case(mesh={"ulysses": 2}, model={"enable_gradient_checkpointing": False}),
    "plain output layer, ulysses": Case(world=2, mesh={"ulysses": 2}, model={"use_fused_kernels": False}),
    "transformers' layers": Case(world=2, model={"use_fused_kernels": False}),
    "padded": Case(world=2, model={"use_remove_padding": False}),
    "norms of heads": Case(world=2, folder="qwen3"),
    "norms of heads, ulysses": Case(mesh={"ulysses": 2}, folder="qwen3"),
}
HALF = {
    "half": Case(world=2, model={"dtype": "bfloat16"}),
    "half, ulysses": Case(mesh={"ulysses": 2}, model={"dtype": "bfloat16"}),
}
FSDP = [{}, {"forward_prefetch": True}, {"reshard_after_forward": False}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """259 tokens, which neither 2 nor 4 divide; no biases, whose gradient may be nothing but rounding."""
    shape = {"model_type": "llama", "heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    kinds = {"tied": {}, "untied": {"tie_word_embeddings": False}, "qwen3": {"model_type": "qwen3", "head_dim": 16}}
    parent = tmp_path_factory.mktemp("sharded")
    return {name: str(write_tiny_model(parent / name, **(shape | keys))) for name, keys in kinds.items()}


@pytest.fixture(scope="module")
def alone(folders):
    """A function: what a case gives in this process alone; each model is trained once."""
    found = {}

    def of(case):
        case = replace(case, world=1, mesh={}, fsdp={})
        if repr(case) not in found:
            found[repr(case)] = train(case, folders[case.folder])
        return found[repr(case)]

    return of


def mesh_of(case):
    return Mesh.of(torch.device("cpu"), **case.mesh) if case.world > 1 else None


def make_trainable(case, folder):
    mesh, model = mesh_of(case), ModelConfig(**({"path": folder, "dtype": "float32"} | case.model))
    load = load_causal_lm if case.kind == "policy" else load_value_model
    module = load(folder, model, None if mesh else "cpu", seed=1)
    fsdp = FSDPConfig(**case.fsdp)
    return Trainable(module, OptimConfig(lr=LR), grad_clip=0.5, total_steps=4, model=model, fsdp=fsdp, mesh=mesh)


def outputs_of(trainable, kind, micro):
    if kind == "policy":
        return trainable.forward.log_probs(pack(micro.batch), 0.8, ("log_prob", "entropy"))
    return {"values": trainable.forward.values(pack(micro.batch))}


def loss_of(trainable, kind, batch):
    """A part of the loss that tells every token apart, and metrics of several kinds."""
    count = int(batch.batch["response_mask"].sum())

    def loss(micro):
        found = outputs_of(trainable, kind, micro)
        mask, wanted = micro.batch["response_mask"], micro.batch["wanted"]
        each = (found["values"] - wanted) ** 2 if kind == "critic" else -found["log_prob"] * wanted
        if kind == "policy":
            each = each - 0.1 * found["entropy"]
        first = next(iter(found.values()))
        metrics = {"mean": mean_over_tokens(first, mask), "top": largest(first, mask), "spread": spread(first, mask)}
        return (each * mask).sum() / count, metrics

    return loss


def whole(tensors, trainable):
    if trainable.mesh is None:
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}
    buckets = whole_buckets(tensors, trainable.slices, trainable.mesh, size=5000)
    return {name: tensor for bucket in buckets for name, tensor in bucket.items()}


def train(case, folder):
    """What a model computes, two updates of it, cut in two ways, and what it computes afterwards."""
    trainable, batch = make_trainable(case, folder), uneven_rows(case.rows)
    updates, gradients = [], {}
    before = trainable.infer(lambda part: outputs_of(trainable, case.kind, part), batch, MICROS[0])
    for micro in MICROS:
        update = trainable.forward_backward(batch, loss_of(trainable, case.kind, batch), micro)
        gradients = whole(trainable.gradients, trainable)
        updates.append(update | trainable.optim_step(update["loss"]))
    after = trainable.infer(lambda part: outputs_of(trainable, case.kind, part), batch, MICROS[1])
    return {
        "way": type(trainable.forward.backbone),
        "updates": updates,
        "gradients": gradients,
        "weights": whole(trainable.masters, trainable),
        "inferred": {f"{name} before": values for name, values in before.items()} | after,
    }


def assert_same_everywhere(results):
    """What all processes hand on, bit for bit."""
    for other in results[1:]:
        assert other["updates"] == results[0]["updates"]
        for part in ("gradients", "weights", "inferred"):
            assert other[part].keys() == results[0][part].keys()
            assert all(torch.equal(tensor, results[0][part][name]) for name, tensor in other[part].items()), part


@pytest.mark.parametrize("name", CASES)
def test_several_processes_train_what_one_does(name, processes, folders, alone):
    case = CASES[name]
    if "lora_rank" in case.model:
        pytest.importorskip("peft")
    results = processes.call(case.world, train, case, folders[case.folder])
    assert_same_everywhere(results)
    found, expected = results[0], alone(case)
    assert found["way"] is expected["way"]
    for update, wanted in zip(found["updates"], expected["updates"], strict=True):
        assert update == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert found["updates"][0]["grad_norm"] > 0.5  # it is clipped
    assert found["gradients"].keys() == expected["gradients"].keys() == expected["weights"].keys()
    for parameter, gradient in expected["gradients"].items():
        size = float(gradient.abs().max())
        assert size > 0
        torch.testing.assert_close(found["gradients"][parameter], gradient, atol=1e-4 * size, rtol=0, msg=parameter)
    for parameter, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][parameter], weight, atol=0.02 * LR, rtol=0, msg=parameter)
    for column, figures in expected["inferred"].items():
        torch.testing.assert_close(found["inferred"][column], figures, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", HALF)
def test_half_precision_computes_with_rounded_weights_and_trains_whole_ones(name, processes, folders, alone):
    case = HALF[name]
    results = processes.call(case.world, train, case, folders[case.folder])
    assert_same_everywhere(results)
    found, expected = results[0], alone(replace(case, model={}))
    for update, wanted in zip(found["updates"], expected["updates"], strict=True):
        assert update == pytest.approx(wanted, rel=0.03, abs=0.03)
    for part in ("weights", "gradients"):
        assert all(tensor.dtype == torch.float32 for tensor in found[part].values())
    for parameter, gradient in expected["gradients"].items():
        apart = found["gradients"][parameter] - gradient
        assert apart.norm() < 0.05 * gradient.norm(), parameter
    for column, figures in expected["inferred"].items():
        torch.testing.assert_close(found["inferred"][column], figures, atol=0.15, rtol=0.02)


def half_gradients(case, folder):
    """Gradients of passes of one row, which are the same wherever they run."""
    trainable, batch = make_trainable(case, folder), uneven_rows(case.rows)
    one_row = MicroBatch(max_sequences=1)
    update = trainable.forward_backward(batch, loss_of(trainable, case.kind, batch), one_row)
    found = trainable.infer(lambda part: outputs_of(trainable, case.kind, part), batch, one_row)
    return whole(trainable.gradients, trainable), update, found


@pytest.mark.parametrize("fsdp", FSDP, ids=str)
def test_half_precision_is_that_of_one_process_and_gradients_are_added_up_in_float32(fsdp, processes, folders):
    case = Case(world=3, fsdp=fsdp, model={"dtype": "bfloat16"})
    wanted, loss, inferred = half_gradients(replace(case, world=1), folders["untied"])
    for gradients, found, values in processes.call(3, half_gradients, case, folders["untied"]):
        assert found == pytest.approx(loss, rel=1e-6)
        assert all(torch.equal(values[name], column) for name, column in inferred.items())
        for name, gradient in wanted.items():
            apart = float((gradients[name] - gradient).abs().max())
            assert apart < 1e-6 * float(gradient.abs().max()), f"{name}: as no sum in bfloat16 is"


def train_next_to_its_base(case, folder):
    """The first pass is the reference's: that of the base alone."""
    trainable, batch = make_trainable(case, folder), uneven_rows(case.rows)
    found = []
    for _ in range(2):
        with adapter_off(trainable.module):
            base = trainable.infer(lambda part: outputs_of(trainable, case.kind, part), batch, MICROS[0])
        update = trainable.forward_backward(batch, loss_of(trainable, case.kind, batch), MICROS[0])
        found.append([update["mean"], trainable.optim_step(update["loss"])["grad_norm"], float(base["log_prob"].sum())])
    return found


@pytest.mark.parametrize("mesh", [{}, {"ulysses": 2}], ids=str)
def test_an_adapter_trains_next_to_its_base(mesh, processes, folders):
    pytest.importorskip("peft")
    case = Case(world=2, mesh=mesh, model={"lora_rank": 3})
    expected = train_next_to_its_base(replace(case, world=1, mesh={}), folders["untied"])
    for found in processes.call(case.world, train_next_to_its_base, case, folders["untied"]):
        for update, wanted in zip(found, expected, strict=True):
            assert update == pytest.approx(wanted, rel=1e-5)


def score(case, folder):
    """What a frozen classifier says of each row."""
    mesh, model, batch = mesh_of(case), ModelConfig(path=folder, dtype="float32"), uneven_rows(case.rows).batch
    module = load_reward_model(folder, model, new_head_seed=1)
    forward = frozen(module, model, mesh=mesh)
    mask, order = torch.sort(batch["attention_mask"], dim=-1, descending=True, stable=True)  # padding on the right
    texts = DataProto.from_dict({"input_ids": batch["input_ids"].gather(1, order), "attention_mask": mask})

    def scores(part):
        return {"score": forward.scores(part.batch["input_ids"], part.batch["attention_mask"])}

    return infer(module, scores, texts, MICROS[1], mesh=mesh)["score"]


@pytest.mark.parametrize("mesh", [{}, {"ulysses": 2}, {"ulysses": 4}], ids=str)
def test_a_frozen_model_scores_as_it_does_alone(mesh, processes, folders):
    case = Case(mesh=mesh)
    expected = score(replace(case, world=1, mesh={}), folders["tied"])
    assert len(set(expected.tolist())) == case.rows
    for found in processes.call(case.world, score, case, folders["tied"]):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def train_on_a_bad_row(case, folder):
    trainable, batch = make_trainable(case, folder), uneven_rows(case.rows)
    batch.batch["wanted"][0, 0] = math.nan  # which one process has
    before = whole(trainable.masters, trainable)
    update = trainable.forward_backward(batch, loss_of(trainable, case.kind, batch), MICROS[0])
    update |= trainable.optim_step(update["loss"])
    after = whole(trainable.masters, trainable)
    return update["bad_step"], all(torch.equal(tensor, before[name]) for name, tensor in after.items())


@pytest.mark.parametrize("mesh", [{}, {"ulysses": 2}], ids=str)
def test_a_loss_that_is_no_number_in_one_process_is_a_bad_step_in_all(mesh, processes, folders):
    case = Case(mesh=mesh)
    assert processes.call(case.world, train_on_a_bad_row, case, folders["tied"]) == [(1.0, True)] * case.world


def meshes():
    """Of layouts asked for twice: which are the same, and how long their groups wait."""
    layouts = [{}, {"fsdp_size": 2}, {"ulysses": 2}, {"even": False}, {"timeout_s": 7.5, "fsdp_size": 2, "ulysses": 2}]
    found = [Mesh.of(torch.device("cpu"), **({"timeout_s": 8} | layout)) for layout in (*layouts, *layouts)]
    before = EARLIER.copy()
    EARLIER.extend(found)
    last = found[len(layouts) - 1]
    groups = [last.control, last.ulysses, *last.devices.get_all_groups()]
    return {
        "layouts": len(set(map(id, found))) == len(layouts) and found[: len(layouts)] == found[len(layouts) :],
        "of another world": bool({*map(id, before)} & {*map(id, found)}),
        "ranks": [dist.get_process_group_ranks(group) for group in groups],
        "timeouts": {group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups},
        "all": found[0].devices.get_group() is dist.group.WORLD and found[0].shards is dist.group.WORLD,
    }


EARLIER: list[Mesh] = []


def test_layouts_have_one_mesh_each_with_the_given_timeout(processes):
    for _ in range(2):
        for rank, found in enumerate(processes.call(4, meshes)):
            neighbours = [rank // 2 * 2, rank // 2 * 2 + 1]
            ranks = [[0, 1, 2, 3], neighbours, [rank % 2, rank % 2 + 2], neighbours]
            assert found == {
                "layouts": True, "of another world": False, "ranks": ranks, "timeouts": {7.5}, "all": True,
            }  # fmt: skip


def refusal(case, folder):
    try:
        if case != MIXED:
            make_trainable(case, folder)
        module = load_causal_lm(folder, ModelConfig(path=folder, dtype="bfloat16"))
        module.model.norm.float()
        frozen(module, ModelConfig(), mesh=mesh_of(case))
    except ConfigError as error:
        return str(error)


MIXED = Case(world=2)  # a weight in another type


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case(mesh={"fsdp_size": 3}), "fsdp_config.fsdp_size=3 does not divide the 4 processes"),
        (Case(mesh={"ulysses": 3}), "ulysses_sequence_parallel_size=3 does not divide the 4 processes"),
        (MIXED, "keeps 1 of its weights in another type, such as model.norm.weight in float32"),
    ],
    ids=["shards", "processes", "types"],
)
def test_what_cannot_be_shared_is_refused(case, words, processes, folders):
    """What a model's own layers forbid: tests/models/test_ulysses.py."""
    for found in processes.call(case.world, refusal, case, folders[case.folder]):
        assert words in found
