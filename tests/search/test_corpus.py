"""Corpus files: what is read, what is refused with file and line, and how a corpus is known again."""

import gzip

import pytest

from burnish.errors import DataError
from burnish.search.passages import CorpusPosition, fingerprint, read_corpus
from tests.search.small import PASSAGES, write_corpus


def test_documents_come_in_order_and_reading_resumes_anywhere_also_in_a_packed_corpus(tmp_path):
    path = write_corpus(tmp_path / "corpus.jsonl")
    everything = list(read_corpus(path))
    assert [(document.id, document.contents) for document, _ in everything] == PASSAGES
    assert [place.line for _, place in everything] == list(range(1, len(PASSAGES) + 1))
    for done, (_, place) in enumerate(everything, 1):
        assert list(read_corpus(path, place)) == everything[done:]
    plain, packed = write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_corpus(packed)) == list(read_corpus(plain))
    third = list(read_corpus(plain))[2][1]
    assert list(read_corpus(packed, third)) == list(read_corpus(plain, third))
    known, other = fingerprint(plain), fingerprint(packed)
    assert (known.sha256, known.bytes, known.lines) == (other.sha256, other.bytes, other.lines)
    assert known.lines == len(PASSAGES) and known.bytes == plain.stat().st_size


def test_blank_lines_byte_order_marks_and_numbers_as_ids_are_fine(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "0", "contents": "a"}\n{"id": "1", "contents": "\ufeffb"}\n', encoding="utf-8-sig")
    everything = list(read_corpus(path))
    assert [document.contents for document, _ in everything] == ["a", "\ufeffb"]
    assert list(read_corpus(path, everything[0][1])) == everything[1:]
    path.write_text("\n", encoding="utf-8-sig")
    assert list(read_corpus(path)) == []
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": 7, "contents": "a"}\r\n\n  \n{"id": "8", "contents": "b"}')
    assert [(document.id, place.line) for document, place in read_corpus(path)] == [("7", 1), ("8", 4)]
    assert fingerprint(path).lines == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"not json", "not JSON (Expecting value: line 1 column 1 (char 0)); a line is one object such as"),
        (b'{"id": "1", "contents": "a"} {}', "not JSON (Extra data"),
        (b"[" * 100_000, "not JSON (maximum recursion depth exceeded"),
        (b'["1", "a"]', "a JSON list, not an object with id and contents"),
        (b'{"id": "1", "text": "a"}', "no 'contents' (it has 'id', 'text'); add it"),
        (b'{"contents": "a"}', "no 'id' (it has 'contents')"),
        (b'{"id": "1", "contents": 3}', "contents must be text with something in it"),
        (b'{"id": "1", "contents": " \\n"}', "contents must be text with something in it"),
        (b'{"id": true, "contents": "a"}', "id 'True' must be text of 1 to 1000 characters"),
        (b'{"id": "", "contents": "a"}', "id '' must be text"),
        (b'{"id": "' + b"x" * 1001 + b'", "contents": "a"}', "must be text of 1 to 1000 characters"),
        (b'{"id": "1", "contents": "a \\ud83d b"}', "contents holds half a character (\\ud83d at 2)"),
        (b'{"id": "\\udc00", "contents": "a"}', "id holds half a character"),
        (b'{"id": "1", "contents": "\xff"}', "not UTF-8 (byte 25); save the corpus as UTF-8"),
    ],
)
def test_a_wrong_line_is_named_with_its_file_and_number(line, message, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "0", "contents": "fine"}\n\n' + line + b"\n")
    with pytest.raises(DataError) as told:
        list(read_corpus(path))
    assert str(told.value).startswith(f"{path}, line 3: ") and message in str(told.value)


def test_files_that_cannot_be_read_and_lines_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.search.passages.LINE_LIMIT", 1 << 20)
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "0", "contents": "' + b"x" * (1 << 20))
    with pytest.raises(DataError, match="line 1: longer than 1 MiB; split it into passages"):
        list(read_corpus(path))
    with pytest.raises(DataError, match="cannot read the corpus .*missing.jsonl: No such file"):
        list(read_corpus(tmp_path / "missing.jsonl"))
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"id": "0", "contents": "fine"}\n' * 1000)[:-20])
    with pytest.raises(DataError, match="corpus.jsonl.gz: not a whole gzip file"):
        list(read_corpus(packed, CorpusPosition()))
    packed.write_bytes(b"plain text")
    with pytest.raises(DataError, match="not a whole gzip file"):
        fingerprint(packed)
