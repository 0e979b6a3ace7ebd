"""The tokens the policy sampled, as the steps of an episode: one vector, row after row, without what is between.

Observations in a response (tool output, search results) are not steps. Estimators that look from one token to the next
take the steps out of the (B, R) columns, work on them, and put the result back.
"""

import torch


class Steps:
    """The places of a mask's policy tokens. `take` and `put` go from (B, R) to (tokens,) and back."""

    def __init__(self, mask: torch.Tensor):
        inside = mask.bool()
        self.shape = inside.shape
        self.places = inside.flatten().nonzero().squeeze(-1)  # (tokens,) in the flattened columns
        self.lengths = inside.sum(-1)  # (B,)

    def take(self, values: torch.Tensor) -> torch.Tensor:
        return values.flatten().index_select(0, self.places)

    def put(self, steps: torch.Tensor) -> torch.Tensor:
        """(tokens,) → (B, R): 0 where no step is."""
        return _placed(steps, self.places, self.shape)

    def following(self, steps: torch.Tensor) -> torch.Tensor:
        """(tokens,) → (tokens,): what the row's next step has, 0 at its last."""
        shifted = torch.zeros_like(steps)
        shifted[:-1] = steps[1:]
        shifted[(self.lengths.cumsum(0) - 1)[self.lengths > 0]] = 0
        return shifted

    def discounted_sum_to_end(self, steps: torch.Tensor, discount: float) -> torch.Tensor:
        """(tokens,) → (tokens,): y_t = x_t + discount · y_{t+1} within each row."""
        rows, width = self.shape
        unused = torch.arange(rows, device=steps.device) * width - (self.lengths.cumsum(0) - self.lengths)  # (B,)
        closed_up = torch.arange(len(steps), device=steps.device) + unused.repeat_interleave(self.lengths)
        total = discounted_sum_to_end(_placed(steps, closed_up, self.shape), discount)
        return total.flatten().index_select(0, closed_up)


def discounted_sum_to_end(values: torch.Tensor, discount: float) -> torch.Tensor:
    """y_t = x_t + discount · y_{t+1} along the last dimension.

    After k passes y_t holds the terms t .. t + 2^k - 1; adding the next block, discounted, doubles that.
    """
    total, spare, reach = values.clone(), torch.empty_like(values), 1
    while reach < values.shape[-1]:
        torch.add(total[..., :-reach], total[..., reach:], alpha=discount**reach, out=spare[..., :-reach])
        spare[..., -reach:] = total[..., -reach:]
        total, spare, reach = spare, total, 2 * reach
    return total


def _placed(steps: torch.Tensor, places: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return steps.new_zeros(shape.numel()).index_copy_(0, places, steps).view(shape)
