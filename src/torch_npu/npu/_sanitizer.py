"""torch_npu.npu._sanitizer: upstream's way to switch the sanitizer on; what it finds is in docs/sanitizer.md."""

from __future__ import annotations

from softnpu import sanitizer


class NPUSanitizer:
    """Upstream's class: `enable` switches the sanitizer on, once."""

    def __init__(self) -> None:
        self.enabled = False

    def enable(self) -> None:
        """Follows the device from now on."""
        sanitizer.enable()
        self.enabled = True


npu_sanitizer = NPUSanitizer()


def enable_npu_sanitizer() -> None:
    """Finds races between streams from now on; findings are printed when the process ends."""
    npu_sanitizer.enable()
