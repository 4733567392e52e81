import builtins
import json
import math
import os

from attacker import escaped, finish

if hasattr(builtins, "owned") or len("abc") != 3 or math.sqrt(4) != 2 or json.dumps(1) != "1" or os.getcwd() == "owned":
    escaped("the last program's patches are here")
finish()
