"""Numbers of spreadsheets as they are shown: by the code of their format, such as ``#,##0.00 "km"`` or ``d.m.yyyy``."""

from __future__ import annotations

import datetime
import math
import re

# The built-in formats that are not "General", by number; dates as far as their parts matter here.
_BUILT_IN = {
    **{"1": "0", "2": "0.00", "3": "#,##0", "4": "#,##0.00", "9": "0%", "10": "0.00%", "11": "0.00E+00"},
    **{"37": "#,##0", "38": "#,##0", "39": "#,##0.00", "40": "#,##0.00", "48": "0.0E+0"},
    **dict.fromkeys(("14", "15", "27", "30", "31", "36", "50", "51", "52", "53", "54", "57", "58"), "d.m.yyyy"),
    **{"16": "d.m", "17": "m.yyyy", "28": "d.m.yyyy", "29": "d.m.yyyy", "55": "m.yyyy", "56": "d.m.yyyy"},
    **dict.fromkeys(("18", "20", "32", "34"), "h:mm"),
    **dict.fromkeys(("19", "21", "33", "35"), "h:mm:ss"),
    **{"22": "d.m.yyyy h:mm", "45": "mm:ss", "46": "[h]:mm:ss", "47": "mm:ss"},
}
_LITERAL = re.compile(r'"[^"]*"|\\.|_.|\*.')
_BRACKETS = re.compile(r"\[(?:\$([^\]-]*)(?:-[^\]]*)?|[^\]]*)\]")
_ELAPSED = re.compile(r"\[(?:h+|m+|s+)\]", re.IGNORECASE)
_DIGITS = re.compile(r"[#0?][#0?,.]*|\.[#0?]+")
_SPREAD = re.compile(r"[#0?].*[#0?]")  # with what stands between digits, such as a space for each thousand
_HALVES = re.compile(r"am/pm|a/p", re.IGNORECASE)
_MOST_DECIMALS = 15  # digits that a number has


def built_in(number: str) -> str:
    """Return the code of a built-in format."""
    return _BUILT_IN.get(number, "General")


def shown(value: str, code: str, *, since_1904: bool = False) -> str:
    """Return a number as a cell with the format ``code`` shows it."""
    try:
        number = float(value)
    except ValueError:
        return value
    if not math.isfinite(number):
        return ""
    bare = _HALVES.sub("", _LITERAL.sub("", code))
    if _ELAPSED.search(bare):
        return _elapsed(number)
    if re.search(r"[dmyhs]", _BRACKETS.sub("", bare.replace("General", "")), re.IGNORECASE):
        return _date(number, _BRACKETS.sub("", bare).lower(), since_1904=since_1904)
    return _formatted(number, code)


def _general(number: float) -> str:
    if number == int(number) and abs(number) < 1e15:
        return str(int(number))
    return f"{number:.11g}"


def _formatted(number: float, code: str) -> str:
    sections = _sections(code)
    section = sections[0]
    if number < 0 and len(sections) > 1:
        section, number = sections[1], -number
    elif number == 0 and len(sections) > 2:
        section = sections[2]
    texts: list[str] = []  # literal ones, which may look like digits or brackets

    def kept(text: str) -> str:
        texts.append(text)
        return chr(0xE000 + len(texts) - 1)

    def literal(match: re.Match[str]) -> str:
        return "" if match[0][0] in "_*" else kept(match[0].strip('"') if match[0][0] == '"' else match[0][1:])

    section = _BRACKETS.sub(lambda match: kept(match[1]) if match[1] else "", _LITERAL.sub(literal, section))
    found, spread = _DIGITS.search(section), _SPREAD.search(section)
    if "General" in section or "E" in section or "/" in section or len(texts) > 99:
        told = section.replace("General", _general(number)) if "General" in section else _general(number)
    elif not found:
        told = section if section.strip() else "" if len(sections) > 1 else _general(number)
        told = _general(number) if "@" in told else told
    else:
        number *= 100 ** section.count("%")
        if spread and not _DIGITS.fullmatch(spread[0]):
            told = section[: spread.start()] + _spread(number, spread[0]) + section[spread.end() :]
        else:
            told = section[: found.start()] + _digits(number, found[0]) + section[found.end() :]
    return re.sub("[\ue000-\ue063]", lambda match: texts[ord(match[0]) - 0xE000], told).strip()


