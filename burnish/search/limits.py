"""How much one request for documents may ask for. The server refuses more, so the client never sends it. No torch."""

MAX_QUERIES = 4096  # in one request
MAX_QUERY_CHARACTERS = 4096
MAX_TOPK = 100
MAX_DOCUMENTS = 65_536  # queries × topk of one request
MAX_BODY_BYTES = 8 * 1024 * 1024  # of a request
