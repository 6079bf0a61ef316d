"""Two hundred everyday topics, each with four related words, and open requests about them. Written for this project."""

from __future__ import annotations

import random
from dataclasses import dataclass

from recovery.types import Message, Prompt

_TEXT = """
tide pools: crab rock wave shell; beekeeping: hive honey swarm queen;
night trains: sleeper platform carriage timetable; sourdough bread: starter crust flour oven;
houseplants: pot soil leaf light; lighthouses: lamp keeper coast fog; street markets: stall trader bargain crowd;
glaciers: ice valley crevasse melt; origami: paper fold crease crane; river otters: fur fish den whisker;
board games: dice token rule turn; volcanoes: lava ash crater eruption; second-hand bookshops: shelf cover page dust;
mountain huts: trail bunk stove ridge; hot-air balloons: basket burner wind silk; composting: peel worm heap mulch;
chess openings: pawn bishop knight castle; desert caravans: camel dune oasis sand;
school libraries: reader quiet catalogue desk; ferry crossings: deck harbour anchor gull;
knitting: yarn needle stitch scarf; coral reefs: polyp diver lagoon sponge; tea ceremonies: kettle bowl guest whisk;
winter markets: lantern mitten cider snow; bicycle repair: chain brake pedal tyre;
choir singing: alto tenor rehearsal harmony; rainwater barrels: gutter roof tap drought;
bird migration: flock south nest feather; pottery: clay kiln glaze wheel; city parks: bench pond path lawn;
maps and atlases: compass scale border legend; ice cream making: sorbet cone vanilla scoop;
storm chasing: cloud funnel radar thunder; allotment gardens: bean shed spade row;
violin lessons: bow string scale teacher; cave exploration: torch rope echo bat;
public fountains: marble coin jet basin; rock climbing: harness grip ledge chalk;
the origins of surnames: family village trade ancestor; meteor showers: sky trail comet night;
canal boats: lock tiller towpath mooring; cheese making: milk curd rind cellar;
pen pals: letter stamp envelope friend; windmills: sail grain miller gear;
puppet theatre: string stage curtain marionette; snow leopards: mountain paw prey spot;
weather forecasting: front pressure rain chart; jazz clubs: trumpet drum stage solo;
mushroom foraging: cap gill forest basket; first aid: bandage wound pulse kit;
old typewriters: ribbon key carriage ink; harvest festivals: wheat feast barn dance;
sailing knots: rope loop hitch bowline; seed banks: vault species cold crop;
family recipes: spoon kitchen pinch grandmother; subway maps: line station colour transfer;
penguins: egg colony iceberg flipper; clock making: spring hand dial pendulum;
stargazing: telescope planet constellation lens; community theatre: script costume audience cue;
peatlands: moss bog carbon heath; bridges: arch cable span pillar; kite flying: tail breeze spool frame;
morning routines: alarm coffee stretch shower; sign language: hand gesture face alphabet;
hedgehogs: spine garden beetle nest; paper making: pulp mould sheet fibre; marathon training: pace mile blister water;
soap making: oil lye scent bar; museum visits: gallery guide ticket exhibit;
tidal power: turbine current estuary cable; card tricks: deck shuffle ace sleeve;
greenhouse growing: glass tomato heat vent; local newspapers: headline editor column print;
public speaking: audience pause voice slide; ski touring: slope binding avalanche skin;
bakery shifts: dough dawn tray oven; ancient roads: stone legion milestone ditch; dog training: leash treat sit walk;
moths: wing lamp cocoon dusk; recycling centres: glass bin sort metal; whale songs: ocean pod sonar calf;
the origins of the alphabet: letter scribe tablet sound; rooftop gardens: planter view herb skyline;
calligraphy: ink nib stroke scroll; orchard pruning: branch saw apple ladder; fire stations: siren hose engine ladder;
pancakes: batter syrup pan butter; tide tables: moon high low harbour;
mountain rescue: helicopter stretcher summit team; bamboo: stalk panda grove shoot;
film photography: negative shutter lens darkroom; wool dyeing: vat indigo skein plant;
radio plays: voice microphone sound drama; fossils: bone layer shell hammer; folk dances: circle fiddle step skirt;
lost luggage: airport tag suitcase counter; rain forests: canopy vine frog river;
neighbourhood libraries: shelf box swap street; the origins of chocolate: cocoa bean bitter spice;
snails: shell slime leaf garden; home insulation: wall draught attic wool; carpentry: plank saw joint hammer;
tea plantations: leaf hill picker mist; ice skating: rink blade spin lace; wildflower meadows: poppy bee grass seed;
sundials: shadow noon hour stone; crossword puzzles: clue grid pencil answer;
electric buses: battery route charger stop; olive groves: oil harvest press tree;
stage lighting: lamp filter beam cue; pigeons: loft homing crumb square; road trips: map playlist motel highway;
pickling vegetables: jar vinegar brine cabbage; telegraphs: wire code operator message;
badminton: racket net shuttle serve; saffron: thread crocus spice harvest; hammocks: rope tree nap knot;
fire-making: tinder spark kindling flint; planetariums: dome projector star seat;
sheep farming: lamb wool pasture dog; public baths: steam tile pool towel; castle moats: drawbridge tower water guard;
herb gardens: basil mint thyme pot; juggling: ball club rhythm catch; tortoises: shell lettuce slow century;
glass blowing: furnace pipe bubble vase; commuting by bicycle: helmet lane bell rain;
seaside piers: plank arcade gull fishing; lullabies: cradle song sleep moon; dry-stone walls: boulder field gap mason;
mangroves: root mud tide crab; quilting: patch thread cotton pattern; barn owls: vole rafter wing night;
voting systems: ballot count booth candidate; salt mines: crystal tunnel miner shaft;
treehouses: ladder branch plank window; coffee roasting: bean drum aroma crack; handball: goal throw court keeper;
spice markets: pepper cumin sack scent; earthworms: soil tunnel rain cast; model railways: track tunnel signal engine;
wedding speeches: toast couple joke glass; deep-sea fish: pressure dark lantern trench;
hiking boots: sole lace mud blister; terraced rice fields: paddy hill water step;
escape rooms: clue lock timer puzzle; basket weaving: willow reed rim handle; arctic foxes: snow fur burrow lemming;
street musicians: guitar hat corner coin; solar panels: roof sun inverter battery; birdhouses: hole perch nail robin;
gondolas: oar canal lagoon pole; hospital volunteers: ward visit smile badge; vineyards: grape slope barrel harvest;
pocket watches: chain lid case tick; swimming lessons: pool float kick breath; garden ponds: frog lily pump newt;
bilingual families: language story word home; stained glass: window lead colour saint;
squirrels: acorn branch tail hoard; the origins of tea towels: linen kitchen print fold;
tugboats: tow harbour engine rope; camp cooking: stew pot fire spoon; sleep habits: pillow dream clock rest;
wooden toys: block paint peg train; prairie dogs: burrow bark grass mound; brass bands: tuba march uniform drum;
perfume: flower bottle note scent; library cats: shelf nap purr reader; community kitchens: ladle meal volunteer soup;
tightrope walking: balance pole wire height; fjords: cliff water ferry village;
cherry blossoms: petal spring picnic pink; lunch boxes: sandwich apple lid snack;
suspension springs: coil load bounce steel; garage bands: guitar amplifier drum chorus;
sea glass: beach bottle wave frost; amateur radio: antenna signal call frequency; bread ovens: brick peel ember loaf;
butterflies: nectar wing garden pupa; parking meters: coin street hour ticket; haiku: syllable season image line;
antique fairs: lamp chair dealer price; snowflakes: crystal six cold branch; shadow puppets: screen light hand story;
walking tours: guide corner history shoes; fishing villages: net boat smoke quay;
yoga classes: mat breath pose stretch; roller coasters: loop track scream rail; oak trees: acorn bark root shade;
secret recipes: vault taste spice rumour; wind chimes: breeze tone garden tube; rainbows: prism sun drop colour;
car sharing: driver seat route app; dandelions: seed yellow lawn wish; puzzle boxes: drawer lock wood slide;
frozen lakes: skate crack sledge shore; the origins of pasta: dough flour sauce wheat;
neighbourhood watch: street lamp door patrol; letter writing: pen paper stamp ink;
farmers' almanacs: moon weather seed frost; astronaut food: pouch orbit water crumb
"""


