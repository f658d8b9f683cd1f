#include "torch/python_kernel.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string_view>

#include "torch/border.h"
#include "torch/capture.h"
#include "torch/task.h"

namespace py = pybind11;

namespace softnpu {

namespace {

template <class Each>
void each_tensor(PyObject* value, Each each) {
  if (THPVariable_Check(value)) {
    each(THPVariable_Unpack(value));
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < count; ++i) each_tensor(PySequence_Fast_GET_ITEM(value, i), each);
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
  if (what != PyTrace_C_CALL || !PyCFunction_Check(called) || Recording::current() == nullptr) return 0;
  PyObject* self = PyCFunction_GET_SELF(called);
  const char* name = reinterpret_cast<PyCFunctionObject*>(called)->m_ml->ml_name;
  if (self != nullptr && THPVariable_Check(self) && reads_bytes(name)) Recording::current()->reads_data();
  return 0;
}

// While a kernel is recorded: notices that it reads data on the host.
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
  each_tensor(result.ptr(), [&](const at::Tensor& tensor) { kept.results.push_back(recording.keep(tensor)); });
  return kept;
}

// Runs a Python kernel as one device task: NPU tensors go in as CPU tensors on the same bytes and come out as NPU.
// `lay_out`: an operator, whose results the card lays out by size alone, whatever the strides of the inputs.
py::object run_kernel(const std::string& name, const py::function& body, const py::tuple& args, const py::dict& kwargs,
                      bool host_ok, bool lay_out) {
  Border border(name);
  auto see = [&](const at::Tensor& tensor) { border.see(tensor, false, host_ok); };
  each_tensor(args.ptr(), see);
  for (auto item : kwargs) each_tensor(item.second.ptr(), see);
  border.settle();
  auto in = [&](PyObject* value) { return THPVariable_Wrap(border.in(THPVariable_Unpack(value), true)); };
  const py::object inside = map_tensors(args.ptr(), in);
  py::dict inside_kwargs;
  for (auto item : kwargs) inside_kwargs[item.first] = map_tensors(item.second.ptr(), in);
  Task task(name, border.device());
  if (task.wants_tensors()) {
    auto note = [&](const at::Tensor& tensor) { task.input(tensor); };
    each_tensor(args.ptr(), note);
    for (auto item : kwargs) each_tensor(item.second.ptr(), note);
  }
  py::object result;
  {
    const NoticeReads notice(task.recording() != nullptr);
    result = call(body.ptr(), inside.ptr(), inside_kwargs.ptr());
  }
  if (Recording* recording = task.recording(); recording != nullptr && recording->opaque()) {
    recording->replace(keep_call(*recording, body, inside, inside_kwargs, result));
  }
  auto out = [&](PyObject* value) -> PyObject* {
    at::Tensor made = THPVariable_Unpack(value);
    if (lay_out && made.layout() == at::kStrided && !made.is_contiguous() && !is_alias(made)) made = made.contiguous();
    task.output(made);
    return THPVariable_Wrap(border.out(std::move(made), /*owned=*/true));
  };
  py::object adopted = map_tensors(result.ptr(), out);
  border.write_back();
  return adopted;
}

}  // namespace

void PythonCall::run() const {
  const py::gil_scoped_acquire gil;
  const AtOffset place(random.get(), offset);
  const auto& held = *static_cast<const py::tuple*>(body.get());
  const py::object result = call(held[0].ptr(), held[1].ptr(), held[2].ptr());
  size_t next = 0;
  each_tensor(result.ptr(), [&](const at::Tensor& tensor) {
    const at::Tensor& place = results[next++];
    if (tensor.const_data_ptr() != place.const_data_ptr()) place.copy_(tensor);
  });
}

void bind_python_kernel(py::module& m) {
  m.def("run_kernel", &run_kernel, py::arg("name"), py::arg("body"), py::arg("args"), py::arg("kwargs"),
        py::arg("host_ok") = false, py::arg("lay_out") = false);
}

}  // namespace softnpu
