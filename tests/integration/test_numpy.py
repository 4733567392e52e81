"""Libraries with threads, imported before a fork: their products are computed, their children end, nothing hangs."""

from __future__ import annotations

import pytest

from harena import Limits, Sandbox, SandboxPool, Spec

pytest.importorskip("numpy")

PRODUCT = "import numpy as np\na = np.ones((500, 500))\nprint(int((a @ a)[0, 0]))"
POOL = """
import multiprocessing
import numpy as np
def f(x):
    return int((np.ones((200, 200)) @ np.ones((200, 200)))[0, 0]) * x
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(2) as pool:
        print(pool.map(f, [1, 2, 3]))
"""
ANSWERS = {PRODUCT: b"500\n", POOL: b"[200, 400, 600]\n"}
SPEC = Spec(packages=("numpy",), preload=("numpy",), workspace_mb=16)
LIMITS = Limits(wall_s=60, memory_mb=1024, processes=100)


@pytest.mark.parametrize("launcher", ["native", "bubblewrap"])
def test_preloaded_numpy_computes_and_forks_in_run_and_map(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from harena.sandbox import backend as backends

    monkeypatch.setenv("HARENA_LAUNCHER", launcher)
    backends.load.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        with Sandbox(SPEC, limits=LIMITS) as box:
            for source, answer in ANSWERS.items():
                assert box.run(source).stdout == answer
                assert box.run(source).stdout == answer
        with SandboxPool(SPEC, warm=1, max_live=1, limits=LIMITS) as pool:
            for group in (1, 5):
                results = pool.map([PRODUCT, POOL] * 4, group=group)
                assert [result.stdout for result in results] == [*ANSWERS.values()] * 4
    finally:
        backends.load.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_fork_after_a_product_computes_as_its_parent_does() -> None:
    with Sandbox(SPEC, limits=LIMITS) as box:
        assert box.run(PRODUCT).stdout == b"500\n"
        for _ in range(3):
            (child,) = box.fork()
            with child:
                for source, answer in ANSWERS.items():
                    assert child.run(source).stdout == answer
        assert box.run(PRODUCT).stdout == b"500\n"


@pytest.mark.soak
def test_thousand_products_none_of_which_hangs() -> None:
    with SandboxPool(SPEC, warm=1, max_live=1, limits=LIMITS) as pool:
        assert {result.stdout for result in pool.map([PRODUCT] * 1000)} == {b"500\n"}
    with Sandbox(SPEC, limits=LIMITS) as box:
        for _ in range(100):
            (child,) = box.fork()
            with child:
                assert child.run(PRODUCT).stdout == box.run(PRODUCT).stdout == b"500\n"
