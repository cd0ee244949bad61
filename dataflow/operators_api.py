"""What an operator is: a class with ports, declared state and a `process` method.

An operator knows no thread, socket, file or clock. `process` takes a message and yields effects: emissions made by
calling output ports, `Sample`s, `Artifact`s. What else it needs it asks for by parameter name: a declared state
element, `rng` (a generator seeded from the job's seed, operator, node, step and shard) or `node` (`NodeContext`).

An operator's fields are its parameters (pydantic: typed, checked, JSON). Caches made in `open` live in pydantic
private attributes; they are never state: losing them loses nothing.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from dataflow.artifact_names import NAME_RULE, is_artifact_name
from dataflow.errors import OperatorError
from dataflow.message import Message
from dataflow.node_context import NodeContext
from dataflow.ports import Emission, In, Out
from dataflow.state import Access

Pool = Literal["compute", "network"]

WATCHDOG_S = 10.0
"""Seconds that any task of an operator may run, unless the job says otherwise; see `dataflow.runtime.watchdog`."""

_NUMBERS = (int, float, np.integer, np.floating)


@dataclass(frozen=True, slots=True)
class Sample:
    """A measurement for metrics and the run's record.

    Args:
        name: what was measured, with its unit in the name.
        value: the value.

    Raises:
        TypeError: the name is no text or the value no number.
    """

    name: str
    value: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.value, _NUMBERS):
            what = f"a Sample is a name and a number, got {self.name!r} and {type(self.value).__name__}"
            raise TypeError(what)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of the job's results, kept by the master and put into ``--out DIR``.

    Args:
        name: relative file name, of letters, digits, ``._-`` and ``/``, outside `RECORD_FOLDER`
            and none of `RUN_FILES`.
        data: its whole content.

    Raises:
        TypeError: the name is no text or the content no bytes.
        OperatorError: the name is no relative path of plain names.
    """

    name: str
    data: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.data, bytes):
            what = f"an Artifact is a name and bytes, got {self.name!r} and {type(self.data).__name__}"
            raise TypeError(what)
        if not is_artifact_name(self.name):
            raise OperatorError(what="an Artifact has a bad name", got=self.name, fix=NAME_RULE)


@dataclass(frozen=True, slots=True)
class EndOfData:
    """Yielded by a source that has nothing more to give, or by any other operator that emits nothing more.

    Whoever gets messages from such an operator ends without waiting for what it is still sent: so nodes that pass on
    what they are sent, and would wait for each other's end for ever, can end.
    """


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Has the state of the whole node kept before the operator does anything more.

    Args:
        number: of the checkpoint; those of all nodes that have the same number make one.
        steps: that the operator counts as having made; as many as `number` says if None.
    """

    number: int
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A change of a running job that somebody has asked for; all nodes make it, or none does.

    Nodes are told in two stages: ``prepare``, to which each answers with a reported `Adjusted`, and, once all have said
    that they are ready, ``make``; or else ``drop``.

    Args:
        number: of the change; higher than of any before.
        stage: ``prepare``, ``make`` or ``drop``.
        text: with ``prepare``, what is to be changed; only operators know what it means.
    """

    number: int
    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Adjusted(Message):
    """What an operator reports of a change of its running job; see `Adjustment`. One operator of a node does so.

    Args:
        adjustment: number of the change.
        stage: ``ready`` or ``refused``, before it is made; then ``begun`` when it is made on this node, and ``settled``
            once nothing of it is left to do here.
        touched: something was changed on this node, which therefore may have paused what it does.
        why: why it is refused.
    """

    adjustment: int
    stage: str
    touched: bool = False
    why: str = ""


Effect = Emission | Sample | Artifact | EndOfData | Checkpoint
Emissions = Iterator[Effect]


HOOKS = {
    "process": 1,
    "merge": 1,
    "ready": 0,
    "on_end": 0,
    "on_left": 1,
    "on_joined": 1,
    "on_rates": 1,
    "on_timer": 0,
    "on_adjust": 1,
}
"""Methods that may ask for state by parameter name, with the number of positional arguments each is given.

`ready(**state) -> bool` holds an operator back while false; `on_end(**state)` runs once after the last message;
`on_left(node, **state)` behind the last message of a node that has ended or died, or, if this operator receives none of
it, when it has died, or had ended before this node came back; it may ask for `ended`, which says whether that node was
through; `on_joined(node, **state)` when one that had died is a member again, ahead of its first message;
`on_rates(rates, **state)` when the node has measured how fast it is (`dataflow.reports.Rates`); `on_timer(**state)`
every `Operator.timer_s` seconds; `on_adjust(adjustment, **state)` when the running job is to be changed
(`Adjustment`). Only `process` is required.
"""


