"""Artifacts: what was made of a checkpoint and is served, a file with its runtime or a server, as something to measure.

In the tracker an artifact is a checkpoint of that kind. Its parent is the one that it came from, and its details say
what it is: hash of the file, runtime, quantisation, template. It belongs to no cycle, and nothing trains from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from db.artifacts import PREFIX
from db.schema import ARTIFACT
from pipelines.runtime.checkpoint_names import free_name
from pipelines.runtime.session import Session
from recovery.config import EvalConfig
from recovery.engines import check_address
from recovery.errors import CheckpointError, UsageError
from recovery.inference_server import InferenceServer
from recovery.models.gguf_files import read_header, sha256_of
from recovery.models.gguf_files.header import CHECKPOINT, CONTENT_HASH, SUFFIX, Header
from recovery.models.gguf_files.writing import ARCHITECTURES, Source, differing_folder, differing_weights
from recovery.models.loaded import Loaded
from recovery.prompt_logprobs import scores_of
from recovery.rollouts.completion_cache import CachingEngine
from recovery.rollouts.served_engine import (
    KEYS,
    PACKAGE,
    AskedChat,
    Checked,
    Described,
    ServedEngine,
    check_served,
    started,
    without_weights,
)
from recovery.workspace import Checkpoint

_ADVICE = "start it again and repeat the command, which goes on from the answers it has"
_SCORED = "The ferry leaves at 7:45."  # a text whose scores are asked for, to see whether there are any
_RESTART_SECONDS = 2.0  # seconds: a server that we started and that ended does not come back


@dataclass(frozen=True)
class Served:
    """An artifact, ready to be measured, with what differs from its source."""

    artifact: Checkpoint
    loaded: Loaded
    engine: CachingEngine
    checked: Checked


def source_of(session: Session, file: Path) -> Checkpoint:
    """Return the checkpoint that a GGUF file was exported from, as it says. Raise CheckpointError if it is not here."""
    metadata = read_header(file).metadata
    digest, name = metadata.get(CONTENT_HASH), metadata.get(CHECKPOINT)
    if not digest:
        raise CheckpointError(
            f"{file} does not say which checkpoint it was made from: export it with `recover export`, or serve it and "
            f"give both: recover eval CHECKPOINT --served ADDRESS"
        )
    source = next((one for one in session.registry.all() if one.hash == digest and one.kind != ARTIFACT), None)
    if source is None:
        raise CheckpointError(
            f"{file} was made from {name} of other weights than any here: use its --workspace, or serve it and "
            f"give both: recover eval FOLDER --served ADDRESS"
        )
    return source


@contextlib.contextmanager
def serving(session: Session, source: Checkpoint, config: EvalConfig) -> Iterator[Served]:
    """Yield the artifact that the settings name, after its server is compared with the source and differences are
    printed.

    Raise UsageError if anything differs and the settings do not allow that; ServerError if there is no server.
    """
    loaded = without_weights(source.weights, source.adapter, config.template_args)
    assert isinstance(loaded.chat, AskedChat)
    with _server(session, config, loaded.max_length) as server:
        described = Described.of(server)
        if config.runtime is not None:
            described = replace(described, build=f"{PACKAGE} {version(PACKAGE)}")
        place = Path(described.file) if described.file and Path(described.file).exists() else None
        file = place if place is not None and place.is_file() else None
        header = read_header(file) if file is not None and file.suffix == SUFFIX else None
        _check_source(header, source, config)
        with session.at_once(f"comparing {described.model} with {source.name}"):
            checked = check_served(server, described, loaded.chat)
        parameters = sum(weight.numel() for weight in loaded.model.parameters())
        if described.parameters not in (None, parameters):
            line = f"weights: it has {described.parameters:,} parameters, not {parameters:,}: another model"
            checked = replace(checked, differences=(*checked.differences, line))
        elif (served := _comparable(place, header, loaded)) is not None:
            with session.at_once(f"comparing the weights in {place} with {source.name}"):
                checked = _with_weights(checked, source, served)
        _report_differences(session, checked, described, config)
        artifact = _registered(session, source, described, file)
        engine = ServedEngine(server, described, loaded.chat)
        window = described.window or loaded.max_length
        loaded.server_scores = scores_of(server, described.model, loaded.chat.encode(_SCORED), window)
        cached = CachingEngine.of(loaded, engine, content_hash=artifact.hash, cache=session.workspace.folder / "cache")
        yield Served(artifact, loaded, cached, checked)


@contextlib.contextmanager
def _server(session: Session, config: EvalConfig, window: int) -> Iterator[InferenceServer]:
    """Yield the server that the settings name, or one that is started on their file."""
    with contextlib.ExitStack() as opened:
        if config.served_at is not None:
            address, patience = check_address(config.served_at, "--served"), config.server_wait
        else:
            assert config.file is not None
            (address, _), patience = opened.enter_context(started(config.file, window)), _RESTART_SECONDS
        server = InferenceServer(address, KEYS, config.server_timeout, patience, advice=_ADVICE)
        if config.served_at is not None:
            server.waiting = session.display.say
        yield opened.enter_context(contextlib.closing(server))


def _comparable(place: Path | None, header: Header | None, loaded: Loaded) -> Header | Path | None:
    """Return the file or folder whose weights can be compared with the source's, if it is on this machine.

    Only files of architectures that this project writes are compared: llama.cpp also calls others llama (Mistral).
    """
    if header is not None:
        return header if header.architecture == loaded.model.config.model_type in ARCHITECTURES else None
    return place if place is not None and any(place.glob("*.safetensors")) else None


def _with_weights(checked: Checked, source: Checkpoint, served: Header | Path) -> Checked:
    """Add the tensors of a file or folder that differ by more than rounding from the source's, at most five lines."""
    if isinstance(served, Header):
        names = differing_weights(Source.of(source.name, source.weights, source.adapter), served)
    elif (differing := differing_folder(source.weights, source.adapter, served)) is not None:
        names = differing
    else:
        return replace(checked, unknown=(*checked.unknown, "the weights of a quantised folder"))
    more = [f"{len(names) - 5} more"] if len(names) > 5 else []
    lines = [f"weights: {line}" for line in names[:5] + more]
    return replace(checked, differences=(*checked.differences, *lines))


