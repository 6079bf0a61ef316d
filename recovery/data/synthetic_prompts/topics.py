"""Two hundred everyday topics, each with four related words. Written for this project."""

from __future__ import annotations

from dataclasses import dataclass

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