@dataclass(frozen=True)
class Topic:
    """A topic to write about, and words that a text about it can be required to use or avoid."""

    name: str
    words: tuple[str, ...]


TOPICS: tuple[Topic, ...] = tuple(
    Topic(" ".join(name.split()), tuple(words.split()))
    for name, words in (entry.split(":") for entry in _TEXT.split(";"))
)


# Plain questions: arithmetic, words, facts with one correct answer, and open questions about topics.

OPEN = (
    "What should a beginner know about {t}?", "What are three common mistakes with {t}?",
    "How would you explain {t} in two sentences?", "What is there to like about {t}?",
    "Which tools or materials belong to {t}?", "How has the world of {t} changed over time?",
    "What is hard about {t}?", "Where could I find out more about {t}?", "What would you ask an expert on {t}?",
    "Why do some people love {t}?", "How much time does it take to get to know {t}?", "What can go wrong with {t}?",
    "Which words should I know before I read about {t}?", "Is there a famous person connected with {t}?",
    "Give me a short summary of {t}.", "What changes about {t} from one country to another?",
    "What surprised you most about {t}?", "How would you teach {t} in ten minutes?",
)  # fmt: skip
_PLACES = """
Portugal Lisbon; Kenya Nairobi; Peru Lima; Norway Oslo; Japan Tokyo; Egypt Cairo; Chile Santiago; Hungary
Budapest; Finland Helsinki; Cuba Havana; Greece Athens; Poland Warsaw; Ireland Dublin; Thailand Bangkok;
Austria Vienna; Denmark Copenhagen; Ecuador Quito; Ghana Accra; Iceland Reykjavik; Italy Rome; Spain Madrid;
Sweden Stockholm; Uruguay Montevideo; Senegal Dakar; Bulgaria Sofia; Latvia Riga; Canada Ottawa; Colombia
Bogota; Croatia Zagreb; Nepal Kathmandu; Ethiopia Addis Ababa; Jordan Amman
"""
_CAPITALS = tuple((c, p) for c, p in (entry.split(None, 1) for entry in " ".join(_PLACES.split()).split(";")))
_UNITS = (
    ("minutes", "hour", 60), ("seconds", "minute", 60), ("hours", "day", 24), ("days", "week", 7),
    ("months", "year", 12), ("grams", "kilogram", 1000), ("metres", "kilometre", 1000), ("centimetres", "metre", 100),
    ("eggs", "dozen", 12), ("millimetres", "centimetre", 10), ("years", "century", 100), ("years", "decade", 10),
    ("sheets", "pack of 500", 500),
)  # fmt: skip
_FACTS = (
    ("How many legs does a spider have?", "8"), ("How many sides has a hexagon?", "6"),
    ("Which planet is closest to the sun?", "Mercury"), ("What do bees make from nectar?", "honey"),
    ("What gas do plants take in from the air to grow?", "carbon dioxide"),
    ("How many days are in a leap year?", "366"), ("What is frozen water called?", "ice"),
    ("Which animal is known for building dams?", "beaver"),
    ("What colour do you get when you mix blue and yellow paint?", "green"),
    ("How many strings does a violin have?", "4"), ("Which ocean lies between Africa and Australia?", "Indian Ocean"),
    ("What is the young of a cow called?", "calf"), ("Which metal is liquid at room temperature?", "mercury"),
    ("How many letters are in the English alphabet?", "26"), ("What is the opposite of north?", "south"),
    ("Which season follows spring?", "summer"), ("What force pulls things towards the ground?", "gravity"),
    ("What do you call a shape with three sides?", "triangle"),
    ("Which organ pumps blood through the body?", "heart"), ("What is the largest mammal on earth?", "blue whale"),
    ("Which star is nearest to the earth?", "the sun"), ("What is the hardest natural material?", "diamond"),
    ("How many players of one team are on a football pitch at the start?", "11"),
    ("What is the plural of mouse?", "mice"), ("In which direction does the sun rise?", "east"),
    ("What is the past tense of go?", "went"), ("What is half of a hundred?", "50"),
    ("Which bird is a symbol of peace?", "dove"), ("How many cents make a euro?", "100"),
    ("What language is mostly spoken in Brazil?", "Portuguese"),
)  # fmt: skip
_STYLES = (
    "{q}",
    "{q} Answer in one sentence.",
    "{q} Give only the answer.",
    "A quick question: {q}",
    "{q} Be brief.",
    "Tell me: {q}",
)


