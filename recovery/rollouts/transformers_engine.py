"""Rollouts by transformers itself: the engine that runs everywhere.

Prompts are sorted by length, so that little is padded; rows that are done are dropped from the batch, so that
the longest answer does not keep all others computing.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers import DynamicCache

from recovery.loading import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling, check_room
from recovery.rollouts.kv_cache import roomy_cache
from recovery.training import derive_seed

# The batch is compacted once this share of its rows is done: each time costs a copy of the cache.
DROP_SHARE = 0.2
# Tokens whose probabilities are summed before they are searched, see _looked_up.
BLOCK = 256


@dataclass
class _Live:
    """The rows still being sampled: their place in the request, what they said, and the decoding state."""

    owners: torch.Tensor
    cache: DynamicCache
    mask_BT: torch.Tensor
    positions_B: torch.Tensor
    tokens_B: torch.Tensor
    done_B: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.done_B = torch.zeros_like(self.tokens_B, dtype=torch.bool)

    def drop_done(self) -> None:
        keep = (~self.done_B).nonzero().squeeze(-1)
        self.cache.batch_select_indices(keep)
        self.owners, self.mask_BT = self.owners[keep], self.mask_BT[keep]
        self.positions_B, self.tokens_B, self.done_B = (
            self.positions_B[keep],
            self.tokens_B[keep],
            self.done_B[keep],
        )


class TransformersEngine:
    """Samples with the model in memory; ``token_budget`` bounds prompts plus responses held at once.

    Weights trained in float32 under a lower precision are sampled from a copy in that precision, brought up to
    date at each call: casting them at every decoded token costs more than the products themselves.
    """

    def __init__(self, loaded: Loaded, token_budget: int = 32768) -> None:
        self.source = loaded
        wide = loaded.tuning == "full" and loaded.precision != torch.float32 and not loaded.sharded
        self.loaded = _lower_copy(loaded) if wide else loaded
        self.token_budget = token_budget

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
        ends = torch.tensor(sorted(self.loaded.chat.end_ids), device=self.loaded.device)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
        results: list[Completion] = [Completion([], [], False)] * len(prompts)
        start = 0
        with self.loaded.inference(), self.loaded.autocast():
            while start < len(order):
                longest = len(prompts[order[start]]) + sampling.max_new_tokens
                group = order[start : start + max(1, self.token_budget // longest)]
                said = self._batch([prompts[i] for i in group], sampling, _uniform(group, sampling), ends)
                for i, completion in zip(group, said, strict=True):
                    results[i] = completion
                start += len(group)
                if progress is not None:
                    progress(len(group), sum(len(completion.ids) for completion in said))
        return results

    def _batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        uniform_BT: torch.Tensor,
        ends: torch.Tensor,
    ) -> list[Completion]:
        head = self.loaded.head
        uniform_BT = uniform_BT.to(self.loaded.device)
        room = self.loaded.max_length - max(len(p) for p in prompts)
        steps = min(sampling.max_new_tokens, room)
        live, hidden_BD = self._prefill(prompts, steps)
        tokens_BT = torch.full((len(prompts), steps), -1, device=self.loaded.device)
        logprobs_BT = torch.zeros((len(prompts), steps), device=self.loaded.device)
        for t in range(steps):
            logits_BV = head.logits(hidden_BD.to(self.loaded.precision))
            live.tokens_B, logprobs_B = draw(logits_BV, sampling, uniform_BT[live.owners, t])
            alive = ~live.done_B
            rows = live.owners[alive]
            tokens_BT[rows, t] = live.tokens_B[alive]
            logprobs_BT[rows, t] = logprobs_B[alive]
            live.done_B |= torch.isin(live.tokens_B, ends)
            done = int(live.done_B.sum())
            if done == len(live.done_B) or t == steps - 1:
                break
            if done > DROP_SHARE * len(live.done_B):
                live.drop_done()
            hidden_BD = self._decode(live)
        return _completions(tokens_BT, logprobs_BT, self.loaded.chat.end_ids)

    def _prefill(self, prompts: Sequence[Sequence[int]], steps: int) -> tuple[_Live, torch.Tensor]:
        width, device = max(len(p) for p in prompts), self.loaded.device
        ids_BT = torch.full((len(prompts), width), self.loaded.chat.pad_id)
        mask_BT = torch.zeros((len(prompts), width), dtype=torch.long)
        for b, prompt in enumerate(prompts):
            ids_BT[b, width - len(prompt) :] = torch.as_tensor(prompt)
            mask_BT[b, width - len(prompt) :] = 1
        ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        cache = roomy_cache(self.loaded.core.config, width + steps)
        output = self.loaded.decoder(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
        )
        live = _Live(
            torch.arange(len(prompts), device=device),
            cache,
            mask_BT,
            positions_BT[:, -1],
            ids_BT[:, -1].clone(),
        )
        return live, output.last_hidden_state[:, -1]

    def _decode(self, live: _Live) -> torch.Tensor:
        live.positions_B = live.positions_B + 1
        live.mask_BT = torch.cat([live.mask_BT, live.mask_BT.new_ones(len(live.mask_BT), 1)], dim=1)
        output = self.loaded.decoder(
            input_ids=live.tokens_B[:, None],
            attention_mask=live.mask_BT,
            position_ids=live.positions_B[:, None],
            past_key_values=live.cache,
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
    """A uniform number for each prompt and each token it may be answered by, [B, T] in float64.

    A prompt's depend on the seed and on its own number alone: not on its company in the batch, nor on how many
    processes share the work.
    """
    count = 0 if sampling.temperature == 0 else sampling.max_new_tokens
    rows = []
    for number in numbers:
        generator = torch.Generator().manual_seed(derive_seed(sampling.seed, sampling.first + number))
        rows.append(torch.rand(max(1, count), generator=generator, dtype=torch.float64))
    return torch.stack(rows).expand(-1, sampling.max_new_tokens)


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


def _completions(tokens_BT: torch.Tensor, logprobs_BT: torch.Tensor, ends: frozenset[int]) -> list[Completion]:
    completions = []
    for tokens, logprobs in zip(tokens_BT.tolist(), logprobs_BT.tolist(), strict=True):
        length = tokens.index(-1) if -1 in tokens else len(tokens)
        finished = length > 0 and tokens[length - 1] in ends
        completions.append(Completion(tokens[:length], logprobs[:length], finished))
    return completions
