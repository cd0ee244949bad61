"""The compiled entry: it interprets a program table over one flat workspace buffer.

One compilation serves every network, and each operation has one of its own. Labels are checked here, all else by
`operators.dnn.model`. Images, weights and labels come as read-only arrays, so that there is one compilation
per dtype. Images are taken in chunks: what the layers hand on then stays within the level-2 cache.
"""

from operators.dnn.kernels.arrays import copy
from operators.dnn.kernels.elementwise import add_to, load_images
from operators.dnn.kernels.jit import entry
from operators.dnn.kernels.loss import Labels, are_classes, cross_entropy_gradient
from operators.dnn.kernels.table import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    NOWHERE,
    OUT_CHANNELS,
    OUTPUT,
    OUTPUT_GRADIENT,
    SECOND_GRADIENT,
    SECOND_TOTAL,
    TOTAL,
    Floats,
    Row,
)
from operators.dnn.kernels.unit import Chunk, call


@entry
def run(
    program: Row,
    weights: Floats,
    statistics: Floats,
    images: Floats,
    labels: Labels,
    out: Floats,
    logits: Floats,
    buffer: Floats,
    size: int,
    scale: float,
    seed: int,
    training: bool,
) -> tuple[float, int]:
    """Train on images (batch, pixels), or evaluate them.

    In training, write scale * d loss_sum / d weights to `out`, advance the statistics in place, and return the summed
    loss and the number of correct predictions; drop what `seed` says. Else, write the logits (batch, classes). `size`
    images at most are in hand at once.

    Nothing is computed, and the number is -1, if a label is no class.
    """
    operations = program.shape[0]
    classes = program[-1, OUT_CHANNELS]
    if not are_classes(labels, classes):
        return 0.0, -1
    loss_sum = 0.0
    correct = 0
    for image in range(0, images.shape[0], size):
        batch = min(size, images.shape[0] - image)
        chunk = Chunk(weights, statistics, out, buffer, batch, image, seed, training)
        load_images(program[0], images[image : image + batch], buffer)
        for index in range(operations):
            row = program[index]
            call(row[FORWARD], (row, chunk))
        found = buffer[program[-1, OUTPUT] : program[-1, OUTPUT] + batch * classes].reshape((batch, classes))
        if not training:
            for n in range(batch):
                copy(found[n], logits[image + n])
            continue
        place = program[-1, OUTPUT_GRADIENT]
        delta = buffer[place : place + batch * classes].reshape((batch, classes))
        more, hits = cross_entropy_gradient(found, labels[image : image + batch], scale, delta)
        loss_sum += more
        correct += hits
        for index in range(operations - 1, -1, -1):
            row = program[index]
            call(row[BACKWARD], (row, chunk))
            if row[TOTAL] != NOWHERE:
                add_to(row, chunk, row[INPUT_GRADIENT], row[TOTAL])
            if row[SECOND_TOTAL] != NOWHERE:
                add_to(row, chunk, row[SECOND_GRADIENT], row[SECOND_TOTAL])
    return loss_sum, correct
