"""`burnish serve` and `burnish chat`: a model that others talk to, over HTTP or in the terminal.

loading.py        a model folder → `ServedModel`: tokenizer, engine, chat renderer, and what to say about it
text.py           sampled token ids → text as it may be shown, piece by piece
engine_thread.py  the rollout engine in a thread of its own
fields.py         one JSON object, read field by field; what is wrong with it as a `Problem` in OpenAI's shape
requests.py       a request's JSON → `Asked`: prompts, sampling, what to return; what is not done here
answers.py        the sequences of a request, and their tokens → the JSON of an answer, whole or in chunks
wire.py           bytes ↔ JSON: bodies with bounds, event streams, the access log
app.py            the HTTP routes, and how much the server takes on
server.py         socket, signals, shutdown: `serve`
terminal.py       a talk in the terminal, its turns and commands: `chat`
"""
