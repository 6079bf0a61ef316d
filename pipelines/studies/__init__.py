"""Published claims as experiments on the miniature, each judged by a criterion fixed in advance."""

from __future__ import annotations

import difflib

from pipelines.studies.ceiling import CEILING
from pipelines.studies.contexts import CONTEXTS
from pipelines.studies.efficiency import EFFICIENCY
from pipelines.studies.generalise import GENERALISE
from pipelines.studies.horizon import HORIZON
from pipelines.studies.merge import MERGE
from pipelines.studies.mitigations import MITIGATIONS
from pipelines.studies.pivot import PIVOT
from pipelines.studies.razor import RAZOR
from pipelines.studies.recovery import RECOVERY
from pipelines.studies.releases import RELEASES
from pipelines.studies.slide import SLIDE
from pipelines.studies.states import STATES
from pipelines.studies.study import Study
from pipelines.studies.teachers import TEACHERS
from recovery.errors import UsageError

# The razor uses the others' runs and comes last.
_ALL = (
    RECOVERY,
    STATES,
    TEACHERS,
    MITIGATIONS,
    CEILING,
    MERGE,
    PIVOT,
    CONTEXTS,
    EFFICIENCY,
    GENERALISE,
    RELEASES,
    HORIZON,
    SLIDE,
    RAZOR,
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}


def chosen(name: str) -> list[Study]:
    """Return the study ``name``, or for "all" every one that is not heavy. Raises UsageError for an unknown name."""
    if name == "all":
        return [study for study in STUDIES.values() if not study.heavy]
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(STUDIES)}"
        raise UsageError(f"there is no study {name!r}: {hint}")
    return [STUDIES[name]]
