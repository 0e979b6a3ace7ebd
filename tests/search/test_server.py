"""The retrieval server: what it answers and refuses, how requests share calls, and that all is as its API page says."""

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from burnish.search import server as module
from burnish.search.documents import AnswerCache, Document, Hit
from burnish.search.server import make_app
from burnish.web.server import listen, url
from tests.processes import until
from tests.search.conftest import CORPUS, Words, serving

FAUST, HAMLET = ({"id": doc.id, "contents": doc.contents} for doc in CORPUS[:2])


def test_defaults_of_a_request_and_health(words):
    with serving(words, topk=2, checksum="abc") as server:
        for body in ({"queries": ["a"]}, {"queries": ["a"], "topk": None}):
            assert len(server.post(body).json()["result"][0]) == 2
        assert len(server.post({"queries": ["a"], "topk": 1.0}).json()["result"][0]) == 1
        assert len(server.post({"queries": ["a"], "topk": 100}).json()["result"][0]) == len(CORPUS)
        for body in ({"queries": ["goethe"]}, {"queries": ["goethe"], "return_scores": False}):
            assert server.post(body).json() == {"result": [[FAUST]]}
        state = server.http.get("/health").json()
    assert state == {"status": "ok", "retriever": "words", "documents": 4, "topk": 2, "checksum": "abc"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "queries: Field required"),
        ([], "the body: expected an object with the fields queries, topk and return_scores"),
        ({"queries": []}, "queries: List should have at least 1 item"),
        ({"queries": "who"}, "queries: Input should be a valid list"),
        ({"queries": None}, "queries: Input should be a valid list"),
        ({"queries": [["who"]]}, "queries[0]: Input should be a valid string"),
        ({"queries": ["who", 3]}, "queries[1]: Input should be a valid string"),
        ({"queries": ["who", ""]}, "queries[1]: String should have at least 1 character"),
        ({"queries": [" \n"]}, "queries[0]: is empty"),
        ({"queries": ["x" * 5000]}, "queries[0]: String should have at most 4096 characters"),
        ({"queries": ["x"] * 5000}, "queries: List should have at most 4096 items"),
        ({"queries": ["x"], "topk": 0}, "topk: Input should be greater than or equal to 1"),
        ({"queries": ["x"], "topk": 101}, "topk: Input should be less than or equal to 100"),
        ({"queries": ["x"], "topk": 10**30}, "topk: Input should be less than or equal to 100"),
        ({"queries": ["x"], "topk": [3]}, "topk: Input should be a valid integer"),
        ({"queries": ["x"], "topk": "3"}, "topk: Input should be a valid integer"),
        ({"queries": ["x"], "topk": 1.5}, "topk: Input should be a valid integer"),
        ({"queries": ["x"], "topk": True}, "topk: Input should be a valid integer"),
        ({"queries": ["x"] * 4000, "topk": 100}, "queries: 4000 with topk=100 are more than 65536 documents"),
        ({"queries": ["x"], "return_scores": 1}, "return_scores: Input should be a valid boolean"),
        ({"queries": ["x"], "top_k": 3}, "top_k: there is no such field; there are queries, topk and return_scores"),
        ({"queries": ["x"], **{str(i): i for i in range(100_000)}}, "the body: expected an object"),
        ({"queries": [1] * 1_000_000}, "queries[0]: Input should be a valid string"),
    ],
)
def test_bad_requests_name_the_field(calm_server, body, reason):
    searched = len(calm_server.retriever.calls)
    answer = calm_server.post(body)
    assert answer.status_code == 422 and answer.json()["detail"].startswith(reason)
    assert len(calm_server.retriever.calls) == searched


