"""SGLang as a rollout engine, in separate processes; see `rollout.hosted` for what all such engines share.

`arguments` is what burnish's configuration means to SGLang, and `engine` hands it over. `host` has SGLang's Engine in
it; `worker` is what burnish adds to the processes that compute. Only these two import sglang.
"""
