"""Retrieval: a corpus of passages, indexes over it, the server that answers queries, and the client that asks."""
