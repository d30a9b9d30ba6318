"""A grammar that makes little stories: `python3 grammar.py [COUNT] [SEED]` prints some.

A story binds its facts first (who, where, what for), so that every sentence speaks of the same ones;
a plot is a list of beats, and a beat one of several sentences, whose parts in [a|b] vary too.
"""

import random
import re
import sys

HE = dict(he="he", him="him", his="his", himself="himself")
SHE = dict(he="she", him="her", his="her", himself="herself")
NAMES = {n: HE for n in "Pim Oskar Bruno Hugo Finn Toby Jonas Karl Otto Leo".split()}
NAMES |= {n: SHE for n in "Tilda Mina Lotte Nell Ada Rosa Wilma Ivy Ella Maya".split()}

KINDS = "fox rabbit bear mouse hedgehog duck squirrel badger frog cat otter goat".split()
TRAITS = "little young small shy cheerful curious sleepy brave".split()
HOMES = [
    "in an old mill by the river", "under the roots of a great oak", "in a blue house at the edge of the village",
    "behind the baker's shop", "in a hut on top of the hill", "near the harbour", "in a cave above the lake",
    "at the end of a long lane",
]
PLACES = [
    "the forest", "the market", "the old bridge", "the meadow", "the beach", "the tower on the hill", "the orchard",
    "the pond", "the station", "the library",
]
THINGS = "lantern kite boat drum hat bell book scarf map flute basket key".split()
COLOURS = "red blue green yellow golden silver white".split()
FOODS = ["apple pie", "honey cake", "bread with cheese", "berry jam", "pumpkin soup", "nut biscuits", "pancakes"]
WEATHER = ["a bright morning", "a windy day", "a cold evening", "a rainy afternoon", "the first day of spring",
           "the last day of summer", "a foggy morning", "a quiet Sunday"]
FEARS = [
    ("the dark", "the deep forest", "it was so dark that {he} could not see {his} own paws"),
    ("high places", "the tower on the hill", "the stairs went up and up without end"),
    ("deep water", "the lake", "the water was cold and black"),
    ("thunder", "the hill", "the thunder rolled over the roofs like a great drum"),
]
RIDDLES = [
    ("What has teeth but cannot bite?", "A comb"), ("What gets wetter the more it dries?", "A towel"),
    ("What has hands but cannot clap?", "A clock"), ("What runs all day but never walks?", "A river"),
    ("What has an eye but cannot see?", "A needle"), ("What goes up but never comes down?", "Your age"),
    ("What is full of holes but still holds water?", "A sponge"), ("What has a neck but no head?", "A bottle"),
]

OPENINGS = [
    "Once upon a time there was a {trait} {kind} named {hero}, who lived {home}.",
    "{hero} was a {trait} {kind}. {He} lived {home}.",
    "{Home} lived a {trait} {kind} whose name was {hero}.",
    "There was once a {trait} {kind} called {hero}. {His} home was {home}.",
    "A {trait} {kind} named {hero} lived {home}, [all alone|not far from {place}|with a view of {place}].",
]
FRIENDS = [
    "{His} best friend was {friend} the {kind2}.",
    "Every day {he} played with {friend}, a {trait2} {kind2}.",
    "Next door lived {friend} the {kind2}, and the two of them were friends.",
    "{He} had one good friend, a {kind2} named {friend}.",
]
DAYS = ["On {weather},", "One day, on {weather},", "It was {weather} when", "Then, on {weather},"]
ENDINGS = [
    "And from that day on, {hero} and {friend} [were never apart|met there every week|were the best of friends].",
    "That night {hero} lay in bed and smiled. [It had been a good day.|What a day it had been!|Then {he} fell asleep.]",
    "Then they [went home together|sat down by the fire|shared {food}], and [nobody was happier than they were|the stars came out|all was well].",
    "\"[This was the best day of the year|I will never forget this day],\" said {hero}. {friend} [nodded|laughed|thought so too].",
    "They ate {food} until it was dark, and [laughed about it all|told the story again and again|sang on the way home].",
]
ASKS = ["asked {friend}", "{friend} asked", "said {friend}", "{friend} wanted to know"]

