"""A rollout engine whose requests and weights go to a program in separate processes.

`generate` may be awaited in any event loop, and everything else be called in any thread. Weights come by `publish`
only, as files (`weights`). Requests that run then continue with the new ones: what they have stays, and is read again
as part of the prompt. Whoever has the trained module may `expect` log-probs of new weights: no token is sampled with
them before they are found. Requests are admitted in the order they come: `order` has no effect here.
"""

import copy
import itertools
import math
import os
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from burnish.config.engines import EngineSpec
from burnish.config.rollout import RolloutConfig
from burnish.errors import EngineLost, NotAvailable, RolloutError
from burnish.rollout.admission import Admitting, RequestState
from burnish.rollout.base import OnToken, Request, Sampling
from burnish.rollout.hosted.keeper import python_path
from burnish.rollout.hosted.process import CLOSED, FIRST_REQUEST, HostedRequest, HostedTokens, HostProcess
from burnish.rollout.hosted.weights import Proof, WeightFolder

# Seconds without a sign of life, of which there is none during a step. On a CPU a long prompt takes minutes.
HEARTBEAT_S = {"cuda": 300.0, "cpu": 600.0}
COUNTED = ("requests", "aborted", "prompt_tokens", "generated_tokens")
SOCKET_CHARACTERS = 107 - 37  # of a folder with sockets whose names have 36: a path has 107 at most


@dataclass(eq=False)
class HostedState(RequestState):
    number: int = 0
    is_ended: bool = False  # by the program
    is_aborted: bool = False

    def take(self, tokens: HostedTokens, version: int) -> None:
        """In the event loop of the caller. What goes wrong here, in its `on_token` or with a stop string, is its error.
        `version` is that of a completion without tokens."""
        try:
            for token_id, log_prob in zip(tokens.token_ids, tokens.log_probs, strict=True):
                if self.done:
                    return
                if not math.isfinite(log_prob):
                    raise RolloutError(
                        f"request {self.request_id}: the log-prob of token {len(self.token_ids)} is {log_prob}: with "
                        f"version {tokens.version} of the weights, logits are no numbers"
                    )
                self.versions.append(tokens.version)
                self.accept(token_id, log_prob, version)
            if tokens.end == "abort" and not self.done:
                self.finish("abort", None, version)
            elif tokens.end is not None and not self.done:
                raise RolloutError(
                    f"request {self.request_id}: it was ended ({tokens.end}) after {len(self.token_ids)} of "
                    f"{self.limit} tokens, by none that it should stop at"
                )
        except Exception as error:  # noqa: BLE001 (it rises where the request is awaited)
            self.fail_here(error)