def _sections(code: str) -> list[str]:
    """Return the formats of positive and negative numbers, zero and texts, as far as there are some."""
    parts, start = [], 0
    for match in re.finditer(r'"[^"]*"|\\.|_.|\*.|;', code):
        if match[0] == ";":
            parts.append(code[start : match.start()])
            start = match.end()
    return [*parts, code[start:]]


def _spread(number: float, pattern: str) -> str:
    """Return a number whose digits have other signs between them: filled from the right."""
    whole, dot, decimals = pattern.partition(".")
    if not re.fullmatch("[#0?]*", decimals):
        return _general(number)
    head, dot, tail = _digits(abs(number), f"0{dot}{decimals}").partition(".")
    digits, parts = list(head), list[str]()
    for at in range(len(whole) - 1, -1, -1):
        if at == 0:  # a digit, before which the others are
            parts.append("".join(digits) or ("0" if whole[at] == "0" else ""))
        elif whole[at] in "#0?":
            parts.append(digits.pop() if digits else "0" if whole[at] == "0" else "")
        elif whole[at] != ",":
            parts.append(whole[at])
    return ("-" if number < 0 else "") + "".join(reversed(parts)).strip() + dot + tail


def _digits(number: float, pattern: str) -> str:
    if not number and set(pattern) == {"?"}:
        return ""  # places for alignment alone
    number /= 1000 ** (len(pattern) - len(pattern.rstrip(",")))
    whole, _, decimals = pattern.rstrip(",").partition(".")
    most = min(sum(sign in "0#?" for sign in decimals), _MOST_DECIMALS)
    least = min(decimals.count("0"), most)
    grouped = "," if "," in whole else ""
    # Rounded half up from the 15 digits that a cell holds: 2.675 is shown as 2.68.
    text = f"{float(f'{number:.15g}') + math.copysign(10.0 ** -(most + 6), number):{grouped}.{most}f}"
    if most > least:
        head, _, tail = text.partition(".")
        tail = tail[:least] + tail[least:].rstrip("0")
        text = f"{head}.{tail}" if tail else head
    lead = whole.count("0")
    if lead > 1 and not grouped and number >= 0:  # 00042
        head, dot, tail = text.partition(".")
        text = head.zfill(lead) + dot + tail
    return "0" if text in ("-0", "") else text


def _elapsed(number: float) -> str:
    seconds = round(abs(number) * 86_400)
    sign = "-" if number < 0 else ""
    rest = f":{seconds % 60:02}" if seconds % 60 else ""
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}{rest}"


def _date(number: float, code: str, *, since_1904: bool) -> str:
    """Return a date, a time or both, as far as ``code`` shows them: in the order of ISO 8601, which all read alike."""
    days = number + 1462 if since_1904 else number
    if not 0 <= days < 2_958_466:  # up to the year 9999
        return _general(number)
    start = datetime.datetime(1899, 12, 30 if days >= 60 else 31)  # there was no 29 February 1900, but Excel has it
    moment = start + datetime.timedelta(seconds=round(days * 86_400))
    times = "h" in code or "s" in code
    months = "m" in re.sub(r"h+[^a-z]*m+|m+[^a-z]*s+", "", code)
    date = ""
    if "y" in code:
        date = moment.strftime("%Y-%m-%d" if "d" in code else "%Y-%m" if months else "%Y")
    elif "d" in code:
        date = moment.strftime("%Y-%m-%d" if months else "%A")
    elif months:
        date = moment.strftime("%B")
    time = moment.strftime("%H:%M:%S" if moment.second else "%H:%M") if times else ""
    if date and time == "00:00":
        time = ""
    return f"{date} {time}".strip() or _general(number)
