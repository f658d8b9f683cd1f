// How torch.autograd.profiler takes an operator's time on the device: by an event before and one behind it.
#include "torch/runtime/profiler_events.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "device/device.h"

namespace softnpu {

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct NpuEvents final : public torch::profiler::impl::ProfilerStubs {
  bool enabled() const override { return device_count() > 0; }

  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    const c10::Device current = guard.getDevice();
    auto made = std::make_shared<c10::Event>(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
    if (device != nullptr) *device = current.index();
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
    made->record(guard.getStream(current));
    *event = std::move(made);
  }

  // In microseconds.
  float elapsed(const ProfilerVoidEventStub* first, const ProfilerVoidEventStub* last) const override {
    const auto& start = *static_cast<const c10::Event*>(first->get());
    const auto& end = *static_cast<const c10::Event*>(last->get());
    start.synchronize();
    end.synchronize();
    return static_cast<float>(start.elapsedTime(end) * 1000.0);
  }

  void onEachDevice(std::function<void(int)> call) const override { call(current_device()); }
  void synchronize() const override {
    c10::impl::VirtualGuardImpl(c10::kPrivateUse1).synchronizeDevice(static_cast<c10::DeviceIndex>(current_device()));
  }

  // The profiler's own marks; torch.npu.mstx has the device's.
  void mark(const char* /*name*/) const override {}
  void rangePush(const char* /*name*/) const override {}
  void rangePop() const override {}
};

}  // namespace

void install_profiler_events() {
  static NpuEvents events;
  torch::profiler::impl::registerPrivateUse1Methods(&events);
}

}  // namespace softnpu
