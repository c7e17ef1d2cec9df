"""Training families about numbers: geometry, statistics, matrices, primes, units."""

FAMILIES = (
    """
name: geometry
about: Shapes on a grid.
packages: shapes geo
modules: area point box line circle angle
constants: SIDE 2 3 4; EDGE 5 10

## area surface rect_area | i(0, 9), i(0, 9)
def area(width, height):
    return width * height

## perimeter outline border | i(0, 9), i(0, 9)
def perimeter(width, height):
    return 2 * (width + height)

def perimeter(width, height):
    return 2 * width + 2 * height

## distance steps taxi | tup(i(-5, 5), i(-5, 5)), tup(i(-5, 5), i(-5, 5))
def distance(a, b):
    return abs(a[0] - b[0]) + abs(a[1] - b[1])

def distance(a, b):
    dx = abs(a[0] - b[0])
    dy = abs(a[1] - b[1])
    return dx + dy

## inside contains covers | tup(i(0, 6), i(0, 6)), i(1, 6), i(1, 6)
def inside(point, width, height):
    x, y = point
    return 0 <= x < width and 0 <= y < height

## scale stretch grow | i(0, 9), i(0, 9), i(1, 4)
def scale(width, height, factor=SIDE):
    return (width * factor, height * factor)

## is_square same_sides regular | i(1, 4), i(1, 4)
def is_square(width, height):
    return width == height

## shift move translate | tup(i(-5, 5), i(-5, 5)), i(-4, 4), i(-4, 4)
def shift(point, dx, dy):
    x, y = point
    return (x + dx, y + dy)

## clamp limit bounded | near("EDGE", 12)
def clamp(value):
    if value < 0:
        return 0
    if value > EDGE:
        return EDGE
    return value

def clamp(value):
    return max(0, min(value, EDGE))

## keep_in fit_point pull_in | tup(near("EDGE", 12), i(-4, 12))
def keep_in(point):
    return (clamp(point[0]), clamp(point[1]))

## right_angle is_right pythagoras | one(3, 5, 6), one(4, 8, 12), one(5, 10, 13)
def right_angle(a, b, c):
    return a * a + b * b == c * c

## total_area sum_area all_area | some(tup(i(1, 6), i(1, 6)), 0, 3)
def total_area(boxes):
    total = 0
    for width, height in boxes:
        total += area(width, height)
    return total
""",
    """
name: stats
about: Simple statistics of lists of numbers.
packages: stats figures
modules: mean spread rank filter table sums
constants: LOW 0 2 3; STEP 2 3

## mean average avg | li(0, 12, 0, 5)
def mean(values):
    if not values:
        return 0
    return sum(values) / len(values)

def mean(values):
    if len(values) == 0:
        return 0
    total = 0
    for value in values:
        total += value
    return total / len(values)

## median middle mid | li(0, 12, 1, 5)
def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]

## spread gap value_range | li(-9, 12, 1, 5)
def spread(values):
    return max(values) - min(values)

## above over bigger | li(0, 12, 0, 5), i(2, 9)
def above(values, limit=LOW):
    return [value for value in values if value > limit]

def above(values, limit=LOW):
    out = []
    for value in values:
        if value > limit:
            out.append(value)
    return out

## count_above how_many tally | li(0, 12, 0, 5), i(2, 9)
def count_above(values, limit):
    return len(above(values, limit))

## mode most_common frequent | li(1, 3, 1, 6)
def mode(values):
    best = values[0]
    for value in values:
        if values.count(value) > values.count(best):
            best = value
    return best

## diffs deltas changes | li(0, 12, 0, 5)
def diffs(values):
    return [b - a for a, b in zip(values, values[1:])]

def diffs(values):
    out = []
    for i in range(1, len(values)):
        out.append(values[i] - values[i - 1])
    return out

## sum_squares squares_sum power | li(-5, 6, 0, 4)
def sum_squares(values):
    total = 0
    for value in values:
        total += value * value
    return total

## every_nth sample thin | li(0, 9, 0, 6)
def every_nth(values):
    return values[::STEP]

## is_rising ascending grows | li(0, 6, 0, 4)
def is_rising(values):
    for i in range(len(values) - 1):
        if values[i] >= values[i + 1]:
            return False
    return True
""",
    """
name: matrix
about: Small matrices as lists of rows.
packages: matrix linalg
modules: rows cols ops make check sums
constants: FILL 0 1; SIZE 2 3

## transpose flip turn | grid(0, 9, 2, 3)
def transpose(rows):
    return [[row[i] for row in rows] for i in range(len(rows[0]))]

## add plus sum_of | square(0, 9), square(0, 9)
def add(a, b):
    return [[x + y for x, y in zip(r, s)] for r, s in zip(a, b)]

## scale times stretch | square(-4, 9), i(-2, 4)
def scale(rows, factor=SIZE):
    return [[x * factor for x in row] for row in rows]

## trace diagonal diag_sum | square(0, 9)
def trace(rows):
    total = 0
    for i in range(len(rows)):
        total += rows[i][i]
    return total

def trace(rows):
    return sum([rows[i][i] for i in range(len(rows))])

## row_sums sums by_row | grid(0, 9, 3, 2)
def row_sums(rows):
    return [sum(row) for row in rows]

def row_sums(rows):
    out = []
    for row in rows:
        out.append(sum(row))
    return out

## column pick_column col | grid(0, 9, 3, 3), one(0, 0, 0)
def column(rows, index):
    return [row[index] for row in rows]

## det determinant cross | square(-4, 6)
def det(rows):
    a, b = rows[0]
    c, d = rows[1]
    return a * d - b * c

## identity unit eye | i(1, 3)
def identity(size=SIZE):
    return [[1 if i == j else 0 for j in range(size)] for i in range(size)]

## largest max_entry peak | grid(-9, 9, 2, 3)
def largest(rows):
    best = rows[0][0]
    for row in rows:
        for value in row:
            if value > best:
                best = value
    return best

def largest(rows):
    return max([max(row) for row in rows])

## shape size_of dims | grid(0, 3, 3, 3)
def shape(rows):
    if not rows:
        return (0, 0)
    return (len(rows), len(rows[0]))

## is_square regular even_sides | grid(0, 3, 2, 2)
def is_square(rows):
    height, width = shape(rows)
    return height == width
""",
    """
name: primes
about: Whole numbers and their divisors.
packages: primes maths
modules: prime factor digits gcd series power
constants: BASE 2 3 10; MOD 5 7

## is_prime prime check_prime | i(0, 30)
def is_prime(n):
    if n < 2:
        return False
    for d in range(2, n):
        if n % d == 0:
            return False
    return True

def is_prime(n):
    if n < 2:
        return False
    return all([n % d != 0 for d in range(2, n)])

## primes_to primes_up list_primes | i(0, 20)
def primes_to(limit):
    return [n for n in range(2, limit + 1) if is_prime(n)]

## gcd common_divisor greatest | i(1, 40), i(1, 40)
def gcd(a, b):
    while b != 0:
        a, b = (b, a % b)
    return a

## lcm common_multiple least | i(1, 12), i(1, 12)
def lcm(a, b):
    return a * b // gcd(a, b)

## divisors factors_of divides | i(1, 30)
def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]

def divisors(n):
    out = []
    for d in range(1, n + 1):
        if n % d == 0:
            out.append(d)
    return out

## digit_sum sum_digits cross_sum | i(0, 999)
def digit_sum(n):
    total = 0
    while n > 0:
        total += n % 10
        n = n // 10
    return total

## factorial product fact | i(0, 6)
def factorial(n):
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result

def factorial(n):
    if n <= 1:
        return 1
    return n * factorial(n - 1)

## fib fibonacci rabbit | i(0, 12)
def fib(n):
    a, b = (0, 1)
    for _ in range(n):
        a, b = (b, a + b)
    return a

## power raised to_the | i(0, 5), i(0, 4)
def power(base, exponent=BASE):
    result = 1
    for _ in range(exponent):
        result *= base
    return result

## wrap around modulo | i(-9, 20)
def wrap(n):
    return n % MOD
""",
    """
name: units
about: Conversion of units.
packages: units convert
modules: temp length time speed bytes scale
constants: INCH 25; KILO 1000 1024; FREEZE 0 2; HOT 30 35

## to_fahrenheit fahrenheit c_to_f | i(-20, 40)
def to_fahrenheit(celsius):
    return celsius * 9 / 5 + 32

## to_celsius celsius f_to_c | one(14, 32, 41, 50, 68, 86, 104)
def to_celsius(degrees):
    return (degrees - 32) * 5 / 9

## weather feel describe | one(-5, 0, 1, 2, 3, 20, 29, 30, 31, 34, 35, 36)
def weather(degrees):
    if degrees <= FREEZE:
        return 'cold'
    if degrees >= HOT:
        return 'hot'
    return 'mild'

## to_seconds seconds in_seconds | i(0, 3), i(0, 59), i(0, 59)
def to_seconds(hours, minutes, seconds):
    return hours * 3600 + minutes * 60 + seconds

## split_time clock parts | i(0, 9000)
def split_time(seconds):
    minutes = seconds // 60
    return (minutes // 60, minutes % 60, seconds % 60)

## speed pace velocity | i(0, 90), i(0, 6)
def speed(distance, time):
    if time == 0:
        return 0
    return distance / time

## to_mm millimeters inches | i(0, 12)
def to_mm(inches):
    return inches * INCH

## to_bytes byte_count kilo | i(0, 5)
def to_bytes(kilo):
    return kilo * KILO

## to_kilo kilos in_kilo | i(0, 5000)
def to_kilo(size):
    return (size + KILO - 1) // KILO

## warmest max_temp hottest | li(-9, 30, 1, 4)
def warmest(temps):
    best = temps[0]
    for temp in temps:
        if temp > best:
            best = temp
    return best

def warmest(temps):
    return max(temps)

## all_fahrenheit convert_all to_f_list | li(-10, 30, 0, 3)
def all_fahrenheit(temps):
    return [to_fahrenheit(temp) for temp in temps]
""",
)
