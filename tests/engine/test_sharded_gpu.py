"""FSDP2 on a GPU: one process with a mesh of its own (NCCL), against the same model without one."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from burnish.algorithms.tally import mean_over_tokens
from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.mesh import Mesh
from burnish.engine.offload import HostModule
from burnish.engine.packing import pack
from burnish.engine.sharding import checksums, slices_of, whole_buckets
from burnish.engine.trainable import Trainable
from burnish.models.loading import load_causal_lm
from tests.engine.updating import uneven_rows

pytestmark = pytest.mark.gpu
TOLERANCE = {"float32": 2e-4, "bfloat16": 0.02}


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    devices = init_device_mesh("cuda", (1, 1), mesh_dim_names=("replicas", "shards"))["shards"]
    yield Mesh(devices, control=dist.new_group(backend="gloo"))
    dist.destroy_process_group()


@pytest.fixture
def data():
    return uneven_rows(7)


@pytest.fixture
def make(tiny_model):
    def build(mesh, dtype, *, lora_rank=0, offload=False, **keys):
        fsdp = FSDPConfig(**keys)
        model = ModelConfig(path=str(tiny_model), dtype=dtype, lora_rank=lora_rank, enable_activation_offload=offload)
        module = load_causal_lm(model.path, model, None if mesh else "cuda", seed=1)
        return Trainable(module, OptimConfig(lr=1e-3), total_steps=9, device="cuda", model=model, fsdp=fsdp, mesh=mesh)

    return build


def trained(trainable, data, *, parks=False):
    """The metrics of three updates and the log-probs after them; with `parks` weights wait on the host in between."""
    count, micro = int(data.batch["response_mask"].sum()), MicroBatch(max_tokens=40)
    weights = HostModule(trainable.module, parks=parks)

    def loss(part):
        passed = trainable.forward.log_probs(pack(part.batch), 1.0, ("log_prob", "entropy"))
        mask = part.batch["response_mask"]
        metrics = {"entropy": mean_over_tokens(passed["entropy"], mask)}
        return -(passed["log_prob"] * mask).sum() / count, metrics

    updates = []
    with weights.on_device():
        for _ in range(3):
            update = trainable.forward_backward(data, loss, micro)
            updates.append(update | trainable.optim_step(update["loss"]))
    with weights.on_device():
        found = trainable.infer(lambda part: trainable.forward.log_probs(pack(part.batch)), data, micro)
    return updates, found["log_prob"]


CASES = {
    "plain": {},
    "parked": {"param_offload": True},
    "lora": {"lora_rank": 4},
    "policy": {"offload_policy": True},
    "optimizer": {"optimizer_offload": True},
    "activations": {"offload": True},
    "kept": {"reshard_after_forward": False, "forward_prefetch": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sharded_is_the_same_as_whole(mesh, make, data, dtype, case):
    keys = CASES[case]
    alone, wanted = trained(make(None, dtype, lora_rank=keys.get("lora_rank", 0)), data)
    sharded = make(mesh, dtype, **keys)
    assert all(master.dtype == torch.float32 for master in sharded.masters.values())
    updates, found = trained(sharded, data, parks=case == "parked")
    for one, other in zip(alone, updates, strict=True):
        assert one == pytest.approx(other, rel=TOLERANCE[dtype])
    torch.testing.assert_close(found, wanted, rtol=0, atol=20 * TOLERANCE[dtype])


def test_buckets_and_checksums_agree_in_the_type_of_the_copy(mesh, make):
    trainable = make(mesh, "bfloat16")
    copy = {}
    for bucket in whole_buckets(trainable.masters, trainable.slices, mesh, dtype=torch.bfloat16, size=10_000):
        copy |= {name: tensor.clone() for name, tensor in bucket.items()}
    meant = checksums(trainable.masters, trainable.slices, mesh, torch.bfloat16)
    assert torch.equal(meant, checksums(copy, slices_of(copy, None), None))
    first = next(iter(copy.values()))
    first.view(-1)[0] += 1
    assert (meant != checksums(copy, slices_of(copy, None), None)).tolist() == [True] + [False] * (len(copy) - 1)


@pytest.mark.parametrize(
    ("keys", "masters", "moments"),
    [
        ({"offload_policy": True}, "cpu", "cpu"),
        ({"offload_policy": True, "optimizer_offload": True}, "cpu", "cpu"),
        ({"optimizer_offload": True}, "cuda", "cpu"),
        ({}, "cuda", "cuda"),
    ],
    ids=str,
)
def test_a_run_resumes_from_a_checkpoint_with_its_state(mesh, make, data, tmp_path, keys, masters, moments):
    first = make(mesh, "bfloat16", **keys)
    trained(first, data)
    first.save(tmp_path / "saved")
    again = make(mesh, "bfloat16", **keys)
    again.load(tmp_path / "saved")
    for trainable in (first, again):
        assert {master.device.type for master in trainable.masters.values()} == {masters}
        for state in trainable.optimizer.state.values():
            assert {kind: tensor.device.type for kind, tensor in state.items()} == {
                "exp_avg": moments, "exp_avg_sq": moments, "step": masters,
            }  # fmt: skip
    for one, other in zip(trained(again, data)[0], trained(first, data)[0], strict=True):
        assert one == pytest.approx(other, rel=TOLERANCE["bfloat16"])
    if moments == "cpu":
        assert {state["exp_avg"].device.type for state in again.optimizer.state.values()} == {"cpu"}


def test_a_checkpoint_goes_from_a_mesh_to_one_process_and_back(mesh, make, data, tmp_path):
    sharded = make(mesh, "float32")
    trained(sharded, data)
    sharded.save(tmp_path / "sharded")
    alone = make(None, "float32")
    alone.load(tmp_path / "sharded")
    for name, master in alone.masters.items():
        assert torch.equal(master, sharded.masters[name])
    alone.save(tmp_path / "alone")
    again = make(mesh, "float32")
    again.load(tmp_path / "alone")
    one, other = trained(again, data), trained(alone, data)
    assert one[0][0] == pytest.approx(other[0][0], rel=2e-4)