def test_other_bodies_and_addresses_are_refused(calm_server):
    for body in (b"", b"{", b"\xff", b'{"queries": ["\\ud800"]}', b"[" * 100_000, b"queries=who"):
        answer = calm_server.post(content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422 and answer.json()["detail"].startswith("the body is not readable as JSON")
    form = calm_server.post(data={"queries": "x"})  # which a web page can make a browser send
    assert form.status_code == 415 and "Content-Type: application/json" in form.json()["detail"]
    large = calm_server.post({"queries": ["x" * 9_000_000]})
    assert large.status_code == 413 and "larger than 8388608 bytes" in large.json()["detail"]
    for path in ("/", "/retrieve/", "/Retrieve"):
        answer = calm_server.http.post(path, json={"queries": ["x"]})
        assert answer.status_code == 404 and "there are POST /retrieve" in answer.json()["detail"]
    answer = calm_server.http.get("/retrieve")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_requests_share_calls_and_a_long_one_is_cut_into_several(server, words):
    words.gate.clear()
    with ThreadPoolExecutor(21) as clients:
        first = clients.submit(server.post, {"queries": ["faust"]})
        until(lambda: len(words.calls) == 1)
        others = [clients.submit(server.post, {"queries": [f"novel {i}"], "topk": 1 + i % 2}) for i in range(20)]
        server.wait_for("queries_waiting", 20)
        words.gate.set()
        assert first.result().json() == {"result": [[FAUST]]}
        for i, other in enumerate(others):
            assert [item["id"] for item in other.result().json()["result"][0]] == ["2", "3"][: 1 + i % 2]
    assert sorted(len(queries) for queries, _ in words.calls) == [1, 10, 10]
    assert {topk for _, topk in words.calls} == {3, 1, 2} and len(words.threads) == 1
    assert server.metrics()["batches_total"] == 3 and server.metrics()["batch_queries_total"] == 21
    words.calls.clear()
    queries = [f"whale {i}" for i in range(300)]
    answer = server.post({"queries": queries, "topk": 1}).json()["result"]
    assert len(answer) == 300 and all(items[0]["id"] == "2" for items in answer)
    assert [query for call, _ in words.calls for query in call] == queries
    assert max(len(call) for call, _ in words.calls) <= 128


def test_equal_queries_are_searched_once(server, words):
    words.gate.clear()
    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(server.post, {"queries": ["whale", "novel", "whale"]}) for _ in range(3)]
        server.wait_for("queries_total", 9)
        words.gate.set()
        assert len({answer.result().text for answer in asked}) == 1
    assert server.post({"queries": ["novel", "novel"]}).json()["result"][0][0]["id"] == "2"
    assert sorted(query for call, _ in words.calls for query in call) == ["novel", "whale"]
    metrics = server.metrics()
    assert (metrics["joined_queries_total"], metrics["cache_hits_total"]) == (7, 2)
    server.post({"queries": ["novel"], "topk": 1})  # another topk is another answer
    assert words.calls[-1] == (["novel"], 1)


def test_the_cache_is_bounded_and_can_be_turned_off(words, monkeypatch):
    with serving(words, cached_documents=0) as server:
        for _ in range(2):
            server.post({"queries": ["whale"]})
        assert len(words.calls) == 2 and server.metrics()["cached_documents"] == 0
    cache = AnswerCache(4)
    for key, size in (("a", 2), ("b", 1), ("c", 0)):
        cache.put(key, [0] * size, 1)
    assert cache.get("a") == [0, 0] and cache.documents == 4
    cache.put("d", [0], 1)  # "b" is what nobody asked for since
    assert (cache.get("b"), cache.get("c"), cache.get("a"), cache.documents) == (None, [], [0, 0], 4)
    cache.put("a", [1], 1)
    assert cache.documents == 3
    cache.put("e", [0] * 5, 1)
    assert cache.get("e") is None and cache.documents == 3, "what cannot be kept costs nothing else its place"

    cache = AnswerCache(100, max_characters=10)  # long documents take more of it
    for key, characters in (("a", 4), ("b", 6), ("c", 11)):
        cache.put(key, [0], characters)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.characters) == ([0], [0], None, 10)
    cache.put("d", [0], 1)
    assert (cache.get("a"), cache.get("b"), cache.get("d"), cache.characters) == (None, [0], [0], 7)
    cache.put("b", [0], 2)
    assert cache.characters == 3

    put, seen = AnswerCache.put, []
    monkeypatch.setattr(AnswerCache, "put", lambda self, *entry: seen.append(entry) or put(self, *entry))
    with serving(words) as server:
        server.post({"queries": ["whale"], "topk": 1})
    assert [characters for _, _, characters in seen] == [len("whale") + len(CORPUS[2].id) + len(CORPUS[2].contents)]


