"""Who scores the student's answers."""

from recovery.teachers.self_taught import Live, MovingAverage
from recovery.teachers.teachers import AdapterOff, Frozen, Teacher, Weighted, check_same_tokens

__all__ = ["AdapterOff", "Frozen", "Live", "MovingAverage", "Teacher", "Weighted", "check_same_tokens"]