def needs(method: Any, hook: str) -> tuple[str, ...]:
    """Names of what a hook asks for besides its positional arguments."""
    parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return tuple(p.name for p in named[HOOKS[hook] :])


def declared_at(cls: type) -> str:
    """``file:line`` of a class, or its qualified name where there is no source."""
    try:
        return f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return qualified_name(cls)


def qualified_name(cls: type) -> str:
    """``module:Class``, the name under which plans carry a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def random_generator(seed: int, operator: str, node: int, step: int, shard: int, *part: int) -> np.random.Generator:
    """The generator for one message, or for a part of it: the same numbers wherever and whenever an operator runs."""
    key = (zlib.crc32(operator.encode()), node, step, shard, *part)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _declared(cls: type, kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found.update({name: value for name, value in vars(base).items() if isinstance(value, kind)})
    return found


class Operator(BaseModel):
    """Base of all operators. Subclasses declare ports, state access and `process`.

    Class attributes:
        pool: the task pool it runs in.
        source: it has no inputs; it is asked with `Tick`s and yields `EndOfData` when through.
        sends: its emissions cross to other nodes; it is not started for a receiver without credit.
        receives: its input comes from other nodes.
        ends_itself: a source that is not stopped when its job is, or when its node leaves one that goes on: it sees for
            itself that it is needed no more.
        drained: a checkpoint waits until it has handled what the operator that asks for it has sent it on their node:
            what it makes of messages belongs to what is kept.
        catches_up: it brings a node of its role that has come back, or joined, to where the others are. Nodes that have
            replicas of what others have, and no such operator, are not started again while others go on, unless the job
            cannot do without them: their replicas would be those of the beginning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(In, Out, Access))

    pool: ClassVar[Pool] = "compute"
    source: ClassVar[bool] = False
    sends: ClassVar[bool] = False
    receives: ClassVar[bool] = False
    ends_itself: ClassVar[bool] = False
    drained: ClassVar[bool] = False
    catches_up: ClassVar[bool] = False

    if not TYPE_CHECKING:  # as in pydantic: type checkers are to find misspelt attributes

        def __getattr__(self, name: str) -> Any:
            """A private attribute, by a shorter way than pydantic's, since `process` asks for them at every message."""
            private = self.__pydantic_private__
            return private[name] if private and name in private else super().__getattr__(name)

    @property
    def timer_s(self) -> float:
        """Seconds between two calls of `on_timer`, from the start on; 0 for never."""
        return 0.0

    def open(self, node: NodeContext) -> None:
        """Prepare on `node` before the job starts: open data, compile kernels. May take long."""

    def process(self, *args: Any, **kwargs: Any) -> Any:
        """Handle one message and yield effects; subclasses give it its parameters."""
        what = f"operator {type(self).__name__} does not define process"
        raise OperatorError(what, fix="define process(self, message) and yield its emissions")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Check the declaration as soon as the class exists, so that the error names the user's own line."""
        super().__pydantic_init_subclass__(**kwargs)
        for hook in HOOKS:
            allowed = {*cls.accesses(), "rng", "node", *(("ended",) if hook == "on_left" else ())}
            method = getattr(cls, hook, None)
            if method is None or getattr(method, "__qualname__", "").startswith("Operator."):
                continue
            for name in needs(method, hook):
                if name not in allowed:
                    what = f"{cls.__name__}.{hook} asks for {name!r}, which is no state the class declares"
                    raise OperatorError(
                        what,
                        where=declared_at(cls),
                        fix=f"declare it, as in `{name} = Reads()`, or ask for one of: {', '.join(sorted(allowed))}",
                    )

    @classmethod
    def accesses(cls) -> dict[str, Access]:
        """Declared uses of state elements by attribute name."""
        return _declared(cls, Access)

    @classmethod
    def inputs(cls) -> dict[str, In[Any]]:
        """Declared input ports by name."""
        return _declared(cls, In)

    @classmethod
    def outputs(cls) -> dict[str, Out[Any]]:
        """Declared output ports by name."""
        return _declared(cls, Out)


class Gather(Operator):
    """An operator whose work for one step is done in parts: one `process` per shard, then one `merge`.

    All parts of a step see the same snapshots; steps do not overlap; `merge` has the declared `Writes` to itself.
    An optional `ready` (a predicate over declared state elements) holds back the next step.
    """

    def process(self, *args: Any, **kwargs: Any) -> Any:
        """The part of one shard: any value, handed to `merge`."""
        what = f"operator {type(self).__name__} does not define process"
        raise OperatorError(what, fix="define process(self, message) and return the part")

    def merge(self, *args: Any, **kwargs: Any) -> Any:
        """Handle the list of parts of one step, in shard order, and yield effects."""
        what = f"operator {type(self).__name__} does not define merge"
        raise OperatorError(what, fix="define merge(self, parts) and yield its emissions")
