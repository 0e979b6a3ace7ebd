"""How fast a rollout engine generates: `python benchmarks/rollout.py`, or with `--help`.

Measures engines side by side on one module, through the contract of `burnish/rollout/base.py`: every request is awaited
in one event loop, as agent loops do. `generate` is transformers' own: one left-padded batch that runs until its longest
row is done. Only tokens that were asked for count. Prompts are random, every response has a length drawn beforehand
(end-of-sequence is ignored), so all engines do the same work. The weights are random, made on the device; `nano` is
the embedded model, `--model` takes a folder. Speed does not depend on what the weights are.

Before every run the engine wakes and takes a new policy version, so that nothing is left over from the run before, and
sleeps afterwards; this is not counted. Engines take turns: the first run of each is reported as such, the others as
median and best. Prefill and scheduling are counted, in tokens per second and in the milliseconds of a step.

The floor is the time of the decode steps alone at full bandwidth and full arithmetic speed: each step reads all weights
but an untied embedding table, and the keys and values of the sequences that still run (each its own, shared prompt or
not), and then multiplies. Bytes and FLOPs are added, as if nothing overlapped. The default rates are an H200's in bf16.

Prints a table for each shape and one JSON line for each (shape, case, engine). For example, on a GPU:

    python benchmarks/rollout.py --shape qwen2.5-0.5b --cases single batch64 grpo long lognormal --engines native
    python benchmarks/rollout.py --shape qwen2.5-0.5b --cases grpo --engines native --profile --agreement
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

IMPORTING = time.perf_counter()
import torch  # noqa: E402 (the time that importing takes is one of the results)

TORCH_IMPORTED = time.perf_counter()
import transformers  # noqa: E402
from torch.autograd import DeviceType  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig  # noqa: E402

TRANSFORMERS_IMPORTED = time.perf_counter()
from burnish.cli.quickstart import NANO  # noqa: E402
from burnish.config.model import ModelConfig  # noqa: E402
from burnish.config.rollout import RolloutConfig  # noqa: E402
from burnish.engine.forward import Forward  # noqa: E402
from burnish.engine.packing import pack  # noqa: E402
from burnish.errors import BurnishError  # noqa: E402
from burnish.models.device import DEVICES, pick_device  # noqa: E402
from burnish.models.loading import load_causal_lm, load_tokenizer, quiet_transformers  # noqa: E402
from burnish.models.tiny import byte_tokenizer  # noqa: E402
from burnish.rollout import make_engine  # noqa: E402
from burnish.rollout.base import Completion, OnToken, Request, Sampling, request_seed  # noqa: E402

ALL_IMPORTED = time.perf_counter()

QWEN = {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_theta": 1e6}
SHAPES: dict[str, dict[str, Any]] = {  # what differs from the defaults of the architecture's configuration
    "nano": {},  # the embedded model
    "smollm2-135m": {
        "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
        "max_position_embeddings": 8192, "rope_theta": 1e5,
    },
    "qwen2.5-0.5b": {
        **QWEN, "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        **QWEN, "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
        "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        **QWEN, "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
    },
}  # fmt: skip
COUNTERS = (  # of `stats()`, those that are printed for each run
    "steps", "batches", "prefill_tokens", "shared_tokens", "prefix_hit_tokens", "preemptions",
)  # fmt: skip
COLUMNS = (
    f"  {'case':<11}{'engine':<10}{'first tok/s':>12}{'median':>10}{'best':>10}{'ms/step':>9}{'ratio':>8}{'GPU GB':>8}"
)
GENERATE = "generate"
WARM, PROFILED = 8, 20  # steps of a profile: during the first ones the profiler starts and queued steps run out
COMPARED = 16  # sequences of --agreement


@dataclass(frozen=True)
class Case:
    """Prompts × samples; prompt lengths from a range, response lengths fixed (`longest`) or log-normal up to it."""

    prompts: int
    n: int
    prompt: tuple[int, int]
    longest: int
    median: float | None = None
    sigma: float = 0.8

    @property
    def context(self) -> int:
        return self.prompt[1] + self.longest

    def __str__(self) -> str:
        drawn = f"log-normal up to {self.longest}" if self.median else str(self.longest)
        return f"{self.prompts}×{self.n}, {drawn} new tokens"


CASES = {
    "single": Case(1, 1, (200, 200), 512),
    "batch64": Case(64, 1, (200, 200), 512),
    "grpo": Case(64, 8, (200, 200), 512),
    "long": Case(128, 8, (200, 200), 1024),
    "lognormal": Case(128, 8, (200, 200), 2048, median=400),
    "cpu": Case(32, 4, (20, 120), 256, median=60),
}


@dataclass(frozen=True)
class Work:
    """What a case asks of an engine. Request i samples once from prompt i // n."""

    prompts: list[list[int]]
    n: int
    lengths: list[int]  # of the responses

    @classmethod
    def draw(cls, case: Case, vocabulary: int, seed: int = 0) -> "Work":
        random = np.random.default_rng(seed)
        sizes = random.integers(case.prompt[0], case.prompt[1] + 1, case.prompts)
        prompts = [random.integers(0, vocabulary, size).tolist() for size in sizes]
        requests = case.prompts * case.n
        if case.median is None:
            return cls(prompts, case.n, [case.longest] * requests)
        drawn = np.rint(case.median * np.exp(case.sigma * random.standard_normal(requests)))
        return cls(prompts, case.n, drawn.clip(1, case.longest).astype(int).tolist())

    @cached_property
    def tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def samplings(self) -> list[Sampling]:
        return [
            Sampling(max_tokens=length, ignore_eos=True, seed=request_seed(0, "benchmark", i // self.n, i % self.n, 0))
            for i, length in enumerate(self.lengths)
        ]

    def __str__(self) -> str:
        sizes = [len(prompt) for prompt in self.prompts]
        prompt = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        mean, median = self.tokens / len(self.lengths), statistics.median(self.lengths)
        return (
            f"{len(self.prompts)} prompts of {prompt} tokens × {self.n}, responses of mean {mean:.0f}, median "
            f"{median:.0f}, max {max(self.lengths)}: {self.tokens} tokens"
        )


class ThroughContract:
    """An engine as agents see it. `start` says how long it took from the module to the first token."""

    def __init__(self, name: str, module: Any, tokenizer: Any, memory: float):
        begin = time.perf_counter()
        config = RolloutConfig(name=name, gpu_memory_utilization=memory)
        self.engine = make_engine(name, module, tokenizer, config)
        made = time.perf_counter()
        self.module, self.version = module, 0
        self.run(Work([[0] * 8], 1, [1]))
        self.start = {"engine_s": made - begin, "first_token_s": time.perf_counter() - made}
        self.engine.sleep()

    def prepare(self) -> None:
        self.engine.wake()
        self.version += 1
        self.engine.publish(None, self.version)

    def run(self, work: Work, watched: int = -1, watch: OnToken | None = None) -> list[Completion]:
        """All requests at once; `watch` sees the tokens of the request `watched`."""
        return asyncio.run(self._all(work, watched, watch))

    async def _all(self, work: Work, watched: int, watch: OnToken | None) -> list[Completion]:
        requests = [
            self.engine.generate(
                Request(work.prompts[i // work.n], sampling, f"{self.version}-{i}", (i // work.n, i % work.n, 0)),
                on_token=watch if i == watched else None,
            )
            for i, sampling in enumerate(work.samplings)
        ]  # fmt: skip
        return await asyncio.gather(*requests)

    def release(self) -> None:
        self.engine.sleep()

    def counters(self) -> dict[str, float]:
        stats = self.engine.stats()
        return {name: stats[name] for name in COUNTERS if name in stats}


class TransformersGenerate:
    """The module's own `generate`, given all prompts left-padded."""

    def __init__(self, module: Any):
        self.module = module
        self.start: dict[str, float] = {}

    def prepare(self) -> None:
        torch.manual_seed(0)

    def run(self, work: Work) -> None:
        width, longest = max(len(prompt) for prompt in work.prompts), max(work.lengths)
        ids = torch.zeros(len(work.prompts), width, dtype=torch.int64)  # (prompts, width)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(work.prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        made = self.module.generate(
            ids.to(self.module.device), attention_mask=mask.to(self.module.device), do_sample=True, temperature=1.0,
            top_k=0, top_p=1.0, max_new_tokens=longest, num_return_sequences=work.n,
        )  # fmt: skip
        assert made.cpu().shape == (len(work.lengths), width + longest), made.shape

    def release(self) -> None:
        """Give its cache back, so that a KV pool finds the memory free."""
        gc.collect()
        if self.module.device.type == "cuda":
            torch.cuda.empty_cache()

    def counters(self) -> dict[str, float]:
        return {}


Engine = ThroughContract | TransformersGenerate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["nano"], help="sizes of the model")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a model folder, instead of --shape")
    sizes = "; ".join(f"{name}: {case}" for name, case in CASES.items())
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["cpu"], help=f"prompts × samples [cpu]. {sizes}")
    parser.add_argument(
        "--engines", nargs="+", choices=("native", "hf", GENERATE), default=["native", GENERATE],
        help="side by side; the ratio is to the last of them",
    )  # fmt: skip
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case by each engine")
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: bfloat16 on a GPU, else float32")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; default: as torch decides")
    parser.add_argument(
        "--gpu-memory-utilization", type=float, default=RolloutConfig().gpu_memory_utilization,
        help="share of GPU memory for the KV pool [%(default)s]",
    )  # fmt: skip
    parser.add_argument("--bandwidth", type=float, help="TB/s of the floor; default: 4.3 on a GPU, else no floor")
    parser.add_argument("--flops", type=float, help="TFLOP/s of the floor; default: 790 on a GPU, else no floor")
    parser.add_argument("--agreement", action="store_true", help="compare log-probs with the training forward")
    parser.add_argument("--profile", action="store_true", help=f"{PROFILED} steps in the middle: what the time goes to")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("--repeat must be at least 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device, key="--device")
    on_gpu = device.type == "cuda"
    options.dtype = options.dtype or ("bfloat16" if on_gpu else "float32")
    options.bandwidth = options.bandwidth or (4.3 if on_gpu else None)
    options.flops = options.flops or (790.0 if on_gpu else None)
    for shape in [str(options.model)] if options.model else options.shape:
        measure_shape(shape, options, device)
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()


def measure_shape(shape: str, options: argparse.Namespace, device: torch.device) -> None:
    """Everything about one module: its table, then its JSON lines."""
    begin = time.perf_counter()
    module, tokenizer = make_model(shape, options, device)
    synchronize(device)
    facts = {
        "shape": shape, "device": described(device), "dtype": options.dtype, "torch": torch.__version__,
        "transformers": transformers.__version__, "parameters": sum(p.numel() for p in module.parameters()),
        "import_torch_s": TORCH_IMPORTED - IMPORTING, "import_transformers_s": TRANSFORMERS_IMPORTED - TORCH_IMPORTED,
        "import_burnish_s": ALL_IMPORTED - TRANSFORMERS_IMPORTED, "model_s": time.perf_counter() - begin,
    }  # fmt: skip
    context = module.config.max_position_embeddings
    if too_long := [name for name in options.cases if CASES[name].context > context]:
        raise SystemExit(f"{shape} has a context of {context} tokens; leave out --cases {' '.join(too_long)}")
    print(f"\n{shape}, {facts['parameters'] / 1e6:.1f} M parameters, {options.dtype}, on {facts['device']}")
    imports = ALL_IMPORTED - IMPORTING
    print(f"  imports {imports:.1f} s (torch {facts['import_torch_s']:.1f}), model made {facts['model_s']:.1f} s")
    engines: dict[str, Engine] = {}
    for name in options.engines:
        if name == GENERATE:
            engines[name] = TransformersGenerate(module)
        else:
            engines[name] = ThroughContract(name, module, tokenizer, options.gpu_memory_utilization)
        if start := engines[name].start:
            print(
                f"  {name}: engine made {start['engine_s']:.2f} s, first token {start['first_token_s']:.2f} s later; "
                f"{imports + facts['model_s'] + sum(start.values()):.1f} s with imports and model"
            )
    print(COLUMNS + ("   floor tok/s  share" if options.bandwidth and options.flops else ""), flush=True)
    lines = []
    for name in options.cases:
        work = Work.draw(CASES[name], module.config.vocab_size)
        for results in measure_case(name, work, engines, module, options):
            lines.append(facts | results)
    for line in lines:
        print(json.dumps(line), flush=True)


def make_model(shape: str, options: argparse.Namespace, device: torch.device) -> tuple[Any, Any]:
    """The module and a tokenizer for it. Nothing ends a sequence, so that `generate` continues too."""
    if options.model or shape == "nano":
        folder = options.model or NANO
        module = load_causal_lm(folder, ModelConfig(path=str(folder)), device, options.dtype)
        tokenizer = load_tokenizer(folder)
    else:
        settings = dict(SHAPES[shape])
        rope = {"rope_type": "default", "rope_theta": settings.pop("rope_theta")}
        config = AutoConfig.for_model(**settings, rope_parameters=rope, bos_token_id=None, eos_token_id=None)
        torch.manual_seed(0)
        with torch.device(device), quiet_transformers():
            module = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype))
        tokenizer = byte_tokenizer()  # engines ask it for the end of a sequence only, which is ignored
    module.generation_config = GenerationConfig(pad_token_id=0)
    return module.eval().requires_grad_(False), tokenizer


