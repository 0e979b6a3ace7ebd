"""When periodic work of a run is due: `trainer.save_freq` and `trainer.test_freq`."""


def is_due(every: int | None, step: int, last: int) -> bool:
    """Every `every` steps and after the last one; None is only after the last, -1 is never."""
    if every == -1:
        return False
    return step == last or (every is not None and step % every == 0)
