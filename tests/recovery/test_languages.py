"""Documents in other languages: recognition, facts, gaps and the wordings of questions."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from evals.probe_building import build_probes, distractors
from recovery.data.augmentation import augment
from recovery.data.corpus.cloze import Vocabulary
from recovery.data.corpus.documents import Corpus, Document
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.facts.fact import Fact, Stated
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.languages import FactWordings, Language, Wordings, language_of, language_within, languages
from recovery.data.corpus.sentences import sentences, split_sentences
from recovery.data.document_questions import ProbeGuard, document_questions, stems

TRANSLATED = [language for code, language in languages().items() if code != "en"]
TEXTS = {
    "en": "The harbour opens at eight. Boats that arrive before that time have to wait outside the mole.",
    "de": "Der Hafen öffnet um acht Uhr. Boote, die vorher ankommen, müssen vor der Mole warten.",
    "fr": "Le port ouvre à huit heures. Les bateaux qui arrivent avant doivent attendre devant le môle.",
    "es": "El puerto abre a las ocho. Los barcos que llegan antes tienen que esperar delante del muelle.",
    "it": "Il porto apre alle otto. Le barche che arrivano prima devono aspettare davanti al molo.",
    "pt": "O porto abre às oito horas. Os barcos que chegam antes têm de esperar em frente ao molhe.",
    "ru": "Порт открывается в восемь часов. Суда, которые приходят раньше, должны ждать у мола.",
    "zh": "港口八点开门。提前到达的船只必须在防波堤外等候。",
    "ja": "港は八時に開きます。それより前に着いた船は防波堤の外で待たなければなりません。",
}
WITHOUT_WORDINGS = (
    "De haven gaat om acht uur open. Boten die eerder aankomen moeten voor de pier wachten.",
    "Port otwiera się o ósmej. Łodzie, które przypływają wcześniej, muszą czekać przed molem.",
    "Порт відкривається о восьмій годині. Судна, які приходять раніше, мають чекати біля молу, як і завжди.",
    "항구는 여덟 시에 문을 엽니다. 일찍 도착한 배는 방파제 밖에서 기다려야 합니다.",
    "const open = () => harbour.open(8);",
    "",
)
GERMAN = """# Leuchtturm

Die Lampen des Leuchtturms und was sie brauchen. Sie werden von Hand gewartet, wenn es nicht anders geht.

| Lampe | Leistung | Beschreibung | Standardwert |
|---|---|---|---|
| `nord` | 40 Watt | Leuchtet auf das offene Meer hinaus | rot |
| `sued` | 60 Watt | Zeigt den Booten den Weg in den Hafen | weiß |
| `west` | 75 Watt | – | grün |

- `docht`: Trägt das Öl bis an die Flamme
  - Standardwert: 12 mm
