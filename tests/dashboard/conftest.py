"""A folder with two runs, a client of the app over it, and the same behind a real port."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from burnish.dashboard.folders import Folders
from burnish.dashboard.server import make_app
from burnish.web.server import HttpServer, listen, url
from tests.dashboard.made import write_run
from tests.processes import until


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    write_run(tmp_path / "outputs" / "proj" / "first")
    write_run(tmp_path / "outputs" / "proj" / "second", steps=4, lr=0.01)
    return tmp_path / "outputs"


@pytest.fixture
def get(outputs: Path) -> Callable[..., Any]:
    """The JSON of an address below /api; `status` is what is expected."""
    client = TestClient(make_app(Folders([outputs])), base_url="http://127.0.0.1")

    def ask(path: str, status: int | tuple[int, ...] = 200, **parameters: Any) -> Any:
        answer = client.get(f"/api/{path}", params=parameters)
        assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text
        return answer.json()

    return ask


@contextmanager
def serving(outputs: Path, **options: Any) -> Iterator[str]:
    """The address of a server in a thread."""
    with listen("127.0.0.1", 0) as listener:
        ready = threading.Event()
        server = HttpServer(make_app(Folders([outputs]), **options), ready.set, timeout_graceful_shutdown=1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(ready.is_set)
        yield url(listener)
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def address(outputs: Path) -> Iterator[str]:
    with serving(outputs) as found:
        yield found
