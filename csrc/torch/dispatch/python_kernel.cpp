#include "torch/dispatch/python_kernel.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <string_view>

#include "device/device.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/kernel_frame.h"
#include "torch/dispatch/launch.h"
#include "torch/graph/recording.h"
#include "torch/plan/plan.h"
#include "torch/plan/values.h"
#include "torch/runtime/sync.h"

namespace py = pybind11;

namespace softnpu {

namespace {

template <class Each>
void each_python_tensor(PyObject* value, Each each) {
  if (THPVariable_Check(value)) {
    each(THPVariable_Unpack(value));
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < count; ++i) each_python_tensor(PySequence_Fast_GET_ITEM(value, i), each);
  }
}

template <class Map>
py::object map_tensors(PyObject* value, Map map) {
  if (THPVariable_Check(value)) return py::reinterpret_steal<py::object>(map(value));
  if (PyTuple_Check(value) || PyList_Check(value)) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
    py::list items;
    for (Py_ssize_t i = 0; i < count; ++i) items.append(map_tensors(PySequence_Fast_GET_ITEM(value, i), map));
    if (PyTuple_Check(value)) return py::tuple(items);
    return std::move(items);
  }
  return py::reinterpret_borrow<py::object>(value);
}

class PlainTorch {  // no torch function modes (set_default_device and the like) inside a kernel
 public:
  PlainTorch() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~PlainTorch() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }

 private:
  at::impl::TorchFunctionDisabledState before_;
};

// Methods of a tensor that hand its bytes to the host without a dispatch that a capture could see.
bool reads_bytes(std::string_view method) {
  for (const char* name : {"tolist", "numpy", "data_ptr", "untyped_storage", "_typed_storage", "__dlpack__"}) {
    if (method == name) return true;
  }
  return false;
}

int on_call(PyObject*, PyFrameObject*, int what, PyObject* called) {
  if (what != PyTrace_C_CALL || !PyCFunction_Check(called)) return 0;
  PyObject* self = PyCFunction_GET_SELF(called);
  const char* name = reinterpret_cast<PyCFunctionObject*>(called)->m_ml->ml_name;
  if (self == nullptr || !THPVariable_Check(self) || !reads_bytes(name)) return 0;
  if (Recording::current() != nullptr) Recording::current()->reads_data();
  if (!plan::on() || (name != std::string_view("tolist") && name != std::string_view("numpy"))) return 0;
  try {
    plan::check_readable(THPVariable_Unpack(self), name);
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    return -1;
  }
  return 0;
}

// While a kernel is recorded, or runs for its shapes alone: notices that it reads data on the host.
class NoticeReads {
 public:
  explicit NoticeReads(bool on) : on_(on) {
    if (!on_) return;
    const PyThreadState* thread = PyThreadState_Get();
    function_ = thread->c_profilefunc;
    argument_ = py::reinterpret_borrow<py::object>(thread->c_profileobj);
    PyEval_SetProfile(&on_call, nullptr);
  }
  ~NoticeReads() {
    if (on_) PyEval_SetProfile(function_, argument_.ptr());
  }
  NoticeReads(const NoticeReads&) = delete;

 private:
  const bool on_;
  Py_tracefunc function_ = nullptr;
  py::object argument_;
};

py::object call(PyObject* body, PyObject* args, PyObject* kwargs) {
  const PlainTorch plain;
  py::object result = py::reinterpret_steal<py::object>(PyObject_Call(body, args, kwargs));
  if (!result) throw py::error_already_set();
  return result;
}

// While it lives, the generator stands where it stood in the capture, as the replay counts.
class AtOffset {
 public:
  AtOffset(const GraphRandom* random, uint64_t offset) : random_(random) {
    if (random_ == nullptr) return;
    after_ = generator().get_offset();
    generator().set_offset(random_->base + offset);
  }
  ~AtOffset() {
    if (random_ != nullptr) generator().set_offset(after_);
  }
  AtOffset(const AtOffset&) = delete;

 private:
  c10::GeneratorImpl& generator() const { return *random_->npu.unsafeGetGeneratorImpl(); }
  const GraphRandom* const random_;
  uint64_t after_ = 0;
};

