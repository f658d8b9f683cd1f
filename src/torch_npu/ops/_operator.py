"""What an operator is: its schema, its parts (check, kernel, native, meta, backward, ...), its facts and its samples.

A part is a plain function that names the arguments it reads, and gets them by name, whatever their order; `**rest`
takes the others. Inside, every call of an operator is one tuple with all arguments in the order of the schema, and
`by_position` makes a part a function of that tuple's items.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch._C import FunctionSchema, parse_schema
from torch._library import simple_registry

from softnpu import settings, torch_versions
from torch_npu import _errors
from torch_npu._errors import ErrCode
from torch_npu.ops import _chips, _shapes
from torch_npu.ops._signatures import by_position, camel_case, mutable_arguments, parameters

NAMESPACE = "npu"
#: what a compiled graph may do with an operator, see `Operator.compiled`
COMPILED = ("fuse", "call", "device", "empty")


@functools.cache
def library_of(namespace: str) -> torch.library.Library:
    """Every operator of the namespace is defined and implemented through this one."""
    return torch.library.Library(namespace, "FRAGMENT")  # noqa: TOR901


library = library_of(NAMESPACE)


@dataclass
class Sample:
    """Inputs that tests, opcheck, docs and benchmarks share.

    `build(make)` returns the positional arguments; `make(*shape, dtype=torch.float32, low=-1, high=1,
    requires_grad=False)` builds a tensor on the device under test (integers too, in [low, high)).
    `kwargs` may be a dict or a function of `make`.
    """

    build: Callable[..., tuple[Any, ...]]
    kwargs: dict[str, Any] | Callable[..., dict[str, Any]] = field(default_factory=dict)
    name: str = ""

    def inputs(self, make: Callable[..., torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs = self.kwargs(make) if callable(self.kwargs) else self.kwargs
        return self.build(make), dict(kwargs)


class Operator:
    """One operator. `@npu_op` makes it of the kernel; `check`, `native`, `meta`, `backward`, `sharding` and `call` decorate
    the other parts. Called, it is the dispatcher's operator.

    Facts, all keywords of `npu_op`:
        export: whether `torch_npu.<name>` exists (default True).
        random: draws from the device's generator.
        host_ok: takes CPU tensors beside NPU tensors.
        direct: the kernel gets the NPU tensors themselves and is no device task: for operators about memory.
        chips: the families of chips that have it, "A5" for Ascend950 (default: all); elsewhere a call raises.
        by_shape: the check looks at shapes, dtypes and plain values alone, so it is asked once for each of them.
        output_differentiability: for each output, whether it carries a gradient (default: every floating one).
        compiled: what a compiled graph does: "fuse" the kernel's formula with its neighbors, "call" the operator on
            host tensors, call it on "device" tensors, or make "empty" memory. Default: fuse, unless there is a native
            form, a shape function, randomness or a written argument.
        ge: the type of the node in the GE graph and of the kernel in a profile (default: the name in CamelCase).
        core: the unit that runs it, as the profiler names it (default: by the type of the chip).
        product: whether its work is matrix products on the cube unit.
        hf32: the switch ("matmul" or "conv") by which its first two arguments are rounded to HF32; faults make such
            products wrong.
        infinite: infinities are its result, not an overflow.
        aclop: upstream runs it with aclop alone (op_plugin_functions.yaml: acl_op and no op_api), so that the card
            refuses to capture it.
    """

    def __init__(
        self,
        schema: str,
        kernel: Callable[..., Any],
        *,
        export: bool = True,
        random: bool = False,
        host_ok: bool = False,
        direct: bool = False,
        chips: Sequence[str] | None = None,
        by_shape: bool = False,
        output_differentiability: Sequence[bool] | None = None,
        compiled: str | None = None,
        ge: str | None = None,
        core: str | None = None,
        product: bool = False,
        hf32: str | None = None,
        infinite: bool = False,
        aclop: bool = False,
    ) -> None:
        qualified = schema if "::" in schema.partition("(")[0] else f"{NAMESPACE}::{schema}"
        self.schema: FunctionSchema = parse_schema(qualified)
        self.namespace, _, self.base = self.schema.name.partition("::")
        overload = f".{self.schema.overload_name}" if self.schema.overload_name else ""
        #: within its namespace, with the overload
        self.local = self.base + overload
        #: in the table of operators and in messages
        self.name = self.local if self.namespace == NAMESPACE else f"{self.namespace}::{self.local}"
        self.exported, self.random, self.host_ok, self.direct = export, random, host_ok, direct
        self.by_shape, self.product, self.core, self.aclop = by_shape, product, core, aclop
        self.hf32, self.infinite = hf32, infinite
        self.chips = None if chips is None else tuple(chips)
        self.output_differentiability = (
            None if output_differentiability is None else tuple(output_differentiability)
        )
        if compiled is not None and compiled not in COMPILED:
            raise TypeError(f"{self.name}: compiled is one of {COMPILED}, not {compiled!r}")
        self._compiled, self._ge = compiled, ge
        self.kernel = kernel
        self._samples: list[Sample] = []
        #: the operator whose form this one is
        self.form_of: Operator | None = None
        self.arguments = tuple(a.name for a in self.schema.arguments)
        self.keywords = tuple(a.name for a in self.schema.arguments if a.kwarg_only)
        self._positional = len(self.arguments) - len(self.keywords)
        defaults = tuple(a.default_value for a in self.schema.arguments)
        #: the defaults of the positional arguments from each index on
        self._tails = tuple(defaults[i : self._positional] for i in range(self._positional + 1))
        self._keyword_defaults = tuple(
            zip(self.keywords, defaults[self._positional :], strict=True)
        )
        #: where the schema wants a tensor, a dtype, or so many bools
        every = list(enumerate(self.schema.arguments))
        self._tensors = tuple(i for i, a in every if str(a.type) == "Tensor")
        self._dtypes = tuple(i for i, a in every if "ScalarType" in str(a.real_type))
        self._masks = tuple(
            (i, n) for i, a in every if (n := getattr(a, "N", None)) and str(a.type) == "List[bool]"
        )
        #: the parts as written
        self.parts: dict[str, Callable[..., Any]] = {}
        #: the kernel as a function of all arguments; also the body and the shape function, until a part takes their place
        self.formula = self._take("kernel", kernel)
        self.body = self.shapes = self.formula
        self._checked: Callable[[tuple[Any, ...]], None] | None = None
        self.__doc__, self.__module__, self.__name__ = kernel.__doc__, kernel.__module__, self.base

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<operator {self.namespace}::{self.local}>"

    # --- the parts ---------------------------------------------------------------------------------------

    def check(self, function: Callable[..., None]) -> Callable[..., None]:
        """Decorates the documented constraints: raises through `_check`; runs eagerly and under FakeTensor."""
        ask = self._take("check", function)
        self._checked = _shapes.once(ask) if self.by_shape else lambda args: ask(*args)
        return function

    def native(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the fast form, whose oracle the kernel stays; where it does not apply it returns NotImplemented."""
        native, kernel = self._take("native", function), self.formula

        def body(*args: Any) -> Any:
            found = native(*args)
            return kernel(*args) if found is NotImplemented else found

        self.body = body
        return function

    def meta(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the shape function, for kernels that cannot be traced."""
        self.shapes = self._take("meta", function)
        return function

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the gradients: `(grad, ..., *, what it reads) -> {argument: gradient}`.

        Positional are the gradients of the differentiable outputs in order. Keyword-only names say what is saved:
        arguments, `result0` and so on for outputs, `results` for all outputs; `needs` says by name which gradients are
        asked for, and `**arguments` takes all arguments. The gradient of a tensor list is a list.
        """
        from torch_npu.ops._autograd import register_autograd

        self.parts["backward"] = function
        register_autograd(self, function)
        return function

    def sharding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates how DTensor may divide the work: yields `_sharding.Sharding`. Its tensors have shapes alone."""
        self._take("sharding", function)
        return function

    def functionalize(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates what a graph runs in place of an operator that returns the argument that it writes."""
        library_of(self.namespace).impl(self.local, function, "Functionalize")
        return function

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the public Python function, where upstream's is not the operator itself."""
        self.parts["call"] = function
        return function

    def _take(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.parts[part] = function
        return by_position(function, self.arguments, f"{part} of {self.name}")

    def by_position(self, part: str) -> Callable[..., Any]:
        """The part as a function of all arguments, in the order of the schema."""
        return by_position(self.parts[part], self.arguments, f"{part} of {self.name}")

    # --- calls -------------------------------------------------------------------------------------------

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call in the order of the schema, defaults filled in."""
        if not kwargs:
            found = (*args, *self._tails[len(args)])
            return (*found, *[d for _, d in self._keyword_defaults]) if self.keywords else found
        values = [*args, *self._tails[len(args)]]
        for index in range(len(args), self._positional):
            name = self.arguments[index]
            if name in kwargs:
                values[index] = kwargs[name]
        values += [kwargs.get(name, default) for name, default in self._keyword_defaults]
        return tuple(values)

    def as_function(self, part: str) -> Callable[..., Any]:
        """A part, or "body" (native, or else the kernel) or "shapes" (meta, or else the kernel), called as the operator."""
        run = getattr(self, part) if part in ("body", "shapes") else self.by_position(part)
        return lambda *args, **kwargs: run(*self.bind(args, kwargs))

    def spread(self, values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """All arguments as the dispatcher takes them: positional ones, then keyword-only ones."""
        if not self.keywords:
            return values, {}
        return values[: self._positional], dict(
            zip(self.keywords, values[self._positional :], strict=True)
        )

    def run_check(self, args: tuple[Any, ...]) -> None:
        """Asks the check, if constraints are on; `args` are all arguments.

        What the schema says is no constraint, though the dispatcher lets it pass: None for a required tensor, a number
        that is no dtype, a mask of another length.
        """
        for index in self._tensors:
            if args[index] is None:
                self._refuse(index, "a tensor", None)
        for index in self._dtypes:
            if args[index] is not None and not isinstance(args[index], torch.dtype):
                self._refuse(index, "a torch.dtype", "a number that is none")
        for index, length in self._masks:
            if len(args[index]) != length:
                self._refuse(index, f"a list of {length} bools", list(args[index]))
        if not settings.strict():
            return
        try:
            if self.chips is not None:
                _chips.check_chip(self.chips)
            if self._checked is not None:
                self._checked(args)
        except _errors.BadArgument as bad:
            raise _errors.operator_error(self.name, bad) from None

    def _refuse(self, index: int, expected: str, received: Any) -> NoReturn:
        bad = _errors.BadArgument(self.arguments[index], expected, received, ErrCode.TYPE)
        raise _errors.operator_error(self.name, bad)

    def on_its_chip(self) -> AbstractContextManager[Any]:
        """For samples: the settings of a chip that has the operator, the current ones if it does."""
        return _chips.a_chip_of(self.chips)

    # --- what others ask ---------------------------------------------------------------------------------

    @property
    def samples(self) -> list[Sample]:
        return self.form_of.samples if self.form_of and not self._samples else self._samples

    @samples.setter
    def samples(self, samples: list[Sample]) -> None:
        self._samples = samples

    @property
    def folder(self) -> str:
        """The folder of torch_npu/ops that holds it."""
        return self.__module__.split(".")[-2]

    @functools.cached_property
    def overload(self) -> Any:
        packet = getattr(getattr(torch.ops, self.namespace), self.base)
        return getattr(packet, self.schema.overload_name or "default")

    @functools.cached_property
    def mutable(self) -> list[str]:
        """The arguments that it writes."""
        return mutable_arguments(self.schema)

    @property
    def returns_target(self) -> bool:
        """Whether a result is an argument that it writes, as with in-place operators."""
        return any(r.alias_info is not None and r.alias_info.is_write for r in self.schema.returns)

    @property
    def compiled(self) -> str:
        if self._compiled is not None:
            return self._compiled
        whole = "native" in self.parts or "meta" in self.parts or self.random or self.mutable
        return "call" if whole else "fuse"

    @property
    def ge(self) -> str:
        return self._ge or camel_case(self.base)

    def validate(self) -> None:
        """Every argument of the schema is read by a part: nothing is accepted and ignored."""
        read: set[str] = set()
        for part, function in self.parts.items():
            if part == "sharding":
                continue
            names, rest = parameters(function)
            if rest:
                return
            if part != "call":
                read.update(names)
        ignored = [a for a in self.arguments if a not in read and a not in self.mutable]
        if ignored:
            raise TypeError(f"{self.name}: no part reads {', '.join(ignored)}")


def register_fake(operator: Operator, name: str, function: Callable[..., Any]) -> None:
    """`torch.library.register_fake` without its walk over the stack, which costs more than all else at import."""
    entry = simple_registry.singleton.find(f"{operator.namespace}::{name}")
    torch_versions.register_fake(entry.fake_impl, function, library_of(operator.namespace))
