// The fused LSTM and GRU cells that PyTorch's recurrent layers ask of an accelerator; the CPU has none to borrow.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "kernels/guard.h"
#include "torch/launch.h"

namespace softnpu {

namespace {

using at::Tensor;
using std::optional;

// (batch, parts * hidden) beside a state of (batch, hidden): `chunk` then gives as many parts as are used below.
void check_parts(const kernels::Guard& guard, const Tensor& t, const char* argument, int64_t parts,
                 const Tensor& state) {
  guard.sizes(t, argument, {state.size(0), guard.product(parts, state.size(1), argument)});
}

void check_bias(const kernels::Guard& guard, const optional<Tensor>& t, const char* argument, int64_t size) {
  if (t.has_value() && t->defined()) guard.count(*t, argument, size);
}

Tensor biased(const Tensor& gates, const Tensor& bias) { return bias.defined() ? gates + bias : gates; }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const kernels::Guard guard("_thnn_fused_lstm_cell", "aten::");
  guard.rank(cx, "cx", 2);
  check_parts(guard, input_gates, "input_gates", 4, cx);
  check_parts(guard, hidden_gates, "hidden_gates", 4, cx);
  check_bias(guard, input_bias, "input_bias", input_gates.size(1));
  check_bias(guard, hidden_bias, "hidden_bias", hidden_gates.size(1));
  Launch launch("aten::_thnn_fused_lstm_cell", {&input_gates, &hidden_gates, &cx});
  const Tensor gates =
      biased(launch.in(input_gates), launch.in(input_bias)) + biased(launch.in(hidden_gates), launch.in(hidden_bias));
  Tensor work = at::empty_like(gates);
  const auto from = gates.chunk(4, 1), to = work.chunk(4, 1);
  for (const size_t gate : {0, 1, 3}) to[gate].copy_(from[gate].sigmoid());
  to[2].copy_(from[2].tanh());
  Tensor cy = to[1] * launch.in(cx) + to[0] * to[2];
  Tensor hy = to[3] * cy.tanh();
  return {launch.out(std::move(hy)), launch.out(std::move(cy)), launch.out(std::move(work))};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const optional<Tensor>& grad_hy, const optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const kernels::Guard guard("_thnn_fused_lstm_cell_backward_impl", "aten::");
  guard.rank(cx, "cx", 2);
  guard.sizes(cy, "cy", cx.sizes());
  check_parts(guard, workspace, "workspace", 4, cx);
  Launch launch("aten::_thnn_fused_lstm_cell_backward_impl", {&cx, &cy, &workspace});
  const Tensor c_old = launch.in(cx), dh = launch.in(grad_hy), dc_next = launch.in(grad_cy);
  const auto gate = launch.in(workspace).chunk(4, 1);
  const Tensor tanh_c = launch.in(cy).tanh();
  Tensor dc = dc_next.defined() ? dc_next.clone() : at::zeros_like(c_old);
  if (dh.defined()) dc = dc + dh * gate[3] * (1 - tanh_c * tanh_c);
  Tensor grads = at::empty_like(launch.in(workspace));
  const auto to = grads.chunk(4, 1);
  to[0].copy_(dc * gate[2] * gate[0] * (1 - gate[0]));
  to[1].copy_(dc * c_old * gate[1] * (1 - gate[1]));
  to[2].copy_(dc * gate[0] * (1 - gate[2] * gate[2]));
  to[3].copy_(dh.defined() ? dh * tanh_c * gate[3] * (1 - gate[3]) : at::zeros_like(c_old));
  Tensor dc_old = dc * gate[1];
  Tensor bias = has_bias ? grads.sum(0) : Tensor();
  return {launch.out(std::move(grads)), launch.out(std::move(dc_old)), launch.out(std::move(bias))};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const kernels::Guard guard("_thnn_fused_gru_cell", "aten::");
  guard.rank(hx, "hx", 2);
  check_parts(guard, input_gates, "input_gates", 3, hx);
  check_parts(guard, hidden_gates, "hidden_gates", 3, hx);
  check_bias(guard, input_bias, "input_bias", input_gates.size(1));
  check_bias(guard, hidden_bias, "hidden_bias", hidden_gates.size(1));
  Launch launch("aten::_thnn_fused_gru_cell", {&input_gates, &hidden_gates, &hx});
  const Tensor h = launch.in(hx);
  const auto i = biased(launch.in(input_gates), launch.in(input_bias)).chunk(3, 1);
  const auto g = biased(launch.in(hidden_gates), launch.in(hidden_bias)).chunk(3, 1);
  const Tensor reset = (i[0] + g[0]).sigmoid(), update = (i[1] + g[1]).sigmoid();
  const Tensor fresh = (i[2] + reset * g[2]).tanh();
  Tensor hy = fresh + update * (h - fresh);
  Tensor work = at::empty({h.size(0), 5 * h.size(1)}, h.options());
  const auto to = work.chunk(5, 1);
  to[0].copy_(reset);
  to[1].copy_(update);
  to[2].copy_(fresh);
  to[3].copy_(h);
  to[4].copy_(g[2]);
  return {launch.out(std::move(hy)), launch.out(std::move(work))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const kernels::Guard guard("_thnn_fused_gru_cell_backward", "aten::");
  guard.rank(grad_hy, "grad_hy", 2);
  check_parts(guard, workspace, "workspace", 5, grad_hy);
  Launch launch("aten::_thnn_fused_gru_cell_backward", {&grad_hy, &workspace});
  const Tensor dh = launch.in(grad_hy);
  const auto saved = launch.in(workspace).chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &h = saved[3], &hidden = saved[4];
  const Tensor dupdate = dh * (h - fresh) * (1 - update) * update;
  const Tensor dfresh = dh * (1 - update) * (1 - fresh * fresh);
  const Tensor dreset = dfresh * hidden * (1 - reset) * reset;
  Tensor to_input = at::empty({dh.size(0), 3 * dh.size(1)}, dh.options()), to_hidden = at::empty_like(to_input);
  const auto a = to_input.chunk(3, 1), b = to_hidden.chunk(3, 1);
  a[0].copy_(dreset);
  b[0].copy_(dreset);
  a[1].copy_(dupdate);
  b[1].copy_(dupdate);
  a[2].copy_(dfresh);
  b[2].copy_(dfresh * reset);
  Tensor input_bias, hidden_bias;
  if (has_bias) {
    input_bias = to_input.sum(0);
    hidden_bias = to_hidden.sum(0);
  }
  Tensor dx = dh * update;
  return {launch.out(std::move(to_input)), launch.out(std::move(to_hidden)), launch.out(std::move(dx)),
          launch.out(std::move(input_bias)), launch.out(std::move(hidden_bias))};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace

}  // namespace softnpu
