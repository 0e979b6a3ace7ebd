"""The retriever's client: how calls share requests, what it takes from a server, and its errors about bad ones."""

import asyncio
import gc
import json
import logging
import warnings

import pytest

from burnish import waits
from burnish.errors import ConfigError, ToolFailure
from burnish.search import client as module
from burnish.search import documents
from burnish.search.client import RetrieverClient, check_url, probe
from tests.processes import until
from tests.search.conftest import CORPUS, Words, canned, http, serving

FOUND = {"document": {"id": "7", "contents": '"T"\nt'}, "score": 1.0}


def make(url, **options):
    return RetrieverClient(url, **{"topk": 3, "timeout": 20.0, "retries": 2, "cache": True} | options)


async def all_at_once(url, queries, options):
    """A client, and what each of the queries gave: documents or a failure."""
    client = make(url, **options)
    given = await asyncio.gather(*(client.search(query) for query in queries), return_exceptions=True)
    await client.close()
    assert all(isinstance(one, list | ToolFailure) for one in given), given
    return client, given


def ask(url, *queries, **options):
    return asyncio.run(all_at_once(url, queries, options))


def ask_canned(*replies, queries=("who",), **options):
    """The same of a server that says what the test says; and the bodies of the requests it had."""

    async def talk():
        async with canned(*replies) as server:
            client, given = await all_at_once(server.url, queries, options)
            return client, given, [json.loads(body) for body in server.bodies]

    return asyncio.run(talk())


def echo(body):
    """An answer in which each query finds itself."""
    lists = [[{"document": {"id": "1", "contents": query}}] for query in json.loads(body)["queries"]]
    return http("200 OK", json.dumps({"result": lists}))


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)


def test_calls_of_many_trajectories_are_one_request(server, words):
    queries = [f"whale {i}" for i in range(100)] + ["goethe"] * 100
    client, given = ask(f"{server.url}/retrieve", *queries)
    assert given[:100] == [[CORPUS[2]]] * 100 and given[100:] == [[CORPUS[0]]] * 100
    assert client.stats()["requests"] == 1 and client.stats()["queries"] == 200
    assert server.metrics()["queries_total"] == 101  # equal ones are asked once
    assert client.stats()["seconds"] > 0 and client.stats()["failures"] == client.stats()["retries"] == 0


@pytest.mark.parametrize(("cache", "requests", "hits"), [(True, 1, 2), (False, 3, 0)])
def test_answers_are_kept_where_that_is_asked_for_also_in_a_new_event_loop(server, cache, requests, hits):
    client = make(f"{server.url}/retrieve", cache=cache)
    for _ in range(3):
        found = asyncio.run(client.search("whale"))
        assert found == [CORPUS[2]]
        found.clear()  # a caller may do what it likes with its list; and nobody closes the client
    stats = client.stats()
    assert (stats["requests"], stats["cache_hits"], stats["retries"]) == (requests, hits, 0)
    assert len(client._lanes) == 1


