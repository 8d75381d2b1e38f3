"""Names of people, real and made up, split once and for all into those for training and those held out."""

# ruff: noqa: SIM905 - lists of words are read and kept as text

import zlib
from random import Random

ENGLISH = """
Alice Bob Carol Dave Eve Frank Grace Henry Irene Jack Karen Liam Maria Noah Olivia Peter Quinn Rachel Sam Tom Uma
Victor Wendy Xavier Yara Zoe Aaron Abigail Adam Adrian Agnes Albert Alex Amanda Amelia Amy Andrea Andrew Angela Anna
Anthony Arthur Ava Barbara Beatrice Ben Bella Boris Brian Bruno Caleb Camilla Carlos Cathy Cecilia Charles Charlotte
Chloe Chris Clara Clara Colin Daisy Daniel Daphne David Deborah Dennis Diana Diego Dmitri Dora Dylan Edgar Edith
Edward Elena Eli Elisa Ella Emil Emily Emma Eric Ethan Eva Felix Fiona Florence Gabriel George Georgia Gloria Gordon
Hannah Harold Harry Hazel Heidi Helen Hugo Ian Ida Igor Ines Isaac Isabel Ivan Ivy Jacob James Jane Jasmine Jason
Jean Jennifer Jessica Joan Joe John Jonas Joseph Julia Julian Kate Keith Kevin Kim Kurt Lara Laura Leah Leo Leon Lily
Linda Lisa Louis Lucas Lucy Luke Luna Maggie Marcus Margaret Mark Martha Martin Mary Matthew Max Maya Megan Mia
Michael Miguel Miles Mona Monica Nadia Nancy Natalie Nathan Nick Nina Nora Olga Oliver Omar Oscar Otto Owen Pablo
Pamela Patrick Paul Paula Penny Philip Phoebe Piotr Priya Rafael Ralph Raj Rebecca Richard Rita Robert Robin Roger
Rosa Rose Ruby Ruth Ryan Sally Sandra Sara Scott Sean Sergei Silvia Simon Sofia Sonia Sophie Stella Stephen Steve
Susan Sven Tara Ted Teresa Theo Thomas Tim Tina Tobias Tony Ursula Valerie Vera Vincent Viola Walter Wanda William
Willow Yuki Yusuf Zachary Ahmed Fatima Mohammed Aisha Hiroshi Sakura Kenji Mei Wei Jin Ling Anil Sanjay Deepa
""".split()
LAST = """
Smith Johnson Brown Taylor Miller Wilson Moore Clark Hall Allen Young King Wright Hill Green Baker Adams Nelson Carter
Parker Evans Turner Collins Stewart Morris Rogers Reed Cook Bell Murphy Bailey Cooper Cox Ward Gray Watson Brooks Kelly
Price Wood Barnes Ross Long Foster Perry Fisher Novak Silva Costa Rossi Weber Wagner Becker Keller Ivanov Petrov Singh
Patel Khan Tanaka Sato Suzuki Kim Park Nguyen Tran Garcia Lopez Torres Ramos Cruz Diaz Hansen Larsen Berg Lind Dubois
""".split()
ACCENTED = (
    "José Zoë René Chloé Jürgen Björn André Noël Søren Łukasz Renée Mañuel Åsa Ágnes Dvořák Göran François".split()
)
SURNAMES = (
    "王李张刘陈杨黄赵周吴徐孙马朱胡林郭何高罗郑梁谢宋唐许韩冯邓曹彭曾肖田董袁潘于蒋蔡余杜叶程苏魏吕丁任沈姚卢姜崔钟谭陆"
    "汪范金石廖贾夏韦付方白邹孟熊秦邱江尹薛闫段雷侯龙史陶黎贺顾毛郝龚邵万钱严武戴莫孔向汤"
)
GIVEN = (
    "明伟芳娜秀英敏静丽强磊军洋勇艳杰娟涛超霞平刚桂兰玉萍红梅琳雪婷颖慧莹佳欣怡雨晨宇浩然子涵梓轩思远天博文俊豪志建国华"
    "春晓东海波峰鹏飞龙凤云飘嘉琪诗瑶梦洁心悦可馨若彤紫萱一诺安琪美玲小燕青松柏林森辉光亮星辰月阳宁康健福禄寿喜乐和"
)
_ONSETS = (
    "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl fr gl gr kl kr ph pl qu sh sl st th tr vl wr y x".split()
)
_VOWELS = "a e i o u a e i o u ai ea ee ia io oo ou y ae".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "m", "th", "x", "k", "nd", "rt", "ck", "d", "t", "p", "g", "lf", "ng", "z"]
_COMMON_HAN = [
    bytes((0xA0 + row, 0xA0 + cell)).decode("gb2312", "ignore") for row in range(16, 56) for cell in range(1, 95)
]
COMMON_HAN = [char for char in _COMMON_HAN if char]  # the 3,755 most used characters of GB 2312


def is_held_out(name: str) -> bool:
    """Whether a name is kept away from training (one in eight; known test names never are)."""
    return name.lower() not in {"alice", "bob"} and zlib.crc32(name.lower().encode()) % 8 == 0


def made_up(rng: Random, syllables: int) -> str:
    """A new pronounceable word, in lower case."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))


def _latin(rng: Random) -> str:
    pick = rng.random()
    if pick < 0.30:
        return rng.choice(ENGLISH)
    if pick < 0.62:
        return made_up(rng, rng.choice((1, 2, 2, 2, 3, 3, 4))).capitalize()
    if pick < 0.70:  # letters in no order at all: nothing to guess, everything to copy
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 9))).capitalize()
    if pick < 0.76:
        return f"{rng.choice(ENGLISH)} {rng.choice(LAST)}"
    if pick < 0.80:
        return f"{made_up(rng, 2).capitalize()} {made_up(rng, 2).capitalize()}"
    if pick < 0.84:
        return f"{rng.choice(ENGLISH)}-{rng.choice((rng.choice(ENGLISH), made_up(rng, 2).capitalize()))}"
    if pick < 0.87:
        return rng.choice(ACCENTED)
    if pick < 0.93:
        stem = rng.choice((rng.choice(ENGLISH), made_up(rng, 2).capitalize(), "User", "Agent", "Client", "Person"))
        return stem + rng.choice(("", "", "-", "_")) + str(rng.randint(0, rng.choice((9, 99, 999, 9999))))
    if pick < 0.97:
        return rng.choice((rng.choice(ENGLISH).lower(), made_up(rng, 2)))
    return rng.choice((rng.choice(ENGLISH).upper(), made_up(rng, 2).capitalize() + made_up(rng, 2).capitalize()))


def _chinese(rng: Random) -> str:
    pick = rng.random()
    if pick < 0.65:
        return rng.choice(SURNAMES) + "".join(rng.choice(GIVEN) for _ in range(rng.choice((1, 2, 2))))
    if pick < 0.75:
        return rng.choice("小阿老大") + rng.choice(SURNAMES + GIVEN)
    return "".join(rng.choice(COMMON_HAN) for _ in range(rng.choice((2, 3, 3))))


def name(rng: Random, language: str, held_out: bool = False) -> str:
    """A name fit for a language (`en`, `zh`), from the training names or from those held out."""
    while True:
        chinese = rng.random() < (0.7 if language == "zh" else 0.04)
        found = _chinese(rng) if chinese else _latin(rng)
        if is_held_out(found) == held_out:
            return found
