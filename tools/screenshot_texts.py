"""What the sessions in the pictures of the dashboard say: replies of the model, and files of a small shop."""

MARKDOWN = """Use a **queue** between the two tasks. A queue has three advantages here:

1. The reader never waits for the writer.
2. `maxsize` limits the memory: a fast writer waits.
3. The end is a value like any other.

```python
import asyncio

async def produce(queue: asyncio.Queue[int | None]) -> None:
    for number in range(10):
        await queue.put(number)      # waits while the queue is full
    await queue.put(None)            # the end

async def consume(queue: asyncio.Queue[int | None]) -> int:
    total = 0
    while (number := await queue.get()) is not None:
        total += number
    return total
```

| | list | queue |
|---|---|---|
| order | yes | yes |
| limit | no | `maxsize` |
| waits | no | ~~busy~~ yes |

> `asyncio.Queue` belongs to one event loop. Between threads use `queue.Queue`.
"""
REPLIES = {
    "How do two asyncio tasks share numbers?": MARKDOWN,
    "What is a lighthouse?": "A lighthouse is a tower with a bright light. It shows ships where the coast is.",
    "And who keeps it?": "A keeper lived there and lit the lamp each evening. Today most lamps are electric.",
    "And how bright is it?": "A strong lamp with a Fresnel lens can be seen from about 30 kilometres away.",
    "灯塔是什么？": "灯塔是一座带有强光的高塔。它在夜里为船只指明海岸的位置，帮助它们安全航行。",
    "Plan a weekend in Lisbon": "**Saturday**: Alfama and the castle.\n\n**Sunday**: Belém and its tower.",
    "Explain the CAP theorem": "A store cannot be consistent, available and tolerant of partitions at once.",
    "Name three uses of a queue": "- work for background tasks\n- a limit on memory\n- an order among writers",
}

CART = '''"""The cart of a customer."""

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass
class Line:
    """So many pieces of a product."""

    product: str
    price: Decimal
    count: int = 1

    @property
    def total(self) -> Decimal:
        return self.price * self.count


@dataclass
class Cart:
    """What a customer wants to buy."""

    lines: list[Line] = field(default_factory=list)

    def add(self, product: str, price: Decimal, count: int = 1) -> None:
        """Add a product, or more of one that is there."""
        self.lines.append(Line(product, price, count))

    def total(self) -> Decimal:
        return sum(line.total for line in self.lines)
'''
ADD = "        self.lines.append(Line(product, price, count))\n"
ADD_AGAIN = """        for line in self.lines:
            if line.product == product:
                line.count += count
                return
        self.lines.append(Line(product, price, count))
"""
SUM = "        return sum(line.total for line in self.lines)\n"
SUM_AGAIN = '        return sum((line.total for line in self.lines), Decimal("0.00"))\n'
TESTS = """from decimal import Decimal

from shop.cart import Cart


def test_the_same_product_is_one_line() -> None:
    cart = Cart()
    cart.add("tea", Decimal("3.50"))
    cart.add("tea", Decimal("3.50"), 2)
    assert [line.count for line in cart.lines] == [3]


def test_an_empty_cart_costs_nothing() -> None:
    assert Cart().total() == Decimal("0.00")
"""
PAGE = """# Shop

A cart and a till, in two modules.

```python
from shop.cart import Cart

cart = Cart()
cart.add("tea", Decimal("3.50"))
```
"""
TILL = '''"""The till: what a cart costs with taxes."""

from decimal import Decimal

from shop.cart import Cart

RATE = Decimal("0.19")


def bill(cart: Cart) -> Decimal:
    """Return the price with taxes, in whole cents."""
    return (cart.total() * (1 + RATE)).quantize(Decimal("0.01"))
'''