// What replay needs to call the kernel again.
PythonCall keep_call(Recording& recording, const py::function& body, const py::object& args, const py::dict& kwargs,
                     const py::object& result) {
  auto keep = [&](PyObject* value) { return THPVariable_Wrap(recording.keep(THPVariable_Unpack(value))); };
  py::dict kept_kwargs;
  for (auto item : kwargs) kept_kwargs[item.first] = map_tensors(item.second.ptr(), keep);
  PythonCall kept;
  auto* held = new py::tuple(py::make_tuple(body, map_tensors(args.ptr(), keep), kept_kwargs));
  kept.body = std::shared_ptr<void>(held, [](void* object) {
    const py::gil_scoped_acquire gil;
    delete static_cast<py::tuple*>(object);
  });
  each_python_tensor(result.ptr(),
                     [&](const at::Tensor& tensor) { kept.results.push_back(recording.capture().keep(tensor)); });
  return kept;
}

// A call of a Python kernel: what Python gave, held until a thread without the GIL lets go of it.
struct Given {
  std::string name;
  py::function body;
  py::tuple args;
  py::dict kwargs;
  bool host_ok, lay_out, whole;
};

std::shared_ptr<Given> hold(Given given) {
  return {new Given(std::move(given)), [](Given* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

// Calls the kernel: NPU tensors go in as CPU tensors on the same bytes and come out as NPU tensors.
// `lay_out`: an operator, whose results the card lays out by size alone, whatever the strides of the inputs.
// `whole`: a graph calls the kernel again instead of the operators that it called.
py::object run_given(const Given& given, const py::tuple& args) {
  CpuAliases aliases(given.name);
  auto see = [&](const at::Tensor& tensor) { aliases.see(tensor, false, given.host_ok); };
  each_python_tensor(args.ptr(), see);
  for (auto item : given.kwargs) each_python_tensor(item.second.ptr(), see);
  aliases.resolve_device();
  auto in = [&](PyObject* value) { return THPVariable_Wrap(aliases.in(THPVariable_Unpack(value), true)); };
  const py::object inside = map_tensors(args.ptr(), in);
  py::dict inside_kwargs;
  for (auto item : given.kwargs) inside_kwargs[item.first] = map_tensors(item.second.ptr(), in);
  const KernelFrame frame(aliases.device());
  Recording* recording = Capture::any() ? Recording::current() : nullptr;
  if (recording != nullptr && given.whole) recording->reads_data();
  py::object result;
  {
    const NoticeReads notice(recording != nullptr || plan::on());
    result = call(given.body.ptr(), inside.ptr(), inside_kwargs.ptr());
  }
  if (recording != nullptr && recording->opaque()) {
    recording->replace(keep_call(*recording, given.body, inside, inside_kwargs, result));
  }
  auto out = [&](PyObject* value) -> PyObject* {
    at::Tensor made = THPVariable_Unpack(value);
    const bool lay_out = given.lay_out && made.layout() == at::kStrided && !made.is_contiguous() && !is_alias(made);
    if (lay_out) made = made.contiguous();
    return THPVariable_Wrap(aliases.out(std::move(made), /*owned=*/true));
  };
  py::object adopted = map_tensors(result.ptr(), out);
  aliases.write_back();
  return adopted;
}

// A launch that only the profiler or a capture looks at, or one that is no operator.
class PythonTask final : public Task {
 public:
  explicit PythonTask(const Given& given) : given_(given), device_(current_device()) {
    bool found = false;
    each_input([&](const at::Tensor& tensor) {
      if (!found && on_npu(tensor)) device_ = tensor.device().index();
      found |= on_npu(tensor);
    });
  }
  std::string_view name() const override { return given_.name; }
  int device() const override { return device_; }
  void run() override { result = run_given(given_, given_.args); }
  void each_input(Each each) const override {
    each_python_tensor(given_.args.ptr(), each);
    for (auto item : given_.kwargs) each_python_tensor(item.second.ptr(), each);
  }
  void each_output(Each each) const override { each_python_tensor(result.ptr(), each); }
  bool queue(StreamId stream) override {  // nothing tells the shapes of its results: the host waits
    wait_for_stream(device_, stream, given_.name.c_str());
    return false;
  }

  py::object result;

 private:
  const Given& given_;
  int device_;
};

// --- operators: their arguments boxed, for the stages that need them ---------------------------------------------

const Operation* operator_of(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string base = name.substr(0, dot);
  const std::string qualified = base.find("::") == std::string::npos ? "npu::" + base : base;  // atb::_npu_x is whole
  return find_operation(qualified, dot == std::string::npos ? "" : name.substr(dot + 1));
}

Stack boxed(const Operation& operation, const Given& given) {
  const auto& arguments = operation.handle.schema().arguments();
  Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const py::str key(arguments[i].name());
    if (i < given.args.size()) {
      stack.push_back(torch::jit::toIValue(given.args[i], arguments[i].type(), arguments[i].N()));
    } else if (given.kwargs.contains(key)) {
      stack.push_back(torch::jit::toIValue(given.kwargs[key], arguments[i].type(), arguments[i].N()));
    } else {
      stack.push_back(arguments[i].default_value().value_or(c10::IValue()));
    }
  }
  return stack;
}

// The kernel on a stack: its tensors come from there, since a hook may have replaced them.
void run_boxed(const Operation& operation, const Given& given, Stack* stack) {
  const py::gil_scoped_acquire gil;
  const auto& schema = operation.handle.schema();
  const size_t first = stack->size() - operation.arguments;
  py::tuple args(given.args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    const bool one = value.isTensor() && THPVariable_Check(py::object(given.args[i]).ptr());
    args[i] = one ? py::reinterpret_steal<py::object>(THPVariable_Wrap(value.toTensor())) : py::object(given.args[i]);
  }
  const py::object result = run_given(given, args);
  torch::jit::drop(*stack, operation.arguments);
  const auto& returns = schema.returns();
  if (returns.empty()) return;
  if (returns.size() == 1) return stack->push_back(torch::jit::toIValue(result, returns[0].type()));
  const auto results = result.cast<py::sequence>();
  for (size_t i = 0; i < returns.size(); ++i) {
    stack->push_back(torch::jit::toIValue(py::object(results[i]), returns[i].type()));
  }
}

py::object launch_operator(const Operation& operation, Given given) {
  Stack stack = boxed(operation, given);
  OperatorTask task(operation, &stack,
                    [&operation, held = hold(std::move(given))](Stack* on) { run_boxed(operation, *held, on); });
  launch(task);
  if (stack.empty()) return py::none();
  if (stack.size() == 1) return torch::jit::toPyObject(std::move(stack[0]));
  py::tuple results(stack.size());
  for (size_t i = 0; i < stack.size(); ++i) results[i] = torch::jit::toPyObject(std::move(stack[i]));
  return results;
}

constexpr uint32_t kBoxedStages = ~uint32_t{kTraceStage};

py::object run_kernel(const std::string& name, const py::function& body, const py::tuple& args, const py::dict& kwargs,
                      bool host_ok, bool lay_out, bool whole) {
  Given given{name, body, args, kwargs, host_ok, lay_out, whole};
  const uint32_t asked = Stages::asked();
  if (C10_LIKELY(asked == 0)) return run_given(given, args);
  if ((asked & kBoxedStages) != 0 && lay_out) {
    if (const Operation* operation = operator_of(name)) return launch_operator(*operation, std::move(given));
  }
  PythonTask task(given);
  launch(task);
  return std::move(task.result);
}

}  // namespace

void PythonCall::run() const {
  const py::gil_scoped_acquire gil;
  const AtOffset place(random.get(), offset);
  const auto& held = *static_cast<const py::tuple*>(body.get());
  const py::object result = call(held[0].ptr(), held[1].ptr(), held[2].ptr());
  size_t next = 0;
  each_python_tensor(result.ptr(), [&](const at::Tensor& tensor) {
    const at::Tensor& place = results[next++];
    if (tensor.const_data_ptr() != place.const_data_ptr()) place.copy_(tensor);
  });
}

void bind_python_kernel(py::module& m) {
  m.def("run_kernel", &run_kernel, py::arg("name"), py::arg("body"), py::arg("args"), py::arg("kwargs"),
        py::arg("host_ok") = false, py::arg("lay_out") = false, py::arg("whole") = false);
}

}  // namespace softnpu
