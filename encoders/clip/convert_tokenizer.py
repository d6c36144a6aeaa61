"""open_clip's tokenizers as tokenizer.json, which `encoders.clip.tokens` reads without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capsearch.engine.errors import UnknownModel

# CLIP's own pattern of words; its texts are lowercase.
_CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CLEAN = {"_clean_lower": "lower", "_clean_whitespace": "whitespace"}


@dataclass(frozen=True, slots=True)
class ConvertedTokenizer:
    """The content of tokenizer.json, and what open_clip does before and after it."""

    json: str
    clean: str  # a key of encoders.clip.tokens.CLEANERS
    zeroed: tuple[int, ...]  # ids that become 0
    pads_right: bool


def convert(tokenizer: Any, name: str) -> ConvertedTokenizer:
    """UnknownModel for a tokenizer that tokenizer.json cannot express."""
    cleaning = getattr(getattr(tokenizer, "clean_fn", None), "__name__", "_clean_canonicalize")
    clean = _CLEAN.get(cleaning, "canonicalize")
    if hasattr(tokenizer, "bpe_ranks"):
        if tokenizer.reduction_fn is not None:
            raise UnknownModel(f"{name} shortens texts at random; it can only be used with torch")
        return ConvertedTokenizer(_clip(tokenizer), clean, (), True)
    inner = tokenizer.tokenizer
    if getattr(tokenizer, "tokenizer_mode", "") or not hasattr(inner, "backend_tokenizer"):
        raise UnknownModel(f"the tokenizer of {name} has no tokenizer.json; use it with torch")
    zeroed = (int(inner.sep_token_id),) if getattr(tokenizer, "strip_sep_token", False) else ()
    return ConvertedTokenizer(
        _hugging_face(inner, tokenizer.context_length), clean, zeroed, inner.padding_side == "right"
    )


def _clip(tokenizer: Any) -> str:
    """CLIP's byte-pair encoding, as open_clip's SimpleTokenizer has it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.get)
    made = Tokenizer(models.BPE(tokenizer.encoder, merges, end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(f"(?i:{_CLIP_WORDS})"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    first, last = (tokenizer.decoder[id_] for id_ in tokenizer.all_special_ids[:2])
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(first, tokenizer.sot_token_id), (last, tokenizer.eot_token_id)],
    )
    made.enable_truncation(tokenizer.context_length)
    made.enable_padding(length=tokenizer.context_length, pad_id=0, pad_token=tokenizer.decoder[0])
    return str(made.to_str())


def _hugging_face(inner: Any, context_length: int) -> str:
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(inner.backend_tokenizer.to_str())
    made.enable_truncation(context_length, direction=inner.truncation_side)
    made.enable_padding(
        direction=inner.padding_side,
        length=context_length,
        pad_id=inner.pad_token_id,
        pad_token=inner.pad_token,
    )
    return str(made.to_str())
