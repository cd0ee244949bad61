"""Initial weights: He, Glorot, and uniform by fan-in."""

import math

import numpy as np
import numpy.typing as npt

from operators.dnn.spec import ModelSpec, weight_ranges


def initial_weights(spec: ModelSpec, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Draw a weight vector for `spec`, following its `init`.

    uniform: weights and biases in +-1/sqrt(fan_in) (LeCun et al., Efficient BackProp, 1998, as PyTorch does it).
    he: normal with variance 2/fan_in, biases 0 (He et al., 2015, eq. 10).
    glorot: uniform in +-sqrt(6/(fan_in + fan_out)), biases 0 (Glorot and Bengio, 2010, eq. 16).

    Returns: (n_weights,) float32. The same generator state gives the same vector.
    """
    ranges = weight_ranges(spec)
    vector = np.zeros(ranges[-1].stop, np.float32)
    for weight, bias in zip(ranges[::2], ranges[1::2], strict=True):
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
