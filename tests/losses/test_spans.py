"""The loss over spans of two tokenizations: against a plain reference in float64, and its exact expectation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recovery.batching import Batch, Row, collate
from recovery.errors import UsageError
from recovery.losses.fused import FusedOutput, fused_loss
from recovery.losses.spans import LARGEST_LOG_RATIO, span_scores
from recovery.losses.terms import BehaviourPolicy, Outcomes, Term
from recovery.models.lm_head import Head
from recovery.teachers.cross_tokenizer import common_spans
from tests.support import plain_divergence

# Characters of one to four bytes: a token may end within each of them.
CHARACTERS = "ab né東\U0001f6a2"
BYTES = sorted({bytes([byte]) for byte in CHARACTERS.encode()})
PROMPT = 2  # tokens before the response, of both sides


@dataclass(frozen=True)
class Case:
    """A text in the tokens of two vocabularies."""

    student: list[bytes]
    teacher: list[bytes]
    said: list[bytes]
    spelled: list[bytes]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """All single bytes, and pieces of texts cut anywhere; any tokenization by these, not only a tokenizer's own."""
    text = "".join(draw(st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=8))).encode()
    vocabularies, tokenizations = [], []
    for _ in range(2):
        cuts = draw(st.lists(st.tuples(st.integers(0, len(text)), st.integers(2, 5)), max_size=8))
        pieces = sorted({piece for at, size in cuts if (piece := text[at : at + size])} - set(BYTES))
        vocabulary = [*BYTES, *pieces]
        tokens, at = [], 0
        while at < len(text):
            tokens.append(draw(st.sampled_from([token for token in vocabulary if text.startswith(token, at)])))
            at += len(tokens[-1])
        vocabularies.append(vocabulary)
        tokenizations.append(tokens)
    return Case(*vocabularies, *tokenizations)


def batch_of(case: Case, **more: Sequence[float]) -> Batch:
    rows = [case.student.index(token) for token in case.said], [case.teacher.index(token) for token in case.spelled]
    spans = [tuple(at + PROMPT for at in span) for span in common_spans(case.said, case.spelled)]
    ids, teacher_ids = ([*([0] * PROMPT), *row] for row in rows)
    mask = [False] * PROMPT + [True] * len(rows[0])
    return collate([Row(ids, mask, teacher="base", teacher_ids=teacher_ids, spans=spans, **more)], 0)


def outcomes_of(case: Case) -> Outcomes:
    """By its definition: the longest shared token that a token begins with."""
    shared = sorted(set(case.student) & set(case.teacher))
    sides = [
        torch.tensor([shared.index(max(filter(token.startswith, shared), key=len)) for token in side])
        for side in (case.student, case.teacher)
    ]
    return Outcomes(sides[0], sides[1], len(shared))


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2


def loss_of(
    batch: Batch, student_NV: Tensor, teacher_MW: Tensor, outcomes: Outcomes, name: str = "reverse_kl", cap: float = 0.0
) -> FusedOutput:
    """The loss as the objective puts it together, on heads that pass logits on."""
    heads = [Head(torch.eye(side.shape[1], dtype=torch.float64)) for side in (student_NV, teacher_MW)]
    scores = span_scores(batch, teacher_MW, heads[1], 1.0)
    whole = Term(
        name,
        0.5,
        teacher_hidden_NE=scores.hidden_NE,
        teacher_head=heads[1],
        outcomes=outcomes,
        active_N=scores.single_N,
    )
    merged = scores.sampled(student_NV.detach(), heads[0], batch, 0.5, 1.0, cap)
    behaviour = None
    if cap > 0.0 and batch.old_logprobs_N is not None:
        behaviour = BehaviourPolicy(batch.targets_N, batch.old_logprobs_N, batch.rows_N, cap, spans_N=scores.spans_N)
    terms = [whole] if merged is None else [whole, merged]
    return fused_loss(student_NV, heads[0], terms, behaviour=behaviour, chunk_tokens=3)


