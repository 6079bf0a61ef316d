"""Log-likelihood of continuations with a shared context computed once.

A choice probe has many candidates after one text. The text is run once into a key-value cache, its last hidden state
scores the first token of every candidate, and only the remaining tokens are run after the cache. No padding precedes a
real token (contexts are batched by exact length, continuations padded on the right), so the results equal those of
plain scoring.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from recovery.errors import UsageError
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded
from recovery.prompt_logprobs import ServerScores
from recovery.rollouts.engine import Progress

# Maximum number of logits in memory at once: 64 MB in float32 for any vocabulary.
LOGITS_AT_ONCE = 2**24

Request = tuple[Sequence[int], Sequence[Sequence[int]]]
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Likelihood:
    """Natural log-probability of every token of a continuation; ``greedy``: every token was the most likely one."""

    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation, in nats."""
        return sum(self.logprobs)


def likelihoods(
    loaded: Loaded, requests: Sequence[Request], *, token_budget: int = 16384, progress: Progress | None = None
) -> list[list[Likelihood]]:
    """Score ``requests``, each (context ids, [continuation ids, ...]); return a list of likelihoods per request.

    Contexts and continuations need at least one token (the context of a whole document is a beginning-of-text token).
    The context of a pair longer than the model's window is truncated on the left. ``token_budget`` bounds the tokens
    per batch; it does not change the scores. ``progress`` receives the numbers of finished requests and of tokens after
    each batch; an exception it raises ends the scoring.
    """
    server = loaded.server_scores
    window = loaded.max_length if server is None else min(loaded.max_length, server.window)
    by_context, places = _by_context(requests, window)
    scores: dict[tuple[Tokens, Tokens], Likelihood] = {}
    open_pairs = [len(pairs) for pairs in places]
    owners: dict[tuple[Tokens, Tokens], list[int]] = {}
    for index, pairs in enumerate(places):
        for pair in pairs:
            owners.setdefault(pair, []).append(index)
    with loaded.inference(), loaded.autocast():
        for group in _groups(by_context, token_budget, equal=server is None):
            group_scores = (
                _score_group(loaded, group, token_budget) if server is None else _score_on_server(server, group)
            )
            scores.update(group_scores)
            finished = 0
            for pair in group_scores:
                for index in owners[pair]:
                    open_pairs[index] -= 1
                    finished += open_pairs[index] == 0
            if progress is not None:
                progress(finished, sum(len(context) + sum(map(len, pairs)) for context, pairs in group))
    return [[scores[pair] for pair in pairs] for pairs in places]


def _by_context(
    requests: Sequence[Request], window: int
) -> tuple[dict[Tokens, dict[Tokens, None]], list[list[tuple[Tokens, Tokens]]]]:
    """Return the distinct pairs as context -> continuations, and the pairs of every request."""
    by_context: dict[Tokens, dict[Tokens, None]] = {}
    places: list[list[tuple[Tokens, Tokens]]] = []
    for index, (context, continuations) in enumerate(requests):
        pairs = []
        for continuation in continuations:
            if not context or not continuation:
                raise UsageError(f"request {index} has an empty context or continuation: there is nothing to score")
            if len(continuation) > window:
                raise UsageError(
                    f"request {index} has a continuation of {len(continuation)} tokens; the model's window is {window}"
                )
            cut = tuple(context)[-(window - len(continuation) + 1) :]  # the last token is no input
            pair = (cut, tuple(continuation))
            by_context.setdefault(pair[0], {})[pair[1]] = None
            pairs.append(pair)
        places.append(pairs)
    return by_context, places


def _groups(
    by_context: dict[Tokens, dict[Tokens, None]], token_budget: int, *, equal: bool
) -> Iterator[list[tuple[Tokens, list[Tokens]]]]:
    """Yield groups of contexts, of ``equal`` length if so, that fit the budget with all their continuations."""
    by_length: dict[int, list[Tokens]] = {}
    for context in by_context:
        by_length.setdefault(len(context) if equal else 0, []).append(context)
    for _, contexts in sorted(by_length.items(), reverse=True):
        group: list[tuple[Tokens, list[Tokens]]] = []
        cost = 0
        for context in contexts:
            continuations = list(by_context[context])
            # Every row after the cache needs a copy of the context's keys, which counts towards the budget.
            price = len(context) + sum(len(c) - 1 for c in continuations) + len(context) * len(continuations) // 4
            if group and cost + price > token_budget:
                yield group
                group, cost = [], 0
            group.append((context, continuations))
            cost += price
        yield group


def _score_on_server(
    server: ServerScores, group: list[tuple[Tokens, list[Tokens]]]
) -> dict[tuple[Tokens, Tokens], Likelihood]:
    pairs = [(context, continuation) for context, continuations in group for continuation in continuations]
    scored = {}
    for pair, row in zip(pairs, server.of([context + continuation for context, continuation in pairs]), strict=True):
        context, continuation = pair
        targets = row[len(context) - 1 :]
        greedy = all(one.ids[0] == token for one, token in zip(targets, continuation, strict=True))
        scored[pair] = Likelihood(tuple(one.target for one in targets), greedy)
    return scored


