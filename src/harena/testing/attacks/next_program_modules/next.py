import decimal
import heapq
import string
import sys

from attacker import escaped, finish

if hasattr(sys, "owned") or "owned" in sys.modules or "/owned" in sys.path or sys.getrecursionlimit() == 123:
    escaped("sys is poisoned")
if any(hasattr(thing, "owned") for thing in (decimal, heapq, string, *sys.meta_path)):
    escaped("modules are poisoned")
finish()
