// One source, several builds. Every file of csrc/kernels is compiled for any processor of its kind (DEFAULT), and on
// x86-64 also for AVX2 and for AVX-512, with CPU_CAPABILITY as the name of the build and of the inline namespace that
// its code lives in. Which build runs is decided once, as PyTorch decides for its own kernels (ATEN_CPU_CAPABILITY
// included).
//
//   SOFTNPU_SCHEMAS(m) { m.def("swish(Tensor x) -> Tensor"); }
//   SOFTNPU_KERNELS(activation, m) { m.impl("swish", swish); }   // a name for each file
//
// The builds for AVX2 and AVX-512 must run no instruction when the library is loaded: they have no static objects,
// only a function that lists what they implement. The DEFAULT build calls the chosen one's and registers its functions.
// SOFTNPU_ONE_BUILD: there is the DEFAULT build alone, as under a sanitizer.
#pragma once

#include <cstring>

#ifdef CPU_CAPABILITY_DEFAULT
#include <torch/library.h>
#endif

namespace softnpu::kernels {

// DEFAULT, AVX2 or AVX512.
const char* capability();

// The functions of one build, by the names of their operators.
class Listed {
 public:
  template <class Result, class... Arguments>
  void impl(const char* name, Result (*function)(Arguments...)) {
    add(name, reinterpret_cast<void (*)()>(function));
  }
  void (*find(const char* name) const)();

 private:
  void add(const char* name, void (*function)());
  static constexpr int kMost = 32;
  int count_ = 0;
  const char* names_[kMost];
  void (*functions_[kMost])();
};

using List = void (*)(Listed&);

// The one that is chosen; nullptr for the DEFAULT build.
List chosen(List avx2, List avx512);

#ifdef CPU_CAPABILITY_DEFAULT

// Takes what the DEFAULT build implements, and registers the chosen build's instead.
class Registered {
 public:
  Registered(torch::Library& library, List list) : library_(library), other_(list != nullptr) {
    if (other_) list(listed_);
  }
  template <class Result, class... Arguments>
  void impl(const char* name, Result (*function)(Arguments...)) {
    library_.impl(name, other_ ? reinterpret_cast<Result (*)(Arguments...)>(listed_.find(name)) : function);
  }

 private:
  torch::Library& library_;
  Listed listed_;
  bool other_;
};

#endif

}  // namespace softnpu::kernels

#if defined(__x86_64__) && !defined(SOFTNPU_ONE_BUILD)
#define SOFTNPU_CHOSEN(file)                                                             \
  namespace softnpu::kernels {                                                           \
  namespace AVX2 {                                                                       \
  void list_##file(Listed&);                                                             \
  }                                                                                      \
  namespace AVX512 {                                                                     \
  void list_##file(Listed&);                                                             \
  }                                                                                      \
  static List chosen_##file() { return chosen(AVX2::list_##file, AVX512::list_##file); } \
  }
#else
#define SOFTNPU_CHOSEN(file)                      \
  namespace softnpu::kernels {                    \
  static List chosen_##file() { return nullptr; } \
  }
#endif

#ifdef CPU_CAPABILITY_DEFAULT

#define SOFTNPU_SCHEMAS(m) TORCH_LIBRARY_FRAGMENT(softnpu, m)

#define SOFTNPU_KERNELS(file, m)                                                         \
  SOFTNPU_CHOSEN(file)                                                                   \
  static void list_kernels_##file(softnpu::kernels::Registered& m);                      \
  TORCH_LIBRARY_IMPL(softnpu, CPU, library) {                                            \
    softnpu::kernels::Registered registered(library, softnpu::kernels::chosen_##file()); \
    list_kernels_##file(registered);                                                     \
  }                                                                                      \
  static void list_kernels_##file(softnpu::kernels::Registered& m)

// A function that is no operator: choice_of_<name>() gives the chosen build's.
#define SOFTNPU_CHOICE(name, function)                                \
  SOFTNPU_CHOSEN(name)                                                \
  namespace softnpu::kernels {                                        \
  static decltype(&function) choice_of_##name() {                     \
    const List list = chosen_##name();                                \
    if (list == nullptr) return &function;                            \
    Listed listed;                                                    \
    list(listed);                                                     \
    return reinterpret_cast<decltype(&function)>(listed.find(#name)); \
  }                                                                   \
  }

#else

namespace softnpu::kernels {
struct NoSchemas {
  void def(const char*) {}
};
}  // namespace softnpu::kernels

#define SOFTNPU_SCHEMAS(m) \
  [[maybe_unused]] static void C10_CONCATENATE(no_schemas_, C10_UID)(softnpu::kernels::NoSchemas & m)

#define SOFTNPU_KERNELS(file, m)               \
  namespace softnpu::kernels::CPU_CAPABILITY { \
  void list_##file(Listed&);                   \
  }                                            \
  void softnpu::kernels::CPU_CAPABILITY::list_##file(softnpu::kernels::Listed& m)

#define SOFTNPU_CHOICE(name, function) \
  SOFTNPU_KERNELS(name, m) { m.impl(#name, &function); }

#endif
