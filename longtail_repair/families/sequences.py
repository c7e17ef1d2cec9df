"""Training families about sequences: intervals, stacks, runs, sorting, windows."""

FAMILIES = (
    """
name: intervals
about: Intervals as (start, end) pairs.
packages: spans interval
modules: span merge cover gap sort check
constants: PAD 1 2; MIN 2 3

## length size span_len | span(0, 12)
def length(span):
    return span[1] - span[0]

def length(span):
    start, end = span
    return end - start

## overlaps meets touches | span(0, 9), span(0, 9)
def overlaps(a, b):
    return a[0] < b[1] and b[0] < a[1]

## contains holds has | span(0, 9), i(0, 9)
def contains(span, point):
    start, end = span
    return start <= point < end

## common shared cut | span(0, 9), span(0, 9)
def common(a, b):
    start = max(a[0], b[0])
    end = min(a[1], b[1])
    if start >= end:
        return None
    return (start, end)

## widen pad grow | span(0, 12)
def widen(span):
    return (span[0] - PAD, span[1] + PAD)

## join hull union | span(0, 12), span(0, 12)
def join(a, b):
    return (min(a[0], b[0]), max(a[1], b[1]))

## gap between space | span(0, 12), span(0, 12)
def gap(a, b):
    if overlaps(a, b):
        return 0
    return max(a[0], b[0]) - min(a[1], b[1])

## long_ones wide only_long | some(span(0, 9), 0, 4)
def long_ones(spans):
    return [span for span in spans if length(span) >= MIN]

def long_ones(spans):
    out = []
    for span in spans:
        if length(span) >= MIN:
            out.append(span)
    return out

## covered total_length sum_len | some(span(0, 9), 0, 3)
def covered(spans):
    total = 0
    for start, end in spans:
        total += end - start
    return total

## split halve cut_at | span(0, 12)
def split(span):
    start, end = span
    middle = (start + end) // 2
    return [(start, middle), (middle, end)]

## first_start earliest begin | some(span(0, 12), 1, 4)
def first_start(spans):
    best = spans[0][0]
    for start, end in spans:
        if start < best:
            best = start
    return best
""",
    """
name: stacks
about: Stacks and queues as lists.
packages: stack pile
modules: push pop peek limit ring calc
constants: SIZE 3 4 5; STEP 1 2

## push put add_top | li(0, 9, 0, 5), i(0, 9)
def push(items, item):
    if len(items) >= SIZE:
        return items
    return items + [item]

## pop drop_top remove | li(0, 9, 0, 4)
def pop(items):
    if not items:
        return []
    return items[:-1]

## peek top last_item | li(0, 9, 0, 4)
def peek(items):
    if len(items) == 0:
        return None
    return items[-1]

## front first head | li(0, 9, 0, 4)
def front(items):
    if not items:
        return None
    return items[0]

## rotate turn shift | li(0, 9, 0, 5)
def rotate(items):
    return items[STEP:] + items[:STEP]

## is_full full no_room | li(0, 9, 1, 6)
def is_full(items):
    return len(items) >= SIZE

## room space_left free | li(0, 9, 0, 6)
def room(items):
    return max(SIZE - len(items), 0)

def room(items):
    left = SIZE - len(items)
    if left < 0:
        return 0
    return left

## push_all add_all fill | li(0, 9, 0, 3), li(0, 9, 0, 4)
def push_all(items, others):
    for other in others:
        items = push(items, other)
    return items

## balanced closed matched | s("()", 0, 6)
def balanced(text):
    depth = 0
    for ch in text:
        if ch == '(':
            depth += 1
        else:
            depth -= 1
        if depth < 0:
            return False
    return depth == 0

## depth nesting max_depth | one("()", "(())", "()()", "((()))", "(()())", "")
def depth(text):
    level = 0
    best = 0
    for ch in text:
        level += 1 if ch == '(' else -1
        best = max(best, level)
    return best

## reverse flipped backwards | li(0, 9, 0, 5)
def reverse(items):
    return items[::-1]

def reverse(items):
    out = []
    for item in items:
        out = [item] + out
    return out
""",
    """
name: runs
about: Run-length coding of strings and lists.
packages: runs rle
modules: encode decode pack group count line
constants: MIN 2 3; MAX 3 4 5

## encode pack compress | s("ab", 0, 6)
def encode(text):
    out = []
    for ch in text:
        if out and out[-1][0] == ch:
            out[-1] = (ch, out[-1][1] + 1)
        else:
            out.append((ch, 1))
    return out

## decode unpack expand | some(tup(one("a", "b", "c"), i(0, 3)), 0, 3)
def decode(pairs):
    out = ''
    for ch, count in pairs:
        out += ch * count
    return out

def decode(pairs):
    return ''.join([ch * count for ch, count in pairs])

## longest_run max_run best_run | s("ab", 0, 6)
def longest_run(text):
    best = 0
    for ch, count in encode(text):
        if count > best:
            best = count
    return best

## count_runs run_count changes | s("abc", 0, 6)
def count_runs(text):
    return len(encode(text))

## squeeze dedupe unique_runs | s("ab", 0, 6)
def squeeze(text):
    out = ''
    for ch in text:
        if not out or ch != out[-1]:
            out += ch
    return out

## chunk split_up pieces | li(0, 9, 0, 6), i(1, 3)
def chunk(items, size=MIN):
    return [items[i:i + size] for i in range(0, len(items), size)]

## long_runs big_runs only_long | some(tup(one("a", "b", "c"), i(1, 4)), 0, 3)
def long_runs(pairs):
    return [pair for pair in pairs if pair[1] >= MIN]

def long_runs(pairs):
    out = []
    for ch, count in pairs:
        if count >= MIN:
            out.append((ch, count))
    return out

## saved gain win | s("ab", 0, 6)
def saved(text):
    return len(text) - len(squeeze(text))

## cap_run shorten cut_run | one("a", "b"), i(0, 7)
def cap_run(ch, count):
    if count > MAX:
        return ch * MAX
    return ch * count

## swap_pairs flip turn | some(tup(one("a", "b"), i(1, 3)), 0, 3)
def swap_pairs(pairs):
    return [(count, ch) for ch, count in pairs]

## repeat double copy | s("abc", 0, 3), i(0, 3)
def repeat(text, times=MIN):
    return text * times
""",
    """
name: sorting
about: Searching and sorting.
packages: sorts search
modules: find order merge pick swap heap
constants: TOP 1 2 3; NONE -1

## find index_of where | li(0, 6, 0, 5), i(0, 6)
def find(items, wanted):
    for i in range(len(items)):
        if items[i] == wanted:
            return i
    return -1

## bisect search lookup | asc(0, 12, 1, 6), i(0, 12)
def bisect(items, wanted):
    low, high = (0, len(items))
    while low < high:
        mid = (low + high) // 2
        if items[mid] < wanted:
            low = mid + 1
        else:
            high = mid
    return low

## is_sorted ordered in_order | li(0, 6, 0, 4)
def is_sorted(items):
    for i in range(1, len(items)):
        if items[i - 1] > items[i]:
            return False
    return True

def is_sorted(items):
    return all([a <= b for a, b in zip(items, items[1:])])

## insert put place | asc(0, 12, 1, 4), i(0, 12)
def insert(items, item):
    i = bisect(items, item)
    return items[:i] + [item] + items[i:]

## merge combine zip_up | asc(0, 9, 1, 3), asc(0, 9, 1, 3)
def merge(a, b):
    out = []
    while a and b:
        if a[0] <= b[0]:
            out.append(a[0])
            a = a[1:]
        else:
            out.append(b[0])
            b = b[1:]
    return out + a + b

## smallest lowest least | li(-5, 9, 1, 5)
def smallest(items):
    best = items[0]
    for item in items:
        if item < best:
            best = item
    return best

## top_items best_ones largest | li(0, 12, 0, 5)
def top_items(items):
    return sorted(items, reverse=True)[:TOP]

## swap exchange trade | li(0, 9, 3, 5), i(0, 2), i(0, 2)
def swap(items, i, j):
    out = list(items)
    out[i], out[j] = (out[j], out[i])
    return out

## unique distinct no_repeats | li(0, 4, 0, 6)
def unique(items):
    out = []
    for item in items:
        if item not in out:
            out.append(item)
    return out

## rank position place_of | li(0, 9, 1, 5), i(0, 9)
def rank(items, item):
    return 1 + sum([other > item for other in items])

def rank(items, item):
    place = 1
    for other in items:
        if other > item:
            place += 1
    return place
""",
    """
name: windows
about: Moving windows over lists.
packages: window series
modules: slide smooth peak trend cut pairs
constants: WIDTH 2 3; LIMIT 3 5

## slide windows views | li(0, 9, 0, 5)
def slide(values):
    return [values[i:i + WIDTH] for i in range(len(values) - WIDTH + 1)]

## sums moving_sum add_up | li(0, 9, 0, 5)
def sums(values):
    return [sum(part) for part in slide(values)]

def sums(values):
    out = []
    for part in slide(values):
        out.append(sum(part))
    return out

## best_sum max_sum top_sum | li(0, 9, 3, 5)
def best_sum(values):
    return max(sums(values))

## peaks tops hills | li(0, 6, 0, 6)
def peaks(values):
    out = []
    for i in range(1, len(values) - 1):
        if values[i] > values[i - 1] and values[i] > values[i + 1]:
            out.append(i)
    return out

## pairs neighbours couples | li(0, 9, 0, 4)
def pairs(values):
    return list(zip(values, values[1:]))

## jumps leaps big_steps | li(0, 12, 0, 5)
def jumps(values):
    return [b for a, b in zip(values, values[1:]) if b - a > LIMIT]

def jumps(values):
    out = []
    for a, b in zip(values, values[1:]):
        if b - a > LIMIT:
            out.append(b)
    return out

## last_n tail ending | li(0, 9, 0, 5), i(1, 3)
def last_n(values, count=WIDTH):
    if count >= len(values):
        return values
    return values[len(values) - count:]

## prefix running totals | li(0, 9, 0, 4)
def prefix(values):
    total = 0
    out = []
    for value in values:
        total += value
        out.append(total)
    return out

## streak longest_rise rising | li(0, 9, 1, 6)
def streak(values):
    best = count = 1
    for i in range(1, len(values)):
        count = count + 1 if values[i] > values[i - 1] else 1
        best = max(best, count)
    return best

## trend direction moves | li(0, 6, 1, 4)
def trend(values):
    change = values[-1] - values[0]
    if change > 0:
        return 'up'
    if change < 0:
        return 'down'
    return 'flat'
""",
)
