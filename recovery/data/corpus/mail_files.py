"""Text of letters (.eml): the subject is the title, the text is the plain part, or else the HTML part as Markdown.

Names, addresses and dates are left out; so are attachments, which are counted, and what stands below the signature's
line ("-- ").
"""

from __future__ import annotations

import codecs
import email
import re
from email import policy
from email.message import MIMEPart

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.encodings import decode
from recovery.data.corpus.html_files import read_html

_MARKS = re.compile(rb"\A(?:%s)+" % codecs.BOM_UTF8)
_SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)
_HEADERS = ("subject", "from", "to", "date", "received", "message-id", "mime-version", "content-type")


def read_mail(data: bytes) -> tuple[str, str, list[str]]:
    """Return the subject of a letter, its text and remarks."""
    letter = email.message_from_bytes(_MARKS.sub(b"", data), policy=policy.default)
    if not any(name in letter for name in _HEADERS):
        raise UnreadableError("not a letter: it has no headers")
    title = " ".join(str(letter["subject"] or "").split())
    plain, page = letter.get_body(("plain",)), letter.get_body(("html",))
    text = _SIGNATURE.split(_content(plain), maxsplit=1)[0] if plain is not None else ""
    if not text.strip() and page is not None:
        text = read_html(_content(page))[1]
    bodies = (plain, page)
    others = [part for part in letter.walk() if not part.is_multipart() and part not in bodies]
    files = sum(part.get_content_disposition() == "attachment" or part.get_filename() is not None for part in others)
    return title, text, [f"{files} attachment{'s' * (files > 1)} left out"] if files else []


def _content(part: MIMEPart) -> str:
    """Return the text of a part, by its declared encoding or, if that is wrong, a guessed one."""
    data = part.get_payload(decode=True)
    data = data if isinstance(data, bytes) else b""
    charset = part.get_content_charset("utf-8")
    try:
        text = data.decode(charset)
    except (LookupError, UnicodeDecodeError):
        text = decode(data).text if data.strip() else ""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if part.get_param("format") == "flowed":  # RFC 3676: a space at the end of a line joins it to the next one
        text = re.sub(r"^ ", "", re.sub(r"(?<!^--) \n(?!>)", " ", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return text
