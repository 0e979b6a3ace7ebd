"""The routes of the dashboard, and its server.

Whatever a route under /api answers passes through `shown`: texts of files and models have their control characters as
codes before they leave. The page sets texts, never HTML, and its policy (CSP) lets it load nothing but what is served
here. On loopback without a key, requests must name this machine, so that no other site's name can be bound to it.
"""

import ipaddress
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from burnish.dashboard import metrics, samples, settings
from burnish.dashboard.folders import ELSEWHERE, Folders, check_plain, listed, opened
from burnish.errors import ConfigError
from burnish.literal import literal, print_text
from burnish.spans import FOLDER
from burnish.tracking.disk import is_plain, plain
from burnish.tracking.failure import ERROR_FILE
from burnish.tracking.jsonl import METRICS_FILE, last_lines
from burnish.tracking.lock import LOCK_FILE
from burnish.tracking.run_folder import CONFIG_FILE, PROFILES
from burnish.tracking.run_health import read_health
from burnish.tracking.run_status import read_status
from burnish.tracking.trace import Spans, chrome_trace, read_trace
from burnish.tracking.watchdog import STACKS, STATUS
from burnish.web import HttpProblem
from burnish.web.requests import JSON, Limits, bare_app, check_key
from burnish.web.server import HttpServer, is_local, listen, url

