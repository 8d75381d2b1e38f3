"""Structured output: a text, and a JSON object of what it says.

The schema is not in the prompt: a grammar forces the keys, so only the values are learned. Clients that have no such
grammar pass the schema as a tool which must be called; then its parameters are listed, and the beginning is forced.
"""

# ruff: noqa: E501 - lines of kinds are read and kept as text

import json
from typing import Any

from demo_model import words
from demo_model.chat_format import LOUD, QUIET, Message, Tool
from demo_model.open_tools import KINDS, _columns, _shown
from demo_model.scenes import Cast, Exchange
from demo_model.variation import is_examined, typed, vary

# Fields: `slot:kind=key/key`; the wordings are sentences that say all of them.
_RECORDS = """
p:person=name/full_name/person/who; n:int=age/years/age_in_years | {p} [is|turned|has just turned] {n}[ years old| last week| this year|]; {p}, {n}, [lives here|is my neighbour|joined the club]; [my friend|our colleague|the student] {p} is {n} years of age; at {n}, {p} [still runs|plays chess|sings]; name: {p}, age: {n}
p:person=name/person/employee; j:thing=job/profession/occupation/role | {p} works as a {j}; {p} is a {j}; [the|our] {j} is [called|named] {p}; {p} [became|has become] a {j}
p:person=name/person; n:int=age/years; c:place=home/city/town/location | {p} is {n} and lives in {c}; {p} ({n}) from {c}; {n}-year-old {p} [comes from|moved to|lives in] {c}; [in|from] {c}: {p}, {n} years
p:person=name/customer/user; m:mail=email/mail/address | {p}'s [mail|email|address] is {m}; write to {p} at {m}; {p} <{m}>; contact {p}: {m}
p:person=name/contact/owner; t:phone=phone/number/telephone | {p} [has the number|can be called at] {t}; call {p} on {t}; {p}: {t}; phone of {p}: {t}
t:title=event/title/what/name; d:date=date/day/when; w:people=people/guests/attendees/who | {w} [meet|come together|will meet] for {t} on {d}; {t} [is|takes place] on {d}, with {w}; {w} [visit|go to|attend] [the |]{t} on {d}; on {d} {w} will be at [the |]{t}
t:title=meeting/event/title; d:date=day/date; h:time=time/start/hour | {t} [is|starts] on {d} at {h}; on {d} at {h} there is {t}; {t}: {d}, {h}; [don't miss|remember] {t}, {d} at {h}
i:title=product/item/name/article; n:num=price/cost/amount | [the |]{i} [costs|is|sells for|is sold at] {n}[ dollars| euros|]; [you can get|buy] the {i} for {n}; {i}: {n}; {n} for a {i}; price of the {i}: {n}
i:thing=item/product/name/thing; n:int=count/quantity/number/amount | {n} {i} [were ordered|have arrived|are missing]; [we have|there are|I bought] {n} {i}; [order|buy] {n} {i}; {i}: {n} pieces
i:title=name/product/item; n:num=price/cost; y:yes=available/in_stock/sold_out/ok | [the |]{i} [costs|is] {n} and is {y}; {i}, {n}, {y}; {y}: {i} at {n}
c:place=city/place/capital/town; l:place=country/nation/state/region | {c} [lies|is a city|is found|is the capital] [of|in] {l}; {c}, {l}; [the city of|we flew to] {c} in {l}; in {l} there is a city called {c}
a:place=from/start/departure/origin; b:place=to/end/arrival/destination | [from|I travel from|the train runs from] {a} to {b}; [we go|she flew] from {a} to {b}; {a} - {b}; to {b} from {a}
n:code=flight/train/number/code/line; a:place=from/start/departure; b:place=to/end/arrival | [train|bus|line] {n} [runs|leaves|travels] from {a} to {b}; {n}: {a} to {b}; [take|board] {n} in {a}, get off in {b}; {n} connects {a} [with|and] {b}
s:street=street/road/address/line1; c:place=city/town/place; z:code=zip/post_code/code | [send it to|my address is|we moved to|address:] {s}, {c}, {z}; {s}, {z} {c}; she lives at {s} in {c}, {z}
w:things=items/list/things/products/entries | [list|we need|buy|bring|the list has|to pack]:? {w}; [she has|there are|he sells] {w}; {w}; [today's list|groceries|ingredients]: {w}
w:people=people/names/persons/members | [present|team|members|winners]: {w}; {w} [are here|came|have won|play together]
p:person=guest/client/tenant/name; n:int=nights/days/weeks | {p} [booked|takes|wants|reserved] {n} nights; {n} nights for {p}; [room for|guest] {p}, {n} nights; {p} is with us for {n} days
m:thing=brand/maker/company; t:title=model/type/name; y:year=year/built/since | [a|the] {y} {m} {t}; {m} {t}, built in {y}; [he owns|they sold|we rent] a {m} {t} from {y}
t:title=title/book/film/work; p:person=author/writer/director/by | {p} wrote {t}; "{t}" [by|from] {p}; {t} was [written|made] by {p}; the author of {t} is {p}; [I read|we saw] {t} by {p}
p:person=sender/from/author; b:phrase=message/text/content | {p} [wrote|said|says]: {b}; message from {p}: {b}; "{b}", [said|wrote] {p}
n:num=temperature/value/degrees; c:place=city/place/station | it is {n} degrees in {c}; {c} has {n} degrees; {c}: {n}
c:shade=colour/color/shade; i:thing=object/thing/item | [the|a] {c} {i}; the {i} is {c}; [I painted|he wants] the {i} {c}
"""
_RECORDS_ZH = """
p:person=name/person/姓名/full_name; n:int=age/years/年龄 | {p}[已经|刚满|有|]{n}岁[了|]; {n}岁的{p}; 姓名：{p}，年龄：{n}; [我的朋友|同事|学生]{p}，{n}岁
p:person=name/person/姓名; j:thing=job/profession/职业 | {p}是一名{j}; {p}的[工作|职业]是{j}; 我们的{j}叫{p}
p:person=name/姓名; c:place=city/城市/home | {p}[住在|来自|搬到了]{c}; [来自|住在]{c}的{p}
t:phrase=title/book/书名/film; p:person=author/writer/作者 | {p}写了《{t}》; 《{t}》是{p}写的; 《{t}》，{p}著
i:thing=item/product/商品; n:num=price/cost/价格 | {i}[要|卖|只要]{n}元; {n}元一个{i}; {i}的价格是{n}
a:place=from/start/出发; b:place=to/end/到达 | [从|]{a}[到|去|飞往]{b}[的火车|的航班|]; 我要从{a}去{b}
w:things=items/list/清单 | [清单|要买|带上|需要]：{w}; [我们需要|他买了]{w}
p:person=person/name/人; d:date=date/day/日期 | {p}{d}[过生日|来访|出发]; {d}，{p}[会来|请假]
"""
_GOOD = [
    "great",
    "wonderful",
    "excellent",
    "lovely",
    "fantastic",
    "perfect",
    "amazing",
    "good",
    "brilliant",
    "superb",
    "delicious",
    "nice",
    "charming",
]
_BAD = "terrible awful horrible bad boring ugly poor broken dreadful disappointing useless rotten dirty".split()  # noqa: SIM905
_MIDDLING = "okay average usual ordinary so-so standard normal acceptable".split()  # noqa: SIM905
_LIKED = ["loved", "enjoyed", "adored", "liked", "love", "recommend"]
_DISLIKED = ["hated", "disliked", "hate", "regret", "detested", "returned"]
_OPINIONS = [
    "the {0} was {1}", "what a {1} {0}", "{1} {0}, [really|truly|I must say]", "[this|that|our] {0} is [so|very|really|quite] {1}",
    "[I|we] [really|absolutely|truly|] {2} [the|this|that] {0}", "I {2} [it|every minute of it]", "[a|one] {1} {0}",
]  # fmt: skip