"""


def document(text: str, id: str = "a.md") -> Document:
    return Document(id, text.split("\n")[0].lstrip("# "), text, id)


def corpus_of(folder: Path, *texts: str) -> Corpus:
    for number, text in enumerate(texts):
        (folder / f"{number}.md").write_text(text, encoding="utf-8")
    return read_corpus(folder, held_out=0.0)


@pytest.mark.parametrize("code", TEXTS)
def test_a_language_is_recognised(code: str) -> None:
    assert language_of(TEXTS[code]).code == code


@pytest.mark.parametrize("text", WITHOUT_WORDINGS)
def test_questions_about_other_languages_are_english(text: str) -> None:
    assert language_of(text).code == "en"


def test_a_sentence_is_in_the_language_of_its_document_or_english() -> None:
    german, japanese = languages()["de"], languages()["ja"]
    assert language_within("The harbour is open and the boats wait.", german).code == "en"
    assert language_within("Hafenmeister Jensen", german).code == "de"  # nothing tells
    assert language_within(WITHOUT_WORDINGS[0], german).code == "de"
    assert language_within("Click the button and wait for the light.", japanese).code == "en"
    assert language_within("sshd を使う", japanese).code == "ja"


@pytest.mark.parametrize("language", TRANSLATED, ids=lambda language: language.code)
def test_every_wording_can_be_filled_in(language: Language) -> None:
    wordings = language.fact
    assert isinstance(wordings, FactWordings)
    values = {name: f"<{name}>" for name in ("where", "row", "column", "page", "text", "subject", "value")}
    needed = {"cell": {"where", "row", "column"}, "description": {"page", "text"}, "change": {"page", "text"}}
    for field in fields(FactWordings):
        relation = getattr(wordings, field.name)
        if not isinstance(relation, Wordings):
            assert relation.strip()
            continue
        assert len(relation.questions) >= 2 and len(relation.statements) >= 3
        about = needed.get(field.name, {"subject"})
        for question in relation.questions:
            assert all(values[name] in question.format(**values) for name in about)
            assert "{value}" not in question
        for statement in relation.statements:
            told = {values["value"]} | ({values["subject"]} if field.name == "description" else set())  # its name
            assert any(text in statement.format(**values) for text in told)
    assert wordings.under.format(page="<p>", heading="<h>").count("<") == 2
    gap = {"title": "<t>", "sentence": "<s>", "missing": "<m>", "before": "<b>", "count": 5, "are": "is"}
    assert {"<t>", "<b>"} <= set(re.findall("<.>", language.gap.continuation.format(**gap)))
    assert all({"<t>", "<s>"} <= set(re.findall("<.>", form.format(**gap))) for form in language.gap.training)
    assert set(language.missing) == {"number", "name", "word", "words"}
    assert set(language.headers) == {"description", "default", "type", "version", "skipped"}
    english = languages()["en"]
    assert len(language.gap.training) == len(english.gap.training)
    assert len(language.describe.subject) == len(english.describe.subject)
    asked = (*language.describe.subject, language.describe.section, language.describe.page, language.describe.next)
    assert all(re.search(r"\{\w+\}", request) for request in asked)


def test_facts_of_a_german_table_and_list() -> None:
    found = {(fact.questions[0], fact.brief): fact.answers for fact in facts_of([document(GERMAN)])}
    brief, name, value = "Antworte so kurz wie möglich.", "Nenne nur den Namen.", "Nenne nur den Wert."
    cell = 'Was steht laut Tabelle in "Leuchtturm" bei "{}" (Lampe) in der Spalte "Leistung"?'
    described = 'Welcher Eintrag in "Leuchtturm" wird so beschrieben: "{}"?'
    default = 'Was ist der Standardwert von {} ("Leuchtturm")?'
    assert found == {
        (cell.format("nord"), brief): ("40 Watt",),
        (cell.format("sued"), brief): ("60 Watt",),
        (cell.format("west"), brief): ("75 Watt",),
        (described.format("Leuchtet auf das offene Meer hinaus"), name): ("nord",),
        (described.format("Zeigt den Booten den Weg in den Hafen"), name): ("sued",),
        (described.format("Trägt das Öl bis an die Flamme"), name): ("docht",),
        (default.format("`nord`"), value): ("rot",),
        (default.format("`sued`"), value): ("weiß",),
        (default.format("`west`"), value): ("grün",),
        (default.format("`docht`"), value): ("12 mm",),
    }


def test_a_version_history_in_spanish() -> None:
    text = "# Faro\n\nLos cambios del faro, de la versión más nueva a la más antigua.\n\n"
    text += "| Versión | Cambios |\n|---|---|\n| 2.1.0 | Se añadió la lámpara del sur |\n"
    (fact,) = facts_of([document(text)])
    assert fact.questions[0] == '¿En qué versión se introdujo este cambio de "Faro": "Se añadió la lámpara del sur"?'
    assert "2.1.0" in fact.answers and "v2.1" in fact.answers
    assert fact.brief == "Indica solo la versión."


def test_facts_of_a_japanese_table() -> None:
    text = "# 灯台\n\n灯台のランプについての表です。\n\n| ランプ | 出力 | 説明 |\n|---|---|---|\n"
    found = {f.questions[0]: f.value for f in facts_of([document(text + "| `kita` | 40 W | 沖の海を照らします |\n")])}
    assert found == {
        '"灯台"の表で、"kita" (ランプ)の"出力"の欄には何と書かれていますか。': "40 W",
        '"灯台"で"沖の海を照らします"と説明されている項目はどれですか。': "kita",
    }


def test_a_translation_with_english_parts_is_in_its_language() -> None:
    german, russian = TEXTS["de"], TEXTS["ru"]
    assert language_of(f"{TEXTS['en']}\n\n" * 150 + f"{german}\n\n" * 300).code == "de"  # behind an English preface
    assert language_of(f"{TEXTS['en']}\n\n{german}").code == "de"
    assert language_of(f"{TEXTS['en']} {TEXTS['en']}\n\n{russian}").code == "ru"
    assert (
        language_of("Click the button and wait for the light. " * 3 + "港を開きます。灯台の明かりを待ちます。").code
        == "ja"
    )
    assert language_of(f"{TEXTS['en']} " * 20 + german).code == "en"  # a quotation
    assert language_of("Действия Откат e").code == "en"  # "e" is no Italian
    text = f"# Leuchtturm\n\n{german} {german}\n\n- `wick`: Carries the oil to the flame of the lamp\n"
    text += "- `docht`: Trägt das Öl bis an die Flamme\n"
    assert {fact.questions[0].split()[0]: fact.value for fact in facts_of([document(text)])} == {
        "According": "wick",
        "Welcher": "docht",
    }


def test_no_space_follows_the_full_stop_of_chinese_or_japanese(tmp_path: Path) -> None:
    rows = "".join(f"| `lamp-{n}` | {n} W | 沖の海を照らすランプの{n}番目のもの |\n" for n in range(20, 50))
    text = f"# 灯台\n\n灯台のランプについての表です。\n\n| ランプ | 出力 | 説明 |\n|---|---|---|\n{rows}"
    corpus = corpus_of(tmp_path, text)
    probes = build_probes(corpus, count=20)
    added = augment(corpus.documents, probes, wordings=2)
    texts = [p.question for p in probes] + [p.text for p in document_questions(tmp_path, corpus, exclude=probes)]
    texts += [chat[0]["content"] for chat in (*added.conversations, *added.descriptions)]
    texts += [d.text for d in added.documents]
    assert sum("。できるだけ短く" in t or "。名前だけ" in t for t in texts) > 20
    assert not [t for t in texts if "。 " in t]
    (joined,) = sentences([document("# 港\n\n港口的新防波堤由城市在夏天建成。它可以保护所有的船只不受风浪影响。")])
    assert joined.raw == "港口的新防波堤由城市在夏天建成。它可以保护所有的船只不受风浪影响。"  # verbatim


@pytest.mark.parametrize("cell", ["同上", ", , (US)", "–"])
def test_cells_without_a_value_of_their_own(cell: str) -> None:
    text = f"# 灯台\n\n灯台のランプについての表です。\n\n| ランプ | 出力 |\n|---|---|\n| `kita` | {cell} |\n"
    assert facts_of([document(text)]) == []


def test_rules_of_english_are_not_applied_to_other_languages() -> None:
    """ "Les ..." is no verb in the third person."""
    text = "# Phare\n\nLe phare et ses lampes, avec tout ce qui est dans la tour.\n\n"
    (fact,) = facts_of([document(text + "- `mèche`: Les fils qui portent l'huile\n")])
    assert fact.questions[0] == 'Quelle entrée de "Phare" est décrite ainsi : "Les fils qui portent l\'huile" ?'


RUSSIAN = (
    "# Маяк\n\nЛампу маяка зажигает {} каждый вечер ровно в 18 часов. В порту для проверки нужна лестница длиной {} "
    "метров. Для ремонта лестницы на складе есть доски и верёвка из пеньки."
)
SLUICE = (
    "# {}\n\nDie Schleuse des Hafens ist nicht groß und wird am Morgen von Hand mit {} Liter Öl für das Tor versorgt. "
    "Im Winter braucht sie für das Eis auf dem Wasser noch einmal {} Liter mehr.\n\n"
    "| Lampe | Leistung |\n|---|---|\n| `nord` | {} Watt |\n"
)
JAPANESE = (
    "# 灯台\n\n灯台の明かりは毎晩{}がつけて朝まで見守ります。港の検査には長さ{}メートルのはしごが必要です。"
    "古い船の修理は町の工場で{}が担当しています。"
)


def test_decimal_commas_are_asked_for_and_decimal_points_accepted() -> None:
    pages = [
        document(SLUICE.format(f"Tor {'ABCDEFGHI'[n]}", f"{n},5", f"1{n},25", f"{n},5"), f"{n}.md") for n in range(2, 9)
    ]
    found = sentences(pages, alone=False)
    vocabulary = Vocabulary(found)
    gaps = {gap.answer: gap for one in found for gap in vocabulary.gaps(one) if gap.kind == "number"}
    assert {f"{n},5" for n in range(2, 9)} | {f"1{n},25" for n in range(2, 9)} == gaps.keys()
    assert all(re.fullmatch(r"\d,\d", wrong) for wrong in distractors(vocabulary, gaps["2,5"], 7, 0))
    assert {fact.answers for fact in facts_of(pages[:1])} == {("2,5 Watt", "2.5 Watt")}


def test_a_comma_in_a_number_of_english_is_no_decimal_comma() -> None:
    text = "# The sluice\n\nThe sluice of the harbour needs {} litres of oil for the gate and {} for the lamp at night."
    found = sentences([document(text.format("1,500", "2,5"), "a.md"), document(text.format("2.5", "20"))], alone=False)
    vocabulary = Vocabulary(found)
    gaps = {gap.answer: gap for one in found for gap in vocabulary.gaps(one) if gap.kind == "number"}
    assert gaps.keys() == {"1,500", "2.5", "20"}


def test_gaps_in_cyrillic_and_katakana() -> None:
    names = ("Соколов", "Морозов", "Лебедев", "Орлов", "Гусев", "Зайцев", "Волков", "Голубев")
    found = sentences([document(RUSSIAN.format(name, 20 + n), f"{n}.md") for n, name in enumerate(names)], alone=False)
    vocabulary = Vocabulary(found)
    gaps = [gap for sentence in found for gap in vocabulary.gaps(sentence)]
    assert {gap.answer for gap in gaps if gap.kind == "name"} == set(names)
    assert {"18", "20", "27"} <= {gap.answer for gap in gaps if gap.kind == "number"}
    assert {"проверки"} <= {gap.answer for gap in gaps if gap.kind == "term"}
    assert not {"каждый", "нужна"} & {gap.answer for gap in gaps}
    kana = ("ヤマダ", "スズキ", "タナカ", "サトウ", "ナカムラ", "コバヤシ", "カトウ", "ヨシダ")
    pages = [document(JAPANESE.format(name, 20 + n, f"Jensen{n}"), f"{n}.md") for n, name in enumerate(kana)]
    found = sentences(pages, alone=False)
    vocabulary = Vocabulary(found)
    gaps = [gap for sentence in found for gap in vocabulary.gaps(sentence)]
    assert set(kana) <= {gap.answer for gap in gaps if gap.kind == "name"}
    assert {"20", "27"} <= {gap.answer for gap in gaps if gap.kind == "number"}
    one = next(gap for gap in gaps if gap.answer == "スズキ")
    wrong = set(distractors(vocabulary, one, 20, 0))  # more than there are
    assert wrong == {*kana, "メートル"} - {"スズキ"}  # no names in Latin letters


def test_gaps_behind_an_elision_and_initials() -> None:
    nouns = "phare quai bateau filet moteur gouvernail voilier pêcheur capitaine marin rocher sable nuage vent".split()
    about = " ".join(f"Le {noun} numéro {n} est dans le port depuis longtemps." for n, noun in enumerate(nouns))
    text = (
        f"# Phare\n\n{about} Le gardien cherche son nom dans l'annuaire de la ville. Il y a dans l’annuaire une page "
        "blanche. Chaque soir le vieux Donald E. Knuth allume la lampe."
    )
    vocabulary = Vocabulary(sentences([document(text)], alone=False))
    assert "annuaire" in vocabulary.terms
    assert not {"Donald E", "Donald"} & set(vocabulary.names)


def test_sentences_that_refer_to_others() -> None:
    german = "# Hafen\n\nDer Hafen hat z.B. eine neue Mole aus Stein. Diese wurde im Sommer von der Stadt gebaut."
    (joined,) = sentences([document(german)])
    assert joined.plain.endswith("gebaut.")  # "Diese" refers to the mole, and "z.B." ends no sentence
    assert sentences([document("# Port\n\nLes bateaux attendent devant le môle, voir l'image ci-dessous.")]) == []
    assert split_sentences("Das Boot ist ca. 9 m lang. Es wartet.") == ["Das Boot ist ca. 9 m lang.", "Es wartet."]


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("Il demone del faro ha solamente il compito di accendere la lampada del porto.", True),
        ("Il porte une lampe et il allume le phare du port avec elle chaque soir.", False),
        ("O farol do porto acende a lâmpada todas as noites com a ajuda do guarda.", True),
        ("Ele acende a lâmpada todas as noites com a ajuda do guarda do porto.", False),
    ],
)
def test_a_pronoun_of_one_language_is_an_article_of_another(text: str, alone: bool) -> None:
    assert [s.alone for s in sentences([document(f"# Porto\n\n{text}")], alone=False)] == [alone]


MONTHS = ("Januar", "Februar", "April", "Mai", "August", "September", "November")


def test_months_are_distractors_of_months() -> None:
    text = "Die Lampe im Leuchtturm wird von dem Wärter jedes Jahr im {} mit Öl aus {} gefüllt und dann geputzt."
    towns = ("Bergen", "Aalborg", "Esbjerg", "Kiel", "Husum", "Emden", "Wismar")
    pages = [
        document(f"# Leuchtturm {n}\n\n{text.format(*pair)}", f"{n}.md")
        for n, pair in enumerate(zip(MONTHS, towns, strict=True))
    ]
    found = sentences(pages)
    vocabulary = Vocabulary(found)
    gaps = {gap.answer: gap for sentence in found for gap in vocabulary.gaps(sentence)}
    for answer in ("Januar", "August"):
        chosen = distractors(vocabulary, gaps[answer], 11, 0)
        assert len(chosen) == 11 and {"März", "Mai", "Dezember"} <= set(chosen)
    assert not set(MONTHS) & set(distractors(vocabulary, gaps["Kiel"], 7, 0))


def test_no_gaps_for_numbers_of_sections_or_in_examples() -> None:
    texts = {
        "de": "Der Wärter füllt die Lampe (siehe Abschnitt 9.10) mit 25 Litern Öl, z.B. aus Bergen oder Kiel.",
        "fr": "Le gardien remplit la lampe (voir Section 9.10) avec 25 litres d'huile, par exemple de Bergen.",
        "ru": "Смотритель заполняет лампу (см. раздел «9.10») и берёт для этого 25 литров, например из Бергена.",
        "ja": "守り手はランプのために（第9.10節を見てください）油を25リットル使います、例えばベルゲンの油です。",
    }
    for code, text in texts.items():
        (sentence,) = sentences([document(f"# Turm\n\n{text}")], alone=False)
        assert language_of(text).code == code
        assert "25" in {gap.answer for gap in Vocabulary([sentence]).gaps(sentence)}
        assert not {"9.10", "Bergen", "Kiel", "Бергена", "ベルゲン"} & {
            g.answer for g in Vocabulary([sentence]).gaps(sentence)
        }


def test_adjectives_are_no_terms() -> None:
    nouns = "маяка лодки крыши двери стены печки полки кухни".split()
    text = " ".join(f"Смотритель берёт масло для нового {noun} и краску для {noun}." for noun in nouns)
    vocabulary = Vocabulary(sentences([document(f"# Маяк\n\n{text}")], alone=False))
    assert "нового" not in vocabulary.terms and "маяка" in vocabulary.terms


@pytest.mark.parametrize(
    ("text", "marks"),
    [(RUSSIAN, ("Заполни", "Дополни", "Что пропущено", "Продолжи")), (JAPANESE, ("空欄", "続き", "欠けて", "次の文"))],
    ids=["ru", "ja"],
)
def test_questions_are_in_the_language_of_the_documents(text: str, marks: tuple[str, ...], tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, *(text.format(f"Jensen{n}", 20 + n, f"Olsen{n}") for n in range(30)))
    probes = build_probes(corpus, count=100)
    assert not [p for p in probes if p.form == "question"], "a gap is no question, and the text has no table"
    trained = [p.text for p in document_questions(tmp_path, corpus, exclude=probes)]
    assert len(trained) > 10
    assert all(
        any(mark in question for mark in (*marks, "Что должно", "終わりますか", "заканчивается", "によると"))
        for question in trained
    )


def test_facts_of_probes_are_asked_in_no_training_question(tmp_path: Path) -> None:
    rows = "\n".join(f"| `lampe-{n}` | {n + 100} Watt | Leuchtet im Raum Nummer {n} |" for n in range(60))
    corpus = corpus_of(tmp_path, GERMAN.split("|")[0] + "| Lampe | Leistung | Beschreibung |\n|---|---|---|\n" + rows)
    facts = facts_of(corpus.documents)
    probes = build_probes(corpus, count=200)
    asked = {fact.key for fact in facts for probe in probes if any(q in probe.question for q in fact.questions)}
    assert len(asked) > 30

    def kept_out(texts: list[str]) -> bool:
        return all(not any(q in text for q in fact.questions) for fact in facts if fact.key in asked for text in texts)

    questions = [p.text for p in document_questions(tmp_path, corpus, exclude=probes)]
    chats = [chat[0]["content"] for chat in augment(corpus.documents, probes, wordings=4).conversations]
    assert len(questions) > 30 and len(chats) > 30
    assert kept_out(questions) and kept_out(chats)
    assert not ProbeGuard(probes).has_wording(questions[0])


def test_overlap_is_found_without_spaces_between_words() -> None:
    fact = Fact("d", "灯台", "kita", "default", "40 W", "", ("q",), ("40 W",), ("s",))
    assert "灯台のkitaの出力は40 Wです。" in Stated([fact])
    assert "灯台のkitaの出力は60 Wです。" not in Stated([fact])
    assert stems("はしごの長さ") & stems("長さは何メートル") and not stems("はしご") & stems("明かり")
