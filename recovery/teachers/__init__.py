"""Teachers that score the student's completions."""

from recovery.teachers.local import AdapterOff, Frozen, Scorer, Teacher, Weighted, check_same_tokens
from recovery.teachers.remote import Identity, RemoteTeacher
from recovery.teachers.self_distillation import CurrentStudent, MovingAverage

__all__ = [
    "AdapterOff",
    "CurrentStudent",
    "Frozen",
    "Identity",
    "MovingAverage",
    "RemoteTeacher",
    "Scorer",
    "Teacher",
    "Weighted",
    "check_same_tokens",
]
