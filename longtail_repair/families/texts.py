"""Training families about text: words, ciphers, parsing, layout."""

FAMILIES = (
    """
name: words
about: Words in a text.
packages: words text
modules: count clean find case split stop
constants: SHORT 3 4; VOWELS 'aeiou'

## word_count count_words how_many | phrase(0, 4)
def word_count(text):
    return len(text.split())

## longest long_word biggest | phrase(1, 4)
def longest(text):
    best = ''
    for word in text.split():
        if len(word) > len(best):
            best = word
    return best

## vowels count_vowels vowel_count | phrase(0, 3)
def vowels(text):
    count = 0
    for ch in text:
        if ch in VOWELS:
            count += 1
    return count

def vowels(text):
    return sum([ch in VOWELS for ch in text])

## short_words brief small_words | phrase(0, 4)
def short_words(text):
    return [word for word in text.split() if len(word) < SHORT]

## capitalize title upper_first | phrase(1, 3)
def capitalize(text):
    return ' '.join([word[0].upper() + word[1:] for word in text.split()])

## reverse_words backwards flip | phrase(0, 4)
def reverse_words(text):
    return ' '.join(text.split()[::-1])

## is_palindrome mirrored same_back | one("anna", "abba", "abc", "a", "", "noon", "cat", "level")
def is_palindrome(text):
    return text == text[::-1]

def is_palindrome(text):
    for i in range(len(text) // 2):
        if text[i] != text[-1 - i]:
            return False
    return True

## initials acronym letters | phrase(1, 4)
def initials(text):
    out = ''
    for word in text.split():
        out += word[0]
    return out

## count_of times seen | phrase(0, 5), word()
def count_of(text, wanted):
    count = 0
    for word in text.split():
        if word == wanted:
            count += 1
    return count

## shorten clip cut | word(), i(1, 5)
def shorten(text, size=SHORT):
    if len(text) <= size:
        return text
    return text[:size] + '.'

## clip_all shorten_all cut_words | phrase(1, 3)
def clip_all(text):
    return [shorten(word) for word in text.split()]
""",
    """
name: cipher
about: Simple ciphers for lower-case letters.
packages: cipher secret
modules: caesar key swap code mirror check
constants: SHIFT 1 2 3 5; SIZE 26

## index place letter_no | s("abcxyz", 1, 1)
def index(ch):
    return ord(ch) - ord('a')

## letter char_at from_index | i(0, 40)
def letter(n):
    return chr(ord('a') + n % SIZE)

## shift_letter move turn | s("abcxyz", 1, 1), i(0, 9)
def shift_letter(ch, step=SHIFT):
    return letter(index(ch) + step)

## encrypt encode hide | s("abcxyz", 0, 4)
def encrypt(text):
    return ''.join([shift_letter(ch, SHIFT) for ch in text])

def encrypt(text):
    out = ''
    for ch in text:
        out += shift_letter(ch, SHIFT)
    return out

## decrypt decode reveal | s("abcxyz", 0, 4)
def decrypt(text):
    return ''.join([shift_letter(ch, -SHIFT) for ch in text])

## mirror atbash opposite | s("abcxyz", 0, 4)
def mirror(text):
    return ''.join([letter(25 - index(ch)) for ch in text])

## swap_pairs cross trade | s("abcd", 0, 5)
def swap_pairs(text):
    out = ''
    for i in range(0, len(text) - 1, 2):
        out += text[i + 1] + text[i]
    return out

## interleave weave mix | s("abc", 0, 3), s("xyz", 0, 3)
def interleave(a, b):
    out = ''
    for x, y in zip(a, b):
        out += x + y
    return out

## checksum hash_of sum_up | s("abcxyz", 0, 4)
def checksum(text):
    total = 0
    for i in range(len(text)):
        total += (i + 1) * index(text[i])
    return total

## same_letters anagram shuffled | s("abc", 1, 3), s("abc", 1, 3)
def same_letters(a, b):
    return sorted(a) == sorted(b)

## rotate roll spin | s("abcdef", 1, 5), i(0, 4)
def rotate(text, step=SHIFT):
    cut = step % len(text)
    return text[cut:] + text[:cut]
""",
    """
name: parsing
about: Reading small text formats.
packages: parse reader
modules: lines fields pairs number token clean
constants: SEP ',' '/' ':'; DEFAULT 0 1

## fields split_line cells | one("a,b", "a/b/c", "x:y", "", "a", "b/c,d", "1:2:3", "p,q,r")
def fields(line):
    if not line:
        return []
    return line.split(SEP)

## is_number digits_only numeric | one("12", "-3", "", "a1", "7", "-", "4b", "-15")
def is_number(text):
    if text and text[0] == '-':
        text = text[1:]
    return text.isdigit()

## to_number number parse_int | one("12", "-3", "", "a1", "7", "-15", "x")
def to_number(text):
    if not is_number(text):
        return DEFAULT
    return int(text)

## numbers all_numbers ints | some(one("12", "-3", "", "a1", "7", "x"), 0, 4)
def numbers(words):
    return [int(word) for word in words if is_number(word)]

def numbers(words):
    out = []
    for word in words:
        if is_number(word):
            out.append(int(word))
    return out

## pair key_value split_pair | one("a=1", "b", "x=y", "=3", "k=", "c=d")
def pair(text):
    key, sign, value = text.partition('=')
    if not sign:
        return (key, None)
    return (key, value)

## clean strip_all tidy | some(one(" a", "b ", "", " ", "c"), 0, 4)
def clean(lines):
    out = []
    for line in lines:
        if line.strip():
            out.append(line.strip())
    return out

def clean(lines):
    return [line.strip() for line in lines if line.strip()]

## without_comment code_part cut_comment | one("a # b", "#c", "x", "y#z", "")
def without_comment(line):
    place = line.find('#')
    if place < 0:
        return line
    return line[:place]

## join_fields make_line write | some(one("a", "b", "1"), 0, 4)
def join_fields(parts):
    return SEP.join(parts)

## count_char how_many occurrences | s("ab,/", 0, 6), one("a", ",", "/")
def count_char(text, wanted):
    count = 0
    for ch in text:
        if ch == wanted:
            count += 1
    return count

## quoted unquote bare | one("'a'", "'b", "c'", "x", "''")
def quoted(text):
    return len(text) >= 2 and text[0] == "'" and (text[-1] == "'")

## indent depth leading | one("a", "  b", "    c", " d", "")
def indent(line):
    count = 0
    while count < len(line) and line[count] == ' ':
        count += 1
    return count
""",
    """
name: layout
about: Text laid out in fixed columns.
packages: layout show
modules: pad wrap bar table line frame
constants: WIDTH 4 5 6; MARK '*' '#' '-'

## pad_right fill left_align | s("ab", 0, 7), i(2, 6)
def pad_right(text, width=WIDTH):
    return text + '.' * (width - len(text))

## pad_left fill_left right_align | s("ab", 0, 7), i(2, 6)
def pad_left(text, width=WIDTH):
    return '.' * (width - len(text)) + text

## center middle centered | s("ab", 0, 6)
def center(text):
    gap = max(WIDTH - len(text), 0)
    left = gap // 2
    return '.' * left + text + '.' * (gap - left)

## bar stars draw_bar | i(-2, 7)
def bar(size):
    if size <= 0:
        return ''
    return MARK * size

## bars chart draw_all | li(-1, 5, 0, 3)
def bars(sizes):
    return [bar(size) for size in sizes]

## frame box wrapped | s("ab", 0, 4)
def frame(text):
    edge = MARK * (len(text) + 2)
    return [edge, MARK + text + MARK, edge]

## widest max_width longest | some(s("abc", 0, 5), 0, 4)
def widest(lines):
    best = 0
    for line in lines:
        if len(line) > best:
            best = len(line)
    return best

def widest(lines):
    if not lines:
        return 0
    return max([len(line) for line in lines])

## align same_width even_out | some(s("abc", 0, 4), 1, 3)
def align(lines):
    width = widest(lines)
    return [pad_right(line, width) for line in lines]

## row join_cells table_row | some(s("ab", 1, 3), 0, 3)
def row(cells):
    return '|' + '|'.join(cells) + '|'

## fits short_enough in_width | s("abcdef", 2, 8)
def fits(text):
    return len(text) <= WIDTH

## underline title heading | s("abc", 0, 4)
def underline(text):
    return text + '/' + '-' * len(text)
""",
)