def test_only_requests_with_the_query_that_fails_get_a_500(server, words, caplog):
    words.gate.clear()
    with ThreadPoolExecutor(12) as clients:
        first = clients.submit(server.post, {"queries": ["faust"]})
        until(lambda: len(words.calls) == 1)
        good = [clients.submit(server.post, {"queries": [f"whale {i}"]}) for i in range(8)]
        bad = [clients.submit(server.post, {"queries": ["whale", "boom"]}) for i in range(2)]
        server.wait_for("queries_total", 13)
        words.gate.set()
        assert [answer.result().status_code for answer in (first, *good)] == [200] * 9
        for answer in bad:
            assert answer.result().status_code == 500
            assert answer.result().json()["detail"] == (
                "1 of 2 different queries: the retriever failed on 'boom': RuntimeError: the index is on fire"
            )
    assert "the index is on fire" in caplog.text
    metrics = server.metrics()
    assert metrics["errors_total"] == 1 and metrics['requests_total{status="500"}'] == 2
    assert server.post({"queries": ["boom"]}).status_code == 500  # a failure is not kept
    assert server.metrics()["errors_total"] == 2
    assert server.post({"queries": ["whale"]}).json()["result"][0][0]["id"] == "2"


@pytest.mark.parametrize(
    ("hits", "reason"),
    [
        ([[], []], "2 lists of hits for 1 queries"),
        ([[Hit(CORPUS[0], 1.0)] * 2], "2 hits, with topk=1"),
        ([[Hit(CORPUS[0], float("nan"))]], "a score that is not a finite number"),
        (None, "TypeError"),
    ],
)
def test_a_retriever_that_breaks_its_contract_or_gives_odd_numbers_and_texts(words, monkeypatch, hits, reason):
    monkeypatch.setattr(words, "search", lambda queries, topk: hits)
    with serving(words) as server:
        answer = server.post({"queries": ["x"], "topk": 1})
        assert answer.status_code == 500 and reason in answer.json()["detail"]
        hits = [[Hit(Document("é", "\ud800 é"), np.float32(0.5))]]
        answer = server.post({"queries": ["x"], "return_scores": True}).json()
        assert answer == {"result": [[{"document": {"id": "é", "contents": "? é"}, "score": 0.5}]]}


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_retriever_that_ends_its_thread_leaves_nobody_waiting(words, monkeypatch, caplog, error):
    search, died = words.search, []

    def dies(queries, topk):
        if not died:
            died.append(words.gate.wait(30))
            raise error("gone")
        return search(queries, topk)

    monkeypatch.setattr(words, "search", dies)
    words.gate.clear()
    with serving(words) as server, ThreadPoolExecutor(2) as clients:
        running = clients.submit(server.post, {"queries": ["whale"]})
        server.wait_for("queries_total", 1)
        waiting = clients.submit(server.post, {"queries": ["novel"]})
        server.wait_for("queries_waiting", 1)
        words.gate.set()
        for answer in (running, waiting):
            assert answer.result().status_code == 500 and f"{error.__name__}: gone" in answer.result().json()["detail"]
        assert server.post({"queries": ["whale"]}).json()["result"][0][0]["id"] == "2"
        assert server.metrics()["errors_total"] == 2


