"""The proof that a program generates with the actor's weights."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.errors import RolloutError
from burnish.models.tiny import write_tiny_model
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.hosted.canary import ROUNDING, rounding
from burnish.workers.replica import HEAT, TOP_K, Replica


@pytest.mark.parametrize(
    ("trained", "generates", "counts"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16, torch.bfloat16),
    ],
)
def test_of_two_types_the_coarser_one_says_what_is_rounding(trained, generates, counts):
    least, share = ROUNDING[counts]
    assert rounding(torch.tensor([-1.0, -1.0]), trained, generates) == least
    assert rounding(torch.tensor([-5.0, -25.0]), trained, generates) == pytest.approx(max(least, share * 10))


def right(rows):
    return rows.div(HEAT).log_softmax(-1)


def unscaled(rows):
    return rows.log_softmax(-1)


def truncated(rows):
    scaled = right(rows)
    return scaled - scaled.topk(TOP_K).values.logsumexp(-1, keepdim=True)


def no_number(rows):
    return rows * torch.nan


@pytest.mark.parametrize("given", [right, unscaled, truncated, no_number])
def test_sampled_tokens_must_have_the_log_probs_that_training_gives_them(tmp_path, given):
    folder = write_tiny_model(tmp_path / "tiny", context=64)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    class Engine(HFEngine):
        def run(self, requests):
            (completion,) = super().run(requests)
            ids = [*requests[0][0], *completion.token_ids]
            with torch.no_grad():
                rows = given(module(input_ids=torch.tensor([ids])).logits[0, :-1])
            return [replace(completion, log_probs=[row[i].item() for row, i in zip(rows, ids[1:], strict=True)])]

    replica = object.__new__(Replica)
    replica.actor = Trainable(module, OptimConfig(), total_steps=1)
    replica.engine = Engine(module, AutoTokenizer.from_pretrained(folder))
    replica.is_here, replica.canary_tokens, replica.dtypes = True, 16, (torch.float32,)
    if given is right:
        replica._compare_samples()
    else:
        with pytest.raises(RolloutError, match=r"samples \(temperature 1\.5, top_k 2\) other log-probs than the actor"):
            replica._compare_samples()
