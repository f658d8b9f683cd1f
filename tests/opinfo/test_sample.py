"""A spread of the operator database for every test run; `make opinfo` runs all of it."""

import pytest

from tests.opinfo.compare import Pair, Unsupported, check, exceptions, excused, pairs

EVERY = 9  # of about 6,000 pairs; neighbors are the dtypes of one operator, so every operator has its turn
PAIRS = list(pairs())


def test_the_database_is_there():
    assert len(PAIRS) > 5000 and len({p.name for p in PAIRS}) > 600


@pytest.mark.parametrize("pair", PAIRS[::EVERY], ids=lambda p: p.key)
def test_same_as_cpu(pair: Pair):
    reason = excused(pair, exceptions())
    if reason:  # by how much depends on the CPU's instructions
        expected = "torch.float32 != torch.float64" if "float64" in reason else "not close"
        try:
            check(pair)
        except AssertionError as difference:
            assert expected in str(difference)
        return
    try:
        assert check(pair) >= 0
    except Unsupported:
        assert pair.op.name.startswith("jiterator") or pair.name in CPU_CANNOT, (
            f"{pair.key}: the CPU cannot run it"
        )


CPU_CANNOT: set[str] = set()
