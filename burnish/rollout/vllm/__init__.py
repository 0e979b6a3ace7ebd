"""vLLM as a rollout engine, in separate processes. Only `host` (vLLM's AsyncLLM) and `worker` (what burnish adds to the
processes that compute) import vllm: what it does to torch, logging and the environment stays in its processes."""
