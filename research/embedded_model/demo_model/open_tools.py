"""Tools of every kind, as people's programs bring them: the request, the call that it asks for, and the answer.

A kind of tool is one line: names | parameters | wordings. Names and the names of parameters have alternatives, so the
same request meets many schemas; a third of the tools is made up altogether. What matters is what stays the same: a
word of the request is in the tool's name, a value is copied to the parameter that it belongs to, and what was not
said is left out.
"""

# ruff: noqa: E501, S608 - lines of kinds are read and kept as text; no query is ever run

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from demo_model import words
from demo_model.chat_format import LOUD, QUIET, Message, Tool, ToolCall
from demo_model.names import made_up, name
from demo_model.scenes import Cast, Exchange
from demo_model.variation import examined_tools, is_examined, polite, typed, vary

# -- values -----------------------------------------------------------------------------------------------------------


def _place(cast: Cast) -> str:
    rng = cast.rng
    if cast.language == "zh" and rng.random() < 0.8:
        return rng.choice((rng.choice(words.CITIES_ZH), words.han(rng)))
    return rng.choice(
        (
            rng.choice(words.CITIES),
            made_up(rng, rng.choice((2, 2, 3))).capitalize(),
            f"{made_up(rng, 1).capitalize()} {made_up(rng, 1).capitalize()}",
        )
    )


def _phrase(cast: Cast) -> str:
    return (
        words.phrase(cast.rng, cast.language, cast.rng.choice((1, 2, 3, 4, 5))).replace('"', "").rstrip(".!?。！？,， ")
        or "x"
    )


def _title(cast: Cast) -> str:
    if cast.language == "zh":
        return _phrase(cast)
    parts = [words.word(cast.rng) for _ in range(cast.rng.choice((1, 1, 2, 2, 3)))]
    return " ".join(part.capitalize() for part in parts) if cast.rng.random() < 0.6 else " ".join(parts).capitalize()


def _thing(cast: Cast) -> str:
    if cast.language == "zh":
        return words.han(cast.rng)
    return " ".join(words.word(cast.rng) for _ in range(cast.rng.choice((1, 1, 2))))


def _date(cast: Cast) -> str:
    rng = cast.rng
    year, month, day = rng.randint(2019, 2031), rng.randint(1, 12), rng.randint(1, 28)
    if cast.language == "zh" and rng.random() < 0.6:
        return rng.choice((f"{month}月{day}日", "明天", "后天", "下周一", "星期五", "今天"))
    months = "January February March April May June July August September October November December".split()  # noqa: SIM905
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday tomorrow today".split()  # noqa: SIM905
    return rng.choice(
        (f"{year}-{month:02}-{day:02}", f"{year}-{month:02}-{day:02}", f"{rng.choice(months)} {day}", rng.choice(days))
    )


def _time(cast: Cast) -> str:
    hour, minute = cast.rng.randrange(24), cast.rng.choice((0, 0, 15, 30, 45, cast.rng.randrange(60)))
    return cast.rng.choice(
        (
            f"{hour:02}:{minute:02}",
            f"{hour}:{minute:02}",
            f"{hour % 12 + 1} {cast.rng.choice(('am', 'pm'))}",
            f"{hour % 12 + 1}{cast.rng.choice(('am', 'pm'))}",
        )
    )


def _number(cast: Cast) -> int:
    return cast.rng.randrange(1, 10 ** cast.rng.choice((1, 1, 2, 2, 3, 4)))


def _decimal(cast: Cast) -> float | int:
    value = round(cast.rng.random() * 10 ** cast.rng.choice((1, 2, 3)), cast.rng.choice((1, 2)))
    return _number(cast) if cast.rng.random() < 0.4 else value


def _code(cast: Cast) -> str:
    rng = cast.rng
    letters = "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.choice((2, 3, 3, 4))))
    return rng.choice((letters, letters, letters + str(rng.randrange(10000)), f"{letters}-{rng.randrange(1000)}"))


def _mail(cast: Cast) -> str:
    return f"{made_up(cast.rng, 1)}{cast.rng.choice(('', '.' + made_up(cast.rng, 1)))}@{made_up(cast.rng, 2)}.{cast.rng.choice(('com', 'org', 'net', 'de', 'io'))}"


def _url(cast: Cast) -> str:
    return f"{cast.rng.choice(('https://', 'http://', ''))}{cast.rng.choice(('www.', ''))}{made_up(cast.rng, 2)}.{cast.rng.choice(('com', 'org', 'io'))}{cast.rng.choice(('', '/' + words.word(cast.rng)))}"


def _phone(cast: Cast) -> str:
    digits = "".join(str(cast.rng.randrange(10)) for _ in range(10))
    return cast.rng.choice(
        (
            digits,
            f"{digits[:3]}-{digits[3:7]}",
            f"+{digits[:2]} {digits[2:]}",
            f"{digits[:3]}-{digits[3:6]}-{digits[6:]}",
        )
    )


def _chosen(some: list[str]) -> Callable[[Cast], str]:
    return lambda cast: cast.rng.choice(some)


