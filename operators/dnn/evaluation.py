"""What logits say: probabilities, the loss and the predicted classes."""

import numpy as np
import numpy.typing as npt


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Probabilities of the classes, (batch, classes) float32, stable for any finite logits."""
    with np.errstate(all="ignore"):
        powers = np.exp(logits - logits.max(1, keepdims=True))
        probabilities: npt.NDArray[np.float32] = powers / powers.sum(1, keepdims=True)
    return probabilities


def cross_entropy(
    logits: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> tuple[float, int, npt.NDArray[np.int64]]:
    """Compare logits (batch, classes) with labels (batch,).

    Returns:
        The sum over the batch of -log softmax(logits)[label], in nats and float64; the number of correct predictions;
        and the predictions (batch,): of equal logits the lowest class, and the first NaN before any number.
    """
    rows, predictions = np.arange(len(labels)), logits.argmax(1)
    with np.errstate(all="ignore"):
        shifted = logits.astype(np.float64)
        shifted -= shifted[rows, predictions][:, None]
        losses = np.log(np.exp(shifted).sum(1)) - shifted[rows, labels]
    return float(losses.sum()), int((predictions == labels).sum()), predictions
