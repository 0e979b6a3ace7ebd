"""The mathematics of RL for language models: pure functions on float32 tensors, one algorithm per file.

Tensors are (B, R), with a `response_mask` that is 1 where the policy itself sampled the token. What stands outside the
mask (padding, tool output, search results) never enters a result inside it, whatever it holds. Advantages, returns,
rewards, weights and masks are 0 outside; `kl_penalty`, which is given no mask, and `masked_whiten` work out every
place, and their callers zero what is outside.
"""