def measure_case(
    case: str, work: Work, engines: dict[str, Engine], module: Any, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Run a case, print its rows of the table, and return the results of each engine."""
    print(f"  {case}: {work}")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for number in range(options.repeat):
        for name, engine in engines.items():
            runs[name].append(measure_run(engine, work, module.device))
            seconds = runs[name][-1]["seconds"]
            print(f"  {case}, run {number + 1} of {name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    floor = floor_seconds(module, work, options.bandwidth, options.flops)
    results = [summary(case, name, work, runs[name], floor) | engines[name].start for name in engines]
    for line in results:
        line["ratio"] = line["tokens_per_s"] / results[-1]["tokens_per_s"]
        print_row(line)
    for line, engine in zip(results, engines.values(), strict=True):
        if isinstance(engine, ThroughContract):
            if options.agreement:
                line["agreement"] = agreement(engine, work)
            if options.profile:
                line["profile"] = profile(engine, work)
    return results


def measure_run(engine: Engine, work: Work, device: torch.device) -> dict[str, Any]:
    begin = time.perf_counter()
    engine.prepare()
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    before, start = engine.counters(), time.perf_counter()
    completions = engine.run(work)
    synchronize(device)
    seconds = time.perf_counter() - start
    if completions is not None and [len(c.token_ids) for c in completions] != work.lengths:
        raise SystemExit("the engine gave responses of other lengths than asked for")
    counted = {name: value - before.get(name, 0) for name, value in engine.counters().items()}
    peak = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
    engine.release()
    return {"seconds": seconds, "prepare_s": start - begin, "peak_gb": peak, "stats": counted}


def summary(case: str, engine: str, work: Work, runs: list[dict[str, Any]], floor: float | None) -> dict[str, Any]:
    """One engine on one case. The first run counts as median and best only where it is the only one."""
    seconds = [run["seconds"] for run in runs]
    later = seconds[1:] or seconds
    median, last = statistics.median(later), runs[-1]
    steps = last["stats"].get("steps") or max(work.lengths)
    return {
        "case": case, "engine": engine, "sequences": len(work.lengths), "tokens": work.tokens,
        "mean_length": work.tokens / len(work.lengths), "max_length": max(work.lengths),
        "first_tokens_per_s": work.tokens / seconds[0], "tokens_per_s": work.tokens / median,
        "best_tokens_per_s": work.tokens / min(later), "ms_per_step": 1e3 * median / steps, "steps": steps,
        "seconds": seconds, "prepare_s": last["prepare_s"], "peak_gb": last["peak_gb"], "stats": last["stats"],
        "floor_tokens_per_s": floor and work.tokens / floor, "floor_share": floor and floor / median,
    }  # fmt: skip


def print_row(line: dict[str, Any]) -> None:
    peak = f"{line['peak_gb']:.1f}" if line["peak_gb"] is not None else "-"
    row = (
        f"  {line['case']:<11}{line['engine']:<10}{line['first_tokens_per_s']:>12.0f}{line['tokens_per_s']:>10.0f}"
        f"{line['best_tokens_per_s']:>10.0f}{line['ms_per_step']:>9.2f}{line['ratio']:>8.2f}{peak:>8}"
    )
    if line["floor_share"]:
        row += f"{line['floor_tokens_per_s']:>14.0f}{line['floor_share']:>7.1%}"
    print(row)
    if line["stats"]:
        counted = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in line["stats"].items())
        print(f"  {'':<21}{counted}; made ready in {line['prepare_s']:.3f} s", flush=True)


def floor_seconds(module: Any, work: Work, bandwidth: float | None, flops: float | None) -> float | None:
    """The least time of all decode steps, at `bandwidth` TB/s and `flops` TFLOP/s; see the top of the file."""
    if not (bandwidth and flops):
        return None
    config, size = module.config, module.dtype.itemsize
    weights = sum(p.numel() for p in module.parameters())
    if not config.tie_word_embeddings:
        weights -= module.get_input_embeddings().weight.numel()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head * size  # of one position
    pair_flops = 4 * config.num_hidden_layers * config.num_attention_heads * head  # of a query and a position
    lengths = np.array(work.lengths)
    prompts = np.repeat([len(prompt) for prompt in work.prompts], work.n)
    seconds = 0.0
    for step in range(1, max(work.lengths)):  # the first token of a response comes from its prompt's prefill
        running = lengths > step
        positions = int((prompts[running] + step).sum())  # that are looked at, those of all sequences together
        seconds += (weights * size + positions * kv_bytes) / (bandwidth * 1e12)
        seconds += (2.0 * weights * int(running.sum()) + positions * pair_flops) / (flops * 1e12)
    return seconds


@torch.no_grad()
def agreement(engine: ThroughContract, work: Work) -> dict[str, float]:
    """Differences between the engine's log-probs and those of the training forward, each sequence by itself."""
    engine.prepare()
    completions = engine.run(work)
    engine.release()
    differences = []
    for i in np.linspace(0, len(completions) - 1, min(COMPARED, len(completions))).astype(int):
        prompt, response = work.prompts[i // work.n], completions[i].token_ids
        ids = torch.tensor([prompt + response], device=engine.module.device)  # (1, P+R)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "responses": ids[:, len(prompt) :]}
        trained = Forward(engine.module).log_probs(pack(batch))["log_prob"][0].cpu()  # (R,)
        differences.append((trained - torch.tensor(completions[i].log_probs)).abs())
    every = torch.cat(differences)
    found = {"tokens": every.numel(), "mean": every.mean().item(), "max": every.max().item()}
    print(
        f"  {'':<21}log-probs and the training forward differ by {found['mean']:.2e} on average, {found['max']:.2e} at "
        f"most, over {found['tokens']} tokens",
        flush=True,
    )
    return found


class Stopwatch:
    """Told of every token of one request: profiles some of its steps, and times as many before without the profiler."""

    def __init__(self, start: int, profiler: Any):
        self.start, self.profiler = start, profiler
        self.token = 0
        self.marks: dict[int, float] = {}  # when the step so many after `start` was done

    def __call__(self, token_id: int, log_prob: float) -> None:
        self.token += 1
        step, end = self.token - self.start, WARM + PROFILED
        if step in (-PROFILED, 0, end):
            self.marks[step] = time.perf_counter()
        if step == 0:
            self.profiler.start()
        elif 0 < step <= end:
            self.profiler.step()
        if step == WARM:
            self.marks[step] = time.perf_counter()

    def ms_per_step(self, begin: int) -> float:
        return 1e3 * (self.marks[begin + PROFILED] - self.marks[begin]) / PROFILED


def profile(engine: ThroughContract, work: Work, top: int = 16) -> dict[str, Any] | None:
    """Where the time of a decode step goes, a quarter of the way into the longest response."""
    on_gpu = engine.module.device.type == "cuda"
    watched = int(np.argmax(work.lengths))
    start = max(PROFILED + 1, work.lengths[watched] // 4)
    if start + WARM + PROFILED >= work.lengths[watched]:
        print(f"  {'':<21}no profile: the longest response has {work.lengths[watched]} tokens")
        return None
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    plan = torch.profiler.schedule(wait=0, warmup=WARM, active=PROFILED, repeat=1)
    profiler = torch.profiler.profile(activities=activities, schedule=plan, acc_events=True)
    watch = Stopwatch(start, profiler)
    engine.prepare()
    engine.run(work, watched, watch)
    engine.release()
    profiler.stop()
    events = [
        event
        for event in profiler.key_averages()
        if not (event.is_user_annotation or event.key.startswith("ProfilerStep"))
    ]
    host = [event for event in events if event.device_type == DeviceType.CPU]
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    found = {
        "step_ms": watch.ms_per_step(-PROFILED),
        "step_ms_profiled": watch.ms_per_step(WARM),
        "gpu_busy_ms": per_step(sum(event.self_device_time_total for event in kernels)) if on_gpu else None,
        "kernels": sum(event.count for event in kernels) / PROFILED,
    }
    indent = " " * 23
    print(f"{indent}a step takes {found['step_ms']:.3f} ms, under the profiler {found['step_ms_profiled']:.3f} ms")
    if on_gpu:
        print(f"{indent}the GPU is busy {found['gpu_busy_ms']:.3f} ms with {found['kernels']:.0f} kernels and copies")
        found["top"] = print_top("GPU ms", kernels, lambda event: event.self_device_time_total, top)
    found["top_host"] = print_top(
        "host ms", host, lambda event: event.self_cpu_time_total, top if not on_gpu else top // 2
    )
    return found


def print_top(title: str, events: Sequence[Any], cost: Callable[[Any], float], top: int) -> dict[str, float]:
    """Milliseconds per step by name, the largest first."""
    ordered = sorted(events, key=cost, reverse=True)[:top]
    print(f"{'':<23}{title:>9}{'calls':>8}  in a step")
    for event in ordered:
        print(f"{'':<23}{per_step(cost(event)):>9.4f}{event.count / PROFILED:>8.1f}  {event.key[:76]}")
    return {event.key[:120]: per_step(cost(event)) for event in ordered}


def per_step(microseconds: float) -> float:
    return microseconds / 1e3 / PROFILED


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def described(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    try:
        main()
    except BurnishError as error:
        raise SystemExit(str(error)) from error