def test_blank_queries_find_nothing_and_odd_ones_are_made_acceptable(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a proxy of the environment is not asked
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    gc.collect()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        queries = ("", " \n", "\x85", "whale", "whale " * 5000, "\ud800 whale \x00", "boom")
        client, given = ask(f"{server.url}/retrieve", *queries, retries=0)
        gc.collect()
    assert given[:-1] == [[], [], [], [CORPUS[2]], [CORPUS[2]], [CORPUS[2]]]
    assert "status 500:" in str(given[-1]) and "failed on 'boom'" in str(given[-1]), "only this query is lost"
    assert (client.stats()["queries"], client.stats()["failures"]) == (7, 1)
    assert [str(each.message) for each in warned] == [], "nothing is left open"


def test_requests_are_bounded_and_hold_what_the_server_reads():
    _, given, bodies = ask_canned(echo, queries=[f" {i} \n" for i in range(600)], topk=5)
    assert [one[0].contents for one in given] == [str(i) for i in range(600)]
    assert sorted(len(body["queries"]) for body in bodies) == [88, 256, 256]
    assert bodies[0].keys() == {"queries", "topk", "return_scores"}
    assert bodies[0]["topk"] == 5 and bodies[0]["return_scores"] is True


def test_a_cancelled_caller_does_not_cancel_the_request_of_others(server, words):
    words.gate.clear()

    async def one_leaves():
        client = make(f"{server.url}/retrieve")
        leaver, stayer = (asyncio.create_task(client.search("whale")) for _ in range(2))
        await asyncio.to_thread(until, lambda: len(words.calls) == 1)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        words.gate.set()
        assert await stayer == [CORPUS[2]]
        await client.close()
        assert client.stats()["requests"] == 1

    asyncio.run(one_leaves())


def test_failures_that_nobody_waits_for_are_not_logged(caplog):
    """asyncio complains of exceptions that were never looked at."""

    async def all_leave():
        async with canned(http("404 Not Found", "x")) as server:
            client = make(server.url)
            task = asyncio.create_task(client.search("who"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.to_thread(until, lambda: bool(server.bodies))
            await client.close()

    asyncio.run(all_leave())
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_closing_fails_whoever_waits_and_sends_nothing_more(monkeypatch, caplog):
    async def close_early(client, sent):
        tasks = [asyncio.create_task(client.search("sent"))]
        await asyncio.to_thread(until, lambda: bool(sent))
        tasks.append(asyncio.create_task(client.search("waits for the timer")))
        await asyncio.sleep(0)
        await client.close()
        for task in tasks:
            with pytest.raises(ToolFailure, match="the client was closed before the answer came"):
                await asyncio.wait_for(task, 60)
        await client.close()

    async def slow_to_cancel(http, url, queries, *limits):
        asked.append(queries)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(20 * module.WINDOW_S)

    async def close_both():
        async with canned(None) as server:
            await close_early(make(server.url), server.bodies)
        monkeypatch.setattr(module, "post", slow_to_cancel)
        await close_early(make("http://127.0.0.1:9/retrieve"), asked)

    asked = []
    asyncio.run(close_both())
    gc.collect()
    assert asked == [["sent"]] and not caplog.records


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([FOUND], ["7"]),
        ([FOUND["document"]], ["7"]),
        ([{"document": {"id": i, "contents": ""}} for i in range(5)], ["0", "1", "2"]),
        ([{"contents": "x", "title": "t", "extra": None}], [""]),
        ([FOUND, FOUND, FOUND, "rubbish beyond topk"], ["7", "7", "7"]),
        ([{"id": "\ud800", "contents": "\ud800"}], ["?"]),
    ],
)
def test_what_servers_may_answer(items, expected):
    _, given, _ = ask_canned(http("200 OK", json.dumps({"result": [items], "more": 1})))
    assert [document.id for document in given[0]] == expected


HTML = "<!DOCTYPE html>\n<html>\x1b[31m<title>Welcome to nginx!</title>" + "x" * 500
SHOWN = "<!DOCTYPE html> <html> [31m<title>Welcome to nginx!</title>" + "x" * 41
WRONG = "retriever.url must be the /retrieve address of a retrieval server"


# What may pass is asked again; what is no answer of a retrieval server is not.
TRANSIENT = [
    (http("500 Internal Server Error", "Traceback"), "status 500: Traceback; the server's log says more"),
    (http("502 Bad Gateway", HTML), f"status 502: {SHOWN}"),
    (http("429 Too Many Requests", ""), "status 429: nothing"),
    (b"", "unreachable (Server disconnected without sending a response.); start a server with `burnish retriever"),
    (b"SSH-2.0-OpenSSH\r\n", "unreachable ("),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "unreachable (peer closed connection"),
]
WRONG_ANSWERS = [
    (http("200 OK", HTML), f"not JSON: {SHOWN}; {WRONG}"),
    (http("200 OK", ""), f"not JSON: nothing; {WRONG}"),
    (http("200 OK", b"\xff\xfe"), "not JSON: \ufffd\ufffd"),
    (http("200 OK", "[" * 100_000), "not JSON: " + "[" * 100 + ";"),
    (http("200 OK", "[[]]"), "JSON without a list named result: [[]]"),
    (http("200 OK", '{"result": {"0": []}}'), "JSON without a list named result"),
    (http("200 OK", '{"result": []}'), "0 lists of documents for 1 queries: {\"result\": []}"),
    (http("200 OK", '{"result": [[], []]}'), "2 lists of documents for 1 queries"),
    (http("200 OK", '{"result": [null]}'), "no list of documents: null"),
    (http("200 OK", '{"result": [["text"]]}'), "a document that is no object: \"text\""),
    (http("200 OK", '{"result": [[{"document": "x"}]]}'), "a document that is no object"),
    (http("200 OK", '{"result": [[{"id": "1"}]]}'), "a document without the text 'contents': {\"id\": \"1\"}"),
    (http("200 OK", '{"result": [[{"id": "1", "contents": 3}]]}'), "a document without the text 'contents'"),
    (http("200 OK", '{"result": [[{"id": [], "contents": ""}]]}'), "a document whose id is neither text"),
    (http("404 Not Found", HTML), f"status 404: {SHOWN}; {WRONG}"),
    (http("307 Temporary Redirect", "", "Location: http://elsewhere/"), f"status 307: nothing; {WRONG}"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "seen"), WRONG_ANSWERS + TRANSIENT)
