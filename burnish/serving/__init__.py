"""`burnish serve` and `burnish chat`: a model behind HTTP or in the terminal.

loading.py        a model folder → `ServedModel`: tokenizer, engine, chat renderer
engine_thread.py  the rollout engine in its own thread
requests.py       a request's JSON → `ServeRequest`: prompts, sampling, what to return
app.py            the HTTP routes and limits, a request while it is generated, the access log
server.py         socket, signals, shutdown: `serve`
terminal.py       a chat in the terminal, its turns and commands: `chat`

The wire format is `burnish/openai_wire`. No other part imports this one, except `cli` when a command runs.
"""
