// One device task written by hand: device check, kernel scope, dispatch below autograd; RAII.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torch/border.h"

namespace softnpu {

class Launch {
 public:
  Launch(std::string_view op, std::initializer_list<const at::Tensor*> tensors)
      : border_(settled(op, tensors)),
        scope_(border_.device()),
        below_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {}

  at::Tensor in(const at::Tensor& tensor) { return tensor.defined() ? border_.in(tensor, false) : tensor; }
  at::Tensor in(const std::optional<at::Tensor>& tensor) { return tensor.has_value() ? in(*tensor) : at::Tensor(); }
  at::Tensor out(at::Tensor result) { return border_.out(std::move(result)); }
  int device() const { return border_.device(); }

 private:
  static Border settled(std::string_view op, std::initializer_list<const at::Tensor*> tensors) {
    Border border(op);
    for (const at::Tensor* tensor : tensors) border.see(*tensor, false, false);
    border.settle();
    return border;
  }
  Border border_;
  KernelScope scope_;
  c10::impl::ExcludeDispatchKeyGuard below_;
};

}  // namespace softnpu