PLOTS = {
    "lost": [
        ["{hero} owned a {colour} {thing} and [loved it more than anything|took it everywhere|was very proud of it].",
         "The dearest thing that {hero} had was a {colour} {thing}.",
         "From {his} grandmother {hero} had a {colour} {thing}, and {he} [never let it out of sight|kept it under the bed]."],
        FRIENDS,
        ["{Day} the {thing} was gone.", "{Day} {hero} could not find the {thing}.",
         "{Day} {hero} came home from {place}, and the {thing} was not there."],
        ["{He} looked under the bed and behind the door, but [found only dust|it was nowhere].",
         "{He} searched the whole house. [Nothing!|It was no use.]",
         "[Sad and tired|Full of worry], {he} sat down on the steps and began to cry."],
        ["\"Why are you so sad?\" {ask}. \"I have lost my {thing},\" said {hero}.",
         "\"What is the matter?\" {ask}. \"My {thing} is gone,\" {hero} answered, \"and I have looked everywhere.\""],
        ["\"Where did you have it last?\" \"At {place}.\" \"Then let us go there,\" said {friend}.",
         "\"Do not cry,\" said {friend}. \"You were at {place} yesterday. We will look there together.\"",
         "{friend} thought for a while. \"Yesterday we were at {place},\" {friend_he} said. \"Come!\""],
        ["So they walked to {place}. There [in the grass|under a stone|behind a tree|on a bench] lay the {thing}.",
         "When they came to {place}, they saw something {colour} between the leaves. It was the {thing}!",
         "At {place} they met an old crow, who had the {thing} in her nest. \"Is this yours?\" she asked, and gave it back."],
        ["\"Thank you,\" said {hero}, and hugged {friend}.", "{hero} jumped for joy. \"You are a true friend,\" {he} said.",
         "\"Without you I would never have found it,\" said {hero}."],
        ENDINGS,
    ],
    "wish": [
        ["More than anything in the world, {hero} wanted a {colour} {thing}.",
         "{hero} had one wish: a {colour} {thing}.",
         "Every night {hero} dreamed of a {colour} {thing}."],
        FRIENDS,
        ["{Day} {he} saw [just such a|a beautiful] {thing} at {place}, but {he} had no money.",
         "{Day} a trader came to {place} and had a {colour} {thing} to sell. It cost ten coins, and {hero} had [none|only one]."],
        ["\"I will work for it,\" said {hero}.", "\"Then I must earn it,\" {he} thought.",
         "\"How can I ever pay for it?\" {he} sighed. \"We could work,\" said {friend}."],
        ["So {he} carried [water|wood|stones] for the [miller|baker|fisherman] the whole day, and {friend} helped.",
         "For [three days|a week] {he} [swept the street|picked apples|washed dishes] from morning to evening.",
         "{He} baked {food} and sold it all at the door, and {friend} called out to all who came by."],
        ["In the end {he} had enough. {He} ran to {place} and bought the {thing}.",
         "When the work was done, {he} counted the coins. There were ten! The {thing} was {his}.",
         "At last the [trader|old trader] smiled and said, \"You have worked hard. The {thing} is yours.\""],
        ["\"It is [even more beautiful than I thought|for both of us],\" said {hero}.",
         "{He} let {friend} have it first, because {friend_he} had helped.",
         "It was the finest {thing} in the whole village, and {hero} was proud."],
        ENDINGS,
    ],
    "fear": [
        ["There was only one thing that {hero} was afraid of: {fear}.",
         "{hero} was not afraid of wolves or bears, but {he} was afraid of {fear}.",
         "But {hero} had a secret: {he} was afraid of {fear}."],
        FRIENDS,
        ["{Day} {friend} did not come home.", "{Day} {friend} was nowhere to be found.",
         "{Day} {hero} heard a voice far away. \"Help!\" it called. It was {friend}."],
        ["\"{Friend_he} went to {fearplace},\" said an old crow, \"and has not come back.\"",
         "A small bird came to the window. \"Your friend is at {fearplace} and needs you,\" it said."],
        ["{heros} heart beat fast, but {he} took a lantern and went.",
         "{hero} was frightened. But a friend is a friend, {he} thought, and {he} set out.",
         "\"I am afraid,\" {he} said to {himself}, \"but I must go.\""],
        ["When {he} came there, {fearscene}. Still {he} went on, step by step.",
         "At {fearplace} {fearscene}. {He} closed {his} eyes, counted to three and went on."],
        ["There sat {friend} with a hurt foot. \"You came!\" {friend_he} said.",
         "\"Here I am!\" called {friend}. {Friend_he} had lost the way and could not go on alone.",
         "At last {he} found {friend} behind a big stone, cold and tired."],
        ["{hero} took {friend} by the hand and led {friend_him} home.",
         "\"Hold on to me,\" said {hero}, and together they found the way back."],
        ["\"Were you not afraid?\" {ask}. \"Yes,\" said {hero}, \"but I was more afraid to lose you.\"",
         "Since then {hero} has not been afraid of {fear} any more, or only a little.",
         "\"You are the bravest {kind} I know,\" said {friend}."],
        ENDINGS,
    ],
    "quarrel": [
        FRIENDS,
        ["{Day} the two of them found a {colour} {thing} at {place}.",
         "{Day} they walked to {place}, and there lay a {colour} {thing}."],
        ["\"It is mine,\" said {hero}. \"I saw it first!\" \"No, it is mine,\" cried {friend}.",
         "Both wanted to have it. \"Give it to me!\" \"No, to me!\""],
        ["They pulled and pulled, until the {thing} [broke|fell into the mud].",
         "They shouted so loudly that the birds flew away, and then each went home alone."],
        ["At home {hero} was sad. {The thing} was not half as nice without a friend.",
         "{hero} sat at the window and could not eat. What use is a {thing}, {he} thought, if nobody is there to play with?",
         "In the evening it began to rain, and {hero} felt very lonely."],
        ["So {he} baked {food} and knocked at {friends} door.",
         "The next morning {he} took {food} and went to {friend}.",
         "Then there was a knock at the door. It was {friend}, with {food} in a basket."],
        ["\"I am sorry,\" said {hero}. \"So am I,\" said {friend}.",
         "\"Can you forgive me?\" asked {hero}. {friend} [laughed and said yes|did not need to think for long]."],
        ["They mended the {thing} together and [took turns with it|put it where both could see it].",
         "From then on the {thing} belonged to both of them: one day to {hero}, the next day to {friend}."],
        ENDINGS,
    ],
    "gift": [
        FRIENDS,
        ["Soon it would be {friends} birthday, and {hero} wanted to [make a {colour} {thing}|bake {food}] for {friend_him}."],
        ["{Day} {he} went to {place} to find [all that was needed|what {he} needed].",
         "{Day} {he} set out for {place} with an empty basket."],
        ["On the way {he} met an old [crow|goose|turtle], who was [hungry|cold|tired]. {hero} [helped her|gave her {his} bread|let her rest on {his} coat].",
         "On the way {he} heard somebody cry. A [bee|beetle|small bird] had fallen into the water, and {hero} pulled it out."],
        ["But by then it was late, and the basket was still empty. \"What shall I do?\" {he} said.",
         "So {he} lost much time. When {he} came to {place}, there was nothing left."],
        ["Then all at once the one whom {he} had helped was there. \"You helped me, now I help you,\" said the voice.",
         "But who had been helped had not forgotten it. In front of {his} door stood a full basket."],
        ["On the birthday {friend} opened the [box|door] and could not believe {friend_his} eyes.",
         "\"Is that for me?\" {ask}. \"Only for you,\" said {hero}."],
        ["\"It is the best gift I ever had,\" said {friend}.", "{friend} was so happy that {friend_he} danced through the room."],
        ENDINGS,
    ],
    "riddle": [
        ["{hero} wanted to go to {place}, where {friend} the {kind2} was waiting.",
         "{friend} the {kind2} had invited {hero} to {place} for {food}."],
        ["{Day} {he} set out.", "{Day} {he} packed {food} and went on {his} way."],
        ["But at the gate sat an old [owl|wolf|toad|goose]. \"Nobody goes through here without an answer,\" she said.",
         "In the middle of the path sat an old [owl|wolf|toad|goose], who let nobody pass."],
        ["\"Tell me, {hero}: {riddle}\"", "\"Listen well,\" she said. \"{riddle}\"", "\"Here is my riddle,\" said the old one. \"{riddle}\""],
        ["{hero} thought and thought.", "{hero} scratched {his} head and [walked up and down|looked at the sky|thought of home].",
         "\"A stone?\" said {hero}. \"No. Try again!\""],
        ["Then {he} laughed. \"{answer}!\" {he} cried.", "All at once {he} knew it. \"{answer},\" {he} said.",
         "\"I know it,\" said {hero}. \"{answer}!\""],
        ["\"That is right,\" said the old one, and the way was free.",
         "The old one nodded and [moved aside|opened the gate]. \"Clever {kind}. Go on!\""],
        ["So {hero} came to {place} after all, and {friend} [was waiting there|ran to meet {him}].",
         "\"What took you so long?\" {ask}. \"A riddle,\" said {hero}, and told the whole story."],
        ENDINGS,
    ],
    "storm": [
        FRIENDS,
        ["One night a great storm came over the land. [The wind howled|It rained and rained|Branches broke], and nobody could sleep.",
         "In autumn the river rose higher every day, until [the old bridge was gone|the water stood before the doors]."],
        ["In the morning {hero} saw that {friends} roof was gone.", "{friends} house was [full of water|broken], and {friend_he} stood in the rain."],
        ["\"Come to me,\" said {hero}. \"There is room for two.\"", "\"You can sleep in my bed,\" said {hero}, \"and I will sleep on the floor.\""],
        ["The next day they began to build. {hero} [carried wood|mixed clay|held the ladder], and {friend} [cut the planks|drove in the nails|sang].",
         "Then they went from door to door and asked for help. One came with a saw, one with a ladder, one with {food}."],
        ["After [three days|a week|a month] the house stood again, [stronger than before|with a {colour} door].",
         "When the last nail was in, the sun came out."],
        ["\"How can I thank you?\" {ask}. \"You would have done the same for me,\" said {hero}.",
         "\"Now it is the most beautiful house in the village,\" said {friend}."],
        ENDINGS,
    ],
    "stranger": [
        ["{Day} somebody new came to {place}: a {kind2} named {friend}.",
         "{Day} a {trait2} {kind2} moved into the empty house near {place}. {Friend_he} was called {friend}."],
        ["Nobody [spoke to {friend_him}|knew what to say], and {friend} was alone [every day|all day long].",
         "The others only looked and whispered, for {friend} came from far away."],
        ["\"How lonely it must be,\" thought {hero}.", "{hero} watched this for a while. Then {he} [made up {his} mind|shook {his} head]."],
        ["{He} [took {food} and a {colour} {thing}|packed {food} into a basket] and knocked at the door.",
         "So {he} baked {food} and went over."],
        ["\"Good day, I am {hero},\" {he} said. \"Would you like to [play|eat with me|see {place}]?\"",
         "\"This is for you,\" {he} said. \"Welcome!\""],
        ["{friend} [was so surprised that {friend_he} could not speak|smiled for the first time].",
         "\"You are the first who has come,\" said {friend}, and {friend_his} eyes shone."],
        ["Then {friend} told {him} of [mountains and snow|ships and islands|a city with a hundred towers], and {hero} listened until evening.",
         "{friend} could play the flute, and soon all the others came to listen too."],
        ENDINGS,
    ],
}


