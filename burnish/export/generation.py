"""generation_config.json of an export: the source's own (or its base's), made to go with the tokenizer.

Serving engines stop at `eos_token_id` of this file, so the tokenizer's end of sequence is always among them. What is
changed comes back as notes for the user.
"""

from typing import TYPE_CHECKING

from transformers import GenerationConfig

from burnish.errors import ModelError
from burnish.export.source import Source
from burnish.models.loading import quiet_transformers, reading

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

FILE = "generation_config.json"


def generation_config(
    source: Source, config: "PreTrainedConfig", tokenizer: "PreTrainedTokenizerBase"
) -> tuple[GenerationConfig, list[str]]:
    """Settings that transformers accepts, and what was changed in them."""
    folder = next((path for path in (source.folder, source.model) if (path / FILE).is_file()), None)
    with reading(folder or source.model, FILE), quiet_transformers():
        settings = GenerationConfig.from_pretrained(folder) if folder else GenerationConfig.from_model_config(config)
    vocabulary = config.get_text_config().vocab_size
    eos, pad = settings.eos_token_id, settings.pad_token_id
    settings.eos_token_id = _ends(eos, tokenizer.eos_token_id, vocabulary)
    settings.pad_token_id = _padding(pad, tokenizer.pad_token_id, settings.eos_token_id, vocabulary)
    notes = []
    if settings.eos_token_id != eos:
        notes.append(f"{FILE}: eos_token_id {eos} became {settings.eos_token_id}, to stop where the tokenizer does")
    if settings.pad_token_id != pad:
        notes.append(f"{FILE}: pad_token_id {pad} became {settings.pad_token_id}, as in the tokenizer")
    return settings, notes + _made_valid(settings, source)


def _ends(ids: int | list[int] | None, end: int | None, vocabulary: int) -> int | list[int] | None:
    listed = [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
    known = [i for i in listed if 0 <= i < vocabulary]
    if end is not None and end not in known:
        known.insert(0, end)
    return (known[0] if len(known) == 1 else known) if known else None


def _padding(pad: int | None, padding: int | None, ends: int | list[int] | None, vocabulary: int) -> int | None:
    if padding is not None:
        return padding
    if pad is not None and 0 <= pad < vocabulary:
        return pad
    return ends[0] if isinstance(ends, list) else ends


def _made_valid(settings: GenerationConfig, source: Source) -> list[str]:
    """transformers refuses to save settings of sampling beside do_sample=False; engines follow them all the same."""
    with quiet_transformers():
        try:
            settings.validate(strict=True)
            return []
        except ValueError:
            settings.do_sample = True
        try:
            settings.validate(strict=True)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"{source.folder}: {FILE} is not valid: {reason}; mend it there") from error
    return [f"{FILE}: do_sample became True, because it has settings of sampling"]
