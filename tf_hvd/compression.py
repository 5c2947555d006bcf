"""Smaller numbers for the way: gradients are sent in a 16-bit type and widened again."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Compressor:
    """Interface: how a tensor is changed before it is sent, and changed back after."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send and what `decompress` needs to know."""
        raise NotImplementedError("a Compressor defines compress()")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undoes `compress`; `ctx` is its second result."""
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


def _narrow(tensor: Any, dtype: tf.DType) -> tuple[Any, Any]:
    if not tensor.dtype.is_floating or tensor.dtype.size <= dtype.size:
        return tensor, None
    return tf.cast(tensor, dtype), tensor.dtype


def _widen(tensor: Any, dtype: tf.DType | None) -> Any:
    return tensor if dtype is None else tf.cast(tensor, dtype)


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16: 10 bits of fraction, values up to 65504.

    Other types, bfloat16 too, are sent as they are. Sums are formed in float32.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Casts to float16; the context is the dtype to return to, or None."""
        return _narrow(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Casts back to the dtype that `compress` was given."""
        return _widen(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 as bfloat16: the range of float32, 7 bits of fraction.

    Other types, float16 too, are sent as they are. Sums are formed in float32.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Casts to bfloat16; the context is the dtype to return to, or None."""
        return _narrow(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Casts back to the dtype that `compress` was given."""
        return _widen(tensor, ctx)


class Compression:
    """What the argument `compression=` may be; a Compressor of your own works too."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_WORDS: dict[Any, str] = {FP16Compressor: "fp16", BF16Compressor: "bf16"}


def describe(compression: Any, tensor: Any, compressed: Any) -> str:
    """What `compression` did to a tensor, in words that the ranks compare.

    "fp16 of float32"; a compressor of the user's own by the name of its class;
    "" if it changed nothing.
    """
    if compressed is tensor:
        return ""
    own = getattr(compression, "__name__", type(compression).__name__)
    return f"{_WORDS.get(compression, own)} of {tensor.dtype.name}"


def describe_all(descriptions: Sequence[str]) -> str:
    """The same for the members of a group, each description once; "" if all are empty."""
    if not any(descriptions):
        return ""
    return ", ".join(dict.fromkeys(text or "none" for text in descriptions))
