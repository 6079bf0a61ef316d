"""Per-token statistics against the full distributions."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from recovery.batching import Row
from recovery.losses.token_stats import TOP, token_views
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.teachers.teacher import LocalTeacher


@pytest.fixture(scope="module")
def student(tiny_model: Path) -> Loaded:
    return load_model(tiny_model, precision="float32", device="cpu")


@pytest.fixture(scope="module")
def other(tiny_model: Path) -> Loaded:
    """The same model with scaled norms: another distribution over the same tokens."""
    loaded = load_model(tiny_model, precision="float32", device="cpu")
    with torch.no_grad():
        for name, weight in loaded.model.named_parameters():
            if "norm" in name:
                weight.mul_(1.5)
    return loaded


def test_every_figure_is_that_of_the_whole_distributions(student: Loaded, other: Loaded) -> None:
    row = Row(ids=[5, 9, 11, 7, 3, 20], loss_mask=[False, False, False, True, True, True], teacher="base",
              advantages=[0.5, -0.25, 1.0])  # fmt: skip
    (view,) = token_views(student, LocalTeacher(other), [row], pad_id=0)
    with torch.no_grad():
        p, q = (m.model(torch.tensor([row.ids])).logits[0, 2:5].double().log_softmax(-1) for m in (student, other))
    assert (view.prompt_ids, view.ids) == ([5, 9, 11], [7, 3, 20])
    assert view.reverse_kl == pytest.approx((p.exp() * (p - q)).sum(-1).tolist(), abs=2e-4)
    assert min(view.reverse_kl) > 1e-3
    assert view.entropy == pytest.approx((-p.exp() * p).sum(-1).tolist(), abs=2e-4)
    assert view.teacher_entropy == pytest.approx((-q.exp() * q).sum(-1).tolist(), abs=2e-4)
    assert view.logprob == pytest.approx([p[i, t].item() for i, t in enumerate(view.ids)], abs=2e-4)
    assert view.teacher_logprob == pytest.approx([q[i, t].item() for i, t in enumerate(view.ids)], abs=2e-4)
    assert view.advantage == [0.5, -0.25, 1.0]
    for tops, logs in ((view.top, p), (view.teacher_top, q)):
        assert [len(top) for top in tops] == [TOP] * 3
        assert [top[0][0] for top in tops] == logs.argmax(-1).tolist()
        assert all(a[1] >= b[1] for top in tops for a, b in itertools.pairwise(top))


def test_a_model_beside_itself_is_no_distance_away_and_reads_its_own_context(student: Loaded) -> None:
    plain = Row(ids=[5, 9, 7, 3], loss_mask=[False, False, True, True], teacher="base")
    told = Row(ids=[5, 9, 7, 3], loss_mask=[False, False, True, True], teacher="base", teacher_ids=[30, 31, 5, 9, 7, 3])
    same, context = token_views(student, LocalTeacher(student), [plain, told], pad_id=0)
    assert same.reverse_kl == [0.0, 0.0]
    assert max(context.reverse_kl) > 0.0 and context.entropy == same.entropy
    assert all(math.isfinite(value) for value in context.reverse_kl)
    assert token_views(student, LocalTeacher(student), [Row([5, 9], [False, False])], pad_id=0) == []


def test_heads_of_different_padding_are_compared_over_what_both_have(student: Loaded) -> None:
    head = student.head
    padded = SimpleNamespace(hidden=student.hidden, head=head.first(head.vocabulary - 3))
    row = Row(ids=[5, 9, 11, 7], loss_mask=[False, False, True, True], teacher="base")
    (view,) = token_views(student, padded, [row], pad_id=0)
    assert max(view.reverse_kl) < 1e-4
