"""The distillation objective: selects teachers and loss terms for each batch of rows.

Each row names its teacher. "label" rows are trained on their own tokens (cross-entropy: the forward KL to a point
mass); "reward" rows by the policy gradient on their advantages; all others towards the named teacher with weight
lambda, and 1 - lambda for the reward if they have advantages. The divergence is taken over the whole vocabulary if the
teacher's logits are available (the Rao-Blackwellised form: same expectation as the sampled one, far less variance). An
anchor may be added to each, KL(student | base) on the same states:

    L = lambda D(student, teacher) + (1 - lambda) PG(advantages) + anchor KL(student | base)

If completions were sampled by another engine or by older weights, each token is weighted by the importance ratios of
the tokens before it (``loss_config.ratio_cap``); a policy gradient uses the ratio of its own token instead, a merged
span that of its own tokens in addition.

The router's loss of a mixture of experts is added to label rows (:class:`recovery.models.loaded.Router`), if it has
a weight.

A teacher with another tokenizer reads its own tokens of the same text; :mod:`recovery.losses.spans` has its terms.

In the sampled form the teacher is part of the advantages, lambda (log q(y) - log p_old(y)) + (1 - lambda) A, which are
computed when the rows are sampled, and there is a single policy gradient.

=================================  ======================================  ============================
rows of                            terms, beside the anchor                importance weights
=================================  ======================================  ============================
"label"                            cross-entropy                           none
"reward"; any teacher if sampled   policy gradient                         of the own token, clipped
a teacher, no advantages           divergence to each of its models        of the tokens before, capped
a teacher, advantages, lambda < 1  both                                    of the policy gradient alone
a teacher, lambda = 0              policy gradient                         of the own token, clipped
=================================  ======================================  ============================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from recovery.batching import Batch, Prefix
from recovery.errors import UsageError
from recovery.losses.config import LossConfig
from recovery.losses.fused import FusedOutput, fused_loss
from recovery.losses.spans import SpanScores, span_scores
from recovery.losses.sparse import importance_ratio, top_entries
from recovery.losses.terms import BehaviourPolicy, Outcomes, Term, check_same_vocabulary
from recovery.losses.token_stats import GradientStats
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded
from recovery.teachers.teacher import Teacher

# Teacher names of rows: the two teachers of a stage, the row's own tokens, or a reward of the response. "base" is the
# teacher that --teacher names, whichever checkpoint that is: trackers have stored metrics under this word.
MAIN_TEACHER, KNOWLEDGE, LABEL, REWARD = "base", "knowledge", "label", "reward"
# Teachers of document text have names of their own: its figures are not those of the student's own responses.
DOCUMENTS, EARLIER_DOCUMENTS = "documents", "documents-earlier"


@dataclass(frozen=True)
class LossOutput:
    """The summed loss of a batch, differentiable, and sums over its tokens for the log (detached scalars).

    Each sum in ``sums`` is divided by the tokens of the batches that have it; ``metric`` is the name of the loss
    without the anchor, and ``weights`` has what the reported loss is made of: names in ``sums`` with their weights.
    """

    loss: torch.Tensor
    tokens: int
    sums: dict[str, torch.Tensor]
    metric: str
    weights: Mapping[str, float]


@dataclass
class DistillationObjective:
    """Computes the loss of a student's batch.

    Attributes:
        teachers: teachers by the names used in rows.
        loss_config: the loss settings. Labels always use temperature 1.
        anchor: the clean model of the anchor, if ``loss_config.anchor`` is above 0.
        outcomes: the outcomes of both vocabularies, by the names of teachers whose vocabulary is another one.
        padded: the outcomes for teachers, and for an anchor, whose heads have the student's vocabulary padded to
            another size, by that size.
        router: the weight of the router's loss on label rows, per target token; 0 leaves it out.
        geometry: if set, accumulates the tokens' gradient vectors; a stage sets a new one for each step that it
            measures.

    Raises:
        UsageError: the anchor has a weight but no model, or a teacher has a reserved name.
    """

    teachers: Mapping[str, Teacher] = field(default_factory=dict)
    loss_config: LossConfig = field(default_factory=LossConfig)
    anchor: Teacher | None = None
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)
    router: float = 0.0
    geometry: GradientStats | None = None
    padded: Mapping[int, Outcomes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss_config.anchor > 0.0 and self.anchor is None:
            raise UsageError(f"--anchor {self.loss_config.anchor} needs a model as anchor: none was given")
        for name in (LABEL, REWARD):
            if name in self.teachers:
                raise UsageError(f"a teacher cannot be called {name!r}: rows without a teacher use that name")

    def __call__(self, student: Loaded, batch: Batch) -> LossOutput:
        """Return the weighted sum of the terms over the batch's N targets (nats).

        Raise UsageError if a row names an unknown teacher or lacks fields that the loss needs.
        """
        head = student.head_in_training
        # The student runs last: the teachers need no gradient and keep nothing in memory but their hidden states.
        scores = self._span_scores(batch)
        terms = self._terms(head, batch, scores)
        at_anchor = len(terms)
        terms += self._anchor(batch)
        hidden_BTD, balance = self._student(student, batch)
        hidden_ND = batch.gather(hidden_BTD)
        temperature = 1.0 if batch.teacher == LABEL else self.loss_config.temperature
        if scores is not None:
            limits = self.loss_config.lam, temperature, self.loss_config.ratio_cap
            merged = scores.sampled(hidden_ND.detach(), head, batch, *limits)
            terms += [] if merged is None else [merged]
        behaviour = self._behaviour(batch, terms, scores, hidden_BTD.detach(), head)
        output = fused_loss(hidden_ND, head, terms, temperature=temperature, behaviour=behaviour)
        if self.geometry is not None and not batch.idle:
            self.geometry.add(output.gradient_ND, batch.rows_N)
        anchor_N = output.values_TN[at_anchor] if self._weighted_anchor is not None else None
        names = _metric_names(batch.teacher, self.loss_config)
        sums = _sums(output, names, anchor_N, self.loss_config.anchor)
        weights = {names["loss"]: 1.0} | ({} if anchor_N is None else {names["anchor"]: self.loss_config.anchor})
        loss = output.loss
        if balance is not None:
            added = batch.tokens * balance
            sums["router_loss"], loss = added.detach(), loss + self.router * added
        return LossOutput(loss, batch.tokens, sums, names["loss"], weights)

    def _student(self, student: Loaded, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the student's hidden states [B, T, D] and, of label rows, the router's loss if it is trained."""
        if self.router > 0.0 and batch.teacher == LABEL:
            return student.hidden_and_router_loss(batch)
        return student.hidden(batch), None

    @torch.no_grad()
    def not_finite(self, batch: Batch, *, local: bool = False) -> str | None:
        """Return which teacher, or which input of a batch's loss, is not finite; None if all are. ``local``: only what
        this process can tell without the others.
        """
        for name in ("advantages_N", "old_logprobs_N"):
            values_N = getattr(batch, name)
            if values_N is not None and not bool(values_N.isfinite().all()):
                return f"the rows' {name.removesuffix('_N').replace('_', ' ')} are not"
        if local:
            return None
        seen = batch.seen_by_teacher or batch
        readers = [(f"teacher {batch.teacher!r}", teacher, seen) for teacher in self._scorers(batch.teacher)]
        if self._weighted_anchor is not None:
            readers.append(("clean model of the anchor", self._weighted_anchor, batch))
        for name, teacher, read in readers:
            if teacher.has_logits:
                finite = read.gather(teacher.hidden(read)).isfinite().all()
                if not bool(finite) or not bool(teacher.head.weight_VD.isfinite().all()):
                    return f"the {name} is not"
        return None

    def separates_documents(self, teacher: str) -> bool:
        """Whether all that score the rows of a teacher, the anchor too, read each document of a packed row as if it
        were alone; a server does not.
        """
        readers = [*self._scorers(teacher), self._weighted_anchor]
        return all(reader.separates_documents for reader in readers if reader is not None)

    def _scorers(self, teacher: str) -> list[Teacher]:
        """Return what scores the rows of a teacher: nothing where the rows' own tokens or a reward do."""
        return [part for part, _ in self.teachers[teacher].parts] if teacher in self.teachers else []

    def _span_scores(self, batch: Batch) -> SpanScores | None:
        """Return the scores of a teacher with another tokenizer; None if these rows have no such teacher."""
        if batch.spans is None or batch.seen_by_teacher is None or self.loss_config.lam == 0.0:
            return None
        [(teacher, _)] = self._parts(batch)
        if batch.teacher not in self.outcomes or not teacher.has_logits:
            raise UsageError(f"rows of {batch.teacher!r} have spans, but no outcomes are given for that teacher")
        seen = batch.seen_by_teacher
        hidden_ME = seen.gather(teacher.hidden(seen))
        return span_scores(batch, hidden_ME, teacher.head, self.loss_config.temperature)

    def _terms(self, head: Head, batch: Batch, scores: SpanScores | None) -> list[Term]:
        """Return the terms of this batch, without the anchor."""
        if batch.teacher == LABEL:
            return [Term("cross_entropy", targets_N=batch.targets_N)]
        if batch.teacher == REWARD or self.loss_config.divergence == "sampled":
            return [self._policy(batch, 1.0)]
        lam = self.loss_config.lam
        terms = self._teacher(head, batch, scores) if lam > 0.0 else []
        if lam < 1.0 and (batch.advantages_N is not None or not terms):
            terms.append(self._policy(batch, 1.0 - lam))
        return terms

    def _behaviour(
        self, batch: Batch, terms: list[Term], scores: SpanScores | None, hidden_BTD: torch.Tensor, head: Head
    ) -> BehaviourPolicy | None:
        """Return the sampling distribution of these rows, if they have one and no policy gradient uses it."""
        if batch.old_logprobs_N is None or self.loss_config.ratio_cap == 0.0:
            return None
        if any(term.divergence == "policy_gradient" for term in terms):
            return None
        before_N = None if batch.prefix is None else self._prefix_ratios(batch.prefix, hidden_BTD, head)[batch.rows_N]
        spans_N = None if scores is None else scores.spans_N
        cap = self.loss_config.ratio_cap
        return BehaviourPolicy(batch.targets_N, batch.old_logprobs_N, batch.rows_N, cap, before_N, spans_N)

    @torch.no_grad()
    def _prefix_ratios(self, prefix: Prefix, hidden_BTD: torch.Tensor, head: Head) -> torch.Tensor:
        """Return the sum of log-ratios of each row's tokens before its targets, [B]."""
        hidden_MD = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[prefix.sources_M]
        term = Term("cross_entropy", targets_N=prefix.targets_M)
        log_p_M = -fused_loss(hidden_MD, head, [term], temperature=self.loss_config.temperature).per_token_N
        sums_B = log_p_M.new_zeros(hidden_BTD.shape[0], dtype=torch.float64)
        return sums_B.index_add(0, prefix.rows_M, importance_ratio(log_p_M, prefix.logprobs_M).double().log())

    def _policy(self, batch: Batch, weight: float) -> Term:
        """Return the policy gradient on the rows' advantages."""
        if batch.advantages_N is None:
            raise UsageError(
                f"rows of {batch.teacher!r} are trained by a policy gradient (--divergence "
                f"{self.loss_config.divergence}, --lambda {self.loss_config.lam}) and have no advantages"
            )
        return Term(
            "policy_gradient",
            weight,
            targets_N=batch.targets_N,
            advantages_N=batch.advantages_N,
            old_logprobs_N=batch.old_logprobs_N,
            clip=self.loss_config.clip,
            drop=self.loss_config.drop,
        )

    def _teacher(self, head: Head, batch: Batch, scores: SpanScores | None) -> list[Term]:
        """Return one term for each teacher of the rows; their weights sum to lambda."""
        lam = self.loss_config.lam
        if scores is not None:
            return [self._whole(batch, scores.hidden_NE, scores.head, lam, scores.single_N)]
        return [self._compared(head, batch, teacher, lam * weight) for teacher, weight in self._parts(batch)]

    def _parts(self, batch: Batch) -> Sequence[tuple[Teacher, float]]:
        """Return the teachers of the rows with their weights."""
        if batch.teacher not in self.teachers:
            known = ", ".join(sorted(self.teachers)) or "none"
            raise UsageError(f"a row names the teacher {batch.teacher!r}, which is not given (given: {known})")
        return self.teachers[batch.teacher].parts

    def _compared(self, head: Head, batch: Batch, teacher: Teacher, weight: float) -> Term:
        """Return the divergence to one teacher, with its own context if it has one."""
        loss_config = self.loss_config
        seen = batch.seen_by_teacher or batch
        if not teacher.has_logits:
            return self._top_k_term(seen, teacher, weight)
        hidden_NE, teacher_head = seen.gather(teacher.hidden(seen)), teacher.head
        if loss_config.divergence == "top_k":
            if teacher_head.vocabulary in self.padded:
                teacher_head = teacher_head.first(min(head.vocabulary, teacher_head.vocabulary))
            else:
                check_same_vocabulary(head, teacher_head)
            ids_NK, logprobs_NK = top_entries(hidden_NE, teacher_head, loss_config.top_k, loss_config.temperature)
            return Term("top_k", weight, top_ids_NK=ids_NK, top_logprobs_NK=logprobs_NK)
        return self._whole(batch, hidden_NE, teacher_head, weight)

    def _whole(
        self,
        batch: Batch,
        hidden_NE: torch.Tensor,
        head: Head,
        weight: float,
        active_N: torch.Tensor | None = None,
    ) -> Term:
        """Return the divergence to a teacher over the whole vocabulary, or over the outcomes of two."""
        loss_config, outcomes = self.loss_config, self.outcomes.get(batch.teacher) or self.padded.get(head.vocabulary)
        return Term(
            loss_config.divergence,
            weight,
            beta=loss_config.beta,
            teacher_hidden_NE=hidden_NE,
            teacher_head=head,
            outcomes=outcomes,
            active_N=active_N,
            entry_clip=loss_config.entry_clip,
            floor=loss_config.floor,
        )

    def _top_k_term(self, batch: Batch, teacher: Teacher, weight: float) -> Term:
        """Return the divergence to a teacher that returns only a few entries of its distribution."""
        if self.loss_config.divergence != "top_k" or self.loss_config.temperature != 1.0:
            raise UsageError(
                f"--divergence {self.loss_config.divergence} needs the teacher's logits, which a server does not "
                f"return: use --divergence top_k with --top-k 20, or --divergence sampled"
            )
        ids_NK, logprobs_NK = teacher.top(batch, self.loss_config.top_k)
        return Term("top_k", weight, top_ids_NK=ids_NK, top_logprobs_NK=logprobs_NK)

    @property
    def _weighted_anchor(self) -> Teacher | None:
        """The clean model of the anchor, if the anchor has a weight."""
        return self.anchor if self.loss_config.anchor > 0.0 else None

    def _anchor(self, batch: Batch) -> list[Term]:
        """Return the anchor: the reverse KL to the clean model, on the student's input."""
        model = self._weighted_anchor
        if model is None:
            return []
        hidden_NE, head = batch.gather(model.hidden(batch)), model.head
        weight, outcomes = self.loss_config.anchor, self.padded.get(head.vocabulary)
        return [Term("reverse_kl", weight, teacher_hidden_NE=hidden_NE, teacher_head=head, outcomes=outcomes)]


