"""What an agent's box has: Python with the packages for agents, and the harness, as files or as a program."""

from __future__ import annotations

import functools
from pathlib import Path

from harena.match.agent import packages
from harena.sandbox.spec import Mount, Spec

FOLDER = "/opt/harena"
WARM = ("inspect", "json", "random", "socket", "traceback")
"""What the harness imports that takes time; imported once for all agents of a box."""
LOADER = """\
import sys, types
for name, text in {modules!r}:
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = "{folder}/" + name + ".py"
    exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)
module.main()
"""


def box_spec(requirements: tuple[str, ...] = ()) -> Spec:
    """Spec of an agent's box: Python with the warm packages for agents, and the harness.

    With requirements, which the agent chose, nothing is preloaded: the warm interpreter must not import them."""
    visible = packages.for_agents()
    door = Path(__file__).parents[1]
    mounts = tuple(
        Mount(source=str(door / path), target=f"{FOLDER}/harena_{path.stem}.py")
        for path in (Path("spaces.py"), Path("agent/harness.py"))
    )
    preload = () if requirements else (*packages.warm(visible), "harena_harness")
    return Spec(packages=visible, requirements=requirements, preload=preload, paths=(FOLDER,), mounts=mounts)


def far_spec(requirements: tuple[str, ...] = ()) -> Spec:
    """Spec of an agent's box without files of the machine that makes it. It must offer the packages."""
    visible = packages.for_agents()
    preload = () if requirements else (*WARM, *packages.warm(visible))
    return Spec(packages=visible, requirements=requirements, preload=preload)


@functools.cache
def far_source() -> str:
    """The harness as one program."""
    match = Path(__file__).parents[1]
    modules = [
        (f"harena_{path.stem}", path.read_text(encoding="utf-8"))
        for path in (match / "spaces.py", match / "agent/harness.py")
    ]
    return LOADER.format(modules=modules, folder=FOLDER)