def _check_source(header: Header | None, source: Checkpoint, config: EvalConfig) -> None:
    """Raise UsageError if a server's file, where it can be read, says that it was made from another checkpoint."""
    metadata = header.metadata if header is not None else {}
    if header is not None and metadata.get(CONTENT_HASH) not in (None, "", source.hash):
        raise UsageError(
            f"{config.served_at} serves {header.path}, which was made from {metadata.get(CHECKPOINT)}, "
            f"not from {source.name}: name its checkpoint, or serve another file"
        )


def _report_differences(session: Session, checked: Checked, described: Described, config: EvalConfig) -> None:
    """Print what differs and what is not known. Raise UsageError if the settings do not allow a difference."""
    for line in checked.differences:
        session.display.say(f"differs: {line}")
    for line in checked.unknown:
        session.display.say(f"not compared: {line}")
    if checked.differences and not config.despite_differences:
        raise UsageError(
            f"{described.model} at {described.runtime} is not what was accepted (see above): correct its template, "
            f"tokenizer or weights, or measure it so with --despite-differences"
        )


def _registered(session: Session, source: Checkpoint, described: Described, file: Path | None) -> Checkpoint:
    """Return the artifact of the tracker, recorded if it is not yet."""
    model = file.stem if file is not None else described.model.rstrip("/").rpartition("/")[2]
    about = {key: value for key, value in asdict(described).items() if key not in ("slots", "file")}
    about["template"] = hashlib.sha256(described.template.encode()).hexdigest() if described.template else ""
    about["file"] = str(file or described.file)
    about["sha256"] = sha256_of(file) if file is not None else ""
    identity = about["sha256"] or hashlib.sha256(json.dumps([source.hash, about], sort_keys=True).encode()).hexdigest()
    digest = hashlib.sha256(f"{identity} {described.runtime}".encode()).hexdigest()
    name = free_name(f"{PREFIX}{model}@{described.runtime}", session.registry, digest)
    session.tracker.add_checkpoint(
        session.experiment_id,
        name,
        ARTIFACT,
        path=session.workspace.stored(file) if file is not None else about["file"],
        content_hash=digest,
        parent_id=session.registered(source).id,
        details={ARTIFACT: about},
    )
    return next(one for one in session.registry.all() if one.name == name)