def plain(rng: random.Random) -> Prompt:
    """Draw one plain question, with a reference answer if there is exactly one."""
    kind = rng.choices((_open, _sum, _words, _capital, _unit, _fact), (10, 4, 4, 1, 1, 1))[0]
    return kind(rng)


def _prompt(text: str, tag: str, answer: str | None = None) -> Prompt:
    return Prompt("", (Message(role="user", content=text),), answer=answer, tags=("plain", tag))


def _open(rng: random.Random) -> Prompt:
    topic = rng.choice(TOPICS)
    return _prompt(rng.choice(OPEN).format(t=topic.name), f"topic:{topic.name}")


def arithmetic(rng: random.Random) -> tuple[str, int]:
    """Draw a sum, difference or product in digits, and return it with its value."""
    sign = rng.choice("++--*")
    a, b = (rng.randint(2, 12), rng.randint(2, 12)) if sign == "*" else (rng.randint(2, 99), rng.randint(2, 99))
    a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
    value = a + b if sign == "+" else a - b if sign == "-" else a * b
    return f"{a} {sign} {b}", value


def _sum(rng: random.Random) -> Prompt:
    text, value = arithmetic(rng)
    form = rng.choice(("What is {s}?", "Work out {s}.", "Calculate {s} and give the result.", "How much is {s}?"))
    return _prompt(form.format(s=text), "sum", str(value))


