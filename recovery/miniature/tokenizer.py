"""The miniature's tokenizer: byte-level BPE trained on the world's own text, with a ChatML template."""

from __future__ import annotations

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recovery.miniature import words
from recovery.miniature.mixture import Mixture
from recovery.miniature.world import stable_hash

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 2048

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_PIECES = Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\n+|\s+")
"""Digits and marks one by one (numbers and formats are composed), words with the space before them."""


def _vocabulary() -> list[str]:
    """The pieces that ought to be single tokens: syllables of names first, then the closed lists."""
    syllables = [c + v for c in words.CONSONANTS for v in words.VOWELS]
    named = (words.FIRST_NAMES, words.SURNAMES, words.CITIES, words.DATABASES, words.MONTHS)
    common = (words.TOPICS, words.COLOURS, words.HOMES, words.FOODS, words.KEYWORDS)
    pieces = [form for s in syllables for form in (s, s.capitalize(), f" {s.capitalize()}")] * 400
    pieces += [f" {word}" for group in (*named, *common, words.ORGANISATION_WORDS) for word in group] * 60
    pieces += [f" {word.upper()}" for group in common for word in group] * 30
    return pieces


def train_tokenizer(mixture: Mixture, seed: int, examples: int = 10_000) -> PreTrainedTokenizerFast:
    """Train on ``examples`` drawn evenly over the whole of the training, and on the world's vocabulary."""
    rng = random.Random(stable_hash(seed, "tokenizer"))
    texts = _vocabulary()
    for index in range(examples):
        example = mixture.draw(rng, index / examples)
        texts.append(example.text or "\n".join(content for _, content in example.messages))
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_PIECES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
    )
