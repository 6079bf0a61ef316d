"""Log-probabilities of given continuations, batched by a token budget."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.batches import Row, micro_batches
from recovery.loading import Loaded
from recovery.objectives.fused import fused_loss


def continuation_logprobs(
    loaded: Loaded, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], token_budget: int = 8192
) -> list[list[float]]:
    """Natural log-probability of every continuation token given its context and the tokens before it.

    ``pairs`` are (context ids, continuation ids); an empty context leaves the first token without a
    prediction, and its log-probability is left out.
    """
    rows = [
        Row([*context, *continuation], [False] * len(context) + [True] * len(continuation))
        for context, continuation in pairs
    ]
    # Longest first, as micro_batches orders them too: the batches then come back in this order.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids), reverse=True)
    ranked = [rows[i] for i in order]
    results: list[list[float]] = [[] for _ in rows]
    done = 0
    with loaded.inference():
        for batch in micro_batches(ranked, token_budget, loaded.chat.pad_id, loaded.device):
            hidden_ND = batch.gather(loaded.hidden(batch))
            output = fused_loss(hidden_ND, loaded.head, divergence="cross_entropy", targets_N=batch.targets_N)
            owners, values = batch.rows_N.tolist(), (-output.per_token_N).tolist()
            for owner, value in zip(owners, values, strict=True):
                results[order[done + owner]].append(value)
            done += batch.ids_BT.shape[0]
    return results
