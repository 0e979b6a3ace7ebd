"""vLLM as a rollout engine (`rollout/hosted`), in separate processes.

`engine` says what is particular about it, `arguments` what burnish's configuration means to vLLM. `host` has vLLM's
AsyncLLM in it, and `worker` is what burnish adds to the processes of vLLM that compute. Only these two import vllm:
what vLLM does to torch, logging and the environment stays in its processes.
"""
