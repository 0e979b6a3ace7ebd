"""Requests that no client should send, and what must become of each, at every server. Used by test_malformed.py.

PATH stands for the server's main address, KEY for the right key, GOOD for a body that it takes.
"""

import gzip
import json
from dataclasses import dataclass

CLOSED = 0  # the connection ends without an answer
INVALID = -1  # the server's status for a body that it does not take

HEAD = b"POST PATH HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\n"
JSON = b"Content-Type: application/json\r\n"


@dataclass(frozen=True)
class Malformed:
    raw: bytes
    status: int
    reason: str = ""  # is in the body of the answer
    ends: bool = False  # the client sends no more, and says so


def body(data: bytes, head: bytes = HEAD + JSON) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(data) + data


def chunked(data: bytes) -> bytes:
    return HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n" + data


def header(line: bytes) -> bytes:
    return HEAD + JSON + line + b"\r\n\r\n" + b"GOOD"


def get(path: bytes, method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\n\r\n"


INVALID_HTTP = "not valid HTTP"
SHORT = body(b"GOOD").replace(b"Content-Length: 4", b"Content-Length: 400000")

NOT_HTTP = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)) + b"\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "smtp": b"EHLO example.org\r\n\r\n",
    "http0.9": b"GET /\r\n\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n\r\n",
    "zeros": bytes(100) + b"\r\n\r\n",
    "0xff": b"\xff" * 100 + b"\r\n\r\n",
    "emoji": "🔥 / HTTP/1.1\r\n\r\n".encode(),
    "json": b'{"queries": ["x"]}\r\n\r\n',
    "a word": b"hello\r\n\r\n",
    "a response": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "socks": b"\x05\x01\x00\r\n\r\n",
    "terminal codes": b"\x1b]0;x\x07GET / HTTP/1.1\r\n\r\n",
}
REQUEST_LINES = {
    "no version": b"GET /health",
    "no target": b"GET HTTP/1.1",
    "empty target": b"GET  HTTP/1.1",
    "two spaces": b"GET  /health HTTP/1.1",
    "tabs": b"GET\t/health\tHTTP/1.1",
    "space in target": b"GET /hea lth HTTP/1.1",
    "leading space": b" GET /health HTTP/1.1",
    "trailing words": b"GET /health HTTP/1.1 x",
    "lower-case protocol": b"GET /health http/1.1",
    "other protocol": b"GET /health RTSP/1.0",
    "no minor version": b"GET /health HTTP/1",
    "version x": b"GET /health HTTP/x.y",
    "long version": b"GET /health HTTP/1.1111111",
    "negative version": b"GET /health HTTP/-1.1",
    "method with brackets": b"G[]T /health HTTP/1.1",
    "method with colon": b"GET: /health HTTP/1.1",
    "method with zero": b"GE\0T /health HTTP/1.1",
    "method in utf-8": "GÉT /health HTTP/1.1".encode(),
    "target with zero": b"GET /hea\0lth HTTP/1.1",
    "target with control": b"GET /hea\x01lth HTTP/1.1",
    "target with delete": b"GET /hea\x7flth HTTP/1.1",
    "target with carriage return": b"GET /hea\rlth HTTP/1.1",
    "target with escape": b"GET /\x1b[2J HTTP/1.1",
}
HEADER_LINES = {
    "no colon": b"Nonsense",
    "space before colon": b"X : 1",
    "tab before colon": b"X\t: 1",
    "no name": b": 1",
    "only a colon": b":",
    "name with space": b"A B: 1",
    "name with zero": b"A\0B: 1",
    "name in utf-8": "É: 1".encode(),
    "name with brackets": b"A[]: 1",
    "name with quotes": b'"A": 1',
    "name with slash": b"A/B: 1",
    "name with at": b"A@B: 1",
    "value with zero": b"X: a\0b",
    "value with carriage return": b"X: a\rb: c",
    "value with line feed at the start": b"X: \x0ba",
    "two hosts": b"Host: y",
    "host twice the same": b"Host: x",
    "negative length": b"Content-Length: -4",
    "length with plus": b"Content-Length: +4",
    "length in hex": b"Content-Length: 0x4",
    "length with point": b"Content-Length: 4.0",
    "length with exponent": b"Content-Length: 4e0",
    "length with underscore": b"Content-Length: 1_0",
    "length with space": b"Content-Length: 1 0",
    "empty length": b"Content-Length: ",
    "length of words": b"Content-Length: four",
    "length in arabic digits": "Content-Length: ٤".encode(),
    "two lengths": b"Content-Length: 4\r\nContent-Length: 5",
    "two lengths in one": b"Content-Length: 4, 5",
    "length of 40 digits": b"Content-Length: " + b"9" * 40,
    "coding unknown": b"Transfer-Encoding: gzip",
    "coding of two": b"Transfer-Encoding: gzip, chunked",
    "coding identity": b"Transfer-Encoding: identity",
    "coding twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "coding nearly": b"Transfer-Encoding: xchunked",
    "coding with zero": b"Transfer-Encoding: chunked\0",
    "coding empty": b"Transfer-Encoding:",
}
NOT_IMPLEMENTED = {name for name in HEADER_LINES if name.startswith("coding ") and name != "coding with zero"}
CHUNKS = {
    "no number": b"zz\r\nGOOD\r\n0\r\n\r\n",
    "negative": b"-4\r\nGOOD\r\n0\r\n\r\n",
    "plus": b"+4\r\nGOOD\r\n0\r\n\r\n",
    "prefix": b"0x4\r\nGOOD\r\n0\r\n\r\n",
    "underscore": b"1_0\r\nGOOD\r\n0\r\n\r\n",
    "leading space": b" 4\r\nGOOD\r\n0\r\n\r\n",
    "empty": b"\r\nGOOD\r\n0\r\n\r\n",
    "of 30 digits": b"f" * 30 + b"\r\nGOOD\r\n0\r\n\r\n",
    "longer than said": b"2\r\nabcdef\r\n0\r\n\r\n",
    "no line after": b"4\r\nabcd0\r\n\r\n",
    "bad trailer": b"0\r\nnonsense\r\n\r\n",
    "zero in trailer": b"0\r\nX: a\0b\r\n\r\n",
}
TYPES = {
    "no type": b"",
    "form": b"Content-Type: application/x-www-form-urlencoded\r\n",
    "multipart": b"Content-Type: multipart/form-data; boundary=x\r\n",
    "text": b"Content-Type: text/plain\r\n",
    "text with json": b"Content-Type: text/plain; application/json\r\n",
    "jsonl": b"Content-Type: application/jsonl\r\n",
    "json-ish": b"Content-Type: application/json-patch\r\n",
    "any": b"Content-Type: */*\r\n",
    "empty": b"Content-Type: \r\n",
    "xml": b"Content-Type: application/xml\r\n",
    "of zeros": b"Content-Type: ;;;;\r\n",
    "long": b"Content-Type: " + b"a" * 4000 + b"\r\n",
    "latin-1": b"Content-Type: \xe9\r\n",
}
BODIES = {
    "nothing": b"",
    "a space": b" ",
    "one brace": b"{",
    "two objects": b"{}{}",
    "trailing comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "no quotes": b"{a: 1}",
    "a comment": b"{} // x",
    "cut text": b'{"a": "b',
    "cut escape": b'{"a": "\\u12',
    "bad escape": b'{"a": "\\x41"}',
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "surrogates in reverse": b'{"a": "\\udc00\\ud800"}',
    "line break in text": b'{"a": "b\nc"}',
    "zero in text": b'{"a": "b\0c"}',
    "zeros": bytes(50),
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "latin-1": '{"a": "é"}'.encode("latin-1"),
    "cut utf-8": '{"a": "é'.encode()[:-1],
    "overlong utf-8": b'{"a": "\xc0\xaf"}',
    "utf-8 of a surrogate": b'{"a": "\xed\xa0\x80"}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "gzip": gzip.compress(b"{}"),
    "deep lists": b"[" * 100_000,
    "deep closed lists": b"[" * 50_000 + b"]" * 50_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "leading zero": b'{"a": 01}',
    "plus": b'{"a": +1}',
    "half a number": b'{"a": 1.}',
    "half an exponent": b'{"a": 1e}',
    "hex": b'{"a": 0x1}',
    "python": b'{"a": None}',
    "a number of 10,000 digits": b'{"a": ' + b"1" * 10_000 + b"}",
    "null": b"null",
    "a number": b"5",
    "a text": b'"x"',
    "a list": b"[]",
    "a list of objects": b"[{}]",
    "an empty object": b"{}",
    "an unknown field": b'{"constructor": 1}',
    "a field named nothing": b'{"": 1}',
    "a long field": json.dumps({"f" * 10_000: 1}).encode(),
    "10,000 fields": json.dumps({f"f{i}": i for i in range(10_000)}).encode(),
    "a script": b'{"a": "<script>alert(1)</script>"}',
    "code": b'{"__class__": {"__reduce__": ["os.system", "id"]}}',
    "xml": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
}
PATHS = {
    "of nobody": b"/nothing",
    "root": b"/",
    "up": b"/../../etc/passwd",
    "up in code": b"/%2e%2e/%2e%2e/etc/passwd",
    "with zero": b"/%00",
    "with line break": b"/a%0d%0aSet-Cookie:%20x",
    "bad code": b"/%zz%",
    "bad utf-8": b"/%ff%fe",
    "two slashes": b"//health",
    "long": b"/" + b"a" * 10_000,
    "admin": b"/admin.php?id=1%27%20OR%201=1",
    "star": b"*",
    "with a host": b"http://evil.example/nothing",
    "a query alone": b"?x=1",
    "template": b"/{{7*7}}${7*7}",
}
METHODS = ("PUT", "DELETE", "PATCH", "GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 200, "!#$%&")

TABLE: dict[str, Malformed] = {
    **{f"not http: {name}": Malformed(raw, 400, INVALID_HTTP) for name, raw in NOT_HTTP.items()},
    **{
        f"request line: {name}": Malformed(line + b"\r\nHost: x\r\n\r\n", 400, INVALID_HTTP)
        for name, line in REQUEST_LINES.items()
    },
    **{
        f"header: {name}": Malformed(header(line), 501 if name in NOT_IMPLEMENTED else 400, INVALID_HTTP)
        for name, line in HEADER_LINES.items()
    },
    **{f"chunk: {name}": Malformed(chunked(data), 400, INVALID_HTTP) for name, data in CHUNKS.items()},
    **{
        f"type: {name}": Malformed(body(b"GOOD", HEAD + line), 415, "Content-Type: application/json")
        for name, line in TYPES.items()
    },
    **{f"body: {name}": Malformed(body(data), INVALID) for name, data in BODIES.items()},
    **{f"path: {name}": Malformed(get(path), 404, "unknown address") for name, path in PATHS.items()},
    **{
        f"method: {name:.10}": Malformed(get(b"PATH", name.encode()), 405, "" if name == "HEAD" else "is not allowed")
        for name in METHODS
    },
    **{
        f"key: {name}": Malformed(body(b"GOOD", HEAD.replace(b"Bearer KEY", given) + JSON), 401, "key")
        for name, given in {
            "empty": b"",
            "no kind": b"KEY",
            "other kind": b"Basic KEY",
            "wrong": b"Bearer wrong",
            "longer": b"Bearer KEYKEY",
            "a part": b"Bearer KE",
            "two": b"Bearer KEY KEY",
            "latin-1": b"Bearer \xff\xfe",
            "lower-case": b"bearer KEY",
            "long": b"Bearer " + b"k" * 8000,
        }.items()
    },
    "key: none": Malformed(body(b"GOOD", HEAD.replace(b"Authorization: Bearer KEY\r\n", b"") + JSON), 401, "key"),
    "headers: long": Malformed(HEAD + b"X: " + b"a" * 100_000, 431, INVALID_HTTP),
    "headers: many": Malformed(HEAD + b"X: a\r\n" * 10_000, 431, INVALID_HTTP),
    "headers: long line": Malformed(b"GET /" + b"a" * 100_000, 431, INVALID_HTTP),
    "headers: no host": Malformed(b"GET /health HTTP/1.1\r\n\r\n", 400, INVALID_HTTP),
    "headers: folded first": Malformed(b"GET /health HTTP/1.1\r\n x: 1\r\nHost: x\r\n\r\n", 400, INVALID_HTTP),
    "trailers: long": Malformed(chunked(b"0\r\nX: " + b"a" * 100_000), 431, INVALID_HTTP),
    "chunk: after continue": Malformed(
        chunked(b"zz\r\n").replace(JSON, JSON + b"Expect: 100-continue\r\n"), 400, INVALID_HTTP
    ),
    "chunk size: long": Malformed(chunked(b"4;" + b"a" * 100_000), 431, INVALID_HTTP),
    "body: too large": Malformed(body(b'"' + b"x" * 9_000_000 + b'"'), 413, "larger than"),
    "body: too large in chunks": Malformed(chunked(b"900000\r\n" + b"x" * 0x900000 + b"\r\n0\r\n\r\n"), 413, "larger"),
    "cut: nothing": Malformed(b"", CLOSED, ends=True),
    "cut: chunk with line feeds": Malformed(chunked(b"4\nxxxx\n0\n\n"), CLOSED, ends=True),
    **{f"cut: at {n}": Malformed(body(b"GOOD")[:n], CLOSED, ends=True) for n in range(1, 90, 8)},
    "cut: body": Malformed(SHORT, CLOSED, ends=True),
    "cut: chunk": Malformed(chunked(b"ffff\r\nabc"), CLOSED, ends=True),
    "cut: chunk size": Malformed(chunked(b"ff"), CLOSED, ends=True),
    "cut: last chunk": Malformed(chunked(b"4\r\nabcd\r\n0\r\n"), CLOSED, ends=True),
    "cut: continue": Malformed(SHORT.replace(JSON, JSON + b"Expect: 100-continue\r\n"), CLOSED, ends=True),
}
