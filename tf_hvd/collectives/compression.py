"""Compression: gradients are sent in a 16-bit type and widened again."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.core import _native


class Compressor:
    """Interface: how a tensor is changed before it is sent, and changed back after.

    A subclass is passed as `compression=`. The ranks reduce what `compress` returns;
    averages and `postscale_factor` are applied before `decompress`. With op=Average, integers of
    8, 16 and 32 bits travel as int64, so that their sum does not wrap around; with op=Sum as they
    are.

    A dense tensor is compressed before `prescale_factor` is applied. Of IndexedSlices the
    rows are compressed, after `prescale_factor` is applied and each index has one row.
    Each rank has its own number of rows, and `decompress` gets those of all ranks.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Makes what is sent.

        Args:
          tensor: a dense tensor, or the rows of IndexedSlices, of any dtype that a
            program reduces.

        Returns:
          The tensor to send, and what `decompress` needs to know on this rank. The dtype
          is one that the operation takes (docs/collectives.md), the same on all ranks. So
          is the shape; rows keep their number, and only the other dimensions are the same.
        """
        raise NotImplementedError("a Compressor defines compress()")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undoes `compress`.

        Args:
          tensor: what the reduction has made, in the dtype that was sent.
          ctx: the second result of `compress` on this rank.

        Returns:
          The result of the collective.
        """
        raise NotImplementedError("a Compressor defines decompress()")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns `tensor` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns `tensor` itself."""
        return tensor


class _HalfCompressor(Compressor):
    _dtype: tf.DType

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Casts to 16 bits; the context is the dtype to return to, or None."""
        if not tensor.dtype.is_floating or tensor.dtype.size <= cls._dtype.size:
            return tensor, None
        return tf.cast(tensor, cls._dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Casts back to the dtype that `compress` was given."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_HalfCompressor):
    """Sends float32 and float64 as float16: 10 bits of fraction, values up to 65504.

    Other types, bfloat16 too, are sent as they are. Sums are formed in float32; NCCL forms them
    in float16, where a sum beyond 65504 is infinite even if its average would not be
    (`gradient_predivide_factor=hvd.size()` divides before the sum).
    """

    _dtype = tf.float16


class BF16Compressor(_HalfCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32, 7 bits of fraction.

    Other types, float16 too, are sent as they are. Sums are formed in float32, by NCCL in bfloat16.
    """

    _dtype = tf.bfloat16


class Compression:
    """What the argument `compression=` may be; a Compressor of your own works too."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_SHORT: dict[Any, str] = {FP16Compressor: "fp16", BF16Compressor: "bf16"}


class Sent(NamedTuple):
    """A tensor on its way through an op that reduces."""

    compressor: Any
    tensor: Any  # as it travels, or the user's own if the op is to cast it
    context: Any  # what `decompress` needs
    compression: str  # what was done, for the ranks to compare; see `describe`
    wire_dtype: str  # what the op casts it to, and back from; "" if it does not

    @property
    def dtype(self) -> tf.DType:
        return tf.as_dtype(self.wire_dtype) if self.wire_dtype else self.tensor.dtype

    def restore(self, result: Any) -> Any:
        return self.compressor.decompress(result, self.context)


def send(compressor: Any, tensor: Any) -> Sent:
    """Compresses a tensor for an op that reduces.

    Where all ranks may have GPUs the casts of float32 are left to the op, which makes them in
    one pass with what packs tensors there. Nowhere else: on a CPU TensorFlow's are faster, for
    they run beside what is being moved.
    """
    if compressor in _SHORT and tensor.dtype == tf.float32 and _native.gpus_on_all_ranks():
        told = f"{_SHORT[compressor]} of float32"
        return Sent(compressor, tensor, tf.float32, told, compressor._dtype.name)
    compressed, context = compressor.compress(tensor)
    return Sent(compressor, compressed, context, describe(compressor, tensor, compressed), "")


def as_one_op(members: Sequence[Sent]) -> tuple[list[Any], str]:
    """What an op on members that travel in one type gets, and its `wire_dtype`."""
    if all(member.wire_dtype for member in members):
        return [member.tensor for member in members], members[0].wire_dtype
    return [
        tf.cast(member.tensor, member.dtype) if member.wire_dtype else member.tensor
        for member in members
    ], ""


def describe(compressor: Any, tensor: Any, compressed: Any) -> str:
    """What `compressor` did to a tensor, as a text that the ranks compare.

    "fp16 of float32"; a compressor of the user's own by the name of its class;
    "" if it changed nothing.
    """
    if compressed is tensor:
        return ""
    own = getattr(compressor, "__name__", type(compressor).__name__)
    return f"{_SHORT.get(compressor, own)} of {tensor.dtype.name}"


def describe_all(descriptions: Sequence[str]) -> str:
    """The same for the members of a group, each description once; "" if all are empty."""
    if not any(descriptions):
        return ""
    return ", ".join(dict.fromkeys(text or "none" for text in descriptions))
