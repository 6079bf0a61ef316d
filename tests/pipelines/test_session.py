"""Opening a workspace: registration of the clean model, and resolution of names."""

from __future__ import annotations

import contextlib
import functools
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from db import Tracker, decide, open_readonly, queries
from pipelines.midtraining.stage import midtrain
from pipelines.runtime import checkpoint_names
from pipelines.runtime import session as session_module
from pipelines.runtime.progress import Display
from pipelines.runtime.registry import open_tracker, reading
from pipelines.runtime.session import Session
from recovery.config import MidtrainConfig
from recovery.errors import CheckpointError, ModelError, UsageError
from recovery.models.checkpoints import content_hash
from recovery.workspace import Checkpoint, Workspace
from tests.pipelines.conftest import OpenSession
from tests.recorded_stages import made


def test_the_first_use_registers_the_clean_model(session: Session, tiny_model: Path) -> None:
    base = session.base
    assert (base.name, base.kind, base.path, base.hash) == ("base", "base", tiny_model, content_hash(tiny_model))
    assert session.resolve("latest") == base
    assert session.resolve(str(tiny_model)) == base, "a path that is registered is the registered checkpoint"
    assert session.next_cycle() == 1


def test_work_begins_by_removing_what_killed_processes_left(session: Session, open_session: OpenSession) -> None:
    folder = session.workspace.folder
    stages = [session.tracker.start_stage(session.experiment_id, "evaluate") for _ in range(2)]
    for stage in stages:
        (folder / "stages" / f"{stage.id:04d}-evaluate" / "states").mkdir(parents=True)
    stages[0].finish()
    stages[1].interrupt()
    (folder / "checkpoints" / "cycle-1" / ".writing-recovered").mkdir(parents=True)
    (folder / ".writing-plan.json").touch()
    with open_session(None, purpose="test") as opened:
        opened.remove_finished()
        assert [path.name for path in (folder / "stages").iterdir()] == [f"{stages[1].id:04d}-evaluate"]
    assert not list(folder.rglob(".writing-*"))


def test_another_clean_model_is_refused_in_a_begun_workspace(
    open_session: OpenSession, tiny_llama: Path, tiny_model: Path
) -> None:
    open_session().tracker.close()
    with pytest.raises(UsageError, match=r"the model of this workspace .*, not .*another --workspace"):
        open_session(tiny_llama)
    open_session(tiny_model).tracker.close()


