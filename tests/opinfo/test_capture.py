"""A spread of the operator database under capture for every test run, and all of it, marked slow."""

from __future__ import annotations

import pytest

from tests.opinfo.capture import Refused, check, operators, refusals

EVERY = 12  # of about 650 operators
OPERATORS = operators()
SLOW = [
    pytest.param(pair, id=pair.name, marks=() if i % EVERY == 0 else pytest.mark.slow)
    for i, pair in enumerate(OPERATORS)
]


def test_the_table_names_operators_of_the_database():
    assert set(refusals()) <= {pair.name for pair in OPERATORS}


@pytest.mark.parametrize("pair", SLOW)
def test_a_replay_gives_what_the_eager_call_gives(pair):
    why = refusals().get(pair.name)
    if why is None:
        assert check(pair) >= 0
        return
    with pytest.raises(Refused, match="makes the host wait|Could not run"):
        check(pair)