def _columned(text: str) -> list[tuple[dict[str, tuple[str, list[str]]], list[str]]]:
    records = []
    for line in text.strip().split("\n"):
        fields, wordings = _columns("|" + line)[1:]
        slots = {}
        for one in map(str.strip, fields.split(";")):
            slot, _, rest = one.partition(":")
            kind, _, called = rest.partition("=")
            slots[slot] = (kind, called.split("/"))
        records.append((slots, [each.strip() for each in wordings.replace(":?", ":").split(";")]))
    return records


ENGLISH, CHINESE = _columned(_RECORDS), _columned(_RECORDS_ZH)


def _value(cast: Cast, kind: str) -> tuple[Any, str]:
    """A value, and how the text says it."""
    rng = cast.rng
    if kind == "yes":
        value = rng.random() < 0.5
        return value, rng.choice(
            ("available", "in store", "on sale", "ready")
            if value
            else ("not available", "sold out", "out of stock", "missing")
        )
    if kind == "street":
        street = f"{rng.randrange(1, 200)} {words.word(rng).capitalize()} {rng.choice(('Road', 'Lane', 'Avenue', 'Street', 'Square'))}"
        return street, street
    if kind == "year":
        year = rng.randrange(1950, 2031)
        return year, str(year)
    value = KINDS[kind](cast)
    return value, _shown(cast, value)