def _query(cast: Cast) -> str:
    table, column = words.word(cast.rng), words.word(cast.rng)
    return cast.rng.choice(
        (
            f"SELECT * FROM {table}",
            f"SELECT {column} FROM {table} WHERE id = {_number(cast)}",
            f"select count(*) from {table}",
            f"DELETE FROM {table}",
        )
    )


_LANGUAGES = [
    "English",
    "German",
    "Spanish",
    "Italian",
    "Russian",
    "Japanese",
    "Korean",
    "Dutch",
    "Polish",
    "Turkish",
    "Arabic",
    "Hindi",
    "Latin",
    "Greek",
]
_COINS = "dollars yen GBP CHF CNY INR JPY SEK pounds francs pesos AUD CAD BRL rupees".split()  # noqa: SIM905
_ZONES = ["Europe/Berlin", "UTC", "America/New_York", "Asia/Seoul", "PST", "Africa/Cairo", "GMT", "Europe/Paris"]
_CHOICES = {
    "level": ["urgent", "normal", "minor", "critical", "low", "high", "medium"],
    "size": ["tiny", "small", "big", "huge", "medium", "large"],
    "where": ["garage", "attic", "garden", "hall", "cellar", "bathroom", "living room", "porch"],
    "shade": words.COLOURS,
    "state": ["open", "closed", "done", "paused", "active"],
}
KINDS: dict[str, Callable[[Cast], Any]] = {
    "place": _place, "phrase": _phrase, "title": _title, "thing": _thing, "date": _date, "time": _time, "int": _number,
    "num": _decimal, "code": _code, "mail": _mail, "url": _url, "phone": _phone, "query": _query,
    "person": lambda cast: name(cast.rng, cast.language),
    "path": lambda cast: words.file(cast.rng),
    "language": lambda cast: cast.rng.choice(_LANGUAGES),
    "coin": lambda cast: cast.rng.choice(_COINS),
    "zone": lambda cast: cast.rng.choice(_ZONES),
    **{kind: _chosen(some) for kind, some in _CHOICES.items()},
    "people": lambda cast: [name(cast.rng, cast.language).split(" ")[0] for _ in range(cast.rng.choice((1, 2, 2, 2, 3)))],
    "things": lambda cast: [_thing(cast) for _ in range(cast.rng.choice((1, 2, 2, 3)))],
}  # fmt: skip

# -- kinds of tools ---------------------------------------------------------------------------------------------------
# Parameters: `slot:kind=name1/name2`; `?` behind it where it may be left out. Braces in the wordings are slots; every
# wording names the slots that must be there.

