from __future__ import annotations

import pytest

from slurm_robust.util.child import LineProcess
from tests.unit.slurm.test_process import python


def test_each_line_is_answered() -> None:
    child = LineProcess(python("import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"))
    child.send("a")
    child.send("b")
    assert child.receive(20) == "A"
    assert child.receive(20) == "B"
    with pytest.raises(TimeoutError):
        child.receive(0.05)
    assert child.alive
    child.close()
    assert not child.alive


def test_an_end_comes_with_the_errors() -> None:
    child = LineProcess(python("import sys; sys.exit('bye')"))
    with pytest.raises(EOFError, match="bye"):
        child.receive(20)
    child.close()