def test_a_folder_without_a_model_begins_no_workspace(open_session: OpenSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no model"):
        open_session(tmp_path / "empty")
    assert not (tmp_path / "workspace" / "workspace.json").exists()


def test_names(
    session: Session, midtrained: Checkpoint, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("latest", "midtrained", "cycle-1/midtrained", str(midtrained.path)):
        assert session.resolve(name) == midtrained
    outside = session.resolve(str(tiny_llama))
    assert (outside.name, outside.kind, outside.id) == (f"external/{tiny_llama.name}", "external", None)
    with monkeypatch.context() as there:
        there.chdir(tiny_llama)
        assert session.resolve(".").name == outside.name
        (tmp_path / "in").mkdir()
        there.chdir(tmp_path / "in")
        shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
        assert session.resolve("..").name == f"external/{tmp_path.name}"
    assert session.registered(outside).id is not None
    with pytest.raises(CheckpointError, match="no checkpoint 'cycle-9': use latest, base, cycle-1/midtrained"):
        session.resolve("cycle-9")
    with pytest.raises(CheckpointError, match="no checkpoint 'recovered'"):
        session.resolve("recovered")
    shutil.rmtree(midtrained.path)
    with pytest.raises(CheckpointError, match="is missing"):
        session.resolve("latest")


def test_a_model_from_elsewhere_that_was_evaluated_first_gets_the_cycle_of_its_recovery(
    session: Session, tiny_llama: Path
) -> None:
    """Else the cycle would seem to have started from it, and a rejection would go back to it."""
    evaluated = session.registered(session.resolve(str(tiny_llama)))
    assert evaluated.cycle is None
    student = session.registered(session.resolve(evaluated.name), cycle_id=session.cycle_id(1))
    assert (student.id, student.cycle) == (evaluated.id, 1)
    assert session.registered(student, cycle_id=session.cycle_id(2)).cycle == 1
    session.tracker.set_latest(session.experiment_id, made(session, 1, parent=student.id))
    assert decide(session.tracker.database, session.cycle_id(1), "rejected", who="Ada").after == "base"


def test_a_model_that_another_cycle_was_made_from_joins_none(session: Session, tiny_llama: Path) -> None:
    student = session.registered(session.resolve(str(tiny_llama)))
    made(session, 1, "midtrained", parent=student.id)
    assert session.registered(student, cycle_id=session.cycle_id(2)).cycle is None


def test_models_of_one_name_from_different_folders_are_different_checkpoints(
    session: Session, tiny_model: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    """One of them may be the parent of another checkpoint, or a teacher."""
    for folder, model in (("a", tiny_model), ("b", tiny_llama), ("c", tiny_llama)):
        shutil.copytree(model, tmp_path / folder / "chat")
    first, second = (session.resolve(str(tmp_path / folder / "chat")) for folder in "ab")
    first, second = session.registered(first), session.registered(second)
    assert [one.name for one in (first, second)] == ["external/chat", "external/chat-2"]
    assert session.resolve("external/chat") == session.resolve(str(tmp_path / "a" / "chat")) == first
    assert session.resolve(str(tmp_path / "c" / "chat")).name == second.name
    moved = session.registered(session.resolve(str(tmp_path / "c" / "chat")))
    assert moved.id == second.id, "the same weights elsewhere"


def test_a_tracker_above_the_workspaces_of_several_runs_can_be_read(open_session: OpenSession, tmp_path: Path) -> None:
    for seed in ("seed-0", "seed-1"):
        with open_session(name=f"real/{seed}", tracker="tracker.db", experiment=seed):
            pass
    database = open_tracker(Workspace(tmp_path))
    assert {row.name for row in queries.experiments(database)} == {"seed-0", "seed-1"}
    database.close()
    with pytest.raises(UsageError, match="there is no workspace"):
        open_tracker(Workspace(tmp_path / "real"))


def test_a_workspace_can_be_moved(open_session: OpenSession, midtrain_config: MidtrainConfig, tmp_path: Path) -> None:
    with open_session() as session:
        made = midtrain(session, midtrain_config)
    (tmp_path / "workspace").rename(tmp_path / "elsewhere")
    with open_session(name="elsewhere") as session:
        found = session.resolve("latest")
        assert found.path == tmp_path / "elsewhere" / "checkpoints" / "cycle-1" / "midtrained"
        assert session.verified(found).hash == made.hash


def test_the_clean_model_can_be_moved(
    open_session: OpenSession, tmp_path: Path, tiny_model: Path, midtrain_config: MidtrainConfig
) -> None:
    """On another machine its folder is another one, and that of an adapter's base with it."""
    here, there, other = (tmp_path / name for name in ("here", "there", "other"))
    shutil.copytree(tiny_model, here)
    with open_session(here) as session:
        midtrain(session, replace(midtrain_config, tuning="lora"))
        begun = session.workspace.settings()
    here.rename(there)
    shutil.copytree(there, other)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    with (
        open_session(None) as session,
        pytest.raises(CheckpointError, match="or give --model with the folder where it is"),
    ):
        assert session.base
    with pytest.raises(UsageError, match=r"other is not the clean model of this workspace .*: the files differ"):
        open_session(other)
    for model in (there, None, there):
        with open_session(model) as session:
            assert session.base.path == there and session.verified(session.base)
            adapter = session.resolve("latest")
            assert adapter.weights == there and adapter.path != there
            assert session.workspace.settings() == begun | {"model": str(there)}
    with pytest.raises(UsageError, match=r"is .*there, not .*other: omit --model"):
        open_session(other)


def test_a_link_to_the_clean_model_does_not_let_another_model_in(
    open_session: OpenSession, tmp_path: Path, tiny_model: Path
) -> None:
    """The link leads to the folder's new place; the recorded place is gone, and another folder is named."""
    here, there, other, link = (tmp_path / name for name in ("here", "there", "other", "link"))
    shutil.copytree(tiny_model, here)
    link.symlink_to(here)
    open_session(link)._resources.close()
    here.rename(there)
    link.unlink()
    link.symlink_to(there)
    shutil.copytree(there, other)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    with pytest.raises(UsageError, match="other is not the clean model of this workspace"):
        open_session(other)
    with open_session(link) as session:
        assert session.verified(session.base)


def test_a_gguf_file_that_is_gone_lets_no_other_model_in(tmp_path: Path, tiny_model: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    workspace.create()
    workspace.remember(str(tmp_path / "gone.gguf"), sha256="0" * 64)
    with pytest.raises(UsageError, match=r"is .*gone.gguf, not "):
        workspace.check_model(str(tiny_model))


def test_a_workspace_keeps_to_the_tracker_it_was_begun_with(open_session: OpenSession, tmp_path: Path) -> None:
    for folder, line in (("mine", "mine"), ("deeper/mine", "mine-2"), ("mine", "mine"), ("deeper/mine", "mine-2")):
        with open_session(name=folder, tracker="shared.db") as session:
            assert session.workspace.experiment == line, "two workspaces are two lines, each time"
            assert session.base.name == "base"
    with pytest.raises(UsageError, match=r"mine has its tracker at .*shared.db: set RECOVER_DATABASE"):
        open_session(name="mine")
    with pytest.raises(UsageError, match=r"other.db has no record of .*mine"):
        open_session(name="mine", tracker="other.db")
    with open_session(name="another/mine", tracker="third.db") as session:
        assert session.workspace.experiment == "mine", "a line of the same name in another tracker"
    with pytest.raises(UsageError, match=r"^mine at .*third.db is another workspace's, not that of .*/mine: give the"):
        open_session(name="mine", tracker="third.db")
    third = Workspace(tmp_path / "mine", str(tmp_path / "third.db"))
    with pytest.raises(UsageError, match="another workspace's"), reading(third):
        pass
    with open_session(name="own") as session:
        assert session.workspace.experiment == "main"
    with pytest.raises(UsageError, match="has its own tracker: omit --database"):
        open_session(name="own", tracker="shared.db")


def test_a_workspace_killed_while_it_was_made_is_made_again_as_the_same_line(
    open_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = functools.partial(open_session, tracker="shared.db")

    def killed(*_: str, **__: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "remember", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(name="mine")
    with opened(name="deeper/mine") as other, opened(name="mine") as session:
        assert (other.workspace.experiment, session.workspace.experiment) == ("mine-2", "mine")
        assert len(queries.experiments(session.tracker.database)) == 2
        session.tracker.start_stage(session.experiment_id, "evaluate").finish()
    shutil.rmtree(tmp_path / "mine")
    with opened(name="mine") as again:
        assert again.workspace.experiment == "mine-3", "what was worked in is not begun again"


@pytest.mark.parametrize("tracker", [None, "shared.db"])
@pytest.mark.parametrize("step", [(Tracker, "add_checkpoint"), (Tracker, "set_latest"), (Workspace, "remember")])
def test_a_workspace_that_was_stopped_while_it_was_made_is_made_with_another_model(
    open_session: OpenSession,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    tracker: str | None,
    step: tuple[type, str],
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*step, stopped)
        with pytest.raises(KeyboardInterrupt):
            open_session(tracker=tracker)
    with open_session(tiny_llama, tracker=tracker) as session:
        (line,) = queries.experiments(session.tracker.database)
        assert line.base_model == str(tiny_llama)
        assert (session.base.path, session.base.hash) == (tiny_llama, content_hash(tiny_llama))
        assert session.registry.latest() == session.base


def test_a_clean_model_is_hashed_once_and_before_there_is_a_tracker(
    open_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes for a large model, in which a stop must leave nothing of this model."""
    begun: list[bool] = []

    def hashing(folder: Path) -> str:
        begun.append((tmp_path / "workspace" / "tracker.db").exists())
        return content_hash(folder)

    for module in (session_module, checkpoint_names):
        monkeypatch.setattr(module, "content_hash", hashing)
    open_session().tracker.close()
    assert begun == [False]


def test_a_workspace_of_an_earlier_version_gets_an_id_and_goes_on(tmp_path: Path, tiny_model: Path) -> None:
    """Its tracker may be reached by another address by now."""
    shared, moved, other = (str(tmp_path / name) for name in ("shared.db", "moved.db", "other.db"))
    mine, theirs = Workspace(tmp_path / "mine", shared), Workspace(tmp_path / "deeper" / "mine", other)
    for place in (mine, theirs):
        with Session.open(place, model=str(tiny_model), display=Display(quiet=True)) as session:
            if place is mine:
                session.tracker.describe_experiment(session.experiment_id, {})
    older = {name: value for name, value in mine.settings().items() if name not in ("format", "id")}
    mine.remember(**older)
    Path(shared).rename(moved)
    mine = Workspace(mine.folder, moved)
    with reading(mine) as registry:
        assert registry.latest() is not None
    with pytest.raises(UsageError, match="another workspace's"), reading(Workspace(mine.folder, other)):
        pass  # a line of a later version, with its own id
    mine.remember(**older | {"model": "another"})
    with pytest.raises(UsageError, match="another workspace's"), reading(mine):
        pass
    mine.remember(**older)
    for _ in range(2):
        with Session.open(mine, display=Display(quiet=True)) as session:
            line = queries.experiment(session.tracker.database, session.experiment_id)
            assert line is not None and line.config == {"workspace": mine.settings()["id"]}
    mine.remember(**older)  # killed between the two writes
    with Session.open(mine, display=Display(quiet=True)) as session:
        assert session.workspace.settings()["id"] == line.config["workspace"]


def test_a_workspace_in_the_place_of_a_moved_one_is_another_line(open_session: OpenSession, tmp_path: Path) -> None:
    def opened(folder: str) -> str:
        with open_session(name=folder, tracker="shared.db") as session:
            return session.workspace.experiment

    assert opened("mine") == "mine"
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert (opened("mine"), opened("moved")) == ("mine-2", "mine")


def test_lines_with_a_given_name_are_one_workspaces_own(open_session: OpenSession) -> None:
    """Runs of a comparison or a study have fixed names, in whichever workspace."""
    lines = []
    for folder in ("a", "b", "a"):
        with open_session(name=folder, tracker="shared.db", experiment="compare/1234/seed-0") as session:
            lines.append(session.workspace.experiment)
    assert lines == ["compare/1234/seed-0", "compare/1234-2/seed-0", "compare/1234/seed-0"]


def test_workspaces_that_are_made_at_once_are_different_lines(open_session: OpenSession, tmp_path: Path) -> None:
    with Tracker(tmp_path / "shared.db"):
        pass

    def opened(number: int) -> str:
        with open_session(name=f"{number}/mine", tracker="shared.db") as session:
            return session.workspace.experiment

    with ThreadPoolExecutor(4) as pool:
        lines = list(pool.map(opened, range(4)))
    assert sorted(lines) == ["mine", "mine-2", "mine-3", "mine-4"]


def test_a_workspace_shows_no_password() -> None:
    assert "secret" not in repr(Workspace(Path("w"), "postgresql://ada:secret@host/runs"))


@pytest.mark.parametrize("purpose", [None, "recover midtrain"])
def test_a_first_command_that_is_refused_binds_no_workspace(
    open_session: OpenSession, tmp_path: Path, tiny_llama: Path, purpose: str | None
) -> None:
    with pytest.raises(UsageError, match="no documents"), open_session(name="new/workspace", purpose=purpose):
        raise UsageError("no documents")
    folder = Workspace(tmp_path / "new" / "workspace")
    assert not folder.exists and not list(tmp_path.rglob("tracker*"))
    with open_session(tiny_llama, name="new/workspace", purpose=purpose) as session:
        session.cycle_id(1)
    with pytest.raises(UsageError), open_session(None, name="new/workspace", purpose=purpose):
        raise UsageError("not the first")
    assert folder.settings()["model"] == str(tiny_llama)


def test_a_first_command_that_began_something_keeps_its_workspace(open_session: OpenSession, tmp_path: Path) -> None:
    with contextlib.suppress(UsageError), open_session() as session:
        session.cycle_id(1)
        raise UsageError("later")
    assert Workspace(tmp_path / "workspace").exists


def test_a_refused_command_leaves_no_experiment_in_a_shared_tracker(open_session: OpenSession, tmp_path: Path) -> None:
    with open_session(name="other", tracker="shared.db"):
        pass
    with pytest.raises(UsageError), open_session(tracker="shared.db"):
        raise UsageError("refused")
    database = open_readonly(tmp_path / "shared.db")
    assert [one.name for one in queries.experiments(database)] == ["other"]
    assert not Workspace(tmp_path / "workspace").exists
    database.close()


def test_a_name_that_is_nearly_known_is_not_asked_of_the_hub(
    session: Session, open_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session.registered(replace(session.base, id=None, name="cycle-2/recovered", kind="recovered"))
    assert made.name == "cycle-2/recovered"
    for name in ("cycle-2/recoverd", "cycel-2/recovered", "cycle-3/recovered"):
        with pytest.raises(CheckpointError, match=r"; did you mean cycle-2/recovered\?"):
            session.resolve(name)
    (tmp_path / "runs" / "qwen3-small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"no folder runs/qwen3-smal: did you mean runs/qwen3-small\?"):
        session.resolve("runs/qwen3-smal")
    with pytest.raises(ModelError, match="cycle-2/recoverd has the form of a checkpoint's name"):
        open_session("cycle-2/recoverd", name="new")
