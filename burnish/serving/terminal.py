"""`burnish chat`: questions from the terminal or a pipe, answers as they are sampled.

Only answers go to stdout; messages go to stderr. From a pipe each line is a question, and any error ends the command.
The engine runs on the event loop of this thread, only while an answer is generated; Ctrl-C aborts the request.
"""

import asyncio
import contextlib
import json
import re
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from burnish.config.nearest import nearest
from burnish.data.chat import Message
from burnish.errors import BurnishError, ConfigError, DataError
from burnish.literal import literal, print_text
from burnish.openai_wire.text import TextStream
from burnish.rollout.base import Completion, Request, Sampling, request_seed
from burnish.serving.loading import ModelOptions, ServedModel, load, temperature_problem

PROMPT = "you: "
COMMANDS = {
    "/help": "this list",
    "/reset": "forget all turns and start again; the system message stays",
    "/system": "TEXT: set the system message, also during a conversation; without TEXT: remove it",
    "/save": 'FILE: add the conversation to FILE, as a line {"messages": […]} that `burnish sft` can train on',
    "/exit": "leave (also Ctrl-D)",
}
COMMAND = re.compile(r"/[a-z]+")


def chat(options: ModelOptions, sampling: Sampling, seed: int | None, system: str | None) -> int:
    """Chat until the input ends; the exit code."""
    if (problem := temperature_problem(options.engine, sampling.temperature)) is not None:
        raise ConfigError(f"--{problem}")
    model = load(options)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    session = ChatSession(model, ChatHistory(system), sampling, secrets.randbits(63) if seed is None else seed)
    with contextlib.closing(model.engine), asyncio.Runner() as runner:
        if interactive:
            print_notice(f"{model.facts()}. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.")
        for line in lines(interactive):
            try:
                command, text = split(line)
                if command == "/exit":
                    break
                if command:
                    print_notice(obey(command, text, session.conversation))
                elif text.strip() and runner.run(session.turn(text)).finish_reason == "abort" and not interactive:
                    raise KeyboardInterrupt
            except (BurnishError, KeyboardInterrupt) as error:
                if not interactive:
                    raise
                print_notice(str(error) or "stopped")
    return 0


@dataclass
class ChatHistory:
    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Message]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        last = [] if question is None else [{"role": "user", "content": question}]
        return [*first, *self.turns, *last]

    def add(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def save(self, file: str) -> None:
        """One line for the whole conversation, after what the file holds already."""
        path = Path(file).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"messages": self.messages()}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror or error}); name another file") from error


def split(line: str) -> tuple[str, str]:
    """A line as (command, its argument); the command is empty where the line is for the model."""
    word, _, rest = line.partition(" ")
    if line.startswith("//"):
        return "", line[1:]
    if not COMMAND.fullmatch(word):
        return "", line
    if word not in COMMANDS:
        near = nearest(word, COMMANDS)
        hint = f"did you mean {near}?" if near else "/help lists them"
        raise DataError(f"unknown command: {word}; {hint} (`/{word}` says it to the model)")
    return word, rest.strip()


def obey(command: str, argument: str, conversation: ChatHistory) -> str:
    if command == "/reset":
        conversation.turns.clear()
        return "the conversation starts again"
    if command == "/system":
        conversation.system = argument or None
        return "the system message is set" if argument else "there is no system message now"
    if command == "/save":
        if not argument:
            raise DataError("/save needs a file: /save talk.jsonl")
        if not conversation.turns:
            raise DataError("/save: nothing has been said yet")
        conversation.save(argument)
        return f"{len(conversation.messages())} messages added to {argument}"
    return "\n".join(f"{name:<9}{what}" for name, what in COMMANDS.items())


@dataclass
class ChatSession:
    model: ServedModel
    conversation: ChatHistory
    sampling: Sampling  # without its seed
    seed: int
    asked: int = 0

    async def turn(self, question: str) -> Completion:
        prompt = self.model.renderer.prompt_ids(self.conversation.messages(question))
        if len(prompt) >= self.model.context:
            raise DataError(
                f"the conversation would have {len(prompt)} tokens and the context holds {self.model.context}, so the "
                "question was not asked: /reset begins again, /save FILE keeps what there is first"
            )
        self.asked += 1
        request_id = f"chat-{self.asked}"
        sampling = replace(self.sampling, seed=request_seed(self.seed, "chat", 0, 0, self.asked))
        stream, shown = TextStream(self.model.tokenizer, self.model.special_ids, sampling.stop), PrintedAnswer()
        with on_ctrl_c(lambda: self.model.engine.abort(request_id)):
            completion = await self.model.engine.generate(
                Request(prompt, sampling, request_id=request_id),
                on_token=lambda token, _: shown.add(stream.push(token)),
            )
        shown.end(stream.finish(completion.stop))
        if completion.finish_reason == "abort" and not shown.text:
            print_notice("stopped before the first word; the question is dropped")
            return completion
        self.conversation.add(question, shown.text)
        if completion.finish_reason == "abort":
            print_notice("stopped; the part that was written stays in the conversation")
        elif completion.finish_reason == "length":
            limited = len(completion.token_ids) == self.sampling.max_tokens
            full = f"the context of {self.model.context} tokens is full; /reset begins again"
            print_notice(f"cut off: {'--max-tokens' if limited else full}")
        return completion


class PrintedAnswer:
    """An answer on stdout, with control characters made visible; `text` is as the model wrote it."""

    def __init__(self) -> None:
        self.text = ""
        self._failure: OSError | None = None

    def add(self, text: str) -> None:
        """Called by the engine for every token, so what goes wrong here is raised by `end`, not in its batch."""
        self.text += text
        if text and self._failure is None:
            try:
                sys.stdout.write(literal(text))
                sys.stdout.flush()
            except OSError as error:
                self._failure = error

    def end(self, text: str) -> None:
        self.add(text)
        if self._failure is not None:
            raise self._failure
        print_text()


def lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        try:
            for line in sys.stdin:
                yield line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"the input is not UTF-8 ({error.reason} at byte {error.start})") from error
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives `input` line editing and a history)
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print_notice("")
            return
        except UnicodeDecodeError:
            print_notice("that was not UTF-8")
        except KeyboardInterrupt:
            print_notice("\nCtrl-D or /exit leaves")


@contextlib.contextmanager
def on_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in the running event loop on Ctrl-C, instead of raising."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def print_notice(text: str) -> None:
    """A message that is not part of the conversation."""
    print_text(text, sys.stderr)
