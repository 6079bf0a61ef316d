"""Published claims as experiments on the miniature, each judged by a criterion fixed in advance.

A study is one file, from its runs to the statements that judge them, and `recover study NAME` runs it. `study.py` says
what a study is and stores its figures, `runner.py` is what their runs share, `page.py` writes the results.
"""

from __future__ import annotations

import difflib

from examples.studies.ceiling import CEILING
from examples.studies.contexts import CONTEXTS
from examples.studies.efficiency import EFFICIENCY
from examples.studies.generalise import GENERALISE
from examples.studies.horizon import HORIZON
from examples.studies.merge import MERGE
from examples.studies.mitigations import MITIGATIONS
from examples.studies.pivot import PIVOT
from examples.studies.razor import RAZOR
from examples.studies.recovery import RECOVERY
from examples.studies.releases import RELEASES
from examples.studies.slide import SLIDE
from examples.studies.states import STATES
from examples.studies.study import Study
from examples.studies.teachers import TEACHERS
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
