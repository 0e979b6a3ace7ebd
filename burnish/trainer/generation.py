"""Responses to the prompts of a file, sampled as validation samples them: what `burnish generate` runs.

Chat template, agent loops, sampling and seeds are those of validation; the uid is a row's number in its file. Where
uids agree, the same seed and sampling give the same responses, whatever the batch size.
"""

import logging
import shlex
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.agents.base import user_loops
from burnish.agents.check import AgentCheck
from burnish.config import GenerationConfig, Loaded, explain
from burnish.data.chat import ChatRenderer, SpecialTexts
from burnish.data.files import at
from burnish.entry.ending import terminated_as_interrupted
from burnish.errors import BurnishError, ConfigError, DataError
from burnish.literal import print_text
from burnish.models.device import gpus
from burnish.models.facts import read_model_facts
from burnish.models.loading import load_tokenizer
from burnish.tracking.progress import Progress
from burnish.tracking.watchdog import Watchdog
from burnish.trainer import executor
from burnish.trainer.generation_worker import Answer, NumberedRow, agent_settings, answers, engines
from burnish.trainer.response_file import ADDED, GenerationOutput, PromptFile, job_facts, output_schema

log = logging.getLogger(__name__)


class GenerationJob:
    """The rows of a job, checked, and the output that their answers make."""

    def __init__(self, config: GenerationConfig):
        self.config, settings = config, agent_settings(config)
        model, data = config.model, config.data
        tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
        self.prompts = PromptFile(data.path, settings.data)
        chat = ChatRenderer(tokenizer, data.apply_chat_template_kwargs, escape=data.escape_special_tokens)
        check_prompts(self.prompts, chat, config, AgentCheck(settings, tokenizer))
        self.schema = output_schema(data.path, self.prompts.arrow.schema)

    def answers(self, workers: Sequence[Answer], batches: Sequence[range]) -> Generator[tuple[range, pa.Table]]:
        """The output for each of the batches, in the order in which they are done."""
        n = self.config.data.n_samples
        for numbers, entries in answers(workers, batches, self._rows):
            groups = [entries[i : i + n] for i in range(0, len(entries), n)]
            added = [pa.array([[e[field.name] for e in group] for group in groups], type=field.type) for field in ADDED]
            given = self.prompts.arrow.slice(numbers.start, len(numbers)).columns
            yield numbers, pa.Table.from_arrays([*given, *added], schema=self.schema)

    def _rows(self, numbers: range) -> list[NumberedRow]:
        return list(zip(numbers, self.prompts.rows(numbers), strict=True))


def generate(loaded: Loaded[GenerationConfig]) -> str | None:
    """One job of `burnish generate`; its keys are checked, and all else that can be before a model is loaded. Returns
    what was done in words; None where all was there."""
    config = loaded.config
    loaded.log_notices()
    with _keys_of_this_command(), terminated_as_interrupted():
        processes = process_count(config)  # a missing GPU is reported before anything is read
        check_context(config)
        loops = user_loops(config.rollout.agent).values()
        facts = job_facts(config, [getattr(loop, "func", loop).__module__ for loop in loops])  # some with arguments
        with GenerationOutput(config.data.output_path, facts, overwrite=config.data.overwrite) as output:
            if output.is_complete():
                log.info("%s is complete: it has the responses of this command", output.path)
                return None
            print_text(explain(config, loaded.explicit))
            job = GenerationJob(config)
            output.begin(job.schema, len(job.prompts))
            if output.saved:
                log.info("resuming: %d of %d rows are in %s", output.saved, output.total, output.folder)
            watchdog = Watchdog(output.folder, "generate", stage=lambda: "")  # leaves nothing unless a wait is late
            watchdog.start()
            try:
                speed = answer_all(job, output, processes)
                output.merge()
            except BaseException as error:
                if (saved := output.saved) or isinstance(error, KeyboardInterrupt):
                    log.warning("stopped: %d of %d rows are saved; run the same command to resume", saved, output.total)
                raise
            finally:
                watchdog.stop()
        return summary(config, speed)


