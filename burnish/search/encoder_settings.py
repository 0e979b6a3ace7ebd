"""How an encoder wants its texts: pooling, prefixes, similarity, length. Read from its folder, without its weights.

In this order: what the user says; the files of sentence-transformers; what is known of a family by its name; else mean
pooling, no prefixes, cosine.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import ConfigError, ModelError, NotAvailable
from burnish.search.files import checked_json, sum_of
from burnish.search.manifest import DensePlan, Faiss, Kind, Pooling, Similarity

LONGEST = 512  # tokens of a passage that are read, where the folder does not say
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
BGE_QUERY = "Represent this sentence for searching relevant passages: "
POOLING_KEYS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
POOLING_NAMES: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
SIMILARITY_NAMES: dict[str, Similarity] = {"cosine": "cosine", "dot": "dot", "dot_product": "dot"}
BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")  # models that number positions from the padding's on


@dataclass(frozen=True)
class EncoderOptions:
    """What the user says, or what is known of a family of encoders; None where that leaves it open."""

    folder: Path | None = None
    pooling: Pooling | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    similarity: Similarity | None = None
    max_length: int | None = None
    faiss: Faiss = "flat"


def plan_dense(kind: Kind, options: EncoderOptions) -> DensePlan | None:
    if kind == "bm25":
        if options != EncoderOptions():
            raise ConfigError("--encoder and its flags go with --kind dense or --kind both")
        return None
    if options.folder is None:
        raise ConfigError(f"--kind {kind} needs --encoder FOLDER, a Hugging Face encoder (all-MiniLM-L6-v2, e5, bge …)")
    folder = options.folder
    if not (folder / "config.json").is_file():
        raise ModelError(f"--encoder {folder}: no config.json in it; name the folder of a Hugging Face encoder")
    origin = _object(folder / "config.json").get("_name_or_path")  # the folder it was copied from
    family = _family(f"{folder.resolve().name} {origin if isinstance(origin, str) else ''}".lower())
    stored = folder / "config_sentence_transformers.json"
    prompts = _object(stored).get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    passage_prompt = next((prompts[key] for key in ("passage", "document") if prompts.get(key)), None)
    similarity = _object(stored).get("similarity_fn_name")
    if similarity is not None and str(similarity) not in SIMILARITY_NAMES and options.similarity is None:
        raise NotAvailable(
            f"the similarity {similarity} ({stored})", "There are cosine and dot: choose one with --similarity"
        )
    return DensePlan(
        encoder=folder.resolve().name,
        encoder_sha256=digest(folder),
        pooling=options.pooling or _stored_pooling(folder) or family.pooling or "mean",
        query_prefix=_first(options.query_prefix, prompts.get("query") or None, family.query_prefix, ""),
        passage_prefix=_first(options.passage_prefix, passage_prompt, family.passage_prefix, ""),
        similarity=options.similarity or SIMILARITY_NAMES.get(str(similarity)) or family.similarity or "cosine",
        max_length=_max_length(folder, options.max_length),
        faiss=options.faiss,
    )


def digest(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".json", ".txt", ".model", ".safetensors", ".bin"))
    sums = {name: sum_of(folder / name).sha256 for name in names}
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()


def _first(*values: str | None) -> str:
    return next(value for value in values if value is not None)


def _family(name: str) -> EncoderOptions:
    """What is known of a family by its name."""
    words = name.replace("_", "-").replace("/", "-").replace(" ", "-").split("-")
    if "e5" in words and "instruct" not in words and "mistral" not in words:
        return EncoderOptions(query_prefix="query: ", passage_prefix="passage: ")
    if "bge" in words:
        return EncoderOptions(pooling="cls", query_prefix=BGE_QUERY if "en" in words and "m3" not in words else "")
    if "contriever" in words:
        return EncoderOptions(similarity="dot")
    return EncoderOptions()


def _stored_pooling(folder: Path) -> Pooling | None:
    """The pooling that modules.json asks for; NotAvailable where it asks for more than we do."""
    path = folder / "modules.json"
    if not path.exists():
        return None
    try:
        modules = json.loads(path.read_bytes())
        kinds = {str(module["type"]).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise ModelError(f"{path}: not a list of modules ({error}); remove it, and set --pooling") from None
    if other := [kind for kind in kinds if kind not in KNOWN_MODULES]:
        raise NotAvailable(
            f"an encoder with the module {other[0]} ({path})", "Take one with Transformer and Pooling alone"
        )
    if "Pooling" not in kinds:
        return None
    inside = (folder / kinds["Pooling"]).resolve()
    if not inside.is_relative_to(folder.resolve()):
        raise ModelError(f"{path}: the pooling's path {kinds['Pooling']!r} leaves the folder; fix it")
    settings = _object(inside / "config.json")
    chosen = [name for key, name in POOLING_KEYS.items() if settings.get(key) is True]
    chosen += [POOLING_NAMES[name] for name in [settings.get("pooling_mode")] if name in POOLING_NAMES]
    if len(chosen) != 1:
        raise NotAvailable(
            f"the pooling of {inside / 'config.json'}", "There are mean, cls and last: choose one with --pooling"
        )
    return chosen[0]


def _max_length(folder: Path, said: int | None) -> int:
    """Tokens that the encoder reads: what the user says, as far as it has positions; else the least its files say."""
    config = _object(folder / "config.json")
    positions, padding = config.get("max_position_embeddings"), config.get("pad_token_id", 1)
    if not isinstance(positions, int) or isinstance(positions, bool):
        positions = None
    elif config.get("model_type") in BEHIND_PADDING and isinstance(padding, int):
        positions -= padding + 1
    if said is not None:
        if positions is not None and said > positions:
            raise ConfigError(f"--max-length {said}: {folder} reads {positions} tokens at most; lower it")
        return said
    stated: list[Any] = [
        _object(folder / "sentence_bert_config.json").get("max_seq_length"),
        _object(folder / "tokenizer_config.json").get("model_max_length"),
        positions,
        LONGEST,
    ]
    return int(min(n for n in stated if isinstance(n, int | float) and not isinstance(n, bool) and n > 2))


def _object(path: Path) -> dict[str, Any]:
    return checked_json(path) if path.exists() else {}