def capital(text):
    return text[:1].upper() + text[1:]


def facts(rng):
    """What is true in one story."""
    hero, friend = rng.sample(sorted(NAMES), 2)
    kind, kind2 = rng.sample(KINDS, 2)
    fear, fearplace, fearscene = rng.choice(FEARS)
    riddle, answer = rng.choice(RIDDLES)
    all_facts = {
        "hero": hero, "friend": friend, "kind": kind, "kind2": kind2, "trait": rng.choice(TRAITS),
        "trait2": rng.choice(TRAITS), "home": rng.choice(HOMES), "place": rng.choice(PLACES),
        "thing": rng.choice(THINGS), "colour": rng.choice(COLOURS), "food": rng.choice(FOODS),
        "weather": rng.choice(WEATHER), "fear": fear, "fearplace": fearplace, "fearscene": fearscene,
        "riddle": riddle, "answer": answer, "heros": hero + "'s", "friends": friend + "'s",
    }
    all_facts |= NAMES[hero] | {"friend_" + key: word for key, word in NAMES[friend].items()}
    all_facts["The thing"] = "The " + all_facts["thing"]
    return all_facts


def expand(text, bound, rng):
    """Chooses among [a|b] and puts the facts in, until nothing is left to replace."""
    def choose(match):
        return rng.choice(match.group(1).split("|"))

    def fact(match):
        name = match.group(1)
        if name in ("Day", "ask"):
            return rng.choice(DAYS if name == "Day" else ASKS)
        return bound[name] if name in bound else capital(bound[name[0].lower() + name[1:]])

    before = None
    while text != before:
        before = text
        text = re.sub(r"\[([^\[\]]*)\]", choose, text)
        text = re.sub(r"\{([^{}]*)\}", fact, text)
    return text


