"""mooncake.engine where Mooncake is not installed: KV caches of one process read and written by another.

On the card the engine's transport `ascend` moves memory between devices. Here a device's memory is memory of the host, and
each engine serves what was registered with it over TCP, to those who know its address and port.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import socketserver
import struct
import threading
from collections.abc import Sequence

__all__ = ["TransferEngine"]

_READ, _WRITE = 0, 1
_DONE, _REFUSED = 0, 1
_HEAD, _SPAN = struct.Struct("!BI"), struct.Struct("!QQ")


class TransferEngine:
    """What vllm-ascend calls of Mooncake's class; 0 is success, -1 failure."""

    def __init__(self) -> None:
        self._memory: dict[int, int] = {}
        self._server: _Server | None = None
        self._sockets: dict[str, socket.socket] = {}
        self._lock = threading.Lock()

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Begins to serve; the handshake is peer to peer, and no server of metadata is asked."""
        if metadata_server != "P2PHANDSHAKE":
            raise NotImplementedError(
                "mooncake.engine.TransferEngine.initialize: argument 'metadata_server' must be "
                f"'P2PHANDSHAKE', received {metadata_server!r}"
            )
        del protocol, device_name  # every one of them is TCP here
        host = (
            local_hostname.rsplit(":", 1)[0] if local_hostname.count(":") == 1 else local_hostname
        )
        self._server = _Server((host, 0), self._memory)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return 0

    def get_rpc_port(self) -> int:
        if self._server is None:
            raise RuntimeError("mooncake.engine.TransferEngine: initialize() comes first")
        return self._server.server_address[1]

    def register_memory(self, buffer_addr: int, capacity: int) -> int:
        self._memory[buffer_addr] = max(capacity, self._memory.get(buffer_addr, 0))
        return 0

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int]
    ) -> int:
        for address, size in zip(buffer_addresses, capacities, strict=True):
            self.register_memory(address, size)
        return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        return 0 if self._memory.pop(buffer_addr, None) is not None else -1

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int
    ) -> int:
        return self.batch_transfer_sync_read(
            target_hostname, [buffer], [peer_buffer_address], [length]
        )

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int
    ) -> int:
        return self.batch_transfer_sync_write(
            target_hostname, [buffer], [peer_buffer_address], [length]
        )

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        """Copies from addresses of the peer ("host:port") to addresses of this process."""
        return self._transfer(_READ, target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        """Copies from addresses of this process to addresses of the peer."""
        return self._transfer(_WRITE, target_hostname, buffers, peer_buffer_addresses, lengths)

    def _transfer(
        self,
        kind: int,
        peer: str,
        buffers: Sequence[int],
        addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        spans = list(zip(addresses, lengths, strict=True))
        with self._lock:
            try:
                link = self._connect(peer)
                link.sendall(_HEAD.pack(kind, len(spans)) + b"".join(_SPAN.pack(*s) for s in spans))
                if kind == _WRITE:
                    for own, size in zip(buffers, lengths, strict=True):
                        link.sendall(_view(own, size))
                if _receive(link, bytearray(1))[0] != _DONE:
                    return -1
                if kind == _READ:
                    for own, size in zip(buffers, lengths, strict=True):
                        _receive(link, _view(own, size))
            except OSError:
                with contextlib.suppress(KeyError):
                    self._sockets.pop(peer).close()
                return -1
        return 0

    def _connect(self, peer: str) -> socket.socket:
        if peer not in self._sockets:
            host, port = peer.rsplit(":", 1)
            self._sockets[peer] = socket.create_connection((host.strip("[]"), int(port)), 30)
        return self._sockets[peer]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], memory: dict[int, int]):
        self.memory = memory
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def registered(self, address: int, size: int) -> bool:
        return any(
            start <= address and address + size <= start + length
            for start, length in self.memory.items()
        )


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the peer has gone
            while True:
                self._answer()

    def _answer(self) -> None:
        kind, count = _HEAD.unpack(_receive(self.request, bytearray(_HEAD.size)))
        listed = _receive(self.request, bytearray(_SPAN.size * count))
        spans = list(_SPAN.iter_unpack(listed))
        allowed = all(self.server.registered(*span) for span in spans)
        if kind == _WRITE:
            for span in spans:
                _receive(self.request, _view(*span) if allowed else bytearray(span[1]))
        self.request.sendall(bytes([_DONE if allowed else _REFUSED]))
        if kind == _READ and allowed:
            for span in spans:
                self.request.sendall(_view(*span))


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _receive(link: socket.socket, into: bytearray | memoryview) -> bytearray | memoryview:
    """Fills `into` whole."""
    rest = memoryview(into)
    while rest.nbytes:
        got = link.recv_into(rest)
        if not got:
            raise ConnectionResetError("the peer closed the connection")
        rest = rest[got:]
    return into
