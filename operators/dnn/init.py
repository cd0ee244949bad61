"""Initial weights (He, Glorot, and uniform by fan-in) and statistics."""

import math

import numpy as np
import numpy.typing as npt

from operators.dnn.spec import ModelSpec, statistic_ranges, weight_ranges


def initial_weights(spec: ModelSpec, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Draw a weight vector for `spec`, following its `init`.

    uniform: weights and biases in +-1/sqrt(fan_in) (LeCun et al., Efficient BackProp, 1998, as PyTorch does it).
    he: normal with variance 2/fan_in, biases 0 (He et al., 2015, eq. 10).
    glorot: uniform in +-sqrt(6/(fan_in + fan_out)), biases 0 (Glorot and Bengio, 2010, eq. 16).
    The weights of batch normalisation are 1 and its biases 0, whatever `init` says.

    Returns: (n_weights,) float32. The same generator state gives the same vector.
    """
    ranges = weight_ranges(spec)
    vector = np.zeros(ranges[-1].stop, np.float32)
    for weight, bias in zip(ranges[::2], ranges[1::2], strict=True):
        if len(weight.shape) == 1:  # batch normalisation's: all others join outputs to inputs
            vector[weight.start : weight.stop] = 1
            continue
        fan_in = math.prod(weight.shape[1:])
        fan_out = weight.shape[0] * math.prod(weight.shape[2:])
        values = vector[weight.start : weight.stop]
        if spec.init == "he":
            values[:] = rng.normal(0.0, math.sqrt(2 / fan_in), values.size)
        elif spec.init == "glorot":
            bound = math.sqrt(6 / (fan_in + fan_out))
            values[:] = rng.uniform(-bound, bound, values.size)
        else:
            bound = 1 / math.sqrt(fan_in)
            values[:] = rng.uniform(-bound, bound, values.size)
            vector[bias.start : bias.stop] = rng.uniform(-bound, bound, bias.stop - bias.start)
    return vector


def initial_statistics(spec: ModelSpec) -> npt.NDArray[np.float32]:
    """Return the running statistics before any batch: means 0 and variances 1.

    Returns: (n_statistics,) float32, laid out as `statistic_ranges` says; of length 0 where no layer keeps any.
    """
    ranges = statistic_ranges(spec)
    vector = np.zeros(ranges[-1].stop if ranges else 0, np.float32)
    for variance in ranges[1::2]:
        vector[variance.start : variance.stop] = 1
    return vector
