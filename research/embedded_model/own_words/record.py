"""Record what openai, langchain and pydantic-ai send for tools and structured output, as `requests.json`.

    pip install openai langchain-openai pydantic-ai-slim[openai]
    python record.py

Each case is written as a user of the client writes it: functions with type hints and docstrings, or pydantic models.
The client makes the schema and the request. The examination sends the request again, so it needs none of the clients.
"""

# mypy: ignore-errors
# ruff: noqa: E501 - one case a line

import asyncio
import inspect
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field, create_model
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

# -- the functions ----------------------------------------------------------------------------------------------------


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius"):
    """Get the current weather for a city."""


def send_email(to: str, subject: str, body: str):
    """Send an email to someone."""


def add(a: int, b: int):
    """Add two integers."""


def multiply(a: int, b: int):
    """Multiply two integers."""


def search_web(query: str, max_results: int = 5):
    """Search the web and return the top results."""


def open_url(url: str):
    """Open a web page."""


def convert_currency(amount: float, from_currency: str, to_currency: str):
    """Convert money from one currency to another."""


def set_timer(minutes: int, label: str | None = None):
    """Start a countdown."""


def play_song(title: str, artist: str | None = None):
    """Play a song on the speaker."""


def pause_music():
    """Pause whatever is playing."""


def turn_on_light(room: Literal["kitchen", "bedroom", "office"]):
    """Turn the light on in a room."""


def turn_off_light(room: Literal["kitchen", "bedroom", "office"]):
    """Turn the light off in a room."""


def book_table(restaurant: str, people: int, time: str):
    """Reserve a table at a restaurant."""


def translate_text(text: str, target_language: str):
    """Translate a text."""


def get_stock_price(ticker: str):
    """Return the latest price of a stock."""


def create_event(title: str, date: str, attendees: list[str]):
    """Add an event to the calendar."""


def get_user(user_id: int):
    """Fetch a user from the database."""


def delete_record(record_id: int):
    """Delete a record."""


def update_record(record_id: int, value: str):
    """Change the value of a record."""


def current_time(timezone: str):
    """Tell the current time in a time zone."""


def create_ticket(title: str, priority: Literal["low", "medium", "high"] = "medium"):
    """Open a support ticket."""


def calculate_bmi(weight_kg: float, height_m: float):
    """Compute the body mass index."""


class Contact(BaseModel):
    name: str
    phone: str


def add_contact(contact: Contact):
    """Save a contact in the address book."""


def run_sql(query: str):
    """Run a read-only SQL query."""


def get_distance(origin: str, destination: str):
    """Distance between two places in kilometres."""


def send_message(recipient: str, text: str):
    """Send a chat message."""


def set_alarm(time: str):
    """Set an alarm clock."""


def order_pizza(size: Literal["small", "medium", "large"], toppings: list[str]):
    """Order a pizza for delivery."""


def roll_dice(sides: int = 6):
    """Roll a die."""


def flip_coin():
    """Flip a coin."""


# -- the models -------------------------------------------------------------------------------------------------------


class Person(BaseModel):
    name: str
    age: int


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


class Review(BaseModel):
    """The feeling of a review."""

    sentiment: Literal["positive", "negative", "neutral"]


class Address(BaseModel):
    street: str
    city: str
    postcode: str


class Product(BaseModel):
    name: str
    price: float = Field(description="in dollars")
    in_stock: bool


class City(BaseModel):
    city: str
    country: str


class ShoppingList(BaseModel):
    items: list[str]


class Stay(BaseModel):
    guest: str
    nights: int


class Flight(BaseModel):
    number: str
    origin: str
    destination: str


class Car(BaseModel):
    make: str
    model: str
    year: int


class Book(BaseModel):
    title: str
    author: str


CLIENTS = ("openai", "langchain", "pydantic-ai")

