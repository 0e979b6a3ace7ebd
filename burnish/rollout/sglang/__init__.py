"""SGLang as a rollout engine, in separate processes. Only `host` (SGLang's Engine) and `worker` (what burnish adds to
the processes that compute) import sglang."""
