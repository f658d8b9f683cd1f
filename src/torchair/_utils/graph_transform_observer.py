"""What looks at the graph after each pass, under upstream's name."""

from torchair._observe import Observer as GraphTransformObserver

__all__ = ["GraphTransformObserver"]
