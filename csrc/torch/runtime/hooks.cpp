// What generic PyTorch code asks of an accelerator.
#include "torch/runtime/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>

#include <cstring>

#include "device/device.h"
#include "device/sanitizer.h"
#include "torch/compat.h"
#include "torch/memory/allocator.h"
#include "torch/plan/plan.h"
#include "torch/plan/values.h"
#include "torch/runtime/generator.h"

namespace softnpu {

namespace {

using c10::DeviceIndex;

struct NpuHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return softnpu::device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex index) const override {
    return started() && index >= 0 && index < softnpu::device_count();
  }
  void init() const override { ensure_started(); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(softnpu::device_count()); }
  void setCurrentDevice(DeviceIndex index) const override { set_current_device(index); }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(current_device()); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = getCurrentDevice();
    set_current_device(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return compat::host_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    for (int i = 0; i < softnpu::device_count(); ++i) {
      if (device(i).memory.owns(data)) return {at::kPrivateUse1, static_cast<DeviceIndex>(i)};
    }
    TORCH_CHECK(false, "the address ", data, " is not in the memory of any NPU device");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::Device where = storage.device();
  c10::DataPtr fresh = allocate_on(where.index(), bytes, where);
  const size_t keep = std::min(bytes, storage.nbytes());
  const bool planned = plan::on() && plan::keep_data(storage.data(), fresh.get());  // nothing is there to copy
  if (keep > 0 && storage.data() != nullptr && !planned) std::memcpy(fresh.get(), storage.data(), keep);
  if (sanitizer::on()) {
    sanitizer::Sanitizer::get().resized(reinterpret_cast<uintptr_t>(storage.data()), keep,
                                        reinterpret_cast<uintptr_t>(fresh.get()));
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

void install_hooks() { at::RegisterPrivateUse1HooksInterface(new NpuHooks); }

}  // namespace softnpu
