"""`burnish retriever index|query|serve`."""

from burnish.cli.group import Group

GROUP = Group(
    "retriever",
    {
        "index": "an index of a corpus of passages, built once",
        "query": "what an index finds, with scores",
        "serve": "the retrieval server of the search agent",
    },
    (
        "burnish retriever index --corpus corpus.jsonl --output wiki-index",
        'burnish retriever query --index wiki-index "who wrote hamlet"',
        "burnish retriever serve --index wiki-index --port 8000",
    ),
)
main = GROUP.main
