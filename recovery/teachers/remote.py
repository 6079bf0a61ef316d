"""A teacher on a vLLM server: it scores the student's token ids and returns log-probabilities.

The server does not return logits over the whole vocabulary, only the most likely entries. It therefore supports the
divergences top_k (with one bucket for the rest) and sampled.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from recovery.batching import Batch
from recovery.errors import ServerError, UsageError
from recovery.inference_server import (
    InferenceServer,
    NotOffered,
    response_of,
    served_model,
    window_of,
)
from recovery.models.chat_template import ChatFormat
from recovery.prompt_logprobs import Entries, ask_positions, entries
from recovery.teachers.teacher import Identity, Teacher

_WORDS = 256  # entries of the vocabulary whose ids are compared
_PROBE = 8  # tokens whose scores identify a model independently of its name
_GAP = 5.0  # seconds without a response in which a server may have been exchanged
_SAME = 0.1  # nats: tolerance for rounding
_TEXTS = (
    "The ferry leaves at 7:45 a.m.; return tickets cost 12.50 EUR.\n\n\tTwo  spaces, then a line.",
    "def double(value):\n    return value * 2  # doubles",
    "Zürich, façade, naïve — 東京, Москва, \U0001f6a2",
)


class RemoteTeacher(Teacher):
    """The model of ``server`` as a teacher of students with ``vocabulary`` entries.

    :meth:`check` must be called before use; :meth:`check_again` is called when the server was unavailable, and before a
    batch after some seconds without a request, in which it may have been started with another model. Raises
    ServerError if the server does not respond or its response is invalid, UsageError if its tokens differ from the
    student's.
    """

    server: InferenceServer

    def __init__(self, server: InferenceServer, tokenizer: Any, chat: ChatFormat, vocabulary: int, count: int) -> None:
        super().__init__()
        self.server = server
        self.model = ""
        self.max_model_len = 0  # tokens; 0: the server does not say
        self._tokenizer, self._chat, self._vocabulary, self._count = tokenizer, chat, vocabulary, count
        self._scores: list[float] = []
        self._answered = time.monotonic()
        server.returned = self.check_again

    @property
    def window(self) -> int | None:
        """Tokens of the longest row that it scores, since the server has to sample one more."""
        return self.max_model_len - 1 if self.max_model_len else None

    @property
    def identity(self) -> Identity:
        """The served model's."""
        return Identity(self.model, self._scores)

    def check(self) -> None:
        """Check that the server can teach this student: same tokens, enough log-probabilities."""
        served = served_model(self.server)
        self.model, self.max_model_len = str(served["id"]), window_of(served.get("max_model_len")) or 0
        self._check_tokens()
        try:
            self._scores = self._probe()
        except ServerError as error:
            if "logprobs" not in str(error):
                raise
            raise UsageError(
                f"{self.server.address} does not return {self._count} log-probabilities per token: start it with "
                f"--max-logprobs {self._count}, or lower --top-k ({error})"
            ) from error

    def check_again(self) -> None:
        """Check that a server that was unavailable still serves the same model."""
        if not self._scores:  # :meth:`check` is not done
            return
        name = str(served_model(self.server)["id"])
        self._require_same(self.identity, Identity(name, self._probe() if name == self.model else []))

    def check_same(self, former: Identity) -> None:
        """Raise ServerError if this is not the ``former`` model."""
        self._require_same(former, self.identity)

    def _require_same(self, former: Identity, current: Identity) -> None:
        if current.model != former.model:
            problem = f"the model {current.model!r} instead of {former.model!r}"
        elif max(abs(a - b) for a, b in zip(current.scores, former.scores, strict=True)) > _SAME:
            problem = f"a different model under the name {current.model!r}"
        else:
            return
        raise ServerError(
            f"{self.server.address} now serves {problem}: start it with the former model, then `recover resume`"
        )

    def _probe(self) -> list[float]:
        """Return the log-probabilities of a few tokens of a fixed text."""
        ids = self._tokenizer(_TEXTS[0], add_special_tokens=False)["input_ids"][:_PROBE]
        count = max(1, self._count)
        [positions] = ask_positions(self.server, self.model, [ids], count)
        with response_of(self.server.address):
            return [entries(position, token, 1).target for position, token in zip(positions[1:], ids[1:], strict=True)]

    def top(self, batch: Batch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and log-probabilities of ``count`` entries at each target, including the target, [N, count]."""
        with self.scoring(batch):
            scored = self._scored(batch, count)
        for token in (pick(entry.ids) for entry in scored for pick in (min, max)):
            if not 0 <= token < self._vocabulary:  # before they become a tensor, which has its own bounds
                raise UsageError(
                    f"{self.server.address} returned token {token}, the student has {self._vocabulary}: use a teacher "
                    f"of the student's model family"
                )
        ids = torch.tensor([entry.ids for entry in scored], device=batch.targets_N.device)
        logprobs = torch.tensor([entry.logprobs for entry in scored], device=batch.targets_N.device)
        return ids, logprobs

    def logprobs(self, batch: Batch) -> torch.Tensor:
        """Return the log-probability of each target, [N]."""
        with self.scoring(batch):
            return torch.tensor([entry.target for entry in self._scored(batch, 1)], device=batch.targets_N.device)

    def _scored(self, batch: Batch, count: int) -> list[Entries]:
        """Return the entries of each target, in the batch's order."""
        width = batch.ids_BT.shape[1]
        rows = batch.rows_N.tolist()
        at = (batch.sources_N + 1 - batch.rows_N * width).tolist()  # position of each target in its row
        ends = {row: position + 1 for row, position in zip(rows, at, strict=True)}  # ascending: the last position wins
        order = sorted(ends)
        ids = [batch.ids_BT[row, : ends[row]].tolist() for row in order]
        longest = max(map(len, ids))
        if self.max_model_len and longest >= self.max_model_len:
            raise UsageError(
                f"a row of {longest} tokens does not fit the window of {self.max_model_len} tokens of "
                f"{self.server.address}: lower --max-new-tokens, or start it with a larger --max-model-len"
            )
        if time.monotonic() - self._answered > _GAP:
            self.check_again()
        positions = dict(zip(order, ask_positions(self.server, self.model, ids, count), strict=True))
        self._answered = time.monotonic()
        with response_of(self.server.address):
            return [
                entries(positions[row][position], int(token), count)
                for row, position, token in zip(rows, at, batch.targets_N.tolist(), strict=True)
            ]

    def _check_tokens(self) -> None:
        """Raise UsageError if the server tokenizes text differently: scores would belong to other tokens."""
        tokenizer = self._tokenizer
        step = max(1, len(tokenizer) // _WORDS)
        words = [tokenizer.decode([number]) for number in range(0, len(tokenizer), step)]
        special = sorted(tokenizer.all_special_tokens)
        turn = self._chat.render([{"role": "user", "content": _TEXTS[0]}], generation_prompt=True)
        for text in (*_TEXTS, turn, " ".join(word for word in words if "\ufffd" not in word), *special):
            mine = list(tokenizer(text, add_special_tokens=False)["input_ids"])
            theirs = self._tokenize(text)
            if mine != theirs:
                at = next((i for i, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), 0)
                raise UsageError(
                    f"the tokenizers differ: {text[:40]!r} becomes {mine[at : at + 4]} here and {theirs[at : at + 4]} "
                    f"at {self.server.address} (from token {at}); use a teacher of the student's model family, or "
                    f"its checkpoint as --teacher, which may have another tokenizer"
                )

    def _tokenize(self, text: str) -> list[int]:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        answer: Any = None
        with contextlib.suppress(NotOffered):
            answer = self.server.post("/tokenize", body)
        try:
            return [int(token) for token in answer["tokens"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ServerError(
                f"{self.server.address} has no /tokenize, so its tokens cannot be compared with the student's: "
                f"serve the teacher with vLLM"
            ) from error