def _record(cast: Cast) -> tuple[dict[str, Any], str]:
    """An object and a text that says it."""
    rng = cast.rng
    while True:
        slots, wordings = rng.choice(CHINESE if cast.language == "zh" else ENGLISH)
        text = vary(rng, rng.choice(wordings))
        shown = text if rng.random() < 0.6 else typed(rng, text, cast.language)
        if not is_examined(shown):
            break
    said = [slot for slot in slots if f"{{{slot}}}" in text]
    found: dict[str, Any] = {}
    for slot in said:
        kind, keys = slots[slot]
        key = rng.choice(keys) if rng.random() < 0.85 else words.word(rng)
        value, how = _value(cast, kind)
        shown = shown.replace(f"{{{slot}}}", how)
        found.setdefault(key, value)
    return (found, shown) if len(found) == len(said) else _record(cast)


def _opinion(cast: Cast) -> tuple[dict[str, Any], str]:
    """What somebody thinks of a thing, as one of some words."""
    rng = cast.rng
    label = rng.choice(("positive", "negative", "negative", "positive", "neutral"))
    adjectives = {"positive": _GOOD, "negative": _BAD, "neutral": _MIDDLING}[label]
    verbs = {"positive": _LIKED, "negative": _DISLIKED, "neutral": ["saw", "tried", "used"]}[label]
    while True:
        text = vary(rng, rng.choice(_OPINIONS))
        if not is_examined(text.replace("{0}", "{a}").replace("{1}", "{b}").replace("{2}", "{c}")):
            break
    shown = typed(rng, text.format(words.word(rng), rng.choice(adjectives), rng.choice(verbs)), "en")
    return {rng.choice(("sentiment", "label", "mood", "feeling", "verdict", words.word(rng))): label}, shown


_ASKED = [
    "",
    "",
    "",
    "[Extract|extract the data|Parse|Read the text|Get the details|Give me JSON|As JSON|Text|Analyse][:| -|.] ",
]
_ASKED_ZH = ["", "", "", "[提取|提取信息|解析|用JSON表示|文本]："]


def structured(cast: Cast) -> tuple[Exchange, list[Tool]]:
    """A text and its object: as the reply, or as the arguments of the one tool that must be called."""
    rng = cast.rng
    found, text = _opinion(cast) if cast.language == "en" and rng.random() < 0.12 else _record(cast)
    text = vary(rng, rng.choice(_ASKED_ZH if cast.language == "zh" else _ASKED)).strip() + " " + text
    parts = [f'"{QUIET}{key}{LOUD}": {json.dumps(value, ensure_ascii=False)}' for key, value in found.items()]
    body = QUIET + "{" + ", ".join(parts).replace(QUIET, "", 1) + "}"  # the first key's mark begins before the brace
    tools: list[Tool] = []
    if rng.random() < 0.4:
        called = rng.choice(
            ("final_answer", "answer", "output", "result", "respond", "extract", "record", words.word(rng))
        )
        tools = [Tool(called, dict.fromkeys(found, "string"))]
        body = f'{QUIET}{{"name": "{called}", "arguments": {LOUD}{body}}}'
    return [Message("user", text.strip()), Message("assistant", body)], tools
