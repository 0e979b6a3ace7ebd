"""The mathematics of RL for language models: pure functions on float32 tensors, one algorithm per file.

Tensors are (B, R), with a `response_mask` that is 1 where the policy itself sampled the token. What stands outside the
mask (padding, tool output, search results) never enters a result inside it, whatever it holds. Advantages, returns,
rewards, weights and masks are 0 outside; `kl_penalty`, which is given no mask, and `masked_whiten` work out every
place, and their callers zero what is outside.

    advantages/     rewards → advantages and returns, one estimator per file
    losses/         advantages → the loss of a micro-batch, one loss per file
    aggregate.py    a loss per token → one number, whichever way the batch is cut
    kl.py           distance to the reference policy, in the reward or in the loss
    correction/     the gap to the policy that sampled, measured and corrected
    process_reward.py   a reward per token from a model that learns from outcomes (PRIME)
    overlong.py     a penalty near the length limit (DAPO)
    resample.py     drawing what is trained on by its score (PF-PPO)
    masked.py       sums, means and whitening inside the mask
    tally.py        metrics of micro-batches that add up exactly
    variance.py     how noisy the gradient is, estimated from the batch
    metrics.py      what a step reports about its data, its time and its speed
    validation.py   mean@N, best@k, maj@k over repeated answers
    table.py        names and import paths → functions and what they need

The tables in `advantages` and `losses` are read without importing torch.
"""
