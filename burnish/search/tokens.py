"""Text to the terms that BM25 counts: lower case, words of two letters or more, English stop words out, stems.

The same for passages and queries, through bm25s and PyStemmer.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from burnish.errors import ConfigError, install_command


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Imports inside find no such package, unless it is in use already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


try:
    with _without("jax"):  # bm25s would start it, which takes most of a GPU's memory, for a function that is not used
        import bm25s
    import Stemmer
except ImportError as error:
    raise ConfigError(f"BM25 needs the package {error.name}; {install_command('search')}") from error

_stemmer = Stemmer.Stemmer("english")


def count_terms(texts: Sequence[str]) -> tuple[list[list[int]], dict[str, int]]:
    """For each text the numbers of its terms, repeated as they are; and the number of each term."""
    found = bm25s.tokenize(list(texts), stopwords="en", stemmer=_stemmer, show_progress=False)
    return found.ids, found.vocab


def terms(text: str) -> list[str]:
    """The terms of one text, in order."""
    found: list[str] = bm25s.tokenize(text, stopwords="en", stemmer=_stemmer, return_ids=False, show_progress=False)[0]
    return found
