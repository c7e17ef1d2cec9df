"""Held-out families, never trained on: roman numerals, library, robot, recipes."""

FAMILIES = (
    """
name: roman
about: Roman numerals.
packages: roman numerals
modules: read write digit table check order
constants: LARGEST 50 100

## value digit worth | one("I", "V", "X", "L", "A")
def value(ch):
    return {'I': 1, 'V': 5, 'X': 10, 'L': 50}.get(ch, 0)

## to_int read parse | one("I", "IV", "VI", "IX", "XIV", "XL", "LX", "III", "XXI")
def to_int(text):
    total = 0
    last = 0
    for ch in text[::-1]:
        now = value(ch)
        total += now if now >= last else -now
        last = now
    return total

## to_roman write spell | i(0, 39)
def to_roman(number):
    out = ''
    for size, mark in [(10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')]:
        while number >= size:
            out += mark
            number -= size
    return out

## is_valid legal readable | s("IVXA", 0, 3)
def is_valid(text):
    if not text:
        return False
    return all([value(ch) > 0 for ch in text])

## sum_of add_all total_of | some(one("I", "IV", "X", "VI"), 0, 3)
def sum_of(texts):
    return sum([to_int(text) for text in texts])

## ones units count_ones | s("IVX", 0, 5)
def ones(text):
    count = 0
    for ch in text:
        if ch == 'I':
            count += 1
    return count

## larger bigger max_of | one("I", "IV", "VI"), one("II", "V", "X")
def larger(a, b):
    return a if to_int(a) > to_int(b) else b

## in_range small fits | near("LARGEST", 9)
def in_range(number):
    return 0 < number <= LARGEST
""",
    """
name: library
about: Loans of a library.
packages: library loans
modules: books loan fine shelf member due
constants: DAYS 14 21 28; DAILY 2 5; MOST 3 5

## due_day return_day ends | i(0, 60)
def due_day(start):
    return start + DAYS

## days_late overdue late | i(0, 40), i(0, 80)
def days_late(start, today):
    late = today - due_day(start)
    if late < 0:
        return 0
    return late

## fine penalty to_pay | i(0, 40), i(20, 80)
def fine(start, today):
    return days_late(start, today) * DAILY

## may_borrow allowed can_take | i(0, 6), i(0, 3)
def may_borrow(loans, debt):
    return loans < MOST and debt == 0

## lend give_out check_out | some(word(), 0, 3), word()
def lend(books, title):
    return [book for book in books if book != title]

## give_back check_in put_back | some(word(), 0, 3), word()
def give_back(books, title):
    if title in books:
        return books
    return books + [title]

## shelf_of place row | s("abcz", 1, 3)
def shelf_of(title):
    return ord(title[0]) - ord('a') + 1

## overdue_count late_count how_many_late | li(0, 40, 0, 4), i(20, 60)
def overdue_count(starts, today):
    count = 0
    for start in starts:
        if days_late(start, today) > 0:
            count += 1
    return count

## thickest most_pages longest | some(tup(word(), i(50, 400)), 1, 3)
def thickest(books):
    best = books[0]
    for book in books:
        if book[1] > best[1]:
            best = book
    return best[0]
""",
    """
name: robot
about: A robot on a grid.
packages: robot rover
modules: drive turn grid fuel plan sense
constants: SIZE 4 5 8; FUEL 10 20; COST 1 2

## turn_right right clockwise | one("N", "E", "S", "W")
def turn_right(side):
    order = 'NESW'
    return order[(order.find(side) + 1) % 4]

## turn_left left counter | one("N", "E", "S", "W")
def turn_left(side):
    order = 'NESW'
    return order[(order.find(side) - 1) % 4]

## forward step go | i(0, 7), i(0, 7), one("N", "E", "S", "W")
def forward(x, y, side):
    if side == 'N':
        return (x, y + 1)
    if side == 'S':
        return (x, y - 1)
    if side == 'E':
        return (x + 1, y)
    return (x - 1, y)

## on_grid inside allowed | i(-1, 8), i(-1, 8)
def on_grid(x, y):
    return 0 <= x < SIZE and 0 <= y < SIZE

## safe_step careful try_step | i(0, 7), i(0, 7), one("N", "E", "S", "W")
def safe_step(x, y, side):
    new = forward(x, y, side)
    if on_grid(new[0], new[1]):
        return new
    return (x, y)

## fuel_left rest tank | i(0, 14)
def fuel_left(steps):
    left = FUEL - steps * COST
    if left < 0:
        return 0
    return left

## reach max_steps farthest | i(0, 30)
def reach(fuel):
    return fuel // COST

## run follow drive | s("LR", 0, 4)
def run(commands):
    side = 'N'
    for command in commands:
        side = turn_left(side) if command == 'L' else turn_right(side)
    return side

## blocked stuck hits | tup(i(0, 2), i(0, 2)), some(tup(i(0, 2), i(0, 2)), 0, 3)
def blocked(place, walls):
    return place in walls
""",
    """
name: kitchen
about: Recipes and their amounts.
packages: kitchen recipes
modules: cook list scale oven menu store
constants: SERVES 2 4; HEAT 180 200; REST 5 10

## scaled for_guests resize | i(1, 40), i(1, 8)
def scaled(amount, guests):
    return amount * guests // SERVES

## scale_all for_party resize_all | li(1, 40, 0, 3), i(1, 8)
def scale_all(amounts, guests):
    return [scaled(amount, guests) for amount in amounts]

## missing to_buy shopping | some(word(), 0, 3), some(word(), 0, 3)
def missing(needed, stock):
    out = []
    for name in needed:
        if name not in stock:
            out.append(name)
    return out

## can_cook possible ready | some(word(), 0, 3), some(word(), 0, 3)
def can_cook(needed, stock):
    return not missing(needed, stock)

## cook_time baking minutes | i(0, 12)
def cook_time(weight):
    if weight <= 0:
        return 0
    return weight * 10 + REST

## too_hot burns over_heat | near("HEAT", 9)
def too_hot(heat):
    return heat > HEAT

## preheat warm_up heating | i(20, 220)
def preheat(heat):
    if heat >= HEAT:
        return 0
    return (HEAT - heat) // REST

## ready_at done_by finish | i(0, 60), i(0, 9)
def ready_at(start, weight):
    return start + cook_time(weight)

## spoons tea_spoons spoonfuls | i(0, 40)
def spoons(grams):
    return (grams + 4) // 5
""",
)
