"""Vector instructions for compiled code, where the register blocks of a kernel must not be left to the compiler.

The width of a vector and how many of them fit the registers are those of the machine that compiles.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils

I64 = ir.IntType(64)
_I32 = ir.IntType(32)

_FEATURES = binding.get_host_cpu_features()
_ARM = binding.get_process_triple().startswith(("aarch64", "arm64"))

REGISTERS = 32 if _FEATURES.get("avx512f") or _ARM else 16
"""Vector registers."""

REGISTER_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx") else 16
"""Size of a vector register."""

VECTORS = 2
"""Vectors side by side in the blocks of `operators.dnn.kernels.outer`."""


class Vectors:
    """Emits instructions on vectors of one element type.

    Args:
        context, builder: numba's, inside an intrinsic.
        array: numba type of the arrays that are read and written.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder, array: Any) -> None:
        self._context, self._builder = context, builder
        self.element = context.get_data_type(array.dtype)
        self._nbytes = 4 if isinstance(self.element, ir.FloatType) else 8
        self.lanes = REGISTER_BYTES // self._nbytes
        self.type = ir.VectorType(self.element, self.lanes)
        self._name = f"v{self.lanes}f{8 * self._nbytes}"

    def pointer(self, array: Any, value: ir.Value, at: ir.Value) -> ir.Value:
        """The address of element `at` of an array."""
        return self._builder.gep(self._context.make_array(array)(self._context, self._builder, value).data, [at])

    def splat(self, scalar: ir.Value, kind: ir.Type | None = None) -> ir.Value:
        """A vector with `scalar` in every lane."""
        kind = kind or self.type
        undefined = ir.Constant(kind, ir.Undefined)
        first = self._builder.insert_element(undefined, scalar, _I32(0))
        return self._builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, kind.count), None))

    def mask(self, count: ir.Value) -> ir.Value:
        """The first `count` lanes, or all if there are no more; `count` is a number of 32 bits, whatever holds it.

        Compared as such, of which a register holds as many as of float32.
        """
        kind = ir.VectorType(_I32, self.lanes)
        numbers = ir.Constant(kind, list(range(self.lanes)))
        return self._builder.icmp_signed("<", numbers, self.splat(self._builder.trunc(count, _I32), kind))

    def load(self, address: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        """The vector at an address, with zeros in the lanes that the mask leaves out: these are not read."""
        address = self._builder.bitcast(address, self.type.as_pointer())
        if mask is None:
            loaded = self._builder.load(address)
            loaded.align = self._nbytes
            return loaded
        arguments = [address, _I32(self._nbytes), mask, ir.Constant(self.type, None)]
        return self._call(f"llvm.masked.load.{self._name}.p0", self.type, arguments)

    def store(self, vector: ir.Value, address: ir.Value, mask: ir.Value | None = None) -> None:
        """Write a vector to an address, except for the lanes that the mask leaves out."""
        address = self._builder.bitcast(address, self.type.as_pointer())
        if mask is None:
            self._builder.store(vector, address).align = self._nbytes
        else:
            arguments = [vector, address, _I32(self._nbytes), mask]
            self._call(f"llvm.masked.store.{self._name}.p0", ir.VoidType(), arguments)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """A * b + c, rounded once where the machine can."""
        product = self._builder.fmul(a, b, flags=("contract",))
        return self._builder.fadd(product, c, flags=("contract",))

    def transposed(self, vectors: Sequence[ir.Value]) -> list[ir.Value]:
        """As many vectors as they have lanes: lane l of vector k is lane k of vector l of the given ones.

        Blocks beside the diagonal change places, first those of one element, then of two by two, and so on.
        """
        made, size = list(vectors), 1
        while size < self.lanes:
            upper = [lane if not lane & size else self.lanes + lane - size for lane in range(self.lanes)]
            lower = [lane + size if not lane & size else self.lanes + lane for lane in range(self.lanes)]
            for k in range(self.lanes):
                if not k & size:
                    pair = made[k], made[k + size]
                    made[k], made[k + size] = self._picked(*pair, upper), self._picked(*pair, lower)
            size *= 2
        return made

    def totals(self, vectors: Sequence[ir.Value]) -> list[ir.Value]:
        """The sums of all lanes of each vector, as addresses of scalars.

        Two vectors at a time are folded to one with half the lanes for each, until a lane holds a whole sum.
        """
        groups = [(vector, [number]) for number, vector in enumerate(vectors)]
        lanes = self.lanes
        while lanes > 1:
            # an odd one is folded with itself
            pairs = zip(groups[::2], [*groups[1::2], groups[-1]][: (len(groups) + 1) // 2], strict=True)
            groups = [(self._fold(left, right, lanes), a + b) for (left, a), (right, b) in pairs]
            lanes //= 2
        addresses: dict[int, ir.Value] = {}
        for vector, numbers in groups:
            memory = self.variables(1, 1)[0][0]
            self._builder.store(vector, memory)
            scalars = self._builder.bitcast(memory, self.element.as_pointer())
            for lane, number in enumerate(numbers):
                addresses.setdefault(number, self._builder.gep(scalars, [I64(lane)]))
        return [addresses[number] for number in range(len(vectors))]

    def _fold(self, left: ir.Value, right: ir.Value, lanes: int) -> ir.Value:
        """Add the upper to the lower half of every run of `lanes` lanes, first those of `left`, then of `right`."""
        lower = [start + lane for start in range(0, 2 * self.lanes, lanes) for lane in range(lanes // 2)]
        halves = [self._picked(left, right, places) for places in (lower, [place + lanes // 2 for place in lower])]
        return self._builder.fadd(*halves)

    def _picked(self, left: ir.Value, right: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """The lanes of two vectors that are listed, those of the right one counted on."""
        return self._builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, self.lanes), list(lanes)))

    def variables(self, rows: int, columns: int) -> list[list[ir.Value]]:
        """A block of vector variables, which the compiler keeps in registers."""
        allocate: Callable[..., ir.Value] = cgutils.alloca_once
        return [[allocate(self._builder, self.type) for _ in range(columns)] for _ in range(rows)]

    def each(self, count: ir.Value, run: Callable[[ir.Value, ir.Value | None], None]) -> None:
        """Emit a loop over `count` elements, vector by vector: `run` gets where one begins, and a mask for the last."""
        lanes = I64(self.lanes)
        whole = self._builder.mul(self._builder.sdiv(count, lanes), lanes)
        with cgutils.for_range_slice(self._builder, I64(0), whole, lanes, I64) as (at, _):
            run(at, None)
        rest = self._builder.sub(count, whole)
        with self._builder.if_then(self._builder.icmp_signed(">", rest, I64(0))):
            run(whole, self.mask(rest))

    def _call(self, name: str, result: ir.Type, arguments: list[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        declare: Callable[..., ir.Value] = cgutils.get_or_insert_function
        return self._builder.call(declare(self._builder.module, kind, name), arguments)
