"""Batch normalisation (Ioffe and Szegedy, 2015, algorithms 1 and 2) of spatial arrays, channel by channel."""

import math

from operators.dnn.kernels.arrays import fill, total
from operators.dnn.kernels.table import (
    CHANNELS,
    EPSILON,
    HEIGHT,
    INPUT,
    INPUT_GRADIENT,
    KEPT,
    NOWHERE,
    OUTPUT,
    OUTPUT_GRADIENT,
    RATE,
    STATISTICS,
    WEIGHTS,
    WIDTH,
    Row,
    channel_stride,
    real,
)
from operators.dnn.kernels.unit import Chunk, Unit


@Unit
def batch_norm_forward(row: Row, chunk: Chunk) -> None:
    """Normalise by the batch's mean and variance in training, which also moves the running ones, else by these."""
    weights, statistics, buffer, batch = chunk.weights, chunk.statistics, chunk.buffer, chunk.batch
    channels = row[CHANNELS]
    area = row[HEIGHT] * row[WIDTH] * batch
    stride = channel_stride(area)
    momentum, epsilon = real(row, RATE), real(row, EPSILON)
    for c in range(channels):
        x = buffer[row[INPUT] + c * stride : row[INPUT] + c * stride + area]
        y = buffer[row[OUTPUT] + c * stride : row[OUTPUT] + c * stride + area]
        at = row[STATISTICS] + c
        if chunk.training:
            mean = total(x) / area
            squares = x.dtype.type(0)
            for t in range(area):
                squares += (x[t] - mean) * (x[t] - mean)
            variance = squares / area
            statistics[at] += momentum * (mean - statistics[at])
            if area > 1:
                statistics[at + channels] += momentum * (squares / (area - 1) - statistics[at + channels])
        else:
            mean, variance = statistics[at], statistics[at + channels]
        deviation = math.sqrt(variance + epsilon)
        buffer[row[KEPT] + c] = mean
        buffer[row[KEPT] + channels + c] = deviation
        centre = buffer[row[KEPT] + c]
        factor = weights[row[WEIGHTS] + c] / buffer[row[KEPT] + channels + c]
        bias = weights[row[WEIGHTS] + channels + c]
        for t in range(area):
            y[t] = factor * (x[t] - centre) + bias


@Unit
def batch_norm_backward(row: Row, chunk: Chunk) -> None:
    """Add the gradient of weight and bias to `out`, and write that of the input if anything asks for it."""
    weights, out, buffer, batch = chunk.weights, chunk.out, chunk.buffer, chunk.batch
    channels = row[CHANNELS]
    area = row[HEIGHT] * row[WIDTH] * batch
    stride = channel_stride(area)
    if chunk.image == 0:
        fill(out[row[WEIGHTS] : row[WEIGHTS] + 2 * channels], 0)
    for c in range(channels):
        x = buffer[row[INPUT] + c * stride : row[INPUT] + c * stride + area]
        delta = buffer[row[OUTPUT_GRADIENT] + c * stride : row[OUTPUT_GRADIENT] + c * stride + area]
        centre, deviation = buffer[row[KEPT] + c], buffer[row[KEPT] + channels + c]
        given = total(delta)
        along = x.dtype.type(0)
        for t in range(area):
            along += delta[t] * (x[t] - centre)
        along /= deviation
        out[row[WEIGHTS] + c] += along
        out[row[WEIGHTS] + channels + c] += given
        if row[INPUT_GRADIENT] != NOWHERE:
            target = buffer[row[INPUT_GRADIENT] + c * stride : row[INPUT_GRADIENT] + c * stride + area]
            factor = weights[row[WEIGHTS] + c] / deviation
            mean, slope = given / x.dtype.type(area), along / (x.dtype.type(area) * deviation)
            for t in range(area):
                target[t] = factor * (delta[t] - mean - slope * (x[t] - centre))
