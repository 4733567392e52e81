import sys
import types

from attacker import TARGET, finish

for name in ("heapq", "string", "decimal", "owned"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].owned = TARGET["mark"]
sys.path.insert(0, "/owned")
sys.meta_path.insert(0, types.SimpleNamespace(find_spec=lambda *a: None, owned=True))
sys.owned = True
sys.setrecursionlimit(123)
finish()
