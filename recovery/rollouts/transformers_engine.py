"""Rollouts by transformers itself: the engine that runs everywhere.

Prompts are sorted by length, so that little is padded; rows that are done are dropped from the batch, so that
the longest answer does not keep all others computing. The last few rows of a batch are set aside and go on together
with those of other batches: a few rows cost nearly as much as many, since every weight is read for them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from recovery.loading import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling, check_room
from recovery.rollouts.kv_cache import KeysAndValues
from recovery.rollouts.loops import period_of
from recovery.training import derive_seed

# The batch is compacted once this share of its rows is done: each time costs a copy of the cache.
DROP_SHARE = 0.2
# Rows are set aside once so small a share of those the batch began with is left.
LEFT_SHARE = 0.25
# Decoded tokens a row between two reports of progress, which is also when a request to stop is heard.
REPORT_EVERY = 8
# Tokens whose probabilities are summed before they are searched, see _looked_up.
BLOCK = 256


@dataclass
class _Live:
    """The rows still being sampled: their place in the request, how much they said, and the decoding state."""

    owners_B: torch.Tensor
    said_B: torch.Tensor
    cache: KeysAndValues
    mask_BT: torch.Tensor
    positions_B: torch.Tensor
    tokens_B: torch.Tensor
    uniform_BT: torch.Tensor
    done_B: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.done_B = torch.zeros_like(self.tokens_B, dtype=torch.bool)

    def drop_done(self) -> None:
        """Keep only the rows that are not done."""
        keep = (~self.done_B).nonzero().squeeze(-1)
        self.cache.select(keep)
        for name in ("owners_B", "said_B", "mask_BT", "positions_B", "tokens_B", "uniform_BT", "done_B"):
            setattr(self, name, getattr(self, name)[keep])

    @classmethod
    def joined(cls, parts: Sequence[_Live], steps: int) -> _Live:
        """The rows of several batches as one, each ending at the same position, with room for ``steps`` more."""
        width = max(part.mask_BT.shape[1] for part in parts)

        def together(name: str) -> torch.Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        return cls(
            together("owners_B"),
            together("said_B"),
            KeysAndValues.joined([part.cache for part in parts], steps),
            torch.cat([F.pad(part.mask_BT, (width - part.mask_BT.shape[1], 0)) for part in parts]),
            together("positions_B"),
            together("tokens_B"),
            together("uniform_BT"),
        )


@dataclass
class _Said:
    """What every prompt of a request was answered so far; -1 stands where nothing was said."""

    tokens_NT: torch.Tensor
    logprobs_NT: torch.Tensor
    most_N: torch.Tensor
    ends: torch.Tensor
    progress: Progress | None
    finished: int = 0
    sampled: int = 0

    def add(self, live: _Live, tokens_B: torch.Tensor, logprobs_B: torch.Tensor) -> None:
        """One more token of each row that is not done; those that end with it are done then."""
        alive_B = ~live.done_B
        rows, at = live.owners_B[alive_B], live.said_B[alive_B]
        self.tokens_NT[rows, at] = tokens_B[alive_B]
        self.logprobs_NT[rows, at] = logprobs_B[alive_B]
        live.tokens_B = tokens_B
        live.said_B = live.said_B + alive_B
        over_B = torch.isin(tokens_B, self.ends) | (live.said_B >= self.most_N[live.owners_B])
        self.sampled += len(rows)
        self.finished += int((alive_B & over_B).sum())
        live.done_B |= over_B

    def complete_loops(self, live: _Live) -> None:
        """Rows that repeat themselves are done: the rest of their answer is the repetition, up to its limit."""
        for b, (owner, length, done) in enumerate(
            zip(live.owners_B.tolist(), live.said_B.tolist(), live.done_B.tolist(), strict=True)
        ):
            period = 0 if done else period_of(self.tokens_NT[owner, :length].tolist())
            if period:
                rest = torch.arange(length, int(self.most_N[owner]), device=self.tokens_NT.device)
                same = length - period + (rest - length) % period
                for said_NT in (self.tokens_NT, self.logprobs_NT):
                    said_NT[owner, rest] = said_NT[owner, same]
                live.done_B[b] = True
                self.finished += 1

    def report(self) -> None:
        """Report what came since the last time."""
        if self.progress is not None:
            self.progress(self.finished, self.sampled)
        self.finished = self.sampled = 0

    def completions(self) -> list[Completion]:
        """One for each prompt, in order."""
        ends, found = set(self.ends.tolist()), []
        for tokens, logprobs in zip(self.tokens_NT.tolist(), self.logprobs_NT.tolist(), strict=True):
            length = tokens.index(-1) if -1 in tokens else len(tokens)
            found.append(Completion(tokens[:length], logprobs[:length], length > 0 and tokens[length - 1] in ends))
        return found


class TransformersEngine:
    """Samples with the model in memory; ``token_budget`` bounds prompts plus responses held at once.

    Weights trained in float32 under a lower precision are sampled from a copy in that precision, brought up to
    date at each call: casting them at every decoded token costs more than the products themselves.

    With ``complete_loops`` greedy answers that repeat themselves are not decoded to their limit, see
    :mod:`recovery.rollouts.loops`.
    """

    def __init__(self, loaded: Loaded, token_budget: int = 32768, *, complete_loops: bool = False) -> None:
        self.source = loaded
        wide = loaded.tuning == "full" and loaded.precision != torch.float32 and not loaded.sharded
        self.loaded = _lower_copy(loaded) if wide else loaded
        self.token_budget = token_budget
        self.complete_loops = complete_loops

    def sync(self) -> None:
        """Bring the copy that is sampled from up to date with the weights in training."""
        if self.loaded is self.source:
            return
        with torch.no_grad():
            for ours, theirs in zip(self.loaded.model.parameters(), self.source.model.parameters(), strict=True):
                ours.copy_(theirs)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion a prompt, in order. Raises UsageError for a prompt that leaves no room to answer."""
        self.sync()
        check_room(prompts, self.loaded.max_length)
        said = self._nothing_yet(prompts, sampling, progress)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
        aside: list[_Live] = []
        with self.loaded.inference(), self.loaded.autocast():
            while order or aside:
                held = sum(self._held(live, said) for live in aside)
                if aside and (not order or held > self.token_budget // 2):
                    live = _Live.joined(aside, max(self._left(one, said) for one in aside))
                    aside, hidden_BD = [], self._decode(live)
                else:
                    longest = len(prompts[order[0]]) + sampling.max_new_tokens
                    size = max(1, (self.token_budget - held) // longest)
                    group, order = order[:size], order[size:]
                    live, hidden_BD = self._prefill(prompts, group, sampling, said)
                more = bool(order or aside) and live.cache.joinable
                if self._run(live, hidden_BD, sampling, said, least=len(live.done_B) * LEFT_SHARE if more else 0.0):
                    aside.append(live)
                said.report()
        return said.completions()

    def _nothing_yet(self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None) -> _Said:
        device, room = self.loaded.device, self.loaded.max_length
        most = [min(sampling.max_new_tokens, room - len(prompt)) for prompt in prompts]
        shape = (len(prompts), max(most, default=0))
        return _Said(
            torch.full(shape, -1, device=device),
            torch.zeros(shape, device=device),
            torch.tensor(most, device=device),
            torch.tensor(sorted(self.loaded.chat.end_ids), device=device),
            progress,
        )

    def _run(self, live: _Live, hidden_BD: torch.Tensor, sampling: Sampling, said: _Said, least: float) -> bool:
        """Decode until every row is done, or ``least`` of them or fewer are left; whether any is left."""
        head, steps = self.loaded.head, 0
        while True:
            logits_BV = head.logits(hidden_BD.to(self.loaded.precision))
            number_B = live.uniform_BT.gather(1, live.said_B.clamp(max=live.uniform_BT.shape[1] - 1)[:, None]).squeeze(
                1
            )
            said.add(live, *draw(logits_BV, sampling, number_B))
            steps += 1
            if steps % REPORT_EVERY == 0:
                if self.complete_loops and sampling.temperature == 0:
                    said.complete_loops(live)
                said.report()
            rows, done = len(live.done_B), int(live.done_B.sum())
            if done == rows:
                return False
            few = rows - done <= least
            if few or done > DROP_SHARE * rows:
                live.drop_done()
            if few:
                live.cache.shrink()
                return True
            hidden_BD = self._decode(live)

    @staticmethod
    def _left(live: _Live, said: _Said) -> int:
        """Tokens that a row of these may still take."""
        return int((said.most_N[live.owners_B] - live.said_B).max())

    def _held(self, live: _Live, said: _Said) -> int:
        """Tokens of the budget that rows which were set aside take."""
        return len(live.done_B) * (live.mask_BT.shape[1] + self._left(live, said))

    def _prefill(
        self, prompts: Sequence[Sequence[int]], group: Sequence[int], sampling: Sampling, said: _Said
    ) -> tuple[_Live, torch.Tensor]:
        """Read the prompts of a group: the rows, and the hidden state after the last token of each, [B, D]."""
        width, device = max(len(prompts[i]) for i in group), self.loaded.device
        ids_BT = torch.full((len(group), width), self.loaded.chat.pad_id)
        mask_BT = torch.zeros((len(group), width), dtype=torch.long)
        for b, i in enumerate(group):
            ids_BT[b, width - len(prompts[i]) :] = torch.as_tensor(prompts[i])
            mask_BT[b, width - len(prompts[i]) :] = 1
        ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        owners_B = torch.tensor(group, device=device)
        cache = KeysAndValues.empty(self.loaded.core.config, width + int(said.most_N[owners_B].max()))
        output = self.loaded.decoder(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache.cache,
            use_cache=True,
        )
        uniform_BT = _uniform(group, sampling).to(device)
        last = (positions_BT[:, -1], ids_BT[:, -1].clone())
        live = _Live(owners_B, torch.zeros_like(owners_B), cache, mask_BT, *last, uniform_BT)
        return live, output.last_hidden_state[:, -1]

    def _decode(self, live: _Live) -> torch.Tensor:
        """Read the newest token of every row; the hidden state after it, [B, D]."""
        live.positions_B = live.positions_B + 1
        live.mask_BT = torch.cat([live.mask_BT, live.mask_BT.new_ones(len(live.mask_BT), 1)], dim=1)
        output = self.loaded.decoder(
            input_ids=live.tokens_B[:, None],
            attention_mask=live.mask_BT,
            position_ids=live.positions_B[:, None],
            past_key_values=live.cache.cache,
            use_cache=True,
        )
        return output.last_hidden_state[:, -1]


def _lower_copy(loaded: Loaded) -> Loaded:
    """A copy with parameters in the precision of the products; buffers stay: rotary frequencies need every bit."""
    model = copy.deepcopy(loaded.model).requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(loaded.precision)
    return dataclasses.replace(loaded, model=model, tuning="frozen")


def _uniform(numbers: Sequence[int], sampling: Sampling) -> torch.Tensor:
    """A uniform number for each prompt and each token it may be answered by, [B, T] in float64, or zeros.

    A prompt's depend on the seed and on its own number alone: not on its company in the batch, nor on how many
    processes share the work.
    """
    if sampling.temperature == 0:
        return torch.zeros(len(numbers), 1, dtype=torch.float64)
    rows = []
    for number in numbers:
        generator = torch.Generator().manual_seed(derive_seed(sampling.seed, sampling.first + number))
        rows.append(torch.rand(sampling.max_new_tokens, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row: (tokens_B, log-probabilities_B under the tempered distribution).

    Each row's uniform number is looked up in its cumulated probabilities.
    """
    logits_BV = logits_BV.float()
    if sampling.temperature == 0:
        best = logits_BV.max(-1)
        return best.indices, best.values - logits_BV.logsumexp(-1)
    if sampling.temperature != 1:
        logits_BV = logits_BV / sampling.temperature
    probs_BV = logits_BV.softmax(-1)
    drawn_BV = _nucleus(probs_BV, sampling.top_p) if sampling.top_p < 1 else probs_BV
    tokens_B = _looked_up(drawn_BV, uniform_B)
    chosen_B = tokens_B[:, None]
    return tokens_B, (logits_BV.gather(-1, chosen_B) - logits_BV.logsumexp(-1, keepdim=True)).squeeze(-1)


def _looked_up(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """The token at which the cumulated probabilities of each row pass its uniform number.

    Looked up among blocks of tokens, then within one, both in float64: rare tokens keep their share of a large
    vocabulary, and the vocabulary is not cumulated whole, which costs more than the model's own head.
    """
    padded_BV = F.pad(probs_BV, (0, -probs_BV.shape[-1] % BLOCK))
    blocks_BNK = padded_BV.view(len(padded_BV), -1, BLOCK)
    sums_BN = blocks_BNK.sum(-1).double()
    ends_BN = sums_BN.cumsum(-1)
    # Within [0, total): a block or a token of probability 0 spans nothing and is never hit.
    wanted_B1 = uniform_B[:, None] * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, wanted_B1, right=True).clamp_(max=ends_BN.shape[-1] - 1)
    within_B1 = wanted_B1 - (ends_BN - sums_BN).gather(-1, block_B1)
    rows_B = torch.arange(len(blocks_BNK), device=block_B1.device)
    inner_BK = blocks_BNK[rows_B, block_B1.squeeze(-1)].double().cumsum(-1)
    # The block's sum was rounded: a number beyond its last token takes that one.
    within_B1 = torch.minimum(within_B1, torch.nextafter(inner_BK[:, -1:], inner_BK.new_zeros(())))
    inner_B1 = torch.searchsorted(inner_BK, within_B1, right=True)
    return (block_B1 * BLOCK + inner_B1).squeeze(-1).clamp_(max=probs_BV.shape[-1] - 1)


def _nucleus(probs_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    ranked, order = probs_BV.sort(dim=-1, descending=True)
    outside = ranked.cumsum(-1) - ranked >= top_p
    return probs_BV.masked_fill(outside.gather(-1, order.argsort(-1)), 0.0)
