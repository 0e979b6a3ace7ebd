"""`burnish serve` and `burnish chat`: a model that others talk to, over HTTP or in the terminal.

loading.py        a model folder → `ServedModel`: tokenizer, engine, chat renderer, and what to say about it
text.py           sampled token ids → text as it may be shown, piece by piece
engine_thread.py  the rollout engine in a thread of its own
fields.py         one JSON object, read field by field and refused where it is wrong
parameters.py     the fields of a request, their limits, and what is not done here
requests.py       a request's JSON → `Asked`: prompts, sampling, what to return
answers.py        sampled tokens → the JSON of an answer, whole or in chunks
generation.py     the sequences of one request, from admission to their end
problems.py       what a client did wrong, or the server cannot do, in OpenAI's shape
app.py            the HTTP routes
server.py         socket, signals, shutdown: `serve`
conversation.py   the turns of a terminal chat and its commands
terminal.py       reading, showing and interrupting them: `chat`
"""
