// One device task written by hand: device check, aliases in, results out; RAII.
#pragma once

#include "torch/border.h"
#include "torch/task.h"

namespace softnpu {

class Launch {
 public:
  Launch(std::string_view op, std::initializer_list<const at::Tensor*> tensors)
      : border_(settled(op, tensors)), task_(op, border_.device()) {
    for (const at::Tensor* tensor : tensors) task_.input(*tensor);
  }

  at::Tensor in(const at::Tensor& tensor) { return tensor.defined() ? border_.in(tensor, false) : tensor; }
  at::Tensor in(const std::optional<at::Tensor>& tensor) { return tensor.has_value() ? in(*tensor) : at::Tensor(); }
  at::Tensor out(at::Tensor result) {
    task_.output(result);
    return border_.out(std::move(result));
  }
  int device() const { return border_.device(); }

 private:
  static Border settled(std::string_view op, std::initializer_list<const at::Tensor*> tensors) {
    Border border(op);
    for (const at::Tensor* tensor : tensors) border.see(*tensor, false, false);
    border.settle();
    return border;
  }
  Border border_;
  Task task_;
};

}  // namespace softnpu