_KINDS = """
[forecast|weather|weather_forecast|current_weather|fetch_weather|weather_lookup|temperature|get_temperature] | p:place=city/town/location/place; d:date=day/date? | [how|what] [is|will be] the [weather|temperature|forecast] [in|at|for|near] {p}[ {d}|]; [is it|will it be] [cold|raining|sunny|windy|hot|snowing] in {p}[ {d}|]; weather [for|in|at] {p}; do I need [an umbrella|a coat] in {p}; {p} weather; [tell me|show me|check|give me] the [weather|forecast|temperature] [in|of|for] {p}
[mail|write_mail|email|compose_email|draft_email|mail_send] | t:mail=recipient/address/to_address/receiver; s:title=subject/title; b:phrase=body/message/content/text | [mail|write|send] [an email |a mail |]to {t}[,| with] subject {s}[,| and] [text|message|body] {b}; [send|write] {t} [an email|a mail] [about|titled|with the title] {s}[:| saying|, and say] {b}; email to {t}: {s} - {b}
[text|chat|send_text|notify|message_user|sms|post_message|dm] | t:person=to/user/contact/receiver/name; b:phrase=message/body/content/msg | [tell|text|message|notify] {t}[:| that| saying] {b}; [send|write] [a message|a text|a note] to {t}[:| saying] {b}; let {t} know [that|:] {b}; send {t} the message "{b}"; message {t} "{b}"
[sum|plus|sum_numbers|add_numbers|addition] | x:int=x/first/left/n1/a; y:int=y/second/right/n2/b | [what is|compute|calculate|tell me] {x} [plus|+] {y}; [add|sum] {x} [and|to] {y}[ with the tool|]; {x} and {y} [added|together]; sum of {x} and {y}
[product|times|multiply_numbers|mul|multiplication] | x:int=x/first/left/n1/a; y:int=y/second/right/n2/b | [what is|compute|calculate|tell me] {x} [times|multiplied by|x] {y}; multiply {x} [and|by|with] {y}[ with the tool|]; product of {x} and {y}
[difference|minus|subtract|subtraction] | x:int=x/first/left/a; y:int=y/second/right/b | [what is|compute|calculate] {x} minus {y}; subtraction: {x} - {y}; the difference of {x} and {y}
[divide|division|quotient] | x:num=x/dividend/numerator/a; y:num=y/divisor/denominator/b | [what is|compute|calculate] {x} divided by {y}; divide {x} by {y}
[search|lookup|web_search|find_pages|google|search_internet|search_documents|search_news] | q:thing=query/text/keywords/q/term/topic; n:int=limit/count/max? | [search|look|google] [for|up|] {q}[ on the internet| online|]; [find|get] [pages|results|articles|news] [about|on|for] {q}; find {n} [pages|results|articles] about {q}; [what|anything] [is new|new] about {q}; look {q} up[ online|]
[visit|browse|load_page|fetch_url|open_page|goto|download_page] | u:url=url/address/link/page | [visit|browse|load|go to|fetch|download] [the page |]{u}; [show me|read] [the site|the page|the website] {u}; what does {u} say
[exchange|currency|exchange_money|currency_converter|fx|exchange_rate] | n:num=value/sum/money/amount; a:coin=source/from/base/from_unit; b:coin=target/to/quote/to_unit | [exchange|change|turn|swap] {n} {a} [to|into|for] {b}; how [much|many {b}] is {n} {a}[ in {b}|]; {n} {a} in {b}; what are {n} {a} worth in {b}; {n} {a} to {b} please
[timer|start_timer|countdown|new_timer|alarm_in] | n:int=seconds/duration/time/minutes; l:thing=name/title/note? | [start|give me|make] a timer [for|of] {n} [minutes|seconds|min]; [count down|countdown] {n} [minutes|seconds]; timer {n} [minutes|min]; remind me in {n} minutes; start a {n} minute timer[ called {l}|]
[alarm|wake_me|wake_up|new_alarm|add_alarm] | t:time=at/when/hour/clock | [wake me|get me up] [up |]at {t}; [an alarm|alarm] [for|at] {t}; I [must|have to] get up at {t}; put an alarm on {t}
[play|play_music|music_play|start_song|play_track|listen] | s:title=song/track/name; a:person=by/singer/band? | [put on|I want to hear|let me hear|start] {s} [by|from] {a}; [put on|play the song|play the track|listen to|start] {s}; play {s} [by|from] {a}
[stop_music|stop|silence|mute|stop_playing|halt_playback] | | [stop|mute|silence] [the music|the sound|it|that song|the player]; [no more|enough] music; be quiet; turn the music off
[resume_music|resume|continue_playing|unpause] | | [resume|continue|go on with] [the music|playing|the song]; unpause
[next_track|skip|skip_song|next_song] | | [next|skip] [song|track|this song|this one]; skip it
[lamp_on|light_on|switch_on|enable_light|lights_on] | r:where=area/place/where/zone | [switch|put|turn] on the [light|lamp] in the {r}; [light|lamp] on in the {r}; make it bright in the {r}; {r} light on
[lamp_off|light_off|switch_off|disable_light|lights_off] | r:where=area/place/where/zone | [put out|turn out|kill] the [light|lamp] in the {r}; [light|lamp] off in the {r}; make it dark in the {r}; {r} lights off
[dim|set_brightness|brightness] | r:where=area/place/where; n:int=level/percent/value | [dim|set] the [light|lamp] in the {r} to {n}[ percent| %|]; {r} brightness {n}
[thermostat|heat|set_temperature|heating] | n:int=degrees/temperature/value; r:where=area/place? | [set|turn] the [heating|temperature|thermostat] to {n}[ degrees|][ in the {r}|]; make it {n} degrees[ in the {r}|]; heat the {r} to {n} degrees
[paint|color|set_color|set_colour] | o:thing=object/thing/item; c:shade=color/colour/shade | [paint|colour|color|make] the {o} {c}; the {o} should be {c}
[reserve|reservation|reserve_seats|book|make_reservation|table_booking] | p:title=place/name/venue; n:int=guests/persons/seats/party; t:time=at/hour/when | [reserve|get|book] [a table|seats] at {p} for {n} [people|persons|guests|] at {t}; [we are|there will be|table for] {n}[ of us|] at {t}[,| in| at] {p}; a table for {n} at {p}[,|] {t}; reserve {p} at {t} for {n}
[hotel|book_room|book_hotel|reserve_room] | p:place=city/town/location; n:int=nights/days; d:date=arrival/start/checkin? | [book|find|reserve] a [room|hotel] in {p} for {n} nights[ from {d}|]; {n} nights in {p}[ from {d}|]; I stay {n} nights in {p}
[book_flight|flights|find_flights|flight_search|train|trains|find_train] | a:place=from/start/departure/source; b:place=to/end/arrival/target; d:date=date/day/when? | [book|find|show me|get] [a flight|flights|a train|trains|a ticket] from {a} to {b}[ on {d}|]; [fly|travel|go] from {a} to {b}[ on {d}|]; I [want|need] to [get|go|travel] from {a} to {b}[ on {d}|]
[distance|route|how_far|directions|path_between|travel_time|navigate] | a:place=from/start/a/point_a; b:place=to/end/b/point_b | [how long|how many miles] is it from {a} to {b}; [route|way|directions|path|distance] from {a} to {b}; [what is|tell me] the distance [between {a} and {b}|from {a} to {b}]; how do I get from {a} to {b}; {a} to {b}, how many kilometres
[translate|translation|to_language|translator] | t:phrase=text/sentence/words/source; l:language=language/to/lang/target | [translate|say|put|turn] "{t}" [in|into] {l}; how do you say "{t}" in {l}; "{t}" in {l}[ please|]; what is {t} in {l}; translate {t} into {l}; {l} for "{t}"
[stock|quote|share_price|stock_quote|stock_price|market_price|crypto_price] | c:code=symbol/stock/code/name | [what is|how much is|tell me|check] [the price of |the stock |shares of |]{c}[ today| now|]; [price|quote|stock price] [of|for] {c}; {c} [stock|price|shares][ please|]; how [are|is] {c} [shares|stock] today
[calendar|schedule|add_event|new_event|plan_meeting|schedule_meeting|add_meeting] | s:title=name/subject/event/what; d:date=day/when/on; w:people=people/guests/with/participants? | [plan|schedule|put|create] [a meeting|an appointment|an event] [named|called|titled] {s} on {d}[ with {w}|]; [schedule|plan] {s} on {d}[ with {w}|]; put {s} in my calendar on {d}[, with {w}|]; {s} on {d} with {w}; meeting {s}, {d}
[list_events|agenda|show_calendar|events_on] | d:date=day/date/when | what [is planned|do I have|happens] on {d}; show my [agenda|calendar|plans] for {d}; events on {d}
[user|find_user|user_info|load_user|customer|get_customer|find_customer|employee|get_employee|patient|get_order|order|find_order|get_invoice|invoice|fetch_document|get_product] | n:int=id/number/key/uid/no | [find|show|get|fetch|load|give me|open] [the |][user|customer|employee|patient|order|invoice|product|document|record][ number| with id| no.| #| id|] {n}; who is [user|customer|employee] {n}; [user|customer|order|invoice|product] {n}[ please|]; details of number {n}; look at number {n}
[erase|delete|delete_row|drop_entry|delete_entry|remove_item|erase_note|delete_user|cancel_order] | n:int=id/number/row/entry/no | [erase|delete|drop|cancel|get rid of|remove] [entry|row|number|item|note|user|order|no.|id] {n}; [entry|row|item|order|note] {n} [must go|can go|should be deleted]; take {n} out
[set_value|change_entry|update_row|edit_note|update|modify|rename] | n:int=id/number/row/entry; v:phrase=text/content/new_value/to | [change|update|set|edit|modify] [entry|row|number|item|note|id] {n} to {v}; [change|set|update] {n}[:| to] "{v}"; make [entry|row|note] {n} say {v}
[clock|time_in|local_time|world_clock|time_now|get_clock] | z:zone=zone/tz/place/where | [tell me|give me|show me] the time in {z}; time in {z}[ now|]; clock for {z}; how late is it in {z}
[today|date|get_date|what_day] | | what [day|date] is [it|today]; today's date; which day do we have
[ticket|open_ticket|new_issue|create_issue|file_bug|report_bug|issue|new_ticket] | s:title=summary/name/subject/text; l:level=severity/urgency/level/importance? | [open|create|file|report|write] [a|an] [{l} |][ticket|issue|bug] [called|named|about|saying|:] {s}; [new|there is a] [{l} |]bug: {s}; report "{s}"[ as {l}|]; [ticket|issue] "{s}", {l}; {l} issue: {s}
[task|new_task|add_task|todo|add_todo|remind|add_reminder|note|take_note|save_note] | s:phrase=text/content/item/what/title; d:date=due/when/date? | [add|put|note|remember] "{s}" [to my tasks|to the list|on my to-do list|][ for {d}|]; [new task|task|to do|note|reminder][:| -] {s}; remind me to {s}[ on {d}|]; I must not forget to {s}; write down that I [should|must] {s}
[bmi|body_index|health_index] | w:num=weight/kg/mass; h:num=height/size/metres | [bmi|body mass index] for {w} kg and {h} m; my weight is {w} kg, my height is {h} m; {w} kilos, {h} metres: what is my index; [work out|compute|get] the bmi of someone of {w} kg and {h} m
[loan|interest|mortgage|tip|calculate_tip|percentage] | n:num=amount/principal/total/bill; r:num=rate/percent/share | [what is|compute|calculate] {r} [percent|%] of {n}; {r} % [interest|tip] on {n}; [loan|bill] of {n} [at|with] {r} percent
[contact|save_contact|new_contact|store_number|add_person] | n:person=name/person/who; p:phone=number/phone/tel/mobile | [store|add|save|keep] the number of {n}[:|,] {p}; {n}'s [number|phone] is {p}, [save it|remember it]; new contact {n}[,|:] {p}; add {n} with {p}
[call|phone|dial|ring|make_call] | p:person=who/contact/person/name | [call|phone|ring|dial] {p}; [I want to|let me] [speak|talk] to {p}; get {p} on the phone
[query|sql|run_query|database_query|execute_sql|db] | q:query=sql/statement/text/q | [run|execute|do] [the query|this|the statement][:|] {q}; query the database: {q}; database: {q}; {q}
[shell|run_command|bash|terminal|exec] | c:thing=command/cmd/line | [run|execute] [the command |]`{c}`; in the shell: {c}; do "{c}" in the terminal
[read|read_document|load_file|open_file|get_file] | p:path=path/file/name/filename | [read|open|load|show] [the file |]{p}; what is in {p}
[save|save_file|store_file|create_file|write_text] | p:path=path/file/name/filename; t:phrase=text/content/data | [save|write|store] "{t}" [to|in|into] {p}; make {p} with "{t}"
[pizza|order_food|food|order_meal|restaurant_order|burger] | s:size=size/format; w:things=extras/with/ingredients/items | [I want|bring me|get me|order] a {s} [pizza|burger|salad|meal] with {w}; [one|a] {s} [one|pizza|burger|salad] with {w}; {s} meal, {w}
[buy|add_to_cart|cart|order_item|purchase|shop] | n:int=count/quantity/number/qty; i:thing=item/product/what/article | [buy|order|get] {n} {i}; [put|add] {n} {i} [in|to] [the|my] cart; I [need|want|take] {n} {i}
[shopping_list|add_items|groceries|buy_list] | w:things=items/articles/list/products | [put|add] {w} [on|to] [the|my] [shopping list|list]; we need {w}; buy {w}
[dice|throw_dice|roll|random_number] | n:int=faces/max/sides/upto? | [throw|roll] [a die|the dice|dice][ with {n} faces|]; [random number|a number] [up to {n}|please]; roll a {n}-sided die
[coin|toss|toss_coin|heads_or_tails] | | [toss|throw] [the|a] coin; heads or tails
[joke|random_joke|quote_of_the_day|random_fact] | | [a random|give me a random|random] [joke|quote|fact]; quote of the day; fact please
[battery|battery_level|status|get_status|ping|uptime|version] | | [what is|show|tell me] the [battery level|status|version|uptime]; [status|version|battery|uptime] please; ping; are you up
[define|dictionary|meaning|definition|synonyms] | w:thing=word/term/expression | [define|explain] [the word |]{w}; what [does {w} mean|is the meaning of {w}]; [synonyms|definition] [of|for] {w}
[capital|country_info|population|country] | c:place=country/name/nation/state | [capital|population|flag] of {c}; how many people live in {c}; tell me about the country {c}
[movie|movie_info|film|book_info|find_book|recipe|find_recipe] | t:title=title/name/what | [who made|when was|tell me about|find] the [film|movie|book|recipe] {t}; [film|book|movie|recipe]: {t}; [info|details] on {t}
[move|drive|robot|walk|turn] | n:int=distance/steps/metres/value; d:state=direction/mode/state? | [move|drive|go|walk] {n} [steps|metres|meters]; {n} [steps|metres] forward
[log|log_hours|track|track_time|log_work] | n:num=hours/time/duration; p:thing=project/task/on | [log|track|book] {n} hours [on|for] {p}; I worked {n} hours on {p}; {n} hours {p}
[pay|transfer|send_money|payment|wire] | n:num=amount/sum/value; p:person=to/recipient/payee | [pay|send|wire|transfer] {n} [dollars|euros|] to {p}; {p} gets {n} [dollars|euros] from me; give {p} {n} dollars; transfer {n} to {p}
[set_status|set_state|mark|change_state] | n:int=id/number/item; s:state=state/status/to | [mark|set] [item|number|task|] {n} [as|to] {s}; {n} is {s} now; [task|item] {n}: {s}
[resize|resize_image|thumbnail|crop] | p:path=file/path/image; w:int=width/w/x; h:int=height/h/y | [resize|scale|crop] {p} to {w} [x|by] {h}; make {p} {w} wide and {h} high
"""
_KINDS_ZH = """
[forecast|weather|weather_forecast|current_weather|weather_lookup|temperature|查天气] | p:place=city/town/location/place/城市; d:date=day/date? | {p}[明天|后天|今天|]天气如何; {p}[热不热|冷不冷|下雨吗|会下雪吗|多少度]; 查[一下|]{p}的天气; [想知道|告诉我]{p}的[天气|气温]; {p}的[天气|气温|温度]
[text|chat|send_text|notify|sms|post_message|dm|发短信] | t:person=to/user/contact/receiver/name; b:phrase=message/body/content/msg | [告诉|通知|转告]{t}[：|，|]{b}; [发短信|发信息|发微信|发一条消息][给|到]{t}[，内容是|：|，说]{b}; 跟{t}说{b}; [给|向]{t}[发短信|发个信息|留言|发微信][：|，说|]{b}
[mail|write_mail|email|compose_email|mail_send|写邮件] | t:mail=recipient/address/receiver; s:phrase=subject/title; b:phrase=body/message/content/text | [写|发][一封|]邮件[给|到]{t}，[主题|标题][是|：|]{s}，[内容|正文][是|：|]{b}; 给{t}[写|发][一封|]邮件，主题{s}，内容{b}
[alarm|wake_me|new_alarm|add_alarm|闹钟] | t:time=at/when/hour/clock | [定|设|加|来]一个{t}的闹钟; {t}[提醒我|喊我|叫醒我]; 闹钟{t}; 明天{t}[叫醒我|我要起来]
[timer|start_timer|countdown|计时] | n:int=seconds/duration/time/minutes | [倒计时|计时|定时]{n}[分钟|秒]; {n}分钟后[提醒我|叫我]; 开始一个{n}分钟的计时
[search|lookup|web_search|find_pages|搜索] | q:thing=query/text/keywords/q/term | [搜|查|搜索|查找|上网查][一下|]{q}; 找[找|]关于{q}的[资料|新闻|网页]; 网上有没有{q}
[translate|translation|translator|翻译] | t:phrase=text/sentence/words; l:language=language/to/lang/target | [把|将]“{t}”[翻译成|译成|翻成]{l}; “{t}”用{l}怎么说; {l}的“{t}”怎么说
[play|play_music|start_song|播放] | s:phrase=song/track/name/歌名 | [播放|放|来一首|听|想听]{s}; 放一下{s}这首歌; 我想听歌：{s}
[sum|plus|sum_numbers|加法] | x:int=x/first/left/n1/a; y:int=y/second/right/n2/b | [用工具|]算{x}加{y}; {x}加{y}; {x}与{y}的和
[product|times|mul|乘法] | x:int=x/first/left/n1/a; y:int=y/second/right/n2/b | [用工具|]算{x}乘{y}; {x}乘以{y}; {x}与{y}的积
[distance|route|how_far|directions|路线] | a:place=from/start/a; b:place=to/end/b | 从{a}到{b}[有多远|怎么走|多少公里|要多久]; {a}[离|到]{b}的[距离|路线]
[task|new_task|add_todo|remind|note|take_note|记事] | s:phrase=text/content/item/what | [记下|记一下|备忘|待办|提醒我][：|，|]{s}; 别忘了{s}; 把“{s}”[加到待办|记下来]
[user|find_user|user_info|get_order|find_order|invoice|查订单] | n:int=id/number/key/no | [查|找|看|打开][一下|][用户|订单|发票|编号]{n}; {n}号[用户|订单|发票]; [用户|订单]{n}的信息
[erase|delete|delete_row|delete_entry|remove_item|删除] | n:int=id/number/row/entry | [删除|删掉|去掉|取消][记录|条目|订单|编号]{n}; 把{n}号[删了|去掉|取消]
[buy|add_to_cart|purchase|购买] | n:int=count/quantity/number; i:thing=item/product/what | [买|要|来|订]{n}[个|件|份]{i}; [把|]{n}[个|件]{i}[放进|加到]购物车
[call|phone|dial|打电话] | p:person=who/contact/person/name | [打电话给|呼叫|拨打给]{p}; [给|帮我给]{p}打[个|]电话; 我要和{p}通话
[book_flight|flights|train|订票] | a:place=from/start/departure; b:place=to/end/arrival; d:date=date/day? | [订|买|查]{a}到{b}的[票|车票|机票|航班]; [我要|]从{a}[飞|去|坐车到]{b}
[lamp_on|light_on|switch_on|开灯] | r:place=area/place/where/room | [打开|开]{r}的灯; {r}开灯
[lamp_off|light_off|switch_off|关灯] | r:place=area/place/where/room | [关掉|关上|熄灭]{r}的灯; {r}关灯
[stock|quote|share_price|股价] | c:code=symbol/stock/code | {c}[股价|的价格|多少钱|涨了吗]; 查[一下|]{c}的股价
"""


