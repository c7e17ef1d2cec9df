"""Training families about small worlds: inventory, grades, votes, playlist, clock."""

FAMILIES = (
    """
name: inventory
about: Goods in a store room.
packages: stock depot
modules: items shelf orders count alert value
constants: LOW 3 5 10; PACK 6 10 12

## in_stock available has | table(word(), i(0, 5)), word()
def in_stock(stock, name):
    return stock.get(name, 0) > 0

## add_stock receive put | table(word(), i(1, 5)), word(), i(1, 5)
def add_stock(stock, name, count):
    stock = dict(stock)
    stock[name] = stock.get(name, 0) + count
    return stock

## take remove pick | i(0, 9), i(0, 9)
def take(count, wanted):
    if wanted > count:
        return 0
    return count - wanted

## low_items running_out short | table(word(), i(0, 12))
def low_items(stock):
    return sorted([name for name in stock if stock[name] < LOW])

def low_items(stock):
    out = []
    for name, count in stock.items():
        if count < LOW:
            out.append(name)
    return sorted(out)

## total_count sum_stock all_count | table(word(), i(0, 9))
def total_count(stock):
    total = 0
    for name in stock:
        total += stock[name]
    return total

def total_count(stock):
    return sum(stock.values())

## to_order missing need | up("LOW", 5), i(0, 12)
def to_order(count, target=LOW):
    if count >= target:
        return 0
    return target - count

## packs boxes crates | i(0, 40)
def packs(count):
    return (count + PACK - 1) // PACK

## order_packs boxes_to_order refill | i(0, 20), i(5, 40)
def order_packs(count, target):
    return packs(to_order(count, target))

## worth stock_value value_of | some(tup(i(0, 6), i(1, 9)), 0, 3)
def worth(items):
    total = 0
    for count, price in items:
        total += count * price
    return total

## most_stocked biggest top_item | some(tup(word(), i(0, 9)), 1, 3)
def most_stocked(items):
    best = items[0]
    for item in items:
        if item[1] > best[1]:
            best = item
    return best[0]

## is_low alert warn | up("LOW", 5)
def is_low(count):
    return count < LOW
""",
    """
name: grades
about: Marks of a class.
packages: grades school
modules: marks course report exam rank letter
constants: PASS 50 60; TOP 90 95; BONUS 2 5

## passed is_pass ok | near("PASS", 9)
def passed(mark):
    return mark >= PASS

## letter grade symbol | one(30, 49, 50, 51, 59, 60, 61, 75, 89, 90, 91, 94, 95, 96)
def letter(mark):
    if mark >= TOP:
        return 'A'
    if mark >= PASS:
        return 'B'
    return 'F'

## average mean class_mean | li(30, 99, 0, 4)
def average(marks):
    if not marks:
        return 0
    return sum(marks) // len(marks)

def average(marks):
    if len(marks) == 0:
        return 0
    total = 0
    for mark in marks:
        total += mark
    return total // len(marks)

## pass_count how_many_pass passes | li(40, 70, 0, 4)
def pass_count(marks):
    count = 0
    for mark in marks:
        if passed(mark):
            count += 1
    return count

def pass_count(marks):
    return len([mark for mark in marks if passed(mark)])

## add_bonus curve lift | i(80, 105)
def add_bonus(mark):
    return min(mark + BONUS, 100)

## drop_lowest without_worst best_of | li(30, 99, 0, 4)
def drop_lowest(marks):
    return sorted(marks)[1:]

## percent share ratio | i(0, 20), i(0, 20)
def percent(points, full):
    if full == 0:
        return 0
    return points * 100 // full

## best_mark top_mark highest | li(30, 99, 0, 4)
def best_mark(marks):
    best = 0
    for mark in marks:
        if mark > best:
            best = mark
    return best

## weighted final_mark mix | i(30, 99), i(30, 99)
def weighted(exam, work):
    return (exam * 2 + work) // 3

## letters all_letters symbols | li(40, 99, 0, 4)
def letters(marks):
    return [letter(mark) for mark in marks]

## improved better rose | li(30, 99, 2, 4)
def improved(marks):
    return marks[-1] > marks[0]
""",
    """
name: votes
about: Counting votes.
packages: votes poll
modules: ballot count winner seats quota tie
constants: QUORUM 3 4 5; SHARE 5 10

## tally count_votes votes_for | s("abc", 0, 6), one("a", "b", "c")
def tally(ballots, name):
    count = 0
    for ballot in ballots:
        if ballot == name:
            count += 1
    return count

def tally(ballots, name):
    return sum([ballot == name for ballot in ballots])

## winner leader elected | s("abc", 1, 6)
def winner(ballots):
    best = ballots[0]
    for name in ballots:
        if ballots.count(name) > ballots.count(best):
            best = name
    return best

## has_majority majority over_half | i(0, 9), i(1, 9)
def has_majority(count, total):
    return count * 2 > total

## valid quorum enough | s("ab", 1, 6)
def valid(ballots):
    return len(ballots) >= QUORUM

## share percent part | i(0, 12), i(0, 12)
def share(count, total):
    if total == 0:
        return 0
    return count * 100 // total

## above_bar in_house enters | i(0, 3), i(8, 40)
def above_bar(count, total):
    return share(count, total) >= SHARE

## seats allot chairs | i(0, 30), i(1, 30), i(1, 9)
def seats(count, total, chairs):
    return count * chairs // total

## is_tie tied equal_top | i(0, 5), i(0, 5), i(0, 5)
def is_tie(a, b, c):
    best = max(a, b, c)
    return [a, b, c].count(best) > 1

## points borda score | i(0, 4), i(1, 5)
def points(place, size):
    if place >= size:
        return 0
    return size - place - 1

## total_points sum_points borda_sum | li(0, 4, 0, 4), i(3, 5)
def total_points(places, size):
    total = 0
    for place in places:
        total += points(place, size)
    return total

## turnout voted took_part | i(0, 30), i(0, 30)
def turnout(voters, people):
    if people <= 0:
        return 0
    return min(voters * 100 // people, 100)
""",
    """
name: playlist
about: Songs and their lengths in seconds.
packages: music player
modules: songs queue time skip album rating
constants: GAP 1 2 3; LONG 200 240 300; STARS 3 4

## total_time length duration | li(60, 300, 0, 4)
def total_time(songs):
    total = 0
    for song in songs:
        total += song + GAP
    return total

## show_time clock as_text | i(0, 400)
def show_time(seconds):
    return str(seconds // 60) + ':' + str(seconds % 60)

## minutes in_minutes full_minutes | i(0, 400)
def minutes(seconds):
    return seconds // 60

## long_songs too_long epic | li(150, 350, 0, 4)
def long_songs(songs):
    return [song for song in songs if song > LONG]

def long_songs(songs):
    out = []
    for song in songs:
        if song > LONG:
            out.append(song)
    return out

## next_song after following | i(0, 5), i(1, 5)
def next_song(index, size):
    return (index + 1) % size

## previous before last_song | i(0, 5), i(1, 5)
def previous(index, size):
    return (index - 1) % size

## skip jump forward | i(0, 4), i(1, 3), i(1, 5)
def skip(index, steps, size):
    for _ in range(steps):
        index = next_song(index, size)
    return index

## liked favourites good_ones | some(tup(word(), i(1, 5)), 0, 3)
def liked(songs):
    return [name for name, stars in songs if stars >= STARS]

## rating mean_stars score | li(1, 5, 0, 4)
def rating(stars):
    if not stars:
        return 0
    return sum(stars) / len(stars)

## fits_in before_end songs_in | li(60, 200, 0, 4), i(100, 500)
def fits_in(songs, limit):
    count = 0
    for song in songs:
        if song > limit:
            break
        limit -= song
        count += 1
    return count

## move_up raise_song up_one | li(1, 9, 2, 4), one(0, 1)
def move_up(songs, index):
    if index == 0:
        return songs
    return songs[:index - 1] + [songs[index], songs[index - 1]] + songs[index + 1:]
""",
    """
name: clock
about: Times of day and the calendar.
packages: clock agenda
modules: time day week month slot alarm
constants: OPEN 8 9; CLOSE 17 18; SLOT 15 20 30

## to_minutes minutes_of since_midnight | i(0, 23), i(0, 59)
def to_minutes(hour, minute):
    return hour * 60 + minute

## from_minutes hour_minute split_time | i(0, 1600)
def from_minutes(total):
    return (total // 60 % 24, total % 60)

## later plus add_time | i(0, 23), i(0, 59), i(0, 90)
def later(hour, minute, extra):
    return from_minutes(to_minutes(hour, minute) + extra)

## is_open open_at working | one(0, 7, 8, 9, 10, 16, 17, 18, 19)
def is_open(hour):
    return OPEN <= hour < CLOSE

def is_open(hour):
    if hour < OPEN:
        return False
    return hour < CLOSE

## slots parts blocks | i(0, 120)
def slots(minutes):
    return minutes // SLOT

## leap is_leap leap_year | one(1900, 2000, 2001, 2004, 2020, 2021, 2100, 2400)
def leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)

## month_days days_in length | i(1, 12)
def month_days(month):
    if month == 2:
        return 28
    if month in (4, 6, 9, 11):
        return 30
    return 31

## weekday day_name day_of | i(0, 20)
def weekday(day):
    return ['mo', 'tu', 'we', 'th', 'fr', 'sa', 'su'][day % 7]

## is_weekend weekend day_off | i(0, 20)
def is_weekend(day):
    return day % 7 >= 5

## workdays working_days count_work | i(0, 10), i(0, 14)
def workdays(start, end):
    count = 0
    for day in range(start, end):
        if not is_weekend(day):
            count += 1
    return count

## show clock_text as_text | i(0, 23), i(0, 59)
def show(hour, minute):
    return str(hour).zfill(2) + ':' + str(minute).zfill(2)

## angle between hand | i(0, 12), i(0, 59)
def angle(hour, minute):
    return (hour % 12 * 60 + minute) // 2
""",
)