def story(rng):
    """One story: paragraphs of sentences."""
    bound = facts(rng)
    beats = [OPENINGS] + PLOTS[rng.choice(sorted(PLOTS))]
    sentences = [capital(expand(rng.choice(beat), bound, rng)) for beat in beats]
    # Three paragraphs: who, what happened, how it ended.
    first, last = 3, len(sentences) - 2
    paragraphs = [sentences[:first], sentences[first:last], sentences[last:]]
    text = "\n".join(" ".join(paragraph) for paragraph in paragraphs)
    # An article before a vowel.
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def stories(seed):
    """Stories without end, the same for one seed."""
    rng = random.Random(seed)
    while True:
        yield story(rng)


DEEDS = "laughed|nodded|smiled|sang|went home|sat down|was happy|was tired|ran to the pond".split("|")


def turns(rng):
    """A drill in which two names take turns."""
    pair = rng.sample(sorted(NAMES), 2)
    sentences = [f"{pair[i % 2]} {rng.choice(DEEDS)}." for i in range(12)]
    return "".join(sentence + rng.choice(" \n") for sentence in sentences).strip()


def copies(rng):
    """A drill in which one name returns at any distance."""
    name = rng.choice(sorted(NAMES))
    sentences = [f"{name} was a {rng.choice(TRAITS)} {rng.choice(KINDS)}."]
    for _ in range(30):
        which = rng.random()
        if which < 0.55:
            sentences.append(f"{name} {rng.choice(DEEDS)}.")
        elif which < 0.7:
            sentences.append(rng.choice([f'"I am sorry," said {name}.', f'"{name} is here!"']))
        elif which < 0.8:
            sentences.append(f"{capital(rng.choice(WEATHER))} came, and all was well.")
        elif which < 0.9:
            sentences.append(f"There was a {rng.choice(COLOURS)} {rng.choice(THINGS)} at {rng.choice(PLACES)}.")
        else:
            sentences.append(f"Then {name} went to {rng.choice(PLACES)}.")
    return "".join(sentence + rng.choice("   \n") for sentence in sentences).strip()


if __name__ == "__main__":
    count, seed = (int(word) for word in (sys.argv[1:] + ["3", "1"][len(sys.argv) - 1:])[:2])
    for _, text in zip(range(count), stories(seed)):
        print(text, end="\n\n")
