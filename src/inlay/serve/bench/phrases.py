"""Words and sentence patterns for made-up prompts. Our own text, no data set."""

import random

WORDS = """
able about above across act add after again age agree air all allow almost along also always among
amount animal answer apple area arm around arrive art ask autumn away back bag ball bank base basket
bear beat beautiful become bed before begin behind believe bell below best better between big bird
black blue board boat body bone book both bottle bottom box branch bread break bridge bright bring
brother brown build burn busy button buy call camp capital captain car care carry case catch cause
centre certain chair chance change cheap child choose church circle city class clean clear climb
clock close cloth cloud coast coat cold collect colour common compare complete copper copy corner
cost count country course cover cross crowd cry cup current cut dance danger dark daughter deep
desert desk differ dinner direct distance divide doctor door double doubt down draw dream dress
drink drive drop dry dust each early earth east easy edge eight either engine enough equal evening
every example expect eye face fact fair fall family far farm fast father favour fear feather feed
field fight fill final find finger finish fire first fish flat floor flow flower fly follow food
foot force forest forget form forward four free fresh friend front fruit full garden gate gather
general gentle give glass gold good grass great green grey ground group grow guess guide hair half
hammer hand happen harbour hard heart heat heavy help high hill history hold hole home honest hope
horse hot hour house hundred hunt ice idea inch increase iron island join journey jump keep kettle
key kind king kitchen knee knife lake lamp land language lantern large last late laugh law lead leaf
learn leave left letter level lift light line list listen little long look lose loud low machine
main make many map mark market matter meal mean measure meet metal middle mile milk mind minute
mirror mix moment money month moon morning mother mountain mouth move music name narrow nation near
neck needle nest never new night noise north note notice number ocean offer office often oil old
open orange order other out outside oven over own page paint pair paper part party pass path pay
pencil people perhaps person picture piece place plain plan plant plate play point polish port pot
power press price print problem promise proof pull purple push question quick quiet quite rain raise
reach read ready reason receive record red repeat reply rest rice rich ride right ring rise river
road rock roof room root rope rough round row rule run safe sail salt same sand save school science
sea season second seed sell send sense serve settle seven shade shape sharp sheep shelf ship shoe
shore short shoulder show side sign silver simple sing sister sit size skill sky sleep slow small
smell smile smoke smooth snow soap soft soil song soon sound south space speak spoon spring square
stage stairs stamp stand star start station stay steam steel step stick still stone stop store storm
story straight strange stream street strong study sugar summer sun supply sure surface sweet swim
table tail take talk tall taste teach ten thick thin thing think thread three through ticket tie
time together tomorrow tool top touch tower town trade train travel tree trouble true trust turn
twenty under until use valley value verb very village visit voice wait walk wall warm wash watch
water wave weather week weight west wheel while whistle white whole wide wild wind window winter
wire wish woman wonder wood wool word work world write year yellow yesterday young
""".split()

_OPENINGS = (
    "Can you explain how {a} and {b} are related?",
    "I am writing a short text about {a}. Where should I begin?",
    "What is the difference between {a} and {b}, in plain words?",
    "Please summarise the following notes about {a}.",
    "Help me plan a {a} for the {b} next week.",
    "Write a friendly letter that mentions {a} and {b}.",
    "Why does {a} change when there is more {b}?",
    "Give me three arguments for keeping {a} apart from {b}.",
    "Translate the idea of {a} into an example a child would understand.",
    "My {a} stopped working after I moved the {b}. What can I try?",
)
_MIDDLES = (
    "So far I have looked at {a}, but {b} still makes no sense to me.",
    "A friend told me that {a} always comes before {b}.",
    "Keep in mind that the {a} is old and the {b} is quite new.",
    "We tried {a} last {b}, and it was only half a success.",
    "The {a} stands near the {b}, between the {c} and the road.",
    "Some people say {a}, others say {b}, and nobody asks about {c}.",
    "There were about {n} of them, each with a {a} and a small {b}.",
    "In the first part I describe the {a}; in the second, the {b} and the {c}.",
)
_ENDINGS = (
    "Answer in a few sentences, please.",
    "Use a numbered list.",
    "What would you do first?",
    "Be brief, but do not leave out the reasons.",
    "Thank you!",
)


def question(draw: random.Random, num_words: int) -> str:
    """A request of about `num_words` words: an opening, as much detail as fits, an ending."""
    sentences = [_fill(draw, _OPENINGS)]
    length = len(sentences[0].split())
    while length + 10 < num_words:
        sentences.append(_fill(draw, _MIDDLES))
        length += len(sentences[-1].split())
    if length < num_words:
        sentences.append(_fill(draw, _ENDINGS))
    return " ".join(sentences)


def _fill(draw: random.Random, patterns: tuple[str, ...]) -> str:
    a, b, c = draw.sample(WORDS, 3)
    return draw.choice(patterns).format(a=a, b=b, c=c, n=draw.randint(2, 99))
