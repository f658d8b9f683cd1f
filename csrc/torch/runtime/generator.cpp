#include "torch/runtime/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/DispatchKey.h>

#include <cstring>
#include <deque>
#include <mutex>

#include "device/device.h"
#include "torch/graph/recording.h"

namespace softnpu {

namespace {

// How far one operator advances the offset: upstream takes ten counters for each.
constexpr uint64_t kCountersPerOperator = 10;
constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

uint64_t mix(uint64_t value) {  // splitmix64: neighboring (seed, offset) pairs give unrelated sequences
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

NpuGenerator::NpuGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(c10::make_intrusive<State>()) {}

Capture* NpuGenerator::capture() const {
  return Capture::any() ? Capture::of(device().index(), current_stream(device().index())) : nullptr;
}

void NpuGenerator::check_seed(uint64_t seed) const {
  TORCH_CHECK(capture() == nullptr || seed == state_->seed,
              "NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
              "the original seed.");
}

void NpuGenerator::set_current_seed(uint64_t seed) {
  check_seed(seed);
  state_->seed = seed;
  state_->offset = 0;
  if (Capture* graph = capture()) {  // the begin of the graph's numbers
    state_->offset = graph->random(at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(this)))->start;
  }
}

void NpuGenerator::set_offset(uint64_t offset) { state_->offset = offset; }
uint64_t NpuGenerator::get_offset() const { return state_->offset; }
uint64_t NpuGenerator::current_seed() const { return state_->seed; }

uint64_t NpuGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return state_->seed;
}

c10::intrusive_ptr<c10::TensorImpl> NpuGenerator::get_state() const {
  at::Tensor bytes = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* to = bytes.mutable_data_ptr<uint8_t>();
  std::memcpy(to, &state_->seed, sizeof(uint64_t));
  std::memcpy(to + sizeof(uint64_t), &state_->offset, sizeof(uint64_t));
  return bytes.getIntrusivePtr();
}

void NpuGenerator::set_state(const c10::TensorImpl& given) {
  at::detail::check_rng_state(given);
  TORCH_CHECK(given.numel() == kStateBytes || given.numel() == static_cast<int64_t>(sizeof(uint64_t)),
              "RNG state of an NPU generator is ", kStateBytes, " bytes (seed and offset), but received ",
              given.numel(), " bytes");
  const auto* from = given.data_dtype_initialized<uint8_t>();
  uint64_t seed = 0, offset = 0;
  std::memcpy(&seed, from, sizeof seed);
  if (given.numel() == kStateBytes) std::memcpy(&offset, from + sizeof seed, sizeof offset);
  check_seed(seed);
  state_->seed = seed;
  state_->offset = offset;
}

void NpuGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& given) {
  auto* other = dynamic_cast<NpuGenerator*>(given.get());
  TORCH_CHECK(other != nullptr, "graphsafe_set_state: the state must come from an NPU generator");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> NpuGenerator::graphsafe_get_state() const {
  auto shared = c10::make_intrusive<NpuGenerator>(device().index());
  shared->state_ = state_;
  return shared;
}

NpuGenerator* NpuGenerator::clone_impl() const {
  auto* copy = new NpuGenerator(device().index());
  copy->state_->seed = state_->seed;
  copy->state_->offset = state_->offset;
  return copy;
}

std::pair<uint64_t, uint64_t> NpuGenerator::draw(uint64_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t before = state_->offset;
  state_->offset += count;
  return {state_->seed, before};
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* all = [] {
    auto* list = new std::deque<at::Generator>;
    for (int i = 0; i < device_count(); ++i) {
      list->push_back(at::make_generator<NpuGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return list;
  }();
  if (index < 0) index = static_cast<c10::DeviceIndex>(current_device());
  device(index);  // names a wrong index
  return (*all)[static_cast<size_t>(index)];
}

at::Generator new_generator(c10::DeviceIndex index) {
  if (index < 0) index = static_cast<c10::DeviceIndex>(current_device());
  device(index);
  return at::make_generator<NpuGenerator>(index);
}

namespace {

NpuGenerator& generator_of(const at::Generator& npu) {
  auto* generator = dynamic_cast<NpuGenerator*>(npu.unsafeGetGeneratorImpl());
  TORCH_CHECK(generator != nullptr, "Expected a 'npu' device type for generator but found '", npu.device().type(), "'");
  return *generator;
}

uint64_t cpu_seed(uint64_t seed, uint64_t offset) { return mix(seed ^ mix(offset)); }

}  // namespace

at::Generator derive_cpu_generator(const std::optional<at::Generator>& given, c10::DeviceIndex device) {
  const bool has = given.has_value() && given->defined();
  const at::Generator& npu = has ? *given : default_generator(device);
  NpuGenerator& source = generator_of(npu);
  Recording* recording = Capture::any() ? Recording::current() : nullptr;
  std::shared_ptr<GraphRandom> random;
  if (recording != nullptr) random = recording->capture().random(npu);
  const auto [seed, offset] = source.draw(kCountersPerOperator);
  auto cpu = at::make_generator<at::CPUGeneratorImpl>(cpu_seed(seed, offset));
  if (recording != nullptr) recording->derived(std::move(random), offset, cpu);
  return cpu;
}

void reseed(const at::Generator& npu, uint64_t offset, const at::Generator& cpu) {
  at::Generator held = cpu;
  const std::lock_guard<std::mutex> lock(held.mutex());
  held.unsafeGetGeneratorImpl()->set_current_seed(cpu_seed(generator_of(npu).current_seed(), offset));
}

}  // namespace softnpu
