"""The machine: a phase that takes twice as long as before, memory that grows."""

from burnish.health.history import History, mean
from burnish.health.rule import NOTE, WARNING, Finding, Rule

SECONDS, PER_TOKEN, STEP = "timing_s/", "timing_per_token_ms/", "timing_s/step"
MEMORY, TOTAL, HOST = "perf/max_memory_allocated_gb", "perf/device_memory_gb", "perf/host_memory_gb"
PHASES = ("gen", "reward", "old_log_prob", "ref", "values", "update_actor", "update_critic", "update_weights")
USUAL, NOW = 30, 3  # steps


def slow(history: History) -> Finding | None:
    step = mean(history.recent(STEP, NOW))
    slowed = []
    for phase in PHASES:
        name = PER_TOKEN + phase if history.recent(PER_TOKEN + phase, NOW) else SECONDS + phase
        values = history.recent(name, USUAL)
        if not values or mean(history.recent(SECONDS + phase, NOW)) < 0.2 * step:
            continue
        usual, now = sorted(values[:-NOW])[(USUAL - NOW) // 2], min(values[-NOW:])
        if now > 2 * usual:
            slowed.append(f"{phase} takes {now / usual:.1f} times as long as usual")
    if not slowed:
        return None
    return Finding(
        NOTE,
        f"in the last {NOW} steps " + ", ".join(slowed),
        "look for other programs on the cores or the GPU (top, nvidia-smi); `burnish status` shows what is waited for",
    )


def memory(history: History) -> Finding | None:
    used, total = history.recent(MEMORY, 1), history.recent(TOTAL, 1)
    if used and total and used[0] > 0.95 * total[0]:
        return Finding(
            WARNING,
            f"{used[0]:.1f} of {total[0]:.1f} GB of the device were in use at the peak of a step",
            "smaller passes (actor_rollout_ref.actor.ppo_max_token_len_per_gpu), or less for the KV cache "
            "(actor_rollout_ref.rollout.gpu_memory_utilization)",
        )
    host = [value for _, value in history.points(HOST)]
    if len(host) >= 40 and host[-1] > 1.3 * host[len(host) // 2] > 1.3 * 1.2 * host[len(host) // 4]:
        return Finding(
            WARNING,
            f"the memory of this process grew from {host[len(host) // 4]:.1f} to {host[-1]:.1f} GB and keeps growing",
            "see what a reward function, tool or logger of yours keeps between calls",
        )
    return None


RULES = [
    Rule("slow_phase", "Steps became slower", "Something else uses the machine, or waits.", (SECONDS, PER_TOKEN), slow),
    Rule(
        "memory", "Memory is near its limit, or grows", "The run may end without memory.", (MEMORY, TOTAL, HOST), memory
    ),
]
