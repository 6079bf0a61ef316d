"""The estimator: who scores which tokens, by which divergence, and how far one step may go.

Rows carry the name of who teaches them. "label" rows are trained towards their own tokens (cross-entropy: the
forward KL to a point mass); "reward" rows by the policy gradient on their advantages; all others towards the named
teacher, whose weight is lambda, with 1 - lambda for the reward where they carry advantages. A teacher's divergence is
taken over the whole vocabulary where its logits are at hand (the Rao-Blackwellised form: same expectation as the
sampled one, far less variance). To each of them an anchor may be added, KL(student | base) on the same states:

    L = lambda D(student, teacher) + (1 - lambda) PG(advantages) + anchor KL(student | base)

Where answers were sampled by an engine of its own, or by weights that have moved since, each token counts by the
importance ratios of those before it (``dials.ratio_cap``); a policy gradient brings that of its own token instead.

In the sampled form the teacher is part of the advantages, lambda (log q(y) - log p_old(y)) + (1 - lambda) A, which
whoever sampled the rows has put together, and there is one policy gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from recovery.batches import Batch
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.objectives.dials import Dials
from recovery.objectives.fused import FusedOutput, fused_loss
from recovery.objectives.geometry import Geometry
from recovery.objectives.heads import Head
from recovery.objectives.sampled import top_entries
from recovery.objectives.terms import Behaviour, Term, check_same_vocabulary
from recovery.teachers import Scorer, Teacher, Weighted

LABEL, REWARD = "label", "reward"


@dataclass(frozen=True)
class LossOutput:
    """The summed loss of a batch, differentiable, and sums over its tokens for the log (detached scalars).

    Each sum in ``sums`` is divided by the tokens of its kind: those whose name it carries after the slash.
    """

    loss: torch.Tensor
    tokens: int
    sums: dict[str, torch.Tensor]


@dataclass
class Estimator:
    """Scores a student's batch.

    Attributes:
        teachers: the names rows carry, and who they are: a teacher, or several with weights.
        dials: how their scores are compared and bounded. Labels are always taken at temperature 1.
        anchor: the clean model of the anchor, where ``dials.anchor`` is above 0.
        geometry: gathers the tokens' gradient vectors, where one is set; a stage puts in a fresh one for each
            step that it measures.

    Raises:
        UsageError: the dials ask for an anchor and there is no model to anchor to, or a name is taken.
    """

    teachers: Mapping[str, Teacher | Scorer | Weighted] = field(default_factory=dict)
    dials: Dials = field(default_factory=Dials)
    anchor: Teacher | None = None
    geometry: Geometry | None = None

    def __post_init__(self) -> None:
        if self.dials.anchor > 0.0 and self.anchor is None:
            raise UsageError(f"--anchor {self.dials.anchor} needs a model to anchor to: none was given")
        for name in (LABEL, REWARD):
            if name in self.teachers:
                raise UsageError(f"a teacher cannot be called {name!r}: rows say by it that they have no teacher")

    def __call__(self, student: Loaded, batch: Batch) -> LossOutput:
        """The weighted sum of the terms over the batch's N targets (nats).

        Raises UsageError where a row names a teacher that was not given, or lacks what the dials ask of it.
        """
        head = student.head
        # The student goes last: what the teachers read needs no gradient and leaves nothing behind but their states.
        terms = self._terms(head, batch)
        at_anchor = len(terms)
        terms += self._anchor(batch)
        hidden_ND = batch.gather(student.hidden(batch))
        temperature = 1.0 if batch.teacher == LABEL else self.dials.temperature
        behaviour = self._behaviour(batch, terms)
        output = fused_loss(hidden_ND, head, terms, temperature=temperature, behaviour=behaviour)
        if self.geometry is not None and not batch.idle:
            self.geometry.add(output.gradient_ND, batch.rows_N)
        anchor_N = output.values_TN[at_anchor] if len(terms) > at_anchor else None
        return LossOutput(output.loss, batch.tokens, _sums(output, batch.teacher, anchor_N))

    def _terms(self, head: Head, batch: Batch) -> list[Term]:
        """What the rows of this batch are trained towards, but for the anchor."""
        if batch.teacher == LABEL:
            return [Term("cross_entropy", targets_N=batch.targets_N)]
        if batch.teacher == REWARD or self.dials.divergence == "sampled":
            return [self._policy(batch, 1.0)]
        lam = self.dials.lam
        terms = self._teacher(head, batch) if lam > 0.0 else []
        if lam < 1.0 and (batch.advantages_N is not None or not terms):
            terms.append(self._policy(batch, 1.0 - lam))
        return terms

    def _behaviour(self, batch: Batch, terms: list[Term]) -> Behaviour | None:
        """Who sampled these rows, where they say so and no policy gradient sees to it."""
        if batch.old_logprobs_N is None or self.dials.ratio_cap == 0.0:
            return None
        if any(term.divergence == "policy_gradient" for term in terms):
            return None
        return Behaviour(batch.targets_N, batch.old_logprobs_N, batch.rows_N, self.dials.ratio_cap)

    def _policy(self, batch: Batch, weight: float) -> Term:
        """The policy gradient on the rows' advantages."""
        if batch.advantages_N is None:
            raise UsageError(
                f"rows of {batch.teacher!r} are trained by a policy gradient (--divergence {self.dials.divergence}, "
                f"--lambda {self.dials.lam}) and carry no advantages"
            )
        return Term(
            "policy_gradient",
            weight,
            targets_N=batch.targets_N,
            advantages_N=batch.advantages_N,
            old_logprobs_N=batch.old_logprobs_N,
            clip=self.dials.clip,
            drop=self.dials.drop,
        )

    def _teacher(self, head: Head, batch: Batch) -> list[Term]:
        """One term for each teacher of the rows; their weights sum to lambda."""
        if batch.teacher not in self.teachers:
            known = ", ".join(sorted(self.teachers)) or "none"
            raise UsageError(f"a row asks for the teacher {batch.teacher!r}, which was not given (given: {known})")
        found = self.teachers[batch.teacher]
        parts = found.parts if isinstance(found, Weighted) else [(found, 1.0)]
        return [self._compared(head, batch, teacher, self.dials.lam * weight) for teacher, weight in parts]

    def _compared(self, head: Head, batch: Batch, teacher: Teacher | Scorer, weight: float) -> Term:
        """The divergence to one teacher, as it reads the rows."""
        dials = self.dials
        seen = batch.seen_by_teacher or batch
        if isinstance(teacher, Scorer):
            return self._told(seen, teacher, weight)
        hidden_NE, teacher_head = seen.gather(teacher.hidden(seen)), teacher.head
        if dials.divergence == "top_k":
            check_same_vocabulary(head, teacher_head)
            ids_NK, logprobs_NK = top_entries(hidden_NE, teacher_head, dials.top_k, dials.temperature)
            return Term("top_k", weight, top_ids_NK=ids_NK, top_logprobs_NK=logprobs_NK)
        return Term(
            dials.divergence,
            weight,
            beta=dials.beta,
            teacher_hidden_NE=hidden_NE,
            teacher_head=teacher_head,
            entry_clip=dials.entry_clip,
            floor=dials.floor,
        )

    def _told(self, batch: Batch, teacher: Scorer, weight: float) -> Term:
        """The divergence to a teacher that tells a few entries of its distribution."""
        if self.dials.divergence != "top_k" or self.dials.temperature != 1.0:
            raise UsageError(
                f"--divergence {self.dials.divergence} needs the teacher's logits, which a server does not give: use "
                f"--divergence top_k with --top-k 20, or --divergence sampled"
            )
        ids_NK, logprobs_NK = teacher.top(batch, self.dials.top_k)
        return Term("top_k", weight, top_ids_NK=ids_NK, top_logprobs_NK=logprobs_NK)

    def _anchor(self, batch: Batch) -> list[Term]:
        """The pull back to the clean model, which reads what the student reads."""
        if self.anchor is None or self.dials.anchor == 0.0:
            return []
        hidden_NE = batch.gather(self.anchor.hidden(batch))
        return [
            Term("reverse_kl", self.dials.anchor, teacher_hidden_NE=hidden_NE, teacher_head=self.anchor.head),
        ]


def _sums(output: FusedOutput, name: str, anchor_N: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """What the log tells of a batch: sums over its tokens, by figure and the name of its teacher."""
    figures = {
        "loss": output.per_token_N,
        "entropy": output.entropy_N,
        "anchor": anchor_N,
        "ratio": output.ratio_N,
        "clipped": output.clipped_N,
        "dropped": output.dropped_N,
    }
    return {f"{figure}/{name}": per_token_N.sum() for figure, per_token_N in figures.items() if per_token_N is not None}
