#include "torch/dispatch/kernel_frame.h"

#include "device/clock.h"
#include "device/stream.h"

namespace softnpu {

TraceScope::TraceScope(std::string_view name, int device) {
  record_.name = name;
  record_.id = Trace::all().next_id();
  record_.device = device;
  record_.stream = current_stream(device);
  record_.thread = thread_number();
  record_.start_ns = wall_clock_ns();
}

TraceScope::~TraceScope() {
  record_.end_ns = wall_clock_ns();
  Trace::all().add(std::move(record_));
}

void TraceScope::note(const at::Tensor& tensor, std::vector<TensorNote>& to) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return;
  to.push_back({tensor.sizes().vec(), static_cast<int>(tensor.scalar_type())});
}

}  // namespace softnpu
