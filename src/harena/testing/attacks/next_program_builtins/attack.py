import builtins
import json
import math
import os

math.sqrt = lambda x: -1.0
json.dumps = lambda *a, **k: "owned"
os.getcwd = lambda: "owned"
builtins.owned = True
print("denied", flush=True)
builtins.len = builtins.print = builtins.isinstance = builtins.__import__ = lambda *a, **k: 1 / 0
