"""To which class of costs an operator belongs, by words in its name.

The same words occur in ATen's names (`aten::native_layer_norm`), in torch_npu's (`npu::npu_rms_norm`) and in the types of
kernel_details.csv (`RmsNorm`), so one rule serves plans and calibration.
"""

from __future__ import annotations

import functools
import re

CUBE, GROUPED, CONVOLUTION, ATTENTION = "cube", "grouped", "convolution", "attention"
ELEMENTWISE, ROW, SORT, GATHER, COPY = "elementwise", "row", "sort", "gather", "copy"

# The first rule that matches decides.
_RULES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (COPY, r"^(copy|memcpy.*|_copy_from.*|memcpyasync)$"),
        (GROUPED, r"grouped_?mat_?mul|grouped_?mm|gmm"),
        (ROW, r"quantmatmuldequant_|attention_?(mask|update|worker)|dynamic_?quant|swiglu_?quant"),
        (ATTENTION, r"attention|flash|_mla$|^mla|multi_head_latent|ring_?mla|paged_?att"),
        (CONVOLUTION, r"^conv(olution)?(_?[123]_?d|_|$|depthwise|transpose|tbc)"),
        (CUBE, r"mat_?mul|(^|_)(add|b|badd|addb|baddb|int_|scaled_)?mm(_|v[0-9]|$)|addmv|^mv$|^dot$|linear(_|$)|gemm|einsum"),
        (ROW, r"gating"),
        (GATHER, r"^embedding$|^gather|^index(_select)?$|^take|embedding_bag"),
        (SORT, r"sort|top_?k|unique|median|kthvalue|mode$"),
        (ROW, r"norm|softmax|rope|rotary|quant|logsumexp|nll|cross_entropy|cumsum|std|var(_|$)|moe|scatter|embedding_dense"),
    )
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def classify(name: str) -> str:
    """The class of an operator's name or of a kernel's type."""
    plain = name.rsplit("::", 1)[-1].split(".", 1)[0]
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower().removeprefix("npu_")
    for kind, pattern in _RULES:
        if pattern.search(snake) or pattern.search(snake.replace("_", "")):
            return kind
    return ELEMENTWISE


def is_backward(name: str) -> bool:
    return bool(re.search(r"backward|_grad|Grad|Backprop", name))
