"""How devices are connected: servers, pods of servers joined by switches, and the network between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from softnpu.chips import Chip
from softnpu.plan.clock.figures import ClockError, link


@dataclass(frozen=True, slots=True)
class Group:
    """Where the ranks of a collective are: `local` in each of `servers`; `pod`: all behind the same switches."""

    local: int
    servers: int
    pod: bool

    @property
    def size(self) -> int:
        return self.local * self.servers


@dataclass(frozen=True, slots=True)
class Topology:
    """A world of `ranks` devices, `node_devices` in a server, `pod_devices` behind one set of switches."""

    chip: Chip
    ranks: int
    node_devices: int
    pod_devices: int

    @classmethod
    def of(cls, chip: Chip, ranks: int = 1, node_devices: int = 0) -> Topology:
        """The usual one of the chip's servers. A chip without figures can still be alone."""
        if ranks <= 1:
            return cls(chip, 1, 1, 1)
        node = node_devices or int(link(chip, "node_devices"))
        if ranks > node and ranks % node:
            raise ClockError(
                f"a world of {ranks} ranks does not fill servers of {node} devices ({chip.name}): "
                f"take a multiple of {node}"
            )
        return cls(chip, ranks, node, int(chip.links.get("pod_devices", 0)))

    def group(self, peers: Sequence[int], size: int = 0) -> Group:
        """Where these global ranks are; without ranks, `size` neighbors from rank 0 on."""
        ranks = list(peers) or list(range(size))
        outside = [rank for rank in ranks if not 0 <= rank < max(self.ranks, 1)]
        if outside:
            raise ClockError(f"rank {outside[0]} is outside of a world of {self.ranks} ranks")
        servers = Counter(rank // self.node_devices for rank in ranks)
        pods = {rank // self.pod_devices for rank in ranks} if self.pod_devices else {0, 1}
        local = max(servers.values(), default=1)
        return Group(local, len(servers) or 1, len(pods) == 1)

    def bandwidth_within(self, peers: int) -> float:
        """Bytes a second that a device sends to `peers` others of its server at once."""
        if "mesh_gbs" in self.chip.links:
            return peers * link(self.chip, "mesh_gbs")
        switch = link(self.chip, "switch_gbs")
        if peers <= 1 or "package_gbs" not in self.chip.links:
            return (
                max(switch, float(self.chip.links.get("package_gbs", 0)) * 1e9) if peers else switch
            )
        return switch * peers / (peers - 1)  # the other die of the package has its own link

    def bandwidth_between(self, pod: bool) -> float:
        """Bytes a second that a device sends to other servers."""
        switched = pod and "switch_gbs" in self.chip.links
        return link(self.chip, "switch_gbs" if switched else "network_gbs")
