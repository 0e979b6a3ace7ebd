"""OpenAI's wire format, as `burnish serve` and the endpoint for agent programs (`agents/endpoint`) speak it.

fields.py    one JSON object read field by field; what is wrong with it is an `ApiError` in OpenAI's shape
requests.py  the fields of a request that both servers read, and those that neither supports
text.py      sampled token ids → text that may be shown, piece by piece
answers.py   sampled tokens → the JSON of an answer, whole or in chunks
http.py      bytes ↔ JSON: bodies with limits, error responses, server-sent events
"""