def _score_group(
    loaded: Loaded, group: list[tuple[Tokens, list[Tokens]]], token_budget: int
) -> dict[tuple[Tokens, Tokens], Likelihood]:
    contexts_BT = torch.tensor([context for context, _ in group], device=loaded.device)
    length = contexts_BT.shape[1]
    cache = DynamicCache(config=loaded.core.config)
    hidden_BD = _hidden(loaded, contexts_BT, 0, cache)[:, -1]
    rows = [(b, continuation) for b, (_, continuations) in enumerate(group) for continuation in continuations]
    owners = torch.tensor([b for b, _ in rows], device=loaded.device)
    firsts = torch.tensor([continuation[0] for _, continuation in rows], device=loaded.device)
    logprobs, greedy = _first_tokens(loaded, hidden_BD, owners, firsts)
    values = [[value] for value in logprobs]
    longer = sorted((i for i, (_, c) in enumerate(rows) if len(c) > 1), key=lambda i: len(rows[i][1]), reverse=True)
    chunks = list(_chunks(longer, [len(c) - 1 for _, c in rows], length // 4, token_budget))
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1
        chunk_cache = cache if last else copy.deepcopy(cache)
        chunk_cache.batch_select_indices(owners[chunk])
        later = _later_tokens(loaded, [rows[i][1] for i in chunk], length, chunk_cache)
        for i, (row_values, row_greedy) in zip(chunk, later, strict=True):
            values[i] += row_values
            greedy[i] = greedy[i] and row_greedy
    return {
        (group[b][0], continuation): Likelihood(tuple(values[i]), greedy[i]) for i, (b, continuation) in enumerate(rows)
    }


def _first_tokens(
    loaded: Loaded, hidden_BD: torch.Tensor, owners: torch.Tensor, firsts: torch.Tensor
) -> tuple[list[float], list[bool]]:
    """Score every continuation's first token with its context's last hidden state."""
    normaliser, best, picked = [], [], torch.empty(len(owners), device=loaded.device)
    head = _sharp_head(loaded)
    step = max(1, LOGITS_AT_ONCE // head.vocabulary)
    for start in range(0, len(hidden_BD), step):
        logits_BV = _logits(head, hidden_BD[start : start + step])
        normaliser.append(logits_BV.logsumexp(-1))
        best.append(logits_BV.argmax(-1))
        in_chunk = (owners >= start) & (owners < start + step)
        picked[in_chunk] = logits_BV[owners[in_chunk] - start, firsts[in_chunk]]
    logprobs = picked - torch.cat(normaliser)[owners]
    return logprobs.tolist(), (torch.cat(best)[owners] == firsts).tolist()


def _later_tokens(
    loaded: Loaded, continuations: list[Tokens], length: int, cache: DynamicCache
) -> list[tuple[list[float], bool]]:
    """Score the tokens after the first, run after the cached context; no real token attends to right padding."""
    width = max(len(c) for c in continuations) - 1
    ids_BT = torch.full((len(continuations), width), loaded.chat.pad_id)
    targets_BT = torch.full((len(continuations), width), -1)
    for b, continuation in enumerate(continuations):
        ids_BT[b, : len(continuation) - 1] = torch.tensor(continuation[:-1])
        targets_BT[b, : len(continuation) - 1] = torch.tensor(continuation[1:])
    ids_BT, targets_BT = ids_BT.to(loaded.device), targets_BT.to(loaded.device)
    hidden_BTD = _hidden(loaded, ids_BT, length, cache)
    real_BT = targets_BT >= 0
    hidden_ND, targets_N = hidden_BTD[real_BT], targets_BT[real_BT]
    values, hits = [], []
    head = _sharp_head(loaded)
    step = max(1, LOGITS_AT_ONCE // head.vocabulary)
    for start in range(0, len(targets_N), step):
        logits_NV = _logits(head, hidden_ND[start : start + step])
        targets = targets_N[start : start + step]
        values += (logits_NV.gather(-1, targets[:, None]).squeeze(-1) - logits_NV.logsumexp(-1)).tolist()
        hits += (logits_NV.argmax(-1) == targets).tolist()
    results, start = [], 0
    for continuation in continuations:
        end = start + len(continuation) - 1
        results.append((values[start:end], all(hits[start:end])))
        start = end
    return results


def _sharp_head(loaded: Loaded) -> Head:
    """Return the head in float32 if the copy is small: bfloat16 rounds logits near 12 to steps of 0.06."""
    return loaded.head if loaded.head.weight_VD.numel() > LOGITS_AT_ONCE else loaded.head.in_float32()


def _logits(head: Head, hidden_ND: torch.Tensor) -> torch.Tensor:
    with torch.autocast(hidden_ND.device.type, enabled=False):
        return head.logits(hidden_ND.to(head.weight_VD.dtype)).float()


def _hidden(loaded: Loaded, ids_BT: torch.Tensor, offset: int, cache: DynamicCache) -> torch.Tensor:
    """Return final hidden states [B, T, D] of tokens from position ``offset`` on, and extend the cache."""
    positions_BT = torch.arange(offset, offset + ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
    output = loaded.decoder(input_ids=ids_BT, position_ids=positions_BT, past_key_values=cache, use_cache=True)
    return output.last_hidden_state.to(loaded.precision)


def _chunks(order: list[int], sizes: list[int], copied: int, budget: int) -> Iterator[list[int]]:
    """Split rows, the longest first, into batches within the budget; each row costs its size and ``copied`` tokens.

    No row is padded to more than twice its size: a long answer would make the short ones of its batch as expensive.
    """
    chunk: list[int] = []
    cost = 0
    for index in order:
        if chunk and (cost + sizes[index] + copied > budget or 2 * sizes[index] < sizes[chunk[0]]):
            yield chunk
            chunk, cost = [], 0
        chunk.append(index)
        cost += sizes[index] + copied
    if chunk:
        yield chunk
