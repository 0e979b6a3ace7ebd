import json


def edit_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
