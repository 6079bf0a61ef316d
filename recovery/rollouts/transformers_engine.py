"""Rollouts with transformers: the engine that runs on any platform.

Prompts are sorted by length to reduce padding; finished rows are removed from the batch, so that they are not computed
until the longest completion ends. The last few rows of a batch are set aside and decoded together with those of other
batches: a few rows cost nearly as much as many, since all weights are read for them. On a GPU the layers run as a CUDA
graph, see :mod:`recovery.rollouts.active_rows`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from recovery import distributed
from recovery.errors import EngineError, ModelError, first_line, memory_is_full
from recovery.models import attention
from recovery.models.hardware import release_gpu_memory, trim_heap
from recovery.models.loaded import Loaded
from recovery.rng import derive_seed
from recovery.rollouts.active_rows import ActiveRows, BrokenCaptureError, DecodeGraph, KVCache, Results, states_agree
from recovery.rollouts.engine import Completion, Progress, Sampling, check_room

# Drawing of tokens from logits, with random numbers that depend only on the seed and the prompt's index.

# Vocabulary entries per block of the inverse-CDF search, see _search.
BLOCK = 256


def uniform_numbers(numbers: Sequence[int], sampling: Sampling) -> torch.Tensor:
    """Return a uniform number for each prompt and token, [B, T] in float64; zeros if greedy.

    The numbers of a prompt depend only on the seed and its index in the request, not on the batch or the number of
    processes.
    """
    if sampling.temperature == 0:
        return torch.zeros(len(numbers), 1, dtype=torch.float64)
    rows = []
    for number in numbers:
        generator = torch.Generator().manual_seed(derive_seed(sampling.seed, sampling.first + number))
        rows.append(torch.rand(sampling.max_new_tokens, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row: (tokens_B, log-probabilities_B under the tempered distribution).

    Each row's uniform number is searched in its cumulative probabilities.
    """
    logits_BV = logits_BV.float()
    if sampling.temperature == 0:
        best = logits_BV.max(-1)
        return best.indices, best.values - logits_BV.logsumexp(-1)
    if sampling.temperature != 1:
        logits_BV = logits_BV / sampling.temperature
    probs_BV = logits_BV.softmax(-1)
    drawn_BV = _nucleus(probs_BV, sampling.top_p) if sampling.top_p < 1 else probs_BV
    tokens_B = _search(drawn_BV, uniform_B)
    chosen_B = tokens_B[:, None]
    return tokens_B, (logits_BV.gather(-1, chosen_B) - logits_BV.logsumexp(-1, keepdim=True)).squeeze(-1)