def answer_all(job: GenerationJob, output: GenerationOutput, processes: int) -> float:
    """Answer and save every row that is missing; returns tokens per second, 0 if none was missing."""
    left, tokens, speed = output.total - output.saved, 0, 0.0
    if not left:
        return speed
    missing = list(output.missing(min(job.config.data.batch_size, -(-left // processes))))  # work for all of them
    with engines(job.config, processes) as workers, Progress("generating", output.total, done=output.saved) as progress:
        start = time.monotonic()
        with closing(job.answers(workers, missing)) as answered:
            for numbers, table in answered:
                tokens += sum(map(sum, table["response_lengths"].to_pylist()))
                output.write(numbers, table)
                speed = tokens / (time.monotonic() - start)
                progress.advance(len(numbers), f"{speed:.0f} tokens/s")
    return speed


def summary(config: GenerationConfig, tokens_per_second: float) -> str:
    """The last line: what was written, and what to do with it. Warns if no response came to its end."""
    path, limit = config.data.output_path, config.rollout.response_length
    table = pq.ParquetFile(path).read(["finish_reasons", "response_lengths"])
    reasons, lengths = (table[name].combine_chunks().flatten().to_pylist() for name in table.column_names)
    cut = [length for reason, length in zip(reasons, lengths, strict=True) if reason == "length"]
    early = sum(length < limit for length in cut)
    if len(cut) == len(reasons) and not early:
        log.warning("every response was cut at rollout.response_length=%d; raise it", limit)
    elif len(cut) == len(reasons):
        log.warning(
            "every response was cut, %d before they had the %d tokens of rollout.response_length; look at the limits "
            "of the agent loop", early, limit,
        )  # fmt: skip
    share = f"{len(cut) / len(reasons):.1%} cut" + ("" if early else f" at {limit} tokens")
    parts = [f"{len(table)} rows", f"{len(reasons)} responses", share]
    parts += [f"{tokens_per_second:.0f} tokens/s"] if tokens_per_second else []
    key = "" if config.data.prompt_key == "prompt" else f" data.prompt_key={shlex.quote(config.data.prompt_key)}"
    return f"{', '.join(parts)}: {path}. To score them: burnish eval data.path={shlex.quote(path)}{key}"


def process_count(config: GenerationConfig) -> int:
    """By default one for each GPU of the machine, or a single one whose engine has several."""
    count, span = gpus(config.trainer.device), config.rollout.tensor_model_parallel_size
    processes = executor.process_count(config.trainer, count, auto=max(count, 1) if span == 1 else 1)
    if processes > 1 and span > 1:
        raise ConfigError(
            f"rollout.tensor_model_parallel_size={span} with trainer.n_gpus_per_node={processes}: each process sees "
            "one GPU; leave one of them out"
        )
    return processes


def check_context(config: GenerationConfig) -> None:
    model, rollout = config.model, config.rollout
    context = model.override_config.get("max_position_embeddings") or read_model_facts(model.path).context
    longest = rollout.prompt_length + rollout.response_length
    if context is not None and longest > context:
        raise ConfigError(
            f"rollout.prompt_length={rollout.prompt_length} + rollout.response_length={rollout.response_length} = "
            f"{longest} tokens, but {model.path} has a context of {context}; lower one of them"
        )
    if context is not None and (rollout.max_model_len or 0) > context:
        raise ConfigError(
            f"rollout.max_model_len={rollout.max_model_len}, but {model.path} has a context of {context}; lower it"
        )


def check_prompts(prompts: PromptFile, chat: ChatRenderer, config: GenerationConfig, agents: AgentCheck) -> None:
    """Every prompt can be rendered and, if none may be cut, is short enough; its agent and tools exist."""
    limit = config.rollout.prompt_length
    special = SpecialTexts(chat)
    over: dict[int, int] = {}  # tokens of the prompts that are too long, by row
    for numbers, rows in prompts.batches():
        texts = []
        for i, row in zip(numbers, rows, strict=True):
            agents.row(row, partial(at, prompts.path, i))
            with prompts.naming(i):
                texts.append(chat.text(row["raw_prompt"]))
            special.add(row["raw_prompt"], partial(at, prompts.path, i))
        if config.data.truncation == "error":
            counts = zip(numbers, chat.token_counts(texts, limit), strict=True)
            over |= {i: tokens for i, tokens in counts if tokens > limit}
    if over:
        first = min(over)
        with prompts.naming(first):
            raise DataError(
                f"the prompt has {over[first]} tokens, over rollout.prompt_length={limit} ({len(over)} of "
                f"{len(prompts)} prompts are, the longest has {max(over.values())}). Raise it, or cut prompts with "
                "data.truncation=left, right or middle"
            )
    special.warn()
    agents.finish()


@contextmanager
def _keys_of_this_command() -> Iterator[None]:
    """Errors of code shared with training name its keys, which have other names here."""
    try:
        yield
    except BurnishError as error:
        text = str(error).replace("actor_rollout_ref.", "")
        text = text.replace("data.max_prompt_length", "rollout.prompt_length")
        error.args = (text.replace("data.max_response_length", "rollout.response_length"), *error.args[1:])
        raise
