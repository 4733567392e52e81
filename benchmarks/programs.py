"""Small Python programs in the manner of CRUXEval and Absolute Zero, the same ones for Harena and for every peer.

Each defines `f`, calls it on one input and prints the repr of what it returns: 5 to 15 lines, a tenth of a millisecond
of Python, compilation included. The same seed gives the same programs; none depends on the hash seed, the clock or the
machine, so every executor must print the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable

LOOP = "n = 0\nwhile True:\n    n += 1\n"
"""Never ends, and never sleeps: it costs whoever waits for it a core."""

Arguments = Callable[[random.Random], str]

_WORDS = [
    "arena",
    "box",
    "clay",
    "delta",
    "ember",
    "frost",
    "grain",
    "hollow",
    "iron",
    "jade",
    "kite",
    "lemon",
    "marsh",
    "nickel",
    "opal",
    "pearl",
    "quartz",
    "river",
]


def programs(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [_program(rng) for _ in range(n)]


def loops(n: int, every: int, seed: int = 0) -> list[str]:
    """`programs`, with an infinite loop in place of one in each `every`: loops(512, 20) has 26."""
    mixed = programs(n, seed)
    mixed[every // 2 :: every] = [LOOP] * len(mixed[every // 2 :: every])
    return mixed


def _program(rng: random.Random) -> str:
    body, arguments = rng.choice(_TASKS)
    # A constant of its own in each: no two programs are the same code called on other data.
    return f"{body.strip().replace('K', str(rng.randint(2, 9)))}\n\nprint(repr(f({arguments(rng)})))\n"


def _text(rng: random.Random) -> str:
    return repr(" ".join(rng.choice(_WORDS) for _ in range(rng.randint(4, 12))))


def _numbers(rng: random.Random) -> str:
    return repr([rng.randint(-50, 99) for _ in range(rng.randint(8, 30))])


def _words(rng: random.Random) -> str:
    return repr([rng.choice(_WORDS) for _ in range(rng.randint(5, 15))])


def _table(rng: random.Random) -> str:
    return repr({word: rng.randint(0, 40) for word in rng.sample(_WORDS, rng.randint(4, 10))})


def _matrix(rng: random.Random) -> str:
    size = rng.randint(3, 6)
    return repr([[rng.randint(0, 9) for _ in range(size)] for _ in range(size)])


def _nested(rng: random.Random) -> str:
    def tree(depth: int) -> list[object]:
        return [
            tree(depth - 1) if depth and rng.random() < 0.4 else rng.randint(0, 20) for _ in range(rng.randint(2, 4))
        ]

    return repr(tree(3))


def _small(rng: random.Random) -> str:
    return repr(rng.randint(20, 90))


_TASKS: list[tuple[str, Arguments]] = [
    (
        """
def f(text):
    counts = {}
    for char in text:
        if char != ' ':
            counts[char] = counts.get(char, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:K]
""",
        _text,
    ),
    (
        """
def f(text):
    out = []
    for word in text.split():
        if len(word) % K == 0:
            out.append(word[::-1])
        else:
            out.append(word.capitalize())
    return ' '.join(out)
""",
        _text,
    ),
    (
        """
def f(text):
    shifted = ''
    for char in text:
        if char.isalpha():
            shifted += chr((ord(char) - ord('a') + K) % 26 + ord('a'))
        else:
            shifted += char
    return shifted, text.count('e')
""",
        _text,
    ),
    (
        """
def f(text):
    runs = []
    for char in text.replace(' ', ''):
        if runs and runs[-1][0] == char:
            runs[-1][1] += 1
        else:
            runs.append([char, 1])
    return ''.join(char + str(n * K) for char, n in runs)
""",
        _text,
    ),
    (
        """
def f(text):
    vowels = [char for char in text if char in 'aeiou']
    text = text.replace('a', '').strip()
    start = text.find('e')
    if start == -1:
        return text.upper()
    return text[start:start + K], len(vowels), text.rpartition(' ')[2]
""",
        _text,
    ),
    (
        """
def f(nums):
    output = []
    for n in nums:
        output.append((nums.count(n), n % K))
    output.sort(reverse=True)
    return output[:5]
""",
        _numbers,
    ),
    (
        """
def f(nums):
    best = current = nums[0]
    for n in nums[1:]:
        current = max(n, current + n)
        best = max(best, current)
    return best - K, sum(nums), min(nums)
""",
        _numbers,
    ),
    (
        """
