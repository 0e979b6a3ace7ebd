"""Programs on a SandboxFusion server: `await FusionSandbox("http://host:8080/run_code").run(program, limits)`.

Each program is one POST; the server's answer becomes an Outcome. A server that is busy, down, slow or confused is asked
again after a pause, a few times and up to a deadline; then the outcome is `failed`, with the reason.

How it differs from the local sandbox: the server decides what a program may see and reach, and how memory, processes
and disk are limited (only the memory limit is sent); one that is cancelled here runs on there until its time is up.
"""

import asyncio
import json
import time

import httpx

from burnish.errors import ConfigError
from burnish.sandbox import Limits, Outcome, Program

TRIES = 4
FIRST_PAUSE = 0.5  # seconds, doubled each time
ANSWER_SECONDS = 20.0  # for the way and the server's queue, beyond what the program may take
COMPILE_SECONDS = 10.0
ASK_AGAIN = (429, 500, 502, 503, 504)
HELLO = "burnish asks whether programs run here"
_KEY = "reward_model.sandbox.url"
_HINTS = {
    404: "; it takes programs at /run_code",
    401: "; it needs a password, which can be part of the address",
    422: "; it does not speak the SandboxFusion API",
}


class _Trouble(Exception):
    """The server gave no outcome."""

    def __init__(self, what: str, may_pass: bool = True):
        super().__init__(what)
        self.may_pass = may_pass


class FusionSandbox:
    """`url` is where the server takes programs: `http://host:8080/run_code`; without a path, `/run_code` is meant."""

    def __init__(self, url: str | None):
        self.url = _checked(url)
        self.shown = str(self.url.copy_with(username=None, password=None))
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    async def run(self, program: Program, limits: Limits) -> Outcome:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:  # connections are kept, and belong to the event loop they were made on
            self._clients = {other: client for other, client in self._clients.items() if not other.is_closed()}
            self._clients[loop] = self._new_client()
        return await self._try(self._clients[loop], program, limits)

    async def unavailable_reason(self) -> str | None:
        async with self._new_client() as client:
            outcome = await self._try(client, Program(f"print({HELLO!r})"), Limits())
        if outcome.status == "failed":
            return f"{_KEY}={outcome.reason}. Start a SandboxFusion server there, or correct the address"
        if outcome.succeeded and outcome.stdout.strip() == HELLO:
            return None
        shown = (outcome.stderr or outcome.stdout).strip()[-200:] or "no output"
        described = f"{outcome.status}, exit code {outcome.exit_code}, {shown!r}"
        return f"{_KEY}={self.shown}: the server does not run Python correctly: {described}"

    async def _try(self, client: httpx.AsyncClient, program: Program, limits: Limits) -> Outcome:
        deadline = time.monotonic() + 2 * (limits.seconds + ANSWER_SECONDS)
        pause = FIRST_PAUSE
        for tries_left in reversed(range(TRIES)):
            try:
                return await self._ask(client, program, limits)
            except _Trouble as trouble:
                if not tries_left or not trouble.may_pass or time.monotonic() + pause > deadline:
                    return Outcome("failed", reason=f"{self.shown}: {trouble}")
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("the last try returns")

    def _new_client(self) -> httpx.AsyncClient:
        needs_certificates = self.url.scheme == "https"  # loading them takes longer than a short program
        return httpx.AsyncClient(verify=needs_certificates, limits=httpx.Limits(max_connections=None))

    async def _ask(self, client: httpx.AsyncClient, program: Program, limits: Limits) -> Outcome:
        seconds = limits.seconds + ANSWER_SECONDS
        most = 16 * limits.output_bytes + 2**16  # two streams, in which JSON may write a character as six
        request = {
            "code": program.source,
            "language": "python",
            "stdin": program.stdin,
            "compile_timeout": COMPILE_SECONDS,
            "run_timeout": limits.seconds,
            "memory_limit_MB": limits.memory_mb,
            "files": {},
            "fetch_files": [],
        }
        body = bytearray()
        try:
            async with asyncio.timeout(seconds), client.stream("POST", self.url, json=request, timeout=None) as answer:
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > most:
                        return Outcome("output")
        except TimeoutError:
            raise _Trouble(f"no answer within {seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise _Trouble(f"{type(error).__name__}: {error}".removesuffix(": ")) from None
        status = answer.status_code
        if status != 200:
            detail = " ".join(body.decode("utf-8", "replace").split())[:200] or "no text"
            raise _Trouble(f"status {status}{_HINTS.get(status, '')} ({detail})", may_pass=status in ASK_AGAIN)
        return _outcome(bytes(body), limits)


def _outcome(body: bytes, limits: Limits) -> Outcome:
    try:
        answer = json.loads(body)
        status, message, result = answer["status"], answer.get("message"), answer.get("run_result")
        if status == "SandboxError" or not result or result["status"] == "Error":
            detail = message or (result or {}).get("stderr") or "no run_result"
            raise _Trouble(f"the server could not run the program: {str(detail)[:500]}")
        stdout, stderr = (str(result.get(name) or "") for name in ("stdout", "stderr"))
        code, seconds = result.get("return_code"), float(result.get("execution_time") or 0.0)
        ending = {"Finished": "finished", "TimeLimitExceeded": "timeout"}[result["status"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Trouble(f"an answer that cannot be read ({type(error).__name__}): {body[:200]!r}") from None
    if max(len(stdout.encode("utf-8", "replace")), len(stderr.encode("utf-8", "replace"))) > limits.output_bytes:
        return Outcome("output", seconds=seconds)
    if ending == "timeout":
        return Outcome("timeout", stdout=stdout, stderr=stderr, seconds=seconds)
    if not isinstance(code, int):
        raise _Trouble(f"an answer without return_code: {body[:200]!r}")
    return Outcome("finished", code, stdout, stderr, seconds)


def _checked(url: str | None) -> httpx.URL:
    try:
        parsed = httpx.URL(url or "")
    except httpx.InvalidURL as error:
        raise ConfigError(f"{_KEY}={url}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{_KEY}={url}: must be the address of a server, as http://host:8080/run_code")
    return parsed if parsed.path.strip("/") else parsed.copy_with(path="/run_code")