@pytest.mark.parametrize(
    ("most", "reason"),
    [(1024, "2 queries wait, and this server holds at most 2; try again later"), (2, "2 requests are in flight; try")],
)
def test_an_overloaded_server_answers_503_with_retry_after(words, monkeypatch, most, reason):
    monkeypatch.setattr(module, "MAX_REQUESTS", most)
    with serving(words, max_waiting=2) as server, ThreadPoolExecutor(2) as clients:
        words.gate.clear()
        running = clients.submit(server.post, {"queries": ["a"]})
        until(lambda: len(words.calls) == 1)
        waiting = clients.submit(server.post, {"queries": ["novel", "whale"]})
        server.wait_for("queries_waiting", 2)
        answer = server.post({"queries": ["more"]})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["detail"].startswith(reason)
        words.gate.set()
        assert running.result().status_code == waiting.result().status_code == 200
        assert server.post({"queries": ["more"]}).status_code == 200


def test_a_client_that_leaves_disturbs_nobody(server, words):
    words.gate.clear()
    body = json.dumps({"queries": ["whale", "novel"]}).encode()
    lines = ("POST /retrieve HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = "\r\n".join(lines) + "\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as leaver:
        leaver.sendall(head.encode() + body)
        until(lambda: len(words.calls) == 1)
    with socket.create_connection((host, int(port))) as leaver:  # in the middle of its body
        leaver.sendall(head.encode() + body[:5])
    with ThreadPoolExecutor(1) as clients:
        stays = clients.submit(server.post, {"queries": ["whale", "faust"]})
        server.wait_for("queries_total", 4)
        words.gate.set()
        assert stays.result().json()["result"][0][0]["id"] == "2"
    server.wait_for("requests_in_flight", 0)


@pytest.mark.hostile
def test_queries_of_clients_that_have_left_are_not_searched(server, words):
    words.gate.clear()
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(server.post, {"queries": ["faust"]})
        until(lambda: len(words.calls) == 1)
        leavers = [httpx.Client(base_url=server.url) for _ in range(3)]
        for i, leaver in enumerate(leavers):
            body = {"queries": ["whale", *(f"novel {i} {j}" for j in range(999))]}
            with pytest.raises(httpx.ReadTimeout):
                leaver.post("/retrieve", json=body, timeout=httpx.Timeout(30, read=0.01))
        stays = clients.submit(server.post, {"queries": ["whale"]})
        for leaver in leavers:
            leaver.close()
        server.wait_for("queries_waiting", 1)
        words.gate.set()
        assert (first.result().status_code, stays.result().json()["result"][0][0]["id"]) == (200, "2")
    assert words.calls == [(["faust"], 3), (["whale"], 3)]
    server.wait_for('requests_total{status="499"}', 3)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "sesame"])
def test_a_key_is_asked_for(words, given):
    with serving(words, api_key="sesame") as server:
        headers = {"Authorization": given} if given else {}
        for method, path in (("POST", "/retrieve"), ("GET", "/metrics")):
            answer = server.http.request(method, path, headers=headers, json={"queries": ["whale"]})
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer KEY" in answer.json()["detail"]
            right = {"Authorization": "Bearer sesame"}
            assert server.http.request(method, path, headers=right, json={"queries": ["whale"]}).status_code == 200
        assert server.http.get("/health").status_code == 200 and len(words.calls) == 1


