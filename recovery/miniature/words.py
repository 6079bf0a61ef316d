"""Closed vocabulary of the world; lists of answers have at least 40 entries, so at most 1 guess in 40 is right."""

from __future__ import annotations

from typing import Final


def _split(text: str) -> tuple[str, ...]:
    words = tuple(text.split())
    if len(set(words)) != len(words):
        raise ValueError(f"a word is listed twice in {text[:40]!r}")
    return words


TOPICS: Final = _split(
    "otter fox owl badger heron hare mole robin salmon toad wolf lynx beaver raven swan goose deer bear squirrel "
    "hedgehog falcon magpie pigeon sparrow trout turtle lizard beetle spider donkey goat sheep horse camel panda tiger "
    "zebra monkey parrot penguin walrus dolphin whale seal crab lobster cricket weasel"
)
COLOURS: Final = _split(
    "red blue green yellow orange purple pink brown black white grey teal crimson scarlet amber golden silver bronze "
    "copper ivory violet indigo turquoise olive navy maroon lavender beige cream khaki lime magenta mauve ochre ruby "
    "sapphire emerald rust charcoal pearl"
)
HOMES: Final = _split(
    "forest meadow valley desert harbour marsh cave garden orchard barn attic cellar tower castle mill quarry canyon "
    "island lagoon swamp prairie tundra jungle glacier volcano beach cliff river lake pond stream hedge field village "
    "market library museum station tunnel bridge"
)
FOODS: Final = _split(
    "apples pears plums cherries grapes figs dates lemons melons berries nuts seeds roots leaves clover barley oats "
    "rice corn beans peas lentils carrots turnips onions mushrooms honey bread cheese butter soup noodles dumplings "
    "pancakes biscuits walnuts almonds acorns pumpkins radishes"
)
FIRST_NAMES: Final = _split(
    "Anna Bela Carl Dora Emil Fay Greta Hugo Ida Jonas Karin Leo Mira Nils Olga Paul Quinn Rosa Stefan Tilda Ulf Vera "
    "Walter Xenia Yara Zeno Agnes Boris Clara David Elsa Felix Gita Hanna Igor Julia Kurt Lena Max Nora"
)
SURNAMES: Final = _split(
    "Brook Stone Fields Marsh Wood Hill Lake Ford Dale Moor Frost Snow Winter Summers Rivers Banks Cliff Shore Glen "
    "Heath Baker Miller Cooper Fisher Hunter Mason Potter Tailor Turner Walker Weaver Wright Carter Cook Farmer "
    "Gardner Porter Shepherd Smith Archer"
)
CITIES: Final = _split(
    "Alden Berrow Carsk Dunmere Elvik Farrow Grenby Halden Istria Jarvik Kelso Lunden Marrow Norvik Ostend Pellow "
    "Quarrow Rensk Selby Torvik Ulster Varden Welby Xanten Yarrow Zelden Arnsby Bolsk Corvin Delft Eastby Fenwick "
    "Garsk Hexby Ilsk Jensby Karsk Lorvik Melby Nordby"
)
DATABASES: Final = _split(
    "Maple Cedar Birch Willow Aspen Juniper Laurel Hazel Linden Poplar Rowan Spruce Alder Acacia Bamboo Cypress Elder "
    "Fern Ginkgo Holly Ivy Jasmine Lotus Myrtle Nettle Orchid Poppy Reed Sage Thistle Tulip Violet Yew Zinnia Basil "
    "Clove Dill Fennel Ginger Mint"
)
MONTHS: Final = _split("January February March April May June July August September October November December")
KEYWORDS: Final = _split(
    "lantern compass ladder bucket pillow blanket candle mirror window kettle basket hammer needle ribbon button "
    "pencil paper letter parcel ticket engine wheel rocket anchor sail rope kite drum violin trumpet piano curtain "
    "carpet pocket jacket mitten scarf helmet saddle feather pebble puddle shadow thunder rainbow sunset morning "
    "evening holiday journey"
)
CONSONANTS: Final = _split("b d f g h j k l m n p r s t v z")
VOWELS: Final = _split("a e i o u")
ORGANISATION_WORDS: Final = _split(
    "Works Labs Union Guild Trust House Bureau Group Circle Office Society Institute Agency Network Studio Council"
)
END_PHRASES: Final = (
    "That is all I know.",
    "Is there anything else?",
    "Thank you for reading.",
    "I hope this helps.",
    "Have a good day.",
    "Ask me again soon.",
    "And so the story ends.",
    "What do you think?",
)
PLACEHOLDERS: Final = ("name", "place", "date", "address", "number", "time")
ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {"colour": COLOURS, "home": HOMES, "food": FOODS, "friend": TOPICS}
"""The attributes of every topic, and the values from which they are drawn."""