def _search(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Return the token at which the cumulative probabilities of each row exceed its uniform number.

    The search is over blocks of tokens, then within one, both in float64: rare tokens of a large vocabulary keep their
    probability, and the full cumulative sum, which costs more than the model's own head, is not needed.
    """
    padded_BV = F.pad(probs_BV, (0, -probs_BV.shape[-1] % BLOCK))
    blocks_BNK = padded_BV.view(len(padded_BV), -1, BLOCK)
    sums_BN = blocks_BNK.sum(-1).double()
    ends_BN = sums_BN.cumsum(-1)
    # In [0, total): a block or token with probability 0 is never selected.
    wanted_B1 = uniform_B[:, None] * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, wanted_B1, right=True).clamp_(max=ends_BN.shape[-1] - 1)
    within_B1 = wanted_B1 - (ends_BN - sums_BN).gather(-1, block_B1)
    rows_B = torch.arange(len(blocks_BNK), device=block_B1.device)
    inner_BK = blocks_BNK[rows_B, block_B1.squeeze(-1)].double().cumsum(-1)
    # The block's sum was rounded: a number beyond its last token selects that token.
    within_B1 = torch.minimum(within_B1, torch.nextafter(inner_BK[:, -1:], inner_BK.new_zeros(())))
    inner_B1 = torch.searchsorted(inner_BK, within_B1, right=True)
    return (block_B1 * BLOCK + inner_B1).squeeze(-1).clamp_(max=probs_BV.shape[-1] - 1)


def _nucleus(probs_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    ranked, order = probs_BV.sort(dim=-1, descending=True)
    outside = ranked.cumsum(-1) - ranked >= top_p
    return probs_BV.masked_fill(outside.gather(-1, order.argsort(-1)), 0.0)


# A graph is not captured for fewer tokens than this.
GRAPH_TOKENS = 16
# Rows are set aside once this share of the initial rows of the batch remains.
ASIDE_SHARE = 0.25
# Decoded tokens per row between two progress reports, at which a request to stop is also handled.
REPORT_EVERY = 8


class TransformersEngine:
    """Samples with the model in memory; ``token_budget`` bounds the prompt and completion tokens held at once.

    For weights trained in float32 under a lower precision, a copy in that precision is sampled and updated at each
    call: casting the weights at every decoded token costs more than the products themselves.

    When a GPU's memory is full, the budget is halved and unfinished completions are sampled again.

    With ``complete_loops`` greedy completions that repeat themselves are not decoded to their limit, see
    :mod:`recovery.rollouts.active_rows`.

    ``graphs`` (by default on a CUDA GPU) decodes with CUDA graphs. The first one is compared with the layers without
    it; if the hidden states differ by more than rounding, the engine goes on without graphs. If a batch cannot be
    captured, it and some following batches are decoded without a graph, twice as many after each further failure: the
    cause may be memory that is full for a while.
    """

    def __init__(
        self,
        loaded: Loaded,
        token_budget: int = 32768,
        *,
        complete_loops: bool = False,
        graphs: bool | None = None,
    ) -> None:
        self.source = loaded
        wide = loaded.tuning == "full" and loaded.precision != torch.float32 and not loaded.sharded
        self.loaded = _lower_copy(loaded) if wide else loaded
        self.token_budget = token_budget
        self.complete_loops = complete_loops
        suitable = not loaded.sharded and loaded.core.config._attn_implementation == attention.NAME
        self.graphs = suitable and (loaded.device.type == "cuda" if graphs is None else graphs)
        self._checked = False
        self._failed = self._waiting = 0  # captures in a row, and batches until the next attempt
        self._stream: torch.cuda.Stream | None = None

    def sync(self) -> None:
        """Update the sampled copy from the weights in training."""
        if self.loaded is self.source:
            return
        with torch.no_grad():
            for ours, theirs in zip(self.loaded.model.parameters(), self.source.model.parameters(), strict=True):
                ours.copy_(theirs)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order. Raise UsageError for a prompt that leaves no room."""
        # If the model is split over processes and this one fails, the others must not wait for its layers.
        with self.loaded.in_step(), self.loaded.inference(), self.loaded.autocast():
            self.sync()
            check_room(prompts, self.loaded.max_length)
            results = self._empty_results(prompts, sampling, progress)
            remaining: Sequence[int] = range(len(prompts))
            while remaining := self._attempt(prompts, remaining, sampling, results):
                self._halve(prompts, remaining, sampling)
            self._run_for_others()
        return results.completions()

    def _attempt(
        self, prompts: Sequence[Sequence[int]], numbers: Sequence[int], sampling: Sampling, results: Results
    ) -> list[int]:
        """Complete the prompts ``numbers``; return those that remain if the GPU's memory does not hold so many."""
        try:
            self._complete(prompts, numbers, sampling, results)
            return []
        except RuntimeError as error:
            if not memory_is_full(error) or self.loaded.runs_collectively:  # the other processes have gone on
                raise
        return results.unfinished()  # called after the error and with it the tensors of this attempt are freed

    def _halve(self, prompts: Sequence[Sequence[int]], remaining: Sequence[int], sampling: Sampling) -> None:
        """Halve the tokens held at once, from now on. Raise EngineError if one completion alone was too much."""
        longest = max(len(prompts[i]) for i in remaining) + sampling.max_new_tokens
        if self.token_budget < longest:  # rows are taken one by one then, and none are set aside
            raise EngineError(
                f"the GPU's memory is too full to sample one completion of {longest:,} tokens: end other programs that "
                f"use the GPU, or lower --max-new-tokens"
            )
        self.token_budget = min(self.token_budget, longest * len(remaining)) // 2
        release_gpu_memory(self.loaded.device)

    def _complete(
        self, prompts: Sequence[Sequence[int]], numbers: Sequence[int], sampling: Sampling, results: Results
    ) -> None:
        """Sample a completion for each of the prompts ``numbers``."""
        order = sorted(numbers, key=lambda i: len(prompts[i]), reverse=True)
        aside: list[ActiveRows] = []
        while order or aside:
            reserved = sum(self._reserved_tokens(live, results) for live in aside)
            if aside and (not order or reserved > self.token_budget // 2):
                live = ActiveRows.joined(aside, max(self._most_remaining(rows, results) for rows in aside))
                aside, hidden_BD = [], self._decode(live)
            else:
                longest = len(prompts[order[0]]) + sampling.max_new_tokens
                size = max(1, (self.token_budget - reserved) // longest)
                group, order = order[:size], order[size:]
                live, hidden_BD = self._prefill(prompts, group, sampling, results)
            more = bool(order or aside) and live.cache.joinable
            if self._run(live, hidden_BD, sampling, results, least=len(live.done_B) * ASIDE_SHARE if more else 0.0):
                aside.append(live)
            results.report()
            if (order or aside) and self.loaded.device.type == "cpu":
                del live, hidden_BD  # what they leave free is in other sizes than the next batch needs
                trim_heap()

    def _empty_results(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None
    ) -> Results:
        device, room = self.loaded.device, self.loaded.max_length
        most = [min(sampling.max_new_tokens, room - len(prompt)) for prompt in prompts]
        shape = (len(prompts), max(most, default=0))
        return Results(
            torch.full(shape, -1, device=device),
            torch.zeros(shape, device=device),
            torch.tensor(most, device=device),
            torch.tensor(sorted(self.loaded.chat.end_ids), device=device),
            progress,
        )

    def _run(
        self, live: ActiveRows, hidden_BD: torch.Tensor, sampling: Sampling, results: Results, least: float
    ) -> bool:
        """Decode until at most ``least`` rows remain; return whether any does."""
        head, steps = self.loaded.head, 0
        while True:
            logits_BV = head.logits(hidden_BD.to(self.loaded.precision))
            at_B1 = live.lengths_B.clamp(max=live.uniform_BT.shape[1] - 1)[:, None]
            number_B = live.uniform_BT.gather(1, at_B1).squeeze(1)
            results.add(live, *draw(logits_BV, sampling, number_B))
            steps += 1
            if steps % REPORT_EVERY == 0:
                if self.complete_loops and sampling.temperature == 0:
                    results.complete_loops(live)
                results.report()
            rows, done = len(live.done_B), int(live.done_B.sum())
            if done == rows:
                return False
            few = rows - done <= least
            if few or (done > live.drop_share * rows and live.cache.selectable):
                live.drop_done()
            if few:
                live.cache.shrink()
                return True
            hidden_BD = self._decode(live)

    @staticmethod
    def _most_remaining(live: ActiveRows, results: Results) -> int:
        """Return the largest number of tokens that one of these rows may still take."""
        return int((results.most_N[live.owners_B] - live.lengths_B).max())

    def _reserved_tokens(self, live: ActiveRows, results: Results) -> int:
        """Return the tokens of the budget taken by rows that were set aside."""
        return len(live.done_B) * (live.mask_BT.shape[1] + self._most_remaining(live, results))

    def _prefill(
        self, prompts: Sequence[Sequence[int]], group: Sequence[int], sampling: Sampling, results: Results
    ) -> tuple[ActiveRows, torch.Tensor]:
        """Process the prompts of a group; return the rows and the hidden state after the last token of each, [B, D]."""
        width, device = max(len(prompts[i]) for i in group), self.loaded.device
        ids_BT = torch.full((len(group), width), self.loaded.chat.pad_id)
        mask_BT = torch.zeros((len(group), width), dtype=torch.long)
        for b, i in enumerate(group):
            ids_BT[b, width - len(prompts[i]) :] = torch.as_tensor(prompts[i])
            mask_BT[b, width - len(prompts[i]) :] = 1
        ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        owners_B = torch.tensor(group, device=device)
        cache = KVCache.empty(self.loaded.core.config, width + int(results.most_N[owners_B].max()))
        hidden_BTD = self._prompt_states(ids_BT, mask_BT, positions_BT, cache)
        uniform_BT = uniform_numbers(group, sampling).to(device)
        last = (positions_BT[:, -1], ids_BT[:, -1].clone())
        live = ActiveRows(owners_B, torch.zeros_like(owners_B), cache, mask_BT, *last, uniform_BT)
        return live, hidden_BTD[:, -1]

    def _prompt_states(
        self, ids_BT: torch.Tensor, mask_BT: torch.Tensor, positions_BT: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Return the hidden states of prompts, [B, T, D], and fill the cache.

        Raise ModelError for a model that does not use such a cache: its next tokens would be sampled without context.
        """
        why = "it keeps no state there"
        try:
            output = self._forward(
                input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, past_key_values=cache.cache
            )
            hidden_BTD: torch.Tensor = output.last_hidden_state
            if cache.used:
                return hidden_BTD
        except (ValueError, AttributeError) as error:
            why = first_line(error)
        kind = self.loaded.core.config.model_type
        raise ModelError(f"a {kind} model cannot be sampled with transformers' cache ({why}): use --engine vllm")

    def _decode(self, live: ActiveRows) -> torch.Tensor:
        """Process the newest token of every row; return the hidden state after it, [B, D]."""
        live.positions_B = live.positions_B + ~live.done_B  # rows that are done need no further position
        live.mask_BT = torch.cat([live.mask_BT, live.mask_BT.new_ones(len(live.mask_BT), 1)], dim=1)
        graphed_BD = None if live.graph is None else live.graph(live.tokens_B, live.positions_B)
        if graphed_BD is not None and self._checked:
            live.cache.advance()
            return graphed_BD
        output = self._forward(
            input_ids=live.tokens_B[:, None],
            attention_mask=live.mask_BT,
            position_ids=live.positions_B[:, None],
            past_key_values=live.cache.cache,
        )
        hidden_BD: torch.Tensor = output.last_hidden_state[:, -1]
        if graphed_BD is not None:
            self._checked = self.graphs = states_agree(graphed_BD, hidden_BD, self.loaded.precision)
            live.graph = live.graph if self.graphs else None
        elif self.graphs and not live.plain and live.cache.joinable and live.cache.room_left >= GRAPH_TOKENS:
            live.graph = self._capture_graph(live)
            live.plain = live.graph is None
        return hidden_BD

    def _capture_graph(self, live: ActiveRows) -> DecodeGraph | None:
        """Return a graph that decodes the next tokens of these rows, or None if there is none."""
        if self._waiting:
            self._waiting -= 1
            return None
        if self._stream is None and self.loaded.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.loaded.device)
        try:
            graph = DecodeGraph(
                self.loaded.decoder, live.cache, live.mask_BT, live.tokens_B, live.positions_B, self._stream
            )
        except BrokenCaptureError:
            self.graphs = False
            return None
        except Exception:  # whatever a layer raises that cannot be captured, and libraries if memory is full
            self._failed += 1
            self._waiting = 2**self._failed
            return None
        self._failed = 0
        return graph

    def _forward(self, **inputs: Any) -> Any:
        """Run the layers; of a model split over processes the other processes run theirs."""
        if self.loaded.runs_collectively:
            distributed.any_process_in_step(True)
        return self.loaded.decoder(**inputs, use_cache=True)

    def _run_for_others(self) -> None:
        """Run the layers of a model split over processes, unused here, until no process samples any more."""
        while self.loaded.runs_collectively and distributed.any_process_in_step(False):
            ids_BT = torch.full((1, 1), self.loaded.chat.pad_id, device=self.loaded.device)
            self.loaded.decoder(input_ids=ids_BT, use_cache=False)


def _lower_copy(loaded: Loaded) -> Loaded:
    """Return a copy with parameters in the precision of the products. Buffers (RoPE frequencies) keep theirs."""
    model = copy.deepcopy(loaded.model).requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(loaded.precision)
    return dataclasses.replace(loaded, model=model, tuning="frozen")
