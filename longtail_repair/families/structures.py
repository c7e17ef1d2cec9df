"""Training families about structures and rules: polynomials, graphs, games."""

FAMILIES = (
    """
name: poly
about: Polynomials as lists of coefficients, lowest power first.
packages: poly algebra
modules: terms value ops root degree coef
constants: ONE 1 2; ZERO 0

## evaluate value_at apply | li(-3, 5, 0, 4), i(-2, 3)
def evaluate(terms, x):
    total = 0
    for i in range(len(terms)):
        total += terms[i] * x ** i
    return total

def evaluate(terms, x):
    total = 0
    for term in terms[::-1]:
        total = total * x + term
    return total

## degree order highest | li(-3, 5, 1, 4)
def degree(terms):
    return len(trim(terms)) - 1

## trim strip_zeros shorten | some(one(0, 0, 1, 3), 1, 5)
def trim(terms):
    out = list(terms)
    while len(out) > 1 and out[-1] == 0:
        out.pop()
    return out

## derive slope derivative | li(-3, 5, 1, 4)
def derive(terms):
    return [i * terms[i] for i in range(1, len(terms))]

def derive(terms):
    out = []
    for i in range(1, len(terms)):
        out.append(i * terms[i])
    return out

## add_poly plus sum_poly | li(-3, 5, 2, 3), li(-3, 5, 2, 3)
def add_poly(a, b):
    size = max(len(a), len(b))
    return [coef(a, i) + coef(b, i) for i in range(size)]

## coef term_at pick | li(1, 9, 0, 4), i(0, 5)
def coef(terms, index):
    if index < len(terms):
        return terms[index]
    return 0

def coef(terms, index):
    if index >= len(terms):
        return 0
    return terms[index]

## multiply times scale_by | li(-3, 5, 0, 4), i(-2, 4)
def multiply(terms, factor=ONE):
    return [term * factor for term in terms]

## is_root has_root zero_at | some(one(0, 1, -1, 2, -2), 1, 3), i(-1, 2)
def is_root(terms, x):
    return evaluate(terms, x) == 0

## raise_by shift_up times_x | li(1, 9, 0, 3), i(0, 3)
def raise_by(terms, power=ONE):
    return [0] * power + terms

## constant free_term first | li(0, 9, 0, 3)
def constant(terms):
    if not terms:
        return 0
    return terms[0]
""",
    """
name: graphs
about: Graphs as dicts from node to neighbours.
packages: graph network
modules: nodes edges walk path visit degree
constants: HOPS 1 2; MIN 1 2

## neighbours next_to linked | graph(), one("a", "b", "z")
def neighbours(graph, node):
    return graph.get(node, [])

## edge_count edges size | graph()
def edge_count(graph):
    total = 0
    for node in graph:
        total += len(graph[node])
    return total

def edge_count(graph):
    return sum([len(graph[node]) for node in graph])

## has_edge linked_to joined | graph(), one("a", "b"), one("a", "b")
def has_edge(graph, a, b):
    return b in graph.get(a, [])

## reach visit reachable | graph(), one("a", "b")
def reach(graph, start):
    seen = [start]
    for node in seen:
        for other in graph[node]:
            if other not in seen:
                seen.append(other)
    return sorted(seen)

## connected can_reach has_path | graph(), one("a", "b"), one("a", "b")
def connected(graph, a, b):
    return b in reach(graph, a)

## in_degree incoming links_to | graph(), one("a", "b")
def in_degree(graph, node):
    count = 0
    for other in graph:
        if node in graph[other]:
            count += 1
    return count

def in_degree(graph, node):
    return len([other for other in graph if node in graph[other]])

## dead_ends sinks leaves | graph()
def dead_ends(graph):
    return [node for node in graph if not graph[node]]

## busiest hub most_links | graph()
def busiest(graph):
    best = 'a'
    for node in graph:
        if len(graph[node]) > len(graph[best]):
            best = node
    return best

## mutual both_ways two_way | graph(), one("a", "b"), one("a", "b")
def mutual(graph, a, b):
    return has_edge(graph, a, b) and has_edge(graph, b, a)

## path_length steps cost | s("abc", 0, 5)
def path_length(path):
    if not path:
        return 0
    return len(path) - 1

## is_path valid_path walks | graph("abc"), s("ab", 1, 3)
def is_path(graph, path):
    for a, b in zip(path, path[1:]):
        if b not in graph[a]:
            return False
    return True
""",
    """
name: games
about: Rules of small board games.
packages: games board
modules: dice score turn move level life
constants: GOAL 10 20 50; LIVES 3 5; DICE 6 8

## next_player turn after | i(0, 4), i(1, 4)
def next_player(player, count):
    return (player + 1) % count

## advance move step | up("GOAL", 9), i(1, 6)
def advance(place, roll):
    if place + roll > GOAL:
        return place
    return place + roll

def advance(place, roll):
    new = place + roll
    return new if new <= GOAL else place

## has_won won at_goal | near("GOAL", 5)
def has_won(place):
    return place >= GOAL

## winner first_home leader | li(0, 60, 1, 4)
def winner(places):
    for i in range(len(places)):
        if has_won(places[i]):
            return i
    return None

## is_double twins pair | i(1, 4), i(1, 4)
def is_double(a, b):
    return a == b

## roll_score points dice_score | i(1, 6), i(1, 6)
def roll_score(a, b):
    if is_double(a, b):
        return (a + b) * 2
    return a + b

## lose_life hit damage | i(0, 6), i(1, 3)
def lose_life(lives, hits):
    return max(lives - hits, 0)

def lose_life(lives, hits):
    left = lives - hits
    if left < 0:
        return 0
    return left

## gain_life heal bonus_life | i(0, 6)
def gain_life(lives):
    if lives >= LIVES:
        return lives
    return lives + 1

## level rank_of stage | i(0, 90)
def level(points):
    return points // GOAL + 1

## best_player top champion | li(0, 30, 1, 4)
def best_player(scores):
    best = 0
    for i in range(len(scores)):
        if scores[i] > scores[best]:
            best = i
    return best

## valid_roll legal possible | one(0, 1, 5, 6, 7, 8, 9)
def valid_roll(roll):
    return 1 <= roll <= DICE

## three_in_row line same | s("xo", 3, 3)
def three_in_row(row):
    return row[0] == row[1] and row[1] == row[2]
""",
)
