// c10's view of devices, streams and events.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/clock.h"
#include "device/device.h"
#include "torch/allocator.h"

namespace softnpu {

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

Stream make_stream(StreamId id, int index) {
  return Stream(Stream::UNSAFE, Device(c10::kPrivateUse1, static_cast<DeviceIndex>(index)), id);
}

int index_of(Device device) { return device.has_index() ? device.index() : current_device(); }

struct NpuGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  Device getDevice() const override { return Device(c10::kPrivateUse1, static_cast<DeviceIndex>(current_device())); }
  Device exchangeDevice(Device to) const override {
    const Device before = getDevice();
    setDevice(to);
    return before;
  }
  void setDevice(Device to) const override {
    if (to.has_index()) set_current_device(to.index());
  }
  void uncheckedSetDevice(Device to) const noexcept override {
    if (to.has_index()) exchange_device(to.index());
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count()); }
  c10::DeviceCapability getDeviceCapability(Device) const override { return c10::DeviceCapability(); }

  Stream getStream(Device of) const override { return make_stream(current_stream(index_of(of)), index_of(of)); }
  Stream getDefaultStream(Device of) const override { return make_stream(kDefaultStream, index_of(of)); }
  Stream getStreamFromGlobalPool(Device of, bool high) const override {
    ensure_started();
    return make_stream(device(index_of(of)).streams.next(high), index_of(of));
  }
  Stream getNewStream(Device of, int priority) const override { return getStreamFromGlobalPool(of, priority < 0); }
  Stream exchangeStream(Stream to) const override {
    device(to.device_index());
    return make_stream(exchange_stream(to.device_index(), to.id()), to.device_index());
  }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex index) const override { device(index); }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(stream.id() + 1));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    npu_allocator()->recordStream(data, stream);
  }

  void record(void** event, const Stream& stream, const DeviceIndex index, const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ", static_cast<int>(index),
                " does not match the recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    ensure_started();
    if (*event == nullptr) *event = new Event;
    record_event(*static_cast<Event*>(*event), stream.device_index(), stream.id(),
                 flag == c10::EventFlag::BACKEND_DEFAULT);
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    const auto* first = static_cast<Event*>(start);
    const auto* last = static_cast<Event*>(end);
    TORCH_CHECK(first != nullptr && last != nullptr && first->recorded && last->recorded,
                "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(first->timed && last->timed, "Both events must be created with argument 'enable_timing=True'.");
    return static_cast<double>(last->time_ns - first->time_ns) / 1e6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NpuGuard)

}  // namespace

}  // namespace softnpu