# The tools, what is asked, the tool that is right and its arguments; "~" before a text: it is contained.
TOOLS = [
    ([get_weather], "What's the weather like in Lisbon?", "get_weather", {"city": "Lisbon"}),
    ([send_email], "Email bob@example.com with the subject Lunch and the body See you at noon", "send_email", {"to": "bob@example.com", "subject": "Lunch", "body": "See you at noon"}),
    ([add, multiply], "12 times 7, please use the tool", "multiply", {"a": 12, "b": 7}),
    ([search_web, open_url], "Search the web for electric bicycles", "search_web", {"query": "~electric bicycles"}),
    ([convert_currency], "Convert 250 USD to EUR", "convert_currency", {"amount": 250, "from_currency": "USD", "to_currency": "EUR"}),
    ([set_timer], "Set a timer for 15 minutes", "set_timer", {"minutes": 15}),
    ([play_song, pause_music], "Play Yesterday by The Beatles", "play_song", {"title": "Yesterday", "artist": "~Beatles"}),
    ([turn_on_light, turn_off_light], "switch off the light in the bedroom", "turn_off_light", {"room": "bedroom"}),
    ([book_table], "Book a table for 4 at Luigi's at 19:30", "book_table", {"restaurant": "Luigi's", "people": 4, "time": "19:30"}),
    ([translate_text], 'Translate "good night" to French', "translate_text", {"text": "good night", "target_language": "French"}),
    ([get_stock_price, get_weather], "How is AAPL doing?", "get_stock_price", {"ticker": "AAPL"}),
    ([create_event], "Add an event called Standup on 2025-03-14 with Ana and Raj", "create_event", {"title": "Standup", "date": "2025-03-14", "attendees": ["Ana", "Raj"]}),
    ([get_user], "look up user 8841", "get_user", {"user_id": 8841}),
    ([delete_record, update_record], "remove record 57", "delete_record", {"record_id": 57}),
    ([play_song, pause_music], "pause the music for a moment", "pause_music", {}),
    ([current_time], "what time is it in Asia/Tokyo", "current_time", {"timezone": "Asia/Tokyo"}),
    ([create_ticket], 'Open a high priority ticket titled "Printer on fire"', "create_ticket", {"title": "Printer on fire", "priority": "high"}),
    ([calculate_bmi], "I weigh 70 kg and am 1.75 m tall, what's my BMI?", "calculate_bmi", {"weight_kg": 70, "height_m": 1.75}),
    ([add_contact], "Save a contact: Mira Patel, 555-0192", "add_contact", {"contact": {"name": "Mira Patel", "phone": "555-0192"}}),
    ([run_sql], "I'd like this SQL executed: SELECT name FROM users", "run_sql", {"query": "SELECT name FROM users"}),
    ([get_distance], "How far is it from Berlin to Prague?", "get_distance", {"origin": "Berlin", "destination": "Prague"}),
    ([get_weather, get_user], "北京今天天气怎么样？", "get_weather", {"city": "北京"}),
    ([send_message], "给小李发消息：晚上一起吃饭", "send_message", {"recipient": "小李", "text": "晚上一起吃饭"}),
    ([set_alarm], "早上 6:45 叫我起床", "set_alarm", {"time": "~6:45"}),
    ([order_pizza], "large pizza with mushrooms and olives please", "order_pizza", {"size": "large", "toppings": ["mushrooms", "olives"]}),
    ([roll_dice, flip_coin], "flip a coin", "flip_coin", {}),
    ([get_weather], "Is it warm in Nairobi right now? Call the tool.", "get_weather", {"city": "Nairobi"}),
]  # fmt: skip
STRUCTURED = [
    (Person, "Extract: Hannah is 34 years old.", {"name": "Hannah", "age": 34}),
    (CalendarEvent, "Alice and Bob are going to a science fair on Friday.", {"name": "~science fair", "date": "Friday", "participants": ["Alice", "Bob"]}),
    (Review, "I absolutely loved this film!", {"sentiment": "positive"}),
    (Address, "I live at 12 Baker Street, London, NW1 6XE", {"street": "12 Baker Street", "city": "London", "postcode": "NW1 6XE"}),
    (Product, "The Acme Lamp costs 19.99 and is in stock.", {"name": "~Acme Lamp", "price": 19.99, "in_stock": True}),
    (City, "Tokyo is in Japan", {"city": "Tokyo", "country": "Japan"}),
    (ShoppingList, "My shopping list: eggs, flour, butter", {"items": ["eggs", "flour", "butter"]}),
    (Stay, "Mr. Tanaka stays for 3 nights", {"guest": "~Tanaka", "nights": 3}),
    (Person, "张伟今年28岁", {"name": "张伟", "age": 28}),
    (Flight, "Flight LH441 goes from Houston to Frankfurt", {"number": "LH441", "origin": "Houston", "destination": "Frankfurt"}),
    (Car, "She drives a 2018 Toyota Corolla", {"make": "Toyota", "model": "Corolla", "year": 2018}),
    (Book, "《三体》的作者是刘慈欣", {"title": "~三体", "author": "刘慈欣"}),
]  # fmt: skip

BODIES = []


class Recorder(BaseHTTPRequestHandler):
    """Keeps a request's body and refuses the request."""

    def do_POST(self):
        BODIES.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = b'{"error": {"message": "recorded"}}'
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Print nothing."""


def _arguments_model(function):
    fields = {
        name: (each.annotation, ... if each.default is each.empty else each.default)
        for name, each in inspect.signature(function).parameters.items()
    }
    return create_model(function.__name__, __doc__=inspect.getdoc(function), **fields)


def ask_openai(url, text, functions=(), model=None):
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": text}]
    if model:
        client.chat.completions.parse(model="cfs", messages=messages, response_format=model)
    tools = []
    for function in functions:
        # Not strict: a strict schema makes every argument required, which the library refuses for defaults.
        made = pydantic_function_tool(_arguments_model(function), name=function.__name__)
        made["function"].pop("strict", None)
        tools.append(made)
    client.chat.completions.create(model="cfs", messages=messages, tools=tools)


def ask_langchain(url, text, functions=(), model=None):
    chat = ChatOpenAI(base_url=url, api_key="none", model="cfs", max_retries=0)
    if model:
        chat.with_structured_output(model).invoke(text)
    chat.bind_tools([tool(function) for function in functions]).invoke(text)


def ask_pydantic_ai(url, text, functions=(), model=None):
    chat = OpenAIChatModel("cfs", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(chat, tools=list(functions), output_type=model or str, retries=0)
    asyncio.run(agent.run(text))


ASK = {"openai": ask_openai, "langchain": ask_langchain, "pydantic-ai": ask_pydantic_ai}


def record(url, client, text, **what):
    BODIES.clear()
    try:
        ASK[client](url, text, **what)
    except Exception as error:
        if not BODIES:
            raise RuntimeError(f"{client} sent nothing") from error
    keep = ("messages", "tools", "tool_choice", "response_format")
    return {key: BODIES[0][key] for key in keep if key in BODIES[0]}


def main():
    server = HTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    found = []
    for number, (functions, text, name, arguments) in enumerate(TOOLS):
        client = CLIENTS[number % 3]
        body = record(url, client, text, functions=functions)
        found.append({"kind": "tools", "client": client, "body": body, "name": name, "arguments": arguments})
    for number, (model, text, value) in enumerate(STRUCTURED):
        client = CLIENTS[number % 3]
        body = record(url, client, text, model=model)
        found.append({"kind": "structured", "client": client, "body": body, "arguments": value})
    text = json.dumps(found, ensure_ascii=False, indent=1)
    Path(__file__).with_name("requests.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
