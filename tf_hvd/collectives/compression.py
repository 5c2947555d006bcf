"""Compression of tensors for sending, such as casting gradients to a 16-bit type and back."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.core import _native


class Compressor:
    """Base class for compressing tensors before they are sent and restoring the results.

    Pass a subclass as `compression=`. The ranks reduce the results of `compress`. The division of
    an average and `postscale_factor` are applied before `decompress`. With op=Average, integers
    of 8, 16 and 32 bits are sent as int64, so their sum does not wrap around. With op=Sum they
    are sent unchanged.

    A dense tensor is compressed before `prescale_factor` is applied. For IndexedSlices, rows
    with the same index are summed, then `prescale_factor` is applied, then the rows are
    compressed. Each rank compresses its own rows, and `decompress` gets the rows of all ranks.

    Example:
      class Halves(hvd.Compressor):
          @staticmethod
          def compress(tensor):
              return tf.cast(tensor, tf.float16), tensor.dtype

          @staticmethod
          def decompress(tensor, ctx):
              return tf.cast(tensor, ctx)

      hvd.allreduce(tf.ones([4]), compression=Halves)
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Compress a tensor for sending.

        Args:
          tensor: a dense tensor, or the rows of IndexedSlices, of any dtype that the
            program reduces.

        Returns:
          A tuple of the tensor to send and a context for `decompress` on this rank. The reduce op
          must support the tensor's dtype. The dtype and shape must be the same on all ranks. Do
          not change the number of rows of IndexedSlices, which may differ between ranks.
        """
        raise NotImplementedError("compress() is not implemented; define it in your Compressor.")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undo `compress`.

        Args:
          tensor: the result of the reduction, in the dtype that was sent.
          ctx: the context that `compress` returned on this rank.

        Returns:
          The tensor that the collective returns to the program.
        """
        raise NotImplementedError("decompress() is not implemented; define it in your Compressor.")


class NoneCompressor(Compressor):
    """The compressor that sends tensors unchanged, `hvd.Compression.none`.

    Example:
      hvd.allreduce(tf.ones([4]), compression=hvd.NoneCompressor)
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return `tensor` itself, and None as the context."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return `tensor` itself."""
        return tensor


class _HalfCompressor(Compressor):
    _dtype: tf.DType

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Cast wider floating-point tensors to 16 bits; the context is the original dtype.

        Other tensors are returned unchanged, with None as the context.
        """
        if not tensor.dtype.is_floating or tensor.dtype.size <= cls._dtype.size:
            return tensor, None
        return tf.cast(tensor, cls._dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Cast back to the original dtype."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_HalfCompressor):
    """The compressor that sends float32 and float64 as float16, `hvd.Compression.fp16`.

    float16 has 10 fraction bits and values up to 65504. Other types, including bfloat16, are sent
    unchanged. Sums are computed in float32, except that NCCL computes them in float16. With NCCL,
    a sum beyond 65504 is infinite, so its average is infinite too. To avoid this, divide before
    the sum: pass `gradient_predivide_factor=hvd.size()` to the optimizer.

    Example:
      hvd.allreduce(tf.ones([4]), compression=hvd.FP16Compressor)
    """

    _dtype = tf.float16


class BF16Compressor(_HalfCompressor):
    """The compressor that sends float32 and float64 as bfloat16, `hvd.Compression.bf16`.

    bfloat16 has the range of float32 and 7 fraction bits. Other types, including float16, are
    sent unchanged. Sums are computed in float32, except that NCCL computes them in bfloat16.

    Example:
      hvd.allreduce(tf.ones([4]), compression=hvd.BF16Compressor)
    """

    _dtype = tf.bfloat16


class Compression:
    """The built-in compressors, for the argument `compression=`: none, fp16 and bf16.

    Example:
      hvd.allreduce(tf.ones([4]), compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_SHORT: dict[Any, str] = {FP16Compressor: "fp16", BF16Compressor: "bf16"}


class Sent(NamedTuple):
    """A tensor that is prepared for a reducing op."""

    compressor: Any
    tensor: Any  # the tensor to send, or the user's tensor if the op casts it
    context: Any  # the context for `decompress`
    compression: str  # how it was compressed, for the ranks to compare; see `describe`
    wire_dtype: str  # the type to which the op casts the tensor; "" for no cast

    @property
    def dtype(self) -> tf.DType:
        return tf.as_dtype(self.wire_dtype) if self.wire_dtype else self.tensor.dtype

    def restore(self, result: Any) -> Any:
        return self.compressor.decompress(result, self.context)


def send(compressor: Any, tensor: Any) -> Sent:
    """Compress a tensor for a reducing op.

    If every rank has a CUDA driver, the op itself casts float32 tensors while it packs them.
    Otherwise TensorFlow casts them, which is faster on a CPU because its casts overlap with
    communication.
    """
    if compressor in _SHORT and tensor.dtype == tf.float32 and _native.gpus_on_all_ranks():
        told = f"{_SHORT[compressor]} of float32"
        return Sent(compressor, tensor, tf.float32, told, compressor._dtype.name)
    compressed, context = compressor.compress(tensor)
    return Sent(compressor, compressed, context, describe(compressor, tensor, compressed), "")


def as_one_op(members: Sequence[Sent]) -> tuple[list[Any], str]:
    """Return the inputs and `wire_dtype` of one op for members that are sent in the same dtype."""
    if all(member.wire_dtype for member in members):
        return [member.tensor for member in members], members[0].wire_dtype
    return [
        tf.cast(member.tensor, member.dtype) if member.wire_dtype else member.tensor
        for member in members
    ], ""


def describe(compressor: Any, tensor: Any, compressed: Any) -> str:
    """Describe how a tensor was compressed, as a text that the ranks compare.

    An example is "fp16 of float32". A user-defined compressor appears under its class name. The
    text is "" if the tensor is unchanged.
    """
    if compressed is tensor:
        return ""
    own = getattr(compressor, "__name__", type(compressor).__name__)
    return f"{_SHORT.get(compressor, own)} of {tensor.dtype.name}"


def describe_all(descriptions: Sequence[str]) -> str:
    """Join the distinct descriptions of a group's members; return "" if all are empty."""
    if not any(descriptions):
        return ""
    return ", ".join(dict.fromkeys(text or "none" for text in descriptions))
