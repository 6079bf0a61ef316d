"""`recover demo --example`: an example's scenario, its records and its page."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.cli import common, stage_options
from recovery.config.midtrain import WRITER_FILE
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from recovery.arms import Arm

# The defaults as an arm: its results are compared with the bounds.
MAIN_ARM = "kl-replay-recovery"
# Path of IFEval's own prompts, which are not part of this project; a whole run of an example evaluates on them too.
IFEVAL_PROMPTS = "RECOVER_IFEVAL_PROMPTS"


@dataclass(frozen=True)
class Asked:
    """Options of `recover demo` for an example. ``arms`` is a comma-separated list of names, "all", or "none"."""

    example: Path | None = None
    short: bool = False
    arms: str | None = None
    cycles: int | None = None
    records: Path | None = None
    write_docs: Path | None = None
    cut: int = 1

    def check(self) -> None:
        """Raise UsageError for an option that needs an example, or for an unknown arm."""
        from recovery.arms import arm_named
        from recovery.errors import UsageError

        if self.example is None:
            given = [name for name in ("short", "arms", "cycles", "records") if getattr(self, name)]
            given += ["cut"] if self.cut > 1 else []
            if given:
                raise UsageError(f"--{given[0]} needs an --example, such as examples/nextjs: name one")
        if self.cut > 1 and (self.arms is None or self.short):
            raise UsageError("--cut is for --arms on whole corpora: name arms, and omit --short")
        for name in self.names:
            if lacking := self.lacking(arm_named(name)):
                raise UsageError(f"--arms {name} trains on {lacking}")

    def lacking(self, arm: Arm) -> str | None:
        """Return what the arm needs of a writer, and that the example does not have it; None if it has all."""
        from recovery.data.rewritten_texts import has_questions

        written = self.example / WRITER_FILE if self.example is not None else None
        if arm.needs_texts and (written is None or not written.is_file()):
            return f"texts that came with the example, and {self.example} has no {WRITER_FILE}"
        if arm.needs_questions and (written is None or not has_questions(written)):
            return f"a writer's questions, and no line of {written} has one"
        return None

    @property
    def names(self) -> list[str]:
        """Names of the arms to run; "all" are those for which the example has what they need."""
        from recovery.arms import arms

        if self.arms is None or self.arms == "none":
            return []
        if self.arms != "all":
            return [name.strip() for name in self.arms.split(",")]
        return [arm.name for arm in arms().values() if self.lacking(arm) is None]

    @property
    def command(self) -> str:
        """The equivalent command line, as a page shows it: without paths of this machine."""
        assert self.example is not None
        line = f"recover demo --example examples/{self.example.resolve().name}"
        line += " --short" if self.short else ""
        line += f" --arms {self.arms}" if self.arms else ""
        line += f" --cut {self.cut}" if self.cut > 1 else ""
        return line + (f" --cycles {self.cycles}" if self.cycles else "")

    def kept(self, workspace: Workspace) -> Path:
        """The folder of the records."""
        return self.records or workspace.folder / "records"


def flags_of(example: Path, short: bool) -> dict[str, Any]:
    """Return an example's evaluation settings: its texts, and IFEval's own prompts if they are given."""
    found: dict[str, Any] = {}
    if (example / "english").is_dir():
        found["texts"] = (example / "english").resolve()
    prompts = os.environ.get(IFEVAL_PROMPTS)
    if prompts and not short:
        found["ifeval"] = prompts if prompts == "hub" else str(Path(prompts).resolve())
    return found


def scenario_of(workspace: Workspace, asked: Asked, model: str | None = None) -> Any:
    """Return the scenario of an example, of --cycles corpora, with its own model or another one.

    Its packages are stored in the workspace.
    """
    from pipelines.experiments.example import scenario

    assert asked.example is not None
    packages = workspace.folder / "packages"
    found = scenario(asked.example, packages, short=asked.short, say=common.note, cut=asked.cut, model=model)
    return dataclasses.replace(found, cycles=min(asked.cycles or found.cycles, found.cycles))


def keep(session: Any, scenario: Any, seed: int, workspace: Workspace, asked: Asked, flags: dict[str, Any]) -> None:
    """Write the results of an example's cycles as a record of the main arm, and the page if requested."""
    from pipelines.experiments.arm_cycle import arm_named
    from pipelines.experiments.run import keep, of_cycles
    from recovery.config import MidtrainConfig, build

    made, kept = of_cycles(session), asked.kept(workspace)
    arm, cycles = arm_named(MAIN_ARM), scenario.cycles
    device = build(MidtrainConfig, flags, scenario.recipe, session.recipe).device
    keep(session, arm, scenario, made, seed=seed, cycles=cycles, kept=kept, device=device)
    if asked.write_docs is not None:
        write_page(workspace, asked)


def experiment(
    workspace: Workspace, asked: Asked, seeds: tuple[int, ...], flags: dict[str, Any], as_json: bool
) -> None:
    """Run every arm with every seed, seed by seed, and write the page over all records."""
    from pipelines.experiments.arm_cycle import arm_named
    from pipelines.experiments.example import shortened
    from pipelines.experiments.run import run
    from pipelines.runtime.progress import Display

    if asked.names:
        assert asked.example is not None
        arms = [arm_named(name) for name in asked.names]
        arms = [shortened(arm, asked.example) for arm in arms] if asked.short else arms
        scenario, display = scenario_of(workspace, asked), Display()
        with stage_options.resumable():
            for seed in seeds:
                for arm in arms:
                    run(
                        workspace,
                        arm,
                        scenario,
                        seed=seed,
                        cycles=scenario.cycles,
                        flags=flags,
                        kept=asked.kept(workspace),
                        display=display,
                    )
    found, text = write_page(workspace, asked)
    if asked.names:
        common.note(f"  recover dashboard --workspace {workspace.folder} --open      every run of this workspace")
    common.emit([{"arm": record.arm, "seed": record.seed, "cycles": record.cycles} for record in found], as_json, text)


def write_page(workspace: Workspace, asked: Asked) -> tuple[list[Any], str]:
    """Return the records of such runs, whole, short or cut, and the page over them; write the page if requested."""
    from pipelines.data.question_splits import held_out_ids
    from pipelines.experiments.page import page
    from pipelines.experiments.records import read_records
    from recovery.errors import UsageError

    kept = asked.kept(workspace)
    found = [record for record in read_records(kept) if (record.short, record.cut) == (asked.short, asked.cut)]
    if not found:
        raise UsageError(f"there is no record in {kept} yet: name arms to run with --arms")
    assert asked.example is not None
    text = page(found, MAIN_ARM, asked.command, held_out_ids(asked.example / "questions.jsonl"))
    stage_options.write_page(asked.write_docs, text)
    return found, text
