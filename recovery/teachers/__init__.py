"""Teachers that score the student's completions."""

from recovery.teachers.cross_tokenizer import CrossTokenizer, Spelled
from recovery.teachers.remote import RemoteTeacher
from recovery.teachers.teacher import Identity, LocalTeacher, Teacher, TeacherEnsemble, check_same_tokens, same_tokens

__all__ = [
    "CrossTokenizer",
    "Identity",
    "LocalTeacher",
    "RemoteTeacher",
    "Spelled",
    "Teacher",
    "TeacherEnsemble",
    "check_same_tokens",
    "same_tokens",
]