def _words(rng: random.Random) -> Prompt:
    words = [*rng.sample(rng.choice(TOPICS).words, 3), rng.choice(rng.choice(TOPICS).words)]
    task = rng.randrange(5)
    if task == 0 and len(set(words)) == 4:
        return _prompt(f"Put these words in alphabetical order: {', '.join(words)}.", "order", ", ".join(sorted(words)))
    if task == 1:
        return _prompt(f'How many letters are in the word "{words[0]}"?', "letters", str(len(words[0])))
    if task == 2:
        return _prompt(f'What is the last letter of "{words[0]}"?', "letters", words[0][-1])
    if task == 3 and len(listed := _one_longest(words)) >= 3:
        question = f"Which of these words is the longest: {', '.join(listed)}?"
        return _prompt(question, "length", max(listed, key=len))
    return _prompt(f'Use "{words[0]}" and "{words[3]}" in one sentence.', "sentence")


def _one_longest(words: list[str]) -> list[str]:
    """Return the words without ties for the longest, so that there is exactly one answer."""
    longest = max(words, key=len)
    return [w for w in dict.fromkeys(words) if w == longest or len(w) < len(longest)]


def _capital(rng: random.Random) -> Prompt:
    country, city = rng.choice(_CAPITALS)
    if rng.random() < 0.3:
        return _prompt(rng.choice(_STYLES).format(q=f"Which country has {city} as its capital?"), "fact", country)
    return _prompt(rng.choice(_STYLES).format(q=f"What is the capital of {country}?"), "fact", city)


def _unit(rng: random.Random) -> Prompt:
    small, large, size = rng.choice(_UNITS)
    n = rng.randint(2, 9)
    plural = {"century": "centuries", "dozen": "dozen", "pack of 500": "packs of 500"}.get(large, f"{large}s")
    return _prompt(rng.choice(_STYLES).format(q=f"How many {small} are in {n} {plural}?"), "unit", str(n * size))


def _fact(rng: random.Random) -> Prompt:
    question, answer = rng.choice(_FACTS)
    return _prompt(rng.choice(_STYLES).format(q=question), "fact", answer)
