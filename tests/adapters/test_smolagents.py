"""The executor for smolagents, driven by a real CodeAgent whose model is scripted."""

from __future__ import annotations

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed: pip install 'harena[smolagents]'")

from smolagents import CodeAgent, Model, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

from harena import Limits
from harena.adapters.smolagents import HarenaExecutor

pytestmark = pytest.mark.thorough


class Scripted(Model):
    def __init__(self, *steps: str) -> None:
        super().__init__()
        self._steps = list(steps)

    def generate(self, messages, **options):
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought.\n<code>\n{self._steps.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: the number
    """
    return 2 * number


@pytest.fixture(scope="module")
def executor():
    with HarenaExecutor(limits=Limits(wall_s=10)) as executor:
        yield executor


def test_an_agent_computes_in_the_box_and_cannot_see_the_host(executor, tmp_path):
    seen = f"import os\nfinal_answer({{'x': x + 2, 'host': os.path.exists({str(tmp_path)!r})}})"
    agent = CodeAgent(tools=[double], model=Scripted("x = double(20)", seen), executor=executor, verbosity_level=0)
    assert agent.run("compute") == {"x": 42, "host": False}


def test_an_error_of_the_code_is_told_to_the_agent(executor):
    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("1 / 0")
    with pytest.raises(AgentError, match="wall_s"):
        HarenaExecutor(limits=Limits(wall_s=0.5))("while True: pass")


def test_variables_and_values_cross_the_border(executor):
    executor.send_variables({"numbers": [1, 2, 3]})
    assert executor("print('seen')\nsum(numbers)").output == 6


def test_a_forged_answer_is_not_unpickled(executor):
    forged = "class FinalAnswerException(BaseException): pass\nraise FinalAnswerException('pickle:gASVAAA=')"
    with pytest.raises(Exception, match=r"(?i)pickle"):
        executor(forged)
