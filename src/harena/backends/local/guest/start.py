"""Entry point of the agent in a box. Executed by its path, as one of:

start.py LIBRARY CPU PRELOAD...   the zygote; the host's socket is descriptor 3
start.py --loop CONTROL STEPS     pid 1 of a box without the native library; CONTROL is the host's socket
start.py --template PRELOAD...    the warm Python of such a box
start.py --image PRELOAD...       Python of an image, already confined: a program, an interpreter, a call
start.py --custody                the keeper, and then the loop, of a box without namespaces; its order is descriptor 3
start.py --bare-template PRELOAD...   the warm Python of such a box
start.py --check PRELOAD...       imports the preload modules, for their complaints, where a zygote did not start

Guests share this process, and must not find our modules: the modules load as a package whose name no import statement
can spell, and are then removed from sys.modules. So none of them may import another one later, inside a function.
"""

from __future__ import annotations

import sys

PACKAGE = "harena-guest"
MODULES = {
    "--loop": "loop",
    "--template": "template",
    "--image": "image",
    "--custody": "bare.custody",
    "--bare-template": "bare.template",
}


def load_module(name, folder):
    package = sys.modules[PACKAGE] = type(sys)(PACKAGE)
    package.__path__ = [folder]
    __import__(f"{PACKAGE}.{name}")
    module = sys.modules[f"{PACKAGE}.{name}"]
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == PACKAGE]:
        del sys.modules[loaded]
    for path in [path for path in sys.path_importer_cache if path.startswith(folder)]:
        del sys.path_importer_cache[path]
    return module


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    sys.argv[:] = ["program.py"]  # what programs will see, as if each were such a file
    sys.orig_argv = [sys.executable, *sys.argv]
    load_module(MODULES.get(role, "zygote"), __file__.rpartition("/")[0]).main(role, arguments)
