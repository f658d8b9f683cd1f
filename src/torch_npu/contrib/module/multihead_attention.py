"""MultiheadAttention: fairseq's attention layer by npu_multi_head_attention."""

from __future__ import annotations

import math
from typing import Dict, Optional, Tuple  # noqa: UP035  (upstream's signature, as written)

import torch
from torch import nn

from torch_npu._errors import ErrCode, ops_error
from torch_npu.contrib._checks import require, unsupported
from torch_npu.contrib._names import torch_npu
from torch_npu.contrib.function._matmul_transpose import MatmulApply
from torch_npu.contrib.module._quant_noise import quant_noise as _quant_noise
from torch_npu.contrib.module.ensemble_dropout import NpuCachedDropout

__all__ = ["Matmul_transpose", "MultiheadAttention"]

dropout_class = NpuCachedDropout


class _NpuLinear(nn.Linear):
    """A linear layer by npu_linear, for two or three dimensions."""

    def forward(self, input2: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if input2.dim() not in (2, 3):
            raise RuntimeError(
                f"expected 2 or 3 dimensions, got {tuple(input2.shape)}"
                + ops_error(ErrCode.NOT_SUPPORT)
            )
        rows = input2.reshape(-1, self.in_features)
        result = torch_npu.npu_linear(rows, self.weight, self.bias)
        return result.view(*input2.shape[:-1], self.out_features)


class _MHAConfig:
    """Whether the fused operator computes; without it `MultiheadAttention` returns (None, None), as upstream's."""

    use_fussion_mha = False

    @classmethod
    def set_fussion(cls) -> None:
        cls.use_fussion_mha = True


def Matmul_transpose(tensor1, tensor2):  # type: ignore[no-untyped-def]
    """`tensor1 @ tensor2.transpose(-2, -1)`."""
    return MatmulApply.apply(tensor1, tensor2)


class MultiheadAttention(nn.Module):
    """Attention of several heads; call `_MHAConfig.set_fussion()` once to compute it.

    Args:
        embed_dim: features of the model.
        num_heads: heads; they divide `embed_dim`.
        kdim: features of keys, `embed_dim` if None.
        vdim: features of values, `embed_dim` if None.
        dropout: probability of a zero among the attention weights.
        bias: whether the projections have a bias.
        add_bias_kv: whether there are parameters `bias_k` and `bias_v`; the fused operator does not use them.
        add_zero_attn: remembered; the fused operator does not use it.
        self_attention: query, key and value are the same, so their features must be.
        encoder_decoder_attention: remembered.
        q_noise: probability with which blocks of the weights are dropped in training.
        qn_block_size: size of such a block.
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        kdim=None,
        vdim=None,
        dropout=0.0,
        bias=True,
        add_bias_kv=False,
        add_zero_attn=False,
        self_attention=False,
        encoder_decoder_attention=False,
        q_noise=0.0,
        qn_block_size=8,
    ):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.qkv_same_dim = self.kdim == embed_dim == self.vdim
        name = type(self).__name__
        require(
            embed_dim % num_heads == 0, name, "embed_dim", f"a multiple of {num_heads}", embed_dim
        )
        same = self.qkv_same_dim or not self_attention
        sizes = (self.kdim, self.vdim)
        require(same, name, "kdim and vdim", f"{embed_dim} for self attention", sizes)
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout_module = dropout_class(dropout, module_name=name)
        self.dropout_prob = dropout
        self.use_dropout_optim = dropout_class is NpuCachedDropout
        self.self_attention = self_attention
        self.encoder_decoder_attention = encoder_decoder_attention
        self.add_zero_attn = add_zero_attn

        def projection(size):
            linear = _NpuLinear(size, embed_dim, bias=bias)
            return _quant_noise(linear, q_noise, qn_block_size)

        self.k_proj, self.v_proj = projection(self.kdim), projection(self.vdim)
        self.q_proj, self.out_proj = projection(embed_dim), projection(embed_dim)
        empty = torch.empty(1, 1, embed_dim)
        self.bias_k = nn.Parameter(empty.clone()) if add_bias_kv else None
        self.bias_v = nn.Parameter(empty) if add_bias_kv else None
        self.reset_parameters()
        self.onnx_trace = self.tpu = False

    def prepare_for_onnx_export_(self):
        self.onnx_trace = True

    def prepare_for_tpu_(self, **kwargs):
        self.tpu = True

    def reset_parameters(self):
        """Xavier's initial weights, smaller where the three projections share an input size."""
        gain = 1 / math.sqrt(2) if self.qkv_same_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.constant_(self.out_proj.bias, 0.0)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.xavier_normal_(bias)

    def transpose_for_scores(self, x):
        """(batch * length, heads * size) as (batch, heads, length, size); a subclass sets the four numbers."""
        shape = (
            self.batch_size,
            self.squence_length,
            self.num_attention_heads,
            self.attention_head_size,
        )
        return torch_npu.npu_confusion_transpose(x, (0, 2, 1, 3), shape, False)

    def forward(
        self,
        query,
        key: Optional[torch.Tensor],  # noqa: UP045
        value: Optional[torch.Tensor],  # noqa: UP045
        bsz,
        tgt_len,
        s_len,
        key_padding_mask: Optional[torch.Tensor] = None,  # noqa: UP045
        incremental_state: Optional[Dict[str, Dict[str, Optional[torch.Tensor]]]] = None,  # noqa: UP006, UP045
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[torch.Tensor] = None,  # noqa: UP045
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:  # noqa: UP006, UP045
        """The attention, shape (batch * tgt_len, embed_dim), and None in the place of the weights.

        Args:
            query: shape (batch * tgt_len, embed_dim), float16.
            key: shape (batch * s_len, kdim).
            value: shape (batch * s_len, vdim).
            bsz: batch.
            tgt_len: length of the queries.
            s_len: length of the keys.
            key_padding_mask: added to the scores; broadcastable to (batch, heads, tgt_len, s_len), or as many
                numbers in another shape.
            incremental_state: None.
            need_weights: the fused operator has none to give; None is returned for them.
            static_kv: False.
            attn_mask: None; add it to `key_padding_mask`.
            before_softmax: False.
            need_head_weights: False.
        """
        unsupported(
            "MultiheadAttention",
            incremental_state=incremental_state,
            static_kv=static_kv,
            attn_mask=attn_mask,
            before_softmax=before_softmax,
            need_head_weights=need_head_weights,
        )
        if not _MHAConfig.use_fussion_mha:
            return None, None  # type: ignore[return-value]
        length = key.size(0) // bsz  # type: ignore[union-attr]
        require(s_len == length, "MultiheadAttention", "s_len", f"{length}, from 'key'", s_len)
        return self.multi_attn(query, key, value, key_padding_mask, bsz, tgt_len), None

    def multi_attn(self, query, key, value, key_padding_mask, bsz, tgt_len):
        """The fused operator with the layer's parameters, in the dtype of the query."""
        src_len = key.size(0) // bsz
        shape = (bsz, self.num_heads, tgt_len, src_len)
        mask = key_padding_mask
        if mask is None:
            mask = torch.zeros(1, 1, 1, 1, dtype=query.dtype, device=query.device)
        elif mask.dim() != 4 and mask.numel() == math.prod(shape):
            mask = mask.reshape(shape)
        dropout_mask = None
        if self.use_dropout_optim:
            dropout_mask = self.dropout_module([shape, query.dtype, query.device])
        projections = (self.q_proj, self.k_proj, self.v_proj)
        weights = [p.weight.to(query.dtype) for p in (*projections, self.out_proj)]
        biases = [_in(p.bias, query.dtype) for p in (*projections, self.out_proj)]
        return torch_npu.npu_multi_head_attention(
            query,
            key,
            value,
            *weights[:3],
            mask,
            weights[3],
            *biases,
            dropout_mask,
            self.num_heads,
            self.head_dim,
            src_len,
            tgt_len,
            self.dropout_prob,
            True,
        )[0]

    def apply_sparse_mask(self, attn_weights, tgt_len: int, src_len: int, bsz: int):
        """The weights as they are; for subclasses."""
        return attn_weights

    def upgrade_state_dict_named(self, state_dict, name):
        """Splits `in_proj_weight` and `in_proj_bias` of old checkpoints into the three projections."""
        prefix = f"{name}." if name else ""
        for kind in ("weight", "bias"):
            joined = state_dict.pop(f"{prefix}in_proj_{kind}", None)
            if joined is not None:
                for projection, part in zip(
                    ("q_proj", "k_proj", "v_proj"), joined.chunk(3), strict=True
                ):
                    state_dict[f"{prefix}{projection}.{kind}"] = part


def _in(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(dtype)
