from collections.abc import Mapping, Sequence
import enum
from typing import Any

class data_type(enum.Enum):
    """
    Type of the elements of a tensor, or of the arithmetic of a node; TF32 is the latter only.
    """

    NOT_SET = 0

    FLOAT = 1

    TF32 = 2

    HALF = 3

    BFLOAT16 = 4

    FP8_E4M3 = 5

    FP8_E5M2 = 6

    FP8_E8M0 = 7

    FP4_E2M1 = 8

    INT8 = 9

    UINT8 = 10

    INT32 = 11

    INT64 = 12

    BOOLEAN = 13

class tensor_reordering(enum.Enum):
    """
    How scales of blocks lie: in plain order, or in atoms of 128 rows by 4.
    """

    NONE = 0

    F8_128x4 = 1

class pointwise_mode(enum.Enum):
    """Elementwise functions, for Graph.pointwise."""

    IDENTITY = 0

    ADD = 1

    SUB = 2

    MUL = 3

    DIV = 4

    MAX = 5

    MIN = 6

    POW = 7

    MOD = 8

    ADD_SQUARE = 9

    ABS = 10

    NEG = 11

    CEIL = 12

    FLOOR = 13

    SQRT = 14

    RSQRT = 15

    RECIPROCAL = 16

    EXP = 17

    LOG = 18

    SIN = 19

    COS = 20

    TAN = 21

    ERF = 22

    RELU = 23

    LEAKY_RELU = 24

    ELU = 25

    GELU = 26

    GELU_APPROX_TANH = 27

    SIGMOID = 28

    SWISH = 29

    SOFTPLUS = 30

    TANH = 31

    CMP_EQ = 32

    CMP_NEQ = 33

    CMP_GT = 34

    CMP_GE = 35

    CMP_LT = 36

    CMP_LE = 37

    LOGICAL_AND = 38

    LOGICAL_OR = 39

    LOGICAL_NOT = 40

    BINARY_SELECT = 41

    GEN_INDEX = 42

    RELU_BWD = 43

    LEAKY_RELU_BWD = 44

    SIGMOID_BWD = 45

    TANH_BWD = 46

    ELU_BWD = 47

    GELU_BWD = 48

    GELU_APPROX_TANH_BWD = 49

    SOFTPLUS_BWD = 50

    SWISH_BWD = 51

class reduction_mode(enum.Enum):
    """How a reduction combines elements; NaN wins in MAX, MIN and AMAX."""

    ADD = 0

    MUL = 1

    MIN = 2

    MAX = 3

    AMAX = 4

    AVG = 5

    NORM1 = 6

    NORM2 = 7

    MUL_NO_ZEROS = 8

class moe_grouped_matmul_mode(enum.Enum):
    """
    Which row of a grouped product reads which token, and where it goes; Graph.moe_grouped_matmul.
    """

    NONE = 0

    GATHER = 1

    SCATTER = 2

    COMBINE = 3

class moe_offsets(enum.Enum):
    """What offsets of groups are: their first rows, or the rows behind them."""

    FIRST_TOKEN = 0

    END = 1

class heur_mode(enum.Enum):
    """
    Which ranking of plans to use. There is one, so that all of them mean the same.
    """

    A = 0

    B = 1

    FALLBACK = 2

    OPENSOURCE = 3

class build_plan_policy(enum.Enum):
    """Which plans to compile: the first that compiles, or all of them."""

    HEURISTICS_CHOICE = 0

    ALL = 1

