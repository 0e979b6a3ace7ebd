"""An OpenAI-compatible endpoint for programs that are trained: each of its keys is one trajectory.

requests.py  a request's JSON → `ChatRequest`: messages, tools, what the program may choose
session.py   one trajectory: a request in, a reply out, all calls recorded as a tree of conversations
server.py    HTTP on this machine's own address, for as long as a trajectory needs it
"""
