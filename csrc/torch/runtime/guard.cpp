// c10's view of devices, streams and events.
#include "device/clock.h"
#include "device/device.h"
#include "torch/compat.h"
#include "torch/dispatch/deferred.h"
#include "torch/graph/capture.h"
#include "torch/memory/allocator.h"
#include "torch/runtime/sync.h"

namespace softnpu {

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

Stream make_stream(StreamId id, int index) {
  return Stream(Stream::UNSAFE, Device(c10::kPrivateUse1, static_cast<DeviceIndex>(index)), id);
}

int index_of(Device device) { return device.has_index() ? device.index() : current_device(); }

struct NpuGuard final : public compat::DeviceGuardInterface {
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
  compat::DeviceCapability getDeviceCapability(Device) const override { return {}; }

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
  bool queryStream(const Stream& stream) const override {
    Capture::forbid_stream_wait(stream.device_index(), stream.id(), "aclrtStreamQuery");
    if (Queues::shuffled()) Queues::all().run_one();
    const bool done = !Queues::any() || !Queues::all().has_work(stream.device_index(), stream.id());
    if (done && sanitizer::on()) sanitizer::Sanitizer::get().host_waits(stream.device_index(), stream.id());
    return done;
  }
  void synchronizeStream(const Stream& stream) const override {
    wait_for_stream(stream.device_index(), stream.id(), "aclrtSynchronizeStream");
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    device(index);
    wait_for_device(index, "aclrtSynchronizeDevice");
  }
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
    if (*event == nullptr) {
      *event = new std::shared_ptr<Event>(std::make_shared<Event>());
      sanitizer::Sanitizer::get().events(1);
    }
    const auto& record = *static_cast<std::shared_ptr<Event>*>(*event);
    record_event(record, stream.device_index(), stream.id(), flag == c10::EventFlag::BACKEND_DEFAULT);
    if (Capture* capture = Capture::of(stream.device_index(), stream.id())) {
      record->capture = capture->id;
      record->capture_mark = capture->mark(stream.id());
      if (capture->footprint) {
        record->order =
            sanitizer::Sanitizer::get().record(stream.device_index(), stream.id(), capture->footprint.get());
      }
    }
  }
  void block(void* given, const Stream& stream) const override {
    if (given == nullptr) return;
    Event& event = event_of(given);
    Capture* source = Capture::of_event(event);
    Capture* own = Capture::of(stream.device_index(), stream.id());
    if (source == nullptr && own == nullptr) {
      if (sanitizer::on()) await(event, stream);
      if (event.complete()) return;
      return Queues::all().wait(stream.device_index(), stream.id(), event.pending);
    }
    join(event, stream, source, own);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    if (Capture::of_event(event_of(event)) != nullptr) wait_for_event(event_of(event), "aclrtQueryEventStatus");
    if (Queues::shuffled() && !event_of(event).complete()) Queues::all().run_one();
    const bool done = event_of(event).complete();
    if (done && sanitizer::on()) sanitizer::Sanitizer::get().host_waits(event_of(event).order);
    return done;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_for_event(event_of(event), "aclrtSynchronizeEvent");
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    if (event != nullptr) sanitizer::Sanitizer::get().events(-1);
    delete static_cast<std::shared_ptr<Event>*>(event);
  }
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr && event_of(start).recorded && event_of(end).recorded,
                "Both events must be recorded before calculating elapsed time.");
    const Event &first = event_of(start), &last = event_of(end);
    TORCH_CHECK(first.timed && last.timed, "Both events must be created with argument 'enable_timing=True'.");
    return static_cast<double>(last.time_ns - first.time_ns) / 1e6;
  }

 private:
  static Event& event_of(void* event) { return **static_cast<std::shared_ptr<Event>*>(event); }

  static void await(Event& event, const Stream& stream) {
    auto& all = sanitizer::Sanitizer::get();
    event.awaited = true;
    if (event.complete()) all.wait(stream.device_index(), stream.id(), event.order);
    if (event.overwritten) {
      all.lost(stream.device_index(), stream.id(), event.overwritten, reinterpret_cast<uintptr_t>(&event),
               event.recorded_at);
    }
  }

  // A wait inside a capture: the waiting stream becomes part of it.
  static void join(const Event& event, const Stream& stream, Capture* source, Capture* own) {
    if (source == nullptr) {
      const std::string text = "stream " + std::to_string(stream.id()) +
                               " is being captured and waits for an event that was not recorded in the capture.";
      own->fail(acl::kDependency, text);
      raise_acl("aclrtStreamWaitEvent", acl::kDependency, text);
    }
    if (own != nullptr && own != source) {
      const std::string text = "the event and stream " + std::to_string(stream.id()) + " belong to two captures.";
      own->fail(acl::kConflict, text);
      source->fail(acl::kConflict, text);
      raise_acl("aclrtStreamWaitEvent", acl::kConflict, text);
    }
    if (stream.id() == kDefaultStream) {
      const std::string text = "the default stream cannot take part in a capture; use another one.";
      source->fail(acl::kDefaultStream, text);
      raise_acl("aclrtStreamWaitEvent", acl::kDefaultStream, text);
    }
    source->check_valid();
    source->wait_mark(stream.id(), event.capture_mark);
    if (source->footprint) {
      sanitizer::Sanitizer::get().wait(stream.device_index(), stream.id(), event.order, source->footprint.get());
    }
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NpuGuard)

}  // namespace

}  // namespace softnpu
