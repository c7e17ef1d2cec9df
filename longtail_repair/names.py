"""Other names for the variables of the families' functions: `name: others`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

_TABLE = """
items: values rows_ entries things stack
values: nums data series
prices: costs fees list_
total: acc full whole
amount: money sum_in value
price: cost value
count: n num number
people: guests heads
limit: cap bound top_value most
rate: percent pct
tax: extra part
off: cut less
best: top found
out: kept res acc
result: res answer
balance: money funds
balances: accounts funds
payment: pay per_month
debt: owed open_sum
left: rest remains
hours: time worked
minutes: time mins
weight: mass kilos
weights: loads masses
zone: area_no region
boxes: packs crates
size: length big
width: w wide
height: h tall
depth: d deep
value: v x
mean: avg middle
pay: wage salary
pays: wages salaries
years: time age
a: p first
b: q second
x: p u
y: q v
dx: across h
dy: up_by v
point: spot place
rows: grid table
row: line r
factor: times by
n: number num
d: divisor step
i: k pos j
temps: readings values
temp: reading value
seconds: secs time
terms: coefs parts
term: coef part
span: piece block
spans: pieces blocks
start: begin low
end: stop high
item: thing entry
other: more extra
text: line string
ch: c char
pairs: groups codes
ordered: ranked sorted_
wanted: target goal
low: first lo
high: last hi
mid: middle half
word: w token
words: tokens parts
step: shift by
line: row text
lines: texts rows
key: name left_part
sign: mark found
cells: parts columns
gap: space free
stock: store goods
name: key label
mark: points m
marks: points scores
ballots: votes slips
ballot: vote slip
place: rank spot
places: ranks spots
songs: tracks tunes
song: track tune
index: pos at
stars: points marks
hour: h hh
minute: m mm
day: d date
month: m mon
year: y yr
graph: net links
node: point n
seen: done visited
path: way route
player: who turn
roll: dice throw
lives: hearts health
hits: blows damage
scores: points results
level: depth height_
new: after changed
books: titles shelf
title: book name
side: facing way
fuel: power tank
command: order move
heat: degrees temp
guests: people eaters
needed: wanted required
grams: g weight
"""

SYNONYMS: dict[str, tuple[str, ...]] = {
    name: tuple(others.split()) for name, others in (line.split(": ") for line in _TABLE.strip().splitlines())
}

_TOKEN = re.compile(r"""'[^'\n]*'|"[^"\n]*"|(?<![\w.])[A-Za-z_]\w*""")


def rename(source: str, mapping: Mapping[str, str]) -> str:
    """Replace identifiers; strings and attributes stay."""
    return _TOKEN.sub(lambda match: mapping.get(match[0], match[0]), source)


def draw_names(source: str, reserved: frozenset[str], rng: Random) -> dict[str, str]:
    """New names for some variables of a function: no two alike, none in `reserved`."""
    present = list(dict.fromkeys(_TOKEN.findall(source)))
    taken = {*present, *reserved}
    mapping: dict[str, str] = {}
    for name in present:
        if name in SYNONYMS and name not in reserved and rng.random() < 0.6:
            free = [other for other in SYNONYMS[name] if other not in taken]
            if free:
                mapping[name] = rng.choice(free)
                taken.add(mapping[name])
    return mapping