class Tensor:
    """
    A tensor of a graph: an input, a result, or a value in between.

    Setters change the graph and answer the tensor itself, so that they can be chained; all of them raise `FrozenError` (rule
    ``graph.frozen``) once the graph has been planned. Tensors are hashable and serve as keys of the pack given to `Graph.execute`.
    """

    def set_name(self, name: str) -> Tensor:
        """Name for messages and for keys of a pack."""

    def set_uid(self, uid: int) -> Tensor:
        """
        Number that stands for the tensor; an automatic one that is in the way is changed.
        """

    def set_dim(self, dim: Sequence[int]) -> Tensor:
        """
        Extents, outermost first; of a reduction's output they say what is reduced.
        """

    def set_stride(self, stride: Sequence[int]) -> Tensor:
        """Strides in elements, one for each extent."""

    def set_data_type(self, data_type: data_type | str | Any) -> Tensor:
        """Type to which every element is rounded, stored or not."""

    def set_reordering_type(self, reordering_type: tensor_reordering) -> Tensor:
        """How scales of blocks lie in memory."""

    def set_by_pointers(self, by_pointers: bool) -> Tensor:
        """
        Weights of a grouped product, or the scales of blocks of such weights, as a table: a call passes one address (INT64) for
        each expert.
        """

    def set_output(self, is_output: bool) -> Tensor:
        """An output is stored; everything else that is computed stays inside."""

    def set_is_virtual(self, is_virtual: bool) -> Tensor:
        """The opposite of `set_output`."""

    def set_is_pass_by_value(self, is_pass_by_value: bool) -> Tensor:
        """
        A scalar that is handed over at each call: a number, or an array of one element on the host.
        """

    def get_name(self) -> str: ...
    def get_uid(self) -> int: ...
    def get_dim(self) -> list[int]:
        """Extents; of a result only after `Graph.validate`."""

    def get_stride(self) -> list[int]:
        """Strides in elements; of a result only after `Graph.validate`."""

    def get_data_type(self) -> data_type: ...
    def get_reordering_type(self) -> tensor_reordering: ...
    def get_is_virtual(self) -> bool: ...
    def get_is_pass_by_value(self) -> bool: ...
    def __eq__(self, arg: Tensor, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...

class Operand:
    """One buffer that a plan takes, as the graph declares it."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> int: ...
    @property
    def roles(self) -> str:
        """
        "a", "b", "aux", "scalar", "output", "reduction", or several joined by "+".
        """

    @property
    def data_type(self) -> data_type: ...
    @property
    def dim(self) -> list[int]: ...
    @property
    def stride(self) -> list[int]:
        """In elements."""

    @property
    def is_output(self) -> bool: ...
    @property
    def is_pass_by_value(self) -> bool: ...
    def __repr__(self) -> str: ...

class BoundCall:
    """
    Buffers of a plan that have been read already; calling it checks everything and launches.

    ``bound(stream=None, workspace=None)``. The buffers are kept alive; one that moves, as a tensor that is resized, has to be set
    again. Of one bound call, one thread at a time may change buffers; for several threads bind several.
    """

    def __call__(self, /, *args, **kwargs):
        """Call self as a function."""

    def set(self, operand: object, buffer: object | None) -> None:
        """
        Changes the buffer of one operand, by its name or its position in ``plan.operands()``.
        """

    def __repr__(self) -> str: ...

class Plan:
    """
    A plan that is compiled and ready to run.

    ``plan(*buffers, stream=None, workspace=None)`` is the shortest way to execute: one buffer for each of `operands`, in order.
    Immutable: any number of threads may execute one plan at the same time, each with its own buffers and workspace.
    """

    def __call__(self, /, *args, **kwargs):
        """Call self as a function."""

    def bind(self, *args) -> BoundCall:
        """
        Reads one buffer for each of `operands`, in order, for calls in which few of them change.
        """

    @property
    def name(self) -> str:
        """Engine and knobs, such as ``cpu[PRODUCT=1]``."""

    @property
    def engine(self) -> str: ...
    @property
    def engine_id(self) -> int: ...
    @property
    def knobs(self) -> dict[str, int]: ...
    @property
    def workspace_size(self) -> int:
        """In bytes."""

    def operands(self) -> list[Operand]:
        """
        The buffers of a call, in the order in which `execute` takes a sequence.
        """

    def execute(
        self,
        pack: object | None,
        workspace: object | None = None,
        stream: object | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """
        Checks everything, then launches; nothing is written for a call that is refused. See `Graph.execute`.
        """

    def check(self) -> None:
        """
        Raises `InvalidCallError` (``call.data``) where calls met offsets or indices that do not fit, and forgets it.
        """

    def describe(self) -> str:
        """What the graph became, in one line."""

    def explain(self) -> str:
        """
        Chain, bytes, operations, and every check of a call in the order in which they are made.
        """

    def __repr__(self) -> str: ...

def load_plan(source: object, *, device: str = "cuda") -> Plan:
    """
    A plan that ``verglas compile`` wrote, ready to run. It needs the driver, and no compiler.

    Parameters
    ----------
    source : path or bytes
        The file, or what is in it. It is code that will run: load only what you trust.
    device : str
        ``cuda`` or ``cuda:1``.

    Raises
    ------
    IoError
        When it is no such file, was altered, or was written by another version.
    UnsupportedError
        When it is for another architecture, or there is no driver.
    """

class Graph:
    """
    A computation around matrix products, described once and compiled to one kernel.

    The vocabulary is that of cuDNN Frontend's ``pygraph``. Describe tensors and nodes, mark what is stored with
    ``set_output(True)``, then `build` and `execute`.

    Parameters
    ----------
    name : str
        For messages.
    io_data_type : data_type or str
        Type of inputs and outputs that say nothing themselves; BFLOAT16 when not set.
    intermediate_data_type : data_type or str
        Type to which values in between are rounded; FLOAT when not set.
    compute_data_type : data_type or str
        Type of the arithmetic; FLOAT when not set. TF32 may be asked for.
    device : str
        Where the graph will run: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Notes
    -----
    Shapes
        matmul: A (L, M, K) · B (L, K, N) → (L, M, N); rank 2 is L = 1; a batch of 1 broadcasts. Pointwise operands broadcast as in
        NumPy. A reduction keeps the axes whose extent in its output's dim is the full one.
    Types
        Every tensor's value is rounded to its declared type, stored or not. Sums are fp32, or int32 for int8 · int8.
    Errors
        `InvalidGraphError` (rules ``graph.*``), `UnsupportedError` with what each engine said, `InvalidCallError`
        (rules ``pack.*`` and ``call.*``) before anything is written.

    Examples
    --------
    >>> import numpy as np, verglas
    >>> g = verglas.Graph(io_data_type=verglas.data_type.FLOAT)
    >>> a = g.tensor(name="a", dim=[1, 2, 3], stride=[6, 3, 1])
    >>> b = g.tensor(name="b", dim=[1, 3, 2], stride=[6, 2, 1])
    >>> y = g.relu(g.matmul(a, b)).set_output(True)
    >>> g.build()
    >>> out = np.empty((1, 2, 2), np.float32)
    >>> g.execute({a: np.ones((1, 2, 3), np.float32), b: np.ones((1, 3, 2), np.float32), y: out})
    >>> out.tolist()
    [[[3.0, 3.0], [3.0, 3.0]]]
    """

    def __init__(
        self,
        name: str = "",
        io_data_type: data_type | str | Any = data_type.NOT_SET,
        intermediate_data_type: data_type | str | Any = data_type.NOT_SET,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        *,
        device: str = "cpu",
    ) -> None: ...
    def tensor(
        self,
        dim: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        data_type: data_type | str | Any = data_type.NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        name: str = "",
        uid: int | None = None,
        *,
        reordering_type: tensor_reordering = tensor_reordering.NONE,
    ) -> Tensor:
        """
        Declares an input.

        Parameters
        ----------
        dim : sequence of int
            Extents, outermost first: A (L, M, K) or (M, K), B (L, K, N) or (K, N), operands of pointwise nodes up to rank 3.
        stride : sequence of int
            Strides in elements, one for each extent; 0 repeats an element.
        data_type : data_type or str
            Type of the elements; the graph's io type when not set.
        is_pass_by_value : bool
            A scalar that is handed over at each call, as a number or an array of one element.
        name : str
            For messages and as a key of a pack.
        uid : int
            Another key; the graph chooses one when not given.
        reordering_type : tensor_reordering
            F8_128x4 for scales of blocks in atoms of 128 rows by 4, as ``verglas.scale_layout`` makes them.

        Notes
        -----
        Extents and strides of FP4_E2M1 count elements, two of which share a byte; the buffer of a call has bytes.
        """

    def tensor_like(self, like: object, name: str = "") -> Tensor:
        """
        Declares an input with the extents, strides and type of an array, or of another tensor.
        """

    def scalar(self, value: float, data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        A scalar that is part of the graph: no buffer is passed for it. FLOAT when no type is given.
        """

    def tensor_scalar(self, value: float, data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """The same as `scalar`, by cuDNN's name."""

    def matmul(
        self,
        A: Tensor,
        B: Tensor,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        padding: float = 0.0,
        name: str = "",
        *,
        fast_accumulation: bool = False,
    ) -> Tensor:
        """
        The product C = A · B.

        Parameters
        ----------
        A : Tensor
            (L, M, K) or (M, K).
        B : Tensor
            (L, K, N) or (K, N), whatever its strides; a batch of 1 on either side broadcasts.
        compute_data_type : data_type or str
            Type of the sums; the graph's when not set. INT32 for int8 operands; TF32 for fp32 ones where less precision will do.
        fast_accumulation : bool
            Of fp8: an engine may sum all of K with what a tensor core keeps, instead of 128 products at a time.

        Returns
        -------
        Tensor
            (L, M, N) or (M, N), virtual until ``set_output(True)``.
        """

    def reduction(
        self,
        input: Tensor,
        mode: reduction_mode,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
        group_offset: Tensor | None = None,
    ) -> Tensor:
        """
        Combines the elements along some axes.

        The output's dim says along which: set it, with the rank of the input, each extent 1 (combined) or the full one (kept). The
        output is stored, in fp32, or in int32 for the modes that have an integer form. Of no elements the mode's identity remains.

        ``group_offset``, the offsets of the grouped product before it, asks for a result for each group: dim (groups, 1, 1) or
        (groups, 1, N).
        """

    def block_scale_dequantize(
        self,
        input: Tensor,
        descale: Tensor,
        block_size: int | Sequence[int],
        is_negative_scale: bool = False,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        A stored matrix times the scales of its blocks: an operand of `matmul`.

        Parameters
        ----------
        input : Tensor
            FP8_E4M3, FP8_E5M2 or FP4_E2M1, (L, M, K) or (L, K, N).
        descale : Tensor
            One FP8_E8M0 or FP8_E4M3 for each block: (L, M, ⌈K/v⌉) or (L, ⌈K/v⌉, N), or reordered to F8_128x4.
        block_size : int or sequence of int
            ``[1, v]`` for the A of a product, ``[v, 1]`` for its B, or v alone: MXFP8 32, NVFP4 16, MXFP4 32.

        Returns
        -------
        Tensor
            The same extents, virtual.
        """

    def block_scale_quantize(
        self,
        input: Tensor,
        block_size: int,
        axis: int | None = None,
        transpose: bool = False,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
        vmax: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """
        Blocks of a result become narrow elements and one scale each.

        Parameters
        ----------
        input : Tensor
            A result of a product or of nodes behind one.
        block_size : int
            16 or 32.
        axis : int
            Along which blocks lie: the last one when not given, or that of M.
        transpose : bool
            True is the axis of M; the data are not transposed.
        vmax : float
            What the largest magnitude of a block is brought to, a number of fp8 from 2 on; 0 is the largest number of the type.

        Returns
        -------
        tuple of Tensor
            Data (FP8_E4M3, FP8_E5M2 or FP4_E2M1) and scales (FP8_E8M0 or FP8_E4M3): set both types and mark both as outputs.
        """

    def take_runs(
        self,
        input: Tensor,
        length: int,
        second: bool = False,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        Every second run of columns: of N columns that come in runs of two kinds by turns, all of one kind.

        Parameters
        ----------
        input : Tensor
            A result of a product or of nodes behind one, (L, M, N).
        length : int
            Columns of a run: 32.
        second : bool
            The runs from the second one on.

        Returns
        -------
        Tensor
            (L, M, N / 2).
        """

    def rope(
        self,
        input: Tensor,
        cos: Tensor,
        sin: Tensor,
        head: int,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        Rotary embedding of the last columns of each head: pairs of neighbours become two halves.

        Parameters
        ----------
        input : Tensor
            A result of a product or of nodes behind one, (L, M, N).
        cos, sin : Tensor
            Inputs of the graph, (L or 1, M or 1, R): R columns of each head are rotated.
        head : int
            Columns of a head, of which N has a whole number.

        Returns
        -------
        Tensor
            (L, M, N): of each R columns first even * cos - odd * sin, then odd * cos + even * sin, with a table's column j for the result's.
        """

    def identity(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        x, which is a cast when the result has another type, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def add(self, a: Tensor, b: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        a + b, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def bias(
        self, input: Tensor, bias: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        input + bias, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def sub(self, a: Tensor, b: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        a − b, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def mul(self, a: Tensor, b: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        a · b, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def scale(
        self, input: Tensor, scale: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        input · scale, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def div(self, a: Tensor, b: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        a / b, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def max(
        self, input0: Tensor, input1: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        the greater of both; NaN when one is NaN, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def min(
        self, input0: Tensor, input1: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        the smaller of both; NaN when one is NaN, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def pow(
        self, input0: Tensor, input1: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        input0 to the power of input1, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def mod(
        self, input0: Tensor, input1: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        input0 − input1·trunc(input0 / input1), exactly, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def add_square(
        self, a: Tensor, b: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        a + b², element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def abs(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        |x|, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def neg(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        −x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def ceil(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the smallest integer not below x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def floor(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the greatest integer not above x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def sqrt(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        √x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def rsqrt(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        1 / √x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def reciprocal(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        1 / x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def exp(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        eˣ, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def log(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the natural logarithm of x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def sin(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the sine of x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def cos(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the cosine of x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def tan(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the tangent of x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def erf(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the error function of x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def relu(
        self,
        input: Tensor,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        min(max(x, lower_clip or 0), upper_clip); with a slope s: max(x, 0) + s·min(x, 0), then the clips that are given, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        NaN stays NaN. There is no upper clip unless one is given.
        """

    def relu_backward(
        self,
        loss: Tensor,
        input: Tensor,
        negative_slope: float | None = None,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        loss where lower_clip < x < upper_clip, else 0; at or below lower_clip loss·s with a slope s, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        ``input`` is x before the activation.
        """

    def leaky_relu(
        self, input: Tensor, negative_slope: float, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        max(x, 0) + negative_slope·min(x, 0), element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def leaky_relu_backward(
        self,
        loss: Tensor,
        input: Tensor,
        negative_slope: float,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        loss where x > 0, else loss·negative_slope, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        ``input`` is x before the activation.
        """

    def elu(
        self,
        input: Tensor,
        elu_alpha: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        x where x > 0, else elu_alpha·(eˣ − 1), element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        elu_alpha is 1 when not given.
        """

    def gelu(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        ½·x·(1 + erf(x / √2)), element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def gelu_approx_tanh(
        self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def sigmoid(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        1 / (1 + e⁻ˣ), element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def swish(
        self,
        input: Tensor,
        swish_beta: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        x · sigmoid(swish_beta·x), element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        swish_beta is 1 when not given.
        """

    def softplus(
        self,
        input: Tensor,
        softplus_beta: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        log(1 + e^(softplus_beta·x)) / softplus_beta, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        softplus_beta is 1 when not given.
        """

    def tanh(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        the hyperbolic tangent of x, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def cmp_eq(
        self, input: Tensor, comparison: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where input = comparison, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def cmp_neq(
        self, input: Tensor, comparison: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where input ≠ comparison, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def cmp_gt(
        self, input: Tensor, comparison: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where input > comparison, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def cmp_ge(
        self, input: Tensor, comparison: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where input ≥ comparison, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def cmp_lt(
        self, input: Tensor, comparison: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where input < comparison, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def cmp_le(
        self, input: Tensor, comparison: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where input ≤ comparison, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def logical_and(
        self, a: Tensor, b: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where a ≠ 0 and b ≠ 0, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def logical_or(
        self, a: Tensor, b: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        1 where a ≠ 0 or b ≠ 0, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def logical_not(self, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = "") -> Tensor:
        """
        1 where x = 0, else 0, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def binary_select(
        self,
        input0: Tensor,
        input1: Tensor,
        mask: Tensor,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        input0 where mask ≠ 0, else input1, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        A true choice: what is not chosen never shows, NaN and infinities included.
        """

    def gen_index(
        self, input: Tensor, axis: int, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        the coordinate along that axis of input, whose values do not matter, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def pointwise(
        self,
        mode: pointwise_mode,
        inputs: Sequence[Tensor],
        *,
        lower_clip: float | None = None,
        upper_clip: float | None = None,
        negative_slope: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        axis: int | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        Any elementwise node by its mode; the methods named after the modes are the usual way.
        """

    def sigmoid_backward(
        self, loss: Tensor, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        loss · σ(x)·(1 − σ(x)), x before the activation, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def tanh_backward(
        self, loss: Tensor, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        loss · (1 − tanh²x), x before the activation, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def elu_backward(
        self,
        loss: Tensor,
        input: Tensor,
        elu_alpha: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        loss where x > 0, else loss · elu_alpha·eˣ, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        ``input`` is x before the activation. elu_alpha is 1 when not given.
        """

    def gelu_backward(
        self, loss: Tensor, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        loss times the derivative of gelu, x before the activation, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def gelu_approx_tanh_backward(
        self, loss: Tensor, input: Tensor, compute_data_type: data_type | str | Any = data_type.NOT_SET, name: str = ""
    ) -> Tensor:
        """
        loss times the derivative of gelu_approx_tanh, x before the activation, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.
        """

    def softplus_backward(
        self,
        loss: Tensor,
        input: Tensor,
        softplus_beta: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        loss · σ(softplus_beta·x), element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        ``input`` is x before the activation. softplus_beta is 1 when not given.
        """

    def swish_backward(
        self,
        loss: Tensor,
        input: Tensor,
        swish_beta: float | None = None,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
    ) -> Tensor:
        """
        loss times the derivative of swish, element by element.

        Operands broadcast as in NumPy; the result is rounded to its own type, which is the graph's intermediate
        type unless it is stored or told otherwise.

        ``input`` is x before the activation. swish_beta is 1 when not given.
        """

    def moe_grouped_matmul(
        self,
        token: Tensor,
        weight: Tensor,
        first_token_offset: Tensor,
        token_index: Tensor | None = None,
        token_ks: Tensor | None = None,
        mode: moe_grouped_matmul_mode = moe_grouped_matmul_mode.NONE,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        top_k: int = 1,
        name: str = "",
        *,
        offsets: moe_offsets = moe_offsets.FIRST_TOKEN,
        zero_fill: bool = False,
        top_k_scores: Tensor | None = None,
    ) -> Tensor:
        """
        A product of each group's rows with the weights of its expert, g mod experts.

        Parameters
        ----------
        token : Tensor
            (1, rows, K); for GATHER (1, tokens, K).
        weight : Tensor
            (experts, K, N), whatever its strides; or passed by pointers (`Tensor.set_by_pointers`).
        first_token_offset : Tensor
            (groups,) or (groups, 1, 1) of INT32 or INT64: the first row of each group, the last of which ends with the rows.
        token_index, token_ks : Tensor
            (1, rows, 1) of INT32: for GATHER the token of each row; for SCATTER and COMBINE token and slot to which each row goes.
        mode : moe_grouped_matmul_mode
            NONE, GATHER, SCATTER or COMBINE.
        top_k : int
            SCATTER, COMBINE: slots that each token has.
        offsets : moe_offsets
            END where offsets are the rows behind the groups.
        zero_fill : bool
            Outputs are +0 in rows that no group owns; otherwise those rows keep what they hold.
        top_k_scores : Tensor
            COMBINE: (tokens, top_k) of FLOAT, BFLOAT16 or HALF, by which products are multiplied before they are added up.

        Returns
        -------
        Tensor
            (1, rows, N), after COMBINE (1, tokens, N); virtual until ``set_output(True)``.

        Notes
        -----
        Offsets that fall or leave the rows, and indices out of range, are clamped or skipped, and reported by `Graph.check` and by the
        next call.
        """

    def moe_grouped_matmul_bwd(
        self,
        token: Tensor,
        dout: Tensor,
        first_token_offset: Tensor,
        compute_data_type: data_type | str | Any = data_type.NOT_SET,
        name: str = "",
        *,
        offsets: moe_offsets = moe_offsets.FIRST_TOKEN,
        accumulate: bool = False,
    ) -> Tensor:
        """
        The gradient of the weights of a grouped product: for each group the sum over its rows of tokenᵀ · dout.

        Parameters
        ----------
        token, dout : Tensor
            (1, rows, K) and (1, rows, N).
        accumulate : bool
            The sums are added to what the output holds.

        Returns
        -------
        Tensor
            (groups, K, N), virtual until ``set_output(True)``; of a group without rows it is 0.
        """

    def validate(self) -> None:
        """
        Checks the description and infers what was left out; may be called again after changes.
        """

    def build_operation_graph(self) -> None:
        """There is no backend to lower to: the same as `validate`."""

    def create_execution_plans(self, modes: Sequence[heur_mode] | None = None) -> None:
        """
        Asks every engine once and ranks what they offer; freezes the graph.

        Parameters
        ----------
        modes : list of heur_mode
            Accepted for the vocabulary's sake: there is one ranking, whichever modes are named.

        Raises
        ------
        UnsupportedError
            When no engine serves the graph; the text has every reason.
        FrozenError
            When the plans have been made already.
        """

    def create_execution_plan(self, engine_id: int, knobs: Mapping[str, int]) -> None:
        """
        Adds the plan of a record, as `get_engine_and_knobs_at_index` gave it; freezes the graph.
        """

    def check_support(self) -> None:
        """Raises `UnsupportedError` when every plan is deselected."""

    def build_plans(self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """
        Compiles the first plan that compiles, or with ``build_plan_policy.ALL`` all of them; a selected plan stays the one.
        """

    def build(self, modes: Sequence[heur_mode] | None = None) -> None:
        """
        All stages that are still to do. Plans again at no time, and keeps a selected plan.
        """

    def tune(self, most: int = 16, seconds: float = 0.02) -> list[tuple[int, str, float, str]]:
        """
        Measures the most promising plans on the graph's device and builds the fastest; plans the graph if that is to do.

        What is measured is kept for this device and chain, and ranks the plans of every later graph like it (docs/tuning.md).

        Parameters
        ----------
        most : int
            Plans that are compiled and measured; three at least of each engine.
        seconds : float
            Length of the windows in which a plan is timed.

        Returns
        -------
        list of (index, name, seconds, failure)
            Fastest first; plans that failed come last, with the reason.
        """

    def select_plan(self, index: int) -> None:
        """Pins one plan: only it is compiled and run from now on."""

    def deselect_engines(self, names: Sequence[str]) -> None:
        """Bars plans whose name contains one of these; indices stay as they are."""

    def deselect_workspace_greater_than(self, workspace: int) -> None:
        """Bars plans that need more bytes than this."""

    def get_execution_plan_count(self) -> int: ...
    def get_plan_name_at_index(self, index: int) -> str: ...
    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[str, int]]:
        """A record of the plan, for `create_execution_plan`; it survives JSON."""

    def build_plan_at_index(self, index: int) -> None:
        """Compiles one plan of the list, for `execute_plan_at_index`."""

    def get_workspace_size(
        self,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """
        In bytes; of a built graph. It is the same for all extents, so that overrides are checked and change nothing.
        """

    def get_workspace_size_plan_at_index(self, index: int) -> int: ...
    def execute(
        self,
        pack: object | None,
        workspace: object | None = None,
        stream: object | None = None,
        handle: object | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """
        Checks every buffer, then runs the plan; builds it first if that has not been done.

        Parameters
        ----------
        pack : dict or sequence
            One buffer for each operand, outputs included: by tensor, uid or unique name, or in the order of ``plan.operands()``.
            A buffer is a NumPy array, anything with DLPack, the CUDA array interface or the buffer protocol, or an address as an int,
            which then is all that the graph declares. ``None`` counts as not given. A scalar passed by value may be a number.
        workspace : address or buffer
            Needed when `get_workspace_size` is above 0.
        stream, handle : int or object with ``cuda_stream``
            Where a GPU plan runs; the CPU ignores it.
        override_uids, override_shapes, override_strides : list
            Extents and strides of operands for this call alone, in elements and in the graph's order of axes, the batch included: one
            entry of each list for an operand. Its buffer gives the memory and no more. Operands not listed are read as ever.

        Raises
        ------
        InvalidCallError
            With rule, operand, what was found and what would be right. Nothing has been written.
        NotABufferError
            For an object that is no buffer; also a ``TypeError``.

        Notes
        -----
        Live extents rule: M and K are those of the first A, N that of the first B, whatever the graph declared.
        docs/python.md says how a buffer is read whose axes could be meant in two ways.
        """

    def execute_plan_at_index(
        self,
        pack: object | None,
        workspace: object | None,
        index: int,
        stream: object | None = None,
        handle: object | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """As `execute`, with the plan of that index."""

    def check(self) -> None:
        """
        Raises `InvalidCallError` (``call.data``) where calls of a grouped product met offsets or indices that do not fit, and
        forgets it; until then the next call is refused. On a GPU synchronise before: it says what is known now.
        """

    @property
    def plan(self) -> Plan:
        """The plan that `execute` runs; of a built graph."""

    def declines(self) -> list[tuple[str, str, str]]:
        """
        (engine, rule, text) for every engine that did not take the graph; of a planned graph.
        """

    def explain(self) -> str:
        """
        Everything about what the graph became: chain, bytes, operations, plans, and what each engine said that declined.
        """

    def describe(self) -> str:
        """What the graph became, in one line; of a planned graph."""

    def to_json(self) -> str:
        """
        The description as text, docs/graph-file.md; `from_json` makes the same graph of it.
        """

    @staticmethod
    def from_json(text: str, *, device: str = "cpu") -> Graph:
        """
        The graph that `to_json` described.

        Raises
        ------
        IoError
            When the text is no graph file, or of another version.
        InvalidGraphError
            When what it describes is wrong in itself.
        """

    def tensor_by_name(self, name: str) -> Tensor:
        """The tensor of that name: of a graph that was read from a file."""

    def __repr__(self) -> str: ...

class TensorSpec:
    """
    A tensor without memory: extents, strides in elements, type and device.
    """

    def __init__(
        self, shape: Sequence[int], data_type: data_type | str | Any, stride: Sequence[int] | None = None, device: str = "cpu"
    ) -> None: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def stride(self) -> list[int]: ...
    @property
    def data_type(self) -> data_type: ...
    @property
    def device(self) -> str: ...
    def __getstate__(self) -> tuple[list[int], data_type, list[int], str, int]: ...
    def __setstate__(self, arg: tuple[Sequence[int], data_type, Sequence[int], str, int], /) -> None: ...

class OperationOptions:
    """What the kernel of an operation depends on besides its tensors."""

    def __init__(
        self,
        *,
        ab12_dtype: data_type | str | Any | None = None,
        c_dtype: data_type | str | Any | None = None,
        d_dtype: data_type | str | Any | None = None,
        acc_dtype: data_type | str | Any | None = None,
        major: str = "n",
        sf_vec_size: int = 0,
        mma_tiler_mn: Sequence[int] | None = None,
        cluster_shape_mn: Sequence[int] | None = None,
        w_out_in: bool = True,
        head_dim: int = 192,
    ) -> None: ...
    def __getstate__(self) -> tuple[list[data_type], bool, int, bool, list[int], list[int], int]: ...
    def __setstate__(self, arg: tuple[Sequence[data_type], bool, int, bool, Sequence[int], Sequence[int], int], /) -> None: ...

class Operation:
    """
    A ready-made fusion, by its name; `verglas.ops` has a function and a class for each.

    Tensors are passed as a sequence with a place for each of `tensors`: an array, a `TensorSpec` or ``None``.
    """

    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> list[tuple[str, bool, bool]]:
        """(name, is output, is optional) of each place."""

    def outputs(self, tensors: Sequence, options: OperationOptions = ...) -> list:
        """
        A `TensorSpec` at the place of each output that these inputs ask for; checks everything but addresses.
        """

    def run(self, tensors: Sequence, options: OperationOptions = ..., alpha: float = 1.0, stream: object | None = None) -> None:
        """
        Checks everything, then launches a plan from the cache; nothing is written for a call that is refused.
        """

    def __getstate__(self) -> str: ...
    def __setstate__(self, arg: str, /) -> None: ...
    def __repr__(self) -> str: ...

class Prepared:
    """
    An operation compiled for sample tensors, of which nothing is kept but how they look.
    """

    def __init__(self, operation: Operation, samples: Sequence, options: OperationOptions = ..., alpha: float = 1.0) -> None: ...
    def check_support(self) -> bool:
        """True, or raises what is wrong with the samples."""

    def compile(self) -> None:
        """Checks, then compiles; the second call does nothing."""

    @property
    def is_compiled(self) -> bool: ...
    def __getstate__(self) -> tuple[Operation, list[TensorSpec | None], OperationOptions, float, bool]: ...
    def __setstate__(self, arg: tuple[Operation, Sequence[TensorSpec | None], OperationOptions, float, bool], /) -> None: ...

def plan_cache() -> dict:
    """
    What the operations' cache of compiled plans holds: plans, limit, and how often one was compiled or found.
    """

def clear_plan_cache() -> None:
    """Empties it; plans in use live until their calls are over."""

class OperationFunction:
    """The short way of an operation's function, for torch's tensors."""

    def __init__(
        self,
        operation: Operation,
        names: tuple,
        defaults: tuple,
        tensors: dict,
        options: dict,
        keys: tuple,
        result: type,
        below_autograd: bool = False,
    ) -> None: ...
    def __call__(self, args: tuple, kwargs: dict) -> object:
        """The outputs, or ``None`` where the call is not for this way."""

class OperationMethod:
    """
    The ``execute`` that a class of an operation declares; called, it launches.
    """

    def __call__(self, /, *args, **kwargs):
        """Call self as a function."""

    def __getattribute__(self, name, /):
        """Return getattr(self, name)."""

    def __get__(self, instance, owner=None, /):
        """Return an attribute of instance, which is of type owner."""

    def __init__(self, operation: Operation, declared: object, names: tuple, defaults: tuple, tensors: dict) -> None: ...

def use_torch(
    *,
    tensor: object,
    parameter: object,
    empty: object,
    host_empty: object | None,
    cuda_empty: object | None,
    current_device: object | None,
    dtype_of: object,
    device: object,
    grad_enabled: object,
    transform: object,
    tracing: object,
    modes: object,
    functions: object,
    forward: dict,
) -> None:
    """Says what `OperationFunction` asks of torch."""

def xla_targets() -> object:
    """
    Handlers of operations for jax.ffi.register_ffi_target, by platform: {"cpu": ..., "CUDA": ...}.

    None where the module was built without XLA's headers.
    """
