"""The campaigns of tests/torture run, count what they tried and end with 0 if they find nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.torture", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ})


@pytest.mark.slow
@pytest.mark.parametrize("campaign", ["kill", "disks", "upgrades"])
def test_a_campaign_tries_and_finds_nothing(campaign: str) -> None:
    finished = torture("--seed", "0", "--minutes", "0.5", campaign)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    tries = re.search(rf"^{campaign}: (\d+) tries, 0 faults$", finished.stdout, re.MULTILINE)
    assert tries is not None and int(tries[1]) > 0


def test_an_unknown_campaign_is_refused_with_the_known_ones() -> None:
    finished = torture("nothing")
    assert finished.returncode == 2
    assert "there is no campaign nothing: use kill, disks, upgrades" in finished.stderr
