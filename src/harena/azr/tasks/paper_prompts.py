"""The words of the `paper` profile, filled in by prompts.py with str.format; what models write is never a format."""

from __future__ import annotations

from harena.azr.tasks.kinds import Kind

PAPER_SYSTEM = """\
You are given a task. First think it through, then give the answer. Put the thinking between <think> and </think> and \
the answer between <answer> and </answer>, in that order and with nothing else around them.

{question}

<think>"""

_PROPOSE = """\
Invent a new Python program and one input for it. {goal}

Rules for the program:
- Its only entry point is a function named `f`, and that is the only function at the top level; helpers go inside of it.
- `f` takes at least one argument and returns a value; nothing is printed or read.
- It gives the same output for the same input, always: no randomness, no clock, no dependence on the order of a set.
- No imports of modules that reach outside the program: os, sys, io, subprocess, threading, random, time, datetime, …
- It ends within a second. Inputs and outputs are plain values: numbers, texts, lists, tuples, sets, dicts, booleans, \
None.

Rules for the input:
- It is the argument list of one call of `f`, separated by commas, as plain values. \
Example: [1, 2, 3], 'text', {{{{'a': 1}}}}

It should be solvable, but need several steps of reasoning: state that changes, recursion, data structures, conditions \
that interact. Make it different in idea from each of these examples:

{{references}}

Write the answer as one ```python block with the program and one ```input block with the argument list."""

PAPER_ASK = {
    Kind.DEDUCTION: _PROPOSE.format(
        goal="Somebody else will see the program and the input, and has to say what `f` returns, without running it."
    ),
    Kind.ABDUCTION: _PROPOSE.format(
        goal="Somebody else will see the program and what it returns, and has to find an input that gives this."
    ),
    Kind.INDUCTION: """\
Here is a Python program:

{references}

Write {inputs} inputs for it and a message. Somebody else will see the message and half of the inputs with their \
outputs, and has to write a program that does the same; the other half will test it. So the inputs should be different \
from each other and together show everything that the program does. The message says in words what to look for, \
without giving the program away.

Each input is the argument list of one call of `f`, separated by commas, as plain values. Write the answer as exactly \
{inputs} ```input blocks and one ```message block.""",
}

PAPER_SOLVE = {
    Kind.DEDUCTION: """\
Here is a Python program and an input for it, which is the argument list of the call of `f`:

```python
{program}
```
```input
{input}
```

What does `f` return? Write the answer as one ```output block with the value as a Python literal.""",
    Kind.ABDUCTION: """\
Here is a Python program and what its function `f` returned:

```python
{program}
```
```output
{output}
```

Find an input that gives this output; if there are several, any will do. Write the answer as one ```input block with \
the argument list of the call of `f`, separated by commas, as plain values. Example: [1, 2, 3], 'text', {{'a': 1}}""",
    Kind.INDUCTION: """\
A function `f` gave these outputs for these inputs, each of which is the argument list of one call:

{pairs}

About it was said: {message}

Write a Python program with one function `f` at the top level that does the same, also for inputs that are not shown. \
Write the answer as one ```python block.""",
}
