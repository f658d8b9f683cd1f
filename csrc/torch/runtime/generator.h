// The NPU generator: its whole state is (seed, offset), 16 bytes; every random operator derives a CPU generator.
#pragma once

#include <ATen/core/Generator.h>

namespace softnpu {

class Capture;

struct NpuGenerator final : public c10::GeneratorImpl {
  explicit NpuGenerator(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // Takes `count` numbers off the sequence: returns (seed, offset before). The caller holds no lock.
  std::pair<uint64_t, uint64_t> draw(uint64_t count);

 private:
  NpuGenerator* clone_impl() const override;
  Capture* capture() const;              // that the device's current stream is part of
  void check_seed(uint64_t seed) const;  // a graph has one seed
  struct State : c10::intrusive_ptr_target {
    uint64_t seed = c10::default_rng_seed_val, offset = 0;
  };
  c10::intrusive_ptr<State> state_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// The CPU generator of one random operator: a function of (seed, offset) alone; advances `npu`.
at::Generator derive_cpu_generator(const std::optional<at::Generator>& npu, c10::DeviceIndex device);
// The same for a CPU generator that exists, at a given offset.
void reseed(const at::Generator& npu, uint64_t offset, const at::Generator& cpu);

}  // namespace softnpu
