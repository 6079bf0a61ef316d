"""Teachers that score the student's completions."""

from recovery.teachers.cross_tokenizer import CrossTokenizer, Spelled
from recovery.teachers.local import (
    AdapterOff,
    FrozenTeacher,
    Teacher,
    TopKTeacher,
    WeightedTeachers,
    check_same_tokens,
    same_tokens,
)
from recovery.teachers.remote import Identity, RemoteTeacher
from recovery.teachers.self_distillation import CurrentStudent, MovingAverage

__all__ = [
    "AdapterOff",
    "CrossTokenizer",
    "CurrentStudent",
    "FrozenTeacher",
    "Identity",
    "MovingAverage",
    "RemoteTeacher",
    "Spelled",
    "Teacher",
    "TopKTeacher",
    "WeightedTeachers",
    "check_same_tokens",
    "same_tokens",
]
