"""GenerationWorker: an engine and the agent loops over it, which answer rows of `burnish generate`: in the process
of the command, or in each of several."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import Any

from burnish.agents.environment import AgentSettings
from burnish.agents.runner import TrajectoryRunner
from burnish.config import GenerationConfig
from burnish.config.data import DataConfig
from burnish.controller import ClassWithInitArgs, Dispatch, ResourcePool, Worker, register
from burnish.data.files import Row
from burnish.errors import ToolFailure
from burnish.models.device import pick_device
from burnish.models.loading import load_tokenizer
from burnish.rewards.scoring import facts_of
from burnish.rollout import load_engine
from burnish.trainer import executor
from burnish.trainer.experience import training_sampling

NumberedRow = tuple[int, Row]  # with its number in the file
Answers = list[dict[str, Any]]  # of the samples of some rows, row by row
Answer = Callable[[Sequence[NumberedRow]], Answers]


class GenerationWorker(Worker):
    def __init__(self, config: GenerationConfig):
        rollout, self.config = config.rollout, config
        model = dataclasses.replace(config.model, enable_gradient_checkpointing=False)  # nothing is trained
        tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        dtype = None if rollout.dtype == "auto" else rollout.dtype
        # Of several processes each sees its own GPU alone.
        engine = load_engine(model, tokenizer, rollout, pick_device(config.trainer.device), dtype)
        with ExitStack() as stack:
            stack.enter_context(closing(engine))
            self.runner = TrajectoryRunner(engine, tokenizer, agent_settings(config))
            stack.enter_context(closing(self.runner))
            self._open = stack.pop_all()

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def answer(self, rows: Sequence[NumberedRow]) -> Answers:
        config = self.config
        trajectories = self.runner.run(
            [{**row, "uid": i, "sample": k} for i, row in rows for k in range(config.data.n_samples)],
            training_sampling(config.rollout),
            namespace="val",  # of the noise: validation's own
            seed=config.trainer.seed,
            deadline_s=config.rollout.timeout,
        )
        entries = []
        for trajectory in trajectories:
            output, facts = trajectory.output, facts_of(trajectory.output)
            if "failure" in output.extra_fields:
                raise ToolFailure(f"row {trajectory.row['uid']}: {output.extra_fields['failure']}")
            entry = {
                "responses": trajectory.text,
                "response_log_probs": math.fsum(output.response_logprobs or ()),  # 0 where the policy did not sample
                "finish_reasons": output.extra_fields.get("finish_reason"),
                "response_lengths": len(output.policy_ids),
                "num_turns": facts["num_turns"],
                "num_tool_calls": facts["num_tool_calls"],
            }
            entries.append(entry)
        return entries

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        self._open.close()


@contextmanager
def engines(config: GenerationConfig, count: int) -> Iterator[list[Answer]]:
    """What answers rows: one in this process, or `count` in processes of this machine."""
    if count == 1:
        with closing(GenerationWorker(config)) as worker:
            yield [worker.answer]
        return
    group = executor.start(config, config.trainer)
    try:
        pool = ResourcePool([count], "generation", config.trainer.device)
        workers = group.spawn(pool, {"generation": ClassWithInitArgs(GenerationWorker, config)})["generation"]
        yield [one.answer for one in workers.apart()]
        workers.close()  # what tools have started; after a failure the processes are killed
    finally:
        group.disconnect()


def answers(
    workers: Sequence[Answer], batches: Sequence[range], read: Callable[[range], list[NumberedRow]]
) -> Iterator[tuple[range, Answers]]:
    """The answers to each batch, in the order in which they are done. A worker that is idle takes the next batch."""
    if len(workers) == 1:
        yield from ((numbers, workers[0](read(numbers))) for numbers in batches)
        return
    threads = ThreadPoolExecutor(len(workers), "batches")
    left, idle = iter(batches), list(workers)
    running: dict[Future[Answers], tuple[Answer, range]] = {}
    try:
        while True:
            for worker, numbers in zip(idle, left, strict=False):
                running[threads.submit(worker, read(numbers))] = worker, numbers
            if not running:
                return
            idle = []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                worker, numbers = running.pop(future)
                yield numbers, future.result()
                idle.append(worker)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # calls that run end with the processes


def agent_settings(config: GenerationConfig) -> AgentSettings:
    """What dataset and agents read, under the names of training."""
    data = DataConfig(
        prompt_key=config.data.prompt_key,
        truncation=config.data.truncation,
        apply_chat_template_kwargs=config.data.apply_chat_template_kwargs,
        escape_special_tokens=config.data.escape_special_tokens,
        max_obs_length=config.data.max_obs_length,
        max_prompt_length=config.rollout.prompt_length,
        max_response_length=config.rollout.response_length,
    )
    settings = AgentSettings(data, config.rollout, config.retriever, config.max_turns)
    loop_config = SimpleNamespace(
        data=data,
        actor_rollout_ref=SimpleNamespace(model=config.model, rollout=config.rollout),
        algorithm=SimpleNamespace(state_masking=settings.state_masking),
        reward_model=SimpleNamespace(sandbox=settings.sandbox),
        retriever=config.retriever,
        max_turns=config.max_turns,
        trainer=config.trainer,
    )
    return dataclasses.replace(settings, loop_config=loop_config)