def test_failures_are_reported_and_transient_ones_retried(reply, seen):
    client, (failure,), bodies = ask_canned(reply, retries=2)
    retries = 2 if (reply, seen) in TRANSIENT else 0
    assert isinstance(failure, ToolFailure)
    assert str(failure).startswith("retriever http://127.0.0.1:") and f"/retrieve: {seen}" in str(failure)
    assert len(bodies) == 1 + retries and client.stats()["failures"] == 1 and client.stats()["retries"] == retries


def test_pauses_grow_and_retry_after_is_honoured(monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def note(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(module, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(module.asyncio, "sleep", note)
    busy, waits = http("503 Busy", ""), http("503 Busy", "", "Retry-After: 3")
    odd = http("429 Slow", "", "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT")
    _, given, _ = ask_canned(busy, waits, odd, busy, busy, echo, retries=5)
    assert given[0][0].contents == "who" and pauses == [1.0, 3.0, 4.0, 8.0, 8.0]


def test_the_deadline_holds_for_all_tries_together(monkeypatch):
    _, (failure,), bodies = ask_canned(http("503 Busy", "later", "Retry-After: 3600"), timeout=5.0)
    assert "status 503: later" in str(failure) and len(bodies) == 1
    client, (failure,), bodies = ask_canned(None, timeout=0.5, retries=1)
    assert "no answer within 1 s, retries included; " in str(failure) and "raise retriever.timeout" in str(failure)
    assert len(bodies) == 2 and client.stats()["seconds"] >= 0.5
    monkeypatch.setattr(module, "MAX_REQUESTS", 1)  # the time may also be spent in a queue behind other requests
    monkeypatch.setattr(module, "PER_REQUEST", 1)
    _, failures, bodies = ask_canned(None, queries=("a", "b", "c"), timeout=0.5, retries=0)
    assert all(isinstance(failure, ToolFailure) for failure in failures) and len(bodies) == 1
    assert sum("no answer within 0.5 s, retries included" in str(failure) for failure in failures) >= 1


def test_an_answer_that_is_too_large_for_many_is_asked_for_one_by_one(monkeypatch):
    def answer(body):
        lists = [[{"id": "", "contents": "x" * int(query)}] for query in json.loads(body)["queries"]]
        return http("200 OK", json.dumps({"result": lists}))

    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 10_000)
    client, given, bodies = ask_canned(answer, queries=("4000", "20000", "8000"))
    assert [len(one[0].contents) for one in (given[0], given[2])] == [4000, 8000]
    assert 'more than 10000 bytes: {"result":' in str(given[1])
    assert str(given[1]).endswith("; ask for fewer documents (retriever.topk)")
    assert len(bodies) == 4 and client.stats()["failures"] == 1


@pytest.mark.parametrize(
    ("replies", "queries", "retries", "sizes", "failures"),
    [
        ((http("500 Oops", ""),), 20, 3, [20, 20] + [1] * 20, 20),  # is not flooded
        ((http("500 Oops", ""), echo), 2, 1, [2, 2], 0),
        ((http("503 Busy", ""), b"", http("500 Oops", ""), echo), 1, 3, [1] * 4, 0),
        ((http("422 Unprocessable", '{"detail": "topk: too large"}'),), 1, 3, [1], 1),
    ],
)
def test_servers_that_fail_and_recover(replies, queries, retries, sizes, failures):
    client, given, bodies = ask_canned(*replies, queries=[str(number) for number in range(queries)], retries=retries)
    assert [len(body["queries"]) for body in bodies] == sizes and client.stats()["failures"] == failures
    assert sum(isinstance(one, ToolFailure) for one in given) == failures
    if not failures:
        assert [one[0].contents for one in given] == [str(number) for number in range(queries)]
        assert client.stats()["retries"] == len(replies) - 1
    if sizes == [1]:  # a refusal that gives its reason needs no advice
        assert str(given[0]).endswith('/retrieve: status 422: {"detail": "topk: too large"}')


@pytest.mark.parametrize("character", ["x", "é", "\U0001f40b", "\x01", '"'])
def test_a_request_stays_below_the_limit_of_the_server(character, monkeypatch):
    sizes = []

    async def exchanged(http, url, body):
        sizes.append(len(body))
        return 200, 0.0, json.dumps({"result": [[]] * len(json.loads(body)["queries"])}).encode()

    monkeypatch.setattr(module, "_exchange", exchanged)
    ask("http://x/retrieve", *(f"{number:05d}" + character * 4091 for number in range(256)))
    assert len(sizes) == 1 and sizes[0] <= documents.MAX_BODY_BYTES


def test_a_malformed_document_costs_one_query_and_errors_are_named(monkeypatch):
    reply = http("200 OK", json.dumps({"result": [[FOUND], [{"id": "1"}], [FOUND]]}))
    client, given, _ = ask_canned(reply, queries=("a", "b", "c"))
    assert given[0] == given[2] and given[0][0].id == "7" and "without the text 'contents'" in str(given[1])
    assert client.stats()["failures"] == 1
    client, (failure,) = ask("http://127.0.0.1:9/retrieve", "who", retries=1)  # where nobody listens
    assert str(failure).startswith("retriever http://127.0.0.1:9/retrieve: unreachable (")
    assert "start a server with `burnish retriever serve FOLDER`, or fix retriever.url" in str(failure)
    assert client.stats()["retries"] == 1
    monkeypatch.setattr(module, "read_answer", lambda *_: 1 // 0)
    _, (failure,), _ = ask_canned(echo)
    assert str(failure).endswith("/retrieve: ZeroDivisionError: integer division or modulo by zero")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8000/retrieve", "must begin with http:// or https://"),
        ("ftp://x/retrieve", "must begin with http:// or https://"),
        ("http:///retrieve", "no machine is named"),
        ("http://127.0.0.1:8000", "the path is missing; write http://127.0.0.1:8000/retrieve"),
        ("http://[::1]:80", "the path is missing; write http://[::1]:80/retrieve"),
        ("https://search.example/", "the path is missing; write https://search.example/retrieve"),
        ("http://x:port/retrieve", "no address ("),
        ("http://x\n/retrieve", "no address ("),
        (None, "no address (Invalid type"),
        ("", "must begin with http:// or https://"),
    ],
)
def test_addresses_that_cannot_be_right(url, message):
    with pytest.raises(ConfigError) as caught:
        check_url(url)
    assert str(caught.value).startswith(f"retriever.url={url}: ") and message in str(caught.value)
    with pytest.raises(ConfigError):
        make(url)


def test_probe_asks_as_the_run_will_and_looks_at_the_documents(words):
    async def inside_a_loop(url):
        probe(url, 20.0)
        async with canned(http("200 OK", '{"result": [["text"]]}')) as odd:
            await asyncio.to_thread(probe, odd.url, 20.0)

    with serving(words) as server:
        url = f"{server.url}/retrieve"
        probe(url, 20.0, topk=100)
        with pytest.raises(ConfigError, match="a document that is no object"):
            asyncio.run(inside_a_loop(url))
        with pytest.raises(ConfigError, match="Seen: .*status 404: .*there are POST /retrieve"):
            probe(f"{server.url}/search", 20.0)
        with pytest.raises(ConfigError) as caught:
            probe(url, 20.0, topk=101)
        assert str(caught.value) == (
            f"retriever.url={url}: it refuses a search with retriever.topk=101: "
            'status 422: {"detail": "topk: Input should be less than or equal to 100"}'
        )
    port = server.url.rpartition(":")[2]
    with pytest.raises(ConfigError) as caught:
        probe(url, 20.0)
    assert str(caught.value).startswith(
        f"retriever.url={url}: no retrieval server answers there. "
        f"Start one with `burnish retriever serve FOLDER --port {port}`. Seen: "
    )
    with pytest.raises(ConfigError, match="the path is missing"):
        probe(server.url, 20.0)
    with pytest.raises(ConfigError, match="serve FOLDER --port 443`. Seen: "):
        probe("https://127.0.0.1/retrieve", 20.0)


def test_a_probe_is_a_wait(monkeypatch):
    seen = []

    async def post(*given):
        seen.extend((wait.kind, wait.subject, wait.seconds) for wait in waits.longest())
        return [[]]

    monkeypatch.setattr(module, "post", post)
    probe("http://127.0.0.1:1/retrieve", 20.0)
    assert seen == [("retriever", "http://127.0.0.1:1/retrieve: a first answer", 20.0)]


def test_a_request_that_does_not_end_at_its_deadline_is_left(monkeypatch):
    async def never(*given):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if closing:
                    raise

    closing = []
    monkeypatch.setattr(module, "post", never)
    monkeypatch.setattr(module, "MOMENT_S", 0.1)

    async def main():
        client = make("http://127.0.0.1:1/retrieve", timeout=0.1, retries=1)
        late = r"no answer within 0\.2 s, .*the request does not end; the server is slow"
        with pytest.raises(ToolFailure, match=late):
            await asyncio.wait_for(client.search("who"), 30)
        assert client.stats()["failures"] == 1
        closing.append(True)
        await client.close()

    asyncio.run(main())
    assert not waits.longest()


def test_the_client_sends_the_key_of_the_environment(monkeypatch):
    with serving(Words(), api_key="sésame") as server:
        address = f"{server.url}/retrieve"
        with pytest.raises(ConfigError, match="it asks for a key: .* missing.*; set BURNISH_RETRIEVER_API_KEY to"):
            probe(address, 30)
        monkeypatch.setenv("BURNISH_RETRIEVER_API_KEY", "sésame\n")  # as a file has it
        probe(address, 30)
