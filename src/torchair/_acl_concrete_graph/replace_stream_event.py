"""The counter of graphs whose streams and events upstream names; here it numbers the graphs that are compiled."""

from __future__ import annotations

import itertools

from torchair import compiler

__all__ = ["GraphCounter"]


class GraphCounter:
    """Numbers compiled graphs."""

    @classmethod
    def graph_id(cls) -> str:
        """The prefix of the next graph's names."""
        return f"graph_{compiler.next_graph_id()}_"

    @classmethod
    def set_graph_id(cls, value: int) -> None:
        """The next graph has the number after this one."""
        compiler._graph_ids = itertools.count(value + 1)