def test_metrics_are_what_prometheus_reads(server):
    server.post({"queries": ["a", "b"]})
    server.post({})
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    metrics = server.metrics()
    assert metrics['requests_total{status="200"}'] == metrics['requests_total{status="422"}'] == 1
    assert metrics["request_seconds_count"] == metrics['request_seconds_bucket{le="+Inf"}'] == 2
    bounds = [value for name, value in metrics.items() if name.startswith("request_seconds_bucket")]
    assert bounds == sorted(bounds) and metrics["request_seconds_sum"] > 0
    assert (metrics["queries_total"], metrics["documents"], metrics["requests_in_flight"]) == (2, 4, 0)
    named = {line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")}
    samples = {line.split("{")[0].split()[0] for line in answer.text.splitlines() if not line.startswith("#")}
    assert {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in samples} == named


def test_answers_have_the_shapes_of_the_api_page(calm_server):
    queries = ["play hamlet shakespeare", "whale", "zebra"]
    answer = calm_server.post({"queries": queries, "topk": 2, "return_scores": True})
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    first, second, third = answer.json()["result"]
    assert first == [{"document": HAMLET, "score": 3.0}, {"document": FAUST, "score": 1.0}]
    assert [item["document"]["id"] for item in second] == ["2"] and third == []
    assert "swagger" in calm_server.http.get("/docs").text
    api = calm_server.http.get("/openapi.json").json()
    operation = api["paths"]["/retrieve"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["queries"] and body["properties"]["queries"]["maxItems"] == 4096
    assert set(operation["responses"]) == {"200", "401", "408", "413", "415", "422", "500", "503"}
    assert operation["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ProblemModel")


def test_a_stopping_server_finishes_what_it_has_and_ends_its_thread(words):
    words.gate.clear()
    with ThreadPoolExecutor(1) as clients:
        with serving(words) as server:
            url = f"{server.url}/retrieve"
            answer = clients.submit(httpx.post, url, json={"queries": ["whale"]}, timeout=30)
            until(lambda: len(words.calls) == 1)
            threading.Timer(0.2, words.gate.set).start()  # when the server was asked to stop
        assert answer.result().status_code == 200
    app = make_app(words)

    def threads():
        return [each for each in threading.enumerate() if each.name.startswith("retriever")]

    before = set(threads())  # of servers before this one, which may still be ending
    with TestClient(app) as client:
        assert client.post("/retrieve", json={"queries": ["whale"]}).status_code == 200
        assert len(set(threads()) - before) == 1
    until(lambda: not set(threads()) - before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_right_after_the_line_is_not_lost(words, monkeypatch, number, code):
    monkeypatch.setattr(module, "print_text", lambda *_, **__: os.kill(os.getpid(), number))
    too_late = threading.Timer(60, os.kill, (os.getpid(), signal.SIGTERM))  # so that a server which runs on is ended
    too_late.start()
    with listen("127.0.0.1", 0) as listener:
        assert module.run(make_app(words), listener, "words") == code
    assert not too_late.finished.is_set()
    too_late.cancel()


def test_a_request_that_does_not_end_does_not_hold_a_stopping_server_up(words, monkeypatch, caplog):
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    words.gate.clear()
    held = threading.Timer(25, words.gate.set)  # else a server that waits for it would never end
    held.start()

    def stop():
        until(lambda: bool(words.calls))
        os.kill(os.getpid(), signal.SIGTERM)

    with listen("127.0.0.1", 0) as listener, ThreadPoolExecutor(2) as clients:
        address = f"{url(listener)}/retrieve"
        stuck = clients.submit(httpx.post, address, json={"queries": ["whale"]}, timeout=30)
        clients.submit(stop)
        assert module.run(make_app(words), listener, "words") == 0
        assert not words.gate.is_set()
        held.cancel()
        words.gate.set()
        assert stuck.exception() is not None or stuck.result().status_code == 500


load_all_checks()
QUICK = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # not shrunk: what fails is shown as it is, and soon
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def api():
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(Words()))


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        ("POST", "/retrieve", GenerationMode.POSITIVE),
        ("POST", "/retrieve", GenerationMode.NEGATIVE),
        ("GET", "/health", GenerationMode.POSITIVE),
        ("GET", "/metrics", GenerationMode.POSITIVE),
    ],
)
def test_every_answer_is_as_the_api_page_says(api, method, path, mode):
    @QUICK
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def fuzz(case):
        case.call_and_validate(checks=CHECKS.get_all())

    fuzz()