@dataclass(frozen=True)
class Kind:
    """One line of the list: alternatives of names, the parameters by their slots, the wordings."""

    names: str
    slots: dict[str, tuple[str, list[str], bool]]
    wordings: list[str]


def _read(text: str) -> list[Kind]:
    kinds = []
    for line in text.strip().split("\n"):
        names, parameters, wordings = _columns(line)
        slots = {}
        for one in filter(None, map(str.strip, parameters.split(";"))):
            slot, _, rest = one.partition(":")
            kind, _, called = rest.partition("=")
            slots[slot] = (kind, called.rstrip("?").split("/"), called.endswith("?"))
        kinds.append(Kind(names, slots, [each.strip() for each in wordings.split(";")]))
    return kinds


def _columns(line: str) -> list[str]:
    """The three columns of a line: bars in brackets are alternatives."""
    columns, depth = [""], 0
    for char in line:
        depth += (char == "[") - (char == "]")
        if char == "|" and depth == 0 and len(columns) < 3:
            columns.append("")
        else:
            columns[-1] += char
    return [column.strip() for column in columns]


ENGLISH, CHINESE = _read(_KINDS), _read(_KINDS_ZH)


@dataclass
class Use:
    """A tool, what is asked of it in which language, and the arguments that this means."""

    tool: Tool
    request: str
    arguments: dict[str, Any]
    spoken: str


