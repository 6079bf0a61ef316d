"""Teachers that score the student's completions."""

from recovery.teachers.cross_tokenizer import CrossTokenizer, Spelled
from recovery.teachers.local import AdapterOff, Frozen, Scorer, Teacher, Weighted, check_same_tokens, same_tokens
from recovery.teachers.remote import Identity, RemoteTeacher
from recovery.teachers.self_distillation import CurrentStudent, MovingAverage

__all__ = [
    "AdapterOff",
    "CrossTokenizer",
    "CurrentStudent",
    "Frozen",
    "Identity",
    "MovingAverage",
    "RemoteTeacher",
    "Scorer",
    "Spelled",
    "Teacher",
    "Weighted",
    "check_same_tokens",
    "same_tokens",
]
