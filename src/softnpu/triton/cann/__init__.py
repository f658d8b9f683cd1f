"""triton.language.extra.cann: what kernels written for triton-ascend use beyond Triton's language.

Imported under that name (softnpu.triton's finder), unless triton-ascend is installed. The functions work on the
interpreter's values, which are arrays of numpy.
"""

from softnpu.triton.cann import extension, libdevice

__all__ = ["extension", "libdevice"]
