"""The router's loss of a mixture of experts, against transformers' own forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recovery.batching import Row, collate
from recovery.errors import ModelError
from recovery.losses.objective import DistillationObjective
from recovery.models.loading import load_model

ROWS = [Row(list(range(5, 25)), [True] * 20), Row(list(range(30, 37)), [True] * 7)]
KINDS = ["qwen3_moe", "mixtral"]


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest) -> Path:
    """A tiny mixture of experts."""
    found: Path = request.getfixturevalue(f"tiny_{request.param}")
    return found


@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradients_are_those_of_transformers(folder: Path, checkpointing: bool) -> None:
    ours = load_model(folder, tuning="full", precision="float32", gradient_checkpointing=checkpointing)
    batch = collate(ROWS, 0)
    ours.model.train()
    output = DistillationObjective(router=3.0)(ours, batch)
    output.loss.backward()
    theirs = load_model(folder, tuning="full", precision="float32").core
    labels = batch.ids_BT.masked_fill(~batch.real, -100)
    theirs.router_aux_loss_coef = 3.0
    said = theirs(input_ids=batch.ids_BT, attention_mask=batch.real.long(), labels=labels, output_router_logits=True)
    (said.loss * batch.tokens).backward()
    assert float(output.loss.detach()) == pytest.approx(float(said.loss.detach()) * batch.tokens, rel=1e-5)
    assert float(output.sums["router_loss"]) == pytest.approx(float(said.aux_loss.detach()) * batch.tokens, rel=1e-5)
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.trainable().items():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-3, atol=1e-4)


def test_padding_is_no_part_of_it(folder: Path) -> None:
    loaded = load_model(folder, precision="float32")
    assert loaded.router is not None
    assert (loaded.router.experts, loaded.router.per_token, loaded.router.weight) == (4, 2, 0.001)
    with torch.no_grad():
        _, alone = loaded.hidden_and_router_loss(collate(ROWS[1:], 0))
        both = collate([ROWS[1], Row([9] * 200, [True] * 200)], 0)
        padded = both.real.clone()
        padded[1] = False
        logits = loaded._run_decoder(both, output_router_logits=True).router_logits
    assert float(loaded.router.loss(logits, padded)) == pytest.approx(float(alone), rel=1e-5)
    assert not both.real[0, 7:].any() and both.real[1].all()


def test_only_label_rows_have_it_and_only_with_a_weight(folder: Path) -> None:
    loaded = load_model(folder, tuning="full", precision="float32")
    reward = [Row(list(range(5, 15)), [True] * 10, teacher="reward", advantages=(1.0,) * 9)]
    for objective, rows in ((DistillationObjective(), ROWS), (DistillationObjective(router=1.0), reward)):
        assert "router_loss" not in objective(loaded, collate(rows, 0)).sums


def test_a_model_without_experts_has_none(tiny_llama: Path) -> None:
    loaded = load_model(tiny_llama, tuning="full", precision="float32")
    assert loaded.router is None
    with pytest.raises(ModelError, match="has no router whose loss is known: omit --router-loss"):
        DistillationObjective(router=1.0)(loaded, collate(ROWS, 0))
