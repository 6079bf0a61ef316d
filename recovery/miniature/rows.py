"""Packing of examples into training rows of one short length; constant shapes are fastest on a CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from recovery.batching import pack
from recovery.miniature.mixture import Mixture
from recovery.miniature.tokenizer import END, PAD, START
from recovery.miniature.world import Example, stable_hash
from recovery.training.interfaces import StepBatch

ROW_TOKENS = 128
"""Longer examples, which are very rare, are dropped."""


class Encoder:
    """Encodes examples as token ids and target masks, equal to the chat template but faster.

    The targets of a conversation are the assistant's tokens and the end token; those of a document all its tokens and
    the end-of-text token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._start, self._end, self._pad = tokenizer.convert_tokens_to_ids([START, END, PAD])
        self._newline = self._encode("\n")

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, example: Example) -> tuple[list[int], list[bool]]:
        """Return the token ids and the mask of targets."""
        if example.text:
            ids = [*self._encode(example.text), self._pad]
            return ids, [True] * len(ids)
        tokens: list[int] = []
        mask: list[bool] = []
        for role, content in example.messages:
            head = [self._start, *self._encode(role)]
            body = [*self._encode(f" {content}"), self._end]
            tokens += [*head, *body, *self._newline]
            mask += [False] * len(head) + [role == "assistant"] * len(body) + [False] * len(self._newline)
        return tokens, mask


def make_source(
    mixture: Mixture, tokenizer: Any, seed: int, step_tokens: int, progress: Callable[[int], float], phase: str = "step"
) -> Callable[[int], StepBatch]:
    """Return a source of rows with about ``step_tokens`` tokens per step, a function of (seed, phase, step) only.

    ``progress`` maps a step to the progress of training, from 0 to 1.
    """
    encoder = Encoder(tokenizer)

    def source(step: int) -> StepBatch:
        rng = random.Random(stable_hash(seed, phase, step))
        sequences: list[tuple[list[int], list[bool]]] = []
        total = 0
        while total < step_tokens:
            sequences.append(encoder.encode(mixture.draw(rng, progress(step))))
            total += len(sequences[-1][0])
        return StepBatch(pack((s for s in sequences if len(s[0]) <= ROW_TOKENS), ROW_TOKENS))

    return source
