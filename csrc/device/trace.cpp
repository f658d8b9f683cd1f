#include "device/trace.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace softnpu {

Trace& Trace::all() {
  static auto* trace = new Trace;  // threads may still launch while the process ends
  return *trace;
}

void Trace::start(bool shapes, size_t most) {
  const std::lock_guard<std::mutex> lock(mutex_);
  records_.clear();
  most_ = most;
  dropped_ = 0;
  shapes_ = shapes;
  Stages::set(kTraceStage, true);
}

void Trace::add(TaskRecord record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (records_.size() >= most_) {
    ++dropped_;
  } else {
    records_.push_back(std::move(record));
  }
}

std::vector<TaskRecord> Trace::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TaskRecord> taken;
  taken.swap(records_);
  return taken;
}

int64_t thread_number() {
  static thread_local const auto number = static_cast<int64_t>(syscall(SYS_gettid));
  return number;
}

}  // namespace softnpu