def f(nums):
    nums = nums[:]
    for i in range(len(nums)):
        low = i
        for j in range(i + 1, len(nums)):
            if nums[j] < nums[low]:
                low = j
        nums[i], nums[low] = nums[low], nums[i]
    return nums[::K]
""",
        _numbers,
    ),
    (
        """
def f(nums):
    if len(nums) <= 1:
        return nums
    pivot, rest = nums[0], nums[1:]
    left = [n for n in rest if n % (10 * K) < pivot % (10 * K)]
    right = [n for n in rest if n % (10 * K) >= pivot % (10 * K)]
    return f(left) + [pivot] + f(right)
""",
        _numbers,
    ),
    (
        """
def f(nums):
    seen = set()
    pairs = []
    for n in nums:
        for other in sorted(seen):
            if (n + other) % K == 0 and n != other:
                pairs.append((other, n))
        seen.add(n)
    return len(pairs), pairs[:4]
""",
        _numbers,
    ),
    (
        """
def f(nums):
    window = []
    for i in range(len(nums) - K + 1):
        part = nums[i:i + K]
        window.append(round(sum(part) / K, 2))
    return max(window, default=None), window[-3:]
""",
        _numbers,
    ),
    (
        """
def f(nums):
    stack = []
    for n in nums:
        while stack and stack[-1] > n:
            stack.pop()
        if n % K:
            stack.append(n)
    return {'stack': stack, 'depth': len(stack)}
""",
        _numbers,
    ),
    (
        """
def f(words):
    groups = {}
    for word in words:
        groups.setdefault(len(word) % K, []).append(word)
    return {size: sorted(group) for size, group in sorted(groups.items())}
""",
        _words,
    ),
    (
        """
def f(words):
    result = []
    for i, word in enumerate(words):
        if i % 2:
            word = word.upper()
        result.insert(0, word.ljust(K, '-').strip('a'))
    return '|'.join(result)
""",
        _words,
    ),
    (
        """
def f(words):
    def distance(a, b):
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            last, row[0] = row[0], i
            for j, y in enumerate(b, 1):
                last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
        return row[-1]
    return [distance(words[0], word) for word in words[1:4]], K
""",
        _words,
    ),
    (
        """
def f(table):
    inverse = {}
    for key, value in table.items():
        inverse.setdefault(value // K, []).append(key)
    for keys in inverse.values():
        keys.sort()
    return dict(sorted(inverse.items()))
""",
        _table,
    ),
    (
        """
def f(table):
    total = 0
    for key in list(table):
        if table[key] < K:
            total += table.pop(key)
        else:
            table[key] -= K
    table['total'] = total
    return sorted(table.items(), key=lambda item: (item[1], item[0]))
""",
        _table,
    ),
    (
        """
def f(grid):
    flipped = [list(row) for row in zip(*grid)]
    for i, row in enumerate(flipped):
        flipped[i] = [x * K if j == i else x for j, x in enumerate(row)]
    return flipped, sum(flipped[i][i] for i in range(len(flipped)))
""",
        _matrix,
    ),
    (
        """
def f(grid):
    spiral = []
    while grid:
        spiral += grid[0]
        grid = [list(row) for row in zip(*grid[1:])][::-1]
    return [x for x in spiral if x != K]
""",
        _matrix,
    ),
    (
        """
def f(items, depth=1):
    total = 0
    for item in items:
        if isinstance(item, list):
            total += f(item, depth + 1)
        else:
            total += item * depth
    return total % (100 * K)
""",
        _nested,
    ),
    (
        """
def f(items):
    flat = []
    def walk(item, path):
        if isinstance(item, list):
            for i, child in enumerate(item):
                walk(child, path + (i,))
        elif item % K:
            flat.append((path, item))
    walk(items, ())
    return flat[-3:]
""",
        _nested,
    ),
    (
        """
def f(n):
    sieve = [True] * (n + 1)
    primes = []
    for i in range(2, n + 1):
        if sieve[i]:
            primes.append(i)
            for j in range(i * i, n + 1, i):
                sieve[j] = False
    return primes[-K:]
""",
        _small,
    ),
    (
        """
def f(n):
    steps = []
    while n != 1 and len(steps) < 10 * K:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps.append(n)
    return len(steps), max(steps)
""",
        _small,
    ),
    (
        """
def f(n, memo=None):
    memo = {} if memo is None else memo
    if n < 2:
        return n
    if n not in memo:
        memo[n] = (f(n - 1, memo) + f(n - 2, memo)) % (1000 * K + 7)
    return memo[n]
""",
        _small,
    ),
]
