"""One update of a `Trainable`, as the workers take it."""


def update(trainable, batch, loss_fn, micro, schedule=None):
    metrics = trainable.forward_backward(batch, loss_fn, micro)
    return metrics | trainable.optim_step(metrics["loss"], schedule)