GRACE_S = 2
ROUTES = "the page is at /"
EVENTS_FILE = "events.jsonl"
EVENTS = 200  # the last ones of a run
RUNS = 30  # in one answer
STACK_BYTES = 200_000  # of a file with stacks
SPANS = 2000  # of a process and step
CHUNK = 1 << 20  # bytes of a file
# Plotly adds an empty <style>, whose hash this is, and fills it by rules.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGE = Path(str(files("burnish.dashboard") / "page"))
Names = Annotated[Sequence[str], Query(min_length=1, max_length=100)]
Place = Annotated[Sequence[int], Query(max_length=2)]
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def shown(value: Any) -> Any:
    """The same with the control characters of its texts as codes, and as JSON: NaN and infinities are texts."""
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, dict):
        return {literal(str(key)): shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return value if is_plain(value) else [shown(one) for one in value]
    return plain(value)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    try:
        text = json.dumps(shown(value), allow_nan=False)
    except RecursionError:
        raise HttpProblem(404, "a record of this run is nested too deeply to be shown") from None
    return Response(text, status, {"Cache-Control": "no-store", **(headers or {})}, media_type=JSON)


def problem_response(problem: HttpProblem) -> Response:
    return json_response({"detail": str(problem)}, problem.status, problem.headers)


def page_files() -> dict[str, Path]:
    """What is served without a key: the page, and the charts' script of the package plotly."""
    plotly = Path(str(files("plotly") / "package_data" / "plotly.min.js"))
    return {file.name: file for file in PAGE.iterdir() if file.suffix in TYPES} | {"plotly.min.js": plotly}


def make_app(folders: Folders, *, key: str | None = None) -> FastAPI:
    app = bare_app(problem_response, ROUTES, Limits(), docs_url=None, openapi_url=None)
    pages = page_files()

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Any]) -> Response:
        if key is None and not names_this_machine(request.headers.get("host", "")):
            response = problem_response(HttpProblem(403, "without a key, the dashboard answers at 127.0.0.1 only"))
        else:
            response = await answer(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return problem_response(HttpProblem(422, f"{first['loc'][-1]}: {first['msg']}"))

    @app.get("/")
    def index() -> Response:
        return page("index.html")

    @app.get("/page/{name}")
    def page(name: str) -> Response:
        if (file := pages.get(name)) is None:
            raise HttpProblem(404, f"unknown address; {ROUTES}")
        return FileResponse(file, media_type=TYPES[file.suffix], headers={"Cache-Control": "no-cache"})

    app.include_router(api(folders, key))
    return app


def names_this_machine(host: str) -> bool:
    name = re.sub(r":\d+$", "", host)
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def api(folders: Folders, key: str | None) -> APIRouter:
    def check(request: Request) -> None:
        check_key(request, key)

    router = APIRouter(prefix="/api", dependencies=[Depends(check)])
    columns, index = metrics.MetricsCache(), samples.IndexCache()

    def samples_of(run: str) -> samples.Samples:
        folder = folders.run(run)
        return samples.Samples(index, {kind: folders.samples(folder, kind) for kind in ELSEWHERE})

    @router.get("/runs")
    def runs(start: int = 0) -> Response:
        """Newest first, `RUNS` of them."""
        found = sorted(folders.runs().items(), key=lambda item: -changed(item[1]))
        rows = [summary(name, folder) for name, folder in found[start : start + RUNS]]
        return json_response({"runs": rows, "total": len(found)})

    @router.get("/run")
    def run(run: str) -> Response:
        """All but curves and trajectories."""
        folder, found = folders.run(run), samples_of(run)
        return json_response(
            {
                **summary(run, folder),
                "status": status(folder),
                "events": events(folder),
                "samples": {kind: found.steps(kind) for kind in ELSEWHERE},
                "profiles": sorted(profiles(folder)),
                "metrics": sorted(columns.of(folder).columns) if (folder / METRICS_FILE).exists() else [],
            }
        )

    @router.get("/metrics")
    def series(run: str, name: Names, after: int = -1) -> Response:
        found = columns.of(folders.run(run))
        return json_response({"file": found.file, "series": found.series(name, after)})

    @router.get("/trace")
    def trace(run: str, step: int) -> Response:
        """What each process did in a step: of many spans the longest."""
        spans = spans_of(folders.run(run), step)
        longest = {name: sorted(some, key=lambda span: -span["s"])[:SPANS] for name, some in spans.items()}
        return json_response({"processes": [{"name": name, "spans": some} for name, some in longest.items()]})

    @router.get("/trace.json")
    def trace_file(run: str, step: int | None = None) -> Response:
        return json_response(chrome_trace(spans_of(folders.run(run), step)))

    @router.get("/profile")
    def profile(run: str, name: str) -> Response:
        if (path := profiles(folders.run(run)).get(name)) is None:
            raise HttpProblem(404, "there is no such profile")
        file = opened(path)
        return StreamingResponse(iter(partial(file.read, CHUNK), b""), background=BackgroundTask(file.close))

    @router.get("/health")
    def health(run: str) -> Response:
        """Asks the health rules, which read all metrics."""
        folder = folders.run(run)
        check_plain(folder, METRICS_FILE, CONFIG_FILE, "rollouts")
        try:
            found = read_health(folder)
        except ConfigError as error:
            raise HttpProblem(404, str(error)) from None
        return json_response({"verdict": found.verdict()})

    @router.get("/stacks")
    def stacks(run: str, name: str) -> Response:
        folder = folders.run(run)
        if Path(name).name != name:
            raise HttpProblem(404, "there is no such file")
        with opened(folder / STACKS / name) as file:
            return json_response({"text": file.read(STACK_BYTES).decode("utf-8", "replace")})

    @router.get("/config")
    def config(run: Names, every: bool = False) -> Response:
        return json_response({"runs": run, "keys": settings.compare({one: folders.run(one) for one in run}, every)})

    @router.get("/samples")
    def find(
        run: str,
        kind: str = "rollouts",
        first: int = 0,
        last: int = 1 << 62,
        source: str = "",
        low: float = -math.inf,
        high: float = math.inf,
        text: str = "",
        order: str = "",
        like: Place = (),
        after: Place = (),
    ) -> Response:
        """A page of trajectories; `like` is step and row of one whose prompt all must have."""
        found = samples_of(run)
        prompt = str(found.read(kind, like[0], [like[1]])[0].get("prompt")) if len(like) == 2 else None
        query = samples.Query(kind, first, last, source, low, high, text, prompt, order)
        step, place = (after[0], after[1]) if len(after) == 2 else (None, 0)
        return json_response(found.find(query, step, place))

    @router.get("/sources")
    def sources(run: str, step: int, kind: str = "rollouts") -> Response:
        return json_response(samples_of(run).sources(kind, step))

    @router.get("/group")
    def group(run: str, step: int, row: int, kind: str = "rollouts") -> Response:
        """A trajectory with the others of its group."""
        found = samples_of(run)
        rows = found.read(kind, step, found.group(kind, step, row))
        return json_response({"rows": [samples.with_tokens(one) for one in rows]})

    return router


def changed(folder: Path) -> float:
    """When something was last logged."""
    for path in (folder / METRICS_FILE, folder):
        with suppress(OSError):
            return os.lstat(path).st_mtime
    return 0.0


def summary(name: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"run": name, "changed": changed(folder), "state": "unknown", "findings": [], "spark": None}
    try:
        known = status(folder)
        found |= {what: known[what] for what in ("state", "step", "steps", "findings")}
        if (folder / METRICS_FILE).exists():
            found["spark"] = metrics.sampled(folder)
    except HttpProblem as problem:
        found["problem"] = str(problem)
    return found


def status(folder: Path) -> dict[str, Any]:
    check_plain(folder, METRICS_FILE, EVENTS_FILE, ERROR_FILE, LOCK_FILE, CONFIG_FILE, STATUS, STACKS)
    try:
        known = asdict(read_status(folder))
    except ConfigError as error:
        raise HttpProblem(404, str(error)) from None
    return {**known, "stacks": Path(known["stacks"]).name if known["stacks"] else None}


def events(folder: Path) -> list[dict[str, Any]]:
    check_plain(folder, EVENTS_FILE)
    try:
        return last_lines(folder / EVENTS_FILE, EVENTS)
    except OSError:
        return []


def spans_of(folder: Path, step: int | None) -> Spans:
    if (folder / FOLDER).is_symlink():
        raise HttpProblem(404, f"{FOLDER} of this run is a link, which the dashboard does not follow")
    try:
        return read_trace(folder, step, opened)
    except ConfigError:  # it has none, or not that step
        return {}


def profiles(folder: Path) -> dict[str, Path]:
    """The files of profiled steps, by name."""
    steps = [step for step in listed(folder / PROFILES) if step.is_dir(follow_symlinks=False)]
    return {f"{step.name}/{file.name}": Path(file) for step in steps for file in listed(Path(step))}


def serve(roots: Sequence[str], host: str, port: int, key: str | None = None) -> int:
    """Until a signal; the exit code. Reachable from other machines only with a key: one is made if none is given."""
    folders = Folders(roots)
    with listen(host, port) as listener:
        if key is None and not is_local(listener):
            key = secrets.token_urlsafe(24)
        app = make_app(folders, key=key)
        address = f"{url(listener)}/" + (f"#key={quote(key, safe='')}" if key else "")
        server = HttpServer(app, lambda: print_text(f"dashboard: {address}"), timeout_graceful_shutdown=GRACE_S)
        server.run(sockets=[listener])
        return server.exit_code
