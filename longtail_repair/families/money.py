"""Training families about money: cart, bank, shipping, parking, payroll."""

FAMILIES = (
    """
name: cart
about: Prices of a shopping cart.
packages: shop store
modules: cart price bill order basket total
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
    """
name: bank
about: Accounts and interest.
packages: bank vault
modules: account interest loan ledger teller fees
constants: FEE 1 2 5; FLOOR 0 10 100; STEP 4 10 12

## deposit put_in pay_in | i(0, 60), i(-5, 40)
def deposit(balance, amount):
    if amount <= 0:
        return balance
    return balance + amount

## withdraw take_out draw | i(0, 60), near("FLOOR", 40)
def withdraw(balance, amount):
    if balance - amount < FLOOR:
        return balance
    return balance - amount

def withdraw(balance, amount):
    left = balance - amount
    if left >= FLOOR:
        return left
    return balance

## interest earn growth | i(50, 400), one(2, 5, 10)
def interest(balance, rate=STEP):
    return balance * rate // 100

## after_years grow compound | i(100, 500), i(0, 3)
def after_years(balance, years):
    for _ in range(years):
        balance += balance * STEP // 100
    return balance

## transfer move send | i(0, 50), i(0, 50), i(0, 40)
def transfer(source, target, amount):
    if amount + FEE > source:
        return (source, target)
    return (source - amount - FEE, target + amount)

## overdrawn in_debt negative | li(-20, 40, 0, 5)
def overdrawn(balances):
    return [b for b in balances if b < 0]

def overdrawn(balances):
    out = []
    for balance in balances:
        if balance < 0:
            out.append(balance)
    return out

## running history steps | li(-9, 20, 0, 4)
def running(amounts):
    total = 0
    out = []
    for amount in amounts:
        total += amount
        out.append(total)
    return out

## months_to_pay payoff term | i(1, 90), i(1, 20)
def months_to_pay(debt, payment):
    months = 0
    while debt > 0:
        debt -= payment
        months += 1
    return months

def months_to_pay(debt, payment):
    return (debt + payment - 1) // payment

## highest richest max_balance | li(-9, 50, 0, 5)
def highest(balances):
    if len(balances) == 0:
        return 0
    return max(balances)
""",
    """
name: shipping
about: What sending a parcel costs.
packages: post parcel
modules: weight zone rates box route label
constants: LIGHT 2 5 10; BASE 3 4 6; EXTRA 1 2; FREE 50 80 100

## zone_fee zone_cost far_fee | i(0, 5)
def zone_fee(zone):
    if zone == 0:
        return 0
    return BASE + zone * EXTRA

## weight_fee load_fee heavy_fee | up("LIGHT", 8)
def weight_fee(weight):
    if weight <= LIGHT:
        return BASE
    return BASE + (weight - LIGHT) * EXTRA

def weight_fee(weight):
    over = weight - LIGHT
    if over < 0:
        over = 0
    return BASE + over * EXTRA

## postage full_cost send_cost | up("LIGHT", 8), i(0, 4)
def postage(weight, zone):
    return weight_fee(weight) + zone_fee(zone)

## is_free no_charge free_post | near("FREE", 9)
def is_free(amount):
    return amount >= FREE

## volume space size_of | i(1, 6), i(1, 6), i(1, 6)
def volume(width, height, depth):
    return width * height * depth

## fits goes_in fits_in | i(1, 6), i(1, 6), i(1, 6), i(1, 6)
def fits(width, height, box_width, box_height):
    return width <= box_width and height <= box_height

## boxes_needed box_count packs | i(0, 30), i(1, 6)
def boxes_needed(count, per_box):
    boxes = count // per_box
    if count % per_box > 0:
        boxes += 1
    return boxes

def boxes_needed(count, per_box):
    return (count + per_box - 1) // per_box

## total_weight load mass | some(tup(i(1, 9), i(0, 4)), 0, 3)
def total_weight(items):
    total = 0
    for weight, count in items:
        total += weight * count
    return total

def total_weight(items):
    return sum([weight * count for weight, count in items])

## heaviest max_weight biggest | li(1, 30, 0, 5)
def heaviest(weights):
    best = 0
    for weight in weights:
        if weight > best:
            best = weight
    return best
""",
    """
name: parking
about: Tickets of a car park.
packages: park garage
modules: ticket meter lot fine gate day
constants: HOUR 2 3 4; CAP 15 20 30; GRACE 5 10 15

## hours full_hours started | i(0, 200)
def hours(minutes):
    return (minutes + 59) // 60

def hours(minutes):
    full = minutes // 60
    if minutes % 60 > 0:
        full += 1
    return full

## fee charge price | i(0, 700)
def fee(minutes):
    if minutes <= GRACE:
        return 0
    return min(hours(minutes) * HOUR, CAP)

def fee(minutes):
    if minutes <= GRACE:
        return 0
    cost = hours(minutes) * HOUR
    return CAP if cost > CAP else cost

## stay duration parked | i(0, 400), i(0, 900)
def stay(start, end):
    if end < start:
        return 0
    return end - start

## late_fee fine_for penalty | near("GRACE", 20)
def late_fee(minutes):
    if minutes <= 0:
        return 0
    return 10 + minutes // GRACE

## free_spots left open_spots | i(0, 30), i(0, 40)
def free_spots(size, cars):
    if cars > size:
        return 0
    return size - cars

def free_spots(size, cars):
    return max(size - cars, 0)

## is_full no_room full_lot | i(1, 6), i(0, 7)
def is_full(size, cars):
    return cars >= size

## income takings earned | li(0, 300, 0, 3)
def income(stays):
    total = 0
    for minutes in stays:
        total += fee(minutes)
    return total

## change give_back rest | i(0, 30), i(0, 30)
def change(paid, cost):
    if paid < cost:
        return 0
    return paid - cost

## longest max_stay top_stay | li(0, 200, 0, 5)
def longest(stays):
    if not stays:
        return 0
    return max(stays)
""",
    """
name: payroll
about: Wages of a small firm.
packages: payroll wages
modules: pay tax extra time staff slip
constants: FULL 35 38 40; TAX 10 20 25; BONUS 50 100 200; YEARS 3 5 10

## base_pay plain_pay salary | up("FULL", 9), i(8, 20)
def base_pay(hours, rate):
    return min(hours, FULL) * rate

def base_pay(hours, rate):
    if hours > FULL:
        return FULL * rate
    return hours * rate

## overtime extra_hours over | up("FULL", 9)
def overtime(hours):
    if hours <= FULL:
        return 0
    return hours - FULL

def overtime(hours):
    return max(hours - FULL, 0)

## gross before_tax full_pay | up("FULL", 9), i(8, 20)
def gross(hours, rate):
    return base_pay(hours, rate) + overtime(hours) * rate * 2

## tax_on taxes levy | i(0, 900)
def tax_on(amount):
    return amount * TAX // 100

## net take_home after_tax | i(0, 900)
def net(amount):
    return amount - tax_on(amount)

## bonus loyalty reward | near("YEARS", 4)
def bonus(years):
    if years < YEARS:
        return 0
    return BONUS + (years - YEARS) * 10

## raise_pay increase new_pay | i(100, 500), one(2, 5, 10)
def raise_pay(pay, percent=TAX):
    return pay + pay * percent // 100

## average_pay mean_pay typical | li(10, 90, 0, 4)
def average_pay(pays):
    if not pays:
        return 0
    return sum(pays) // len(pays)

## above_mean well_paid over_mean | li(10, 90, 1, 4)
def above_mean(pays):
    mean = sum(pays) // len(pays)
    return [pay for pay in pays if pay > mean]
""",
)
