"""LossConfig is validated on creation; errors are one line and name the flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recovery.errors import UsageError
from recovery.losses.config import TEACHER_DIVERGENCES, LossConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lam": 0.0, "clip": 0.2, "drop": 8.0, "anchor": 0.04},
        {"lam": 0.5, "divergence": "forward_kl", "entry_clip": 0.05, "floor": -10.0, "clip": 0.2},
        {"lam": 0.5, "ratio_cap": 3.0},
        {"divergence": "jsd", "beta": 0.9, "entry_clip": 0.05},
        {"divergence": "jsd", "beta": 1.0, "floor": -10.0},
        {"divergence": "sampled", "clip": 0.2, "drop": 4.0},
        {"divergence": "top_k", "top_k": 64, "anchor": 0.1, "temperature": 0.7},
    ],
)
def test_valid_settings_are_accepted(settings: dict[str, Any]) -> None:
    config = LossConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


NAN = float("nan")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"lam": 1.5}, "--lambda is 1.5, but must be between 0 and 1"),
    ({"lam": NAN}, "--lambda is nan, but must be a finite number"),
    ({"divergence": "kl"}, f"--divergence 'kl' is not known: use {', '.join(TEACHER_DIVERGENCES[:-1])} or top_k"),
    ({"divergence": "jsd", "beta": -0.1}, "--beta is -0.1, but must be between 0 and 1"),
    ({"beta": 0.9}, "--beta 0.9 needs a divergence to a mixture: --divergence jsd"),
    ({"anchor": -1.0}, "--anchor is -1.0, but must be at least 0"),
    ({"ratio_cap": float("inf")}, "--ratio-cap is inf, but must be a finite number"),
    ({"anchor": NAN}, "--anchor is nan"),
    ({"temperature": 0.0}, "--temperature is 0.0, but must be above 0"),
    ({"lam": 0.0, "clip": 1.0}, "--clip is 1.0, but must be above 0 and below 1"),
    ({"lam": 0.0, "drop": 1.0}, "--drop is 1.0, but must be above 1"),
    ({"entry_clip": 0.0}, "--entry-clip is 0.0, but must be above 0"),
    ({"floor": 10.0}, "--floor is 10.0, but must be below 0"),
    ({"top_k": -1}, "--top-k is -1, but must be at least 0"),
    ({"top_k": 8}, "--top-k 8 needs --divergence top_k, not reverse_kl"),
    ({"divergence": "top_k"}, "--divergence top_k needs --top-k"),
    ({"clip": 0.2}, "--clip 0.2 acts on importance ratios: it needs --divergence sampled or --lambda below 1"),
    ({"drop": 4.0}, "--drop 4.0 acts on importance ratios"),
    ({"lam": 0.0, "ratio_cap": 3.0}, "--ratio-cap 3 has no effect with --lambda 0, a policy gradient"),
    ({"divergence": "sampled", "ratio_cap": 0.0}, "--ratio-cap 0 has no effect with --divergence sampled"),
    ({"divergence": "sampled", "entry_clip": 0.05}, "--entry-clip 0.05 needs a divergence over the whole vocabulary"),
    ({"divergence": "top_k", "top_k": 4, "floor": -10.0}, "--floor -10.0 needs --divergence reverse_kl or forward_kl"),
    ({"divergence": "jsd", "floor": -10.0}, "--floor -10.0 has no effect on --divergence jsd"),
    ({"lam": 0.0, "entry_clip": 0.05}, "--entry-clip 0.05 acts on a teacher's divergence, which --lambda 0 disables"),
    ({"lam": 0.0, "floor": -10.0}, "--floor -10.0 acts on"),
    ({"lam": 0.0, "divergence": "top_k", "top_k": 4}, "--top-k 4 acts on"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_invalid_settings_are_refused_by_flag(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        LossConfig(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_loss_of_every_divergence_has_a_title() -> None:
    given = [LossConfig(divergence=name, top_k=8 if name == "top_k" else 0) for name in TEACHER_DIVERGENCES]
    titles = {one.divergence: one.loss_title for one in given}
    assert titles.pop("sampled") == LossConfig(lam=0.5).loss_title == "", "losses that may be negative"
    assert all(title[:1].isupper() for title in titles.values())
    assert len(set(titles.values())) == len(titles)
