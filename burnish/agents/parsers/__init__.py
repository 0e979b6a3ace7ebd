"""Call formats: how a model writes a tool call, by the name of `multi_turn.format`.

`find_parser(name)` gives the parser of a format. Adding a format is adding a file with a `ToolParser` and a line here;
`reading.py` is what they share.
"""

import difflib
from importlib import import_module

from burnish.agents.parsers.base import ToolParser
from burnish.errors import ConfigError

TABLE = {
    "hermes": "hermes:HermesParser",
    "json": "json_object:JsonParser",
    "llama3_json": "llama3_json:Llama3JsonParser",
    "qwen3_coder": "qwen3_coder:Qwen3CoderParser",
    "react": "react:ReactParser",
    "gpt-oss": "gpt_oss:GptOssParser",
    "glm": "glm:GlmParser",
    "seed": "seed:SeedParser",
    "minimax": "minimax:MinimaxParser",
    "kimi": "kimi:KimiParser",
    "deepseek_v4": "deepseek_v4:DeepseekV4Parser",
    "gemma4": "gemma4:Gemma4Parser",
}
FORMATS: tuple[str, ...] = tuple(TABLE)
OTHER_SPELLINGS = {
    "gpt_oss": "gpt-oss", "kimi_k2": "kimi", "llama3": "llama3_json", "seed_oss": "seed", "qwen": "hermes",
}  # fmt: skip


def find_parser(name: str) -> ToolParser:
    """The parser of a format; for an unknown one a ConfigError names the nearest."""
    spelling = OTHER_SPELLINGS.get(name, name)
    if spelling not in TABLE:
        near = difflib.get_close_matches(str(name), [*TABLE, *OTHER_SPELLINGS], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"call format {name!r}: there is no such format; {hint}There are {', '.join(FORMATS)}")
    module, class_name = TABLE[spelling].split(":")
    parser: ToolParser = getattr(import_module(f"{__name__}.{module}"), class_name)()
    return parser
