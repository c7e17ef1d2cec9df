"""Training families about money: cart, bank, shipping, parking, payroll."""

FAMILIES = (
    """
name: cart
about: Prices of a shopping cart.
packages: shop store
modules: cart price bill order basket
constants: LIMIT 20 50 100; RATE 5 10 20; GIFT 2 3 5

## subtotal price_sum sum_up | some(tup(i(1, 9), i(1, 5)), 0, 3)
def subtotal(items):
    total = 0
    for price, count in items:
        total += price * count
    return total

def subtotal(items):
    return sum([price * count for price, count in items])

## discount reduce cut | near("LIMIT", 9)
def discount(amount):
    if amount >= LIMIT:
        return amount * RATE // 100
    return 0

## to_pay due final | near("LIMIT", 9)
def to_pay(amount):
    return amount - discount(amount)

def to_pay(amount):
    off = discount(amount)
    if off > amount:
        return 0
    return amount - off

## cheapest lowest min_price | li(1, 30, 0, 4)
def cheapest(prices):
    if not prices:
        return 0
    return min(prices)

def cheapest(prices):
    best = 0
    for price in prices:
        if best == 0 or price < best:
            best = price
    return best

## free_items gifts bonus | i(0, 12)
def free_items(count):
    return count // GIFT

def free_items(count):
    if count < GIFT:
        return 0
    return count // GIFT

## add_tax with_tax taxed | i(10, 99), one(5, 10, 20)
def add_tax(amount, rate=RATE):
    return amount + amount * rate // 100

def add_tax(amount, rate=RATE):
    tax = amount * rate // 100
    return amount + tax

## split_bill share per_head | i(1, 60), i(0, 5)
def split_bill(amount, people):
    if people <= 0:
        return amount
    return amount // people

## expensive costly big_ones | li(1, 30, 0, 4), i(5, 25)
def expensive(prices, limit):
    return [price for price in prices if price > limit]

def expensive(prices, limit):
    out = []
    for price in prices:
        if price > limit:
            out.append(price)
    return out
""",
)
