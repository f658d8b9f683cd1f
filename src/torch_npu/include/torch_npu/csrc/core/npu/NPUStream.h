// c10_npu::NPUStream: a c10::Stream of an npu device.
#pragma once

#include <c10/core/Stream.h>

#include <ostream>

#include "torch_npu/csrc/core/npu/NPUFunctions.h"
#include "torch_npu/csrc/core/npu/NPUMacros.h"

namespace c10_npu {

class NPUStream {
 public:
  enum Unchecked { UNCHECKED };

  explicit NPUStream(c10::Stream stream) : stream_(stream) {
    TORCH_CHECK(stream_.device_type() == c10::DeviceType::PrivateUse1,
                "NPUStream: expected a stream of an npu device, ", "received one of ", stream_.device());
  }
  NPUStream(Unchecked, c10::Stream stream) : stream_(stream) {}

  bool operator==(const NPUStream& other) const noexcept { return stream_ == other.stream_; }
  bool operator!=(const NPUStream& other) const noexcept { return stream_ != other.stream_; }

  operator aclrtStream() const { return stream(); }
  operator c10::Stream() const { return unwrap(); }

  c10::DeviceType device_type() const { return c10::DeviceType::PrivateUse1; }
  c10::DeviceIndex device_index() const { return stream_.device_index(); }
  c10::Device device() const { return stream_.device(); }
  c10::StreamId id() const { return stream_.id(); }

  bool query() const { return stream_.query(); }
  void synchronize() const { stream_.synchronize(); }

  // The handle that runtime calls take. Work runs at launch, so there is no queue to be emptied first.
  aclrtStream stream() const { return reinterpret_cast<aclrtStream>(static_cast<intptr_t>(stream_.id() + 1)); }
  aclrtStream stream(bool /*need_empty*/) const { return stream(); }

  // A mark that the program puts on the stream of its data loader; of this object, not of the stream.
  void setDataPreprocessStream(bool is_data_preprocess_stream) { preprocesses_ = is_data_preprocess_stream; }
  bool isDataPreprocessStream() const { return preprocesses_; }

  c10::Stream unwrap() const { return stream_; }
  struct c10::StreamData3 pack3() const { return stream_.pack3(); }
  static NPUStream unpack3(c10::StreamId id, c10::DeviceIndex device, c10::DeviceType type) {
    return NPUStream(c10::Stream::unpack3(id, device, type));
  }

 private:
  c10::Stream stream_;
  bool preprocesses_ = false;
};

namespace detail {

inline c10::Device device(c10::DeviceIndex index) {
  return {c10::DeviceType::PrivateUse1, index < 0 ? current_device() : index};
}

}  // namespace detail

inline NPUStream getCurrentNPUStream(c10::DeviceIndex index = -1) {
  return NPUStream(softnpu_headers::guard().getStream(detail::device(index)));
}
inline NPUStream getCurrentNPUStreamNoWait(c10::DeviceIndex index = -1) { return getCurrentNPUStream(index); }
inline NPUStream getDefaultNPUStream(c10::DeviceIndex index = -1) {
  return NPUStream(softnpu_headers::guard().getDefaultStream(detail::device(index)));
}
inline NPUStream getNPUStreamFromPool(c10::DeviceIndex index = -1) {
  return NPUStream(softnpu_headers::guard().getNewStream(detail::device(index)));
}
inline NPUStream getStreamFromPool(const bool high_priority = false, c10::DeviceIndex index = -1) {
  return NPUStream(softnpu_headers::guard().getStreamFromGlobalPool(detail::device(index), high_priority));
}
inline void setCurrentNPUStream(NPUStream stream) { softnpu_headers::guard().exchangeStream(stream.unwrap()); }
inline void npuSynchronizeDevice(bool /*check_error*/ = true) { device_synchronize(); }

inline std::ostream& operator<<(std::ostream& out, const NPUStream& stream) { return out << stream.unwrap(); }

}  // namespace c10_npu

template <>
struct std::hash<c10_npu::NPUStream> {
  size_t operator()(const c10_npu::NPUStream& stream) const noexcept {
    return std::hash<c10::Stream>{}(stream.unwrap());
  }
};
