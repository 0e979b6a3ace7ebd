"""One update of a `Trainable`, as the workers take it, a loss for it, and a batch of uneven rows."""

import torch

from burnish.algorithms.tally import part_of_sum
from burnish.engine.batching import MicroBatch
from burnish.engine.packing import pack
from burnish.protocol import DataProto

PROMPT, RESPONSE = 6, 9


def uneven_rows(count):
    noise = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 250, (count, PROMPT + RESPONSE), generator=noise)
    mask = torch.ones_like(ids)
    for row in range(count):
        mask[row, : row % 3] = 0
        mask[row, PROMPT + RESPONSE - row % 5 :] = 0
    columns = {"input_ids": ids, "attention_mask": mask, "responses": ids[:, PROMPT:]}
    columns |= {"response_mask": mask[:, PROMPT:].clone(), "wanted": torch.randn(count, RESPONSE, generator=noise)}
    return DataProto.from_dict(columns)


def update(trainable, batch, loss_fn, micro, schedule=None):
    metrics = trainable.forward_backward(batch, loss_fn, micro)
    return metrics | trainable.optim_step(metrics["loss"], schedule)


def nll(trainable, total):
    """Negative log-likelihood per response token of the whole mini-batch, which has so many."""

    def loss_fn(rows):
        log_prob, mask = trainable.forward.log_probs(pack(rows.batch))["log_prob"], rows.batch["response_mask"]
        return -(log_prob * mask).sum() / total, {"tokens": part_of_sum(mask.sum() / total)}

    return loss_fn


def step(trainable, batch, micro=MicroBatch(max_sequences=4)):  # noqa: B008 - it is frozen
    return update(trainable, batch, nll(trainable, batch.batch["response_mask"].sum()), micro)