class HostedEngine(Admitting):
    """`host` is the module that has the program in it. A subclass says what is particular about the program."""

    spec: ClassVar[EngineSpec]
    host: ClassVar[str]
    own_weights = runs_on = True
    state_type = HostedState

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        config: RolloutConfig,
        logs: Path | None = None,
        heartbeat_s: float | None = None,
    ):
        """`heartbeat_s` without a sign of life, and the program counts as lost; None: as the device needs."""
        super().__init__(module, tokenizer, config.max_model_len)
        self.name, self.label = self.spec.name, self.spec.label
        parameters = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
        # Weights that are published in another type are rounded to it.
        self.dtype = next(parameters) if config.dtype == "auto" else getattr(torch, config.dtype)
        self.weights = WeightFolder(module, self.dtype)
        self._exchange = threading.Lock()  # for the files: they are not replaced while they are read
        self._place = _short_folder(f"burnish-{self.name}-")
        self._logs, self._keeps_log = logs or Path(tempfile.gettempdir()), logs is not None
        self._heartbeat_s = heartbeat_s or HEARTBEAT_S["cuda" if torch.cuda.is_available() else "cpu"]
        model = Path(self._place.name) / "model"
        self._write_config(module, model)
        self._arguments = self._engine_arguments(config, model, module.config)
        self._environment = self._process_environment(Path(self._place.name))
        self._stats = dict.fromkeys(COUNTED, 0)
        self._start()

    @classmethod
    def from_config(
        cls, module: nn.Module, tokenizer: Any, config: RolloutConfig, logs: Path | None = None
    ) -> "HostedEngine":
        """ConfigError where the program is not installed, or cannot be used where the module is."""
        gpus = int(next(module.parameters()).device.type != "cpu")
        cls.spec.check_installed(f"rollout.name={cls.spec.name}", "rollout.name=")
        cls.spec.check_devices(RolloutConfig(name=cls.spec.name), "rollout", gpus, "rollout.name=")
        return cls(module, tokenizer, config, logs)

    @abstractmethod
    def _engine_arguments(self, config: RolloutConfig, folder: Path, model: Any) -> dict[str, Any]:
        """Of the program's engine. `folder` has the config.json of `model` and nothing else."""

    @abstractmethod
    def _process_environment(self, temporary: Path) -> dict[str, str]:
        """Of the program's processes. Files that they leave behind go to `temporary`."""

    @abstractmethod
    def _request_arguments(self, request: RequestState) -> dict[str, Any]:
        """How the program shall sample. Ends of sequences are among `stop_ids`; stop strings are matched here."""

    # Its process

    def _write_config(self, module: nn.Module, folder: Path) -> None:
        config: Any = copy.deepcopy(module.config)
        if not type(config).__module__.startswith("transformers."):
            raise NotAvailable(
                f"rollout.name={self.name} for {type(module).__name__}, a model with custom code",
                f"{self.label} has none for it: use rollout.name=native or hf",
            )
        vars(config).pop("auto_map", None)  # whose code would be looked for in the folder
        config.architectures = config.architectures or [type(module).__name__]
        config.eos_token_id = None  # every request says what ends it
        config.save_pretrained(folder)

    def _start(self) -> None:
        self._flights: dict[int, HostedState] = {}
        self._numbers = itertools.count(FIRST_REQUEST)
        self._has_weights = False
        self._logs.mkdir(parents=True, exist_ok=True)
        # Several engines may log to one folder, and one that was renewed has a file for each life.
        handle, log_file = tempfile.mkstemp(prefix=f"{self.name}-", suffix=".log", dir=self._logs)
        os.close(handle)
        self.process = HostProcess(
            self.label,
            self.host,
            self._arguments,
            [self.weights.path, Path(self._place.name)],
            self._environment,
            Path(log_file),
            self._on_tokens,
            self._fail_all,
            self._heartbeat_s,
        )

    # Requests

    def _take_request(self, request: Request, on_token: OnToken | None) -> RequestState:
        if not self._has_weights:
            raise RolloutError(
                f"request {request.request_id}: no weights have been published to {self.label} yet; publish them first"
            )
        return super()._take_request(request, on_token)

    def _enter(self, request: HostedState) -> None:
        request.number = next(self._numbers)
        self._flights[request.number] = request
        self._stats["requests"] += 1
        self._stats["prompt_tokens"] += len(request.prompt_ids)
        prompt_ids, arguments = list(map(int, request.prompt_ids)), self._request_arguments(request)
        streams = request.matcher is not None or request.on_token is not None
        asked = HostedRequest(prompt_ids, arguments, request.sampling.seed, request.limit, streams)
        try:
            self.process.ask(request.number, asked)
        except EngineLost as error:
            raise EngineLost(f"request {request.request_id}: {error}") from error

    def _leave(self, request: HostedState) -> None:
        del self._flights[request.number]
        self._stats["generated_tokens"] += len(request.token_ids)
        self._end(request)

    def _end(self, flight: HostedState) -> None:
        if not flight.is_ended and self.process.lost is None:
            with suppress(EngineLost):  # whoever asks next hears of it
                self.process.abort(flight.number)

    def abort(self, request_id: str) -> None:
        for flight in list(self._flights.values()):
            if flight.request_id == request_id and not flight.done:
                self._stats["aborted"] += not flight.is_aborted
                flight.is_aborted = True
                self._end(flight)

    def _on_tokens(self, number: int, tokens: HostedTokens) -> None:
        """In the process's thread."""
        flight = self._flights.get(number)
        if flight is None:
            return
        flight.is_ended = tokens.end is not None or tokens.problem is not None
        if tokens.problem is not None:
            error = RolloutError(f"request {flight.request_id}: {self.label}: {tokens.problem}")
            self._in_its_loop(flight, flight.fail_here, error)
        else:
            self._in_its_loop(flight, flight.take, tokens, self.version)

    def _fail_all(self, reason: str) -> None:
        """In the thread that found out."""
        for flight in list(self._flights.values()):
            self._in_its_loop(flight, flight.fail_here, EngineLost(f"request {flight.request_id}: {reason}"))

    def _in_its_loop(self, flight: HostedState, function: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody awaits the request
            flight.future.get_loop().call_soon_threadsafe(function, *arguments)

    # Weights

    def publish(self, weights: Iterable[Mapping[str, Tensor]] | None, version: int) -> None:
        if weights is None:
            raise RolloutError(
                f"the {self.name} engine has its own copy of the weights: publish buckets of them, not None"
            )
        if self._asleep:
            raise RolloutError("weights cannot be published while the engine sleeps; call wake() first")
        with self._exchange:
            try:
                self.weights.write(weights, version)
                self._load()
            except BaseException:
                self._is_whole = False
                raise

    def expect(self, proof: Proof) -> None:
        """Called before the weights of its version are published: they are not used where they do not give this."""
        self.weights.proof = proof

    def _load(self) -> None:
        """Take over the weights in the files; whoever calls it has `_exchange`."""
        version = self.weights.version
        assert version is not None, "all files are written"
        said = self.process.call("load", [str(file) for file in self.weights.files], version)
        for worker, answer in enumerate(said):
            who = f"{self.label}'s worker {worker}"
            self.weights.compare(answer["digests"], who)
            if absent := answer["absent"]:
                raise RolloutError(
                    f"{len(absent)} weights of {who} were not loaded from version {version}, such as {absent[0]}: "
                    f"{self.label} has other weights for this model than transformers; use rollout.name=native or hf"
                )
        if (proof := self.weights.proof) is not None and proof.version == version:
            proof.check(self.process.call("log_probs_of", proof.token_ids), self.label)
        self.version = version
        self.process.call("open")
        self._is_whole = self._has_weights = True

    def log_probs_of(self, token_ids: Sequence[int]) -> list[float]:
        """The log-prob of each token after the first, given those before it, at temperature 1; by the weights that
        generate, and with nothing that was computed before."""
        self._refuse_unready(Request((), Sampling(), "log_probs_of"))
        values: list[float] = self.process.call("log_probs_of", [int(i) for i in token_ids])
        return values

    def sleep(self) -> None:
        """Requests are refused; whether memory is given back is up to the program."""
        self._refuse_while_running("memory cannot be given back")
        if not self._asleep:
            self.process.call("sleep")
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self.process.call("wake")
            self._asleep = False

    def stats(self) -> dict[str, float]:
        return dict(self._stats)

    # Life and death

    def lost(self) -> str | None:
        """Its process ended, its program is dead, or gave no sign of life for `HEARTBEAT_S`."""
        return self.process.lost

    def renewed(self) -> "HostedEngine":
        self.process.close()
        new = copy.copy(self)
        new._active, new._asleep, new._stats = {}, False, dict.fromkeys(COUNTED, 0)
        new._start()
        try:
            with self._exchange:
                if new.weights.version is not None:
                    new._load()
        except BaseException:
            new.process.close()
            raise
        return new

    def close(self) -> None:
        self.process.close()
        if not self._keeps_log and self.process.lost == CLOSED:
            self.process.log_file.unlink(missing_ok=True)
        self.weights.close()
        self._place.cleanup()


def environment(temporary: Path, defaults: Mapping[str, str], fixed: Mapping[str, str]) -> dict[str, str]:
    """Of a program's processes: this one's, with `defaults` for what the user did not set, and with what is `fixed`.
    Their sockets and other files go to `temporary`, because programs leave them behind."""
    own = {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)}
    return {**defaults, **os.environ, **own, **fixed}


def _short_folder(prefix: str) -> "tempfile.TemporaryDirectory[str]":
    """In the temporary folder, or in /tmp where its path is too long for sockets."""
    folder = tempfile.TemporaryDirectory(prefix=prefix)
    if len(folder.name) <= SOCKET_CHARACTERS:
        return folder
    folder.cleanup()
    return tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp")
