// Arithmetic beside a collective, on a thread of the transport.
#pragma once

#include <c10/core/InferenceMode.h>
#include <omp.h>

namespace softnpu::hccl {

// While it lives: no gradients, results may be tensors of inference mode, and no team of threads works for this one.
class Aside {
 public:
  Aside() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~Aside() { omp_set_num_threads(threads_); }

 private:
  const int threads_;
  const c10::InferenceMode mode_;
};

}  // namespace softnpu::hccl
