"""Encodings of documents: which one a file has, and what is said of it."""

from __future__ import annotations

import pytest

from recovery.data.corpus.encodings import decode, encoding_of
from tests.corpus_reading import read, skipped


@pytest.mark.parametrize(
    ("encoding", "noted"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-32", None),
        ("utf-16-le", "utf-16-le"),
        ("cp1252", "cp1252"),
    ],
)
def test_encodings(tmp_path, encoding, noted):
    text = "Das Café öffnet früh, “sagt” die Wirtin – für 5 € gibt es Tee und ein Stück Käsekuchen dazu."
    corpus = read(tmp_path, a__txt=text.encode(encoding))
    assert corpus.documents[0].text == text
    expected = (f"a.txt: not UTF-8, read as {noted}",) if noted else ()
    assert corpus.report.notes == expected


def test_a_cyrillic_legacy_encoding_is_guessed(tmp_path):
    text = "Гавань открывается в шесть часов утра, и рыбаки уже ждут у ворот со своими лодками и сетями. " * 3
    corpus = read(tmp_path, a__txt=text.encode("cp1251"))
    assert corpus.documents[0].text == text.strip()


@pytest.mark.parametrize("times", [1, 3, 20])
@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "La città è bella perché il caffè è più buono e la libertà è là."),
        ("cp1252", "Não há manhã sem coração; a informação é útil às mães."),
        ("cp1252", "På morgonen går båten över sjön till ön, där de äter kräftor."),
        ("cp1252", "Le café est fermé dès l'été; où êtes-vous allé à Noël, garçon?"),
        ("cp1252", "El año pasado la señora llevó a los niños mañana y también pingüinos."),
        ("cp1252", "It’s the “best” price – about 5 £ … really."),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy; řeka teče přes město."),
        ("cp1250", "Árvíztűrő tükörfúrógép; a hajó reggel hétkor indul, és jó idő van."),
        ("cp1250", "Zażółć gęślą jaźń; łódź odpływa o siódmej rano, a pogoda jest dobra."),
        ("cp1257", "Laivas išplaukia rytą, o žmonės laukia ant kranto, ąžuolas ūkas."),
        ("cp1254", "Gemi sabah kalkıyor; çocuklar güneşi görür, ağaç yeşil İstanbul."),
    ],
)
def test_legacy_encodings_of_latin_letters_are_told_apart_by_the_letters(encoding, text, times):
    text = " ".join([text] * times)
    assert decode(text.encode(encoding)).text == text


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("shift_jis", "東京の港は毎朝七時に開きます。最初の船は八時に出ます。"),
        ("gbk", "港口每天早上七点开放。第一班船八点出发，去往北方的岛屿。"),
        ("cp949", "항구는 매일 아침 일곱 시에 열립니다. 첫 배는 여덟 시에 떠납니다."),
    ],
)
@pytest.mark.parametrize("shift", ["", "a"])
def test_a_large_file_in_a_multi_byte_encoding_is_guessed_wherever_its_characters_begin(
    tmp_path, encoding, text, shift
):
    text = shift + "".join(f"{number} {text}\n" for number in range(1500))
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert decode(text.encode(encoding)).text == text
    one_line = text.replace("\n", "").replace(" ", "")  # few places where no character can be cut
    assert decode(one_line.encode(encoding)).text == one_line
    found, note = encoding_of(tmp_path / "a.txt")
    assert text.encode(encoding).decode(found) == text and note == f"not UTF-8, read as {found}"


GERMAN_ROWS = "".join(f"{number},Der Fährmann grüßt jeden Morgen.\n" for number in range(200)).encode()
ASCII_ROWS = b"1,plain sentences about ports and boats.\n" * 2000
RUSSIAN = "Порт открывается каждое утро в семь часов.\n".encode("cp1251") * 2000


@pytest.mark.parametrize(
    ("data", "encoding", "note"),
    [
        (GERMAN_ROWS + ASCII_ROWS + b"one \xff byte\n" + ASCII_ROWS, "utf-8", "damaged UTF-8, 1 character replaced"),
        (GERMAN_ROWS + ASCII_ROWS + "ü".encode()[:1], "utf-8", "damaged UTF-8, 1 character replaced"),
        (ASCII_ROWS + RUSSIAN, "cp1251", "not UTF-8, read as cp1251"),
        (RUSSIAN + b"one \x98 byte\n", "cp1251", "not UTF-8, read as cp1251, 1 character replaced"),
    ],
    ids=["damaged", "cut off", "ASCII at the start", "damaged legacy"],
)
def test_the_whole_file_decides_its_encoding(tmp_path, data, encoding, note):
    (tmp_path / "a.csv").write_bytes(data)
    assert encoding_of(tmp_path / "a.csv") == (encoding, note)
    assert decode(data).note == note


def test_utf8_with_a_few_broken_bytes_stays_utf8(tmp_path):
    text = "Das Café öffnet früh, für fünf Kronen gibt es süßen Käse."
    corpus = read(tmp_path, a__txt=text.encode() + b"\xe2\x82")
    assert corpus.documents[0].text == text + "\ufffd"
    assert corpus.report.notes[0] == "a.txt: damaged UTF-8, 1 character replaced"


def test_a_broken_byte_order_mark_is_refused(tmp_path):
    corpus = read(tmp_path, a__txt=b"\xff\xfeabc", b__txt="Text.")
    assert "utf-16" in skipped(corpus)["a.txt"]
