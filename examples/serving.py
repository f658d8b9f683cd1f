"""A serving loop: requests of different lengths share paged key and value caches, and one NPUGraph makes every step.

    python examples/serving.py

The step of a whole batch is captured once. Before each replay the loop writes the new tokens, their places and the
block tables into the graph's inputs, and gives attention its sequence lengths with `NPUGraph.update`. A request that is
done frees its blocks for the next one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import torch_npu

WORDS, WIDTH, HEADS, BLOCK, BLOCKS, SLOTS, LONGEST = 64, 64, 4, 16, 24, 3, 48


class PagedLayer(nn.Module):
    """Attention over pages, then a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(BLOCKS, BLOCK, WIDTH))

    def forward(
        self, x: torch.Tensor, places: torch.Tensor, tables: torch.Tensor, lengths: list[int]
    ) -> torch.Tensor:
        query, key, value = self.qkv(torch_npu.npu_rms_norm(x, self.gamma)[0]).chunk(3, -1)
        self.keys.view(-1, WIDTH).index_copy_(0, places, key)
        self.values.view(-1, WIDTH).index_copy_(0, places, value)
        attended, _ = torch_npu.npu_fused_infer_attention_score(
            query.unsqueeze(1),
            self.keys,
            self.values,
            num_heads=HEADS,
            input_layout="BSH",
            scale=(WIDTH // HEADS) ** -0.5,
            block_table=tables,
            block_size=BLOCK,
            actual_seq_lengths_kv=lengths,
        )
        x = x + self.out(attended.squeeze(1))
        return x + self.down(torch_npu.npu_swiglu(self.up(x)))


class Model(nn.Module):
    """Two paged layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(PagedLayer() for _ in range(2))

    def forward(
        self, tokens: torch.Tensor, places: torch.Tensor, tables: torch.Tensor, lengths: list[int]
    ) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, places, tables, lengths)
        return self.head(x).argmax(-1)


@dataclass
class Request:
    """A prompt, how many tokens are wanted, and what has been generated."""

    prompt: list[int]
    wanted: int
    blocks: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    length: int = 0  # tokens in the cache

    def next_token(self) -> int:
        text = self.prompt + self.tokens
        return text[self.length]

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.wanted


class Server:
    """The scheduler: slots of a fixed batch, free blocks, and the captured step. Slot 0 of the pages is scratch."""

    def __init__(self, graphed: bool = True) -> None:
        torch.manual_seed(0)
        self.model = Model().to("npu", torch.float16).eval().requires_grad_(False)
        self.tokens = torch.zeros(SLOTS, dtype=torch.int64, device="npu")
        self.places = torch.arange(SLOTS, device="npu")
        self.tables = torch.zeros(SLOTS, LONGEST // BLOCK, dtype=torch.int32, device="npu")
        self.free = list(range(1, BLOCKS))
        self.graph = torch.npu.NPUGraph() if graphed else None
        if self.graph is not None:
            with torch.npu.graph(self.graph, auto_dispatch_capture=True):
                self.result = self.model(self.tokens, self.places, self.tables, [1] * SLOTS)

    def step(self, running: list[Request | None]) -> None:
        """One token for every request that runs: of its prompt while that lasts, then its own last one."""
        tokens, places, lengths = [0] * SLOTS, list(range(SLOTS)), [1] * SLOTS
        tables = torch.zeros(SLOTS, LONGEST // BLOCK, dtype=torch.int32)
        for slot, request in enumerate(running):
            if request is None:
                continue
            if request.length % BLOCK == 0:
                request.blocks.append(self.free.pop())
            tokens[slot] = request.next_token()
            places[slot] = request.blocks[-1] * BLOCK + request.length % BLOCK
            request.length += 1
            lengths[slot] = request.length
            tables[slot, : len(request.blocks)] = torch.tensor(request.blocks, dtype=torch.int32)
        self.tokens.copy_(torch.tensor(tokens))
        self.places.copy_(torch.tensor(places))
        self.tables.copy_(tables)
        if self.graph is None:
            self.result = self.model(self.tokens, self.places, self.tables, lengths)
        else:
            self.graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])
            self.graph.replay()
        for request, token in zip(running, self.result.tolist(), strict=True):
            if request is not None and request.length >= len(request.prompt):
                request.tokens.append(token)

    def serve(self, requests: list[Request]) -> int:
        """Runs all requests, at most SLOTS at a time; returns the number of steps."""
        waiting, running = list(requests), [None] * SLOTS
        steps = 0
        while waiting or any(running):
            for slot, request in enumerate(running):
                if request is not None and request.done:
                    self.free += request.blocks
                    running[slot] = None
                if running[slot] is None and waiting:
                    running[slot] = waiting.pop(0)
            if any(running):
                self.step(running)
                steps += 1
        return steps


def requests() -> list[Request]:
    """Seven requests of different lengths."""
    return [
        Request([(7 * i + j) % WORDS for j in range(3 + 4 * i % 11)], 6 + 5 * i) for i in range(7)
    ]


def main() -> None:
    """Serves the same requests with and without the graph, and compares."""
    table = Table(title="7 requests, 3 slots, paged caches", title_justify="left")
    for column in ("", "steps", "ms/step", "tokens of the first request"):
        table.add_column(column)
    answers = []
    for name, graphed in (("eager", False), ("NPUGraph", True)):
        server, batch = Server(graphed), requests()
        begun = time.perf_counter()
        steps = server.serve(batch)
        took = (time.perf_counter() - begun) / steps * 1e3
        answers.append([request.tokens for request in batch])
        table.add_row(name, str(steps), f"{took:.2f}", " ".join(map(str, batch[0].tokens)))
    Console().print(table)
    assert answers[0] == answers[1], "the graph must generate what eager generates"


if __name__ == "__main__":
    main()
