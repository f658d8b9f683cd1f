#include "torch/task.h"

#include "device/clock.h"
#include "device/stream.h"
#include "torch/capture.h"

namespace softnpu {

Task::Task(std::string_view name, int device) : scope_(device), below_(kAboveBackend) {
  if (Capture::any()) {
    opened_ = Recording::open(name, device);
    recording_ = Recording::current();
  }
  if (Trace::on()) open_record(name, device);
}

Task::~Task() {
  if (record_.has_value()) {
    record_->end_ns = wall_clock_ns();
    Trace::all().add(std::move(*record_));
  }
}

void Task::open_record(std::string_view name, int device) {
  record_.emplace();
  record_->name = name;
  record_->id = Trace::all().next_id();
  record_->device = device;
  record_->stream = current_stream(device);
  record_->thread = thread_number();
  record_->start_ns = wall_clock_ns();
}

void Task::note(const at::Tensor& tensor, std::vector<TensorNote>& to) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return;
  to.push_back({tensor.sizes().vec(), static_cast<int>(tensor.scalar_type())});
}

}  // namespace softnpu
