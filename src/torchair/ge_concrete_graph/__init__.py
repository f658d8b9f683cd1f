"""The old name of parts of torchair.ge, under which programs and upstream's examples still import them."""

from __future__ import annotations

from torchair.core.utils import logger

logger.warning_once(
    "torchair.ge_concrete_graph is deprecated: import torchair.ge and torchair.register_fx_node_ge_converter"
)
