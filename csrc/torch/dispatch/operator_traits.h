// What is known of operators beyond their schemas, in one table.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

namespace softnpu {

struct CallArguments;

struct OperatorTraits {
  enum Product { kNone, kMatmul, kConvolution };
  Product product = kNone;       // runs on the cube unit
  std::vector<size_t> factors;   // the arguments that it multiplies
  bool widens = false;           // half precision runs on fp32 copies where the CPU has no such instructions
  bool accumulates = false;      // PyTorch's CPU kernel rounds half precision in between: it runs on fp32 copies
  bool wide_statistics = false;  // its means and weights are fp32 on the card: PyTorch's CPU kernel gets fp32 ones
  bool counts = false;           // PyTorch's CPU kernel takes no integers: they run as float64 copies
  bool describes = false;        // only describes memory: no work of the device
  bool overwrites = false;       // does not read what it writes over
  bool copies = false;           // between host and device too
  bool infinite = false;         // infinities are its result, not an overflow
  std::string type;              // of the kernel, as CANN names it; empty: the name in CamelCase
  std::string core;              // the unit that runs the kernel; empty: cube for a product, else vector
  bool reads_some = false;       // data says which part of its arguments it reads
  std::vector<size_t> writes;    // arguments that it writes though its schema does not say so
  bool composite = false;        // made of others, and stays so on NPU tensors: it decides by device, or draws numbers
  bool host_indices = false;     // its indices may be CPU tensors
  bool mixes_floats = false;     // a product that the card takes with fp32 and half precision among its arguments
  bool graph_node = false;       // the graph engine has a node for it, though it is neither core ATen nor made of it
  // Overloads ("" is the default) without a kernel on the card, which copies to the host and runs PyTorch's CPU kernel.
  std::vector<std::string> lacking;

  // What its CPU kernel trusts and a direct call may get wrong (trusted.h): sizes and numbers, data. Mostly nothing.
  using Rule = void (*)(const CallArguments& given);
  Rule trusted_sizes = nullptr, trusted_data = nullptr;

  // In a plan:
  bool promotes = false;           // brings its inputs to one dtype first
  bool large_temporaries = false;  // what its CPU kernel allocates is learned by trying
  bool chooses = false;            // chooses indices by the size of floating values
  bool computes = false;           // composite by registration, and yet a kernel
};

using TraitsTable = std::unordered_map<std::string, OperatorTraits>;

// By qualified name, without overload; the traits of an operator that is not in the table are the defaults.
const OperatorTraits& traits_of(const std::string& name);
const TraitsTable& all_traits();

// Of an operator of torch_npu, whose definition in Python says them: when it is registered, before it is called.
void add_traits(const std::string& name, const OperatorTraits& traits);

// The part of the table about the card: types and cores of kernels, what has no kernel, what has a node in graphs.
void add_card_traits(TraitsTable& table);

}  // namespace softnpu
