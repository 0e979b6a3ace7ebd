"""Weights as files: what is written, what is refused, and what is left."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from burnish.errors import RolloutError
from burnish.rollout.hosted import weights
from burnish.rollout.hosted.weights import WORDS, WeightFolder, digest, read_weights


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 3)
        self.second = torch.nn.Linear(4, 3, bias=False)
        self.second.weight = self.first.weight


@pytest.fixture
def model():
    return Tied()


@pytest.fixture
def folder(model, tmp_path):
    made = WeightFolder(model, torch.bfloat16, tmp_path)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_each_bucket_is_a_file_in_the_type_of_the_engine(folder, model):
    seen = []

    def buckets():
        for name, parameter in model.named_parameters():
            seen.append(len(list(folder.path.iterdir())))
            yield {name: parameter}

    folder.write(buckets(), 4)
    assert folder.version == 4 and len(folder.files) == 2
    assert seen == [0, 1], "the file of one is there when the next is asked for"
    digests = {}
    read = dict(read_weights(folder.files, digests))
    assert digests == folder.digests == {name: digest(tensor) for name, tensor in read.items()}
    assert torch.equal(read["first.weight"], model.first.weight.detach().bfloat16())
    folder.compare(folder.digests, "somebody")
    with pytest.raises(RolloutError, match="1 of 2 weights of version 4 did not arrive in worker 1, such as first.bi"):
        folder.compare(folder.digests | {"first.bias": "0"}, "worker 1")
    with pytest.raises(RolloutError, match="2 of 2 weights"):
        folder.compare({}, "worker 1")


def test_tied_names_may_come_in_one_bucket_or_not_at_all(folder, model):
    names = dict(model.named_parameters(remove_duplicate=False))
    assert len(names) == 3
    folder.write([names], 1)
    assert set(load_file(folder.files[0])) == set(names)
    folder.write([{"second.weight": model.second.weight, "first.bias": model.first.bias}], 2)
    assert folder.version == 2 and set(folder.digests) == {"second.weight", "first.bias"}


@pytest.mark.parametrize(
    ("bucket", "words"),
    [
        ({"third.weight": torch.zeros(3, 4)}, "'third.weight' is not part of Tied"),
        ({"first.weight": torch.zeros(4, 3)}, r"'first.weight' is \(4, 3\), and the model's is \(3, 4\)"),
        ({"first.bias": torch.zeros(3)}, "1 of 2 weights of Tied were not published, such as first.weight"),
    ],
)
def test_what_is_not_the_model_is_refused_and_leaves_none(folder, model, bucket, words):
    folder.write([dict(model.named_parameters())], 1)
    with pytest.raises(RolloutError, match=words):
        folder.write([bucket], 2)
    assert folder.version is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_digest_sees_places_and_every_bit(dtype):
    """In one part, and in the second and last of several, of which the last is shorter."""
    for size in (9, 8 * WORDS // dtype.itemsize + 1001):
        bits = torch.zeros(size * dtype.itemsize, dtype=torch.uint8)
        values = {digest(bits.view(dtype))}
        for place in (0, 7, 8, len(bits) - 1):
            for bit in range(8):
                bits[place] = 1 << bit
                values.add(digest(bits.view(dtype)))
            bits[place] = 0
        assert len(values) == 1 + 4 * 8
        signs = bits.clone()
        signs[7::8] = 128  # an even number of the highest bits, which are nothing in a sum
        signs[7] ^= 128 * (len(signs[7::8]) % 2)
        assert digest(signs.view(dtype)) not in values


def test_a_digest_is_that_of_the_bits_wherever_they_lie():
    whole = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert digest(whole[1:]) == digest(whole[1:].clone()) == digest(whole[1:].view(27, 37))
    assert digest(whole.view(20, 50).T) == digest(whole.view(20, 50).T.contiguous()) != digest(whole)
    assert digest(torch.zeros(0)) != digest(torch.zeros(1)) != digest(torch.zeros(2))
    assert len({digest(whole), digest(whole.flip(0)), digest(-whole), digest(whole.bfloat16())}) == 4
    assert digest(torch.tensor(1.0)) == digest(torch.tensor([1.0]))


def test_room_is_given_once(model, tmp_path, monkeypatch, caplog):
    """Before anything is written, and also while there is only a part of it. With too little shared memory, the
    temporary folder is taken."""
    shared, temporary = tmp_path / "shm", tmp_path / "tmp"
    shared.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(weights, "SHARED_MEMORY", shared)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    size = 15 * 4  # of the model's weights
    room = {shared: 2 * (size + weights.SPARE), temporary: size}

    def usage(place):
        return SimpleNamespace(free=room[place] - sum(f.stat().st_size for f in place.rglob("*") if f.is_file()))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    first, second, third = (WeightFolder(model, torch.float32) for _ in range(3))
    assert [made.path.parent for made in (first, second, third)] == [shared, shared, temporary]
    assert f"through {temporary}: slower, if that is a disk" in caplog.text and len(caplog.records) == 1
    assert f"with 256 to spare, do not fit in {shared}, which has 0 MiB free" in caplog.text
    full = rf"MiB of weights .* do not fit in {temporary}, which has 0 MiB free and unclaimed.*--shm-size"
    with pytest.raises(RolloutError, match=full):
        WeightFolder(model, torch.float32)
    second.close()
    first.write([{"first.weight": model.first.weight}, {"first.bias": model.first.bias}], 1)
    fourth = WeightFolder(model, torch.float32)
    assert fourth.path.parent == shared, "what was written is not counted twice, and what is closed not at all"
    theirs = shared / "burnish-weights-1000000000-theirs"  # another user's counts by what it holds
    theirs.mkdir()
    is_left = weights._is_left

    def refuse(folder):
        if folder == theirs:
            raise PermissionError(13, "Permission denied", str(folder))
        return is_left(folder)

    monkeypatch.setattr(weights, "_is_left", refuse)
    fourth.close()
    fourth = WeightFolder(model, torch.float32)
    assert fourth.path.parent == shared
    room[shared] = weights.SPARE
    with pytest.raises(RolloutError, match="with 256 to spare, do not fit"):
        first.write([dict(model.named_parameters())], 2)
    for made in (first, third, fourth):
        made.close()


LEFT_BEHIND = """
import os, sys
from pathlib import Path
import torch
from burnish.rollout.hosted.weights import WeightFolder
made = WeightFolder(torch.nn.Linear(4, 3), torch.float32, Path(sys.argv[1]))
print(made.path, flush=True)
sys.stdin.readline()
os._exit(9)
"""


def test_a_folder_of_a_dead_owner_is_removed(model, tmp_path):
    command = [sys.executable, "-c", LEFT_BEHIND, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        left = Path(owner.stdout.readline().strip())
        first = WeightFolder(model, torch.float32, tmp_path)
        assert left.exists(), "its owner lives"
        owner.stdin.close()
    assert left.exists(), "it was left behind"
    second = WeightFolder(model, torch.float32, tmp_path)
    assert not left.exists() and first.path.exists()
    for made in (first, second):
        made.close()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
def test_memory_taken_by_others_is_reported(folder, model, monkeypatch, error):
    def full(*arguments):
        raise error

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(RolloutError, match=rf"could not be written to {folder.path}.*No space left"):
        folder.write([dict(model.named_parameters())], 1)
    assert folder.version is None
