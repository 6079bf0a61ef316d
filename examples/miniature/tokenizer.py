"""Tokenizer of the miniature: a vocabulary counted from the world's text over byte-level pieces, with ChatML.

The vocabulary of a closed world can be listed: frequent words are one token each, names are one token per syllable (so
copying a name means copying a few tokens), and everything else falls back to bytes. A unigram model accepts such a list
directly, whereas merges would need hundreds of intermediate pieces.
"""

from __future__ import annotations

import random
import re
from collections import Counter

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from examples.miniature.mixture import Mixture
from recovery.miniature import words
from recovery.miniature.corpora import stable_hash

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SAMPLE = 6000
"""Number of examples whose words are counted."""
LEAST = 10
"""Minimum count of a word for a token of its own."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + ' ' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)
"""ChatML, except for the space after the role: the first word of a response is then the same token as in a document,
so that facts stored from documents can be recalled in responses."""

_SPLIT = Regex(r"\p{N}{1,2}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\n+|\s+")
"""Pairs of digits, single punctuation marks (formats combine them), words with the preceding space."""
_NAME = re.compile(f"Ġ?[{''.join(words.CONSONANTS).upper()}][aeiou]([{''.join(words.CONSONANTS)}][aeiou])+")
_WORD_SCORE, _SYLLABLE_SCORE, _BYTE_SCORE = -10.0, -9.9, -30.0


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(_SPLIT, "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _listed() -> list[str]:
    """Return the words of the closed lists, with and without preceding space, and some also in capitals."""
    named = (words.FIRST_NAMES, words.SURNAMES, words.CITIES, words.DATABASES, words.MONTHS)
    common = (words.TOPICS, words.COLOURS, words.HOMES, words.FOODS, words.KEYWORDS)
    pieces = [form for group in (*named, *common) for word in group for form in (word, f"Ġ{word}")]
    pieces += [f"Ġ{word.upper()}" for group in common for word in group]
    pieces += [f"{number:02d}" for number in range(100)]
    return pieces + [f"Ġ{word}" for word in words.ORGANISATION_WORDS]


def _counted(mixture: Mixture, seed: int) -> list[str]:
    """Return the frequent words of the world's texts, without names."""
    rng = random.Random(stable_hash(seed, "tokenizer"))
    splitter, counts = _pre_tokenizer(), Counter[str]()
    for index in range(SAMPLE):
        example = mixture.draw(rng, index / SAMPLE)
        text = example.text or "\n".join(f"{role} {content}" for role, content in example.messages)
        counts.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    return [piece for piece, count in counts.items() if count >= LEAST and not _NAME.fullmatch(piece)]


def train_tokenizer(mixture: Mixture, seed: int) -> PreTrainedTokenizerFast:
    """Count the vocabulary and build the tokenizer, deterministic for a world and seed."""
    scores: dict[str, float] = dict.fromkeys((PAD, START, END), 0.0)
    scores |= dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()), _BYTE_SCORE)
    for syllable in (c + v for c in words.CONSONANTS for v in words.VOWELS):
        for piece in (syllable, syllable.capitalize(), f"Ġ{syllable.capitalize()}"):
            scores[piece] = _SYLLABLE_SCORE
    for piece in sorted({*_listed(), *_counted(mixture, seed)}):
        if len(piece) > 1:
            scores.setdefault(piece, _WORD_SCORE)
    core = Tokenizer(models.Unigram(list(scores.items()), unk_id=None, byte_fallback=False))
    core.pre_tokenizer = _pre_tokenizer()
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