def plain(case: Case, student_NV: Tensor, teacher_MW: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Value per token, and a function whose slope is the gradient, span by span from whole distributions."""
    log_p, log_q = student_NV.log_softmax(-1), teacher_MW.log_softmax(-1).detach()
    values, surrogate = torch.zeros(len(case.said), dtype=torch.float64), student_NV.sum() * 0.0
    # The teacher's targets are those within spans, in order.
    at = 0
    for begin, end, first, last in common_spans(case.said, case.spelled):
        mine, theirs = range(begin, end), range(at, at + last - first)
        at += last - first
        if len(mine) == len(theirs) == 1:
            shared = sorted(set(case.student) & set(case.teacher))
            groups = [
                torch.stack([
                    torch.stack([p for token, p in zip(side, row, strict=True) if root(token, shared) == outcome]).sum()
                    for outcome in shared
                ]).log()
                for side, row in ((case.student, log_p[begin].exp()), (case.teacher, log_q[theirs[0]].exp()))
            ]  # fmt: skip
            value = plain_divergence(name, groups[0], groups[1])
            values[begin] = value.detach()
            surrogate = surrogate + value
            continue
        said = torch.stack([log_p[n, case.student.index(case.said[n])] for n in mine]).sum()
        spelled = sum(log_q[m, case.teacher.index(case.spelled[first + m - theirs[0]])] for m in theirs)
        ratio = float((said - spelled).detach().clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
        values[begin:end] = ratio / len(mine)
        surrogate = surrogate + ratio * said
    return values, surrogate


def root(token: bytes, shared: Sequence[bytes]) -> bytes:
    return max(filter(token.startswith, shared), key=len)


@settings(max_examples=30)  # each run draws others
@given(cases())
def test_spans_are_the_shortest_that_spell_the_same(case: Case) -> None:
    spans = common_spans(case.said, case.spelled)
    assert [(a, c) for a, _, c, _ in spans] == [(0, 0), *((b, d) for _, b, _, d in spans[:-1])]
    assert spans[-1][1::2] == (len(case.said), len(case.spelled)), "the whole text is aligned"
    for begin, end, first, last in spans:
        assert b"".join(case.said[begin:end]) == b"".join(case.spelled[first:last])
        inner = [
            {len(b"".join(side[start:cut])) for cut in range(start + 1, stop)}
            for side, start, stop in ((case.said, begin, end), (case.spelled, first, last))
        ]
        assert not inner[0] & inner[1], "no boundary within a span is common"


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl", "jsd", "skew_reverse_kl"])
@settings(max_examples=30)
@given(case=cases(), seed=st.integers(0, 10_000))
def test_value_and_gradient_are_those_of_the_definition(name: str, case: Case, seed: int) -> None:
    batch = batch_of(case)
    student = noise(seed, len(case.said), len(case.student)).requires_grad_()
    teacher = noise(seed + 1, len(case.spelled), len(case.teacher))
    output = loss_of(batch, student, teacher, outcomes_of(case), name)
    values, surrogate = plain(case, student, teacher, name)
    torch.testing.assert_close(output.per_token_N, values * 0.5)
    ours = torch.autograd.grad(output.loss, student)[0]
    theirs = torch.autograd.grad(surrogate * 0.5, student)[0]
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("older", [False, True])
def test_the_gradient_of_a_merged_span_is_on_average_that_of_the_divergence(older: bool) -> None:
    """Over all texts of two student tokens that are one token of the teacher, by enumeration; also of texts that
    other weights sampled.
    """
    letters, pairs = [b"a", b"b"], [b"aa", b"ab", b"ba", b"bb"]
    first, second = noise(1, 2).requires_grad_(), noise(2, 2, 2).requires_grad_()
    teacher = noise(3, 1, 6)
    log_p = (first.log_softmax(-1)[:, None] + second.log_softmax(-1)).reshape(-1)
    then = [noise(seed, *shape).log_softmax(-1) for seed, shape in ((6, (2,)), (7, (2, 2)))] if older else None
    log_q = teacher.log_softmax(-1)[0, 2:]
    exact = (log_p.exp() * (log_p - log_q)).sum()
    wanted = torch.autograd.grad(exact, (first, second))
    mean = [torch.zeros_like(first), torch.zeros_like(second)]
    value = 0.0
    for at, (one, two) in enumerate(itertools.product(range(2), range(2))):
        case = Case(letters, [*letters, *pairs], [letters[one], letters[two]], [pairs[at]])
        logits = torch.stack([first, second[one]])
        old = [float(then[0][one]), float(then[1][one, two])] if then else []
        output = loss_of(batch_of(case, old_logprobs=old), logits, teacher, outcomes_of(case), cap=1e6)
        chance = math.exp(sum(old)) if then else float(log_p[at].detach().exp())
        value += chance * 2 * float(output.loss.detach())
        for total, part in zip(mean, torch.autograd.grad(2 * output.loss, (first, second)), strict=True):
            total += chance * part
    assert older or value == pytest.approx(float(exact.detach())), "only the gradient of a span has its ratio"
    for ours, theirs in zip(mean, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_with_one_vocabulary_it_is_the_ordinary_divergence() -> None:
    vocabulary = [*BYTES, b"ab", b"a "]
    said = [b"ab", b" ", b"a ", b"b"]
    case = Case(vocabulary, vocabulary, said, said)
    student, teacher = noise(1, 4, len(vocabulary)).requires_grad_(), noise(2, 4, len(vocabulary))
    head = Head(torch.eye(len(vocabulary), dtype=torch.float64))
    for name in ("reverse_kl", "forward_kl", "jsd", "skew_kl"):
        output = loss_of(batch_of(case), student, teacher, outcomes_of(case), name)
        ordinary = fused_loss(student, head, [Term(name, 0.5, teacher_hidden_NE=teacher, teacher_head=head)])
        torch.testing.assert_close(output.per_token_N, ordinary.per_token_N)
        ours, theirs = (torch.autograd.grad(one.loss, student)[0] for one in (output, ordinary))
        torch.testing.assert_close(ours, theirs)


def test_in_bfloat16_it_is_the_same_within_rounding() -> None:
    """Teachers of two sizes at once have buffers of their own."""
    vocabulary, more = [*BYTES, b"ab"], [*BYTES, b"ab", b"na", b"bn"]
    case = Case(vocabulary, more, [b"ab", b"n", b"a", b"b"], [b"ab", b"na", b"b"])
    student, teacher = noise(1, 4, len(vocabulary)), noise(2, 3, len(more))
    values = []
    for dtype in (torch.float64, torch.bfloat16):
        heads = [Head(torch.eye(side.shape[1], dtype=dtype)) for side in (student, teacher)]
        batch, leaf = batch_of(case), student.to(dtype).requires_grad_()
        scores = span_scores(batch, teacher.to(dtype), heads[1], 1.0)
        terms = [
            Term(
                "reverse_kl",
                teacher_hidden_NE=scores.hidden_NE,
                teacher_head=heads[1],
                outcomes=outcomes_of(case),
                active_N=scores.single_N,
            ),
            Term("forward_kl", 0.5, teacher_hidden_NE=leaf.detach() * 0.5, teacher_head=heads[0]),
        ]
        merged = scores.sampled(leaf.detach(), heads[0], batch, 1.0, 1.0, 0.0)
        assert merged is not None
        output = fused_loss(leaf, heads[0], [*terms, merged], chunk_tokens=3)
        slope = torch.autograd.grad(output.loss, leaf)[0]
        values.append((output.per_token_N.double(), slope.double()))
    for ours, theirs in zip(values[1], values[0], strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)


def test_text_that_differs_has_no_loss() -> None:
    vocabulary = [b"a", b"b", b"A"]
    case = Case(vocabulary, vocabulary, [b"a", b"a", b"b"], [b"a", b"A", b"b"])
    batch = batch_of(case)
    assert batch.spans is not None and batch.spans.student_N.tolist() == [0, -1, -1] and batch.spans.total == 1
    student = noise(1, 3, 3).requires_grad_()
    output = loss_of(batch, student, noise(2, 1, 3), outcomes_of(case))
    assert output.per_token_N[0] > 0 and output.per_token_N[1:].tolist() == [0.0, 0.0]
    slope = torch.autograd.grad(output.loss, student)[0]
    assert slope[0].abs().sum() > 0 and not slope[1:].any()


def test_a_merged_span_has_its_own_importance_ratio_and_a_bound() -> None:
    letters = [b"a", b"b"]
    case = Case(letters, [*letters, b"ab"], [b"a", b"b"], [b"ab"])
    student = noise(4, 2, 2).requires_grad_()
    log_p = float(student.detach().log_softmax(-1)[[0, 1], [0, 1]].sum())
    plain_slope = torch.autograd.grad(loss_of(batch_of(case), student, noise(5, 1, 3), outcomes_of(case)).loss, student)
    for shift, expected in ((0.3, 1.3499), (5.0, 2.0)):
        old = [(log_p - shift) / 2] * 2
        output = loss_of(batch_of(case, old_logprobs=old), student, noise(5, 1, 3), outcomes_of(case), cap=2.0)
        slope = torch.autograd.grad(output.loss, student)[0]
        torch.testing.assert_close(slope, plain_slope[0] * expected, rtol=1e-4, atol=1e-8)
    certain = torch.tensor([[0.0, 0.0, -1000.0]], dtype=torch.float64)
    output = loss_of(batch_of(case), student, certain, outcomes_of(case))
    assert output.per_token_N.tolist() == pytest.approx([LARGEST_LOG_RATIO / 4] * 2), "half of it each, by weight 0.5"


def test_padding_of_two_heads_is_one_outcome() -> None:
    """The same vocabulary, padded to 6 and to 8 entries."""
    student, teacher = noise(1, 5, 6).requires_grad_(), noise(2, 5, 8)
    outcomes = Outcomes.padded(5, 6, 8, torch.device("cpu"))
    heads = [Head(torch.eye(size, dtype=torch.float64)) for size in (6, 8)]
    term = Term("reverse_kl", teacher_hidden_NE=teacher, teacher_head=heads[1], outcomes=outcomes)
    output = fused_loss(student, heads[0], [term])
    q = teacher.softmax(-1)
    log_q = torch.cat([q[:, :5], q[:, 5:].sum(-1, keepdim=True)], -1).log()
    expected = plain_divergence("reverse_kl", student.log_softmax(-1), log_q)
    torch.testing.assert_close(output.per_token_N, expected.detach())
    slopes = [torch.autograd.grad(one, student)[0] for one in (output.loss, expected.sum())]
    torch.testing.assert_close(slopes[0], slopes[1])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="must lie between 0 and 1"):
        Outcomes(torch.tensor([0, 2]), torch.tensor([0, 1]), 2)
    heads = [Head(torch.eye(size)) for size in (3, 4)]
    outcomes = Outcomes(torch.tensor([0, 1]), torch.tensor([0, 1, 1, 1]), 2)
    term = Term("reverse_kl", teacher_hidden_NE=torch.zeros(2, 4), teacher_head=heads[1], outcomes=outcomes)
    with pytest.raises(UsageError, match="outcomes of 2 and 4 tokens do not fit heads of 3 and 4 logits"):
        fused_loss(torch.zeros(2, 3), heads[0], [term])
    for spans in ([(2, 4, 1, 2)], [(1, 2, 0, 1)], [(1, 1, 1, 2)], [(1, 3, 2, 3), (2, 3, 3, 4)]):
        row = Row([1, 2, 3], [False, True, True], teacher="base", teacher_ids=[1, 2, 3, 4], spans=spans)
        with pytest.raises(UsageError, match="is not within its targets"):
            collate([row], 0)