# Metrics of rows that no expert scores, by who scores them; the tracker and the dashboard know them by these names.
_METRICS = {
    MAIN_TEACHER: {name: name for name in ("entropy", "ratio", "clipped", "dropped")},
    REWARD: {"loss": "policy_loss"} | {name: name for name in ("entropy", "ratio", "clipped", "dropped")},
    KNOWLEDGE: {"loss": "knowledge_kl", "entropy": "knowledge_entropy"},
    DOCUMENTS: {"loss": "document_kl", "entropy": "document_entropy"},
    LABEL: {"loss": "label_loss", "entropy": "label_entropy"},
}


def _metric_names(scored_by: str, loss_config: LossConfig) -> dict[str, str]:
    """Return the names of a batch's metrics; without a name of their own they end in the teacher's, as
    "loss/expert-code".
    """
    known = _METRICS.get(scored_by, {}) | ({"loss": loss_config.loss_metric} if scored_by == MAIN_TEACHER else {})
    figures = ("loss", "entropy", "ratio", "clipped", "dropped")
    return {figure: known.get(figure, f"{figure}/{scored_by}") for figure in figures} | {"anchor": "anchor"}


def _sums(
    output: FusedOutput, names: Mapping[str, str], anchor_N: torch.Tensor | None, anchor: float
) -> dict[str, torch.Tensor]:
    """Return the sums over a batch's tokens for the log, by metric name; the loss is without the anchor's term, so that
    a divergence is the teacher's alone.
    """
    figures = {
        "loss": output.per_token_N if anchor_N is None else output.per_token_N - anchor * anchor_N,
        "entropy": output.entropy_N,
        "anchor": anchor_N,
        "ratio": output.ratio_N,
        "clipped": output.clipped_N,
        "dropped": output.dropped_N,
    }
    return {names[figure]: per_token_N.sum() for figure, per_token_N in figures.items() if per_token_N is not None}
