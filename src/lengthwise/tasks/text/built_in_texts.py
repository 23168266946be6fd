"""Built-in example texts, which are enough to test training but not enough for a useful language model."""

TRAIN_TEXTS = {
    "the ferry": """\
The ferry leaves the village at seven. It is a small boat with a green roof, and in winter it carries more parcels than
people. Marta has steered it for nineteen years. She knows where the water is shallow, where the wind comes round the
hill, and which of the children will have forgotten their shoes.

On the first of March she wrote a number on the door of the cabin: 412. Nobody asked her what it meant. The next day she
wrote 411, and the day after that 410. By summer the children had started to bet on it. Some said that she counted the
days to a holiday. Some said that she counted the crossings that the old engine had left in it.

When the number was down to 3 she bought paint. When it was 1 she asked everybody to bring a chair to the landing. And
on the day when it was 0, in April of the year after, the new boat came up the lake with a red roof, and Marta took the
door of the old cabin home with her. It stands in her garden. The last number on it is the one from the first of March,
which she had written so deep that no paint would cover it: 412.
""",
    "a list of tools": """\
hammer, two kinds
saw, for wood
saw, for metal
pliers, with the blue handle
pliers, with the red handle
a box of screws, short
a box of screws, long
string
the good knife

Whoever takes a thing from this wall writes it below, and whoever brings it back strikes it out.

hammer: Ivo
the good knife: Ivo
string: Lena
saw, for metal: Ivo
pliers, with the red handle: Lena

Ivo, please bring back the hammer, the good knife and the saw for metal. Lena has brought back the string and the pliers
with the red handle. What is on the wall now: one hammer, the saw for wood, the pliers with the blue handle, the pliers
with the red handle, both boxes of screws, and string.
""",
    "how to read a long letter": """\
A long letter asks its reader to remember. On the first page there is a name, and on the ninth page the name comes back
with nothing said about it, as if the reader had known it always. Between the two lie eight pages on the weather, on the
price of bread, on a neighbour and a neighbour's dog. None of that helps. What helps is one word on the first page.

Most words are not like this. Most of them follow from the few words before them: after "the price of" comes what can be
bought, and after "a neighbour and a neighbour's" hardly anything can come but a dog. A reader who had only the
last line in front of him would guess as well as one who had read the whole letter.

So if we ask how much of a letter a word needs, there are two answers. For most words it is a line. For some it is one
line and one word more, far away; and whoever wants to guess such a word has to know where to look.
""",
    "counting sheep": """\
def count(sheep):
    number = 0
    for each in sheep:
        number = number + 1
    return number


def count_black(sheep):
    number = 0
    for each in sheep:
        if each.colour == "black":
            number = number + 1
    return number


def share_of_black(sheep):
    if count(sheep) == 0:
        return 0
    return count_black(sheep) / count(sheep)
""",
    "two cooks": """\
"Soup," said the first cook, "is water that has been told something."

"And bread," said the second cook, "is flour that has been kept waiting."

They had worked in one kitchen for so long that each could end the other's sentences, and did. The first cook made the
soup and the second cook made the bread. On Mondays it was barley soup and rye bread, on Tuesdays leek soup and white
bread, on Wednesdays bean soup and rye bread again, on Thursdays whatever was left. Nobody came on Thursdays except the
teacher, who said that whatever was left was the best soup of the week.

One Thursday nothing was left. The first cook looked at the second cook. "Water," said the first cook. "Flour," said the
second cook. The teacher ate it all and asked what it was called. "Told," said the first cook. "And kept waiting," said
the second.
""",
}

HELD_OUT_TEXTS = {
    "the clock tower": """\
There are four clocks on the tower, one on each side, and no two of them agree. The north clock is slow because the wind
leans on its hands. The south clock is fast because the sun warms its wheels. The east clock stopped in the year of the
flood and has been right twice a day since then. The west clock is the one that people set their watches by, though it
is three minutes late and everybody knows it.

A clockmaker came from the city and offered to mend all four. The village thanked her and asked her to mend the north
clock, the south clock and the east clock. "And the west clock?" she asked. "The west clock," they said, "is right."
""",
    "counting geese": """\
def count(geese):
    number = 0
    for each in geese:
        number = number + 1
    return number


def count_white(geese):
    number = 0
    for each in geese:
        if each.colour == "white":
            number = number + 1
    return number


def share_of_white(geese):
    if count(geese) == 0:
        return 0
    return count_white(geese) / count(geese)
""",
}
