"""Random bits for dropout: a function of a seed and a position, with no state to carry or to share."""

import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def uniform_bits(seed: int, layer: int, image: npt.ArrayLike, elements: int) -> npt.NDArray[np.uint32]:
    """Draw 32 uniform bits for each element of some images' arrays at one layer.

    With arithmetic on 64-bit unsigned integers that wraps around, `>>` shifting in zeros and `^` exclusive or:

        mix(z): z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
                z = (z ^ (z >> 27)) * 0x94D049BB133111EB
                return z ^ (z >> 31)
        draw(key, n) = mix(key + (n + 1) * 0x9E3779B97F4A7C15)
        bits(seed, layer, image, element) = draw(draw(draw(draw(seed, 0), layer), image), element) >> 32

    draw(key, n) is output n, counted from 0, of the generator splitmix64 seeded with `key` (Steele, Lea and Flood,
    Fast Splittable Pseudorandom Number Generators, OOPSLA 2014, with the constants of Stafford's mix 13).
    So the bits of an image depend on no other image, and may be drawn in any order, on any number of threads.

    Args:
        seed: of one shard's step, taken modulo 2**64.
        layer: index of the layer in `operators.dnn.spec.steps`, where the layers within a residual, and each
            residual itself, count.
        image: (images,) numbers from 0 of the images within the shard.
        elements: how many elements an image has at the layer; they are numbered in (channel, row, column) order.

    Returns:
        (images, elements) uint32. An element is kept by dropout if its bits are >= rate * 2**32.
    """
    key = _draw(_draw(np.array([seed % 2**64], np.uint64), np.zeros(1, np.uint64)), np.array([layer], np.uint64))
    images = _draw(key, np.asarray(image, np.uint64).reshape(-1))
    bits = _draw(images[:, None], np.arange(elements, dtype=np.uint64))
    return (bits >> np.uint64(32)).astype(np.uint32)


def _draw(key: npt.NDArray[np.uint64], number: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = key + (number + np.uint64(1)) * _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
