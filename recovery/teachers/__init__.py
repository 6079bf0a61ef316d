"""Who scores the student's answers."""

from recovery.teachers.remote import Identity, RemoteTeacher
from recovery.teachers.self_taught import Live, MovingAverage
from recovery.teachers.teachers import AdapterOff, Frozen, Scorer, Teacher, Weighted, check_same_tokens

__all__ = [
    "AdapterOff",
    "Frozen",
    "Identity",
    "Live",
    "MovingAverage",
    "RemoteTeacher",
    "Scorer",
    "Teacher",
    "Weighted",
    "check_same_tokens",
]