_TEXTS = ("phrase", "title", "thing", "query", "path")


def _shown(cast: Cast, value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    if len(value) < 2:
        return str(value[0])
    if cast.language == "zh":
        return str(cast.rng.choice(("、", "和", "，")).join(value))
    joint = cast.rng.choice((" and ", ", ", ", and ", " & "))
    return f"{', '.join(value[:-1])}{joint}{value[-1]}"


def _named(rng: Random, kind: Kind) -> str:
    """A tool's name; none of those that the examination has."""
    while (called := _styled(rng, vary(rng, kind.names))) in examined_tools():
        pass
    return called


def _styled(rng: Random, called: str) -> str:
    """A name as programs write names."""
    if rng.random() < 0.25:
        called = vary(rng, "[get|do|make|run|my|tool|api|call|user|app|home|new|the|v2]_") + called
    if rng.random() < 0.12:
        first, *rest = called.split("_")
        called = first + "".join(part.capitalize() for part in rest)
    return called


def _tool_of(cast: Cast, kind: Kind) -> tuple[Tool, dict[str, str]]:
    rng = cast.rng
    slots = {slot: rng.choice(called) for slot, (_, called, _) in kind.slots.items()}
    if len(set(slots.values())) < len(slots):
        slots = {slot: called[0] for slot, (_, called, _) in kind.slots.items()}
    names = list(slots.values())
    if rng.random() < 0.2:
        rng.shuffle(names)
    return Tool(_named(rng, kind), dict.fromkeys(names, "string")), slots


def listed_kind(cast: Cast) -> Use:
    """A use of a tool of the list."""
    rng = cast.rng
    kind = rng.choice(CHINESE if cast.language == "zh" and rng.random() < 0.85 else ENGLISH)
    cast = Cast(rng, "zh" if kind in CHINESE else "en")
    tool, slots = _tool_of(cast, kind)
    for _ in range(20):
        asked = vary(rng, rng.choice(kind.wordings))
        if is_examined(asked):
            continue
        said = {slot for slot in slots if f"{{{slot}}}" in asked}
        if all(slot in said or optional for slot, (_, _, optional) in kind.slots.items()):
            break
    values = {slot: KINDS[kind.slots[slot][0]](cast) for slot in said}
    asked = worded(cast, asked)
    for slot, value in values.items():
        quoted = kind.slots[slot][0] in _TEXTS and f'"{{{slot}}}"' not in asked and rng.random() < 0.2
        asked = asked.replace(f"{{{slot}}}", f'"{value}"' if quoted else _shown(cast, value))
    by_name = {called: slot for slot, called in slots.items()}
    arguments = {called: values[by_name[called]] for called in tool.parameters if by_name[called] in values}
    return Use(tool, asked, arguments, cast.language)


def worded(cast: Cast, pattern: str) -> str:
    """A request as somebody might type it; never one of the examination's."""
    while True:
        text = pattern
        if cast.rng.random() < 0.4 or is_examined(text):
            text = polite(cast.rng, text, cast.language)
        if cast.rng.random() < 0.15:
            text += cast.say(" Use the tool.", "，请用工具。")
        text = typed(cast.rng, text, cast.language)
        if cast.rng.random() < 0.5:
            text = text[:1].upper() + text[1:]
        if not is_examined(text):
            return text


_VERBS = "get set find make send open close show add remove start stop check fetch create delete update list count sort move copy load save plan scan print build test share lock unlock rate vote follow archive publish merge assign approve reject book rent sell buy hire".split()  # noqa: SIM905
_CUES = {
    "to": (["to", "target", "recipient", "destination", "goal"], ["place", "person", "thing"]),
    "from": (["from", "source", "origin", "sender"], ["place", "person", "thing"]),
    "for": (["for_whom", "customer", "owner", "client"], ["person", "thing"]),
    "in": (["location", "room", "city", "folder", "area"], ["place", "thing"]),
    "at": (["time", "hour", "when"], ["time"]),
    "on": (["date", "day", "due"], ["date"]),
    "with": (["partner", "helper", "colleague"], ["person", "thing"]),
    "called": (["name", "title", "label"], ["title", "thing"]),
    "about": (["topic", "subject", "theme"], ["thing", "title"]),
    "by": (["author", "artist", "deadline"], ["person"]),
    "of size": (["size", "width", "amount"], ["int"]),
    "number": (["number", "id", "index"], ["int"]),
    "as": (["role", "format", "kind"], ["thing", "code"]),
}


_LINKS = (
    " with {0} {1}", ", {0} {1}", ", {0}: {1}", ", {0}={1}", " and {0} {1}", ", the {0} is {1}", '; {0}: "{1}"',
)  # fmt: skip


def made_up_kind(cast: Cast) -> Use:
    """A use of a tool that nobody has heard of: verb, noun, and parameters that the request names in some way."""
    rng = cast.rng
    verb, noun = rng.choice(_VERBS), words.word(rng)
    arguments: dict[str, Any] = {}
    asked = f"{verb} {rng.choice(('the ', 'a ', '', 'my ', 'that '))}{noun}"
    by_name = rng.random() < 0.5
    for cue in rng.sample(list(_CUES), rng.choice((0, 1, 1, 2, 2, 3))):
        names, kinds = _CUES[cue]
        called = words.word(rng) if by_name and rng.random() < 0.6 else rng.choice(names)
        if called in arguments:
            continue
        slot = f"{{v{len(arguments)}}}"
        if by_name:  # the request says the parameter's own name
            kinds = ["int", "thing", "title", "code", "num", "person", "place", "phrase"]
            asked += rng.choice(_LINKS).format(called, slot)
        else:
            asked += f" {cue} {slot}"
        arguments[called] = KINDS[rng.choice(kinds)](cast)
    parameters = dict.fromkeys(arguments, "string")
    for _ in range(rng.choice((0, 0, 1))):  # what was not said
        parameters.setdefault(rng.choice(("limit", "verbose", "page", "format", words.word(rng))), "string")
    called = rng.choice((f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}_{noun}", noun, f"{verb}{noun.capitalize()}"))
    request = typed(rng, asked if rng.random() < 0.6 else polite(rng, asked, "en"), "en")
    for number, value in enumerate(arguments.values()):
        request = request.replace(f"{{v{number}}}", str(value))
    return Use(Tool(called, parameters), request, arguments, "en")


def use_of(cast: Cast) -> Use:
    """A use of any tool."""
    return made_up_kind(cast) if cast.rng.random() < 0.3 else listed_kind(cast)


# -- dialogues --------------------------------------------------------------------------------------------------------


def _marked(text: str) -> str:
    return f"{QUIET}{text}{LOUD}"


def _nested(cast: Cast, use: Use) -> None:
    """Now and then the arguments are one object, as those who pass a model to a tool have it: its keys are forced."""
    if len(use.arguments) < 2 or cast.rng.random() > 0.1 or len(use.arguments) < len(use.tool.parameters):
        return
    called = cast.rng.choice(
        ("data", "request", "item", "entry", "person", "payload", "info", "order", words.word(cast.rng))
    )
    use.arguments = {called: {_marked(name): value for name, value in use.arguments.items()}}
    use.tool = Tool(use.tool.name, {called: "object"})


def _completed(cast: Cast, use: Use) -> None:
    """What was not said: left out, or null, or any value where the schema wants one."""
    for called in use.tool.parameters:
        if called not in use.arguments and cast.rng.random() < 0.3:
            value: Any = None
            if cast.rng.random() < 0.4:
                value = _marked(cast.rng.choice(("auto", "default", "none", words.word(cast.rng))))
            use.arguments[called] = value
    use.arguments = {called: use.arguments[called] for called in use.tool.parameters if called in use.arguments}


def open_use(cast: Cast, others: int | None = None) -> tuple[Exchange, list[Tool]]:
    """A request to one of some tools, the call, the result and an answer that passes it on."""
    rng = cast.rng
    use = use_of(cast)
    cast = Cast(rng, use.spoken)
    _nested(cast, use)
    _completed(cast, use)
    tools = {use.tool.name: use.tool}
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3, 4)) if others is None else others):
        other = use_of(cast).tool
        tools.setdefault(other.name, other)
    listed = list(tools.values())
    rng.shuffle(listed)
    call = ToolCall(use.tool.name, use.arguments)
    if rng.random() < 0.12:  # as with `tool_choice` required: the bare object, of which the beginning is forced
        forced = f'{QUIET}{{"name": "{LOUD}'
        return [Message("user", use.request), Message("assistant", forced + call.render_bare()[10:])], listed
    if rng.random() < 0.45:
        return [Message("user", use.request), Message("assistant", "", call)], listed
    result = rng.choice(
        (
            _phrase(cast),
            str(_decimal(cast)),
            f"{_number(cast)} {words.word(rng)}",
            "OK",
            json.dumps({words.word(rng): _number(cast)}),
        )
    )
    answer = cast.say(f"The result is: {result}", f"结果是：{result}")
    if result == "OK":
        answer = cast.say("It is done.", "已经完成。")
    plain = ToolCall(call.name, json.loads(call.arguments_json().replace(QUIET, "").replace(LOUD, "")))
    exchange = [
        Message("user", use.request),
        Message("assistant", "", plain),
        Message("tool", result),
        Message("assistant", answer),
    ]
    return exchange, listed


def unfit_use(cast: Cast) -> tuple[Exchange, list[Tool]]:
    """A request that none of the tools is for."""
    use = use_of(cast)
    tools = [use_of(cast).tool for _ in range(cast.rng.choice((1, 2)))]
    refusal = Cast(cast.rng, use.spoken).say("I have no tool for that.", "我没有可用的工具来做这件事。")
    return [Message("user", use.request), Message("assistant", refusal)], tools
