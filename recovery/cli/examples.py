"""What `recover demo --example` does: an example's folder as a scenario, its records, its page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.cli import options, stages
from recovery.workspace import Workspace

# The arm that the page of an experiment holds to its bounds.
MAIN_ARM = "recovery"
# Where IFEval's own prompts are, which are no part of this project: a whole run of an example asks them too.
IFEVAL_PROMPTS = "RECOVER_IFEVAL_PROMPTS"


@dataclass(frozen=True)
class Asked:
    """What was typed about an example. ``arms`` are names with commas between them, "all", or "none"."""

    example: Path | None = None
    short: bool = False
    arms: str | None = None
    cycles: int | None = None
    records: Path | None = None
    write_docs: Path | None = None

    def check(self) -> None:
        """Raise UsageError for what means nothing without an example, and for an arm that there is not."""
        from pipelines.arms import arm_named
        from recovery.errors import UsageError

        if self.example is None:
            given = [name for name in ("short", "arms", "cycles", "records") if getattr(self, name)]
            if given:
                raise UsageError(f"--{given[0]} is for an --example, such as examples/nextjs: name one")
        if self.cycles is not None and self.arms is None:
            raise UsageError("--cycles says how many corpora the --arms live through: name arms")
        for name in self.names:
            arm_named(name)

    @property
    def names(self) -> list[str]:
        """The arms by name."""
        from pipelines.arms import arms

        if self.arms is None or self.arms == "none":
            return []
        return list(arms()) if self.arms == "all" else [name.strip() for name in self.arms.split(",")]

    @property
    def command(self) -> str:
        """What to type for the same, as a page shows it: no place of this machine."""
        assert self.example is not None
        said = f"recover demo --example examples/{self.example.resolve().name}"
        said += " --short" if self.short else ""
        said += f" --arms {self.arms}" if self.arms else ""
        return said + (f" --cycles {self.cycles}" if self.cycles else "")

    def kept(self, workspace: Workspace) -> Path:
        """The folder of the records."""
        return self.records or workspace.folder / "records"


def flags_of(example: Path, short: bool) -> dict[str, Any]:
    """What an example's checkpoints are asked besides: its texts, and IFEval's own prompts where they are given."""
    found: dict[str, Any] = {}
    if (example / "english").is_dir():
        found["texts"] = (example / "english").resolve()
    prompts = os.environ.get(IFEVAL_PROMPTS)
    if prompts and not short:
        found["ifeval"] = prompts if prompts == "hub" else str(Path(prompts).resolve())
    return found


def scenario_of(workspace: Workspace, asked: Asked) -> Any:
    """The scenario of an example, its packages kept in the workspace."""
    from pipelines.real import scenario

    assert asked.example is not None
    return scenario(asked.example, workspace.folder / "packages", short=asked.short, say=options.note)


def keep(session: Any, played: Any, seed: int, workspace: Workspace, asked: Asked) -> None:
    """What came of an example's cycles, as a record of the main arm; and the page, where it was asked for."""
    from pipelines.arms import arm_named
    from pipelines.experiment import keep, of_cycles

    made, kept = of_cycles(session), asked.kept(workspace)
    keep(session, arm_named(MAIN_ARM), played, made, seed=seed, cycles=played.cycles, kept=kept, short=asked.short)
    if asked.write_docs is not None:
        write_page(workspace, asked)


def experiment(
    workspace: Workspace, asked: Asked, seeds: tuple[int, ...], flags: dict[str, Any], as_json: bool
) -> None:
    """Every arm with every seed, seed by seed, and the page over all that is kept."""
    from pipelines.arms import arm_named
    from pipelines.experiment import run
    from pipelines.progress import Display

    if asked.names:
        played, display = scenario_of(workspace, asked), Display()
        cycles = min(asked.cycles or played.cycles, played.cycles)
        with stages.resumable():
            for seed in seeds:
                for name in asked.names:
                    run(
                        workspace,
                        arm_named(name),
                        played,
                        seed=seed,
                        cycles=cycles,
                        flags=flags,
                        kept=asked.kept(workspace),
                        short=asked.short,
                        display=display,
                    )
    found, text = write_page(workspace, asked)
    if asked.names:
        options.note(f"  recover dashboard --workspace {workspace.folder} --open      every run of this place")
    options.emit([{"arm": record.arm, "seed": record.seed, "cycles": record.cycles} for record in found], as_json, text)


def write_page(workspace: Workspace, asked: Asked) -> tuple[list[Any], str]:
    """The page over the records of this kind, whole or short; written where it was asked for."""
    from pipelines.experiment import read_records
    from pipelines.experiment_page import page
    from recovery.errors import UsageError

    kept = asked.kept(workspace)
    found = [record for record in read_records(kept) if record.short == asked.short]
    if not found:
        raise UsageError(f"no run is kept in {kept} yet: name arms to run with --arms")
    text = page(found, MAIN_ARM, asked.command)
    stages.write_page(asked.write_docs, text)
    return found, text
